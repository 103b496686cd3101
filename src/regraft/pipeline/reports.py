"""What the reports of the jobs say: charts, tables, and files beside them."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from regraft.errors import DiskError
from regraft.pipeline.backtest import Result
from regraft.pipeline.manifest import State
from regraft.pipeline.plots import Chart, Report
from regraft.pipeline.replay import Plan

AREAS_SHOWN = 7
SHOWN = 20
LINES = 7


def archive_report(title: str, state: State, summary: dict[str, Any]) -> Report:
    """Messages and bytes of an archive by day."""
    days = sorted(state.days)
    areas: dict[str, int] = {}
    places = [(file, place) for file in state.files for place in file.held]
    for _, place in places:
        areas[place.area] = areas.get(place.area, 0) + place.rows
    largest = sorted(areas, key=lambda area: -areas[area])[:AREAS_SHOWN]
    rows = {area: [0.0] * len(days) for area in largest}
    sizes = [0.0] * len(days)
    for file, place in places:
        at = days.index(place.day)
        name = place.area if place.area in rows else "all others"
        rows.setdefault(name, [0.0] * len(days))[at] += place.rows
        sizes[at] += file.size * place.rows / file.rows / 1e6
    streams = [
        {"stream": held.stream, "from": held.low, "to": held.high - 1, "rows": held.rows,
         "lost": sum(b - a for a, b in held.lost), "expired": held.expired}
        for held in state.streams
    ]  # fmt: skip
    charts = []
    if days:
        charts = [
            Chart("messages", "Messages by day", "day (UTC)", "messages", days, rows, bars=True),
            Chart("size", "Size by day", "day (UTC)", "MB", days, {"all": sizes}, bars=True),
        ]
    return Report(title, summary, charts, {"Streams": streams})


def replay_report(plan: Plan, summary: dict[str, Any]) -> Report:
    """Messages of a replay by when they were."""
    places = [spell_us(edge) for edge in plan.edges[:-1]]
    charts = []
    if places:
        rows = {"messages": [float(count) for count in plan.rows]}
        charts = [Chart("messages", "Messages by step", "when they were", "messages", places, rows,
                        bars=True)]  # fmt: skip
    return Report("Replay", summary, charts)


def spell_us(time_us: int) -> str:
    """A moment for people."""
    return datetime.fromtimestamp(time_us / 1e6, UTC).strftime("%m-%d %H:%M:%S")


# --------------------------------------------------------------------------------- backtest


def selector_rows(result: Result, numbers: list[int]) -> list[dict[str, Any]]:
    """Selectors as rows of a table."""
    share = 100 / max(result.events, 1)
    return [
        {"selector": result.selectors[n], "matches": result.matches(n),
         "share %": round(result.matches(n) * share, 3), "cost": result.costs[n]}
        for n in numbers
    ]  # fmt: skip


def overlap_rows(result: Result, most: int = SHOWN) -> list[dict[str, Any]]:
    """Pairs that match together, those first of which nearly all matches are common."""
    first: dict[int, int] = {}
    for number, one in enumerate(result.filter_of):
        first.setdefault(one, number)
    scale = result.sampled / max(result.events, 1)
    found: list[dict[str, Any]] = []
    for a, b, both in result.pairs:
        smaller = max(1.0, min(result.totals[a], result.totals[b]) * scale)
        share = min(100.0, 100 * both / smaller)
        found.append({"one": result.selectors[first[a]], "other": result.selectors[first[b]],
                      "both, in the sample": both, "% of the rarer": round(share, 1)})  # fmt: skip
    found.sort(key=lambda row: -row["both, in the sample"] * row["% of the rarer"])
    return found[:most]


def backtest_report(result: Result, summary: dict[str, Any]) -> Report:
    """Matches over time, who matches most, who never."""
    places = [spell_us(result.start_us + n * result.width_us) for n in range(result.slots)]
    busiest = result.busiest(LINES)
    lines = {}
    for number in busiest:
        over = result.over_time(number)
        name = result.selectors[number]
        lines[name if name not in lines else f"{name} ({number})"] = [
            float(over.get(slot, 0)) for slot in range(result.slots)
        ]
    matches = sorted((result.matches(n) for n in range(len(result.selectors))), reverse=True)
    bounds = [0, 1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 1 << 62]
    names = ["none", "1-9", "10-99", "100-999", "1 k-10 k", "10 k-100 k", "100 k-1 M", "more"]
    spread = [float(sum(1 for m in matches if low <= m < high))
              for low, high in pairwise(bounds)]  # fmt: skip
    charts = [
        Chart("over-time", "Matches over time, the busiest selectors", "time (UTC)", "matches",
              places, lines),
        Chart("spread", "How many selectors match how often", "matches", "selectors", names,
              {"selectors": spread}, bars=True, logarithmic=max(spread) > 100),
    ]  # fmt: skip
    never = result.never
    tables = {
        "Busiest": selector_rows(result, result.busiest(SHOWN)),
        "Most expensive": selector_rows(result, result.dearest(SHOWN)),
        "Overlaps": overlap_rows(result),
        f"Never matching, {len(never):,} in all": [
            {"selector": result.selectors[n]} for n in never[:SHOWN]
        ],
    }
    return Report("Backtest", summary, charts, tables)


def write_tables(folder: str | Path, result: Result) -> list[Path]:
    """Everything as Parquet: selectors, their matches over time, and overlaps."""
    place = Path(folder)
    numbers = range(len(result.selectors))
    selectors = pa.table({
        "selector": pa.array(numbers, pa.int32()), "text": result.selectors,
        "matches": pa.array([result.matches(n) for n in numbers], pa.int64()),
        "cost": pa.array(result.costs, pa.int64()),
    })  # fmt: skip
    starts = pa.array([result.start_us + n * result.width_us for n in range(result.slots)],
                      pa.timestamp("us", "UTC"))  # fmt: skip
    of_filter: dict[int, list[int]] = {}
    for number, one in enumerate(result.filter_of):
        of_filter.setdefault(one, []).append(number)
    which, take = [], []
    for row, one in enumerate(result.counts["filter"].to_pylist()):
        for number in of_filter[one]:
            which.append(number)
            take.append(row)
    counts = result.counts.take(pa.array(take, pa.int64()))
    over_time = pa.table({
        "selector": pa.array(which, pa.int32()), "start": starts.take(counts["slot"]),
        "matches": counts["matches"],
    })  # fmt: skip
    overlaps = pa.table({
        "one": pa.array([of_filter[a][0] for a, _, _ in result.pairs], pa.int32()),
        "other": pa.array([of_filter[b][0] for _, b, _ in result.pairs], pa.int32()),
        "both": pa.array([both for _, _, both in result.pairs], pa.int64()),
    })  # fmt: skip
    made = []
    try:
        place.mkdir(parents=True, exist_ok=True)
        for name, table in (
            ("selectors", selectors), ("matches", over_time), ("overlaps", overlaps)
        ):  # fmt: skip
            path = place / f"{name}.parquet"
            pq.write_table(table, path, compression="zstd")
            made.append(path)
    except OSError as error:
        raise DiskError("journal-failed", f"cannot write the report: {error}") from None
    return made
