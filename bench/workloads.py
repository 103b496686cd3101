"""What the match index is measured with: filters and events, made from a seed.

A workload grows in stages. The filters of a stage come on top of those before, and open up as many
new symbols, values, words or sites as they need for themselves. Events of a stage are spread over
all that there is by then, so an event finds as many matches among a million filters as among ten
thousand, and one index that grows shows every size on its way. Only `Dense` finds more.

A filter is kept as terms, for those who do not read selectors, and writes itself as a selector for
those who do.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from regraft.model.message import Message, Value, encode_envelope

EQUAL = "="
AMONG = "in"
BETWEEN = "between"
ABOVE = ">"
PREFIX = "prefix"
LIKE = "like"
REGEX = "regex"

SEED = 7


Term = tuple[str, str, Any]  # attribute, operator, and what it is compared with: see `term_text`


def term_text(term: Term) -> str:
    """As part of a selector. No string holds a quote or a backslash, so Python's form will do."""
    name, operator, value = term
    if operator == BETWEEN:
        return f"{name} BETWEEN {value[0]!r} AND {value[1]!r}"
    if operator == AMONG:
        return f"{name} IN ({', '.join(map(repr, value))})"
    if operator == PREFIX:
        return f"STARTS_WITH({name}, {value!r})"
    if operator == LIKE:
        return f"{name} LIKE {value!r}"
    if operator == REGEX:
        return f"{name} REGEXP {value!r}"
    return f"{name} {operator} {value!r}"


class Filter(NamedTuple):
    """All of the terms, and the topic; either may be missing."""

    terms: tuple[Term, ...] = ()
    pattern: str = ""
    exact: bool = False

    def text(self) -> str:
        """The selector."""
        return " AND ".join([term_text(term) for term in self.terms])


class Event(NamedTuple):
    """What is published, and its bytes."""

    topic: str
    attributes: dict[str, Value]
    envelope: bytes


def event_of(attributes: dict[str, Value], topic: str = "bench/matching") -> Event:
    message = Message(topic, b"x" * 45, attributes)
    return Event(topic, attributes, encode_envelope(message))


class Workload:
    """A kind of filters and events. `sizes` are the totals after each stage."""

    name = ""
    constant = True  # matches do not grow with the size

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sizes)

    def rng(self, what: str, stage: int) -> random.Random:
        return random.Random(f"{SEED}/{self.name}/{what}/{stage}")

    def before(self, stage: int) -> int:
        """How many filters there are before a stage."""
        return self.sizes[stage - 1] if stage else 0

    def filters(self, stage: int) -> Iterator[Filter]:
        """The filters of a stage: `sizes[stage]` less those before."""
        rng = self.rng("filters", stage)
        for _ in range(self.sizes[stage] - self.before(stage)):
            yield self.make(rng, stage)

    def spare(self, stage: int, count: int) -> list[Filter]:
        """More filters such as those of a stage, to be put in and taken out."""
        rng = self.rng("spare", stage)
        return [self.make(rng, stage) for _ in range(count)]

    def events(self, stage: int, count: int) -> list[Event]:
        """Events for the size that a stage reaches."""
        rng = self.rng("events", stage)
        return [self.event(rng, stage) for _ in range(count)]

    def make(self, rng: random.Random, stage: int) -> Filter:
        raise NotImplementedError

    def event(self, rng: random.Random, stage: int) -> Event:
        raise NotImplementedError


def pick(rng: random.Random, low: int, high: int) -> int:
    """One of low, ..., high - 1; or low, where there is none."""
    return low + int(rng.random() * (high - low))


def subsets(names: Sequence[str], length: int) -> list[list[str]]:
    """Enough choices of some names; to choose them anew for every filter would take long."""
    rng = random.Random(SEED)
    return [rng.sample(names, length) for _ in range(10_000)]


# ------------------------------------------------------------------------------ selective


class Selective(Workload):
    """`symbol = x AND price BETWEEN a AND b`, half with a volume, a third with three regions."""

    name = "selective"
    PER_SYMBOL = 1_000
    PRICE = 1_000.0
    WIDTH = 100.0
    VOLUME = 10_000
    REGIONS = tuple(f"region{i}" for i in range(10))
    THREE = subsets(REGIONS, 3)

    def symbols(self, size: int) -> int:
        return max(1, size // self.PER_SYMBOL)

    def make(self, rng: random.Random, stage: int) -> Filter:
        high = self.symbols(self.sizes[stage])
        low = min(self.symbols(self.before(stage)), high - 1) if stage else 0
        price = round(rng.random() * (self.PRICE - self.WIDTH), 2)
        terms: list[Term] = [
            ("symbol", EQUAL, f"S{pick(rng, low, high):05d}"),
            ("price", BETWEEN, (price, round(price + self.WIDTH, 2))),
        ]
        if rng.random() < 0.5:
            terms.append(("volume", ABOVE, pick(rng, 0, self.VOLUME)))
        if rng.random() < 1 / 3:
            terms.append(("region", AMONG, tuple(self.THREE[pick(rng, 0, len(self.THREE))])))
        return Filter(tuple(terms))

    def event(self, rng: random.Random, stage: int) -> Event:
        symbol = f"S{pick(rng, 0, self.symbols(self.sizes[stage])):05d}"
        return event_of(self.attributes(rng, symbol))

    def attributes(self, rng: random.Random, symbol: str) -> dict[str, Value]:
        """Twenty, of which the filters know four."""
        return {
            "symbol": symbol,
            "price": round(rng.random() * self.PRICE, 2),
            "volume": pick(rng, 0, self.VOLUME),
            "region": rng.choice(self.REGIONS),
            **{f"number{i}": pick(rng, 0, 1_000_000) for i in range(6)},
            **{f"rate{i}": rng.random() for i in range(5)},
            **{f"note{i}": f"text {pick(rng, 0, 1000)}" for i in range(4)},
            "open": rng.random() < 0.5,
        }


# ------------------------------------------------------------------------------ dense


class Dense(Workload):
    """Ranges 0.4 wide of ten attributes out of twenty: no term says much by itself."""

    name = "dense"
    constant = False
    NAMES = tuple(f"a{i:02d}" for i in range(20))
    SUBSETS = subsets(NAMES, 10)

    def make(self, rng: random.Random, stage: int) -> Filter:
        terms: list[Term] = []
        for name in self.SUBSETS[pick(rng, 0, len(self.SUBSETS))]:
            low = pick(rng, 0, 600_000)
            terms.append((name, BETWEEN, (low / 1e6, (low + 400_000) / 1e6)))
        return Filter(tuple(terms))

    def event(self, rng: random.Random, stage: int) -> Event:
        return event_of({name: rng.random() for name in self.NAMES})


# ------------------------------------------------------------------------------ sparse


class Sparse(Workload):
    """Five terms on any of a thousand attributes: equal, in a range, or above.

    Hardly any filter would ever match by chance, so some are made from the events of their stage.
    """

    name = "sparse"
    KEYS, QUANTITIES, LEVELS = 400, 400, 200  # compared by =, BETWEEN and >
    NAMES = (
        *(f"key{i:03d}" for i in range(KEYS)),
        *(f"quantity{i:03d}" for i in range(QUANTITIES)),
        *(f"level{i:03d}" for i in range(LEVELS)),
    )
    TERMS = 5
    SAID = 30  # attributes of an event
    MATCHES = 3  # made for each event
    EVENTS = 1_000  # for which that is done
    PER_VALUE = 1_000  # filters, for each value that keys may have
    SPAN = 0.1  # of quantities, per filter
    SHARE = 0.3  # of the span, for a range in the first stage
    LEVEL = 1_000

    def values(self, size: int) -> int:
        return max(2, size // self.PER_VALUE)

    def width(self) -> int:
        return int(self.sizes[0] * self.SPAN * self.SHARE)

    def key(self, number: int, value: int) -> Value:
        """Every other key is a string."""
        return f"v{value}" if number % 2 else value

    def make(self, rng: random.Random, stage: int) -> Filter:
        size, before = self.sizes[stage], self.before(stage)
        numbers: set[int] = set()
        while len(numbers) < self.TERMS:
            numbers.add(pick(rng, 0, len(self.NAMES)))
        terms: list[Term] = []
        for number in numbers:
            name = self.NAMES[number]
            if number < self.KEYS:
                low = self.values(before) if stage else 0
                value = self.key(number, pick(rng, low, max(low + 1, self.values(size))))
                terms.append((name, EQUAL, value))
            elif number < self.KEYS + self.QUANTITIES:
                at = pick(rng, int(before * self.SPAN), int(size * self.SPAN))
                terms.append((name, BETWEEN, (at, at + self.width())))
            else:
                terms.append((name, ABOVE, pick(rng, 0, self.LEVEL)))
        return Filter(tuple(terms))

    def event(self, rng: random.Random, stage: int) -> Event:
        size = self.sizes[stage]
        attributes: dict[str, Value] = {}
        for number in rng.sample(range(len(self.NAMES)), self.SAID):
            name = self.NAMES[number]
            if number < self.KEYS:
                attributes[name] = self.key(number, pick(rng, 0, self.values(size)))
            elif number < self.KEYS + self.QUANTITIES:
                attributes[name] = pick(rng, 0, int(size * self.SPAN))
            else:
                attributes[name] = pick(rng, 1, self.LEVEL + 1)
        return event_of(attributes)

    def fitting(self, rng: random.Random, event: Event) -> Filter:
        """A filter that an event satisfies."""
        terms: list[Term] = []
        for name in rng.sample(sorted(event.attributes), self.TERMS):
            value: Any = event.attributes[name]
            if name.startswith("key"):
                terms.append((name, EQUAL, value))
            elif name.startswith("quantity"):
                low = max(0, value - pick(rng, 0, self.width()))
                terms.append((name, BETWEEN, (low, low + self.width())))
            else:
                terms.append((name, ABOVE, pick(rng, 0, value)))
        return Filter(tuple(terms))

    def events(self, stage: int, count: int) -> list[Event]:
        count = min(count, self.EVENTS, (self.sizes[stage] - self.before(stage)) // 10)
        return super().events(stage, count)

    def filters(self, stage: int) -> Iterator[Filter]:
        rng = self.rng("fitting", stage)
        fitting = [
            self.fitting(rng, event)
            for event in self.events(stage, self.EVENTS)
            for _ in range(self.MATCHES)
        ]
        rng.shuffle(fitting)
        left = self.sizes[stage] - self.before(stage)
        for other in super().filters(stage):
            yield fitting.pop() if rng.random() * left < len(fitting) else other
            left -= 1


# ------------------------------------------------------------------------------ strings


class Strings(Workload):
    """Prefixes of a path, pieces of a line, and regular expressions with a literal inside."""

    name = "strings"
    UNIT = 100  # filters that go together: one team, its orders, desks and expressions
    BATCH = 100  # units that are mixed
    APPS, RELEASES = 10, 10  # of a team
    TEAM_PREFIXES, ORDERS, DESKS, REGEXES = 45, 30, 15, 10  # of a unit
    LATER = (50, 33, 17, 0)  # the same once there are as many expressions as there shall be
    REGEXES_MAX = 10_000
    SHAPES = (
        "err(or)? code [0-9]+ in unit{:05d}",
        "user{:05d} (logged|signed) (in|out)",
        "time(d )?out after [0-9]+ ?ms at node{:05d}",
        "job{:05d}[a-z]? (failed|was done) in [0-9.]+ s",
    )

    def parts(self, unit: int) -> tuple[int, int, int, int]:
        """How many filters of each kind a unit has."""
        if unit * self.REGEXES < self.REGEXES_MAX:
            return self.TEAM_PREFIXES, self.ORDERS, self.DESKS, self.REGEXES
        return self.LATER

    def first(self, unit: int) -> tuple[int, int]:
        """The first order and the first desk of a unit."""
        early = min(unit, self.REGEXES_MAX // self.REGEXES)
        late = unit - early
        return early * self.ORDERS + late * self.LATER[1], early * self.DESKS + late * self.LATER[2]

    def unit(self, rng: random.Random, unit: int) -> list[Filter]:
        prefixes, orders, desks, regexes = self.parts(unit)
        team = f"/srv/team{unit:05d}/"
        apps = [f"{team}app{i}/" for i in range(self.APPS)]
        releases = [f"{app}release-{i}" for app in apps for i in range(self.RELEASES)]
        heads = [team, *apps, *rng.sample(releases, prefixes - 1 - len(apps))]
        terms: list[Term] = [
            ("path", PREFIX, head) if i % 2 else ("path", LIKE, f"{head}%")
            for i, head in enumerate(heads)
        ]
        order, desk = self.first(unit)
        terms += [("line", LIKE, f"%order {order + i:06d} %") for i in range(orders)]
        for i in range(desks):
            rest = "urgent%" if i % 3 == 0 else ""
            terms.append(("line", LIKE, f"%at desk {desk + i:06d}%{rest}"))
        for number in range(unit * self.REGEXES, unit * self.REGEXES + regexes):
            shape = self.SHAPES[number % len(self.SHAPES)]
            terms.append(("line", REGEX, shape.format(number)))
        return [Filter((term,)) for term in terms]

    def filters(self, stage: int) -> Iterator[Filter]:
        rng = self.rng("filters", stage)
        units = range(self.before(stage) // self.UNIT, self.sizes[stage] // self.UNIT)
        for begin in range(0, len(units), self.BATCH):
            several = units[begin : begin + self.BATCH]
            mixed = [one for unit in several for one in self.unit(rng, unit)]
            rng.shuffle(mixed)
            yield from mixed

    def spare(self, stage: int, count: int) -> list[Filter]:
        """Units that come later, with expressions of their own."""
        rng = self.rng("spare", stage)
        found: list[Filter] = []
        unit = self.sizes[-1] // self.UNIT
        while len(found) < count:
            found += self.unit(rng, unit)
            for i in range(self.REGEXES if not self.parts(unit)[3] else 0):
                number = unit * self.REGEXES + i
                shape = self.SHAPES[number % len(self.SHAPES)]
                found.append(Filter((("line", REGEX, shape.format(number)),)))
            unit += 1
        rng.shuffle(found)
        return found[:count]

    def event(self, rng: random.Random, stage: int) -> Event:
        units = self.sizes[stage] // self.UNIT
        order, desk = (pick(rng, 0, last) for last in self.first(units))
        regex = pick(rng, 0, min(units * self.REGEXES, self.REGEXES_MAX))
        count = pick(rng, 1, 5_000)
        said = (
            f"error code {count} in unit{regex:05d}",
            f"user{regex:05d} signed out",
            f"timed out after {count} ms at node{regex:05d}",
            f"job{regex:05d}b was done in {count / 100} s",
        )[regex % len(self.SHAPES)]
        urgent = "an urgent one" if rng.random() < 0.5 else "nothing special"
        line = f"{said}; order {order:06d} was taken at desk {desk:06d}, {urgent}"
        team, app, release = pick(rng, 0, units), pick(rng, 0, 10), pick(rng, 0, 10)
        path = f"/srv/team{team:05d}/app{app}/release-{release}/log/{count}.txt"
        return event_of({"line": line, "path": path, "host": f"host{count}", "severity": count % 8})


# ------------------------------------------------------------------------------ topics


class Topics(Workload):
    """No selectors: exact topics, levels left open, and all below a level."""

    name = "topics"
    UNIT = 100  # filters of one site
    BATCH = 100  # sites that are mixed
    AREAS = tuple(f"area{i}" for i in range(5))
    LINES = tuple(f"line{i}" for i in range(5))
    MACHINES = tuple(f"machine{i}" for i in range(4))
    WHOLE, ONE_OPEN, TWO_OPEN, BELOW, LEAVES_BELOW, LEAVES = 5, 20, 6, 15, 4, 50
    EVERYWHERE = 20  # filters for all sites, instead of leaves of the first

    def site(self, rng: random.Random, number: int) -> list[Filter]:
        levels = (self.AREAS, self.LINES, self.MACHINES)
        leaves = [(a, b, c) for a in self.AREAS for b in self.LINES for c in self.MACHINES]
        one = {(*leaf[:i], "+", *leaf[i + 1 :]) for leaf in leaves for i in range(3)}
        two = {
            tuple(name if i == level else "+" for i in range(3))
            for level, names in enumerate(levels)
            for name in names
        }
        chosen = rng.sample(leaves, self.LEAVES + self.LEAVES_BELOW)
        ends: list[tuple[tuple[str, ...], bool]] = [
            (leaf, True) for leaf in chosen[self.LEAVES_BELOW :]
        ]
        ends += [(leaf, False) for leaf in chosen[: self.LEAVES_BELOW]]
        ends += [(leaf, True) for leaf in rng.sample(sorted(one), self.ONE_OPEN)]
        ends += [(leaf, True) for leaf in rng.sample(sorted(two), self.TWO_OPEN)]
        pairs = [(a, b, "#") for a in self.AREAS for b in self.LINES]
        found = [Filter((), f"plant/site{number:05d}/{'/'.join(e)}", exact) for e, exact in ends]
        found += [
            Filter((), f"plant/site{number:05d}/{'/'.join(end)}", False)
            for end in [*((a, "#") for a in self.AREAS), *rng.sample(pairs, self.BELOW)]
        ]
        if number == 0:
            everywhere = rng.sample(leaves, self.EVERYWHERE)
            found[: self.EVERYWHERE] = [
                Filter((), f"plant/+/{'/'.join(leaf)}", True) for leaf in everywhere
            ]
        return found

    def filters(self, stage: int) -> Iterator[Filter]:
        rng = self.rng("filters", stage)
        sites = range(self.before(stage) // self.UNIT, self.sizes[stage] // self.UNIT)
        for begin in range(0, len(sites), self.BATCH):
            mixed = [one for n in sites[begin : begin + self.BATCH] for one in self.site(rng, n)]
            rng.shuffle(mixed)
            yield from mixed

    def spare(self, stage: int, count: int) -> list[Filter]:
        rng = self.rng("spare", stage)
        first = self.sizes[-1] // self.UNIT
        sites = range(first, first + -(-count // self.UNIT))
        found = [one for number in sites for one in self.site(rng, number)]
        rng.shuffle(found)
        return found[:count]

    def event(self, rng: random.Random, stage: int) -> Event:
        site = pick(rng, 0, max(1, self.sizes[stage] // self.UNIT))
        names = (rng.choice(level) for level in (self.AREAS, self.LINES, self.MACHINES))
        return event_of({}, f"plant/site{site:05d}/{'/'.join(names)}")


# ------------------------------------------------------------------------------ drifting


class Drifting(Workload):
    """Three equalities on eight attributes; the hot one has its hot value in most events.

    A tenth of all terms ask for a hot value, so whoever keeps filters by such a term has a heap
    that is looked at with every event while that attribute is hot, and hardly ever before. The
    phases take the attributes in turn.
    """

    name = "drifting"
    NAMES = tuple(f"a{i}" for i in range(8))
    SUBSETS = subsets(NAMES, 3)
    HOT = 0
    ASKED = 0.1  # of the terms
    SAID = 0.9  # of the events, while hot
    PER_VALUE = 1_000

    def values(self) -> int:
        return max(20, self.sizes[-1] // self.PER_VALUE)

    def make(self, rng: random.Random, stage: int) -> Filter:
        values = self.values()
        terms: list[Term] = []
        for name in self.SUBSETS[pick(rng, 0, len(self.SUBSETS))]:
            value = self.HOT if rng.random() < self.ASKED else pick(rng, 1, values)
            terms.append((name, EQUAL, value))
        return Filter(tuple(terms))

    def phase(self, number: int, count: int) -> list[Event]:
        """The events of a phase; half of them satisfy some filter, if hot values are left out."""
        rng = self.rng("phase", number)
        known = self.rng("filters", 0)
        hot = self.NAMES[number % len(self.NAMES)]
        events = []
        for _ in range(count):
            attributes: dict[str, Value] = {
                name: pick(rng, 0, self.values()) for name in self.NAMES
            }
            terms = self.make(known, 0).terms
            if rng.random() < 0.5 and all(value != self.HOT for _, _, value in terms):
                attributes |= {name: value for name, _, value in terms}
            if rng.random() < self.SAID:
                attributes[hot] = self.HOT
            events.append(event_of(attributes))
        return events


WORKLOADS: dict[str, type[Workload]] = {
    each.name: each for each in (Selective, Dense, Sparse, Strings, Topics)
}
