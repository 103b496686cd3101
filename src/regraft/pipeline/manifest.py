"""What an archive holds: which sequences of which streams, and in which files.

Rules:

- The manifest is the truth about an archive. It is a numbered file, `manifest/0000000042.json`, and
  the highest number counts. A change makes the next number, which can be made once: of two writers
  the second is told, and has changed nothing.
- What the manifest does not name is left over from a writer that was killed, and is removed.
- A stream of a journal is held from `low` to below `high`. Of what lies between, `lost` was gone
  before it could be archived, and `expired` was removed by retention; all else is in the files,
  once.
- A file of `data/` is of one area and day. One that is staged has rows of several, as they came;
  `places` says of which. Format 1 had staged files of one area and day, which are still read.
- `settling` is what a change has still to do in the folders when it is known to the manifest: names
  to be given, files to be removed. It is done by whoever opens the archive next.
"""

from __future__ import annotations

import time
from typing import TypeVar

import msgspec

from regraft.errors import DiskError, LocalError
from regraft.pipeline.store import Store

FORMAT = 2
READ = (1, 2)
FOLDER = "manifest"
STAGED = "staged"
DATA = "data"
KEPT = 20  # older ones are removed
AREAS_MAX = 1_000  # folders of topics
T = TypeVar("T")


class Part(msgspec.Struct):
    """What a file holds of one stream."""

    journal: str
    stream: str
    rows: int
    low: int
    high: int  # the sequence behind the last


class Place(msgspec.Struct, frozen=True):
    """How many rows of a file are of one area and day."""

    area: str
    day: str
    rows: int


class File(msgspec.Struct):
    """A Parquet file, all of whose rows are of one area and day, or which says what they are of."""

    path: str
    area: str
    day: str
    rows: int
    size: int
    first_us: int
    last_us: int
    parts: list[Part]
    places: list[Place] = []  # if there may be several

    @property
    def held(self) -> list[Place]:
        """The areas and days of its rows."""
        return self.places or [Place(self.area, self.day, self.rows)]

    @property
    def is_staged(self) -> bool:
        """Whether it waits for compaction."""
        return self.path.startswith(f"{STAGED}/")

    @property
    def order(self) -> tuple[str, str, int, str]:
        """Files in this order have their rows in the order of the journal."""
        first = self.parts[0]
        return first.journal, first.stream, first.low, self.path


class Held(msgspec.Struct):
    """How much of a stream is held."""

    journal: str
    stream: str
    low: int
    high: int
    lost: list[tuple[int, int]] = []
    expired: int = 0  # rows

    @property
    def rows(self) -> int:
        """How many rows there must be."""
        return self.high - self.low - sum(b - a for a, b in self.lost) - self.expired


class Settling(msgspec.Struct):
    """What remains to be done in the folders."""

    move: list[tuple[str, str]] = []
    remove: list[str] = []


class State(msgspec.Struct):
    """One version of the manifest."""

    format: int = FORMAT
    version: int = 0
    levels: int = 2
    columns: dict[str, str] = {}  # attributes that are columns, and their types
    streams: list[Held] = []
    files: list[File] = []
    settling: Settling = msgspec.field(default_factory=Settling)
    compacted_days: list[str] = []
    late_rows: int = 0  # that came for a day which was compacted before
    at: float = 0.0
    what: str = "made"

    def held(self, journal: str, stream: str) -> Held | None:
        """What is held of a stream."""
        for one in self.streams:
            if one.journal == journal and one.stream == stream:
                return one
        return None

    @property
    def rows(self) -> int:
        """All rows."""
        return sum(file.rows for file in self.files)

    @property
    def areas(self) -> set[str]:
        """All areas."""
        return {place.area for file in self.files for place in file.held}

    @property
    def days(self) -> set[str]:
        """All days."""
        return {place.day for file in self.files for place in file.held}

    def changed(self) -> State:
        """A copy that may be changed."""
        return msgspec.json.decode(msgspec.json.encode(self), type=State)


class Manifest:
    """The versions of one archive."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.state = State()

    @classmethod
    def open(cls, store: Store, levels: int | None = None, make: bool = False) -> Manifest:
        """Open an archive; with `make`, begin one where there is nothing."""
        manifest = cls(store)
        versions = manifest.versions()
        if versions:
            manifest.state = manifest.load(versions[-1])
            if levels is not None and levels != manifest.state.levels:
                raise LocalError(
                    "bad-configuration",
                    f"{store.root} has folders for the first {manifest.state.levels} levels of "
                    f"topics, not for {levels}; begin another archive for that",
                )
        elif not make:
            raise LocalError(
                "bad-configuration",
                f"{store.root} is no archive; `regraft pipeline archive {store.root}` begins one",
            )
        else:
            others = [one.name for one in store.list()]
            if others:
                raise LocalError(
                    "bad-configuration",
                    f"{store.root} is no archive, and not empty ({', '.join(others[:3])}): "
                    "choose an empty folder",
                )
            manifest.commit(State(levels=2 if levels is None else levels), "made")
        return manifest

    def versions(self) -> list[int]:
        """The numbers that there are."""
        names = [entry.name for entry in self.store.list(FOLDER)]
        return sorted(int(name[:10]) for name in names if name.endswith(".json") and name[0] != ".")

    def load(self, version: int) -> State:
        """Read one."""
        name = _name(version)
        try:
            state = msgspec.json.decode(self.store.read(name), type=State)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise DiskError(
                "data-folder-damaged", f"{self.store.path(name)} is damaged: {error}"
            ) from None
        if state.format not in READ:
            raise DiskError(
                "data-folder-version",
                f"{self.store.root} has format {state.format}, and this Regraft knows "
                f"{READ[0]} to {READ[-1]}",
            )
        return state

    def commit(self, state: State, what: str) -> None:
        """Make a state the next version; LocalError if somebody else was faster."""
        state.format = FORMAT
        state.version = self.state.version + 1
        state.at = time.time()
        state.what = what
        if not self.store.make(_name(state.version), msgspec.json.encode(state)):
            raise LocalError(
                "bad-configuration",
                f"somebody else writes to {self.store.root}, too (version {state.version} is "
                "there): one job at a time can",
            )
        self.state = state
        for old in self.versions()[:-KEPT]:
            self.store.remove(_name(old))

    # --------------------------------------------------------------------------- folders

    def settle(self) -> int:
        """Finish what the last change had still to do; how much was not done yet."""
        settling = self.state.settling
        gone = [name for name in settling.remove if self.store.there(name)]
        for name in gone:
            self.store.remove(name)
        moves = [(old, new) for old, new in settling.move if not self.store.there(new)]
        for old, new in moves:
            self.store.move(old, new)
        return len(moves) + len(gone)

    def clean(self) -> list[str]:
        """Remove what killed writers have left; what that was."""
        named = {file.path for file in self.state.files}
        batches = {path.split("/")[1] for path in named if path.startswith(f"{STAGED}/")}
        left = [f"{STAGED}/{one.name}" for one in self.store.list(STAGED)
                if one.name not in batches]  # fmt: skip
        for area in self.store.list(DATA):
            for day in self.store.list(f"{DATA}/{area.name}"):
                folder = f"{DATA}/{area.name}/{day.name}"
                entries = self.store.list(folder)
                paths = [f"{folder}/{one.name}" for one in entries]
                left += [path for path in paths if path not in named and path[-4:] != ".crc"]
                if not entries:
                    left.append(folder)
        for name in left:
            self.store.remove(name)
        return left


def _name(version: int) -> str:
    return f"{FOLDER}/{version:010d}.json"


def joined(parts: list[Part]) -> list[Part]:
    """Parts of several files as parts of one."""
    found: dict[tuple[str, str], Part] = {}
    for part in parts:
        key = (part.journal, part.stream)
        one = found.get(key)
        if one is None:
            found[key] = Part(part.journal, part.stream, part.rows, part.low, part.high)
        else:
            one.rows += part.rows
            one.low = min(one.low, part.low)
            one.high = max(one.high, part.high)
    return sorted(found.values(), key=lambda part: (part.journal, part.stream))
