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

More than ten seeds are told on all processors (--jobs). Of more than a hundred only those that
fail say something. A story of many nodes that fails is shortened: acts of its plan are left out as
long as it fails in the same way, and what is left is printed.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import Pool

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

MANY = 100  # seeds; of more than these only what is wrong is said
FEW = 10  # which are not worth more processes
JOBS = f"if nothing is said, as many as there are processors, for more than {FEW} seeds"
IGNORED = (signal.SIGINT, signal.SIG_IGN)  # by workers: the one who asked them deals with it


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

    def add(self, other: Networks) -> None:
        """What came of others, too."""
        for what, count in other.totals.items():
            self.totals[what] = self.totals.get(what, 0) + count
        self.converged_ms += other.converged_ms

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
    add("--jobs", type=int, default=0, metavar="N", help=f"seeds at a time; {JOBS}")
    asked = parser.parse_args(arguments)
    try:
        asked.seeds = list(seeds_of([*asked.seed, *asked.seeds] or ["0"]))
    except ValueError:
        parser.error("a seed is a number, or a range such as 0..99")
    if not asked.seeds:
        parser.error("there is no seed in that range")
    if asked.jobs < 0 or asked.nodes < 0:
        parser.error("there cannot be less than none")
    if asked.trace and asked.jobs > 1:
        parser.error("--trace is for one story after the other: --jobs 1")
    return asked


def tellers(asked: argparse.Namespace, networks: Networks) -> list[Callable[[int], list[str]]]:
    """Those who tell what was asked for."""
    only = asked.custody or asked.network or asked.churn or asked.nodes or asked.mode or asked.bug
    grove = partial(tell_grove, bugs=networks.bugs, quiet=networks.quiet)
    how = (networks.bugs, asked.trace, networks.quiet, networks.shrinking)
    others = {name: partial(tell_one, name, how=how) for name in STORIES}
    chosen = [others[name] for name in STORIES if getattr(asked, name)]
    if chosen:
        return [*chosen]
    if asked.grove:
        return [grove]
    if only:
        return [networks.tell]
    return [tell, tell_durable, networks.tell, grove, *others.values()]


@dataclass(slots=True)
class Result:
    """What came of a seed."""

    seed: int
    failed: int  # stories
    networks: Networks
    said: str = ""  # if it was not printed at once


def tell_seed(asked: argparse.Namespace, seed: int) -> Result:
    """All stories of a seed that were asked for; what is wrong is printed."""
    networks = Networks(
        asked.nodes,
        asked.mode,
        asked.churn,
        frozenset(asked.bug),
        asked.trace,
        not asked.whole,
        quiet=len(asked.seeds) > MANY,
        custody=asked.custody,
    )
    result = Result(seed, 0, networks)
    for teller in tellers(asked, networks):
        try:
            found = teller(seed)
        except Exception:  # of a node or of the simulator: the other seeds go on
            print(f"seed {seed}:")
            found = traceback.format_exc().splitlines()
        for complaint in found:
            print(f"  {complaint}")
        result.failed += bool(found)
    return result


def tell_apart(asked: argparse.Namespace, seed: int) -> Result:
    """The same in a process of its own, which keeps what is printed."""
    with redirect_stdout(io.StringIO()) as said:
        result = tell_seed(asked, seed)
    result.said = said.getvalue()
    return result


def tell_all(asked: argparse.Namespace) -> Generator[Result, None, None]:
    """All seeds, in order."""
    jobs = asked.jobs or ((os.cpu_count() or 1) if len(asked.seeds) > FEW else 1)
    if jobs == 1 or asked.trace:
        yield from map(partial(tell_seed, asked), asked.seeds)
        return
    with Pool(jobs, initializer=signal.signal, initargs=IGNORED) as pool:
        for result in pool.imap(partial(tell_apart, asked), asked.seeds):
            print(result.said, end="")
            yield result


def main(arguments: list[str]) -> int:
    """Tell stories of each seed; 1 if the checkers found anything."""
    asked = read(arguments)
    count = len(asked.seeds)
    networks, failed, told = Networks(), 0, 0
    failures: list[int] = []
    results = tell_all(asked)
    try:
        for told, result in enumerate(results, 1):
            networks.add(result.networks)
            failed += result.failed
            failures += [result.seed] if result.failed else []
            if count > MANY:
                progress(told, count, failed)
    except KeyboardInterrupt:
        print(f"interrupted, {told} of {count} seeds were told", file=sys.stderr)
        results.close()
    if count > 1:
        print(f"{told} seeds, {failed} stories failed; {networks.summary()}")
    if failures and count > MANY:
        print(f"seeds that failed: {' '.join(map(str, failures))}")
    if told < count:
        return 130
    return 1 if failed else 0


def progress(told: int, count: int, failed: int) -> None:
    """Say how far it is: in one line for people, now and then in a file."""
    if sys.stderr.isatty():
        end = "\n" if told == count else "\r"
        print(f"{told} of {count} seeds, {failed} failed", end=end, file=sys.stderr, flush=True)
    elif told % 500 == 0:
        print(f"{told} seeds, {failed} failed", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
