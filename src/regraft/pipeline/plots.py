"""Reports of jobs: a folder with `summary.json`, charts as PNG, and `report.html` with all of it.

Charts need matplotlib, which comes with the extra `spark`.
"""

from __future__ import annotations

import base64
import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from regraft.errors import DiskError, LocalError

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse}td,th{padding:.2em .8em;border-bottom:1px solid #ddd;"
    "text-align:left}td.n{text-align:right}img{max-width:100%}code{white-space:pre-wrap}"
)


@dataclass
class Chart:
    """Lines or bars over the same places; a place is a text."""

    name: str  # of the file
    title: str
    across: str
    up: str
    places: Sequence[str]
    rows: Mapping[str, Sequence[float]]
    bars: bool = False
    logarithmic: bool = False


@dataclass
class Report:
    """What a job has to show."""

    title: str
    summary: Mapping[str, Any]
    charts: list[Chart] = field(default_factory=list)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


def check_plots() -> None:
    """LocalError if charts cannot be drawn here."""
    if importlib.util.find_spec("matplotlib") is None:
        raise LocalError(
            "bad-configuration", "charts need matplotlib: pip install 'regraft[spark]'"
        )


def write(folder: str | Path, report: Report) -> list[Path]:
    """Write a report into a folder, in place of an older one; the files."""
    check_plots()
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        made = [place / "summary.json"]
        made[0].write_text(json.dumps(report.summary, indent=2) + "\n", encoding="utf-8")
        for chart in report.charts:
            path = place / f"{chart.name}.png"
            _draw(chart, path)
            made.append(path)
        page = place / "report.html"
        page.write_text(_page(report, place), encoding="utf-8")
    except OSError as error:
        raise DiskError("journal-failed", f"cannot write the report: {error}") from None
    return [*made, page]


def _draw(chart: Chart, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    spots = range(len(chart.places))
    floor = [0.0] * len(chart.places)
    for number, (name, values) in enumerate(chart.rows.items()):
        colour = COLOURS[number % len(COLOURS)]
        label = name if len(name) <= 40 else name[:39] + "…"
        label = label.replace("$", r"\$")  # no formula
        if chart.bars:
            axes.bar(spots, values, bottom=floor, color=colour, label=label)
            floor = [low + value for low, value in zip(floor, values, strict=True)]
        else:
            axes.plot(
                spots, values, color=colour, label=label, marker="." if len(values) < 60 else ""
            )
    step = max(1, len(chart.places) // 8)
    axes.set_xticks(list(spots)[::step], [str(place) for place in chart.places][::step])
    axes.tick_params(axis="x", labelrotation=20 if len(chart.places) > 4 else 0)
    if chart.logarithmic:
        axes.set_yscale("symlog")
    axes.set_title(chart.title, loc="left")
    axes.set_xlabel(chart.across)
    axes.set_ylabel(chart.up)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color="#dddddd")
    axes.set_axisbelow(True)
    if len(chart.rows) > 1:
        axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=100)


def _page(report: Report, place: Path) -> str:
    parts = [
        f"<!doctype html><meta charset=utf-8><title>{escape(report.title)}</title>",
        f"<style>{STYLE}</style><h1>{escape(report.title)}</h1>",
        _table([{"": name, " ": value} for name, value in report.summary.items()]),
    ]
    for chart in report.charts:
        data = base64.b64encode((place / f"{chart.name}.png").read_bytes()).decode()
        parts.append(f"<h2>{escape(chart.title)}</h2>")
        parts.append(f'<img alt="{escape(chart.title)}" src="data:image/png;base64,{data}">')
    for title, rows in report.tables.items():
        parts.append(f"<h2>{escape(title)}</h2>")
        parts.append(_table(rows) if rows else "<p>none</p>")
    return "\n".join(parts) + "\n"


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    names = list({name: None for row in rows for name in row})
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    lines = []
    for row in rows:
        cells = []
        for name in names:
            value = row.get(name, "")
            if isinstance(value, int | float) and not isinstance(value, bool):
                cells.append(f'<td class="n">{value:,}</td>')
            else:
                cells.append(f"<td>{escape(str(value))}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"
