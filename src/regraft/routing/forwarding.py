"""Subscription forwarding: what each neighbour has to be told of what everybody else wants.

Rules:

- A *holder* is a link or `LOCAL`, which stands for all of this node. What it holds is counted, and
  equal filters are one.
- What a link should be told are the filters that anybody but itself holds, those left out that
  others cover. What it was told is kept; the difference is what `announce` says, and SUB comes
  before UNSUB, so that there is no gap in what the link knows.
- What was told stays as long as something equivalent is to be told: it does not matter by whose
  words a neighbour knows of an interest.
- A link is known by a key that is never used twice: one that comes back is another. A filter has a
  number of the sender's, for one link, that is never used twice either.
- What a lost link held is held no longer. But where the protocol of reconfiguration says "wait",
  what was told because of it stays told until the waiting ends, and so do the filters that it
  covers stay untold. Links that come later are not told of it at all.
- Comparing filters is work. It is put off to `announce`, which does a bounded amount of it and
  says by `next_ns` that there is more. What was put off is done in its order, with one exception:
  what is to be added may overtake what is to be taken away, as that saves words.
- What one `announce` says to a link fits into one frame.
- Until there is a link, only the counted filters are kept. What no link would be told is never
  compared: a leaf of the tree does not index what the rest of the tree wants.
- `everybody` is what a new link begins with, so that it does not have to be worked out again. It
  is kept as long as there are several links, and a while longer.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from operator import length_hint
from typing import Any, NamedTuple, TypeAlias

from regraft.errors import LocalError, PeerError
from regraft.model.selector.cover import Form
from regraft.model.topics import check_pattern
from regraft.routing.covering import CoverIndex
from regraft.routing.forms import form_of_filter
from regraft.routing.reconfiguration import Reconfigurator
from regraft.routing.reduction import Change, Reduction
from regraft.routing.uncovered import PlainIndex, Unreduced

LOCAL = -1
WORK_MAX = 8  # filters indexed in one `announce`, about; 1 or 2 ms
_INDEXED = 50  # what that costs, in units of what is easily done
_REDUCED = 5  # what it costs to take a filter into the reduction of one link
_BYTES_MAX = 32 * 1024  # of filters told at once, or one filter more: they fit into a frame
_UNUSED_NS = 60_000_000_000  # the reduction of everybody goes when it was of no use for so long

_live, _waiting, _gone = 0, 1, 2


class Filter(NamedTuple):
    """What somebody wants, as it is written: a topic pattern, and a selector or nothing."""

    pattern: str
    exact: bool
    selector: str


def _size(filter: Filter) -> int:
    """About how many bytes a filter has in a frame, or more."""
    text = filter.pattern + filter.selector
    return 16 + (len(text) if text.isascii() else 4 * len(text))


Announcement: TypeAlias = tuple[int, list[tuple[int, Filter]], list[int], bool]


class _Holder:
    """Somebody who holds filters."""

    __slots__ = ("filters", "key", "numbers", "state", "step")

    def __init__(self, key: int) -> None:
        self.key = key
        self.filters: dict[_Held, int] = {}  # how often
        self.numbers: dict[int, Filter] = {}  # as received
        self.state = _live
        self.step = 0  # at which it was lost


class _Held:
    """A filter that somebody holds."""

    __slots__ = ("filter", "holders", "number")

    def __init__(self, filter: Filter) -> None:
        self.filter = filter
        self.holders: tuple[_Holder, ...] = ()
        self.number = 0  # in the index; 0 if it is not there

    def wanted_besides(self, holder: _Holder | None) -> bool:
        """Whether anybody else holds it."""
        if len(self.holders) == 1:  # as it mostly is
            (one,) = self.holders
            return one is not holder and one.state == _live
        return any(one is not holder and one.state == _live for one in self.holders)


class _View:
    """The filters of everybody but one."""

    def __init__(self, besides: _Holder | None, reduction: Reduction | Unreduced) -> None:
        self.besides = besides
        self.reduction = reduction

    def keeps(self, held: _Held, group: int) -> bool:
        """Whether a filter has to stay."""
        return held.wanted_besides(self.besides)

    def review(self, group: int) -> None:
        """A filter of the group has fallen, or has not."""


class _Link(_View):
    """A neighbour: what it has to be told, and what it was told."""

    def __init__(self, holder: _Holder, reduction: Reduction | Unreduced, step: int) -> None:
        super().__init__(holder, reduction)
        self.key = holder.key
        self.holder = holder
        self.step = step  # at which it was added
        self.synced = False
        self.told: dict[int, int] = {}  # the number, by the group
        self.sent: dict[int, Filter] = {}
        self.last_number = 0
        self.to_add: OrderedDict[int, None] = OrderedDict.fromkeys(reduction.groups)
        self.to_remove: OrderedDict[int, None] = OrderedDict()
        self.doubtful: set[int] = set()  # to be told, but who stands for them is falling

    def keeps(self, held: _Held, group: int) -> bool:
        """Whether a filter has to stay, be it until the waiting for a lost link ends."""
        if held.wanted_besides(self.holder):
            return True
        if group not in self.told or self.reduction.stands_for(group) is None:
            return False
        return any(one.state == _waiting and one.step > self.step for one in held.holders)

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


class Forwarding:
    """What goes to which neighbour."""

    def __init__(
        self,
        reconfigurator: Reconfigurator,
        covering: bool = True,
        work_max: int = WORK_MAX,
        bugs: frozenset[str] = frozenset(),
    ) -> None:
        self._reconfigurator = reconfigurator
        self._covering = covering
        self._work_max = work_max
        self._unsubscribe_first = "unsubscribe-first" in bugs
        self._now_ns = 0
        self._step = 0
        self._held: dict[Filter, _Held] = {}
        self._holders: dict[int, _Holder] = {LOCAL: _Holder(LOCAL)}
        self._waiting: dict[int, _Holder] = {}  # lost, by key
        self._links: dict[int, _Link] = {}
        # What stood still until there was a link, or waits for its turn, by the step of its cause.
        self._used = False
        self.feeding = False  # what is held here is still being told, from before the first link
        self._rising: OrderedDict[_Held, int] = OrderedDict()  # held by more than before
        self._falling: OrderedDict[_Held, int] = OrderedDict()  # held by fewer, or covered now
        self._bulk: deque[tuple[int, Iterator[_Held]]] = deque()  # falling, too, very many at once
        self._index: CoverIndex | PlainIndex = CoverIndex() if covering else PlainIndex()
        self._last_number = 0
        self._of_number: dict[int, _Held] = {}
        self._everybody: _View | None = None  # what a new link begins with
        self._unused_ns: int | None = None  # since when there is not more than one link
        self._counts = dict.fromkeys(("subscribed", "unsubscribed", "unreadable"), 0)

    # --------------------------------------------------------------- what is held

    def hold(self, holder: int, filter: Filter) -> None:
        """Somebody holds a filter, once more if he does already."""
        by = self._holders[holder]
        held = self._held.get(filter)
        if held is None:
            held = self._held[filter] = _Held(filter)
        count = by.filters.get(held, 0)
        by.filters[held] = count + 1
        if count:
            return
        held.holders = (*held.holders, by)
        if self._used:
            self._step += 1
            self._rising.setdefault(held, self._step)

    def release(self, holder: int, filter: Filter) -> None:
        """Once less; he must hold it."""
        by = self._holders[holder]
        held = self._held[filter]
        by.filters[held] -= 1
        if by.filters[held]:
            return
        del by.filters[held]
        held.holders = tuple([one for one in held.holders if one is not by])
        if held.number:
            self._fall(held)
        elif not held.holders:
            self._forget(held)

    def received(
        self, key: int, adds: Iterable[tuple[int, Filter]], removes: Iterable[int]
    ) -> None:
        """What a neighbour says that it wants, and wants no longer, by its numbers."""
        numbers = self._holders[key].numbers
        for number, filter in adds:
            if number in numbers:
                raise PeerError("protocol-violation", f"interest {number} is there already")
            try:
                check_pattern(filter.pattern)
            except LocalError as error:
                raise PeerError("protocol-violation", error.text) from None
            numbers[number] = filter
            self.hold(key, filter)
        for number in removes:
            gone = numbers.pop(number, None)
            if gone is None:
                raise PeerError("protocol-violation", f"there is no interest {number} to remove")
            self.release(key, gone)

    # ---------------------------------------------------------------------- links

    def added(self, key: int, rid: bytes, now_ns: int) -> None:
        """There is a link: it has to be told everything."""
        assert key not in self._holders, key
        self._now_ns = now_ns
        self._step += 1
        self._reconfigurator.added(key, rid, now_ns)
        if not self._used:
            self._used = True
            self._rising.update(dict.fromkeys(self._held.values(), self._step))
        holder = self._holders[key] = _Holder(key)
        self._links[key] = _Link(holder, self._seed(), self._step)
        self._unused_ns = now_ns if len(self._links) == 1 else None

    def _seed(self) -> Reduction | Unreduced:
        """What everybody holds, for a new link; it may have too much, which is falling."""
        if not self._links:
            if self._everybody is None:
                return self._new_reduction()
            reduction, self._everybody = self._everybody.reduction, None
            return reduction
        if self._everybody is None:
            (only,) = self._links.values()
            self._everybody = _View(None, only.reduction.copy())
            for held in only.holder.filters:
                self._rising.setdefault(held, self._step)
            for holder in self._waiting.values():
                self._fall_all(holder)
        return self._everybody.reduction.copy()

    def _new_reduction(self) -> Reduction | Unreduced:
        return Reduction(self._index) if isinstance(self._index, CoverIndex) else Unreduced()

    def lost(self, key: int, rid: bytes, planned: bool, now_ns: int) -> None:
        """A link is no more: what it held is held no longer, what it was told is forgotten."""
        self._now_ns = now_ns
        link = self._links.pop(key)
        holder = self._holders.pop(key)
        self._step += 1
        holder.step = self._step
        if self._reconfigurator.lost(key, rid, planned, now_ns):
            holder.state = _waiting
            self._waiting[key] = holder
        else:
            holder.state = _gone
        self._fall_all(holder)
        if not self._links:
            self._reconfigurator.forget()
            for waiting in list(self._waiting):
                self._end(waiting)
            if self._everybody is None:
                self._everybody = _View(None, link.reduction)
        self._unused_ns = now_ns if len(self._links) == 1 else None

    def _end(self, key: int) -> None:
        """What the loss of a link causes waits no longer."""
        holder = self._waiting.pop(key)
        holder.state = _gone
        self._fall_all(holder)

    def tick(self, now_ns: int) -> None:
        """It is so late."""
        self._now_ns = now_ns
        for key in self._reconfigurator.ended(now_ns):
            self._end(key)
        if self._unused_ns is not None and now_ns >= self._unused_ns + _UNUSED_NS:
            self._unused_ns = None
            if self._everybody is not None:
                self._everybody = None
                for link in self._links.values():
                    self._fall_all(link.holder)

    @property
    def next_ns(self) -> int | None:
        """When `announce` has something to do, if nothing else happens."""
        if self._falling or self._bulk or (self._links and self._rising):
            return self._now_ns
        for link in self._links.values():
            if link.to_add or link.to_remove or not link.synced:
                return self._now_ns
        times = [self._reconfigurator.next_ns]
        if self._unused_ns is not None and self._everybody is not None:
            times.append(self._unused_ns + _UNUSED_NS)
        return min((time for time in times if time is not None), default=None)

    # ----------------------------------------------------------------------- work

    def announce(self, now_ns: int) -> list[Announcement]:
        """Do some work, and say what links have to be told now.

        That is for each link its key, what to add under which numbers, the numbers to remove, and
        whether a new link has now been told everything, which is said once.
        """
        self.tick(now_ns)
        self._work()
        found: list[Announcement] = []
        for link in self._links.values():
            add, remove = self._flush(link)
            done = not link.to_add and not link.doubtful and not self._behind(link)
            synced = done and not link.synced
            link.synced = link.synced or synced
            if add or remove or synced:
                self._counts["subscribed"] += len(add)
                self._counts["unsubscribed"] += len(remove)
                found.append((link.key, add, remove, synced))
        return found

    def _behind(self, link: _Link) -> bool:
        """Whether something waits for its turn since before the link was there."""
        if self.feeding or (self._bulk and self._bulk[0][0] <= link.step):
            return True
        return any(
            queue and next(iter(queue.values())) <= link.step
            for queue in (self._rising, self._falling)
        )

    def _work(self) -> None:
        left = self._work_max * _INDEXED
        rising, falling = self._rising, self._falling
        overtaking = left // 2
        while left > 0:
            rise = bool(rising and self._links)
            if not rise and not falling and not self._bulk:
                return
            if rise and (falling or self._bulk):
                in_order = next(iter(rising.values())) < self._first_fall()
                rise = (in_order or left > overtaking) and not self._unsubscribe_first
            left -= self._rise() if rise else self._drop()

    def _first_fall(self) -> int:
        """The step of what falls next."""
        steps = [self._bulk[0][0]] if self._bulk else []
        if self._falling:
            steps.append(next(iter(self._falling.values())))
        return min(steps)

    def _rise(self) -> int:
        """Take a filter into the views that it is not in yet; what that cost."""
        held, _ = self._rising.popitem(last=False)
        views = [
            view
            for view in self._views()
            if held.wanted_besides(view.besides)
            and not (held.number and held.number in view.reduction)
        ]
        if not views:
            return 1
        compared = self._index.comparisons
        cost = _REDUCED * len(views) if self._covering else 1
        if not held.number:
            self._last_number += 1
            held.number = self._last_number
            self._of_number[held.number] = held
            if self._covering:
                self._index.add_form(held.number, self._form(held.filter))
                cost += _INDEXED
        for view in views:
            self._note(view, view.reduction.add(held.number))
        return cost + self._index.comparisons - compared

    def _drop(self) -> int:
        """Take a filter out of the views that it has no place in any more; what that cost."""
        held = self._next_fall()
        if held is None:
            return 1
        held.holders = tuple([one for one in held.holders if one.state != _gone])
        compared = self._index.comparisons
        cost = 1
        if held.number:
            group = self._index.group_of(held.number)
            placed = False
            for view in self._views():
                if held.number not in view.reduction:
                    continue
                if view.keeps(held, group):
                    placed = True
                else:
                    self._note(view, view.reduction.remove(held.number))
                    cost += _REDUCED if self._covering else 1
                view.review(group)
            if not placed:
                self._index.remove(held.number)
                del self._of_number[held.number]
                held.number = 0
        if not held.holders:
            self._forget(held)
        return cost + self._index.comparisons - compared

    def _views(self) -> list[_View]:
        views: list[_View] = [*self._links.values()]
        return views if self._everybody is None else [*views, self._everybody]

    def _note(self, view: _View, change: Change) -> None:
        if not isinstance(view, _Link):
            return
        group_of = self._index.group_of
        if not change.hidden:
            for number in change.shown:
                view.show(group_of(number))
            return
        shown = {group_of(number) for number in change.shown}
        hidden = {group_of(number) for number in change.hidden}
        for group in shown - hidden:
            view.show(group)
        for group in hidden - shown:
            view.hide(group)
        if self._waiting:  # what is told no longer has nothing to wait for
            for group in hidden - shown:
                for number in self._index.members(group):
                    self._fall(self._of_number[number])

    def _flush(self, link: _Link) -> tuple[list[tuple[int, Filter]], list[int]]:
        """What a link is told now; the rest later, and no removal before all additions."""
        most = self._work_max * _INDEXED
        add: list[tuple[int, Filter]] = []
        remove: list[int] = []
        size = 0
        if not (self._unsubscribe_first and link.to_remove):
            while link.to_add and len(add) < most and size < _BYTES_MAX:
                group, _ = link.to_add.popitem(last=False)
                number = link.reduction.stands_for(group)
                assert number is not None
                held = self._of_number[number]
                if held.wanted_besides(link.holder):
                    link.last_number += 1
                    link.told[group] = link.last_number
                    link.sent[link.last_number] = held.filter
                    add.append((link.last_number, held.filter))
                    size += _size(held.filter)
                else:  # it is falling
                    link.doubtful.add(group)
        if not (link.to_add or link.doubtful) or self._unsubscribe_first:
            for _ in range(min(most, len(link.to_remove))):
                group, _ = link.to_remove.popitem(last=False)
                number = link.told.pop(group)
                del link.sent[number]
                remove.append(number)
        return add, remove

    def _form(self, filter: Filter) -> Form:
        """What is compared of a filter; of one that cannot be read, what takes all of it."""
        form, readable = form_of_filter(*filter)
        self._counts["unreadable"] += not readable
        return form

    def _fall(self, held: _Held) -> None:
        self._step += 1
        self._falling.pop(held, None)  # in the order of the last cause
        self._falling[held] = self._step

    def _fall_all(self, holder: _Holder) -> None:
        self._step += 1
        if holder.filters:
            self._bulk.append((self._step, iter(list(holder.filters))))

    def _next_fall(self) -> _Held | None:
        """The next one that falls; None if it turns out that there is nothing to do."""
        if self._bulk and self._bulk[0][0] == self._first_fall():
            held = next(self._bulk[0][1], None)
            if held is None:
                self._bulk.popleft()
            elif self._held.get(held.filter) is not held:
                return None  # it is gone meanwhile
            return held
        return self._falling.popitem(last=False)[0]

    def _forget(self, held: _Held) -> None:
        del self._held[held.filter]
        self._rising.pop(held, None)
        self._falling.pop(held, None)

    # -------------------------------------------------------------------- reports

    def rows(self) -> dict[int, tuple[dict[int, Filter], dict[int, Filter]]]:
        """Of each link, what was received and what was sent, by number."""
        return {
            key: (dict(link.holder.numbers), dict(link.sent)) for key, link in self._links.items()
        }

    def local(self) -> list[Filter]:
        """What is held on this node."""
        return [held.filter for held in self._holders[LOCAL].filters]

    def snapshot(self) -> dict[str, Any]:
        """Sizes and counters."""
        return {
            "protocol": self._reconfigurator.name,
            "covering": self._covering,
            "filters": len(self._held),
            "indexed": len(self._of_number),
            "waiting": len(self._waiting),
            "to_compare": len(self._rising)
            + len(self._falling)
            + sum(length_hint(falling) for _, falling in self._bulk),
            "comparisons": self._index.comparisons,
            **self._counts,
            "links": {
                key: {
                    "received": len(link.holder.numbers),
                    "sent": len(link.sent),
                    "to_send": len(link.to_add) + len(link.to_remove),
                    "synced": link.synced,
                }
                for key, link in self._links.items()
            },
        }
