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


def tell_replies(seed: int, bugs: frozenset[str], trace: bool, quiet: bool) -> list[str]:
    """A story of questions, replies and contexts; the complaints."""
    story = ReplyStory(reply_plan(seed), bugs, print if trace else None)
    found = story.tell()
    if found or not quiet:
        told = ", ".join(f"{count} {what}" for what, count in story.answers.counts.items())
        print(f"seed {seed}: questions at {story.plan.nodes} nodes, {story.plan.mode}, {told}")
    return [f"{one.kind}: {one.text}" for one in found]


def tell_traces(seed: int, bugs: frozenset[str], trace: bool, quiet: bool) -> list[str]:
    """A story of traces; the complaints."""
    story = TraceStory(trace_plan(seed), bugs, print if trace else None)
    found = story.tell()
    if found or not quiet:
        reports = sum(len(told.reports) for told in story.traces)
        told = f"{len(story.traces)} traces, {reports} reports"
        print(f"seed {seed}: traces at {story.plan.nodes} nodes, {told}")
    return [f"{one.kind}: {one.text}" for one in found]


def tell_offers(seed: int, bugs: frozenset[str], trace: bool, quiet: bool) -> list[str]:
    """A story of publishers that advertise; the complaints."""
    story = OfferStory(offer_plan(seed), bugs, print if trace else None)
    found = story.tell()
    if found or not quiet:
        by = "routed by offers" if story.plan.advertisements else "told of demand"
        acts = f"{story.counts.get('offer', 0)} offers, {story.silenced} messages not published"
        print(f"seed {seed}: {story.plan.nodes} nodes, {by}, {story.plan.mode}, {acts}")
    return [f"{one.kind}: {one.text}" for one in found]


def tell_filters(seed: int, bugs: frozenset[str], trace: bool, quiet: bool) -> list[str]:
    """A story of filters that guests bring; the complaints."""
    story = FilterStory(filter_plan(seed), bugs, print if trace else None)
    found = story.tell()
    if found or not quiet:
        counts = {**story.deliveries.counts, "not spared": story.spared}
        told = ", ".join(f"{count} {what}" for what, count in counts.items())
        print(f"seed {seed}: filters that {story.knowledge} know of {story.plan.nodes}, {told}")
    return [f"{one.kind}: {one.text}" for one in found]


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
            about = f"{plan.nodes} nodes, {plan.mode}, {told}{settled}"
            print(f"seed {seed}: {about}, {story.trace_hash[:16]}")
        if story.complaints and self.shrinking:
            self._shrink(plan, story.complaints[0].kind)
        return [f"{found.kind}: {found.text}" for found in story.complaints]

    def _shrink(self, plan: Plan, kind: str) -> None:
        def fails(other: Plan) -> bool:
            return any(found.kind == kind for found in NetworkStory(other, self.bugs).tell())

        print("shortening ...", flush=True)
        short, tries = shrink(plan, fails, self.tries_max)
        print(f"{len(short.acts)} of {len(plan.acts)} acts are enough ({tries} tries):")
        print(short.told())
        for found in NetworkStory(short, self.bugs).tell():
            print(f"  {found.kind}: {found.text}")

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
    add("--replies", action="store_true", help="only the story of questions and contexts")
    add("--traces", action="store_true", help="only the story of traces")
    add("--offers", action="store_true", help="only the story of publishers that advertise")
    add("--filters", action="store_true", help="only the story of filters that guests bring")
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
    replies = partial(tell_replies, bugs=networks.bugs, trace=asked.trace, quiet=networks.quiet)
    traces = partial(tell_traces, bugs=networks.bugs, trace=asked.trace, quiet=networks.quiet)
    offers = partial(tell_offers, bugs=networks.bugs, trace=asked.trace, quiet=networks.quiet)
    filters = partial(tell_filters, bugs=networks.bugs, trace=asked.trace, quiet=networks.quiet)
    if asked.filters:
        tellers = [filters]
    elif asked.grove:
        tellers = [grove]
    elif asked.traces:
        tellers = [traces]
    elif asked.offers:
        tellers = [offers]
    elif asked.replies:
        tellers = [replies]
    elif not only:
        tellers = [tell, tell_durable, networks.tell, grove, replies, traces, offers, filters]
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
