"""Who holds which filters, and what each neighbour has to be told: the nouns of `forwarding`."""

from __future__ import annotations

from collections import OrderedDict, deque

from regraft.routing.advertisements import Gate
from regraft.routing.filters import Filter
from regraft.routing.messages import Message, Numbered, Reroute
from regraft.routing.reduction import Reduction
from regraft.routing.uncovered import Unreduced

GIVEN = 1 << 31  # numbers from here on were given by the receiver of what they stand for
LIVE, WAITING, GONE = 0, 1, 2  # a link; one that was lost, and what it causes waits; neither


class Holder:
    """Somebody who holds filters."""

    __slots__ = ("filters", "given", "key", "numbers", "state", "step")

    def __init__(self, key: int) -> None:
        self.key = key
        self.filters: dict[Held, int] = {}  # how often
        self.numbers: dict[int, Filter] = {}  # as received
        self.given = GIVEN  # the last number that was given in its place
        self.state = LIVE
        self.step = 0  # at which it was lost


class Held:
    """A filter that somebody holds."""

    __slots__ = ("filter", "holders", "number")

    def __init__(self, filter: Filter) -> None:
        self.filter = filter
        self.holders: tuple[Holder, ...] = ()
        self.number = 0  # in the index; 0 if it is not there

    def wanted_besides(self, holder: Holder | None) -> bool:
        """Whether anybody else holds it."""
        if len(self.holders) == 1:  # as it mostly is
            (one,) = self.holders
            return one is not holder and one.state == LIVE
        return any(one is not holder and one.state == LIVE for one in self.holders)


class View:
    """The filters of everybody but one."""

    def __init__(self, besides: Holder | None, reduction: Reduction | Unreduced) -> None:
        self.besides = besides
        self.reduction = reduction

    def wants(self, held: Held) -> bool:
        """Whether a filter has a place here."""
        return held.wanted_besides(self.besides)

    def keeps(self, held: Held, group: int) -> bool:
        """Whether a filter has to stay."""
        return self.wants(held)

    def review(self, group: int) -> None:
        """A filter of the group has fallen, or has not."""


class Link(View):
    """A neighbour: what it has to be told, and what it was told."""

    def __init__(
        self,
        holder: Holder,
        reduction: Reduction | Unreduced,
        step: int,
        gate: Gate | None = None,
    ) -> None:
        super().__init__(holder, reduction)
        self.gate = gate  # what it offers, where that matters
        self.key = holder.key
        self.holder = holder
        self.step = step  # at which it was added
        self.synced = False
        self.dormant = False  # it is told nothing yet
        self.tags: dict[Held, bytes] = {}  # withheld, by which reconfiguration
        self.given: list[Numbered] = []  # what the other end takes for told
        self.given_step = 0
        self.given_rid = b""  # if it is to be answered by Rerouted
        self.unwanted: list[int] = []  # of that
        self.after: deque[tuple[int, Message]] = deque()  # to be said in its place
        self.told: dict[int, int] = {}  # the number, by the group
        self.sent: dict[int, Filter] = {}
        self.last_number = 0
        self.to_add: OrderedDict[int, None] = OrderedDict.fromkeys(reduction.groups)
        self.to_remove: OrderedDict[int, None] = OrderedDict()
        self.doubtful: set[int] = set()  # to be told, but who stands for them is falling

    @property
    def collecting(self) -> bool:
        """Whether what is to be removed goes into a message that waits."""
        return any(type(message) is Reroute for _, message in self.after)

    @property
    def busy(self) -> bool:
        """Whether there is something to be told."""
        if self.dormant:
            return False
        more = self.to_add or self.to_remove or self.given or self.unwanted
        gate = self.gate
        said = self.after and (gate is None or gate.open)
        return bool(more or said) or not (self.synced or (gate is not None and not gate.complete))

    def wants(self, held: Held) -> bool:
        """Whether a filter has a place here."""
        wanted = held.wanted_besides(self.holder) and held not in self.tags
        return wanted and (self.gate is None or self.gate.passes(held.filter))

    def keeps(self, held: Held, group: int) -> bool:
        """Whether a filter has to stay, be it until the waiting for a lost link ends."""
        if held in self.tags or (self.gate is not None and not self.gate.passes(held.filter)):
            return False
        if held.wanted_besides(self.holder):
            return True
        if group not in self.told or self.reduction.stands_for(group) is None:
            return False
        return any(one.state == WAITING and one.step > self.step for one in held.holders)

    def show(self, group: int) -> None:
        """A group is to be told."""
        self.to_remove.pop(group, None)
        if group not in self.told:
            self.to_add[group] = None

    def hide(self, group: int) -> None:
        """A group is to be told no longer."""
        self.to_add.pop(group, None)
        self.doubtful.discard(group)
        if group in self.told:
            self.to_remove[group] = None

    def review(self, group: int) -> None:
        """A filter of the group has fallen, or has not: if the group is still here, it is told."""
        if group in self.doubtful:
            self.doubtful.remove(group)
            self.to_add[group] = None
