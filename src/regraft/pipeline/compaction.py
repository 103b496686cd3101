"""From staged files, as messages came, to few large ones in a root that any reader can use.

Rules:

- `data/` has only files that were compacted, each of one area and day; a name there appears when
  the file is whole. Files are added. Only where a day has many small ones, or all are to be written
  anew, some are replaced: the old ones go first, so that a reader that asks no manifest may miss
  rows for a moment, and never sees one twice.
- A task takes some files and writes one for each area and day that they have rows of, in the order
  of the journal. Where Arrow knows the file system, the task copies columns with it; elsewhere
  Spark copies rows. What was written is compared with what the manifest says of its sources.
- Retention removes whole days.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

import msgspec
from pyspark.sql import Column
from pyspark.sql import functions as F

from regraft.errors import DiskError, LocalError
from regraft.pipeline.archive import AREA, DAY, Archive, area_of, day_of, writing
from regraft.pipeline.counting import described
from regraft.pipeline.dividing import IN_MAP, Order, place_of, work
from regraft.pipeline.jobs import Progress, Say, silent
from regraft.pipeline.manifest import STAGED, File, Place, joined
from regraft.pipeline.store import arrow_knows

FILE_ROWS = 10_000_000  # of a file, about
SPLIT_ROWS = 5_000_000  # that are staged, and that one task divides, about
SMALL_ROWS = 1_000_000  # a file with less is worth being joined with others
SMALL_FILES = 8  # so many of them


@dataclass
class Compacted:
    """What a run has done."""

    rows: int = 0
    before: int = 0
    after: int = 0
    size: int = 0
    seconds: float = 0.0
    expired_rows: int = 0
    expired_days: list[str] = field(default_factory=list)


def compact(
    archive: Archive, everything: bool = False, by_rows: bool | None = None, say: Say = silent
) -> Compacted:
    """Compact what is staged; with `everything`, write all files anew, with today's columns."""
    archive.recover()
    groups = chosen(archive.state.files, _processors(archive), everything)
    done = Compacted()
    progress = Progress("compact", sum(f.rows for group in groups for f in group), "rows", say)
    if not groups:
        return done
    orders = [_order(archive, group) for group in groups]
    if by_rows is None:
        by_rows = not arrow_knows(archive.store.root)
    added: list[File] = []
    results = _by_spark(archive, orders) if by_rows else _by_arrow(archive, orders)
    for group, made in zip(groups, results, strict=True):
        _check(group, made)
        added += made
        done.rows += sum(file.rows for file in made)
        progress.step(done.rows - progress.done)
    state = archive.state.changed()
    gone = {file.path for group in groups for file in group}
    state.settling.move = _named(added, state.version + 1)
    state.files = [file for file in state.files if file.path not in gone] + added
    state.settling.remove = sorted(_folders(gone, {file.path for file in state.files}))
    state.compacted_days = sorted({*state.compacted_days, *(file.day for file in added)})
    archive.manifest.commit(state, "compacted")
    archive.manifest.settle()
    done.before, done.after = len(gone), len(added)
    done.size = sum(file.size for file in added)
    done.seconds = progress.seconds
    return done


def chosen(files: list[File], processors: int, everything: bool = False) -> list[list[File]]:
    """The files of each task: staged ones, in order, and small ones of one area and day."""
    staged = sorted((file for file in files if file.is_staged), key=lambda file: file.order)
    rows = sum(file.rows for file in staged)
    count = max(1, -(-rows // SPLIT_ROWS), min(processors, rows // SMALL_ROWS))
    shares: list[list[File]] = [[] for _ in range(count)]
    before = 0
    for file in staged:
        shares[before * count // rows].append(file)
        before += file.rows
    places: dict[tuple[str, str], list[File]] = {}
    for file in files:
        if not file.is_staged:
            places.setdefault((file.area, file.day), []).append(file)
    for _, there in sorted(places.items()):
        small = [file for file in there if file.rows < SMALL_ROWS]
        take = small if len(small) >= SMALL_FILES else []
        shares += _joined(there if everything else take)
    return [share for share in shares if share]


def _joined(files: list[File]) -> Iterator[list[File]]:
    """Files that become one, which is not too large."""
    group: list[File] = []
    for file in sorted(files, key=lambda file: file.order):
        if group and sum(f.rows for f in group) + file.rows > FILE_ROWS:
            yield group
            group = []
        group.append(file)
    if group:
        yield group


def _order(archive: Archive, group: list[File]) -> Order:
    places = [Place(area, day, rows) for (area, day), rows in _by_place(group).items()]
    return Order(archive.store.root, [file.path for file in group], uuid.uuid4().hex,
                 archive.state.columns, archive.state.levels, places)  # fmt: skip


def _by_place(files: Iterable[File]) -> dict[tuple[str, str], int]:
    """Rows of each area and day."""
    found: dict[tuple[str, str], int] = {}
    for place in (place for file in files for place in file.held):
        found[place.area, place.day] = found.get((place.area, place.day), 0) + place.rows
    return found


def _check(sources: list[File], made: list[File]) -> None:
    """What was written is what was to be written."""
    wanted, found = ([_by_place(files), joined([part for file in files for part in file.parts])]
                     for files in (sources, made))  # fmt: skip
    if wanted != found:
        raise DiskError(
            "data-folder-damaged",
            f"{sum(file.rows for file in sources)} rows of {sources[0].path} and others were to be "
            f"compacted, and {sum(file.rows for file in made)} were written, or others than the "
            "manifest says: nothing is changed",
        )


def _named(added: list[File], version: int) -> list[tuple[str, str]]:
    """Give files their names; where they are now, and where they will be."""
    moves = []
    for number, file in enumerate(added):
        hidden = file.path
        file.path = f"{place_of(file.area, file.day)}/{version:010d}-{number:05d}.parquet"
        moves.append((hidden, file.path))
    return moves


def _folders(gone: set[str], kept: set[str]) -> set[str]:
    """What to remove: files, or whole batches of which nothing is left."""
    batches = {path.split("/")[1] for path in kept if path.startswith(f"{STAGED}/")}
    found = set()
    for path in gone:
        top, second = path.split("/")[:2]
        found.add(f"{top}/{second}" if top == STAGED and second not in batches else path)
    return found


def _processors(archive: Archive) -> int:
    return archive.spark.sparkContext.defaultParallelism


def _by_arrow(archive: Archive, orders: list[Order]) -> Iterator[list[File]]:
    some = _processors(archive)
    for start in range(0, len(orders), some):  # so that there is progress to tell
        texts = [msgspec.json.encode(order).decode() for order in orders[start : start + some]]
        tasks = archive.spark.sparkContext.parallelize(texts, len(texts))
        for text in tasks.map(work).collect():
            yield msgspec.json.decode(text, type=list[File])


def _by_spark(archive: Archive, orders: list[Order]) -> Iterator[list[File]]:
    """The same where only Spark can write."""
    with writing(archive.spark):
        for order in orders:
            yield _one_by_spark(archive, order)


def _one_by_spark(archive: Archive, order: Order) -> list[File]:
    store, spark = archive.store, archive.spark
    paths = [store.path(name) for name in order.sources]
    folder = f"{STAGED}/{order.name}"
    options = {
        "compression": "zstd",
        "parquet.bloom.filter.enabled#id": "true",
        "parquet.bloom.filter.expected.ndv#id": str(max(place.rows for place in order.places)),
    }
    frame = spark.read.schema(archive.schema).parquet(*paths)
    frame = frame.withColumns({name: _filled(name, kind) for name, kind in order.columns.items()})
    frame = frame.select("*", area_of(order.levels), day_of()).repartition(1)
    frame = frame.sortWithinPartitions(AREA, DAY, "journal", "stream", "sequence")
    frame.write.options(**options).partitionBy(AREA, DAY).parquet(store.path(folder))
    made = described(spark, store, folder, order.levels, by_spark=True)
    for number, file in enumerate(made):
        (place,) = file.held
        file.area, file.day, file.places = place.area, place.day, []
        hidden = f"{place_of(place.area, place.day)}/.{order.name}-{number}.parquet"
        store.move(file.path, hidden)
        file.path = hidden
    store.remove(folder)
    return made


def _filled(name: str, kind: str) -> Column:
    """A column that may be younger than a file: there it is NULL, and the attribute has it."""
    entry = F.col("attributes")[name]
    value = entry[IN_MAP[kind]]
    if kind == "double":  # takes ints, too, as the source does
        value = F.coalesce(value, entry["int"].cast("double"))
    if kind == "timestamp":
        value = F.timestamp_micros(value)
    return F.coalesce(F.col(f"`{name}`"), value)


# ------------------------------------------------------------------------------- retention


def expire(archive: Archive, keep_days: int, today: date | None = None) -> Compacted:
    """Remove the days that are older than so many days."""
    if keep_days < 1:
        raise LocalError("bad-configuration", f"an archive keeps 1 day at least, not {keep_days}")
    now = today or datetime.now(UTC).date()
    oldest = (now - timedelta(days=keep_days)).isoformat()
    if any(_is_old(f, oldest, any) and not _is_old(f, oldest, all) for f in archive.state.files):
        compact(archive)  # staged files may have rows of several days
    archive.recover()
    old = [file for file in archive.state.files if _is_old(file, oldest, all)]
    done = Compacted(expired_rows=sum(file.rows for file in old))
    done.expired_days = sorted({place.day for file in old for place in file.held})
    if not old:
        return done
    state = archive.state.changed()
    gone = {file.path for file in old}
    state.files = [file for file in state.files if file.path not in gone]
    for part in (part for file in old for part in file.parts):
        held = state.held(part.journal, part.stream)
        assert held is not None
        held.expired += part.rows
    state.settling.move = []
    state.settling.remove = sorted(_folders(gone, {file.path for file in state.files}))
    archive.manifest.commit(state, "expired")
    archive.manifest.settle()
    return done


def _is_old(file: File, oldest: str, which: Callable[[Iterable[bool]], bool]) -> bool:
    return which(place.day < oldest for place in file.held)
