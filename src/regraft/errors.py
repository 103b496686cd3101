"""Every error that Regraft names, and whom it blames.

    RegraftError
    ├── LocalError    you: the call or the configuration was wrong
    ├── PeerError     the other end: it sent what the protocol does not allow
    ├── WorldError    neither: the network, a time limit, a shutdown
    └── DiskError     the disk, or the data on it

Each error has a code from the one table below. The code says whether the connection survives
and what the error is called in other protocols; the text says what to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Code:
    """One row of the table of errors."""

    number: int
    name: str
    fatal: bool  # the connection ends
    amqp: str
    mqtt: int
    http: int
    meaning: str


_ROWS = (
    # number, name, fatal, AMQP 1.0 condition, MQTT 5 reason, HTTP status, meaning
    (1, "malformed-frame", True, "amqp:connection:framing-error", 0x81, 400,
     "the bytes are not a frame of this protocol"),
    (2, "bad-checksum", True, "amqp:connection:framing-error", 0x81, 400,
     "a checksum does not fit its bytes"),
    (3, "frame-too-large", True, "amqp:link:message-size-exceeded", 0x95, 413,
     "a frame is longer than this node takes"),
    (4, "malformed-envelope", True, "amqp:decode-error", 0x81, 400,
     "a payload is not the Protocol Buffers message that its kind asks for"),
    (5, "protocol-violation", True, "amqp:illegal-state", 0x82, 400,
     "a frame that is not allowed here"),
    (6, "unsupported-version", True, "amqp:not-implemented", 0x84, 505,
     "no common version of the protocol"),
    (7, "unsupported-feature", True, "amqp:not-implemented", 0x84, 501,
     "one side requires a feature that the other does not have"),
    (8, "too-slow-to-open", True, "amqp:connection:forced", 0x8D, 408,
     "the handshake was not finished in time"),
    (9, "heartbeat-lost", True, "amqp:connection:forced", 0x8D, 408,
     "nothing was heard from the other end for too long"),
    (10, "taken-over", True, "amqp:link:stolen", 0x8E, 409,
     "the same client id connected again"),
    (11, "stalled", True, "amqp:resource-limit-exceeded", 0x97, 429,
     "the subscriber made no progress and asked to be disconnected then"),
    (12, "shutting-down", True, "amqp:connection:forced", 0x8B, 503,
     "the node is being stopped"),
    (13, "too-many-connections", True, "amqp:resource-limit-exceeded", 0x97, 503,
     "the node has as many connections as it takes"),
    (14, "unknown-protocol", True, "amqp:connection:framing-error", 0x84, 400,
     "the first bytes are of no protocol that this node speaks"),
    (15, "network-differs", True, "amqp:precondition-failed", 0x83, 409,
     "the other node is of a network that routes in another way"),
    (20, "bad-topic", False, "amqp:invalid-field", 0x90, 400,
     "a topic that cannot be published to"),
    (21, "bad-pattern", False, "amqp:invalid-field", 0x8F, 400,
     "a topic pattern that cannot be subscribed to"),
    (22, "bad-selector", False, "amqp:invalid-field", 0x8F, 400,
     "a selector that cannot be used"),
    (23, "subscription-in-use", False, "amqp:illegal-state", 0x91, 409,
     "the session already has a subscription with this id"),
    (24, "unknown-subscription", False, "amqp:not-found", 0x11, 404,
     "the session has no subscription with this id"),
    (25, "limit-exceeded", False, "amqp:resource-limit-exceeded", 0x97, 429,
     "one of the node's limits is reached"),
    (26, "not-authorized", False, "amqp:unauthorized-access", 0x87, 403,
     "this principal may not do that"),
    (27, "not-supported", False, "amqp:not-implemented", 0x9E, 501,
     "this node does not do that"),
    (28, "sequence-too-old", False, "amqp:illegal-state", 0x83, 409,
     "a sequence so old that nobody knows whether it was published before"),
    (29, "unknown-stream", False, "amqp:not-found", 0x8F, 404,
     "no stream of this node holds that"),
    (30, "mailbox-differs", False, "amqp:precondition-failed", 0x83, 409,
     "a mailbox of this name has another pattern or selector"),
    (31, "mailbox-in-use", False, "amqp:link:stolen", 0x91, 409,
     "another session reads this mailbox"),
    (32, "mailbox-full", False, "amqp:resource-limit-exceeded", 0x97, 507,
     "a mailbox that would take the message holds as much as it may"),
    (33, "not-a-neighbour", False, "amqp:not-found", 0x83, 404,
     "the node has no link to that one"),
    (34, "already-a-neighbour", False, "amqp:illegal-state", 0x83, 409,
     "the node has a link to that one"),
    (35, "bad-address", False, "amqp:invalid-field", 0x83, 400,
     "an address is host:port"),
    (36, "not-in-the-network", False, "amqp:illegal-state", 0x83, 409,
     "the node takes no part in the network, or is about to leave it"),
    (37, "unknown-mailbox", False, "amqp:not-found", 0x8F, 404,
     "this node has no mailbox of that name"),
    (38, "unknown-topic", False, "amqp:not-found", 0x8F, 404,
     "no topic of that name is administered here"),
    (39, "not-waiting", False, "amqp:not-found", 0x83, 404,
     "no such message waits there any more"),
    (40, "unreachable", True, "amqp:connection:forced", 0x88, 502,
     "no node answers at this address"),
    (41, "connection-lost", True, "amqp:connection:forced", 0x88, 502,
     "the connection ended without a word"),
    (42, "timed-out", False, "amqp:connection:forced", 0x8D, 504,
     "it did not happen in the time given"),
    (43, "position-expired", False, "amqp:not-found", 0x8F, 410,
     "what was asked for is not kept any more"),
    (44, "other-journal", False, "amqp:precondition-failed", 0x83, 409,
     "a position of another journal than this node has"),
    (45, "rolled-back", False, "amqp:transaction:rollback", 0x83, 409,
     "the transaction was rolled back: nothing of it counts"),
    (46, "in-doubt", False, "amqp:transaction:timeout", 0x83, 504,
     "nobody knows how the transaction ended"),
    (47, "undeliverable", False, "amqp:not-found", 0x10, 502,
     "there is nobody whom the message could be given to"),
    (48, "backend-error", False, "amqp:internal-error", 0x83, 500,
     "the service that got the request failed"),
    (49, "reply-timeout", False, "amqp:connection:forced", 0x8D, 504,
     "no reply came in the time given"),
    (50, "data-folder-locked", True, "amqp:internal-error", 0x80, 500,
     "another node uses this data folder"),
    (51, "data-folder-version", True, "amqp:internal-error", 0x80, 500,
     "the data folder was written by a newer version"),
    (52, "data-folder-damaged", True, "amqp:internal-error", 0x80, 500,
     "a file in the data folder cannot be read"),
    (53, "journal-damaged", True, "amqp:internal-error", 0x80, 500,
     "what had been written to the journal cannot be read any more"),
    (54, "journal-failed", False, "amqp:internal-error", 0x80, 500,
     "the disk failed: nothing more is accepted for the journal"),
    (55, "disk-full", False, "amqp:resource-limit-exceeded", 0x97, 507,
     "the disk is full"),
    (56, "journal-full", False, "amqp:resource-limit-exceeded", 0x97, 507,
     "the journal has the size that it may have"),
    (60, "bad-configuration", False, "amqp:invalid-field", 0x83, 400,
     "a setting is unknown or has a value that cannot be"),
    (61, "closed", False, "amqp:illegal-state", 0x82, 409,
     "the client was closed"),
    (62, "bad-message", False, "amqp:invalid-field", 0x99, 400,
     "a message that cannot be encoded"),
    (63, "unknown-transaction", False, "amqp:transaction:unknown-id", 0x83, 404,
     "no transaction of that name waits to be decided"),
    (65, "not-advertised", False, "amqp:precondition-failed", 0x83, 409,
     "this network routes by advertisements: advertise what is to be published, and wait for that"),
    (66, "mailbox-moved", False, "amqp:link:redirect", 0x9D, 421,
     "the mailbox has moved to another node"),
)  # fmt: skip

CODES: dict[str, Code] = {row[1]: Code(*row) for row in _ROWS}
BY_NUMBER: dict[int, Code] = {code.number: code for code in CODES.values()}


class RegraftError(Exception):
    """The root: a code of the table and a sentence that says what to do."""

    blame: ClassVar[str] = "nobody"

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.code = CODES[name]
        self.text = text

    def __str__(self) -> str:
        return f"{self.text} [{self.code.name}]"


class LocalError(RegraftError):
    """You: the call or the configuration was wrong."""

    blame = "you"


class PeerError(RegraftError):
    """The other end: it sent what the protocol does not allow."""

    blame = "peer"


class WorldError(RegraftError):
    """Neither end: the network, a time limit, a shutdown."""

    blame = "world"


class ReplyTimeout(WorldError):
    """No reply, or not the next one, came in the time given."""

    def __init__(self, text: str) -> None:
        super().__init__("reply-timeout", text)


class DiskError(RegraftError):
    """The disk, or the data on it."""

    blame = "disk"
