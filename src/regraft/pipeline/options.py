"""The options of the source, called as those of Spark's Kafka source where they mean the same.

What is not known is refused, and so is what contradicts itself: an option that is passed over in
silence would be noticed when data is missing.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from regraft.errors import LocalError
from regraft.model.selector import Selector, ast, text_of
from regraft.model.topics import check_pattern

EARLIEST, LATEST = -2, -1  # as Kafka says it in JSON
RECORDS_PER_PARTITION = 500_000

KNOWN = (
    *("url", "subscribe", "subscribePattern", "topics", "selector"),
    *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
    *("startingOffsetsByTimestampStrategy", "endingOffsets", "endingTimestamp"),
    *("endingOffsetsByTimestamp", "maxOffsetsPerTrigger", "minPartitions"),
    *("maxRecordsPerPartition", "failOnDataLoss", "includeHeaders", "pushdown"),
)
_NAMES = {name.lower(): name for name in KNOWN}
_ENDING = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")


def refuse(text: str) -> LocalError:
    """What a wrong option gets."""
    return LocalError("bad-configuration", text)


def url_of(options: Mapping[str, str]) -> str | None:
    """Where the node is, as it is known where the query is planned, not where tasks run."""
    return options.get("url") or os.environ.get("REGRAFT_URL") or None


@dataclass(frozen=True)
class Bounds:
    """Where to begin or to end, for each stream: a sequence, EARLIEST, LATEST or a moment."""

    everywhere: int = EARLIEST
    streams: Mapping[str, int] = field(default_factory=dict)
    time_us: int = 0  # if not 0, it counts
    times_us: Mapping[str, int] = field(default_factory=dict)
    journal: str = ""  # whose sequences these are, if it was said
    or_latest: bool = False  # where nothing is as young as the moment


@dataclass(frozen=True)
class Options:
    """What the options say."""

    url: str | None = None
    names: tuple[str, ...] = ()
    name_pattern: str = ""
    selector: str = ""
    starting: Bounds = Bounds()
    ending: Bounds = Bounds(LATEST)
    max_per_trigger: int = 0
    min_partitions: int = 1
    max_per_partition: int = RECORDS_PER_PARTITION
    fail_on_data_loss: bool = True
    headers: bool = False
    pushdown: bool = False

    @classmethod
    def read(cls, given: Mapping[str, str], streaming: bool = False) -> Options:
        """Read them; LocalError says what is wrong with one."""
        options = {key.lower(): value for key, value in given.items()}
        _check_names(options, streaming)
        names, name_pattern = _streams(options)
        everywhere = LATEST if streaming else EARLIEST
        return cls(
            url=url_of(options),
            names=names,
            name_pattern=name_pattern,
            selector=_selector(options),
            starting=_bounds(options, "starting", everywhere),
            ending=_bounds(options, "ending", LATEST),
            max_per_trigger=_number(options, "maxOffsetsPerTrigger", 0),
            min_partitions=_number(options, "minPartitions", 1),
            max_per_partition=_number(options, "maxRecordsPerPartition", RECORDS_PER_PARTITION),
            fail_on_data_loss=_truth(options, "failOnDataLoss", True),
            headers=_truth(options, "includeHeaders", False),
            pushdown=_truth(options, "pushdown", False),
        )

    def wants(self, name: str) -> bool:
        """Whether a stream is to be read."""
        if self.names:
            return name in self.names
        return re.fullmatch(self.name_pattern, name) is not None


def _check_names(options: Mapping[str, str], streaming: bool) -> None:
    for key in options:
        if key.startswith("kafka."):
            raise refuse(f"option {key!r} is one of Kafka; here it is url, as in 127.0.0.1:7447")
        if key not in _NAMES:
            near = difflib.get_close_matches(key, _NAMES, n=1)
            hint = f"did you mean {_NAMES[near[0]]}?" if near else f"there are {', '.join(KNOWN)}"
            raise refuse(f"there is no option {key!r}; {hint}")
    if streaming:
        for name in _ENDING:
            if name.lower() in options:
                raise refuse(f"option {name} is for spark.read; a stream has no end")


def _streams(options: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
    subscribe, pattern = options.get("subscribe"), options.get("subscribepattern")
    if (subscribe is None) == (pattern is None):
        raise refuse(
            "say which streams to read: subscribe (names, with commas) or subscribePattern (a "
            "regular expression of names), one of them; [[streams]] in the node's configuration "
            "names them, and `regraft inspect journal` lists them"
        )
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise refuse(
                f"subscribePattern {pattern!r} is no regular expression: {error}"
            ) from None
        return (), pattern
    assert subscribe is not None
    names = tuple(sorted({name.strip() for name in subscribe.split(",") if name.strip()}))
    if not names:
        raise refuse("option subscribe names no stream")
    return names, ""


def _selector(options: Mapping[str, str]) -> str:
    """The selector, and the topics as a part of it."""
    parts = []
    patterns = [one.strip() for one in options.get("topics", "").split(",") if one.strip()]
    for pattern in patterns:
        check_pattern(pattern)
    if patterns:
        tests = (f"TOPIC({text_of(ast.Literal(pattern))})" for pattern in patterns)
        parts.append(" OR ".join(tests))
    if options.get("selector", "").strip():
        parts.append(options["selector"])
    return both(*parts)


def both(*selectors: str) -> str:
    """A selector for what all of these match."""
    parts = [one for one in selectors if one]
    text = parts[0] if len(parts) == 1 else " AND ".join(f"({one})" for one in parts)
    if text:
        Selector.parse(text)
    return text


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name.lower())
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise refuse(f"option {name} must be a whole number above 0, not {text!r}")
    return value


def _truth(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name.lower())
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise refuse(f"option {name} is true or false, not {text!r}")
    return text.lower() == "true"


# --------------------------------------------------------------------------------- bounds


def _bounds(options: Mapping[str, str], end: str, everywhere: int) -> Bounds:
    """Where to begin or to end: a moment counts before those per stream, these before offsets."""
    strategy = options.get("startingoffsetsbytimestampstrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise refuse("option startingOffsetsByTimestampStrategy is error or latest")
    or_latest = strategy == "latest" or end == "ending"
    if (text := options.get(f"{end}timestamp")) is not None:
        time_us = _time_us(f"{end}Timestamp", text)
        return Bounds(everywhere, time_us=time_us, or_latest=or_latest)
    if (text := options.get(f"{end}offsetsbytimestamp")) is not None:
        name = f"{end}OffsetsByTimestamp"
        times = {stream: _time_us(name, value) for stream, value in _per_stream(name, text).items()}
        return Bounds(everywhere, times_us=times, or_latest=or_latest)
    text = options.get(f"{end}offsets")
    if text is None:
        return Bounds(everywhere)
    if text.lower() == "latest":
        return Bounds(LATEST)
    if text.lower() == "earliest" and end == "starting":
        return Bounds(EARLIEST)
    return _from_json(f"{end}Offsets", text, everywhere)


def _from_json(name: str, text: str, everywhere: int) -> Bounds:
    journal = ""
    loaded = _json(name, text)
    if isinstance(loaded, dict) and set(loaded) == {"journal", "streams"}:  # as in a checkpoint
        journal, text = str(loaded["journal"]), json.dumps(loaded["streams"])
    streams = _per_stream(name, text)
    for stream, sequence in streams.items():
        if sequence < EARLIEST or (sequence == EARLIEST and name.startswith("ending")):
            raise refuse(f"option {name}: {sequence} of stream {stream!r} cannot be")
    return Bounds(everywhere, streams, journal=journal)


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise refuse(
            f'option {name} is earliest, latest, or JSON as {{"orders": {{"0": 42}}}}, not {text!r}'
        ) from None


def _per_stream(name: str, text: str) -> dict[str, int]:
    """`{"orders": {"0": 42}}` as Kafka has it, or `{"orders": 42}`: streams have one partition."""
    loaded = _json(name, text)
    found: dict[str, int] = {}
    for stream, value in loaded.items() if isinstance(loaded, dict) else ():
        if isinstance(value, dict) and set(value) == {"0"}:
            value = value["0"]
        if type(value) is not int:
            raise refuse(f"option {name}: stream {stream!r} has partition 0 only, and a number")
        found[stream] = value
    if not found:
        raise refuse(f'option {name} wants JSON as {{"orders": {{"0": 42}}}}, not {text!r}')
    return found


def _time_us(name: str, value: object) -> int:
    """Kafka's moments are milliseconds since 1970 UTC."""
    try:
        millis = int(str(value))
    except ValueError:
        millis = 0
    if millis <= 0:
        raise refuse(f"option {name} is in milliseconds since 1970 UTC, not {value!r}")
    return millis * 1000
