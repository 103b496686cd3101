"""`regraft pipeline archive`, `compact`, `verify`, `replay`, `backtest`: jobs of one shape.

Each takes `--master` and `--conf`, tells its progress on stderr (`-q` does not), ends with a
summary on stdout (`--json` as one object), writes charts with `--report FOLDER`, and its exit code
is 0 when all is well, 1 when something failed, 2 when it was asked for wrongly, 130 when it was
interrupted.
"""

from __future__ import annotations

import importlib.util
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from regraft.commands.common import duration, parse_place, show_row, show_rows, url_option
from regraft.errors import LocalError, WorldError
from regraft.pipeline.jobs import Say, silent, spell_bytes

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
ROOT = click.argument("root", metavar="ROOT")
QUIET = {"spark.log.level": "OFF", "spark.sql.session.timeZone": "UTC"}


def job_options(function: FunctionT) -> FunctionT:
    """The options that all jobs have."""
    for option in (
        click.option("-q", "--quiet", is_flag=True, help="Show no progress."),
        click.option("--json", "as_data", is_flag=True, help="The summary as JSON."),
        click.option("--report", metavar="FOLDER",
                     help="Write charts (PNG) and a page (HTML) into a folder."),
        click.option("--conf", "settings", metavar="NAME=VALUE", multiple=True,
                     help="A setting of Spark. May be repeated."),
        click.option("--master", metavar="MASTER", help="Where Spark runs. Default: local[*]."),
    ):  # fmt: skip
        function = option(function)
    return function


def slice_options(function: FunctionT) -> FunctionT:
    """The options that choose a part of an archive."""
    for option in (
        click.option("--until", metavar="PLACE", help="Up to this moment; as --since."),
        click.option("--since", metavar="PLACE",
                     help="From this moment on: 2026-11-15T10:00, or an age as -90m."),
        click.option("--selector", default="", metavar="SELECTOR", help="Only what matches."),
        click.option("--topics", default="", metavar="PATTERNS",
                     help="Only these topics: patterns, with commas."),
    ):  # fmt: skip
        function = option(function)
    return function


def moment(text: str | None) -> int:
    """A moment in µs; 0 if there is none."""
    if text is None:
        return 0
    place = parse_place(text)
    if not place.time_us:
        raise LocalError("bad-message", f"{text!r} is no moment: write 2026-11-15T10:00 or -90m")
    return place.time_us


@contextmanager
def spark_session(name: str, master: str | None, settings: tuple[str, ...]) -> Iterator[Any]:
    """A session for one job; what Spark says in vain is turned into one sentence."""
    if importlib.util.find_spec("pyspark") is None:
        raise LocalError("bad-configuration", "Spark is missing: pip install 'regraft[spark]'")
    from pyspark.errors import PySparkException

    from regraft.pipeline.sessions import make

    config = dict(QUIET)
    for pair in settings:
        key, equals, value = pair.partition("=")
        if not equals:
            raise LocalError("bad-configuration", f"--conf {pair}: write NAME=VALUE")
        config[key] = value
    spark = make(f"regraft-{name}", master, config)
    try:
        yield spark
    except PySparkException as error:
        raise WorldError("connection-lost", f"Spark failed: {reason(error)}") from None
    finally:
        spark.stop()


def reason(error: Exception) -> str:
    """The line of Spark's error that says what was wrong: the last one of a Python traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("regraft.errors.")]
    if ours:
        return ours[-1].partition(": ")[2]
    return next((line for line in lines if "Error:" in line or "Exception:" in line), lines[0])


def speaker(quiet: bool) -> Say:
    """Where progress goes."""
    return silent if quiet else lambda line: click.echo(line, err=True)


def finish(summary: dict[str, Any], as_data: bool, report: str | None, made: Any) -> None:
    """The summary, and the report."""
    if report:
        from regraft.pipeline.plots import write

        write(report, made())
        summary = {**summary, "report": str(Path(report) / "report.html")}
    show_row(summary, as_data)


def early(report: str | None) -> None:
    """What would be noticed only at the end of a long job."""
    if report:
        from regraft.pipeline.plots import check_plots

        check_plots()


@contextmanager
def until_asked() -> Iterator[threading.Event]:
    """An event that is set by Ctrl-C or SIGTERM; the second Ctrl-C interrupts."""
    asked = threading.Event()
    before = {}

    def heard(number: int, frame: Any) -> None:
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, heard)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def job(name: str) -> Callable[[FunctionT], Any]:
    """A function that gets a session as `spark` becomes a job."""

    def decorate(function: FunctionT) -> Any:
        @wraps(function)
        def run(*, master: str | None, settings: tuple[str, ...], **given: Any) -> None:
            early(given.get("report"))
            with spark_session(name, master, settings) as spark:
                function(spark, **given)

        return run

    return decorate


# ---------------------------------------------------------------------------------- archive


@click.command()
@ROOT
@url_option
@click.option("--streams", default="", metavar="NAMES", help="Which, with commas. Default: all.")
@click.option("--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option("--every", type=duration, default="60s", show_default=True, metavar="TIME",
              help="How often to look, with --follow.")  # fmt: skip
@click.option("--compact-every", type=duration, default="1h", show_default=True,
              metavar="TIME", help="How often to compact, with --follow.")  # fmt: skip
@click.option("--no-compact", is_flag=True, help="Leave what is archived staged.")
@click.option("--batch", type=click.IntRange(1), default=1_000_000, show_default=True,
              help="Messages of a batch.")  # fmt: skip
@click.option("--levels", type=click.IntRange(1, 16),
              help="Levels of a topic that make a folder. Default: 2.")  # fmt: skip
@click.option("--column", "columns", metavar="NAME=TYPE", multiple=True,
              help="Keep an attribute as a column, too, as price=double.")  # fmt: skip
@click.option("--keep", type=duration, metavar="TIME", help="Remove older days, as 90d.")
@click.option("--allow-loss", is_flag=True,
              help="Go on where the node has dropped what was not archived.")  # fmt: skip
@job_options
@job("archive")
def archive(
    spark: Any,
    root: str,
    url: str | None,
    streams: str,
    follow: bool,
    every: float,
    compact_every: float,
    no_compact: bool,
    batch: int,
    levels: int | None,
    columns: tuple[str, ...],
    keep: float | None,
    allow_loss: bool,
    report: str | None,
    as_data: bool,
    quiet: bool,
) -> None:
    """Keep the history of streams as Parquet files, each message once.

    ROOT is a folder, or whatever else Spark can write to, as s3a://bucket/archive.
    Run again, it goes on where it was, also after a crash. Readers of Parquet use
    ROOT/data, in which what was compacted is.

    \b
    Examples:
        regraft pipeline archive history
        regraft pipeline archive history --follow --every 5m --keep 90d
        regraft pipeline archive s3a://bucket/history --column price=double
    """
    from regraft.pipeline.archive import Archive, Done

    say = speaker(quiet)
    opened = Archive.open(spark, root, levels, make=True)
    if left := opened.recover():
        say(f"archive: {left} files that an earlier job left were put in order")
    opened.add_columns(dict(pair(text) for text in columns))
    total = Done()
    compacted = expired = 0
    last = time.monotonic()
    with until_asked() as asked:
        while True:
            done = opened.take(url, streams, batch, allow_loss, say)
            for name in ("rows", "batches", "lost", "late", "seconds"):
                setattr(total, name, getattr(total, name) + getattr(done, name))
            if not no_compact and (not follow or time.monotonic() - last >= compact_every):
                compacted += tidy(opened, say)
                last = time.monotonic()
            if keep is not None:
                expired += expire_days(opened, keep)
            if not follow or asked.wait(every):
                break
        if follow and not no_compact:
            compacted += tidy(opened, say)
    summary = archive_summary(opened.state) | {
        "archived now": total.rows, "batches": total.batches, "compacted": compacted,
        "expired": expired, "lost": total.lost, "late": total.late,
        "seconds": round(total.seconds, 1),
    }  # fmt: skip
    finish(summary, as_data, report, lambda: about(root, opened.state, summary))


def pair(text: str) -> tuple[str, str]:
    """NAME=TYPE."""
    name, equals, kind = text.partition("=")
    if not equals:
        raise LocalError("bad-configuration", f"--column {text}: write NAME=TYPE, as price=double")
    return name, kind


def tidy(opened: Any, say: Say) -> int:
    """Compact; how many rows."""
    from regraft.pipeline.compaction import compact as run

    return run(opened, say=say).rows


def expire_days(opened: Any, keep: float) -> int:
    """Remove old days; how many rows."""
    from regraft.pipeline.compaction import expire

    days = int(keep // 86_400)
    if days < 1:
        raise LocalError("bad-configuration", "--keep is one day (1d) at least")
    return expire(opened, days).expired_rows


def archive_summary(state: Any) -> dict[str, Any]:
    """What an archive holds."""
    return {
        "messages": state.rows, "streams": len(state.streams),
        "days": len(state.days), "files": len(state.files),
        "staged files": sum(file.is_staged for file in state.files),
        "size": spell_bytes(sum(file.size for file in state.files)),
    }  # fmt: skip


def about(root: str, state: Any, summary: dict[str, Any]) -> Any:
    """The report of an archive."""
    from regraft.pipeline.reports import archive_report

    return archive_report(f"Archive {root}", state, summary)


@click.command()
@ROOT
@click.option("--all", "everything", is_flag=True,
              help="Write all files anew, with the columns of today.")  # fmt: skip
@click.option("--keep", type=duration, metavar="TIME", help="Remove older days, as 90d.")
@job_options
@job("compact")
def compact(
    spark: Any,
    root: str,
    everything: bool,
    keep: float | None,
    report: str | None,
    as_data: bool,
    quiet: bool,
) -> None:
    """Make few large files of many small ones, and remove what is too old.

    \b
    Examples:
        regraft pipeline compact history
        regraft pipeline compact history --all --keep 90d
    """
    from regraft.pipeline.archive import Archive
    from regraft.pipeline.compaction import compact as run

    opened = Archive.open(spark, root)
    expired = expire_days(opened, keep) if keep is not None else 0
    done = run(opened, everything, say=speaker(quiet))
    summary = archive_summary(opened.state) | {
        "compacted": done.rows, "from files": done.before, "to files": done.after,
        "expired": expired, "seconds": round(done.seconds, 1),
    }  # fmt: skip
    finish(summary, as_data, report, lambda: about(root, opened.state, summary))


@click.command()
@ROOT
@job_options
@click.pass_context
def verify(
    ctx: click.Context, /, master: str | None, settings: tuple[str, ...], root: str,
    report: str | None, as_data: bool, quiet: bool,
) -> None:  # fmt: skip
    """Read every sequence of an archive: is there a hole, or something twice?

    Exit code 1 if there is.

    \b
    Examples:
        regraft pipeline verify history
    """
    from regraft.pipeline.archive import Archive
    from regraft.pipeline.archive import verify as prove

    early(report)
    with spark_session("verify", master, settings) as spark:
        opened = Archive.open(spark, root)
        proofs = prove(opened)
    rows = [
        {"stream": one.stream, "from": one.low, "to": one.high - 1, "wanted": one.wanted,
         "rows": one.rows, "different": one.distinct, "outside": one.outside,
         "": "ok" if one.well else "WRONG", "journal": one.journal}
        for one in proofs
    ]  # fmt: skip
    show_rows(rows, as_data, "the archive holds nothing yet")
    if report:
        from regraft.pipeline.plots import write

        write(report, about(root, opened.state, archive_summary(opened.state)))
    ctx.exit(0 if all(one.well for one in proofs) else 1)


# ----------------------------------------------------------------------------------- replay


@click.command()
@ROOT
@url_option
@slice_options
@click.option("--to", default="{topic}", show_default=True, metavar="TOPIC",
              help="Where to: a topic, in which {topic} is the old one.")  # fmt: skip
@click.option("--pace", type=click.FloatRange(0), default=0.0, metavar="TIMES",
              help="1 is the old pace, 10 ten times as fast. Default: at full speed.")  # fmt: skip
@click.option("--step", type=duration, default="1s", show_default=True, metavar="TIME",
              help="How exactly the pace is kept.")  # fmt: skip
@click.option("--name", default="", metavar="NAME",
              help="Of this replay. Default: made of slice, target and node.")  # fmt: skip
@click.option("--fresh", is_flag=True, help="Leave out expirations and delays.")
@job_options
@job("replay")
def replay(
    spark: Any,
    root: str,
    url: str | None,
    topics: str,
    selector: str,
    since: str | None,
    until: str | None,
    to: str,
    pace: float,
    step: float,
    name: str,
    fresh: bool,
    report: str | None,
    as_data: bool,
    quiet: bool,
) -> None:
    """Publish a part of an archive again, exactly once.

    A replay has a name. Run again under the same one, it goes on where it was; what
    is done is not done twice.

    \b
    Examples:
        regraft pipeline replay history --topics 'orders/#' --since -2h --to 'again/{topic}'
        regraft pipeline replay history --selector 'price > 100' --pace 10
    """
    import msgspec

    from regraft.pipeline.archive import Archive
    from regraft.pipeline.replay import FOLDER, Plan
    from regraft.pipeline.replay import replay as run
    from regraft.pipeline.reports import replay_report
    from regraft.pipeline.slices import Slice

    wanted = Slice(topics, selector, moment(since), moment(until))
    opened = Archive.open(spark, root)
    done = run(opened, wanted, url, to, name, pace, step, fresh, speaker(quiet))
    summary: dict[str, Any] = {
        "replay": done.name, "published": done.rows, "steps": done.steps,
        "done before": done.known, "seconds": round(done.seconds, 1),
    }  # fmt: skip
    if pace:
        summary["late by, s"] = round(done.late_s, 1)

    def made() -> Any:
        text = opened.store.read(f"{FOLDER}/{done.name}/plan.json")
        return replay_report(msgspec.json.decode(text, type=Plan), summary)

    finish(summary, as_data, report, made)


# --------------------------------------------------------------------------------- backtest


@click.command()
@ROOT
@click.argument("selectors", nargs=-1, metavar="[SELECTOR]...")
@click.option("-f", "--file", type=click.Path(exists=True, dir_okay=False),
              help="A file with one selector a line.")  # fmt: skip
@slice_options
@click.option("--per", type=duration, default=None, metavar="TIME",
              help="Length of a part of time. Default: what gives up to 50 of them.")  # fmt: skip
@click.option("--top", type=click.IntRange(1, 10_000), default=10, show_default=True,
              help="How many selectors to show.")  # fmt: skip
@job_options
@job("backtest")
def backtest(
    spark: Any,
    root: str,
    selectors: tuple[str, ...],
    file: str | None,
    topics: str,
    selector: str,
    since: str | None,
    until: str | None,
    per: float | None,
    top: int,
    report: str | None,
    as_data: bool,
    quiet: bool,
) -> None:
    """What selectors would have matched: how often, when, and which together.

    With --report everything is written as Parquet, too: selectors.parquet,
    matches.parquet, overlaps.parquet.

    \b
    Examples:
        regraft pipeline backtest history "price > 100 AND symbol = 'ACME'"
        regraft pipeline backtest history -f selectors.txt --since -7d --report out
    """
    from regraft.pipeline.archive import Archive
    from regraft.pipeline.backtest import backtest as run
    from regraft.pipeline.backtest import read_selectors
    from regraft.pipeline.reports import backtest_report, overlap_rows, selector_rows, write_tables
    from regraft.pipeline.slices import Slice

    texts = [one for text in selectors for one in read_selectors(text, "the selector")]
    if file:
        texts += read_selectors(Path(file).read_text(encoding="utf-8"), file)
    if not texts:
        raise LocalError("bad-selector", "say which selectors: as arguments, or with --file")
    wanted = Slice(topics, selector, moment(since), moment(until))
    opened = Archive.open(spark, root)
    result = run(opened, texts, wanted, per or 0.0, say=speaker(quiet))
    never = result.never
    summary: dict[str, Any] = {
        "messages": result.events, "selectors": len(texts), "matches": result.all_matches,
        "never matching": len(never), "index built in, s": round(result.build_s, 2),
        "messages/s": round(result.events / max(result.scan_s, 1e-9)),
        "seconds": round(result.seconds, 1),
    }  # fmt: skip
    if as_data:
        summary["busiest"] = selector_rows(result, result.busiest(top))
        summary["overlaps"] = overlap_rows(result, top)
        summary["never"] = [texts[n] for n in never[:top]]
    else:
        click.echo("Busiest")
        show_rows(selector_rows(result, result.busiest(top)), False, "none")
        if len(texts) > 1:
            click.echo("\nMost expensive")
            show_rows(selector_rows(result, result.dearest(top)), False, "none")
            click.echo("\nMatching together")
            show_rows(overlap_rows(result, top), False, "none")
            click.echo(f"\nNever matching: {len(never):,}")
            for n in never[:top]:
                click.echo(f"  {texts[n]}")
        click.echo()
    if report:
        write_tables(report, result)
    plain = {name: value for name, value in summary.items() if not isinstance(value, list)}
    finish(summary, as_data, report, lambda: backtest_report(result, plain))


JOBS = (archive, compact, verify, replay, backtest)
