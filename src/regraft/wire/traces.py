"""What is said about traces: the question that goes from node to node as a message would.

Rules:

- TRACE goes away from the asker; reports come back as REPLY, and its end as COUNTED and ENDED, as
  those of a question do. Its `token` and `id` are those of a question, too.
- WHO and PUBLISH go where the message goes. WHY and FILTER go to every node: what they are about
  may be anywhere, and what does not get there is just what is asked about.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from regraft.wire.protobuf import boolean, enumeration, octets, string, uint32, uint64


class TraceMode(IntEnum):
    """What a trace is about."""

    WHO = 0  # who would get this message
    PUBLISH = 1  # publish it, and say who gets it
    WHY = 2  # why a subscriber gets it, or does not
    FILTER = 3  # how a subscription travelled


@dataclass(frozen=True, slots=True)
class Trace:
    """Every node that this comes to reports what it decides, and passes it on."""

    id: bytes = octets(1)
    token: int = uint64(2)
    lasts_ms: int = uint32(3)
    envelope: bytes = octets(4)
    mode: TraceMode = enumeration(5, TraceMode)  # noqa: RUF009, it declares a field
    hops: int = uint32(6)
    unreached: bool = boolean(7)
    client: str = string(8)
    durable: str = string(9)
    subscription: int = uint32(10)
    pattern: str = string(11)
    exact: bool = boolean(12)
    selector: str = string(13)
    filtered: bool = boolean(14)
