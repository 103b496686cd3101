"""How places in a stream and moments are written in a shell."""

from __future__ import annotations

import time
from datetime import datetime

import pytest

from regraft.commands.common import Place, counted, describe_time, parse_place
from regraft.errors import LocalError

US = 1_000_000


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("start", Place(0, 1)),
        ("#0", Place(0, 1)),
        ("#77", Place(0, 77)),
        ("2026-11-15T10:00Z", Place(1_794_736_800 * US, 0)),
        ("2026-11-15T11:00:00.5+01:00", Place(1_794_736_800 * US + US // 2, 0)),
        ("1960-01-01", Place(1, 0)),
    ],
)
def test_places(text: str, place: Place) -> None:
    assert parse_place(text) == place


def test_without_a_zone_it_is_the_time_here() -> None:
    moment = datetime(2026, 11, 15, 10, 0)
    assert parse_place("2026-11-15T10:00").time_us == int(moment.timestamp()) * US
    assert parse_place("2026-11-15").time_us == int(datetime(2026, 11, 15).timestamp()) * US


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("-90s", 90), ("-1.5m", 90), ("-2h", 7200), ("-1d", 86400), ("-1w", 604800)],
)
def test_ages(text: str, seconds: float) -> None:
    assert abs(time.time() - seconds - parse_place(text).time_us / US) < 60


def test_now() -> None:
    assert abs(time.time() - parse_place("now").time_us / US) < 60


@pytest.mark.parametrize("text", ["", "1h", "-1y", "-h", "#", "#-1", "#1.5", "later", "2026-13-01"])
def test_other_texts_are_no_place(text: str) -> None:
    with pytest.raises(LocalError, match="is no place: write start"):
        parse_place(text)


def test_moments_and_numbers_as_people_read_them() -> None:
    assert describe_time(1_794_736_800_123_456) == "2026-11-15T10:00:00.123Z"
    assert describe_time(0) == ""
    assert (counted(1, "message"), counted(2000, "message")) == ("1 message", "2,000 messages")
