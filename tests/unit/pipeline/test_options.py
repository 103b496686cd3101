"""Options of the source: what they say, and what is refused."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="pip install 'regraft[spark]'")

import itertools

from regraft.errors import LocalError
from regraft.pipeline.lag import lag_of
from regraft.pipeline.options import EARLIEST, LATEST, Bounds, Options
from regraft.pipeline.rows import table_schema
from regraft.pipeline.source import Known, Stream, Table, ends_of, offset, share

ONE = {"subscribe": "a"}


def test_what_is_not_said() -> None:
    options = Options.read({"subscribe": "b, a ,b"})
    assert (options.names, options.name_pattern, options.url) == (("a", "b"), "", None)
    assert (options.starting, options.ending) == (Bounds(EARLIEST), Bounds(LATEST))
    assert Options.read(ONE, streaming=True).starting == Bounds(LATEST)
    assert options.fail_on_data_loss and not options.headers and not options.pushdown


def test_names_are_read_in_any_case() -> None:
    options = Options.read({"SUBSCRIBEPATTERN": "a.*", "maxoffsetspertrigger": "5"})
    assert options.wants("ab") and not options.wants("ba")
    assert options.max_per_trigger == 5


def test_bounds() -> None:
    def starting(**more: str) -> Bounds:
        return Options.read(ONE | more).starting

    assert starting(startingOffsets="Latest") == Bounds(LATEST)
    assert starting(startingOffsets='{"a": {"0": 5}, "b": -1}').streams == {"a": 5, "b": -1}
    whole = starting(startingOffsets='{"journal": "ff", "streams": {"a": {"0": 7}}}')
    assert (whole.journal, whole.streams) == ("ff", {"a": 7})
    assert starting(startingTimestamp="12", startingOffsets="latest").time_us == 12_000
    assert starting(startingOffsetsByTimestamp='{"a": {"0": 3}}').times_us == {"a": 3000}


def test_topics_are_a_part_of_the_selector() -> None:
    assert Options.read(ONE | {"topics": "a/+, b"}).selector == "TOPIC('a/+') OR TOPIC('b')"
    both = Options.read(ONE | {"topics": "a", "selector": "x = 1 OR y = 2"})
    assert both.selector == "(TOPIC('a')) AND (x = 1 OR y = 2)"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "say which streams"),
        ({"subscribe": "a", "subscribePattern": "b"}, "one of them"),
        ({"subscribe": " , "}, "names no stream"),
        ({"subscribePattern": "("}, "no regular expression"),
        (ONE | {"startingOfset": "x"}, "did you mean startingOffsets"),
        (ONE | {"colour": "red"}, "there are url, subscribe"),
        (ONE | {"kafka.group.id": "x"}, "is one of Kafka"),
        (ONE | {"startingOffsets": "[]"}, "wants JSON"),
        (ONE | {"startingOffsets": '{"a": {"1": 5}}'}, "partition 0 only"),
        (ONE | {"startingOffsets": '{"a": -3}'}, "cannot be"),
        (ONE | {"endingOffsets": '{"a": -2}'}, "cannot be"),
        (ONE | {"startingTimestamp": "-1"}, "milliseconds"),
        (ONE | {"startingOffsetsByTimestampStrategy": "never"}, "error or latest"),
        (ONE | {"maxOffsetsPerTrigger": "many"}, "whole number"),
        (ONE | {"includeHeaders": "yes"}, "true or false"),
        (ONE | {"selector": "a ="}, "found the end"),
    ],
)
def test_what_is_wrong(given: dict[str, str], text: str) -> None:
    with pytest.raises(LocalError, match=text):
        Options.read(given)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(LocalError, match="has no end"):
        Options.read(ONE | {"endingOffsets": "latest"}, streaming=True)


# --------------------------------------------------------------------------------- offsets


def test_offsets_are_the_same_text_whatever_the_order() -> None:
    one = offset("ff", {"b": 2, "a": 1})
    assert str(one) == str(offset("ff", {"a": 1, "b": 2}))
    assert ends_of(one, "ff") == {"a": 1, "b": 2}
    with pytest.raises(LocalError, match="of journal ff, and this node has ee"):
        ends_of(one, "ee")
    with pytest.raises(LocalError, match="no offset"):
        ends_of({"x": 1}, "ff")


def test_a_limit_is_shared_in_proportion_and_used_up() -> None:
    assert share({"a": 10, "b": 0}, 20) == {"a": 10, "b": 0}
    assert share({"a": 300, "b": 100, "c": 0}, 100) == {"a": 75, "b": 25, "c": 0}
    for most in range(1, 30):
        parts = share({"a": 7, "b": 13, "c": 1, "d": 9}, most)
        assert sum(parts.values()) == most
        assert all(parts[k] <= v for k, v in {"a": 7, "b": 13, "c": 1, "d": 9}.items())


def table(**options: str) -> Table:
    return Table(table_schema(False), Options.read(ONE | options))


def test_ranges_cover_everything_once() -> None:
    known = Known("ff", {"a": 1, "b": 1}, {"a": 1001, "b": 11})
    for pieces in (1, 2, 3, 7, 2000):
        made = table(minPartitions=str(pieces)).ranges(known, known.first, known.next)
        assert len(made) >= min(pieces, 2)
        for stream in ("a", "b"):
            mine = [(one.low, one.high) for one in made if one.stream == stream]
            assert mine[0][0] == 1 and mine[-1][1] == known.next[stream]
            assert all(one[1] == other[0] for one, other in itertools.pairwise(mine))
            assert all(low < high for low, high in mine)
    assert table().ranges(known, known.next, known.next) == []
    small = table(maxRecordsPerPartition="100").ranges(known, known.first, known.next)
    assert max(one.high - one.low for one in small) <= 100


def test_a_stream_that_went_back_is_another_one() -> None:
    stream = Stream(table_schema(False), Options.read(ONE, streaming=True))
    stream.target = Known("ff", {"a": 1}, {"a": 50})
    with pytest.raises(LocalError, match="older copy"):
        stream.latestOffset(offset("ff", {"a": 60}), stream.getDefaultReadLimit())
    assert stream.latestOffset(offset("ff", {"a": 20}), stream.getDefaultReadLimit()) == offset(
        "ff", {"a": 50}
    )


def test_lag() -> None:
    progress = {
        "sources": [
            {
                "endOffset": '{"journal": "f", "streams": {"a": {"0": 5}}}',
                "latestOffset": {"journal": "f", "streams": {"a": {"0": 12}, "b": {"0": 3}}},
            },
            {"endOffset": "17", "latestOffset": None},
        ]
    }
    assert lag_of(progress) == {"a": 7}
    assert lag_of({}) == {}


def test_the_address_is_that_of_the_one_who_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGRAFT_URL", "10.0.0.5:7447")
    assert Options.read({"subscribe": "a"}).url == "10.0.0.5:7447"
    assert Options.read({"subscribe": "a", "url": "10.0.0.6"}).url == "10.0.0.6"
    monkeypatch.delenv("REGRAFT_URL")
    assert Options.read({"subscribe": "a"}).url is None
