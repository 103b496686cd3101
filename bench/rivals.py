"""Other ways to find the filters that an event satisfies, beside the index.

Each is built from all filters at once and gives the places of those that match. `compare` runs in
a process of its own. What a rival finds must be what the index found: one that finds anything else
is not faster, it is wrong, and is shown as such.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from typing import Any, ClassVar

from bench.workloads import (
    ABOVE,
    AMONG,
    BETWEEN,
    EQUAL,
    LIKE,
    PREFIX,
    REGEX,
    WORKLOADS,
    Event,
    Filter,
    Term,
)

TRIAL = 200  # filters, to see how long building takes
EVENTS_MIN = 3
GIB = 1024**3


class Rival:
    """Something built from filters that finds those which match."""

    name: ClassVar[str]
    module: ClassVar[str] = ""  # without which it cannot run
    package: ClassVar[str] = ""
    workloads: ClassVar[tuple[str, ...]]

    def __init__(self, filters: list[Filter]) -> None:
        raise NotImplementedError

    def match(self, event: Event) -> Iterable[int]:
        raise NotImplementedError


class OneByOne(Rival):
    """Every selector evaluated by itself, compiled, on the bytes of the envelope."""

    name = "one by one"
    workloads = ("selective", "dense", "sparse", "strings", "topics")

    def __init__(self, filters: list[Filter]) -> None:
        from regraft.kernels.selection import compile_selector, examine_selector
        from regraft.model.selector import Selector
        from regraft.model.topics import matches

        self.examine = examine_selector
        self.matches = matches
        self.topics = [(each.pattern, each.exact) for each in filters if not each.terms]
        self.tests = [
            compile_selector(Selector.parse(each.text())) for each in filters if each.terms
        ]

    def match(self, event: Event) -> list[int]:
        examine, envelope = self.examine, event.envelope
        if self.tests:
            return [i for i, test in enumerate(self.tests) if examine(test, envelope)]
        matches, topic = self.matches, event.topic
        return [
            i for i, (pattern, exact) in enumerate(self.topics) if matches(pattern, topic, exact)
        ]


# ------------------------------------------------------------------------------ SQLite


SCHEMA = """
PRAGMA journal_mode = OFF;
PRAGMA temp_store = MEMORY;
CREATE TABLE same (name INTEGER, value, filter INTEGER, PRIMARY KEY (name, value, filter))
    WITHOUT ROWID;
CREATE TABLE range (name INTEGER, low, high, filter INTEGER,
    PRIMARY KEY (name, low, high, filter)) WITHOUT ROWID;
CREATE TABLE above (name INTEGER, low, filter INTEGER, PRIMARY KEY (name, low, filter))
    WITHOUT ROWID;
CREATE TABLE glob (name INTEGER, glob TEXT, filter INTEGER);
CREATE TABLE regex (name INTEGER, regex TEXT, filter INTEGER);
CREATE TABLE filters (filter INTEGER PRIMARY KEY, terms INTEGER);
CREATE TABLE said (name INTEGER, value);
"""
FINDERS = {  # by table: the filters one of whose terms there is true, once per term
    "same": "SELECT filter FROM said JOIN same USING (name, value)",
    "range": "SELECT filter FROM said JOIN range ON range.name = said.name"
    " AND low <= value AND high >= value",
    "above": "SELECT filter FROM said JOIN above ON above.name = said.name AND low < value",
    "glob": "SELECT filter FROM said JOIN glob ON glob.name = said.name AND value GLOB glob",
    "regex": "SELECT filter FROM said JOIN regex ON regex.name = said.name"
    " AND searches(regex, value)",
}
COUNTED = """
SELECT filter FROM (SELECT filter, count(*) AS count FROM ({}) GROUP BY filter)
JOIN filters USING (filter) WHERE count = terms
"""
TOPIC = "$topic"
HEAD = "^"  # before the name of an attribute: its beginnings


class Sqlite(Rival):
    """A row per term with an index on it; the terms that are true are counted by filter.

    It is in memory, with no tables asked that are empty, no attributes looked at that no filter
    names, and no count where every filter has one term. Prefixes and topic patterns are looked up
    as equalities, since an event can name all those that could match.
    """

    name = "SQLite"
    workloads = ("selective", "dense", "sparse", "strings", "topics")

    def __init__(self, filters: list[Filter]) -> None:
        self.names: dict[str, int] = {}
        self.lengths: dict[str, set[int]] = {}  # of the prefixes of an attribute
        self.searches: dict[str, Callable[[str], Any]] = {}
        rows: dict[str, list[tuple[Any, ...]]] = {table: [] for table in FINDERS}
        for place, each in enumerate(filters):
            for term in each.terms or (("", TOPIC, self.topic_key(each)),):
                for table, *values in self.rows(term):
                    rows[table].append((*values, place))
        self.base = sqlite3.connect(":memory:", isolation_level=None, cached_statements=16)
        self.base.create_function("searches", 2, self.search, deterministic=True)
        self.base.executescript(SCHEMA)
        self.base.execute("BEGIN")
        rows = {table: sorted(some) for table, some in rows.items() if some}
        for table, some in rows.items():
            marks = ", ".join("?" * len(some[0]))
            self.base.executemany(f"INSERT INTO {table} VALUES ({marks})", some)
        counts = [(place, max(1, len(each.terms))) for place, each in enumerate(filters)]
        self.base.executemany("INSERT INTO filters VALUES (?, ?)", counts)
        self.base.execute("COMMIT")
        self.base.execute("ANALYZE")
        union = " UNION ALL ".join(FINDERS[table] for table in rows)
        single = all(count == 1 for _, count in counts)
        self.question = union if single else COUNTED.format(union)

    def number(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))

    def rows(self, term: Term) -> Iterator[tuple[Any, ...]]:
        name, operator, value = term
        if operator == LIKE and value.index("%") == len(value) - 1:
            operator, value = PREFIX, value[:-1]
        if operator in (EQUAL, TOPIC):
            yield "same", self.number(name or TOPIC), value
        elif operator == AMONG:
            yield from (("same", self.number(name), one) for one in value)
        elif operator == BETWEEN:
            yield "range", self.number(name), *value
        elif operator == ABOVE:
            yield "above", self.number(name), value
        elif operator == PREFIX:
            self.lengths.setdefault(name, set()).add(len(value))
            yield "same", self.number(HEAD + name), value
        elif operator == LIKE:
            yield "glob", self.number(name), value.replace("%", "*")
        else:
            yield "regex", self.number(name), value

    def search(self, regex: str, value: str) -> bool:
        if regex not in self.searches:
            import re2

            self.searches[regex] = re2.compile(regex).search
        return self.searches[regex](value) is not None

    @staticmethod
    def topic_key(each: Filter) -> str:
        if each.pattern.endswith("/#"):
            return f"{each.pattern[:-2]} and below"
        return each.pattern if each.exact else f"{each.pattern} and below"

    @staticmethod
    def topic_keys(topic: str) -> Iterator[str]:
        levels = topic.split("/")
        for depth in range(1, len(levels) + 1):
            for names in product(*((name, "+") for name in levels[:depth])):
                pattern = "/".join(names)
                yield f"{pattern} and below"
                if depth == len(levels):
                    yield pattern

    def said(self, event: Event) -> Iterator[tuple[int, Any]]:
        names = self.names
        if TOPIC in names:
            yield from ((names[TOPIC], key) for key in self.topic_keys(event.topic))
        for name, value in event.attributes.items():
            if name in names:
                yield names[name], value
            for length in self.lengths.get(name, ()):
                assert isinstance(value, str)
                yield names[HEAD + name], value[:length]

    def match(self, event: Event) -> list[int]:
        run = self.base.execute
        run("BEGIN")
        run("DELETE FROM said")
        self.base.executemany("INSERT INTO said VALUES (?, ?)", self.said(event))
        found = [row[0] for row in run(self.question)]
        run("COMMIT")
        return found


# ------------------------------------------------------------------------------ regular expressions


def regex_of(term: Term) -> str:
    """A term on a string as a regular expression that is searched for."""
    _, operator, value = term
    if operator == REGEX:
        return str(value)
    if operator == PREFIX:
        return f"^{re.escape(value)}"
    whole = ".*".join(re.escape(piece) for piece in value.split("%"))
    return f"^{whole}$".removeprefix("^.*").removesuffix(".*$")


def by_attribute(filters: list[Filter]) -> dict[str, list[tuple[int, str]]]:
    """For every attribute the places and expressions of its filters, which have one term each."""
    found: dict[str, list[tuple[int, str]]] = {}
    for place, each in enumerate(filters):
        (term,) = each.terms
        found.setdefault(term[0], []).append((place, regex_of(term)))
    return found


class Re2Set(Rival):
    """All expressions in one automaton for each attribute, by the engine that the index uses."""

    name = "re2 Set"
    module = "re2"
    package = "google-re2"
    workloads = ("strings",)

    def __init__(self, filters: list[Filter]) -> None:
        import re2

        options = re2.Options()
        options.max_mem = 4 * GIB
        self.sets: dict[str, tuple[Any, list[int]]] = {}
        for name, several in by_attribute(filters).items():
            one = re2.Set.SearchSet(options)
            for _, regex in several:
                one.Add(regex)
            one.Compile()
            self.sets[name] = one, [place for place, _ in several]

    def match(self, event: Event) -> list[int]:
        found = []
        for name, (one, places) in self.sets.items():
            found += [places[i] for i in one.Match(event.attributes[name]) or ()]
        return found


class Hyperscan(Rival):
    """The same with the engine that is made for it."""

    name = "hyperscan"
    module = "hyperscan"
    package = "hyperscan"
    workloads = ("strings",)

    def __init__(self, filters: list[Filter]) -> None:
        import hyperscan

        flags = hyperscan.HS_FLAG_SINGLEMATCH | hyperscan.HS_FLAG_DOTALL
        self.databases = {}
        for name, several in by_attribute(filters).items():
            database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
            database.compile(
                expressions=[regex.encode() for _, regex in several],
                ids=[place for place, _ in several],
                elements=len(several),
                flags=[flags] * len(several),
            )
            self.databases[name] = database

    def match(self, event: Event) -> list[int]:
        found: list[int] = []

        def take(place: int, *_: object) -> None:
            found.append(place)

        for name, database in self.databases.items():
            text = event.attributes[name]
            assert isinstance(text, str)
            database.scan(text.encode(), match_event_handler=take)
        return found


# ------------------------------------------------------------------------------ a rule engine


def rule_of(each: Filter) -> str:
    """A filter in the language of rule-engine."""
    parts = []
    for name, operator, value in each.terms:
        if operator == EQUAL:
            parts.append(f"{name} == {value!r}")
        elif operator == AMONG:
            parts.append(f"{name} in {list(value)!r}")
        elif operator == BETWEEN:
            parts.append(f"{name} >= {value[0]!r} and {name} <= {value[1]!r}")
        else:
            parts.append(f"{name} {operator} {value!r}")
    return " and ".join(parts)


class RuleEngine(Rival):
    """A rule engine in Python: every rule asked by itself."""

    name = "rule-engine"
    module = "rule_engine"
    package = "rule-engine"
    workloads = ("selective", "dense")

    def __init__(self, filters: list[Filter]) -> None:
        import rule_engine

        self.rules = [rule_engine.Rule(rule_of(each)) for each in filters]

    def match(self, event: Event) -> list[int]:
        attributes = event.attributes
        return [i for i, rule in enumerate(self.rules) if rule.matches(attributes)]


RIVALS: tuple[type[Rival], ...] = (OneByOne, Sqlite, Re2Set, Hyperscan, RuleEngine)


# ------------------------------------------------------------------------------ comparison


@dataclass(frozen=True)
class Contest:
    """What to compare: stages of a workload, and what the index found for its first events."""

    workload: str
    sizes: tuple[int, ...]
    stages: tuple[int, ...]
    samples: tuple[list[list[int]], ...]  # one for each of these stages
    seconds: float  # for each rival at each size, about
    events: int  # the same as were asked for when the samples were made


@dataclass(frozen=True)
class Outcome:
    """One rival at one size."""

    rival: str
    size: int
    us: float | None  # an event
    build_seconds: float
    events: int
    remark: str = ""
    wrong: bool = False


def run(
    rival: type[Rival], size: int, filters: list[Filter], events: list[Event], contest: Contest,
    sample: list[list[int]],
) -> Outcome:  # fmt: skip
    """Build it, see that it finds what it should, and take the time of some events."""
    begin = time.perf_counter()
    built = rival(filters)
    took = time.perf_counter() - begin
    seen = max(EVENTS_MIN, len(events) // 2)
    begin = time.perf_counter()
    for count, event in enumerate(events[:seen]):  # also to warm up
        found = sorted(built.match(event))
        if count < len(sample) and found != sample[count]:
            return Outcome(rival.name, size, None, took, 0, "finds other filters", wrong=True)
        if count >= EVENTS_MIN and time.perf_counter() > begin + contest.seconds / 12:
            break
    fresh = events[seen:]  # what it has not seen, since some remember what they did
    begin = time.perf_counter()
    count = 0
    while count < len(fresh) and time.perf_counter() < begin + contest.seconds / 12:
        built.match(fresh[count])
        count += 1
    each = (time.perf_counter() - begin) / count
    return Outcome(rival.name, size, each * 1e6, took, count)


def compare(name: str, contest: Contest) -> list[Outcome]:
    """One rival at one size after the other, as long as each can be expected to end in time."""
    rival = next(each for each in RIVALS if each.name == name)
    if rival.module and find_spec(rival.module) is None:
        return [Outcome(name, 0, None, 0.0, 0, f"absent: install {rival.package}")]
    workload = WORKLOADS[contest.workload](contest.sizes)
    filters: list[Filter] = []
    outcomes: list[Outcome] = []
    first = [each for _, each in zip(range(TRIAL), workload.filters(0), strict=False)]
    rival(first[:1])  # so that what it imports is not counted
    begin = time.perf_counter()
    built = rival(first)
    middle = time.perf_counter()
    built.match(workload.events(0, 1)[0])
    build_each = (middle - begin) / len(first)
    event_each = (time.perf_counter() - middle) / len(first)
    reached = 0
    for stage, sample in zip(contest.stages, contest.samples, strict=True):
        size = contest.sizes[stage]
        if size * (build_each + EVENTS_MIN * event_each) > contest.seconds:
            outcomes.append(Outcome(name, size, None, 0.0, 0, "would take too long"))
            break
        while reached <= stage:
            filters += workload.filters(reached)
            reached += 1
        events = workload.events(stage, contest.events)
        try:
            outcome = run(rival, size, filters, events, contest, sample)
        except Exception as error:  # of whatever kind it has for "too much"
            outcomes.append(Outcome(name, size, None, 0.0, 0, f"fails: {error}"[:100]))
            break
        outcomes.append(outcome)
        if outcome.us is None:
            break
        build_each = outcome.build_seconds / size
        event_each = outcome.us / 1e6 / size
    return outcomes
