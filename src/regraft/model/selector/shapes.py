"""Sets of strings: ranges of the order, within them patterns that fit or do not fit.

Rules:

- Ranges are *cuts*: strings in ascending order, at each of which one goes into the set or out of
  it again. The string after `s` is `s` and a NUL, so a single string is two cuts, and what begins
  with a prefix is two cuts, too.
- A *shape* is a LIKE, a topic pattern (as `$topic` is tested with) or a regular expression; signed,
  it fits or does not fit. A set has all strings within the cuts that agree with all its signs.
- Whether such a set is empty is found by walking through its strings character by character: after
  each one what is left of cuts and patterns is again such a set, and there are finitely many.
- Within ranges nothing is known of regular expressions but that the same one cannot both fit and
  not fit. Single strings are simply tried.
- A LIKE and a regular expression look at strings up to a length of their own; longer ones neither
  fit nor fail to fit. So a set of strings of any length implies no such sign.
- The walk ends after `STEPS_MAX` steps. "Empty" is always proven; "not empty" may mean that it was
  not found out, beyond that bound or with regular expressions.
- NUL, surrogates, and the `+` and `#` that no topic has are characters like any other here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

from regraft.limits import PATTERNS_CACHED
from regraft.model import topics
from regraft.model.selector import patterns
from regraft.model.selector.patterns import Wild
from regraft.model.topic_cover import ALL, Levels, levels_cover, levels_of

STEPS_MAX = 2000  # of one walk: enough for patterns and cuts of a hundred characters or two
_FOUND_CACHED = 2048  # results of walks that are kept
_LAST = "\U0010ffff"

StringCuts: TypeAlias = tuple[str, ...]


class ShapeKind(Enum):
    """What a shape is a pattern of."""

    LIKE = "like"
    TOPIC = "topic"
    REGEXP = "regexp"


class Shape(NamedTuple):
    """A pattern that a string fits or not."""

    kind: ShapeKind
    pattern: str
    escape: str | None = None

    @property
    def text_max(self) -> int | None:
        """The bytes of the longest string that the pattern looks at; None if there is no limit."""
        match self.kind:
            case ShapeKind.LIKE:
                return patterns.like_text_max(self.pattern, self.escape)
            case ShapeKind.REGEXP:
                return patterns.regex_text_max(self.pattern)
            case ShapeKind.TOPIC:
                return None

    def fits(self, text: str) -> bool:
        """Whether the string does."""
        match self.kind:
            case ShapeKind.LIKE:
                return patterns.like(self.pattern, self.escape, text)
            case ShapeKind.TOPIC:
                return topics.matches(self.pattern, text, exact=True)
            case ShapeKind.REGEXP:
                return patterns.regex_found(self.pattern, text)


Signed: TypeAlias = tuple[Shape, bool]
Shapes: TypeAlias = frozenset[Signed]


class Open(Enum):
    """That the walk ended before it knew."""

    UNDECIDED = "undecided"


UNDECIDED: Literal[Open.UNDECIDED] = Open.UNDECIDED
Found: TypeAlias = str | Literal[Open.UNDECIDED] | None


# ------------------------------------------------------------------------ cuts


def prefix_cuts(prefix: str) -> StringCuts:
    """All strings that begin with a prefix."""
    stem = prefix.rstrip(_LAST)
    return (prefix, stem[:-1] + chr(ord(stem[-1]) + 1)) if stem else (prefix,)


def topic_cuts(levels: Levels) -> tuple[StringCuts, bool]:
    """The range in which the topics of a pattern lie, and whether these are all within it."""
    if "+" in levels.names:
        fixed = levels.names[: levels.names.index("+")]
        if fixed:
            return prefix_cuts("/".join(fixed) + "/"), False
        return ("\0", "$", "%"), levels == ALL  # neither empty nor begins with '$'
    topic = "/".join(levels.names)
    here = (topic, topic + "\0")
    return (here + prefix_cuts(topic + "/") if levels.below else here), True


@lru_cache(PATTERNS_CACHED)
def topic_levels(cuts: StringCuts, shapes: Shapes) -> Levels | None:
    """The one pattern that takes just the topics of a set, if it is easily seen."""
    if len(shapes) == 1:
        ((shape, sign),) = shapes
        if not sign or shape.kind is not ShapeKind.TOPIC:
            return None
        levels = levels_of(shape.pattern, exact=True)
    elif cuts == topic_cuts(ALL)[0] and not shapes:
        levels = ALL
    elif len(cuts) in (2, 4) and not shapes and not set("+#") & set(cuts[0]):
        levels = Levels(tuple(cuts[0].split("/")), len(cuts) == 4)
    else:
        return None
    return levels if topic_cuts(levels)[0] == cuts else None


def _split(cuts: StringCuts) -> tuple[list[str], StringCuts]:
    """The single strings, and the ranges that are left."""
    points: list[str] = []
    ranges: list[str] = []
    for index in range(0, len(cuts), 2):
        pair = cuts[index : index + 2]
        if len(pair) == 2 and pair[1] == pair[0] + "\0":
            points.append(pair[0])
        else:
            ranges.extend(pair)
    return points, tuple(ranges)


def _after(cuts: StringCuts, char: str) -> StringCuts:
    """What may follow a first character."""
    low = bisect_left(cuts, char)
    high = len(cuts) if char == _LAST else bisect_left(cuts, chr(ord(char) + 1))
    rest = tuple(cut[1:] for cut in cuts[low:high])
    if low % 2 == 0:
        return rest
    return rest[1:] if rest and rest[0] == "" else ("", *rest)


# -------------------------------------------------------------------- machines


@dataclass(frozen=True, slots=True)
class _Machine:
    """States are bits, as in `patterns`; topic patterns only ever have one at a time."""

    chars: dict[str, int]  # for a character, the states that it leads on from
    any_char: int  # the states that any character leads on from
    stay: int  # the states that any character leaves as they are
    stay_in_level: int  # those that any character but '/' leaves as they are
    goal: int
    no_dollar: bool  # '$' is no first character

    def step(self, states: int, char: str) -> int:
        """The states after a character; 0 is none, for ever."""
        if states == _START:
            if self.no_dollar and char == "$":
                return 0
            states = 1
        on = states & (self.chars.get(char, 0) | self.any_char)
        stay = self.stay if char == "/" else self.stay | self.stay_in_level
        return on << 1 | states & stay

    def accepts(self, states: int) -> bool:
        """Whether a string may end here."""
        return bool((1 if states == _START else states) & self.goal)

    def told_apart(self, states: int) -> Iterator[str]:
        """The characters after which it goes on otherwise than after all others."""
        if states == _START:
            if self.no_dollar:
                yield "$"
            states = 1
        if states & self.stay_in_level:
            yield "/"
        for char, leads_on in self.chars.items():
            if leads_on & states:
                yield char


_START = -1  # before the first character


@lru_cache(PATTERNS_CACHED)
def _machine(shape: Shape) -> _Machine:
    if shape.kind is ShapeKind.TOPIC:
        return _topic_machine(levels_of(shape.pattern, exact=True))
    chars: dict[str, int] = {}
    any_char = stay = 0
    state = 1
    for item in patterns.like_items(shape.pattern, shape.escape):
        if item is Wild.MANY:
            stay |= state
            continue
        if item is Wild.ONE:
            any_char |= state
        else:
            chars[item] = chars.get(item, 0) | state
        state <<= 1
    return _Machine(chars, any_char, stay, 0, state, False)


def _topic_machine(levels: Levels) -> _Machine:
    chars: dict[str, int] = {}
    stay = in_level = 0
    state = 1
    for index, name in enumerate(levels.names):
        if index:
            chars["/"] = chars.get("/", 0) | state
            state <<= 1
        if name == "+":
            in_level |= state
            continue
        for char in name:
            chars[char] = chars.get(char, 0) | state
            state <<= 1
    goal = state
    if levels.below:
        chars["/"] = chars.get("/", 0) | state
        stay = state << 1
        goal |= stay
    return _Machine(chars, 0, stay, in_level, goal, levels.names[0] == "+")


# ------------------------------------------------------------------------ sets


@lru_cache(_FOUND_CACHED)
def find(cuts: StringCuts, shapes: Shapes) -> Found:
    """A string of the set, None if there is none, or undecided."""
    if any((shape, not sign) in shapes for shape, sign in shapes):
        return None
    points, ranges = _split(cuts)
    for point in points:
        if all(shape.fits(point) is sign for shape, sign in shapes):
            return point
    signed = sorted(shapes, key=lambda one: (one[0].kind.value, *map(str, one)))
    walked = [(_machine(s), sign) for s, sign in signed if s.kind is not ShapeKind.REGEXP]
    return _walk(ranges, [m for m, _ in walked], [sign for _, sign in walked])


def _walk(cuts: StringCuts, machines: list[_Machine], signs: list[bool]) -> Found:
    if not cuts:
        return None
    start = (cuts, tuple(_START for _ in machines))
    seen = {start}
    waiting = [(start, "")]
    steps = 0
    while waiting:
        (cuts, states), text = waiting.pop()
        accepted = [m.accepts(state) for m, state in zip(machines, states, strict=True)]
        if cuts[0] == "" and accepted == signs:
            return text
        chars = _chars(cuts, machines, states)
        steps += len(chars) * len(machines)
        if steps > STEPS_MAX:
            return UNDECIDED
        for char in chars:
            rest = _after(cuts, char)
            after = tuple(m.step(state, char) for m, state in zip(machines, states, strict=True))
            if not rest or any(s == 0 and sign for s, sign in zip(after, signs, strict=True)):
                continue
            if not any(after):  # nothing is asked any more, but to stay within the cuts
                return text + char + rest[0]
            if (rest, after) not in seen:
                seen.add((rest, after))
                waiting.append(((rest, after), text + char))
    return None


def _chars(cuts: StringCuts, machines: Iterable[_Machine], states: tuple[int, ...]) -> list[str]:
    """One character for all that make no difference between them."""
    apart = {cut[0] for cut in cuts if cut}
    for machine, state in zip(machines, states, strict=True):
        apart.update(machine.told_apart(state))
    # Between two that are told apart all are the same: the one right after stands for them.
    between = {chr(ord(char) + 1) for char in apart if char != _LAST}
    return sorted(apart | between | {"\0"})


def trimmed(cuts: StringCuts, shapes: Shapes) -> tuple[StringCuts, Shapes]:
    """The same set, without single strings that do not fit and shapes that nothing needs."""
    if not shapes or not cuts:
        return cuts, frozenset()
    points, ranges = _split(cuts)
    bad = {p for p in points if not all(_agrees(p, signed) for signed in shapes)}
    if find(ranges, shapes) is None:
        kept = [point for point in points if point not in bad]
        return tuple(cut for point in kept for cut in (point, point + "\0")), frozenset()
    if not bad:
        return cuts, shapes
    return _without(cuts, bad), shapes


def _agrees(text: str, signed: Signed) -> bool:
    """Whether a string fits a shape, or does not, as it should."""
    shape, sign = signed
    return not patterns.is_longer(text, shape.text_max) and shape.fits(text) is sign


def _without(cuts: StringCuts, points: set[str]) -> StringCuts:
    kept: list[str] = []
    for index in range(0, len(cuts), 2):
        pair = cuts[index : index + 2]
        if not (len(pair) == 2 and pair[1] == pair[0] + "\0" and pair[0] in points):
            kept.extend(pair)
    return tuple(kept)


def _short(cuts: StringCuts, shapes: Shapes, text_max: int | None) -> bool:
    """Whether a pattern that looks at strings of so many bytes looks at all strings of a set."""
    if text_max is None:
        return True
    for shape, _ in shapes:  # a sign is known only of strings that the pattern looks at
        if shape.text_max is not None and shape.text_max <= text_max:
            return True
    points, rest = _split(cuts)
    return not rest and not any(patterns.is_longer(point, text_max) for point in points)


def implied(cuts: StringCuts, shapes: Shapes, wanted: Signed) -> bool:
    """Whether all strings of a set agree with one more sign; False if that is not proven."""
    if wanted in shapes:
        return True
    shape, sign = wanted
    if shape.kind is ShapeKind.TOPIC and sign:  # the usual case, without a walk
        form = levels_of(shape.pattern, exact=True)
        given = (other for other, fits in shapes if fits and other.kind is ShapeKind.TOPIC)
        if any(levels_cover(form, levels_of(other.pattern, exact=True)) for other in given):
            return True
    if not _short(cuts, shapes, shape.text_max):
        return False
    return find(cuts, shapes | {(shape, not sign)}) is None
