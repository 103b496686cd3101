"""Writes the pictures of docs/reconfiguration.md: one substitution, simulated with each protocol.

python docs/make_pictures.py
"""

from __future__ import annotations

from pathlib import Path

from regraft.routing.filters import Filter
from regraft.routing.reconfiguration import PROTOCOLS
from regraft.simulate.grove import Grove, Record, Setting

FOLDER = Path(__file__).parent / "reconfiguration"
PLACES = {  # of each node: across, down
    **{0: (230, 70), 1: (230, 170), 2: (230, 270), 6: (430, 270), 7: (430, 170), 8: (430, 70)},
    **{3: (130, 40), 4: (130, 170), 5: (130, 300), 9: (530, 40), 10: (530, 170), 11: (530, 300)},
    **{12: (40, 90), 13: (620, 90), 14: (40, 220), 15: (620, 220)},
}
NAMES = {0: "A", 2: "C", 6: "D", 8: "B"}
LINKS = (
    *((0, 1), (1, 2), (0, 3), (1, 4), (2, 5), (3, 12), (4, 14), (0, 8)),
    *((6, 7), (7, 8), (6, 11), (7, 10), (8, 9), (9, 13), (10, 15)),
)
WANTED = {  # by clients of each node
    **{3: "ab", 4: "cd", 5: "ef", 12: "ag", 14: "ch"},
    **{9: "pq", 10: "rs", 11: "et", 13: "pu", 15: "ra"},
}
WIDTH, HEIGHT = 680, 350


def substitution(protocol: str) -> Record:
    """The link between A and B is lost, and one between C and D takes its place."""
    grove = Grove(0, 1, Setting(protocol, latency_ms=(1, 1)))
    grove.sites += [grove.site(number) for number in range(1, len(PLACES))]
    for one, other in LINKS:
        grove.link(one, other)
    for number, letters in WANTED.items():
        for letter in letters:
            grove.subscribe(number, Filter(letter, True, ""))
    grove.run()
    grove.record = Record()
    (old,) = [way for way in grove.links() if (way.source.number, way.target.number) == (0, 8)]
    grove.replace(0, 8, 2, 6, grove.cut(old))
    grove.run()
    wrong = next(grove.complaints(), None)
    assert wrong is None, wrong
    return grove.record


def line(one: int, other: int, style: str) -> str:
    (x1, y1), (x2, y2) = PLACES[one], PLACES[other]
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" {style}/>'


def picture(protocol: str, record: Record) -> str:
    """The tree, and on each link how many messages went over it."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="13">',
        f"<title>{protocol}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        line(0, 8, 'stroke="#d55e00" stroke-width="2" stroke-dasharray="6 5"'),
        line(2, 6, 'stroke="#009e73" stroke-width="4"'),
    ]
    for one, other in LINKS:
        if (one, other) != (0, 8):
            parts.append(line(one, other, 'stroke="#888888" stroke-width="1.5"'))
    for one, other in (*LINKS, (2, 6)):
        count = record.on_link[one, other] + record.on_link[other, one]
        if count:
            x, y = ((a + b) / 2 for a, b in zip(PLACES[one], PLACES[other], strict=True))
            parts.append(f'<rect x="{x - 14:g}" y="{y - 10:g}" width="28" height="19" rx="5" '
                         'fill="#ffffff" stroke="#0072b2"/>')  # fmt: skip
            parts.append(f'<text x="{x:g}" y="{y + 4:g}" text-anchor="middle" '
                         f'fill="#0072b2">{count}</text>')  # fmt: skip
    for number, (x, y) in PLACES.items():
        fill = "#e69f00" if number in record.touched else "#ffffff"
        parts.append(f'<circle cx="{x}" cy="{y}" r="13" fill="{fill}" stroke="#000000"/>')
        name = NAMES.get(number, "")
        parts.append(f'<text x="{x}" y="{y + 5}" text-anchor="middle">{name}</text>')
    said = f"{protocol}: {record.messages} messages, {len(record.touched)} of 16 nodes"
    parts.append(f'<text x="{WIDTH / 2:g}" y="{HEIGHT - 12}" text-anchor="middle" '
                 f'font-weight="bold">{said}</text>')  # fmt: skip
    return "\n".join([*parts, "</svg>", ""])


def pictures() -> dict[str, str]:
    """All of them, by the name of their file."""
    return {f"{name}.svg": picture(name, substitution(name)) for name in PROTOCOLS}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, drawn in pictures().items():
        (FOLDER / name).write_text(drawn, encoding="utf-8")
        print(FOLDER / name)
