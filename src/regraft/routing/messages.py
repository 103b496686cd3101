"""What reconfigurations say between neighbours, besides what is wanted.

Each of these is a frame with the same fields in the same order. Node ids are 16 bytes; a rid names
a reconfiguration by the link that was lost, and both of its ends derive the same.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from regraft.routing.filters import Filter

Numbered: TypeAlias = tuple[int, Filter]


class Flush(NamedTuple):
    """The new link is told everything: who waits because of the lost one waits no longer."""

    rid: bytes
    route: tuple[bytes, ...]  # whom it still has to pass; () if that is not known
    hops: int  # how far it may go then, by every link
    echo: bool  # RESTORED comes back behind the unsubscriptions that follow


class Restored(NamedTuple):
    """The far end of a lost link has unsubscribed, and everybody on the way here."""

    rid: bytes


class Activate(NamedTuple):
    """A new link may be told everything but these, of which it is not known who else wants them."""

    rid: bytes
    doubtful: tuple[Filter, ...]
    route: tuple[bytes, ...]  # whom it still has to pass, the end of the new link last


class Reroute(NamedTuple):
    """What went by the lost link goes by you from now on."""

    rid: bytes
    given: tuple[Numbered, ...]  # what you want from now on, as far as I am concerned
    remove: tuple[int, ...]  # what I do not want from you any more
    head: tuple[bytes, ...]  # the nodes to the new link, from you on; () if you are behind it
    tail: tuple[bytes, ...]  # from its far end to that of the lost link; () if that is not known


class Rerouted(NamedTuple):
    """Of what you say that I want, this I have said already, or it is covered."""

    rid: bytes
    remove: tuple[int, ...]


class Heeded(NamedTuple):
    """All that is wanted of what you offered, up to this number, I have said."""

    number: int


class Mark(NamedTuple):
    """Nothing that is sent: so far has come what is told."""

    id: int


Message: TypeAlias = Flush | Restored | Activate | Reroute | Rerouted | Heeded | Mark
