"""A part of an archive: some topics, some time, a selector."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from regraft.errors import LocalError
from regraft.model.selector import Selector
from regraft.pipeline.archive import Archive
from regraft.pipeline.manifest import File
from regraft.pipeline.options import Options
from regraft.pipeline.selecting import column_of


@dataclass(frozen=True)
class Slice:
    """What is wanted of an archive; moments are µs since 1970 UTC, and 0 is not said."""

    topics: str = ""  # patterns, with commas
    selector: str = ""
    since_us: int = 0
    until_us: int = 0

    def __post_init__(self) -> None:
        if self.until_us and self.since_us >= self.until_us:
            raise LocalError("bad-configuration", "the time ends before it begins")
        self.text  # noqa: B018 - wrong ones are told at once

    @property
    def text(self) -> str:
        """Topics and selector, as one selector."""
        options = {"subscribe": "-", "topics": self.topics, "selector": self.selector}
        return Options.read(options).selector

    def files(self, archive: Archive) -> list[File]:
        """The files that may have some of it."""
        patterns = [one.strip() for one in self.topics.split(",") if one.strip()]
        return [
            file
            for file in archive.files(self.since_us, self.until_us)
            if not patterns
            or any(may_hold(one, place.area) for one in patterns for place in file.held)
        ]

    def frame(self, archive: Archive) -> DataFrame:
        """Its rows; `body` is always there, and `json` where it is JSON."""
        frame = archive.frame(self.files(archive), self.since_us, self.until_us)
        if self.text:
            frame = frame.where(column_of(Selector.parse(self.text)))
        return frame


def may_hold(pattern: str, area: str) -> bool:
    """Whether topics that begin with an area can match a pattern."""
    if area == "/":
        return True
    for wanted, level in zip(pattern.split("/"), area.split("/"), strict=False):
        if wanted == "#":
            return True
        if wanted not in ("+", level):
            return False
    return True


def body_of() -> Column:
    """The body as it was published."""
    return F.coalesce(F.col("body"), F.to_json("json").cast("binary")).alias("body")
