"""Stories of substitutions: links of a tree are lost and replaced, and routes must be right again.

A seed decides about the tree, the protocol, what is wanted, and what happens: substitutions that
are *isolated* (each has all the time that it needs), that *overlap*, or that are *interrupted*: the
links of their paths are lost, too, the new ones before they are used, and inner nodes die. In the
end a chain of new nodes takes the place of a link, and the last of them is taken out again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from regraft.routing.filters import Filter
from regraft.routing.reconfiguration import PROTOCOLS
from regraft.simulate.checkers import Complaint
from regraft.simulate.grove import MS, Grove, Setting, Site
from regraft.simulate.plan import PATTERNS, SELECTORS

MODES = ("isolated", "overlapping", "interrupted")


@dataclass(slots=True)
class GroveStory:
    """What happens in a grove, by a seed."""

    seed: int
    bugs: frozenset[str] = frozenset()
    protocol: str = ""  # instead of the one that the seed chooses
    covering: bool | None = None
    mode: str = ""
    advertisements: bool = False
    grove: Grove = field(init=False)
    complaints: list[Complaint] = field(default_factory=list)
    _random: Random = field(init=False)
    _pool: list[Filter] = field(init=False)
    _lost: list[tuple[int, int, bytes]] = field(default_factory=list)
    _churn: bool = False

    def __post_init__(self) -> None:
        random = self._random = Random(f"grove story {self.seed}")
        names = [*PROTOCOLS, "mixed"]
        protocol = names[self.seed % len(names)]
        covering = random.random() < 0.5
        self.mode = self.mode or random.choice(MODES)
        setting = Setting(
            self.protocol or protocol,
            covering if self.covering is None else self.covering,
            random.choice((500, 3000)),
            random.choice(((1, 1), (1, 5), (1, 50))),
            random.choice((0, 2, 60)),
            random.choice((1, 2, 8, 1000)),
            self.bugs,
            self.advertisements,
        )
        self.grove = Grove(self.seed, random.randint(3, 14), setting, random.choice((2, 3, 4)))
        self._churn = random.random() < 0.4
        count = random.choice((4, 12, 25))
        self._pool = [_filter(random) for _ in range(count)]

    @property
    def about(self) -> str:
        """For people."""
        setting = self.grove.setting
        covering = "with covering" if setting.covering else "without covering"
        return f"{self.mode}, {setting.protocol}, {covering}, {len(self.grove.sites)} sites"

    def tell(self) -> list[Complaint]:
        """Let it happen; what was wrong."""
        grove, random = self.grove, self._random
        for site in grove.sites:
            for _ in range(random.choice((0, 1, 2))):
                grove.subscribe(site.number, random.choice(self._pool))
            if self.advertisements and random.random() < 0.4:
                grove.advertise(site.number, random.choice(self._pool))
        grove.run()
        for _ in range(3):
            if not self.complaints:
                self._stir()
                grove.run()
                self.complaints += grove.complaints()
        if not self.complaints:
            self._build()
        return self.complaints

    def _stir(self) -> None:
        """A few substitutions, one after the other or not."""
        grove, random = self.grove, self._random
        for _ in range(1 if self.mode == "isolated" else random.randint(2, 6)):
            if random.random() < 0.15 and self.mode != "isolated":
                self._cut_all(random.randrange(len(grove.sites)))
            else:
                self._cut_one()
            if self.mode == "isolated":
                self._isolated()
                return
            for _ in range(random.choice((0, 1, 4)) if self._churn else 0):
                self._change_mind()
            grove.run(grove.now + random.choice((0, 1, 10, 100, 1000)) * MS)
            if random.random() < 0.7:
                self._replace_some()
            if self.mode == "interrupted":
                grove.run(grove.now + random.choice((0, 2, 10, 30, 200)) * MS)
        while self._lost:
            grove.run(grove.now + random.choice((0, 1, 100)) * MS)
            self._replace_some()

    def _cut_one(self) -> None:
        links = [way for way in self.grove.links() if way.joined and way.back.joined]
        if links:
            way = self._random.choice(links)
            rid = self.grove.cut(way)
            self._lost.append((way.source.number, way.target.number, rid))

    def _cut_all(self, number: int) -> None:
        """As if a node had died, and come back at once."""
        for way in self.grove.links():
            if number in (way.source.number, way.target.number):
                rid = self.grove.cut(way)
                self._lost.append((way.source.number, way.target.number, rid))

    def _replace_some(self) -> None:
        random, grove = self._random, self.grove
        for _ in range(random.randint(1, len(self._lost)) if self._lost else 0):
            a, b, rid = self._lost.pop(random.randrange(len(self._lost)))
            if random.random() < 0.5:
                a, b = b, a
            here, there = grove.side(a), grove.side(b)
            if b in here:
                continue
            known = random.random() < 0.6
            c = random.choice(here) if known else a
            grove.replace(a, b, c, random.choice(there), rid, known)

    def _isolated(self) -> None:
        """One substitution whose path is known; who is not on it has nothing to do."""
        random, grove = self._random, self.grove
        a, b, rid = self._lost.pop()
        if random.random() < 0.5:
            a, b = b, a
        c, d = random.choice(grove.side(a)), random.choice(grove.side(b))
        grove.record.touched.clear()
        path = grove.replace(a, b, c, d, rid)
        grove.run()
        setting = grove.setting
        plain = not (setting.covering or setting.advertisements)
        if setting.protocol == "reconfiguration-path" and plain:
            self.complaints += self._off_path({*path.head, *path.tail})

    def _off_path(self, path: set[bytes]) -> Iterator[Complaint]:
        for number in sorted(self.grove.record.touched):
            if self.grove.sites[number].name not in path:
                yield Complaint("touched", f"{number} is not on the path, and had to do something")

    def _build(self) -> None:
        """A chain becomes part of the tree, as leaves first; then one of its nodes goes."""
        grove = self.grove
        random = Random(f"chain {self.seed}")
        ways = [way for way in grove.links() if way.joined and way.back.joined]
        if not ways:
            return
        way = random.choice(ways)
        a, b = way.source.number, way.target.number
        before = end = random.choice([n for n in grove.side(a) if b not in grove.path(a, n)])
        for _ in range(random.randint(1, 3)):
            before, end = end, len(grove.sites)
            grove.sites.append(grove.site(end))
            grove.link(before, end)
            for filter in random.sample(self._pool, random.choice((0, 1, 2))):
                grove.subscribe(end, filter)
                if self.advertisements and random.random() < 0.5:
                    grove.advertise(end, filter)
        grove.run(random.choice((grove.now, grove.now + 10 * MS, None)))
        rid = grove.cut(way)
        d = random.choice(grove.side(b))
        grove.replace(a, b, end, d, rid)
        grove.run()
        self.complaints += grove.complaints()
        links = grove.sites[end].alive.values()
        below, above = (
            next(one for one in links if one.target.number == other) for other in (d, before)
        )
        rid = grove.cut(below)
        grove.replace(d, end, d, before, rid, random.random() < 0.5)
        grove.cut(above)
        grove.run()
        self.complaints += grove.complaints()

    def _change_mind(self) -> None:
        """Somebody wants something else."""
        random = self._random
        site = random.choice(self.grove.sites)
        if self.advertisements and random.random() < 0.5:
            self._offer_else(site)
        elif site.local and random.random() < 0.5:
            self.grove.unsubscribe(site.number, random.choice(sorted(site.local)))
        else:
            self.grove.subscribe(site.number, random.choice(self._pool))

    def _offer_else(self, site: Site) -> None:
        if site.offers and self._random.random() < 0.5:
            self.grove.withdraw(site.number, self._random.choice(sorted(site.offers)))
        else:
            self.grove.advertise(site.number, self._random.choice(self._pool))


def _filter(random: Random) -> Filter:
    return Filter(random.choice(PATTERNS), random.random() < 0.2, random.choice(SELECTORS))
