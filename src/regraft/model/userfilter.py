"""Filters that applications bring: a class, a name, an encoding, `matches` and `covers`.

Rules:

- A filter travels as its name and its encoding. Nobody makes code of what comes from a network: a
  node knows the classes that its operator installed, and no others.
- Who does not know a filter, or cannot read it, takes it as matching everything. So does who knows
  it, when it fails: on the way a filter may let too much pass, never too little, as the client of
  the subscriber looks at every message once more.
- `covers` is believed. Where it is not known, a filter covers itself and nothing else.
- What a filter may cost is bounded: its encoding, the evaluations for one message, and how often in
  a row it may raise or take too long before this node asks it no more.

Bugs that tests plant: "unknown-filter-drops", what is not known matches nothing; "covers-reversed",
`covers` is asked the wrong way round; "failed-filter-drops", what fails matches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

from regraft.errors import LocalError
from regraft.limits import Limits
from regraft.model.message import Message, decode_envelope

FILTER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,99}")


class MessageFilter(Protocol):
    """What a filter of your own has. `decode` is a class method, the opposite of `encode`."""

    def encode(self) -> bytes:
        """All that it takes to make the same filter elsewhere; equal filters, equal bytes."""

    def matches(self, message: Message) -> bool:
        """Whether a message is wanted."""

    def covers(self, other: Any) -> bool:
        """Whether everything that the other one wants is wanted here, too. It may be left out."""


C = TypeVar("C", bound=type[Any])


@dataclass(frozen=True)
class FilterTable:
    """Classes of filters, by their names."""

    classes: dict[str, type[Any]] = field(default_factory=dict)

    def add(self, name: str, filter: type[Any]) -> None:
        """One more; LocalError if it is none, or if its name is another's."""
        if not isinstance(name, str) or not FILTER_NAME.fullmatch(name):
            text = "has letters, digits and _ - . inside, 100 at most"
            raise LocalError("bad-configuration", f"{name!r}: the name of a filter {text}")
        if not isinstance(filter, type):
            raise LocalError("bad-configuration", f"filter {name}: {filter!r} is no class")
        missing = [one for one in ("encode", "decode", "matches") if not _has(filter, one)]
        if missing:
            text = f"class {filter.__qualname__} has no {' and no '.join(missing)}"
            raise LocalError("bad-configuration", f"filter {name}: {text}")
        other = self.classes.get(name)
        if other is not None and _place(other) != _place(filter):  # the same again: a reloaded file
            text = f"is the name of {'.'.join(_place(other))} already"
            raise LocalError("bad-configuration", f"filter {name}: it {text}")
        self.classes[name] = filter

    def name_of(self, filter: Any) -> str:
        """The name of a filter's class; LocalError if it was not registered."""
        for name, known in self.classes.items():
            if known is type(filter):
                return name
        raise LocalError(
            "not-supported",
            f"{type(filter).__qualname__} is no filter that is registered: put "
            '@regraft.filter("a-name") in front of its class',
        )


REGISTERED = FilterTable()  # what this process knows


def register_filter(name: str, filter: type[Any]) -> None:
    """Know filters of this class by a name from now on, here and in nodes of this process."""
    REGISTERED.add(name, filter)


def filter(name: str) -> Callable[[C], C]:
    """Decorate a class, to have it registered."""

    def decorate(filter: C) -> C:
        register_filter(name, filter)
        return filter

    return decorate


def encoded(filter: Any) -> tuple[str, bytes]:
    """The name and the encoding of a filter; LocalError if it is none."""
    name = REGISTERED.name_of(filter)
    data = filter.encode()
    if not isinstance(data, bytes):
        text = f"encode() of filter {name} returned {type(data).__name__}, not bytes"
        raise LocalError("bad-message", text)
    return name, data


# --------------------------------------------------------------------------- at a node


@dataclass(slots=True)
class Kind:
    """One class of filters at one node: how it behaves."""

    name: str
    filter: type[Any] | None
    evaluated: int = 0
    matched: int = 0
    failed: int = 0  # raised something, or returned no bool
    slow: int = 0  # took longer than it may
    skipped: int = 0  # not evaluated: too many for one message, or none any more
    unreadable: int = 0  # encodings that its class cannot read
    in_a_row: int = 0  # failed or slow
    off: bool = False  # asked no more


class UserFilter:
    """One filter, as a node knows it: a name and an encoding, and what its class makes of that."""

    __slots__ = ("__weakref__", "_last", "_verdict", "data", "filter", "kind", "name", "node")

    def __init__(self, node: UserFilters, name: str, data: bytes) -> None:
        self.node = node
        self.name = name
        self.data = data
        self.kind = node.kind(name)
        self.filter = node.decode(self.kind, data)
        self._last: bytes | None = None  # the message that was looked at last,
        self._verdict = True  # and what was said about it

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, UserFilter):
            return NotImplemented
        return self.name == other.name and self.data == other.data

    def __hash__(self) -> int:
        return hash((self.name, self.data))

    @property
    def known(self) -> bool:
        """Whether there is something to ask; otherwise it matches everything."""
        return self.filter is not None or "unknown-filter-drops" in self.node.bugs

    def passes(self, envelope: bytes) -> bool:
        """Whether a message goes on to whoever has this filter."""
        if envelope is not self._last:  # of several who have it, each asks
            self._last = envelope
            self._verdict = self.node.evaluate(self, envelope)
        return self._verdict

    def covers(self, other: UserFilter | None) -> bool:
        """Whether all that the other one lets pass passes here, as far as is known."""
        if other is None:
            return False
        if self == other:
            return True
        if self.name != other.name or self.filter is None or other.filter is None or self.kind.off:
            return False
        one, another = self.filter, other.filter
        if "covers-reversed" in self.node.bugs:
            one, another = another, one
        covers = getattr(one, "covers", None)
        try:
            return covers is not None and covers(another) is True
        except Exception as error:
            self.node.fail(self.kind, f"covers() raised {_shown(error)}")
            return False


class UserFilters:
    """What a node knows of filters that applications bring, and what it has counted."""

    def __init__(self, limits: Limits, note: Callable[[str], None] = lambda text: None) -> None:
        self._limits = limits
        self._note = note
        self._kinds: dict[str, Kind] = {}
        self._known: WeakValueDictionary[tuple[str, bytes], UserFilter] = WeakValueDictionary()
        self._last: bytes | None = None  # the message that is looked at,
        self._asked = 0  # how many filters were asked about it,
        self._message: Message | None = None  # and what they are shown
        self.clock: Callable[[], int] | None = None  # the time that this process has worked, in ns
        self.bugs: frozenset[str] = frozenset()

    def learn(self, table: FilterTable) -> None:
        """Know these classes from now on."""
        for name, filter in table.classes.items():
            self._kinds[name] = Kind(name, filter)

    def of(self, name: str, data: bytes) -> UserFilter | None:
        """A filter, the same object for equal ones; None if there is no name."""
        if not name:
            return None
        found = self._known.get((name, data))
        if found is None:
            found = self._known[name, data] = UserFilter(self, name, data)
        return found

    def check(self, name: str, data: bytes) -> None:
        """Refuse what a client may not bring."""
        if data and not name:
            raise LocalError("bad-message", "a filter without a name")
        if name and not FILTER_NAME.fullmatch(name):
            raise LocalError("bad-message", f"{name[:200]!r} is no name of a filter")
        if len(data) > self._limits.filter_bytes:
            text = f"a filter of {len(data)} bytes; limit filter_bytes is"
            raise LocalError("limit-exceeded", f"{text} {self._limits.filter_bytes}")

    def kind(self, name: str) -> Kind:
        """What is known of a class; nothing is kept of those that are not."""
        return self._kinds.get(name) or Kind(name, None)

    def decode(self, kind: Kind, data: bytes) -> Any:
        """The filter that an encoding stands for; None if nobody here can tell."""
        if kind.filter is None or len(data) > self._limits.filter_bytes:
            return None
        try:
            return kind.filter.decode(data)
        except Exception as error:
            kind.unreadable += 1
            if kind.unreadable == 1:
                text = f"filter {kind.name} cannot be read here and lets everything pass"
                self._note(f"{text}: {_shown(error)}")
            return None

    def evaluate(self, one: UserFilter, envelope: bytes) -> bool:
        """Ask a filter about a message. In doubt it passes."""
        kind = one.kind
        if one.filter is None:
            return False  # the planted bug: else nobody asks
        if envelope is not self._last:
            self._last, self._message, self._asked = envelope, None, 0
        if kind.off or self._asked >= self._limits.filters_per_message:
            kind.skipped += 1
            return True
        self._asked += 1
        if self._message is None:
            self._message = decode_envelope(envelope)
        began = self.clock() if self.clock is not None else 0
        try:
            found = one.filter.matches(self._message)
            if type(found) is not bool:
                raise TypeError(f"matches() returned {type(found).__name__}, not bool")
        except Exception as error:
            self._message = None  # nobody knows what it did to it
            self.fail(kind, _shown(error))
            return "failed-filter-drops" not in self.bugs
        kind.evaluated += 1
        kind.matched += found
        if self.clock is not None and self.clock() - began > self._limits.filter_us * 1000:
            kind.slow += 1
            self._strike(kind, f"it took longer than filter_us, {self._limits.filter_us} µs")
        else:
            kind.in_a_row = 0
        return found

    def fail(self, kind: Kind, why: str) -> None:
        """A filter did what it must not."""
        kind.failed += 1
        if kind.failed == 1:
            self._note(f"filter {kind.name} failed, and lets pass what it fails on: {why}")
        self._strike(kind, why)

    def _strike(self, kind: Kind, why: str) -> None:
        kind.in_a_row += 1
        if kind.in_a_row >= self._limits.filter_failures and not kind.off:
            kind.off = True
            text = (
                f"filter {kind.name} went wrong {kind.in_a_row} times in a row ({why}): this node"
            )
            self._note(f"{text} asks it no more, and lets everything pass; clients go on to ask it")

    def rows(self) -> Iterator[dict[str, Any]]:
        """The classes that are known, to look at."""
        for kind in self._kinds.values():
            assert kind.filter is not None
            yield {
                "name": kind.name,
                "class": ".".join(_place(kind.filter)),
                **{one: getattr(kind, one) for one in _COUNTS},
                "asked_no_more": kind.off,
            }


_COUNTS = ("evaluated", "matched", "failed", "slow", "skipped", "unreadable")


def _has(filter: type[Any], name: str) -> bool:
    return callable(getattr(filter, name, None))


def _place(filter: type[Any]) -> tuple[str, str]:
    return filter.__module__, filter.__qualname__


def _shown(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]
