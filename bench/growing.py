"""One index that grows through the stages of a workload, measured on its way.

Runs in a process of its own, so that what is resident there is the index and little else. All
events are made before the first look at the memory; selectors are made a thousand at a time.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any

from bench.apart import overhead_us, rss_bytes, timed
from bench.workloads import WORKLOADS, Filter, Workload

CHUNK = 1_000  # plans made, then put in
PASSES = 9  # over the events; the least counts: what is above it, the machine added
PASS_EVENTS_MIN = 30
CHANGES = 20_000  # filters put in and taken out on top of the others
CHANGE_PASSES = 9
MIXES = 3  # rounds of events between changes; a delay that the index makes is in all of them
PARSED = 4_000  # the same with parsing, in each of three passes
SAMPLE = 20  # events whose matches are told, for others to compare with

Match = Callable[[bytes], list[int]]
Times = list[tuple[float, float]]  # on the wall, and of a processor, in µs


@dataclass(frozen=True)
class Order:
    """What to measure."""

    workload: str
    sizes: tuple[int, ...]
    size: int  # the one at which all is measured, not only the events
    events: int
    build_seconds: float  # more is not spent on building
    warm_seconds: float  # of events, after which it is seen whether the index became faster
    settle_seconds: float  # for that, at most
    pass_seconds: float  # of one pass over events, about
    mixed_seconds: float  # of events between changes


@dataclass(frozen=True)
class Point:
    """The events of one size, µs each."""

    size: int
    us: float
    passes: list[float]
    seen: int  # events before those that counted
    matches: float
    sample: list[list[int]]  # for the first events: the filters that match, by their place


@dataclass(frozen=True)
class Delay:
    """The most by which an event took longer than the same one usually does, in µs."""

    us: float  # processor time, between changes, in every round
    peace_us: float  # the same without changes: what the machine adds even so
    once_us: float  # processor time, between changes, in any round
    once_peace_us: float
    wall_us: float  # between changes, in any round, by the clock on the wall


def delay_of(peace: list[Times], between: list[Times]) -> Delay:
    """Rounds of the same events between the same changes: what the index makes is in all."""

    def most(which: int, rounds: list[Times], least: Callable[..., float]) -> float:
        each = zip(*([times[which] for times in one] for one in rounds), strict=True)
        return max(0.0, *(least(same) for same in each))

    return Delay(
        most(1, between, min),
        most(1, peace, min),
        most(1, between, max),
        most(1, peace, max),
        most(0, between, max),
    )


@dataclass(frozen=True)
class Changes:
    """Putting in and taking out, µs each: the least of the passes, and the passes."""

    insert_us: float
    remove_us: float
    inserts: list[float]
    removes: list[float]
    parsed_us: float | None  # text to index; None where there is no text
    delay: Delay


@dataclass
class Grown:
    """All about one workload."""

    workload: str
    points: list[Point] = field(default_factory=list)
    changes: Changes | None = None
    bytes_each: float | None = None  # beyond the text
    text_each: float = 0.0
    plan_us: float = 0.0  # on average while building
    insert_us: float = 0.0
    counters: dict[str, Any] = field(default_factory=dict)
    stopped: str = ""


class Builder:
    """Puts filters into an index; knows under which number each went."""

    def __init__(self, size: int) -> None:
        from regraft.kernels.matching import Index
        from regraft.kernels.plan import plan_of

        self.index = Index()
        self.plan_of = plan_of
        self.numbers = array("q", range(size))  # written to, so that it is resident from now on
        self.count = 0
        self.text_bytes = 0
        self.plan_seconds = 0.0
        self.insert_seconds = 0.0

    def prepared(self, filters: list[Filter]) -> list[tuple[Any, bytes, bool]]:
        """The arguments of `add`."""
        texts = [each.text() for each in filters]
        begin = time.perf_counter()
        plans = [self.plan_of(text) if text else None for text in texts]
        self.plan_seconds += time.perf_counter() - begin
        self.text_bytes += sum(map(len, texts)) + sum(len(each.pattern) for each in filters)
        both = zip(filters, plans, strict=True)
        return [(plan, each.pattern.encode(), each.exact) for each, plan in both]

    def put(self, filters: Iterator[Filter], each_chunk: Callable[[], None] | None = None) -> None:
        """Put them in, a chunk at a time."""
        add, numbers = self.index.add, self.numbers
        while chunk := list(islice(filters, CHUNK)):
            plans = self.prepared(chunk)
            count = self.count
            begin = time.perf_counter()
            for plan, pattern, exact in plans:
                numbers[count] = add(plan, pattern, exact)
                count += 1
            self.insert_seconds += time.perf_counter() - begin
            self.count = count
            if each_chunk:
                each_chunk()

    def places(self, found: list[list[int]]) -> list[list[int]]:
        """Numbers of the index, as places in the order in which the filters were put in."""
        wanted: dict[int, list[int]] = {number: [] for each in found for number in each}
        for place, number in enumerate(islice(self.numbers, self.count)):
            if number in wanted:
                wanted[number].append(place)
        return [sorted(place for number in each for place in wanted[number]) for each in found]


# ------------------------------------------------------------------------------ events


def loop_us(match: Match, envelopes: list[bytes], rounds: int) -> float:
    """One pass, µs an event; the loop itself is in it."""
    begin = time.perf_counter()
    for _ in range(rounds):
        for envelope in envelopes:
            match(envelope)
    return (time.perf_counter() - begin) / len(envelopes) / rounds * 1e6


def stretch(match: Match, envelopes: Iterator[bytes], seconds: float) -> tuple[float, int]:
    """Events for so long: µs each, roughly, and how many."""
    begin, count = time.perf_counter(), 0
    while time.perf_counter() < begin + seconds:
        for envelope in islice(envelopes, 10):
            match(envelope)
        count += 10
    return (time.perf_counter() - begin) / count * 1e6, count


def settle(match: Match, envelopes: list[bytes], order: Order) -> tuple[float, int]:
    """Let the index see events until twice in a row it has become no faster by a twentieth."""
    turns = cycle(envelopes)
    best, seen = stretch(match, turns, order.warm_seconds)
    end = time.perf_counter() + order.settle_seconds
    idle = 0
    while idle < 2 and time.perf_counter() < end:
        us, count = stretch(match, turns, order.warm_seconds)
        seen += count
        idle = idle + 1 if us > 0.95 * best else 0
        best = min(best, us)
    return best, seen


def measure_events(builder: Builder, order: Order, size: int, envelopes: list[bytes]) -> Point:
    """Let it settle, then so many passes without the collector."""
    match = builder.index.match
    rough, seen = settle(match, envelopes, order)
    count = max(PASS_EVENTS_MIN, int(order.pass_seconds * 1e6 / rough))
    envelopes = envelopes[:count]
    rounds = max(1, count // len(envelopes))
    gc.collect()
    gc.disable()
    try:
        passes = [loop_us(match, envelopes, rounds) for _ in range(PASSES)]
    finally:
        gc.enable()
    matches = statistics.fmean(len(match(envelope)) for envelope in envelopes)
    sample = builder.places([match(envelope) for envelope in envelopes[:SAMPLE]])
    return Point(size, min(passes), passes, seen, matches, sample)


# ------------------------------------------------------------------------------ changes


def change(builder: Builder, plans: list[tuple[Any, bytes, bool]]) -> tuple[float, float]:
    """Put all in, take all out in another order; µs each."""
    add, release = builder.index.add, builder.index.release
    begin = time.perf_counter()
    numbers = [add(plan, pattern, exact) for plan, pattern, exact in plans]
    inserted = time.perf_counter() - begin
    random.Random(len(plans)).shuffle(numbers)
    begin = time.perf_counter()
    for number in numbers:
        release(number)
    removed = time.perf_counter() - begin
    return inserted / len(plans) * 1e6, removed / len(plans) * 1e6


def parse_and_put(builder: Builder, filters: list[Filter]) -> float:
    """From text to index, µs each."""
    add, plan_of = builder.index.add, builder.plan_of
    texts = [each.text() for each in filters]
    begin = time.perf_counter()
    numbers = [add(plan_of(text), b"") for text in texts]
    took = time.perf_counter() - begin
    for number in numbers:
        builder.index.release(number)
    return took / len(texts) * 1e6


def mix(
    builder: Builder, plans: list[tuple[Any, bytes, bool]], envelopes: list[bytes], events: int
) -> tuple[Times, Times]:
    """Events without changes, and between changes: how much longer than usual each took."""
    index = builder.index
    events = max(PASS_EVENTS_MIN, min(len(plans), events))
    step = -(-len(plans) // events)
    envelopes = envelopes[: max(PASS_EVENTS_MIN, events // 4)]
    usual = [
        [statistics.median(times) for times in zip(*several, strict=True)]
        for several in ([timed(index.match, one) for _ in range(5)] for one in envelopes)
    ]
    turns = cycle(range(len(envelopes)))
    delays: Times = []

    def look() -> None:
        which = next(turns)
        wall, worked = timed(index.match, envelopes[which])
        delays.append((wall - usual[which][0], worked - usual[which][1]))

    for _ in range(0, 2 * len(plans), step):
        look()
    peace, delays = delays, []
    numbers: list[int] = []
    for begin in range(0, len(plans), step):
        for plan, pattern, exact in plans[begin : begin + step]:
            numbers.append(index.add(plan, pattern, exact))
        look()
    for begin in range(0, len(numbers), step):
        for number in numbers[begin : begin + step]:
            index.release(number)
        look()
    return peace, delays


def measure_changes(
    builder: Builder, workload: Workload, stage: int, envelopes: list[bytes], events: int
) -> Changes:
    """All about putting in and taking out, on top of what is there."""
    changes = min(CHANGES, workload.sizes[stage])
    parsed = min(PARSED, changes)
    spare = workload.spare(stage, changes + 3 * parsed)
    plans = builder.prepared(spare[:changes])
    gc.collect()
    gc.disable()
    try:
        passes = [change(builder, plans) for _ in range(CHANGE_PASSES)]
        inserts, removes = ([one[i] for one in passes] for i in (0, 1))
        with_text = None
        if spare[0].terms:
            rest = spare[changes:]
            parts = [rest[i * parsed : (i + 1) * parsed] for i in range(3)]
            with_text = min(parse_and_put(builder, part) for part in parts)
        rounds = [mix(builder, plans, envelopes, events) for _ in range(MIXES)]
    finally:
        gc.enable()
    return Changes(
        min(inserts),
        min(removes),
        inserts,
        removes,
        with_text,
        delay_of(*map(list, zip(*rounds, strict=True))),
    )


# ------------------------------------------------------------------------------ all


def measure(order: Order) -> Grown:
    """Everything about one workload."""
    workload = WORKLOADS[order.workload](order.sizes)
    events = [
        [event.envelope for event in workload.events(stage, order.events)]
        for stage in range(len(order.sizes))
    ]
    grown = Grown(order.workload)
    builder = Builder(order.sizes[-1])
    builder.prepared(workload.spare(0, CHUNK))  # what parsing itself needs is resident, too
    overhead_us(1_000)
    builder.text_bytes = 0
    builder.plan_seconds = 0.0
    before = rss_bytes()
    spent = 0.0
    for stage, size in enumerate(order.sizes):
        if stage and spent / builder.count * size > order.build_seconds:
            each = spent / builder.count * 1e6
            grown.stopped = f"{size} filters take too long to build, at {each:.0f} µs each"
            break
        begin = time.perf_counter()
        builder.put(workload.filters(stage))
        spent += time.perf_counter() - begin
        grown.plan_us = builder.plan_seconds / size * 1e6
        point = measure_events(builder, order, size, events[stage])
        grown.points.append(point)
        if size == order.size:
            grown.bytes_each = (rss_bytes() - before - builder.text_bytes) / size
            grown.counters = builder.index.snapshot()
            texts, plans = builder.text_bytes, builder.plan_seconds
            mixed = int(order.mixed_seconds * 1e6 / 2 / point.us)
            grown.changes = measure_changes(builder, workload, stage, events[stage], mixed)
            builder.text_bytes, builder.plan_seconds = texts, plans
    grown.text_each = builder.text_bytes / builder.count
    grown.insert_us = builder.insert_seconds / builder.count * 1e6
    return grown
