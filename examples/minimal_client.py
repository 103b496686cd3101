"""A whole Regraft client in one file, made from docs/protocol.md with the standard library only.

    python minimal_client.py 127.0.0.1 7447 sub 'news/#' 3     print three messages, then leave
    python minimal_client.py 127.0.0.1 7447 pub news/eu hello  publish one message

It shows how little a client needs, in whatever language.
"""

import socket
import struct
import sys
import time
from collections.abc import Iterator
from typing import Any

HELLO, WELCOME, SUBSCRIBE, SUBSCRIBED, MESSAGE, TRANSFER = 1, 2, 3, 4, 7, 8
HEARTBEAT, ERROR, BYE, LAST_KIND = 10, 13, 14, 14
FRAME_BYTES_MAX = 64 * 1024 * 1024  # no node sends more
KNOWN_FEATURES = {b"topics", b"credit", b"stall-policies"}


class Refused(Exception):
    """The node said no, or what it said makes no sense."""


# ------------------------------------------------------------ CRC-32C and frames


def table_entry(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value


CRC_TABLE = [table_entry(value) for value in range(256)]


def crc32c(data: bytes | bytearray) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ CRC_TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def frame(kind: int, payload: bytes = b"") -> bytes:
    head = struct.pack("<IBB", len(payload) + 8, kind, 0)
    return head + struct.pack("<HI", crc32c(head) & 0xFFFF, crc32c(payload)) + payload


# -------------------------------------------------------------- Protocol Buffers


def varint(value: int) -> bytes:
    if value < 0x80:
        return bytes([value])
    return bytes([value & 0x7F | 0x80]) + varint(value >> 7)


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def text(field: int, value: str) -> bytes:
    return varint(field << 3 | 2) + varint(len(value.encode())) + value.encode()


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    if data[at] < 0x80:
        return data[at], at + 1
    rest, end = read_varint(data, at + 1)
    return rest << 7 | data[at] & 0x7F, end


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field; the value is an int for a varint, else its bytes."""
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        if tag & 7 == 0:
            value, at = read_varint(data, at)
            yield tag >> 3, value
        else:
            size, at = read_varint(data, at) if tag & 7 == 2 else ({1: 8, 5: 4}[tag & 7], at)
            yield tag >> 3, data[at : at + size]
            at += size


# -------------------------------------------------------------------- connection


class Connection:
    """An open connection. `receive` keeps up the heartbeats while it waits."""

    def __init__(self, host: str, port: int) -> None:
        self.sock = socket.create_connection((host, port), timeout=5)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = bytearray()
        self.heartbeat_s = 10.0
        hello = number(1, 1) + number(2, 1) + text(5, "minimal_client/1")
        self.send(b"REGRAFT\n" + frame(HELLO, hello))
        for field, value in fields(self.expect(WELCOME)):
            if field == 2:  # a feature: name 1, required 2
                feature = dict(fields(value))
                if feature.get(2) and feature[1] not in KNOWN_FEATURES:
                    raise Refused(f"the node requires {feature[1].decode()}")
            elif field == 9:
                self.heartbeat_s = value / 1000
        self.sock.settimeout(self.heartbeat_s / 2)

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)
        self.sent_at = time.monotonic()

    def receive(self) -> tuple[int, bytes] | None:
        """The next frame that matters, or None at the end of the stream."""
        heard_at = time.monotonic()
        while True:
            while found := self.cut_frame():
                content = dict(fields(found[1])) if found[0] in (HEARTBEAT, ERROR) else {}
                if found[0] == ERROR:
                    raise Refused(f"{content[3].decode()} [{content[2].decode()}]")
                if found[0] != HEARTBEAT or content.get(2):
                    return found
                if 1 in content:  # it has a token: an answer is wanted
                    self.send(frame(HEARTBEAT, number(1, content[1]) + number(2, 1)))
            try:
                data = self.sock.recv(65_536)
                if not data:
                    return None
                self.buffer += data
                heard_at = time.monotonic()
            except TimeoutError:
                if time.monotonic() - heard_at > 3 * self.heartbeat_s:
                    raise Refused("the node is silent") from None
            if time.monotonic() - self.sent_at >= self.heartbeat_s / 2:
                self.send(frame(HEARTBEAT))

    def cut_frame(self) -> tuple[int, bytes] | None:
        """Take one whole frame from the buffer, if one is there."""
        if len(self.buffer) < 12:
            return None
        length, kind, flags, check, checksum = struct.unpack_from("<IBBHI", self.buffer)
        if crc32c(self.buffer[:6]) & 0xFFFF != check:
            raise Refused("the stream is out of step")
        if not (8 <= length <= FRAME_BYTES_MAX - 4 and 1 <= kind <= LAST_KIND and flags <= 1):
            raise Refused(f"no frame of version 1: length {length}, kind {kind}, flags {flags}")
        if len(self.buffer) < length + 4:
            return None
        payload = bytes(self.buffer[12 : length + 4])
        del self.buffer[: length + 4]
        if crc32c(payload) != checksum:
            raise Refused(f"a frame of kind {kind} is damaged")
        return kind, payload

    def expect(self, kind: int) -> bytes:
        """Wait for a frame of one kind, and pass over others."""
        while found := self.receive():
            if found[0] == kind:
                return found[1]
        raise Refused("the node closed the connection")

    def leave(self) -> None:
        """Say goodbye and read to the end: then all that was sent has been dealt with."""
        self.send(frame(BYE))
        while self.receive():
            pass
        self.sock.close()


def subscribe(connection: Connection, pattern: str, count: int) -> None:
    connection.send(frame(SUBSCRIBE, number(1, 1) + text(2, pattern)))
    connection.expect(SUBSCRIBED)
    print(f"subscribed to {pattern}", file=sys.stderr, flush=True)
    run = 0  # messages that are left of it
    for _ in range(count):
        if run == 0:
            transfer = dict(fields(connection.expect(TRANSFER)))
            run = int.from_bytes(transfer[1], "little")
        envelope = dict(fields(connection.expect(MESSAGE)))
        print(envelope[9].decode(), envelope.get(5, b"").decode(errors="replace"), flush=True)
        run -= 1


def publish(connection: Connection, topic: str, body: str) -> None:
    connection.send(frame(MESSAGE, text(5, body) + text(9, topic)))
    connection.send(frame(HEARTBEAT, number(1, 1)))  # with a token
    connection.expect(HEARTBEAT)  # the answer: the node has dealt with the message


if __name__ == "__main__":
    if len(sys.argv) != 6 or sys.argv[3] not in ("sub", "pub"):
        sys.exit(__doc__)
    host, port, command, where, what = sys.argv[1:]
    try:
        connection = Connection(host, int(port))
        if command == "sub":
            subscribe(connection, where, int(what))
        else:
            publish(connection, where, what)
        connection.leave()
    except (Refused, OSError) as error:
        sys.exit(f"minimal_client: {error}")
