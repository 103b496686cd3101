"""Filters of applications whose `covers` says anything: nothing breaks, whatever is missing."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from regraft.limits import Limits
from regraft.model.userfilter import FilterTable, UserFilters
from regraft.routing.filters import Filter
from regraft.routing.forwarding import LOCAL, Forwarding
from regraft.routing.reconfiguration import Strawman


def liar(random: Random) -> type[Any]:
    class Liar:
        def encode(self) -> bytes:
            return b""

        @classmethod
        def decode(cls, data: bytes) -> Liar:
            return cls()

        def matches(self, message: object) -> bool:
            return True

        def covers(self, other: object) -> bool:
            if random.random() < 0.1:
                raise RuntimeError("no idea")
            return random.random() < 0.5

    return Liar


@pytest.mark.parametrize("seed", range(20))
def test_the_forwarding_survives_and_forgets(seed: int) -> None:
    random = Random(seed)
    filters = UserFilters(Limits(filter_failures=1_000_000))
    filters.learn(FilterTable({"liar": liar(random)}))
    forwarding = Forwarding(Strawman())
    forwarding.user_filter = filters.of
    forwarding.added(1, b"", 0)
    forwarding.added(2, b"", 0)
    held: list[Filter] = []
    for now_ns in range(400):
        if held and random.random() < 0.45:
            forwarding.release(LOCAL, held.pop(random.randrange(len(held))))
        else:
            pattern, selector = random.choice(("a", "a/b", "#")), random.choice(("", "n > 1"))
            held.append(Filter(pattern, False, selector, "liar", bytes((random.randrange(20),))))
            forwarding.hold(LOCAL, held[-1])
        if random.random() < 0.5:
            forwarding.announce(now_ns)
    for filter in held:
        forwarding.release(LOCAL, filter)
    for now_ns in range(400, 500):
        forwarding.announce(now_ns)
    assert not any(sent for _, sent in forwarding.rows().values())
