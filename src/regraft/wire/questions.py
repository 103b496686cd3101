"""What is said about questions and their replies, and about contexts.

Rules:

- Between a client and its node a question has a `token`: the asker chooses its own; that of a
  question to be answered comes with its delivery. Between nodes it has an `id`, which no other
  question of the network has.
- QUESTION goes away from the asker; REPLY, COUNTED and ENDED come back the same way. ENDED is the
  last of a branch, and says how many REPLY frames there were in all.
"""

from __future__ import annotations

from dataclasses import dataclass

from regraft.wire.protobuf import boolean, octets, string, uint32, uint64


@dataclass(frozen=True, slots=True)
class Question:
    """A message that everybody who takes it may reply to."""

    id: bytes = octets(1)
    token: int = uint64(2)
    lasts_ms: int = uint32(3)
    envelope: bytes = octets(4)


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply; a replier's `last` one may be none at all."""

    id: bytes = octets(1)
    token: int = uint64(2)
    envelope: bytes = octets(3)
    last: bool = boolean(4)
    failed: bool = boolean(5)


@dataclass(frozen=True, slots=True)
class Counted:
    """So many may reply, on this branch."""

    id: bytes = octets(1)
    token: int = uint64(2)
    repliers: int = uint64(3)


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing more comes of this branch; if it is not complete, why."""

    id: bytes = octets(1)
    token: int = uint64(2)
    repliers: int = uint64(3)
    replies: int = uint64(4)
    complete: bool = boolean(5)
    code: int = uint32(6)
    reason: str = string(7)


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Nobody waits for replies any more."""

    id: bytes = octets(1)
    token: int = uint64(2)


@dataclass(frozen=True, slots=True)
class Context:
    """A client's context from now on, all of it: attributes as an envelope has them in field 19."""

    token: int = uint64(1)
    attributes: bytes = octets(2)
