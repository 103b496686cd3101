"""Interests, and which of them cover one another, without comparing each with each.

Rules:

- An interest is a topic pattern and perhaps a selector. It covers another if it takes every message
  that the other takes, as far as `regraft.model.selector.cover` sees that; what it does not see is
  not covered, and costs a filter too many, never a message.
- Interests that cover each other are one *group*; a group is a number of its own. Only groups are
  compared: many equal interests cost no more than one.
- What covers an interest asks for nothing that the interest does not ask for. So each conjunct of
  the covering side has one *home*: a value, test, topic pattern or name it asks for, the rarest. A
  search looks into the homes that what the interest asks for can lead to.
- What is covered asks for all that the covering side asks for. So a conjunct is *posted* under all
  it asks for, and a search takes the posts of the rarest, or what several posts have in common.
- Of the conjuncts of one interest each must be covered; one is enough to find it by.
- An interest that never takes anything is covered by all.
- Of very many that may cover one, or be covered by it, only some are compared. The others are not
  seen, so that one interest never takes longer than some milliseconds.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from regraft.model.selector import Selector
from regraft.model.selector.ast import And, Condition, TopicMatch
from regraft.model.selector.cover import (
    TOPIC_NAME,
    Conjunct,
    Form,
    conjunct_covers,
    form_covers,
    form_of,
)
from regraft.model.selector.shapes import UNDECIDED, find, topic_levels
from regraft.model.selector.valuesets import Cuts, Kind, ValueSet, points_of
from regraft.model.topic_cover import Levels, levels_cover, levels_of
from regraft.routing.pattern_set import PatternSet
from regraft.routing.spans import Spans

POINTS_MAX = 64  # values of a name that are looked at one by one
HOMES_MAX = 16  # homes of a conjunct that asks for one of several values
PATTERNS_MAX = 256  # patterns that are looked at one by one, if there is another way
FEW = 32  # groups that are rather compared than told apart further
COMPARED_MAX = 5000  # groups that one is compared with
SCANNED_MAX = 512  # groups whose spans are looked at one by one
_CHARS = 32  # of a string, as the end of a span

Key: TypeAlias = tuple[Any, ...]  # something that a conjunct asks for; the first part says what
Place: TypeAlias = tuple[str, Kind]  # an order that values of a name stand in
Span: TypeAlias = tuple[Place, Any, Any]

_LOOSE: Key = ("loose",)  # the topic, in a way that is no single pattern


@dataclass(frozen=True, slots=True)
class Interest:
    """What somebody wants: a topic pattern, taken exactly or with what is below, and a selector."""

    pattern: str
    exact: bool = False
    selector: Selector | None = None
    form: Form = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        condition: Condition = TopicMatch(levels_of(self.pattern, self.exact).text)
        if self.selector is not None:
            condition = And((condition, self.selector.ast))
        object.__setattr__(self, "form", form_of(condition))


# ---------------------------------------------------------- what conjuncts ask for


class _OfName(NamedTuple):
    """What a conjunct asks of one name, but the topic."""

    name: str
    span: Span | None  # what its values lie within
    points: tuple[Key, ...]  # its values, if they are few; all have the same kind


class _Asked:
    """What a conjunct asks for, as it is found by."""

    __slots__ = ("levels", "names", "plain", "spans", "tests", "topic")

    def __init__(self, conjunct: Conjunct) -> None:
        self.topic = conjunct.sets[TOPIC_NAME]
        self.levels = topic_levels(self.topic.parts[Kind.STRING], self.topic.shapes)
        self.tests: tuple[Key, ...] = ()
        if conjunct.tests:
            self.tests = tuple([("test", *test) for test in sorted(conjunct.tests)])
        sets = conjunct.sets.items()
        self.names = tuple([_of_name(name, one) for name, one in sets if name != TOPIC_NAME])
        self.spans = {one.span[0]: one.span for one in self.names if one.span is not None}
        # Whether levels and spans say all that it asks for.
        self.plain = (
            self.levels is not None
            and not self.tests
            and conjunct.user is None
            and all(_is_span(one) for name, one in sets if name != TOPIC_NAME)
        )

    @property
    def size(self) -> int:
        """How many things it asks for."""
        return len(self.names) + len(self.tests)

    def keys(self) -> list[Key]:
        """All it asks for, but the topic; of several values the first."""
        found: list[Key] = []
        for name, _, points in self.names:
            found.append(("name", name))
            found += points[:1]
        found += self.tests
        return found

    def posts(self) -> list[Key]:
        """Where it is posted."""
        return [*self.keys(), _LOOSE if self.levels is None else ("topic", self.levels)]

    def homes(self) -> Iterator[tuple[Key, ...]]:
        """The homes that it may have; each is one key or several. The best come first."""
        for one in self.names:
            if 0 < len(one.points) <= HOMES_MAX:
                yield one.points
        for test in self.tests:
            yield (test,)
        if self.levels is not None:
            yield (("topic", self.levels),)
        for one in self.names:
            yield (("name", one.name),)


def _of_name(name: str, found: ValueSet) -> _OfName:
    if len(found.kinds) > 1 or found.kinds[0] < Kind.NUMBER:
        return _OfName(name, None, ())
    (kind,) = found.kinds
    cuts = found.parts[kind]
    if kind is Kind.NUMBER and len(cuts) == 2 and cuts[1] > cuts[0] + 1:  # as ranges often are
        return _OfName(name, ((name, kind), *cuts), ())
    points = points_of(kind, cuts) if len(cuts) <= 2 * POINTS_MAX else None
    keys = tuple([("=", name, kind, point) for point in points or ()])
    return _OfName(name, ((name, kind), *_hull(kind, cuts)), keys)


def _is_span(found: ValueSet) -> bool:
    """Whether it is all that lies within a span: one range of numbers."""
    if found.kinds != (Kind.NUMBER,):
        return False
    cuts = found.parts[Kind.NUMBER]
    # The end of a span does not tell whether infinity lies within it.
    return len(cuts) == 1 or (len(cuts) == 2 and cuts[1] != math.inf)


def _hull(kind: Kind, cuts: Cuts) -> tuple[Any, Any]:
    """The ends of a span that a part lies within. What lies in another does so here, too."""
    low, high = cuts[0], cuts[-1] if len(cuts) % 2 == 0 else None
    match kind:
        case Kind.STRING:
            last = "\U0010ffff" * (_CHARS + 1)
            return low[:_CHARS], last if high is None else high[:_CHARS]
        case Kind.BYTES:
            return low[:_CHARS], b"\xff" * (_CHARS + 1) if high is None else high[:_CHARS]
        case _:
            return low, math.inf if high is None else high


class _Home:
    """Groups that live under one key; where they are many, by the values of one more name."""

    __slots__ = ("_here", "_plain", "_spans")

    def __init__(self) -> None:
        self._here: dict[int, Span | None] = {}
        self._plain: set[int] = set()
        self._spans: dict[Place, Spans] | None = None  # while they are few

    def __len__(self) -> int:
        return len(self._here)

    def add(self, group: int, span: Span | None) -> None:
        """Take in a group; it may come several times, for several conjuncts."""
        if group in self._here:
            span = None  # one of its conjuncts would hide behind the span of the other
            self.remove(group)
        self._here[group] = span
        if self._spans is not None:
            self._order(group, span)
        elif len(self._here) > FEW:
            self._spans = {}
            for one, its_span in self._here.items():
                self._order(one, its_span)

    def _order(self, group: int, span: Span | None) -> None:
        assert self._spans is not None
        if span is None:
            self._plain.add(group)
        else:
            place, low, high = span
            self._spans.setdefault(place, Spans()).add(group, low, high)

    def remove(self, group: int) -> None:
        """Let a group go, if it is here."""
        if group not in self._here:
            return
        span = self._here.pop(group)
        if self._spans is None:
            return
        if span is None:
            self._plain.discard(group)
            return
        self._spans[span[0]].remove(group)
        if not self._spans[span[0]]:
            del self._spans[span[0]]

    def find(self, asked: _Asked) -> Iterable[int]:
        """The groups that may cover a conjunct."""
        if self._spans is None:
            spans = asked.spans
            return [
                group
                for group, span in self._here.items()
                if span is None
                or ((its := spans.get(span[0])) and span[1] <= its[1] and its[2] <= span[2])
            ]
        found = set(self._plain)
        for place, low, high in asked.spans.values():
            if place in self._spans:
                found |= self._spans[place].containing(low, high)
        return found


# ----------------------------------------------------------------------- groups


class _Sought:
    """A form, and how it is found."""

    __slots__ = ("asked", "form")

    def __init__(self, form: Form) -> None:
        self.form = form
        # The most demanding conjunct first: it is posted. The last one leads to the fewest homes.
        self.asked = tuple([_Asked(one) for one in form])
        if len(form) > 1:
            self.asked = tuple(sorted(self.asked, key=lambda one: -one.size))


class _Group(_Sought):
    """Interests that cover each other."""

    __slots__ = ("forms", "homes", "members")

    def __init__(self, form: Form) -> None:
        super().__init__(form)
        self.forms: tuple[Form, ...] = (form,)
        self.members: list[int] = []
        self.homes: tuple[Key, ...] = ()


class CoverIndex:
    """Interests under numbers."""

    def __init__(self) -> None:
        self.comparisons = 0  # how often two forms were compared
        self._groups: dict[int, _Group] = {}
        self._of_number: dict[int, int] = {}
        self._of_form: dict[Form, int] = {}
        self._last_group = 0
        self._homes: dict[Key, _Home] = {}
        self._posts: dict[Key, set[int]] = {}
        self._spans: dict[Place, Spans] = {}
        self._patterns = PatternSet()
        self._above: dict[int, frozenset[int]] = {}  # kept until there is a group more or less
        self._below: dict[int, frozenset[int]] = {}

    def __len__(self) -> int:
        return len(self._of_number)

    def add(self, number: int, interest: Interest) -> None:
        """Add an interest under a number that is not in use."""
        self.add_form(number, interest.form)

    def add_form(self, number: int, form: Form) -> None:
        """The same, of an interest of which only the form is at hand."""
        assert number not in self._of_number, number
        group = self._of_form.get(form)
        if group is None:
            group = self._new_group(form)
        self._of_number[number] = group
        insort(self._groups[group].members, number)

    def remove(self, number: int) -> None:
        """Remove the interest of a number."""
        group = self._of_number.pop(number)
        members = self._groups[group].members
        del members[bisect_left(members, number)]
        if not members:
            self._forget(group)

    def covering(self, interest: Interest) -> set[int]:
        """The numbers of all interests that cover one, equal ones among them."""
        group = self._of_form.get(interest.form)
        if group is None:
            return self._members(self._find_above(_Sought(interest.form)))
        return self._members(self.above(group) | {group})

    def covered_by(self, interest: Interest) -> set[int]:
        """The numbers of all interests that one covers, equal ones among them."""
        group = self._of_form.get(interest.form)
        if group is None:
            return self._members(self._find_below(_Sought(interest.form)))
        return self._members(self.below(group) | {group})

    def group_of(self, number: int) -> int:
        """The group of a number, the same for interests that cover each other."""
        return self._of_number[number]

    def members(self, group: int) -> Collection[int]:
        """The numbers of a group."""
        return self._groups[group].members

    def above(self, group: int) -> frozenset[int]:
        """The other groups that cover one."""
        if group not in self._above:
            self._above[group] = frozenset(self._find_above(self._groups[group]) - {group})
        return self._above[group]

    def below(self, group: int) -> frozenset[int]:
        """The other groups that one covers."""
        if group not in self._below:
            self._below[group] = frozenset(self._find_below(self._groups[group]) - {group})
        return self._below[group]

    def _members(self, groups: Iterable[int]) -> set[int]:
        return {number for group in groups for number in self._groups[group].members}

    # ---------------------------------------------------------------- upkeep

    def _new_group(self, form: Form) -> int:
        """The group of a form that was not there: a new one, unless it is equal to another."""
        new = _Group(form)
        above, below = self._find_above(new), self._find_below(new)
        if above & below:
            group = min(above & below)
            self._groups[group].forms += (form,)
            self._of_form[form] = group
            return group
        self._last_group += 1
        group = self._last_group
        self._groups[group] = new
        self._of_form[form] = group
        self._post(group, new)
        self._above = {group: frozenset(above)}
        self._below = {group: frozenset(below)}
        return group

    def _post(self, group: int, new: _Group) -> None:
        for asked in new.asked:
            keys = self._home_of(asked)
            # A value that all in a home have in common does not tell them apart.
            spans = [one.span for one in asked.names if one.span and one.points != keys]
            for key in keys:
                if key not in self._homes:
                    self._homes[key] = _Home()
                self._homes[key].add(group, spans[0] if spans else None)
            new.homes += keys
            if asked.levels is not None:
                self._patterns.add(asked.levels)
        for asked in new.asked[:1]:
            for key in asked.posts():
                posted = self._posts.get(key)
                if posted is None:
                    self._posts[key] = {group}
                else:
                    posted.add(group)
            for place, low, high in asked.spans.values():
                if place not in self._spans:
                    self._spans[place] = Spans()
                self._spans[place].add(group, low, high)

    def _home_of(self, asked: _Asked) -> tuple[Key, ...]:
        """The home with the fewest groups around."""
        best: tuple[Key, ...] = (_LOOSE,)
        least = -1
        for keys in asked.homes():
            crowd = 0
            for key in keys:
                posted = self._posts.get(key)
                if posted is not None:
                    crowd += len(posted)
            if least < 0 or crowd < least:
                best, least = keys, crowd
        return best

    def _forget(self, group: int) -> None:
        old = self._groups.pop(group)
        for form in old.forms:
            del self._of_form[form]
        for key in set(old.homes):
            self._homes[key].remove(group)
            if not self._homes[key]:
                del self._homes[key]
        for asked in old.asked:
            if asked.levels is not None:
                self._patterns.remove(asked.levels)
        for asked in old.asked[:1]:
            for key in asked.posts():
                self._posts[key].remove(group)
                if not self._posts[key]:
                    del self._posts[key]
            for place in asked.spans:
                self._spans[place].remove(group)
                if not self._spans[place]:
                    del self._spans[place]
        self._above, self._below = {}, {}

    # ---------------------------------------------------------------- search

    def _find_above(self, sought: _Sought) -> set[int]:
        if not sought.form:
            return set(self._groups)
        found: set[int] = set()
        asked = sought.asked[-1]
        for key in self._ways_home(asked):
            home = self._homes.get(key)
            if home is not None:
                found.update(home.find(asked))
        groups = self._groups
        some = islice(found, COMPARED_MAX)
        return {group for group in some if self._covers(groups[group], sought)}

    def _ways_home(self, asked: _Asked) -> Iterator[Key]:
        """The homes in which something that covers a conjunct may live."""
        yield _LOOSE
        yield from asked.keys()
        for levels in self._patterns_above(asked):
            yield "topic", levels

    def _patterns_above(self, asked: _Asked) -> Iterable[Levels]:
        if asked.levels is not None:
            return self._patterns.covering(asked.levels)
        # Whatever takes all of these topics takes any one of them.
        topic = find(asked.topic.parts[Kind.STRING], asked.topic.shapes)
        if topic is None or topic is UNDECIDED:
            return list(self._patterns)
        return self._patterns.covering(Levels(tuple(topic.split("/")), False))

    def _find_below(self, sought: _Sought) -> set[int]:
        found: set[int] = set()
        for asked in sought.asked:
            for group in islice(self._posted_below(asked), COMPARED_MAX):
                if self._covers(sought, self._groups[group]):
                    found.add(group)
        never = self._of_form.get(())
        return found if never is None else found | {never}

    def _posted_below(self, asked: _Asked) -> Iterable[int]:
        """The groups that a conjunct may cover."""
        posts = [self._at([test]) for test in asked.tests]
        posts += [self._at(one.points or [("name", one.name)]) for one in asked.names]
        best: Collection[int] | None = min(posts, key=len, default=None)
        if asked.levels is not None and (best is None or len(best) > FEW):
            patterns = self._patterns.covered_by(asked.levels)
            # Very many patterns take long, and tell little apart.
            some = list(islice(patterns, PATTERNS_MAX if posts else None))
            keys: list[Key] = [_LOOSE, *[("topic", levels) for levels in some]]
            if best is None or (len(some) < PATTERNS_MAX and self._crowd(keys) < len(best)):
                best = self._at(keys)
        if best is None:
            return self._groups
        for one in asked.names:
            if one.span is not None and not one.points and best:
                best = self._within(best, one.span)
        return best

    def _within(self, groups: Collection[int], span: Span) -> Collection[int]:
        """Those of some groups whose values lie within a span."""
        place, low, high = span
        spans = self._spans.get(place)
        if spans is None:
            return ()
        if len(groups) <= SCANNED_MAX:
            return spans.contained_of(groups, low, high)
        return spans.contained(low, high).intersection(groups)

    def _crowd(self, keys: Iterable[Key]) -> int:
        return sum([len(self._posts[key]) for key in keys if key in self._posts])

    def _at(self, keys: Iterable[Key]) -> set[int]:
        """All that is posted under some keys."""
        posts = [self._posts[key] for key in keys if key in self._posts]
        return posts[0] if len(posts) == 1 else set().union(*posts)

    def _covers(self, one: _Sought, other: _Sought) -> bool:
        self.comparisons += 1
        if len(one.asked) > 1 or len(other.asked) > 1 or not (one.asked and other.asked):
            return form_covers(one.form, other.form)
        (mine,), (its,) = one.asked, other.asked
        if mine.levels is None or its.levels is None:
            return form_covers(one.form, other.form)
        if mine.levels != its.levels and not levels_cover(mine.levels, its.levels):
            return False
        if not mine.plain:
            return conjunct_covers(one.form[0], other.form[0], TOPIC_NAME)
        for place, (_, low, high) in mine.spans.items():
            span = its.spans.get(place)
            if span is None or span[1] < low or high < span[2]:
                return False
        return True
