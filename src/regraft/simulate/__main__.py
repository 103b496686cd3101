"""`python -m regraft.simulate`: tell stories, and say what went wrong.

    python -m regraft.simulate 7                      one story of each kind, of seed 7
    python -m regraft.simulate --network 7 --trace    the one of many nodes, told for people
    python -m regraft.simulate --network --seeds 0..9999
    python -m regraft.simulate --churn --nodes 300 --seeds 0..99
    python -m regraft.simulate --network --bug no-guard --seeds 0..399
    python -m regraft.simulate --grove --seeds 0..9999
    python -m regraft.simulate --custody --seeds 0..9999       persistent messages between nodes
    python -m regraft.simulate --replies --seeds 0..9999
    python -m regraft.simulate --traces --seeds 0..9999
    python -m regraft.simulate --offers --seeds 0..9999        publishers that advertise
    python -m regraft.simulate --filters --seeds 0..9999       filters that guests bring
    python -m regraft.simulate --together --seeds 0..9999      all of the last four at once

A story of many nodes that fails is shortened: acts of its plan are left out as long as it fails in
the same way, and what is left is printed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from regraft.simulate.durable_story import DurableStory
from regraft.simulate.filter_story import FilterStory, filter_plan
from regraft.simulate.grove_story import GroveStory
from regraft.simulate.network_story import NetworkStory
from regraft.simulate.offer_story import OfferStory, offer_plan
from regraft.simulate.plan import MODES, Plan, churn_plan, make_plan
from regraft.simulate.reply_story import ReplyStory, reply_plan
from regraft.simulate.shrink import TRIES_MAX, shrink
from regraft.simulate.story import Story, complaints
from regraft.simulate.together_story import TogetherStory, together_plan
from regraft.simulate.trace_story import TraceStory, trace_plan


def tell(seed: int) -> list[str]:
    """A story of a node without a journal; the complaints."""
    story = Story(seed)
    story.tell()
    seen = sum(len(guest.seen) for guest in story.guests)
    print(f"seed {seed}: {len(story.guests)} guests, {seen} messages, {story.trace_hash[:16]}")
    return list(complaints(story))


def tell_durable(seed: int) -> list[str]:
    """A story of a node with one; the complaints."""
    story = DurableStory(seed)
    story.tell()
    happened = {**story.events, **story.ledger.counts}
    told = ", ".join(f"{count} {what}" for what, count in sorted(happened.items()) if count)
    print(f"seed {seed}: {len(story.regulars)} regulars, {told}, {story.trace_hash[:16]}")
    return story.complaints


def tell_grove(seed: int, bugs: frozenset[str], quiet: bool) -> list[str]:
    """A story of links that replace others, in a tree that only routes; the complaints."""
    story = GroveStory(seed, bugs)
    found = story.tell()
    if found or not quiet:
        print(f"seed {seed}: {story.about}, {story.grove.record.messages} messages")
    return [f"{one.kind}: {one.text}" for one in found]


@dataclass(frozen=True, slots=True)
class Told:
    """A kind of story of many nodes: how it is told."""

    kind: type[NetworkStory]
    plan: Callable[[int], Plan]
    about: str


STORIES = {
    "replies": Told(ReplyStory, reply_plan, "of questions and contexts"),
    "traces": Told(TraceStory, trace_plan, "of traces"),
    "offers": Told(OfferStory, offer_plan, "of publishers that advertise"),
    "filters": Told(FilterStory, filter_plan, "of filters that guests bring"),
    "together": Told(TogetherStory, together_plan, "of all of these at once"),
}


def tell_one(name: str, seed: int, how: tuple[frozenset[str], bool, bool, bool]) -> list[str]:
    """A story by its name: with bugs, traced, quiet, shortened if it fails; the complaints."""
    bugs, trace, quiet, shrinking = how
    told = STORIES[name]
    plan = told.plan(seed)
    story = told.kind(plan, bugs, print if trace else None)
    found = story.tell()
    if found or not quiet:
        print(f"seed {seed}: {story.about}, {story.trace_hash[:16]}")
    if found and shrinking:
        shorten(told.kind, plan, bugs, found[0].kind, TRIES_MAX)
    return [f"{one.kind}: {one.text}" for one in found]


def shorten(
    story: type[NetworkStory], plan: Plan, bugs: frozenset[str], kind: str, tries_max: int
) -> None:
    """Print the acts of a plan that are enough for a complaint."""

    def fails(other: Plan) -> bool:
        return any(found.kind == kind for found in story(other, bugs).tell())

    print("shortening ...", flush=True)
    short, tries = shrink(plan, fails, tries_max)
    print(f"{len(short.acts)} of {len(plan.acts)} acts are enough ({tries} tries):")
    print(short.told())
    for found in story(short, bugs).tell():
        print(f"  {found.kind}: {found.text}")


@dataclass(slots=True)
class Networks:
    """Stories of many nodes: how they are told, and what came of them."""

    nodes: int = 0
    mode: str = ""
    churn: bool = False
    bugs: frozenset[str] = frozenset()
    trace: bool = False
    shrinking: bool = True
    quiet: bool = False
    custody: bool = False
    tries_max: int = TRIES_MAX  # to shorten what fails
    converged_ms: list[float] = field(default_factory=list)
    totals: dict[str, int] = field(default_factory=dict)

    def plan(self, seed: int) -> Plan:
        """What happens by a seed."""
        if self.churn:
            return churn_plan(seed, self.nodes or 300)
        return make_plan(seed, self.mode, self.nodes, custody=self.custody)

    def tell(self, seed: int) -> list[str]:
        """One story; the complaints."""
        plan = self.plan(seed)
        story = NetworkStory(plan, self.bugs, print if self.trace else None)
        story.tell()
        counts = {**story.deliveries.counts, "attached": story.tree.attachments}
        counts |= {what: story.disks.counts.get(what, 0) for what in ("confirmed", "refused")}
        counts["due elsewhere"] = sum(map(len, story.disks.custodies.due.values()))
        for what, count in counts.items():
            self.totals[what] = self.totals.get(what, 0) + count
        if story.converged_ms >= 0:
            self.converged_ms.append(story.converged_ms)
        if not self.quiet or story.complaints:
            told = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
            settled = f", settled in {story.converged_ms:.0f} ms" if story.converged_ms >= 0 else ""
            print(f"seed {seed}: {story.about}, {told}{settled}, {story.trace_hash[:16]}")
        if story.complaints and self.shrinking:
            shorten(NetworkStory, plan, self.bugs, story.complaints[0].kind, self.tries_max)
        return [f"{found.kind}: {found.text}" for found in story.complaints]

    def summary(self) -> str:
        """All stories in a line."""
        told = ", ".join(f"{count} {what}" for what, count in self.totals.items())
        times = sorted(self.converged_ms)
        if not times:
            return told
        places = (len(times) // 2, len(times) * 99 // 100, -1)
        median, high, most = (times[place] for place in places)
        return f"{told}; settled in {median:.0f} ms (median), {high:.0f} (99 %), {most:.0f} (most)"


def seeds_of(words: Iterable[str]) -> Iterator[int]:
    """Numbers, and ranges such as 0..99."""
    for word in words:
        first, dots, last = word.partition("..")
        yield from range(int(first), int(last if dots else first) + 1)


def read(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m regraft.simulate", description="Tell stories; 1 if something is wrong."
    )
    add = parser.add_argument
    add("seed", nargs="*", default=[], help="a number, or a range such as 0..99")
    add("--seeds", action="append", default=[], metavar="A..B", help="the same")
    add("--network", action="store_true", help="only the story of many nodes")
    for name, told in STORIES.items():
        add(f"--{name}", action="store_true", help=f"only the story {told.about}")
    add("--grove", action="store_true", help="only the story of links that replace others")
    add("--custody", action="store_true", help="about persistent messages between nodes")
    add("--churn", action="store_true", help="very many nodes that come and go")
    add("--nodes", type=int, default=0, help="how many, instead of 3 to 20")
    add("--mode", choices=MODES, default="", help="of the story of many nodes")
    add("--bug", action="append", default=[], metavar="NAME", help="plant one in the nodes")
    add("--trace", action="store_true", help="say what happens")
    add("--whole", action="store_true", help="do not shorten what fails")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Tell stories of each seed; 1 if the checkers found anything."""
    asked = read(arguments)
    seeds = list(seeds_of([*asked.seed, *asked.seeds] or ["0"]))
    networks = Networks(
        asked.nodes,
        asked.mode,
        asked.churn,
        frozenset(asked.bug),
        asked.trace,
        not asked.whole,
        quiet=len(seeds) > 100,
        custody=asked.custody,
    )
    only = asked.custody or asked.network or asked.churn or asked.nodes or asked.mode or asked.bug
    tellers: list[Callable[[int], list[str]]] = [networks.tell]
    grove = partial(tell_grove, bugs=networks.bugs, quiet=networks.quiet)
    how = (networks.bugs, asked.trace, networks.quiet, networks.shrinking)
    others = {name: partial(tell_one, name, how=how) for name in STORIES}
    chosen = [others[name] for name in STORIES if getattr(asked, name)]
    if chosen:
        tellers = [*chosen]
    elif asked.grove:
        tellers = [grove]
    elif not only:
        tellers = [tell, tell_durable, networks.tell, grove, *others.values()]
    failed = 0
    for number, seed in enumerate(seeds, 1):
        for teller in tellers:
            found = teller(seed)
            for complaint in found:
                print(f"  {complaint}")
            failed += bool(found)
        if networks.quiet and number % 500 == 0:
            print(f"{number} seeds, {failed} failed", flush=True)
    if len(seeds) > 1:
        print(f"{len(seeds)} seeds, {failed} stories failed; {networks.summary()}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
