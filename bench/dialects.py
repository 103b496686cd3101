"""How the load generator speaks to each server: one channel per connection.

A dialect knows how to open a connection, what a message looks like on the way in and how many
bytes it has on the way out. All messages of one work have the same size, so that messages are
counted from bytes: without a look at each, which would make the generator the slowest part.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from bench.servers import NATS, REGRAFT, RELAY
from regraft.kernels.checksum import crc32c
from regraft.model.message import Message, Value
from regraft.wire import native
from regraft.wire.native import Kind

IO_SECONDS = 10  # a connection that does not move for so long is an error
BLOCK_BYTES = 256 * 1024
BLOCK_MESSAGES = 1000
READ_BYTES = 16 * 1024  # at a time, of control frames

ID = 0x0123456789ABCDEF
TIMESTAMP = 1_700_000_000_000_000


@dataclass(frozen=True)
class Work:
    """What is sent, and how many take it."""

    label: str
    body: int
    takers: int
    topics: int = 1
    rich: bool = False  # with an id, a timestamp and two attributes besides
    where: str = ""  # a selector for every subscriber, and the attributes it asks for; NATS: none


@dataclass(frozen=True)
class Block:
    """Encoded messages of one size, one behind the other."""

    data: bytes
    size: int
    count: int


class LostError(Exception):
    """The server ended a connection, or said that it will."""


class Channel:
    """One connection that counts what it gets, by bytes."""

    def __init__(self, sock: socket.socket, delivered: int) -> None:
        self.sock = sock
        self.delivered = delivered  # size of one message as it arrives
        self.bytes = 0  # of messages
        self.tail = b""  # the beginning of something whose end has not come: goes first next time

    @property
    def messages(self) -> int:
        return self.bytes // self.delivered

    def take(self, view: memoryview) -> None:
        """Count what came; `view` begins with `tail`."""
        self.bytes += len(view)

    def allowed(self, want: int, size: int) -> int:
        """How many messages of this size may be sent now, up to `want`; waits for the first."""
        return want


# ------------------------------------------------------------------------------ NATS


class NatsChannel(Channel):
    """MSG lines of one length; a PING at either end of what came is answered."""

    def take(self, view: memoryview) -> None:
        self.bytes += len(view)
        if b"PING\r\n" in (bytes(view[:6]), bytes(view[-6:])):
            self.bytes -= 6
            self.sock.sendall(b"PONG\r\n")
        elif bytes(view[:4]) == b"-ERR":
            raise LostError(bytes(view[:100]).decode(errors="replace").strip())


NATS_HEADERS = (
    f"NATS/1.0\r\nid: {ID:x}\r\ntimestamp: {TIMESTAMP}\r\nprice: 101.5\r\nsymbol: ACME\r\n\r\n"
).encode()
NATS_CONNECT = json.dumps(
    {"verbose": False, "pedantic": False, "headers": True, "lang": "bench", "version": "0"}
).encode()


def nats_subject(work: Work, number: int) -> bytes:
    return b"bench.topic%02d" % number if work.topics > 1 else b"bench.prices"


def nats_block(work: Work) -> Block:
    body = b"x" * work.body
    frames = []
    for number in range(work.topics):
        subject = nats_subject(work, number)
        if work.rich:
            total = len(NATS_HEADERS) + len(body)
            head = b"HPUB %b %d %d\r\n%b" % (subject, len(NATS_HEADERS), total, NATS_HEADERS)
        else:
            head = b"PUB %b %d\r\n" % (subject, len(body))
        frames.append(head + body + b"\r\n")
    return repeat(frames)


def nats_delivered(work: Work, sent: int) -> int:
    """PUB becomes MSG with the subscription's id `1` and a blank behind the subject."""
    return sent + len(b"MSG") - len(b"PUB") + len(b"1 ")


def nats_open(port: int, work: Work, subscribe: bool) -> Channel:
    sock = connect(port)
    read_until(sock, b"\r\n")  # INFO
    sock.sendall(b"CONNECT " + NATS_CONNECT + b"\r\n")
    if subscribe:
        subject = b">" if work.topics > 1 else nats_subject(work, 0)
        sock.sendall(b"SUB " + subject + b" 1\r\n")
    sock.sendall(b"PING\r\n")
    read_until(sock, b"PONG\r\n")
    return NatsChannel(sock, nats_delivered(work, nats_block(work).size))


# ------------------------------------------------------------------------------ relay


def relay_open(port: int, work: Work, subscribe: bool) -> Channel:
    """The relay carries the frames of the native protocol, and looks at none."""
    sock = connect(port)
    sock.sendall(b"S" if subscribe else b"P")
    if subscribe:
        read_until(sock, b"S")
    return Channel(sock, regraft_block(work).size)


# ------------------------------------------------------------------------------ Regraft

HEAD = struct.Struct("<IBBH")  # length, kind, flags and check of a frame
CHECKED_BYTES = 6  # of a header, that its check covers
COUNT = struct.Struct("<BI")  # the first field of a transfer header, a fixed32
COUNT_TAG = 0x0D


def regraft_topic(work: Work, number: int) -> str:
    return f"bench/topic{number:02d}" if work.topics > 1 else "bench/prices"


def regraft_block(work: Work) -> Block:
    body = b"x" * work.body
    frames = []
    for number in range(work.topics):
        message = Message(topic=regraft_topic(work, number), body=body)
        if work.rich:
            attributes: dict[str, Value] = {"price": 101.5, "symbol": "ACME"}
            message = replace(message, id=ID, timestamp_us=TIMESTAMP, attributes=attributes)
        elif work.where:
            message = replace(message, attributes={"price": 101.5, "symbol": "ACME"})
        frames.append(native.encode(message))
    return repeat(frames)


class RegraftChannel(Channel):
    """Walks from transfer header to transfer header, over as many messages as each announces.

    A header that announces more or fewer than really follow puts the next one out of place, which
    ends the measurement: the count is as good as a look at every message.
    """

    def __init__(self, sock: socket.socket, delivered: int) -> None:
        super().__init__(sock, delivered)
        self.run = 0  # bytes of announced messages still to come
        self.granted = native.Credit()
        self.credit = b""  # the latest that came; decoded when it is needed
        self.sent = 0
        self.seen: set[type[Any]] = set()  # what came besides messages

    def take(self, view: memoryview) -> None:
        i, n = 0, len(view)
        while i < n:
            if self.run:
                step = min(self.run, n - i)
                self.run -= step
                self.bytes += step
                i += step
                continue
            if n - i < native.HEADER_BYTES:
                break
            length, kind, _, check = HEAD.unpack_from(view, i)
            if crc32c(view[i : i + CHECKED_BYTES]) & 0xFFFF != check:
                raise LostError("no frame where one should begin: the stream is out of step")
            if n - i < length + 4:
                break
            payload = i + native.HEADER_BYTES
            if kind == Kind.TRANSFER:
                tag, count = COUNT.unpack_from(view, payload)
                if tag != COUNT_TAG:
                    raise LostError("a transfer header does not begin with its count")
                self.run = count * self.delivered
            elif kind == Kind.CREDIT:
                self.credit = bytes(view[payload : i + length + 4])
            else:
                self.take_payload(kind, bytes(view[payload : i + length + 4]))
            i += length + 4
        self.tail = bytes(view[i:n])

    def take_payload(self, kind: int, payload: bytes) -> None:
        self.take_control(native.decode(kind, payload))

    def take_control(self, frame: Any) -> None:
        self.seen.add(type(frame))
        if isinstance(frame, native.Welcome):
            self.granted = native.Credit(frame.credit_messages, frame.credit_bytes)
        elif not isinstance(frame, native.Subscribed | native.Heartbeat):
            raise LostError(repr(frame)[:300])

    def read(self) -> None:
        """Wait for something, and take it."""
        data = self.sock.recv(READ_BYTES)
        if not data:
            raise LostError("the node ended the connection")
        self.take(memoryview(self.tail + data))

    def allowed(self, want: int, size: int) -> int:
        """A message may begin while fewer messages and bytes were sent than were granted."""
        while True:
            by_bytes = (self.granted.bytes - self.sent * size + size - 1) // size
            can = min(want, self.granted.messages - self.sent, by_bytes)
            if can > 0:
                self.sent += can
                return can
            if not self.credit:
                self.read()
            if self.credit:
                self.granted, self.credit = native.decode(Kind.CREDIT, self.credit), b""


def regraft_open(port: int, work: Work, subscribe: bool) -> Channel:
    channel = RegraftChannel(connect(port), regraft_block(work).size)
    hello = native.Hello(version_min=1, version_max=1, agent="bench", passive=True)
    channel.sock.sendall(native.PREFACE + native.encode(hello))
    while native.Welcome not in channel.seen:
        channel.read()
    if subscribe:
        pattern = "#" if work.topics > 1 else regraft_topic(work, 0)
        channel.sock.sendall(native.encode(native.Subscribe(1, pattern, work.where)))
        while native.Subscribed not in channel.seen:
            channel.read()
    return channel


# ------------------------------------------------------------------------------ shared


def connect(port: int) -> socket.socket:
    """A blocking socket; the kernel ends a call that does not move."""
    sock = socket.create_connection(("127.0.0.1", port), IO_SECONDS)
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if sys.platform != "win32":
        limit = struct.pack("@ll", IO_SECONDS, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    return sock


def read_until(sock: socket.socket, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        more = sock.recv(65536)
        if not more:
            raise LostError(f"the server ended the connection: {data[:200]!r}")
        data += more
    return data


def repeat(frames: list[bytes]) -> Block:
    """The frames in turn, about a thousand of them, but no more than one comfortable write."""
    size = len(frames[0])
    assert all(len(each) == size for each in frames)
    turns = max(1, min(BLOCK_MESSAGES, BLOCK_BYTES // size) // len(frames))
    return Block(b"".join(frames) * turns, size, turns * len(frames))


@dataclass(frozen=True)
class Dialect:
    """One server's way of speaking."""

    block: Callable[[Work], Block]
    open: Callable[[int, Work, bool], Channel]


DIALECTS = {
    RELAY: Dialect(regraft_block, relay_open),
    NATS: Dialect(nats_block, nats_open),
    REGRAFT: Dialect(regraft_block, regraft_open),
}
