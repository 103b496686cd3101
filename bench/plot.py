"""A small writer of charts: lines over two logarithmic axes, as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 860, 540
LEFT, RIGHT, TOP, BOTTOM = 90, 150, 50, 70
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
LABEL_GAP = 16  # between two names at the ends of lines

Points = Sequence[tuple[float, float]]


class Axis:
    """Values of one axis on the paper; it begins and ends with a power of ten."""

    def __init__(self, values: Sequence[float], begin: float, end: float) -> None:
        self.low = math.floor(math.log10(min(values)))
        self.high = max(self.low + 1, math.ceil(math.log10(max(values))))
        self.begin, self.end = begin, end

    def at(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self.begin + share * (self.end - self.begin)

    def decades(self) -> list[float]:
        return [10.0**power for power in range(self.low, self.high + 1)]

    def between(self) -> list[float]:
        """Two to nine times each power of ten."""
        return [step * decade for decade in self.decades()[:-1] for step in range(2, 10)]


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        f'stroke="{colour}" stroke-width="{width}"/>'
    )


def text(x: float, y: float, said: str, anchor: str = "middle", rest: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {rest}>{escape(said)}</text>'


def grid(across: Axis, up: Axis) -> list[str]:
    parts = []
    for value in across.between():
        parts.append(line(across.at(value), up.begin, across.at(value), up.end, "#f0f0f0"))
    for value in up.between():
        parts.append(line(across.begin, up.at(value), across.end, up.at(value), "#f0f0f0"))
    for value in across.decades():
        parts.append(line(across.at(value), up.begin, across.at(value), up.end, "#cccccc"))
        parts.append(text(across.at(value), up.begin + 20, number(value)))
    for value in up.decades():
        parts.append(line(across.begin, up.at(value), across.end, up.at(value), "#cccccc"))
        parts.append(text(across.begin - 8, up.at(value) + 4, number(value), "end"))
    return parts


def spread_out(wanted: Mapping[str, float], low: float, high: float) -> dict[str, float]:
    """Heights for the names of the lines, near where they are wanted, none upon another."""
    placed: dict[str, float] = {}
    last = low - LABEL_GAP
    for name, height in sorted(wanted.items(), key=lambda pair: pair[1]):
        last = placed[name] = max(height, last + LABEL_GAP)
    over = last - high
    return {name: height - over for name, height in placed.items()} if over > 0 else placed


def write(path: Path, title: str, across: str, up: str, lines: Mapping[str, Points]) -> None:
    """One line for each name; all values above zero."""
    every = [point for points in lines.values() for point in points]
    x = Axis([point[0] for point in every], LEFT, WIDTH - RIGHT)
    y = Axis([point[1] for point in every], HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="13">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        text(LEFT, TOP - 22, title, "start", 'font-size="16" font-weight="bold"'),
        *grid(x, y),
        line(x.begin, y.begin, x.end, y.begin, "#000000"),
        line(x.begin, y.begin, x.begin, y.end, "#000000"),
        text((x.begin + x.end) / 2, HEIGHT - 22, across),
        text(0, 0, up, rest=f'transform="translate(24 {(y.begin + y.end) / 2:.1f}) rotate(-90)"'),
    ]
    ends = {name: y.at(points[-1][1]) for name, points in lines.items()}
    heights = spread_out(ends, y.end, y.begin)
    for colour, (name, points) in zip(COLOURS, lines.items(), strict=False):
        drawn = " ".join(f"{x.at(a):.1f},{y.at(b):.1f}" for a, b in points)
        parts.append(f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for a, b in points:
            parts.append(f'<circle cx="{x.at(a):.1f}" cy="{y.at(b):.1f}" r="3.5" fill="{colour}"/>')
        end = x.at(points[-1][0])
        last = points[-1][1]
        said = f"{name}, {number(last) if last >= 100 else format(last, '.2g')}"
        parts.append(line(end + 4, ends[name], x.end + 10, heights[name], colour, 0.7))
        parts.append(text(x.end + 14, heights[name] + 4, said, "start", f'fill="{colour}"'))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*parts, "</svg>", ""]))
