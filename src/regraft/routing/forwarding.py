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
- Where it is `gated`, a link is told only what passes its gate (`advertisements`): it begins with
  nothing, and whenever the gate changes, what may pass now rises and what may not falls.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from operator import length_hint
from typing import Any, TypeAlias

from regraft.errors import LocalError, PeerError
from regraft.limits import Limits
from regraft.model.selector.cover import Form
from regraft.model.topics import check_pattern
from regraft.model.userfilter import UserFilters
from regraft.routing.advertisements import Gate, is_own
from regraft.routing.covering import CoverIndex
from regraft.routing.explaining import explain_link
from regraft.routing.filters import Filter, size_of
from regraft.routing.forms import form_of_filter, with_user_filter
from regraft.routing.links import GIVEN, GONE, LIVE, WAITING, Held, Holder, Link, View
from regraft.routing.messages import Message, Numbered, Reroute, Rerouted
from regraft.routing.reconfiguration import Reconfigurator
from regraft.routing.reduction import Change, Reduction
from regraft.routing.uncovered import PlainIndex, Unreduced

LOCAL = -1
_COLLECTED_MAX = 2000  # numbers that a Reroute removes
WORK_MAX = 8  # filters indexed in one `announce`, about; 1 or 2 ms
_INDEXED = 50  # what that costs, in units of what is easily done
_REDUCED = 5  # what it costs to take a filter into the reduction of one link
_BYTES_MAX = 32 * 1024  # of filters told at once, or one filter more: they fit into a frame
_UNUSED_NS = 60_000_000_000  # the reduction of everybody goes when it was of no use for so long

Announcement: TypeAlias = tuple[int, list[tuple[int, Filter]], list[int], bool]


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
        self.gated = False  # `Advertising` says so, before there is a link
        self._bugs = bugs
        self._covering = covering
        self._work_max = work_max
        self._unsubscribe_first = "unsubscribe-first" in bugs
        self._unprotected = "ignore-table-off" in bugs
        self._without_clients = "pdel-without-clients" in bugs
        self._said: list[tuple[int, Message]] = []
        self._tagging = False
        self._now_ns = 0
        self._step = 0
        self._held: dict[Filter, Held] = {}
        self._holders: dict[int, Holder] = {LOCAL: Holder(LOCAL)}
        self._waiting: dict[int, Holder] = {}  # lost, by key
        self._links: dict[int, Link] = {}
        # What stood still until there was a link, or waits for its turn, by the step of its cause.
        self._used = False
        self.feeding = False  # what is held here is still being told, from before the first link
        self._rising: OrderedDict[Held, int] = OrderedDict()  # held by more than before
        self._falling: OrderedDict[Held, int] = OrderedDict()  # held by fewer, or covered now
        self._bulk: deque[tuple[int, Iterator[Held]]] = deque()  # falling, too, very many at once
        self._index: CoverIndex | PlainIndex = CoverIndex() if covering else PlainIndex()
        self._last_number = 0
        self._of_number: dict[int, Held] = {}
        self._everybody: View | None = None  # what a new link begins with
        self._unused_ns: int | None = None  # since when there is not more than one link
        self._counts = dict.fromkeys(("subscribed", "unsubscribed", "unreadable"), 0)
        # Asked what is known of a filter that an application brought, by its name and its encoding.
        self.user_filter: Callable[[str, bytes], Any] = UserFilters(Limits()).of

    # --------------------------------------------------------------- what is held

    def hold(self, holder: int, filter: Filter) -> None:
        """Somebody holds a filter, once more if he does already."""
        by = self._holders[holder]
        held = self._held.get(filter)
        if held is None:
            held = self._held[filter] = Held(filter)
        count = by.filters.get(held, 0)
        by.filters[held] = count + 1
        if count:
            return
        held.holders = (*held.holders, by)
        if self._tagging:
            for link in self._links.values():
                if link.holder is not by:
                    link.tags.pop(held, None)  # somebody new wants it
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
                if self._unprotected:
                    continue
                raise PeerError("protocol-violation", f"there is no interest {number} to remove")
            self.release(key, gone)
            if self._unprotected:  # as if an unsubscription named a filter, and not a number
                for other in [n for n, one in numbers.items() if one == gone]:
                    self.release(key, numbers.pop(other))

    # ---------------------------------------------------------------------- links

    def added(self, key: int, rid: bytes, now_ns: int, dormant: bool = False) -> None:
        """There is a link: it has to be told everything, but not before `activate` if dormant."""
        assert key not in self._holders, key
        self._now_ns = now_ns
        self._step += 1
        self._reconfigurator.added(key, rid, now_ns)
        if not self._used:
            self._used = True
            self._rising.update(dict.fromkeys(self._held.values(), self._step))
        holder = self._holders[key] = Holder(key)
        if self.gated:
            link = Link(holder, self._new_reduction(), self._step, Gate(self._bugs))
            self._rise_all(held for held in self._held.values() if is_own(held.filter))
        else:
            link = Link(holder, self._seed(), self._step)
        self._links[key] = link
        link.dormant = dormant
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
            self._everybody = View(None, only.reduction.copy())
            for held in only.holder.filters:
                self._rising.setdefault(held, self._step)
            for holder in self._waiting.values():
                self._fall_all(holder)
        return self._everybody.reduction.copy()

    def _new_reduction(self) -> Reduction | Unreduced:
        return Reduction(self._index) if isinstance(self._index, CoverIndex) else Unreduced()

    def lost(self, key: int, rid: bytes, planned: bool, now_ns: int, may_wait: bool = True) -> None:
        """A link is no more: what it held is held no longer, what it was told is forgotten."""
        self._now_ns = now_ns
        link = self._links.pop(key)
        holder = self._holders.pop(key)
        self._step += 1
        holder.step = self._step
        if may_wait and self._reconfigurator.lost(key, rid, planned, now_ns):
            holder.state = WAITING
            self._waiting[key] = holder
        else:
            holder.state = GONE
        self._fall_all(holder)
        if not self._links:
            self._reconfigurator.forget()
            for waiting in list(self._waiting):
                self._end(waiting)
            if self._everybody is None and not self.gated:
                self._everybody = View(None, link.reduction)
        self._unused_ns = now_ns if len(self._links) == 1 else None

    def _end(self, key: int) -> None:
        """What the loss of a link causes waits no longer."""
        holder = self._waiting.pop(key)
        holder.state = GONE
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
        if any(link.busy for link in self._links.values()):
            return self._now_ns
        times = [self._reconfigurator.next_ns]
        if self._unused_ns is not None and self._everybody is not None:
            times.append(self._unused_ns + _UNUSED_NS)
        return min((time for time in times if time is not None), default=None)

    # ---------------------------------------------------------- for advertisements

    def offered(self, key: int, adds: Iterable[Filter], removes: Iterable[Filter]) -> None:
        """A neighbour offers these, and those no longer: it may have to be told other things."""
        link = self._links[key]
        assert link.gate is not None
        more = less = False
        for filter in adds:
            link.gate.add(filter)
            more = True
        for filter in removes:
            link.gate.remove(filter)
            less = True
        self._step += 1
        if more and "offers-late" not in self._bugs:
            self._rise_all(self._held.values())
        if less:
            some = [held for number, held in self._of_number.items() if number in link.reduction]
            self._bulk.append((self._step, iter(some)))

    def _rise_all(self, some: Iterable[Held]) -> None:
        for held in some:
            self._rising.setdefault(held, self._step)

    def open_gate(self, key: int) -> None:
        """A neighbour has said all that it offers."""
        gate = self._links[key].gate
        assert gate is not None
        gate.open = True

    def complete_gate(self, key: int) -> None:
        """All that is wanted of what a new link offers is known here."""
        gate = self._links[key].gate
        assert gate is not None
        self._step += 1
        gate.complete, gate.step = True, self._step

    def last_number(self, key: int) -> int:
        """The last number under which a link was told something."""
        return self._links[key].last_number

    # -------------------------------------------------------- for reconfigurations

    def activate(self, key: int) -> None:
        """A dormant link is told everything from now on."""
        self._links[key].dormant = False

    def say(self, key: int, message: Message) -> None:
        """Say something to a link behind all that follows from what happened so far."""
        self._step += 1
        self._links[key].after.append((self._step, message))

    def said(self) -> list[tuple[int, Message]]:
        """What is to be sent now, behind what `announce` said last."""
        said, self._said = self._said, []
        return said

    def stop_waiting(self, key: int) -> None:
        """What the loss of a link causes waits no longer; if it ever did."""
        self._reconfigurator.end(key)
        if key in self._waiting:
            self._end(key)

    def held_by(self, key: int) -> list[Filter]:
        """What a neighbour wants."""
        return [held.filter for held in self._holders[key].filters]

    def told_to(self, key: int) -> list[Filter]:
        """What a neighbour was told."""
        return list(self._links[key].sent.values())

    def only_by(self, key: int) -> list[Filter]:
        """What a neighbour wants, or did before it was lost, and nobody else."""
        by = self._holders.get(key) or self._waiting.get(key)
        return [held.filter for held in by.filters if not held.wanted_besides(by)] if by else []

    def assume(self, key: int, filters: Iterable[Filter]) -> list[Numbered]:
        """A neighbour wants these, though it did not say so; under which numbers."""
        by = self._holders[key]
        found = []
        for filter in filters:
            by.given += 1
            by.numbers[by.given] = filter
            self.hold(key, filter)
            found.append((by.given, filter))
        return found

    def give(self, key: int, given: Iterable[Numbered], rid: bytes) -> None:
        """A neighbour takes these for told; with a rid it is answered what was not needed."""
        link = self._links[key]
        for number, _ in given:
            if number <= GIVEN or number in link.sent or any(number == n for n, _ in link.given):
                raise PeerError("protocol-violation", f"{number} cannot be given")
            link.given.append((number, _))
        self._step += 1
        link.given_step, link.given_rid = self._step, rid

    def _match(self, link: Link) -> None:
        """Of what the other end takes for told, keep what is to be told; the rest is not wanted."""
        spare = []
        for number, filter in link.given:
            held = self._held.get(filter)
            group = self._index.group_of(held.number) if held and held.number else 0
            if group and group not in link.told and link.reduction.stands_for(group) is not None:
                link.to_add.pop(group, None)
                link.doubtful.discard(group)
                link.told[group] = number
                link.sent[number] = filter
            else:
                spare.append(number)
        link.given = []
        if spare and link.given_rid:
            link.after.append((0, Rerouted(link.given_rid, tuple(spare))))
        else:
            link.unwanted += spare

    def _speak(self, link: Link) -> bool:
        """Say what was to be said behind what is told now; whether there was or is something."""
        had = bool(link.after)
        if link.gate is not None and not link.gate.open:
            return had
        while link.after and not (link.to_add or link.doubtful or link.given):
            step, message = link.after[0]
            if self._behind(step) or (link.to_remove and not link.collecting):
                break
            link.after.popleft()
            if type(message) is Reroute:
                if self._without_clients:
                    link.to_remove.update(dict.fromkeys(self._for_clients(link)))
                message = message._replace(remove=tuple(self._untell(link, _COLLECTED_MAX)))
            self._said.append((link.key, message))
        return had

    def _for_clients(self, link: Link) -> list[int]:
        """What a link was told for the sake of clients only."""
        return [
            group
            for group in link.told
            if all(
                one.key in (LOCAL, link.key)
                for number in self._index.members(group)
                for one in self._of_number[number].holders
            )
        ]

    def tag(self, key: int, filters: Iterable[Filter], rid: bytes, via: int | None) -> None:
        """Withhold from a link what nobody wants but one neighbour, or anybody but a given one."""
        link = self._links[key]
        for filter in filters:
            held = self._held.get(filter)
            if held is None:
                continue
            by = [one for one in held.holders if one is not link.holder and one.state == LIVE]
            if len(by) == 1 and by[0].key != LOCAL and via in (None, by[0].key):
                if held.number and self._index.group_of(held.number) in link.told:
                    continue
                link.tags[held] = rid
                self._tagging = True
                self._fall(held)

    def untag(self, key: int, rid: bytes) -> None:
        """Withhold nothing any more."""
        link = self._links[key]
        for held in [held for held, by in link.tags.items() if by == rid]:
            del link.tags[held]
            if self._held.get(held.filter) is held:
                self._step += 1
                self._rising.setdefault(held, self._step)
        self._tagging = any(one.tags for one in self._links.values())

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
            if link.dormant:
                continue
            add, remove = self._flush(link)
            done = not link.to_add and not link.doubtful and not self._behind(link.step)
            if link.gate is not None:
                done = done and link.gate.complete and not self._behind(link.gate.step)
            synced = done and not link.synced and not link.given
            if self._speak(link):
                synced = False  # that is said behind it
            link.synced = link.synced or synced
            if add or remove or synced:
                self._counts["subscribed"] += len(add)
                self._counts["unsubscribed"] += len(remove)
                found.append((link.key, add, remove, synced))
        return found

    def _behind(self, step: int) -> bool:
        """Whether something waits for its turn since that step, or longer."""
        if self.feeding or (self._bulk and self._bulk[0][0] <= step):
            return True
        return any(
            queue and next(iter(queue.values())) <= step for queue in (self._rising, self._falling)
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
            if view.wants(held) and not (held.number and held.number in view.reduction)
        ]
        if not views:
            return 1 + len(self._links) if self.gated else 1
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
        held.holders = tuple([one for one in held.holders if one.state != GONE])
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

    def _views(self) -> list[View]:
        views: list[View] = [*self._links.values()]
        return views if self._everybody is None else [*views, self._everybody]

    def _note(self, view: View, change: Change) -> None:
        if not isinstance(view, Link):
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

    def _flush(self, link: Link) -> tuple[list[tuple[int, Filter]], list[int]]:
        """What a link is told now; the rest later, and no removal before all additions."""
        most = self._work_max * _INDEXED
        add: list[tuple[int, Filter]] = []
        remove: list[int] = []
        size = 0
        if link.given:
            if self._behind(link.given_step):
                return add, remove  # nothing before it is known what was told
            self._match(link)
        if not (self._unsubscribe_first and link.to_remove):
            while link.to_add and len(add) < most and size < _BYTES_MAX:
                group, _ = link.to_add.popitem(last=False)
                number = link.reduction.stands_for(group)
                assert number is not None
                held = self._of_number[number]
                if link.wants(held):
                    link.last_number += 1
                    link.told[group] = link.last_number
                    link.sent[link.last_number] = held.filter
                    add.append((link.last_number, held.filter))
                    size += size_of(held.filter)
                else:  # it is falling
                    link.doubtful.add(group)
        if not (link.to_add or link.doubtful) or self._unsubscribe_first:
            remove, link.unwanted = link.unwanted, remove
            if not link.collecting:
                remove += self._untell(link, most)
        return add, remove

    def _untell(self, link: Link, most: int) -> list[int]:
        """The numbers of what a link is told no longer."""
        remove = []
        for _ in range(min(most, len(link.to_remove))):
            group, _ = link.to_remove.popitem(last=False)
            number = link.told.pop(group)
            del link.sent[number]
            remove.append(number)
        return remove

    def _form(self, filter: Filter) -> Form:
        """What is compared of a filter; of one that cannot be read, what takes all of it."""
        form, readable = form_of_filter(filter.pattern, filter.exact, filter.selector)
        self._counts["unreadable"] += not readable
        if filter.name:
            form = with_user_filter(form, self.user_filter(filter.name, filter.data))
        return form

    def _fall(self, held: Held) -> None:
        self._step += 1
        self._falling.pop(held, None)  # in the order of the last cause
        self._falling[held] = self._step

    def _fall_all(self, holder: Holder) -> None:
        self._step += 1
        if holder.filters:
            self._bulk.append((self._step, iter(list(holder.filters))))

    def _next_fall(self) -> Held | None:
        """The next one that falls; None if it turns out that there is nothing to do."""
        if self._bulk and self._bulk[0][0] == self._first_fall():
            held = next(self._bulk[0][1], None)
            if held is None:
                self._bulk.popleft()
            elif self._held.get(held.filter) is not held:
                return None  # it is gone meanwhile
            return held
        return self._falling.popitem(last=False)[0]

    def _forget(self, held: Held) -> None:
        del self._held[held.filter]
        self._rising.pop(held, None)
        self._falling.pop(held, None)

    # -------------------------------------------------------------------- reports

    def rows(self) -> dict[int, tuple[dict[int, Filter], dict[int, Filter]]]:
        """Of each link, what was received and what was sent, by number."""
        return {
            key: (dict(link.holder.numbers), dict(link.sent)) for key, link in self._links.items()
        }

    def holders(self, filter: Filter) -> list[int]:
        """Who wants exactly this."""
        held = self._held.get(filter)
        return [one.key for one in held.holders if one.state == LIVE] if held else []

    def explain(self, filter: Filter) -> dict[int, tuple[str, Filter | None]]:
        """What each link was told of a filter: a reason, and the filter that it was told."""
        index, known = self._index, self._held.get(filter)
        numbers: Iterable[int] = [known.number] if known is not None and known.number else []
        if isinstance(index, CoverIndex):
            numbers = sorted(index.covering_form(self._form(filter)))
        takers = [self._of_number[number] for number in numbers]
        if known is not None:
            takers = [known, *(one for one in takers if one is not known)]
        links = self._links.items()
        return {key: explain_link(link, filter, takers, index.group_of) for key, link in links}

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
