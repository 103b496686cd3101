"""The match index against the reference: the same answer for every filter and every event.

A pair is a filter and an event. A million of them are in the slow tests, fewer in the fast ones;
REGRAFT_FUZZ_PAIRS=50000000 in the environment makes it longer, with other seeds for each round.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random
from types import ModuleType

import pytest

from regraft import kernels
from regraft.errors import LocalError
from regraft.kernels import matching, plan
from regraft.model import topics
from regraft.model.message import Message, Timestamp, Value, encode_envelope
from regraft.model.selector import Selector

PAIRS = int(os.environ.get("REGRAFT_FUZZ_PAIRS", "1_000_000"))
PAIRS_FAST = 60_000
PAIRS_INTERPRETED = 40_000
ROUND = 250_000  # pairs with one seed

NAMES = ("a", "b", "c", "d", "lat", "lon")
NUMBERS = (0, 1, 2, 3, -1, 7, 2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), -(2**53) - 1)
REALS = (0.0, -0.0, 0.5, 1.0, 1.5, 2.0**53, 2.0**53 - 1, 1e300, -1e300, 9.3e18, 5e-324)
STRINGS = (
    "",
    "x",
    "y",
    "xy",
    "xyz",
    "yx",
    "an error here",
    "grüße",
    "\U0001f600x",
    "x%y",
    "line\nx",
)
PATTERNS = ("%", "x%", "%y", "%xy%", "_", "x_z", "%er_or%", "gr__e", "%\U0001f600_", "x$%y")
REGEXES = (
    "x",
    "^x",
    "y$",
    "^x.*z$",
    "err(or)? h",
    "[xy]z",
    "(?i)XY",
    "x|y",
    "^(x|y)+$",
    "gr.ße",
    "a{2,}",
)
TOPICS = ("a", "a/b", "a/b/c", "b", "b/c", "$sys", "$sys/a", "a//b")
TOPIC_PATTERNS = ("a", "a/b", "+", "+/b", "a/#", "#", "", "$sys", "$sys/#", "a/+/c", "b", "a//b")


def literal(random: Random) -> str:
    sort = random.randrange(8)
    if sort < 2:
        return str(random.choice(NUMBERS))
    if sort == 2:
        return repr(random.choice(REALS))
    if sort < 6:
        return "'" + random.choice(STRINGS).replace("'", "''") + "'"
    if sort == 6:
        return random.choice(("TRUE", "FALSE"))
    return random.choice(("X'78'", "X''", "TIMESTAMP '1970-01-01T00:00:00.000005Z'"))


def atom(random: Random) -> str:
    name = random.choice((*NAMES, *NAMES, "ctx.a", "$topic", "$priority", "$size", "$type"))
    shape = random.randrange(16)
    if shape < 5:
        return f"{name} {random.choice(('=', '=', '<>', '<', '<=', '>', '>='))} {literal(random)}"
    if shape == 5:
        return f"{name} BETWEEN {literal(random)} AND {literal(random)}"
    if shape == 6:
        items = ", ".join(literal(random) for _ in range(random.randint(1, 5)))
        return f"{name} {random.choice(('', 'NOT '))}IN ({items})"
    if shape == 7:
        return f"{name} IS {random.choice(('', 'NOT '))}NULL"
    if shape == 8:
        return f"STARTS_WITH({name}, '{random.choice(STRINGS)}')"
    if shape == 9:
        return f"{name} LIKE '{random.choice(PATTERNS)}' ESCAPE '$'"
    if shape == 10:
        return f"{name} REGEXP '{random.choice(REGEXES)}'"
    if shape == 11:
        return f"TOPIC('{random.choice([text for text in TOPIC_PATTERNS if text])}')"
    if shape == 12:
        there = f"{random.randint(-90, 90)}, {random.randint(-180, 180)}"
        metres = random.choice((0, 1000, 500_000, 5_000_000, 3e7))
        return f"DISTANCE(lat, lon, {there}) {random.choice(('<', '<=', '>'))} {metres}"
    if shape == 13:
        return f"{name} {random.choice('+-*/')} {random.choice(NAMES)} > {literal(random)}"
    if shape == 14:
        return f"{name} {random.choice(('=', '<', '<>'))} {random.choice(NAMES)}"
    return random.choice(("TRUE", "FALSE", f"-{name} < 1"))


def condition(random: Random, depth: int = 0) -> str:
    shape = random.random()
    if depth > 2 or shape < 0.35:
        return atom(random)
    if shape < 0.9:
        joint = " AND " if shape < 0.7 else " OR "
        parts = [condition(random, depth + 1) for _ in range(random.randint(2, 3))]
        return "(" + joint.join(parts) + ")"
    return f"NOT ({condition(random, depth + 1)})"


def value(random: Random) -> Value:
    sort = random.randrange(10)
    if sort < 3:
        return random.choice(NUMBERS)
    if sort < 5:
        return random.choice((*REALS, float("nan"), float("inf"), float("-inf")))
    if sort < 8:
        return random.choice(STRINGS)
    return random.choice((True, False, b"x", b"", Timestamp(5), Timestamp(-(2**60))))


def message(random: Random) -> Message:
    attributes = {name: value(random) for name in NAMES if random.random() < 0.6}
    if random.random() < 0.7:
        attributes |= {"lat": random.uniform(-90, 90), "lon": random.uniform(-180, 180)}
    return Message(
        random.choice(TOPICS),
        bytes(random.randrange(3)),
        attributes,
        priority=random.randrange(10),
        type_name=random.choice(("", "x")),
        context={"a": value(random)} if random.random() < 0.3 else {},
    )


# Many alike, so that buckets are split, dimensions divided and matrices filled.


def a_quote(random: Random) -> str:
    low = random.randint(0, 90)
    parts = [f"symbol = 'S{random.randrange(5)}'", f"price BETWEEN {low} AND {low + 10}"]
    if random.random() < 0.5:
        parts.append(f"volume > {random.randrange(100)}")
    if random.random() < 0.3:
        parts.append(f"region IN ('R{random.randrange(4)}', 'R{random.randrange(4)}')")
    return " AND ".join(parts)


def a_trade(random: Random) -> Message:
    found: dict[str, Value] = {
        "symbol": f"S{random.randrange(6)}",
        "price": random.randint(-5, 105),
    }
    found |= {"volume": random.random() * 100, "region": f"R{random.randrange(5)}"}
    return Message("t", attributes={name: x for name, x in found.items() if random.random() < 0.9})


def a_box(random: Random) -> str:
    parts = []
    for k in random.sample(range(8), 4):
        low = random.random() * 0.5
        parts.append(f"n{k} BETWEEN {low:.3f} AND {low + 0.5:.3f}")
    return " AND ".join(parts)


def a_point(random: Random) -> Message:
    point = {f"n{k}": random.random() for k in range(8) if random.random() < 0.97}
    return Message("t", attributes=point)


def a_word(random: Random) -> str:
    return "".join(random.choices("abc", k=random.randint(1, 6)))


def a_search(random: Random) -> str:
    shape = random.randrange(4)
    word = a_word(random)
    if shape == 0:
        return f"s LIKE '%{word}%'"
    if shape == 1:
        return f"STARTS_WITH(s, '{word}') AND t = '{a_word(random)}'"
    if shape == 2:
        return f"s REGEXP '{word}.?{a_word(random)}'"
    return f"s LIKE '{word}%{a_word(random)}'"


def a_text(random: Random) -> Message:
    return Message("t", attributes={"s": a_word(random) + a_word(random), "t": a_word(random)})


Maker = tuple[Callable[[Random], str], Callable[[Random], Message], int]
GAMES: dict[str, Maker] = {
    "anything": (condition, message, 150),
    "quotes": (a_quote, a_trade, 1500),
    "boxes": (a_box, a_point, 2000),
    "texts": (a_search, a_text, 600),
}


class Game:
    """Filters come and go in an index, events are matched, and the reference watches."""

    def __init__(self, index_module: ModuleType, plan_module: ModuleType, seed: int) -> None:
        self.random = Random(seed)
        self.index = index_module.Index()
        self.plan_of = plan_module.plan_of
        self.held: dict[int, tuple[Selector | None, str | None, bool]] = {}
        self.times: dict[int, int] = {}
        self.pairs = 0

    def add(self, text: str) -> None:
        try:
            selector = Selector.parse(text)
        except LocalError:
            return
        pattern, exact = None, False
        if self.random.random() < 0.3:
            pattern = self.random.choice(TOPIC_PATTERNS)
            exact = self.random.random() < 0.5
        planned = self.plan_of(text)
        assert planned.text == selector.text
        if pattern is not None and self.random.random() < 0.1:
            number = self.index.add(None, pattern.encode(), exact)
            self.note(number, None, pattern, exact)
        else:
            topic = None if pattern is None else pattern.encode()
            number = self.index.add(planned, topic, exact)
            self.note(number, selector, pattern, exact)

    def note(
        self, number: int, selector: Selector | None, pattern: str | None, exact: bool
    ) -> None:
        before = self.held.get(number)
        assert before is None or before[0] == selector
        self.held.setdefault(number, (selector, pattern, exact))
        self.times[number] = self.times.get(number, 0) + 1

    def release(self) -> None:
        number = self.random.choice(list(self.held))
        self.times[number] -= 1
        gone = not self.times[number]
        assert self.index.release(number) == gone
        if gone:
            del self.held[number], self.times[number]

    def match(self, event: Message) -> None:
        expected = sorted(
            number
            for number, (selector, pattern, exact) in self.held.items()
            if (pattern is None or topics.matches(pattern, event.topic, exact=exact))
            and (selector is None or selector.matches(event))
        )
        found = sorted(self.index.match(encode_envelope(event)))
        wrong = [self.held[number] for number in set(found) ^ set(expected)]
        assert found == expected, (wrong, event)
        self.pairs += len(self.held)

    def play(self, name: str, pairs: int) -> None:
        text, event, size = GAMES[name]
        while self.pairs < pairs:
            grow = len(self.held) < size
            for _ in range(20 if grow else 5):
                self.add(text(self.random))
            for _ in range(2 if grow else 8):
                if self.held:
                    self.release()
            for _ in range(1 if grow else 4):
                self.match(event(self.random))

    def finish(self) -> None:
        """What is left when all filters are gone: nothing."""
        for number, times in self.times.items():
            for _ in range(times):
                self.index.release(number)
        counts = self.index.snapshot()
        left = ("filters", "conjunctions", "patterns", "predicates", "dimensions", "in_matrices")
        assert {name: counts[name] for name in left} == dict.fromkeys(left, 0)
        assert (counts["nodes"], counts["predicates_cost"]) == (1, 0)


def finished(game: Game, name: str, pairs: int) -> None:
    game.play(name, pairs)
    counts = game.index.snapshot()
    assert counts["nodes"] > 10 or counts["in_matrices"] > 0 or pairs < 50_000
    game.finish()


@pytest.mark.parametrize("name", GAMES)
def test_the_index_finds_what_the_reference_finds(name: str) -> None:
    finished(Game(matching, plan, seed=7), name, PAIRS_FAST // len(GAMES))


@pytest.mark.parametrize("name", GAMES)
def test_and_so_does_its_interpreted_twin(name: str) -> None:
    twins = kernels.load_interpreted()
    game = Game(twins["matching"], twins["plan"], seed=8)
    finished(game, name, PAIRS_INTERPRETED // len(GAMES))


@pytest.mark.slow
@pytest.mark.parametrize("name", GAMES)
def test_a_million_pairs(name: str) -> None:
    left = PAIRS // len(GAMES)
    seed = 100
    while left > 0:
        game = Game(matching, plan, seed)
        game.play(name, min(left, ROUND))
        counts = game.index.snapshot()
        if name == "boxes":
            assert counts["in_matrices"] > 0  # otherwise they were not tested
        elif name == "quotes":
            assert counts["nodes"] > 10
        left -= game.pairs
        game.finish()
        seed += 1
