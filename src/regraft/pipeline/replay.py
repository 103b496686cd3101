"""From an archive back into the bus: a slice of history, exactly once, in its old order.

Rules:

- A replay has a name, and is done once: who runs it again goes on where it was, or finds it done.
  Its plan is written down when it begins (`replays/NAME/plan.json`): the slice, the target, how
  far the archive went, and the edges in time at which it is divided into steps. So a step has the
  same messages whenever it is done.
- A step is a batch of the sink `replay-NAME`: staged, then committed, and a node that has it
  already says so. Messages of a step are in the order in which the node took them.
- At the old pace a step is sent when its time has come, counted from when this run began.
- Messages keep their topic (or get another), body, attributes, context and headers, also the time
  at which they were published. They get new ids, and the node takes them now.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from regraft.client.payload import HEADERS
from regraft.errors import LocalError
from regraft.model.topics import check_topic
from regraft.pipeline.archive import Archive
from regraft.pipeline.jobs import Progress, Say, silent
from regraft.pipeline.link import Link
from regraft.pipeline.sink import PASSED_OVER
from regraft.pipeline.slices import Slice, body_of

FOLDER = "replays"
NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")
STEP_ROWS = 200_000
SECOND_US = 1_000_000
# What a header is when nobody has said anything.
USUAL = {"priority": "4", "type": "0", "compression": "0", "logging_method": "0",
         "report_delivery_error": "false", "include_original": "false"}  # fmt: skip
FLEETING = ("expiration_us", "deliver_at_us")


class Plan(msgspec.Struct):
    """What a replay is, fixed when it begins."""

    topics: str
    selector: str
    since_us: int
    until_us: int
    to: str
    fresh: bool
    journal: str  # of the node that gets it
    highs: dict[str, int]  # journal/stream: how far the archive went
    edges: list[int]
    rows: list[int]  # of each step
    headers: list[str]


@dataclass
class Replayed:
    """What a run has done."""

    name: str
    rows: int = 0
    steps: int = 0
    known: int = 0  # steps that were done before
    seconds: float = 0.0
    late_s: float = 0.0  # by which the slowest step missed its time


def replay(
    archive: Archive,
    wanted: Slice,
    url: str | None = None,
    to: str = "{topic}",
    name: str = "",
    pace: float = 0.0,
    step_s: float = 1.0,
    fresh: bool = False,
    say: Say = silent,
    sleep: Callable[[float], object] = time.sleep,
) -> Replayed:
    """Publish a slice. `pace` is 0 for full speed, 1 for the old one, 10 for ten times as fast."""
    check_topic(to.replace("{topic}", "x"))
    if pace < 0 or step_s <= 0:
        raise LocalError("bad-configuration", "a pace is 0 or more, and a step takes some time")
    with Link(url) as link:
        journal = link.journal
    name = name or _name_of(archive, wanted, to, journal)
    if not NAME.fullmatch(name):
        raise LocalError("bad-configuration", "a replay's name has 1 to 40 letters, digits, - or _")
    plan = _planned(archive, wanted, to, name, journal, pace * step_s, fresh)
    first = _begun(archive, name)
    done = Replayed(name, known=min(first, len(plan.rows)))
    progress = Progress("replay", sum(plan.rows[first:]), say=say)
    for number in range(first, len(plan.rows)):
        if pace and plan.edges:
            due = (plan.edges[number] - plan.edges[first]) / (SECOND_US * pace)
            if due > progress.seconds:
                sleep(due - progress.seconds)
            done.late_s = max(done.late_s, progress.seconds - due)
        rows = _step(archive, plan, number, name, url) if plan.rows[number] else 0
        archive.store.make(f"{FOLDER}/{name}/{number:08d}.done", b"%d" % rows)
        done.rows += rows
        done.steps += 1
        progress.step(plan.rows[number])
    done.seconds = progress.seconds
    return done


def _name_of(archive: Archive, wanted: Slice, to: str, journal: str) -> str:
    """The same for the same replay."""
    return sha256(repr((archive.store.root, wanted, to, journal)).encode()).hexdigest()[:16]


def _begun(archive: Archive, name: str) -> int:
    """The first step that is not done."""
    names = [one.name for one in archive.store.list(f"{FOLDER}/{name}")]
    return max((int(one[:8]) + 1 for one in names if one[0] != "." and one.endswith(".done")),
               default=0)  # fmt: skip


# ----------------------------------------------------------------------------------- plan


def _planned(
    archive: Archive, wanted: Slice, to: str, name: str, journal: str, step_s: float, fresh: bool
) -> Plan:
    path = f"{FOLDER}/{name}/plan.json"
    if not archive.store.there(path):
        plan = _plan(archive, wanted, to, journal, step_s, fresh)
        archive.store.make(path, msgspec.json.encode(plan))
    plan = msgspec.json.decode(archive.store.read(path), type=Plan)
    asked = (wanted.topics, wanted.selector, wanted.since_us, wanted.until_us, to, fresh)
    if asked != (plan.topics, plan.selector, plan.since_us, plan.until_us, plan.to, plan.fresh):
        raise LocalError(
            "bad-configuration",
            f"replay {name!r} was begun with another slice or target: give this one another --name",
        )
    if plan.journal != journal:
        raise LocalError(
            "other-journal",
            f"replay {name!r} goes to journal {plan.journal}, and this node has {journal}: give "
            "this one another --name",
        )
    return plan


def _plan(
    archive: Archive, wanted: Slice, to: str, journal: str, step_s: float, fresh: bool
) -> Plan:
    """Look through the slice once: when its messages were, and which headers they have."""
    highs = {f"{held.journal}/{held.stream}": held.high for held in archive.state.streams}
    taken = HEADERS.keys() - PASSED_OVER - frozenset(FLEETING if fresh else ())
    headers = [name for name in archive.schema.names if name in taken]
    frame = _bounded(wanted.frame(archive), highs)
    second = F.floor(F.unix_micros("timestamp") / SECOND_US).alias("second")
    used = [F.bool_or(_is_said(name)).alias(name) for name in headers]
    used.append(F.bool_or(F.size("context") > 0).alias("context"))
    counted = frame.groupBy(second).agg(F.count("*").alias("rows"), *used).orderBy("second")
    edges: list[int] = []
    rows: list[int] = []
    said: set[str] = set()
    longest = max(1, round(step_s))
    for row in counted.toLocalIterator():
        said |= {name for name in (*headers, "context") if row[name]}
        at = row.second * SECOND_US
        full = rows and rows[-1] + row.rows > STEP_ROWS
        if not rows or full or (step_s and at - edges[-1] >= longest * SECOND_US):
            edges.append(at)
            rows.append(0)
        rows[-1] += row.rows
    if edges:
        edges.append(at + SECOND_US)
    return Plan(wanted.topics, wanted.selector, wanted.since_us, wanted.until_us, to, fresh,
                journal, highs, edges, rows, sorted(said))  # fmt: skip


def _is_said(name: str) -> Column:
    column = F.col(f"`{name}`")
    return (
        column.isNotNull() & (column != F.expr(USUAL[name]))
        if name in USUAL
        else column.isNotNull()
    )


def _bounded(frame: DataFrame, highs: dict[str, int]) -> DataFrame:
    """Only what the archive had when the replay was planned."""
    key = F.concat("journal", F.lit("/"), "stream")
    none = F.lit(0).cast("bigint")
    bound = none
    for name, high in highs.items():
        bound = F.when(key == name, F.lit(high)).otherwise(bound)
    return frame.where(F.col("sequence") < bound)


# ----------------------------------------------------------------------------------- step


def _step(archive: Archive, plan: Plan, number: int, name: str, url: str | None) -> int:
    """Stage and commit one step; how many messages it has."""
    low, high = plan.edges[number], plan.edges[number + 1]
    low, high = max(low, plan.since_us), min(high, plan.until_us or high)
    wanted = Slice(plan.topics, plan.selector, low, high)
    frame = _bounded(wanted.frame(archive), plan.highs)
    before, _, behind = plan.to.partition("{topic}")
    topic = (
        F.concat(F.lit(before), "topic", F.lit(behind)) if "{topic}" in plan.to else F.lit(plan.to)
    )
    columns: list[Any] = [topic.alias("topic"), body_of(), "attributes", "timestamp_us"]
    columns += [f"`{one}`" for one in plan.headers]
    ordered = frame.orderBy("timestamp", "journal", "stream", "sequence").select(*columns)
    output = ordered.write.format("regraft").option("once", f"replay-{name}/{number}")
    output = output.option("url", url) if url else output
    output.mode("append").save()
    return plan.rows[number]
