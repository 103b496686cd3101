"""History that outlives the journal: streams of a node as Parquet files, each message once.

    ROOT/data/area=orders%2Feu/day=2026-11-16/*.parquet   what any reader of Parquet can use
    ROOT/staged/...                                       what waits for compaction, as it came
    ROOT/manifest/...                                     what is held, see `manifest`

Rules:

- A row is a message with all its headers. `area` is the beginning of its topic, `day` that on
  which the node took it, in UTC. Late is what comes for a day that was compacted before; it is
  added to that day.
- A body that is JSON is in `json`, as a Variant. `body` has the bytes where it is not, and also
  where the Variant would not give exactly these bytes back (spaces, the order of names, 1.0 or
  1e0). So nothing is ever lost; `bodies` puts it together again.
- A batch is a range of sequences of each stream. It is written, read back and counted, and only
  then put into the manifest. A job that is killed anywhere goes on with the same range.
- Attributes may be columns, too (`columns`). One that is added later is NULL in older files until
  these are compacted again.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from regraft.errors import DiskError, LocalError
from regraft.pipeline.counting import DAY_US, described
from regraft.pipeline.jobs import Progress, Say, silent
from regraft.pipeline.manifest import (
    AREAS_MAX,
    STAGED,
    File,
    Held,
    Manifest,
    State,
    joined,
)
from regraft.pipeline.options import Options
from regraft.pipeline.rows import table_schema
from regraft.pipeline.source import Known, Table, offset, share
from regraft.pipeline.store import Store
from regraft.wire.bulk import ATTRIBUTES, HEADERS

BATCH_ROWS = 1_000_000
LEFT_OUT = ("partition",)  # is 0
AREA = "area"
DAY = "day"
FIRST = ("journal", "stream", "sequence", "timestamp", "topic", "json", "body", "attributes", "id")
ATTRIBUTE_TYPES: dict[str, DataType] = {
    kind.simpleString(): kind
    for kind in (
        BooleanType(), LongType(), DoubleType(), StringType(), BinaryType(), TimestampType()
    )
}  # fmt: skip
WRITING = {  # so that every reader can read it
    "spark.sql.variant.writeShredding.enabled": "false",
    "spark.sql.variant.inferShreddingSchema": "false",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
STAGING = {"compression": "zstd"}


def schema_of(columns: Mapping[str, str]) -> StructType:
    """The columns of an archive, with the attributes that are columns in it."""
    headers = {field.name: field for field in table_schema(True).fields}
    headers["journal"] = StructField("journal", StringType())
    headers["json"] = StructField("json", VariantType())
    names = [*FIRST, *(name for name in headers if name not in (*FIRST, *LEFT_OUT))]
    fields = [headers[name] for name in names]
    fields += [StructField(name, ATTRIBUTE_TYPES[kind]) for name, kind in columns.items()]
    return StructType(fields)


def check_columns(columns: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    """The columns with those that are added; LocalError if one cannot be."""
    for name, kind in columns.items():
        if name in HEADERS or name in (*FIRST, AREA, DAY) or not name:
            raise LocalError("bad-configuration", f"{name!r} is a column of every archive")
        if kind not in ATTRIBUTES:
            raise LocalError(
                "bad-configuration",
                f"attribute {name!r} cannot be a {kind}: there are {', '.join(ATTRIBUTES)}",
            )
        if known.get(name, kind) != kind:
            raise LocalError(
                "bad-configuration",
                f"column {name!r} of this archive is a {known[name]}, and stays one: {kind} would "
                "give older files another meaning",
            )
    return {**known, **columns}


@dataclass
class Done:
    """What a run has done."""

    rows: int = 0
    batches: int = 0
    files: int = 0
    size: int = 0
    lost: int = 0
    late: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Batch:
    """A range of sequences of each stream, and the folder in which it is staged."""

    journal: str
    low: dict[str, int]
    high: dict[str, int]
    url: str | None
    folder: str


class Archive:
    """An archive, open for one writer, or for readers."""

    def __init__(self, spark: SparkSession, root: str, manifest: Manifest) -> None:
        self.spark = spark
        self.manifest = manifest
        self.store = manifest.store

    @classmethod
    def open(
        cls, spark: SparkSession, root: str, levels: int | None = None, make: bool = False
    ) -> Archive:
        """Open an archive that is there, or with `make` begin one. Nothing of it is changed."""
        if levels is not None and not 1 <= levels <= 16:
            raise LocalError("bad-configuration", f"levels are 1 to 16, not {levels}")
        manifest = Manifest.open(Store(spark, root), levels, make)
        return cls(spark, root, manifest)

    @property
    def state(self) -> State:
        """What it holds."""
        return self.manifest.state

    @property
    def schema(self) -> StructType:
        """Its columns."""
        return schema_of(self.state.columns)

    def recover(self) -> int:
        """Finish, or remove, what a writer that was killed has left. Only for a writer."""
        return self.manifest.settle() + len(self.manifest.clean())

    def add_columns(self, columns: Mapping[str, str]) -> None:
        """Keep attributes as columns from now on."""
        wanted = check_columns(columns, self.state.columns)
        if wanted != self.state.columns:
            state = self.state.changed()
            state.columns = wanted
            self.manifest.commit(state, "columns")

    # ------------------------------------------------------------------------------ read

    def files(
        self, since_us: int = 0, until_us: int = 0, areas: Iterable[str] | None = None
    ) -> list[File]:
        """The files that may have rows of these moments and areas, in order of time."""
        wanted = None if areas is None else set(areas)
        found = [
            file
            for file in self.state.files
            if (not since_us or file.last_us >= since_us)
            and (not until_us or file.first_us < until_us)
            and (wanted is None or any(place.area in wanted for place in file.held))
        ]
        return sorted(found, key=lambda file: (file.first_us, file.order))

    def frame(
        self, files: Sequence[File] | None = None, since_us: int = 0, until_us: int = 0
    ) -> DataFrame:
        """Its rows, staged ones too, exactly as the manifest has them; `area` and `day` as well."""
        chosen = self.files(since_us, until_us) if files is None else files
        paths = [self.store.path(file.path) for file in chosen]
        schema = self.schema
        if paths:
            frame = self.spark.read.schema(schema).parquet(*paths)
        else:
            frame = self.spark.createDataFrame([], schema)
        if since_us:
            frame = frame.where(F.unix_micros("timestamp") >= since_us)
        if until_us:
            frame = frame.where(F.unix_micros("timestamp") < until_us)
        return frame.select("*", area_of(self.state.levels), day_of())

    # ----------------------------------------------------------------------------- write

    def take(
        self,
        url: str | None = None,
        subscribe: str = "",
        batch_rows: int = BATCH_ROWS,
        allow_loss: bool = False,
        say: Say = silent,
        most: int = 0,
    ) -> Done:
        """Archive what the node has and the archive has not; `subscribe` are names, or all.

        It does so batch by batch, `most` of them if that is not 0. While one is looked at, the
        next is being written.
        """
        if batch_rows < 1:
            raise LocalError("bad-configuration", "a batch has 1 message at least")
        options = {"url": url} if url else {}
        options |= {"subscribe": subscribe} if subscribe else {"subscribePattern": ".*"}
        table = Table(table_schema(False), Options.read(options))
        known = table.known()
        if not known.next:
            raise LocalError(
                "unknown-stream",
                "the node retains no topic: regraft serve --retain TOPIC, or [[streams]] in its "
                "file",
            )
        done = Done()
        progress = Progress("archive", say=say)
        progress.total = sum(self._ahead(known).values())
        with ThreadPoolExecutor(1) as pool:
            written: Batch | None = None
            while True:
                low = written.high if written else self._low(known, allow_loss, done)
                batch = self._next(known, low, batch_rows, url)
                if batch and most and done.batches + (written is not None) >= most:
                    batch = None
                begun = pool.submit(self._write, batch) if batch else None
                if written:
                    progress.step(self._commit(written, done))
                    written = None
                if not batch or not begun:
                    break
                try:
                    begun.result()
                    written = batch
                except Exception:
                    later = _later(known, table.known(), batch)
                    if later is None:
                        raise
                    known = later
        done.seconds = progress.seconds
        return done

    def _ahead(self, known: Known) -> dict[str, int]:
        found = {}
        for stream, end in known.next.items():
            held = self.state.held(known.journal, stream)
            start = max(known.first[stream], held.high if held else 0)
            found[stream] = max(0, end - start)
        return found

    def _low(self, known: Known, allow_loss: bool, done: Done) -> dict[str, int]:
        """Where the next batch begins; what is gone already is told, or written down."""
        found = {}
        for stream, first in known.first.items():
            held = self.state.held(known.journal, stream)
            found[stream] = first if held is None else held.high
            if held is None or first <= held.high:
                continue
            if not allow_loss:
                raise LocalError(
                    "position-expired",
                    f"stream {stream!r} is kept from sequence {first} on; {held.high} to "
                    f"{first - 1} is gone and was not archived. --allow-loss goes on without it "
                    "and writes it down; archive more often, or have the node keep it longer",
                )
            state = self.state.changed()
            again = state.held(known.journal, stream)
            assert again is not None
            again.lost.append((again.high, first))
            done.lost += first - again.high
            again.high = first
            self.manifest.commit(state, "lost")
            found[stream] = first
        return found

    def _next(
        self, known: Known, low: dict[str, int], batch_rows: int, url: str | None
    ) -> Batch | None:
        """The batch that begins here; None if there is nothing more."""
        ahead = share({stream: known.next[stream] - low[stream] for stream in low}, batch_rows)
        if not sum(ahead.values()):
            return None
        high = {stream: low[stream] + ahead[stream] for stream in low}
        name = f"{self.state.version + 1:010d}-{uuid.uuid4().hex[:8]}"
        return Batch(known.journal, low, high, url, f"{STAGED}/{name}")

    def _write(self, batch: Batch) -> None:
        """Write a batch; for the manifest it is not there yet."""
        frame = self._arranged(self._source(batch), batch.journal)
        with writing(self.spark):
            frame.write.options(**STAGING).parquet(self.store.path(batch.folder))

    def _commit(self, batch: Batch, done: Done) -> int:
        """Look at what was written, and put it into the manifest; how many rows."""
        files = described(self.spark, self.store, batch.folder, self.state.levels)
        _check(files, batch.low, batch.high)
        state = self.state.changed()
        compacted = set(state.compacted_days)
        late = sum(place.rows for f in files for place in f.held if place.day in compacted)
        state.late_rows += late
        state.files += files
        state.settling.move.clear()
        state.settling.remove.clear()
        areas = len(state.areas)
        if areas > AREAS_MAX:
            raise LocalError(
                "limit-exceeded",
                f"the topics have {areas} beginnings of {state.levels} levels, and an archive "
                f"has {AREAS_MAX} at most: begin another one with fewer --levels",
            )
        for stream, start in batch.low.items():
            held = state.held(batch.journal, stream)
            if held is None:
                state.streams.append(Held(batch.journal, stream, start, batch.high[stream]))
            else:
                held.high = batch.high[stream]
        self.manifest.commit(state, "archived")
        rows = sum(file.rows for file in files)
        done.rows += rows
        done.late += late
        done.batches += 1
        done.files += len(files)
        done.size += sum(file.size for file in files)
        return rows

    def _source(self, batch: Batch) -> DataFrame:
        names = [name for name in self.schema.names if name not in ("journal", "json")]
        schema = StructType([self.schema[name] for name in names])
        some = [stream for stream in batch.low if batch.high[stream] > batch.low[stream]]
        reader = self.spark.read.format("regraft").option("subscribe", ",".join(some))
        if batch.url:
            reader = reader.option("url", batch.url)
        for option, ends in (("startingOffsets", batch.low), ("endingOffsets", batch.high)):
            text = json.dumps(offset(batch.journal, {stream: ends[stream] for stream in some}))
            reader = reader.option(option, text)
        parts = self.spark.sparkContext.defaultParallelism
        return reader.option("minPartitions", str(parts)).schema(schema).load()

    def _arranged(self, frame: DataFrame, journal: str) -> DataFrame:
        """Rows of the source as rows of the archive."""
        text = "CAST(body AS STRING)"
        parsed = frame.select("*", F.expr(f"try_parse_json({text})").alias("json"))
        exact = "CASE WHEN CAST(to_json(json) AS BINARY) = body THEN NULL ELSE body END"
        columns: list[Any] = []
        for name in self.schema.names:
            if name == "journal":
                columns.append(F.lit(journal).alias("journal"))
            else:
                columns.append(
                    F.expr(exact).alias("body") if name == "body" else F.col(f"`{name}`")
                )
        return parsed.select(*columns)


def _later(known: Known, now: Known, batch: Batch) -> Known | None:
    """What was there when it was asked about may be gone by now; None if it is still there."""
    gone = [s for s in batch.low
            if batch.high[s] > batch.low[s] and now.first.get(s, 0) > batch.low[s]]  # fmt: skip
    if now.journal != known.journal or not gone:
        return None
    return replace(known, first=known.first | {s: min(now.first[s], known.next[s]) for s in gone})


@contextmanager
def writing(spark: SparkSession) -> Iterator[None]:
    """The settings with which files are written."""
    before = {name: spark.conf.get(name, None) for name in WRITING}
    for name, value in WRITING.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)


def _check(files: list[File], low: dict[str, int], high: dict[str, int]) -> None:
    """What was written is the whole range, and nothing else."""
    parts = {part.stream: part for part in joined([part for file in files for part in file.parts])}
    for stream, start in low.items():
        wanted = high[stream] - start
        part = parts.get(stream)
        rows = part.rows if part else 0
        if rows != wanted or (part and (part.low < start or part.high > high[stream])):
            raise DiskError(
                "data-folder-damaged",
                f"{wanted} messages of {stream!r} from {start} on were to be written, and {rows} "
                "were: the batch is not taken; run it again",
            )


def area_of(levels: int) -> Any:
    """The beginning of a topic."""
    begun = F.substring_index("topic", "/", levels)
    return F.when(begun == "", F.lit("/")).otherwise(begun).alias(AREA)


def day_of() -> Any:
    """The day, in UTC whatever the session's time zone is."""
    days = f"CAST(floor(unix_micros(timestamp) / {DAY_US}) AS INT)"
    return F.expr(f"CAST(date_from_unix_date({days}) AS STRING)").alias(DAY)


def bodies(table: Any) -> list[bytes | None]:
    """The bodies of a pyarrow table with the columns `json` and `body`, as they were published."""
    from pyspark.sql.variant_utils import VariantUtils

    found: list[bytes | None] = []
    for variant, body in zip(
        table.column("json").to_pylist(), table.column("body").to_pylist(), strict=True
    ):
        if body is None and variant is not None:
            body = VariantUtils.to_json(variant["value"], variant["metadata"], "UTC").encode()
        found.append(body)
    return found


# ------------------------------------------------------------------------------ verify


@dataclass
class Proof:
    """What the files hold of a stream, and what they should."""

    journal: str
    stream: str
    low: int
    high: int
    wanted: int
    rows: int
    distinct: int
    outside: int

    @property
    def well(self) -> bool:
        """Whether there is no hole and nothing twice."""
        return self.rows == self.distinct == self.wanted and not self.outside


def verify(archive: Archive) -> list[Proof]:
    """Count every sequence of every file, exactly, and compare with the manifest."""
    frame = archive.frame().select("journal", "stream", "sequence")
    bounds = archive.spark.createDataFrame(
        [(held.journal, held.stream, held.low, held.high) for held in archive.state.streams],
        "journal string, stream string, low bigint, high bigint",
    )
    counted = (
        frame.join(F.broadcast(bounds), ["journal", "stream"], "left")
        .groupBy("journal", "stream", F.expr("bitmap_bucket_number(sequence)").alias("bucket"))
        .agg(
            F.count("*").alias("rows"),
            F.expr("bitmap_count(bitmap_construct_agg(bitmap_bit_position(sequence)))").alias("n"),
            F.count_if(
                (F.col("sequence") < F.coalesce("low", F.lit(1 << 62)))
                | (F.col("sequence") >= F.coalesce("high", F.lit(0)))
            ).alias("outside"),
        )
        .groupBy("journal", "stream")
        .agg(F.sum("rows"), F.sum("n"), F.sum("outside"))
        .collect()
    )
    found = {(row[0], row[1]): row for row in counted}
    proofs = []
    for held in archive.state.streams:
        row = found.pop((held.journal, held.stream), (0, 0, 0, 0, 0))
        proofs.append(Proof(held.journal, held.stream, held.low, held.high, held.rows, row[2],
                            row[3], row[4]))  # fmt: skip
    for (journal, stream), row in found.items():
        proofs.append(Proof(journal, stream, 0, 0, 0, row[2], row[3], row[4]))
    return proofs
