"""What is said about advertisements: between a publisher and its node, and between nodes.

Rules:

- ADVERTISE is answered by ADVERTISED, once whoever wants something of it is known; or by ERROR with
  its id. DEMAND follows whenever that changes, and UNADVERTISE ends it, without an answer.
- OFFERS is to advertisements what INTERESTS is to subscriptions. HEEDED comes back behind those.
"""

from __future__ import annotations

from dataclasses import dataclass

from regraft.model import varint
from regraft.wire.peers import Wanted
from regraft.wire.protobuf import boolean, repeated, string, uint64


@dataclass(frozen=True, slots=True)
class Offers:
    """What is offered to a neighbour from now on, and what no more."""

    add: tuple[Wanted, ...] = repeated(1, Wanted)
    remove: tuple[int, ...] = repeated(2, varint.UINT64)
    synced: bool = boolean(3)


@dataclass(frozen=True, slots=True)
class Heeded:
    """All that is wanted of what was offered, up to this number, was said."""

    number: int = uint64(1)


@dataclass(frozen=True, slots=True)
class Advertise:
    """What this client will publish satisfies this."""

    id: int = uint64(1)
    pattern: str = string(2)
    selector: str = string(3)
    exact: bool = boolean(4)


@dataclass(frozen=True, slots=True)
class Advertised:
    """It counts; and whether somebody wants something of it."""

    id: int = uint64(1)
    wanted: bool = boolean(2)


@dataclass(frozen=True, slots=True)
class Unadvertise:
    """It does not count any more."""

    id: int = uint64(1)


@dataclass(frozen=True, slots=True)
class Demand:
    """Somebody wants something of it now, or nobody does."""

    id: int = uint64(1)
    wanted: bool = boolean(2)
