"""What selectors would have matched: one or a hundred thousand of them, against an archive.

Rules:

- The node's own match index decides (`kernels/matching`), so the result is that of a node. Each
  worker of Spark builds it once from the texts that are broadcast, and keeps it.
- Selectors that only compare attributes and the topic with values take a batch of messages at once,
  straight from its columns (`kernels/sweep`). They come first among the filters. Of each batch a
  few messages go one by one, so that the index learns.
- For the others (patterns, arithmetic, headers, ...) messages become frames: from columns, without
  a Python object for each, if they ask for topics and attributes only, else row by row.
- Where Arrow knows the file system, tasks read files with it; elsewhere Spark reads and hands
  batches over (`mapInArrow`, which needs pandas). Both do the same with them.
- Topics of a slice choose rows before anything is matched. Its selector is one more selector, which
  counts the messages, and a part of each of the others.
- Matches are counted for each selector and part of time. Which selectors match together is counted
  on a sample.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from itertools import combinations, groupby, islice
from operator import itemgetter
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from regraft.errors import LocalError
from regraft.kernels.matching import Index
from regraft.kernels.outbox import Outbox
from regraft.kernels.plan import TEST, Plan, is_plain, plan_of
from regraft.kernels.rows import STRING, Rows
from regraft.kernels.sweep import Sweep
from regraft.kernels.tally import Tally
from regraft.model.message import Message
from regraft.model.selector import NameKind, Selector
from regraft.model.selector.ast import names
from regraft.pipeline.archive import Archive
from regraft.pipeline.jobs import Say, silent
from regraft.pipeline.sink import Layout, cells_of, entries_of
from regraft.pipeline.slices import Slice
from regraft.pipeline.store import arrow_knows, filesystem

SELECTORS_MAX = 1_000_000
SLOTS_MAX = 200
CELLS_MAX = 50_000_000  # selectors times slots
TOGETHER_MAX = 100  # selectors of one message of which pairs are made
SAMPLE = 10_000  # messages on which pairs are counted, about
PAIRS_MAX = 100_000  # that a result has, the most frequent ones
FRAME_BYTES_MAX = 64 << 20
BATCH_ROWS = 131_072  # the more, the more messages share a look at a selector
LEARNT_FIRST, LEARNT = 8_192, 1_024  # rows that go one by one: at first, then of each batch
OUT = "kind int, a int, b int, n bigint"
COUNTED = pa.schema([("kind", pa.int32()), ("a", pa.int32()), ("b", pa.int32()), ("n", pa.int64())])
MATCHES, PAIRS, EVENTS, SAMPLED, BUILD_US, RUN_US = range(6)
WIDTHS_S = (1, 10, 60, 600, 3600, 6 * 3600, 86_400, 7 * 86_400, 30 * 86_400)
# What a selector calls a header, and the columns that say it; the topic is always there.
COLUMNS = {
    "type": ("type", "type_name"), "priority": ("priority",), "timestamp": ("timestamp_us",),
    "expiration": ("expiration_us",), "correlation": ("correlation",), "reply_to": ("reply_to",),
    "from": ("sender",), "size": ("size",), "delivery_mode": (), "redelivered": (), "topic": (),
}  # fmt: skip


class Work(msgspec.Struct):
    """What all tasks need to know."""

    key: str
    start_us: int
    width_us: int
    slots: int
    filters: int
    plain: int  # how many of them, the first ones, are matched from columns
    every: int
    columns: list[str]
    since_us: int = 0
    until_us: int = 0
    topics: str = ""  # a selector of nothing but them


class Piece(msgspec.Struct):
    """Row groups of a file."""

    root: str
    path: str
    groups: list[int]


@dataclass
class Counted:
    """What a task has counted: matches by filter, for each slot from the first one on."""

    first: int
    counts: bytes  # four for each
    pairs: pa.Table  # as `pairs_of` makes it
    events: int
    sampled: int
    build_us: int
    run_us: int


@dataclass
class Result:
    """What came out. Selectors are numbered as they were given, from 0."""

    selectors: list[str]
    filter_of: list[int]  # equal selectors share one
    costs: list[int]
    start_us: int
    width_us: int
    slots: int
    events: int
    sampled: int
    counts: pa.Table  # filter, slot, matches
    pairs: list[tuple[int, int, int]]  # filters that matched together, in the sample
    build_s: float  # to make the index, the slowest worker
    run_s: float  # processor time of matching and reading, all tasks
    seconds: float = 0.0  # all in all
    scan_s: float = 0.0  # of the job that looked at the messages
    totals: list[int] = field(default_factory=list)  # by filter

    def matches(self, selector: int) -> int:
        """How many messages a selector matched."""
        return self.totals[self.filter_of[selector]]

    @property
    def all_matches(self) -> int:
        """How many matches all selectors had."""
        return sum(self.totals[one] for one in self.filter_of)

    def over_time(self, selector: int) -> dict[int, int]:
        """Matches by slot."""
        rows = self.counts.filter(pc.equal(self.counts["filter"], self.filter_of[selector]))
        return dict(zip(rows["slot"].to_pylist(), rows["matches"].to_pylist(), strict=True))

    @property
    def never(self) -> list[int]:
        """The selectors that matched nothing."""
        return [n for n in range(len(self.selectors)) if not self.matches(n)]

    def busiest(self, count: int) -> list[int]:
        """Those that matched most."""
        return sorted(range(len(self.selectors)), key=lambda n: (-self.matches(n), n))[:count]

    def dearest(self, count: int) -> list[int]:
        """Those that need most comparisons for one message."""
        return sorted(range(len(self.selectors)), key=lambda n: (-self.costs[n], n))[:count]


def read_selectors(text: str, name: str = "the file") -> list[str]:
    """One selector a line; empty lines, and those that begin with `--`, are passed over."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if line and not line.startswith("--"):
            try:
                plan_of(line)
            except LocalError as error:
                raise LocalError("bad-selector", f"{name}, line {number}: {error.text}") from None
            found.append(line)
    if not found:
        raise LocalError("bad-selector", f"{name} has no selector; write one a line")
    return found


def price(plan: Plan) -> int:
    """About how many comparisons a selector is worth, for one message."""
    return sum(term[4] if term[0] == TEST else 1 for terms in plan.conjunctions for term in terms)


# ---------------------------------------------------------------------------------- driver


def backtest(
    archive: Archive,
    selectors: Sequence[str],
    wanted: Slice | None = None,
    slot_s: float = 0.0,
    sample: int = SAMPLE,
    by_spark: bool | None = None,
    say: Say = silent,
) -> Result:
    """Match selectors against a slice of an archive."""
    began = time.monotonic()
    wanted = wanted or Slice()
    if not 0 < len(selectors) <= SELECTORS_MAX:
        raise LocalError("limit-exceeded", f"give 1 to {SELECTORS_MAX:,} selectors")
    only = Slice(selector=wanted.selector).text
    plans = [plan_of(f"({only}) AND ({text})" if only else text) for text in selectors]
    if only:
        plans.append(plan_of(only))
    plain = {plan.text: is_plain(plan) for plan in plans}
    texts = sorted(plain, key=lambda text: not plain[text])
    numbers = {text: number for number, text in enumerate(texts)}
    filter_of = [numbers[plan.text] for plan in plans[: len(selectors)]]
    costs = [price(plan) for plan in plans[: len(selectors)]]
    base = numbers[plans[-1].text]
    say(f"backtest: {len(selectors):,} selectors, {len(set(filter_of)):,} of them different")
    files = wanted.files(archive)
    events = sum(file.rows for file in files)
    start, width, slots = _slots(files, wanted, slot_s, len(texts))
    work = Work(
        sha256("\n".join(texts).encode()).hexdigest(), start, width, slots, len(texts),
        sum(plain.values()), max(1, events // sample) if sample else 0, columns_of(plans),
        wanted.since_us, wanted.until_us, Slice(topics=wanted.topics).text,
    )  # fmt: skip
    spark = archive.spark
    broadcast = spark.sparkContext.broadcast(texts)
    scanned = time.monotonic()
    if by_spark is None:
        by_spark = not arrow_knows(archive.store.root)
    if by_spark:
        frame = archive.frame(files, wanted.since_us, wanted.until_us)
        frame = frame.select("timestamp", *(f"`{one}`" for one in work.columns))
        counted = _added(work, frame.mapInArrow(partial(_match_rows, work, broadcast), OUT))
    else:
        pieces = _pieces(archive, files)
        parts = max(1, min(len(pieces), spark.sparkContext.defaultParallelism))
        shares = [pieces[k * len(pieces) // parts : (k + 1) * len(pieces) // parts]
                  for k in range(parts)]  # fmt: skip
        tasks = spark.sparkContext.parallelize(shares, parts)
        counted = tasks.map(partial(_match_files, work, broadcast)).collect()
    result = _collected(counted, selectors, filter_of, costs, work)
    if only:
        result.events = result.totals[base]
        result.pairs = [one for one in result.pairs if base not in one[:2] or base in filter_of]
    broadcast.unpersist()
    result.scan_s = time.monotonic() - scanned
    result.seconds = time.monotonic() - began
    say(
        f"backtest: {result.events:,} messages, {result.all_matches:,} matches in "
        f"{result.scan_s:.1f} s, {result.events / max(result.scan_s, 1e-9):,.0f} messages/s "
        f"(index {result.build_s:.1f} s, reading and matching {result.run_s:.1f} s of processors)"
    )
    return result


def _slots(
    files: Sequence[Any], wanted: Slice, slot_s: float, filters: int
) -> tuple[int, int, int]:
    """Where time begins, how long its parts are, and how many."""
    start = max(wanted.since_us, min((file.first_us for file in files), default=0))
    end = max((file.last_us for file in files), default=start) + 1
    end = max(start + 1, min(end, wanted.until_us or end))
    most = max(1, min(SLOTS_MAX, CELLS_MAX // filters))
    if slot_s:
        width = round(slot_s * 1_000_000)
        if width <= 0 or -(-(end - start) // width) + 1 > most:
            raise LocalError(
                "limit-exceeded",
                f"parts of {slot_s:g} s are too many for {filters:,} selectors: {most} at most",
            )
    else:
        widths = (one * 1_000_000 for one in WIDTHS_S)
        width = next((one for one in widths if (end - start) // one + 2 <= min(most, 50)),
                     end - start)  # fmt: skip
    start -= start % width
    return start, width, (end - 1 - start) // width + 1


def columns_of(plans: Iterable[Plan]) -> list[str]:
    """The columns that selectors ask for."""
    found: dict[str, None] = dict.fromkeys(("topic", "attributes"))
    for plan in plans:
        if "$" in plan.text or "ctx." in plan.text:
            for name in names(Selector.parse(plan.text).ast):
                if name.kind is NameKind.CONTEXT:
                    found["context"] = None
                elif name.kind is NameKind.HEADER:
                    found |= dict.fromkeys(COLUMNS[name.name])
    return list(found)


def _pieces(archive: Archive, files: Sequence[Any]) -> list[bytes]:
    """Row groups, so that tasks have about as much to do."""
    import pyarrow.parquet as pq

    found = []
    system, top = filesystem(archive.store.root)
    for file in files:
        with system.open_input_file(f"{top}/{file.path}") as source:
            groups = pq.ParquetFile(source).num_row_groups
        for group in range(groups):
            found.append(msgspec.json.encode(Piece(archive.store.root, file.path, [group])))
    return found


def _collected(
    parts: Iterable[Counted],
    selectors: Sequence[str],
    filter_of: list[int],
    costs: list[int],
    work: Work,
) -> Result:
    """Put together what all tasks have counted."""
    cells = work.filters * work.slots
    sums = pa.array([0], pa.int64()).take(pa.nulls(cells, pa.int32()).fill_null(0))
    pairs = [pairs_of([], work.filters)]
    events = sampled = build_us = run_us = 0
    for part in parts:
        sums = pc.add(sums, _padded(part, work))
        pairs.append(part.pairs)
        events += part.events
        sampled += part.sampled
        build_us = max(build_us, part.build_us)
        run_us += part.run_us
    where = pc.indices_nonzero(sums).cast(pa.int64())
    slots = pc.divide(where, work.filters)
    filters = pc.subtract(where, pc.multiply(slots, work.filters))
    matches = pa.table({"filter": filters, "slot": slots, "matches": sums.take(where)})
    totals = [0] * work.filters
    summed = matches.group_by("filter").aggregate([("matches", "sum")])
    for number, count in zip(
        summed["filter"].to_pylist(), summed["matches_sum"].to_pylist(), strict=True
    ):
        totals[number] = count
    return Result(
        list(selectors), filter_of, costs, work.start_us, work.width_us, work.slots, events,
        sampled, matches, _most_frequent(pa.concat_tables(pairs), work.filters), build_us / 1e6,
        run_us / 1e6, totals=totals,
    )  # fmt: skip


def _most_frequent(pairs: pa.Table, filters: int) -> list[tuple[int, int, int]]:
    """Pairs of all tasks, added up: two filters, and how often they matched together."""
    added = pairs.group_by("pair").aggregate([("count", "sum")])
    added = added.sort_by([("count_sum", "descending"), ("pair", "ascending")]).slice(0, PAIRS_MAX)
    columns = added["pair"].to_pylist(), added["count_sum"].to_pylist()
    return [(*divmod(pair, filters), count) for pair, count in zip(*columns, strict=True)]


def _padded(part: Counted, work: Work) -> Any:
    """What a task has counted, with zeros for the time that it has not seen."""
    there = pa.Array.from_buffers(pa.int32(), len(part.counts) // 4,
                                  [None, pa.py_buffer(part.counts)]).cast(pa.int64())  # fmt: skip
    before = part.first * work.filters
    behind = work.filters * work.slots - before - len(there)
    zeros = [pa.nulls(count, pa.int64()).fill_null(0) for count in (before, behind)]
    return pa.concat_arrays([zeros[0], there, zeros[1]])


def _added(work: Work, frame: Any) -> list[Counted]:
    """The same from rows, as Spark hands them on."""
    rows = frame.toArrow().group_by(["kind", "a", "b"]).aggregate([("n", "sum"), ("n", "max")])
    kinds = rows.filter(pc.equal(rows["kind"], PAIRS))
    codes = pc.add(pc.multiply(kinds["a"].cast(pa.int64()), work.filters), kinds["b"])
    pairs = pa.table({"pair": codes, "count": kinds["n_sum"]})
    found = Counted(0, bytes(4 * work.filters * work.slots), pairs, 0, 0, 0, 0)
    counts = bytearray(found.counts)
    cells = memoryview(counts).cast("i")
    columns = (rows[name].to_pylist() for name in ("kind", "a", "b", "n_sum", "n_max"))
    for kind, a, b, total, most in zip(*columns, strict=True):
        if kind == MATCHES:
            cells[b * work.filters + a] = total
        elif kind == EVENTS:
            found.events = total
        elif kind == SAMPLED:
            found.sampled = total
        elif kind == BUILD_US:
            found.build_us = most
        elif kind == RUN_US:
            found.run_us = total
    found.counts = bytes(counts)
    return [found]


# ----------------------------------------------------------------------------------- tasks

_built: dict[str, tuple[Index, Index]] = {}  # of this worker; one pair is enough


def _indexes(work: Work, broadcast: Any) -> tuple[tuple[Index, Index], int]:
    """Those of plain selectors and of others, and how long it took in µs: 0 if they were there."""
    held = _built.get(work.key)
    if held is not None:
        return held, 0
    began = time.perf_counter_ns()
    both = Index(), Index()
    for number, text in enumerate(broadcast.value):
        plan = plan_of(text)
        plain = number < work.plain
        assert plain == is_plain(plan), text
        added = both[0 if plain else 1].add(plan)
        assert added == (number if plain else number - work.plain), (added, number)
    _built.clear()
    _built[work.key] = both
    return both, (time.perf_counter_ns() - began) // 1000


class Matcher:
    """Counts the matches of batches."""

    def __init__(self, work: Work, indexes: tuple[Index, Index]) -> None:
        self.work = work
        self.index = indexes[0]
        self.plain = Tally(indexes[0], work.plain, work.slots, work.every)
        self.others = Tally(indexes[1], work.filters - work.plain, work.slots, work.every)
        self.sweep = Sweep(self.plain)
        self.encode: Any = None
        self.seen = 0

    def take(self, batch: pa.RecordBatch, slots: bytes) -> None:
        """Count a batch; `slots` has four bytes for each row."""
        self.encode = self.encode or encoder(batch.schema)
        rows = batch.num_rows
        if self.work.plain:
            known = self.index.facts.now >= LEARNT_FIRST
            learnt = min(rows // 4, LEARNT if known else LEARNT_FIRST)
            done = self.plain.run(self.encode(batch.slice(0, learnt)), slots[: 4 * learnt])
            topics, maps = batch.column("topic"), batch.column("attributes")
            done += self.sweep.run(learnt, rows, cells_of(topics, STRING), entries_of(maps), slots)
            assert done == rows, (done, rows)
        if self.work.plain < self.work.filters:
            done = self.others.run(self.encode(batch), slots)
            assert done == rows, (done, rows)
        self.seen += rows

    def counted(self, first: int, last: int) -> bytes:
        """Matches by slot and filter, of these slots."""
        both = [(one.counted(), 4 * one.filters) for one in (self.plain, self.others)]
        return b"".join(
            counts[slot * size : (slot + 1) * size]
            for slot in range(first, last + 1)
            for counts, size in both
        )

    def pairs(self) -> pa.Table:
        """How often two filters matched the same message of the sample."""
        rows, filters = _numbers(self.plain.kept())
        other_rows, other_filters = _numbers(self.others.kept())
        rows += other_rows
        filters += [number + self.work.plain for number in other_filters]
        return pairs_of(sorted(zip(rows, filters, strict=True)), self.work.filters)


def _numbers(kept: tuple[bytes, bytes]) -> list[list[int]]:
    return [memoryview(part).cast("i").tolist() for part in kept]


def _match_files(work: Work, broadcast: Any, pieces: list[bytes]) -> Counted:
    """In a task: read pieces of files, and match them."""
    read = _read(work, [msgspec.json.decode(piece, type=Piece) for piece in pieces])
    return _match(work, broadcast, read)


def _match_rows(
    work: Work, broadcast: Any, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """In a task: match what Spark has read; what was counted, as rows."""
    done = _match(work, broadcast, batches)
    counts = memoryview(done.counts).cast("i").tolist()
    cells = [(k, n) for k, n in enumerate(counts) if n]
    filters = [k % work.filters for k, _ in cells]
    slots = [done.first + k // work.filters for k, _ in cells]
    yield _out(MATCHES, filters, slots, [n for _, n in cells])
    both = [divmod(pair, work.filters) for pair in done.pairs["pair"].to_pylist()]
    yield _out(PAIRS, [a for a, _ in both], [b for _, b in both],
               done.pairs["count"].to_pylist())  # fmt: skip
    for kind, number in ((EVENTS, done.events), (SAMPLED, done.sampled),
                         (BUILD_US, done.build_us), (RUN_US, done.run_us)):  # fmt: skip
        yield _out(kind, [0], [0], [number])


def _read(work: Work, pieces: Sequence[Piece]) -> Iterator[pa.RecordBatch]:
    import pyarrow.parquet as pq

    for piece in pieces:
        system, top = filesystem(piece.root)
        with system.open_input_file(f"{top}/{piece.path}") as source:
            file = pq.ParquetFile(source)
            names = ["timestamp", *work.columns]
            # Tasks are enough to keep all processors busy.
            for batch in file.iter_batches(BATCH_ROWS, piece.groups, names, use_threads=False):
                yield _in_time(work, batch)


def micros_of(batch: pa.RecordBatch) -> Any:
    """When messages were taken, whatever unit a file has."""
    return batch.column("timestamp").cast(pa.timestamp("us", "UTC")).cast(pa.int64())


def _in_time(work: Work, batch: pa.RecordBatch) -> pa.RecordBatch:
    if not work.since_us and not work.until_us:
        return batch
    micros = micros_of(batch)
    mask = pc.greater_equal(micros, work.since_us)
    if work.until_us:
        mask = pc.and_(mask, pc.less(micros, work.until_us))
    return batch.filter(mask)


def _of_topics(chosen: Selector, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with topics that are wanted; a batch has few different ones."""
    topics = batch.column("topic").dictionary_encode()
    wanted = [bool(chosen.matches(Message(topic))) for topic in topics.dictionary.to_pylist()]
    return batch.filter(pa.array(wanted, pa.bool_()).take(topics.indices))


def _match(work: Work, broadcast: Any, batches: Iterator[pa.RecordBatch]) -> Counted:
    """Match batches, and count."""
    indexes, build_us = _indexes(work, broadcast)
    matcher = Matcher(work, indexes)
    began = time.process_time_ns()  # a worker does one task at a time
    first, last = work.slots, 0
    chosen = Selector.parse(work.topics) if work.topics else None
    for batch in batches:
        if chosen is not None:
            batch = _of_topics(chosen, batch)
        if batch.num_rows:
            micros = micros_of(batch)
            slots = pc.divide(pc.subtract(micros, work.start_us), work.width_us).cast(pa.int32())
            bounds = pc.min_max(slots).as_py()
            first, last = min(first, bounds["min"]), max(last, bounds["max"])
            matcher.take(batch, _ints(slots))
    run_us = (time.process_time_ns() - began) // 1000
    first = min(first, last)
    sampled = -(-matcher.seen // work.every) if work.every else 0
    counts = matcher.counted(first, last)
    return Counted(first, counts, matcher.pairs(), matcher.seen, sampled, build_us, run_us)


def encoder(schema: pa.Schema) -> Any:
    """What makes frames of a batch: from columns if that is possible, else row by row."""
    from pyspark.sql.pandas.types import from_arrow_schema

    fields = [
        one for one in from_arrow_schema(schema).fields if one.name not in ("timestamp", "size")
    ]
    layout = Layout(StructType(fields), {"topic": ""})
    sized = "size" in schema.names
    if layout.is_plain and not sized:

        def by_columns(batch: pa.RecordBatch) -> bytes:
            box = Rows(FRAME_BYTES_MAX, 0, 0)
            layout.put_columns(box, batch)
            return box.take()

        return by_columns
    layout.body = "body" if sized else ""

    def by_rows(batch: pa.RecordBatch) -> bytes:
        outbox = Outbox(FRAME_BYTES_MAX, 0)
        outbox.persistent = True
        if sized:  # only how long it is matters
            zeros = pa.array([bytes(n or 0) for n in batch.column("size").to_pylist()], pa.binary())
            batch = batch.append_column("body", zeros)
        layout.put(outbox, batch)
        return outbox.take()

    return by_rows


def pairs_of(kept: Iterable[tuple[int, int]], filters: int) -> pa.Table:
    """Messages and their filters, in order: a number for each two of a message, and how often."""
    pairs: list[int] = []
    for _, both in groupby(kept, key=itemgetter(0)):
        some = [number for _, number in islice(both, TOGETHER_MAX)]
        pairs += [one * filters + other for one, other in combinations(some, 2)]
    found = pa.array(pairs, pa.int64()).value_counts()
    return pa.table({"pair": found.field(0), "count": found.field(1)})


def _ints(column: Any) -> bytes:
    """The numbers of a column without NULLs, as memory has them."""
    data = memoryview(column.buffers()[1]).cast("B")
    return bytes(data[4 * column.offset : 4 * (column.offset + len(column))])


def _out(kind: int, a: Any, b: Any, n: Any) -> pa.RecordBatch:
    columns = [pa.array(a).cast(pa.int32()), pa.array(b).cast(pa.int32()),
               pa.array(n).cast(pa.int64())]  # fmt: skip
    kinds = pa.array([kind], pa.int32()).take(pa.array([0] * len(columns[0]), pa.int32()))
    return pa.RecordBatch.from_arrays([kinds, *columns], schema=COUNTED)
