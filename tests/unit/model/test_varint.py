"""Checks the primitives of Protocol Buffers: exact bytes, ranges, and what is refused."""

from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regraft.model import varint
from regraft.model.varint import Malformed, Scalar, read_fields, read_varint, write_varint


class Colour(IntEnum):
    RED = 0
    BLUE = 5


@pytest.mark.parametrize(
    ("value", "written"),
    [(0, "00"), (1, "01"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**64 - 1, "ff" * 9 + "01")],
)
def test_varints_have_the_shortest_form(value: int, written: str) -> None:
    assert write_varint(value).hex() == written
    assert read_varint(bytes.fromhex(written), 0) == (value, len(written) // 2)


def test_longer_forms_of_a_small_number_are_read() -> None:
    assert read_varint(b"\x80\x00", 0) == (0, 2)
    assert read_varint(b"\x81" + b"\x80" * 8 + b"\x00", 0) == (1, 10)


@pytest.mark.parametrize("written", ["", "80", "80" * 9])
def test_a_varint_that_is_cut_off(written: str) -> None:
    with pytest.raises(Malformed, match="cut off"):
        read_varint(bytes.fromhex(written), 0)


@pytest.mark.parametrize("written", ["80" * 10 + "00", "ff" * 9 + "02", "ff" * 10 + "01"])
def test_a_varint_beyond_64_bits(written: str) -> None:
    with pytest.raises(Malformed, match="64 bits"):
        read_varint(bytes.fromhex(written), 0)


@pytest.mark.parametrize("written", ["8080808010", "808080808000"])
def test_a_tag_or_length_beyond_32_bits(written: str) -> None:
    with pytest.raises(Malformed, match="32 bits"):
        read_varint(bytes.fromhex(written), 0, 32)
    with pytest.raises(Malformed, match="32 bits"):
        list(read_fields(bytes.fromhex(written) + b"\x00"))
    with pytest.raises(Malformed, match="32 bits"):
        list(read_fields(b"\x0a" + bytes.fromhex(written)))


def test_the_walk_over_fields() -> None:
    data = bytes.fromhex("0896011202abcd1901020304050607082501020304")
    found = [(raw.number, raw.wire, raw.value, raw.start, raw.end) for raw in read_fields(data)]
    assert found == [
        (1, 0, 150, 0, 3),
        (2, 2, b"\xab\xcd", 3, 7),
        (3, 1, bytes(range(1, 9)), 7, 16),
        (4, 5, bytes(range(1, 5)), 16, 21),
    ]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("0001", "field number 0"),
        ("0b", "field 1: wire type 3"),
        ("0c", "field 1: wire type 4"),
        ("0e", "field 1: wire type 6"),
        ("0f", "field 1: wire type 7"),
        ("08", "field 1: a varint is cut off"),
        ("0a", "field 1: a varint is cut off"),
        ("0a0201", "field 1: the value is cut off"),
        ("0901020304050607", "field 1: the value is cut off"),
        ("0d010203", "field 1: the value is cut off"),
    ],
)
def test_what_is_no_field(data: str, reason: str) -> None:
    with pytest.raises(Malformed, match=reason):
        list(read_fields(bytes.fromhex(data)))


WRITTEN: list[tuple[Scalar, Any, str]] = [
    (varint.UINT32, 2**32 - 1, "08ffffffff0f"),
    (varint.UINT64, 2**64 - 1, "08" + "ff" * 9 + "01"),
    (varint.BOOL, True, "0801"),
    (varint.BOOL, False, "0800"),
    (varint.SINT64, 0, "0800"),
    (varint.SINT64, -1, "0801"),
    (varint.SINT64, 1, "0802"),
    (varint.SINT64, 2**63 - 1, "08fe" + "ff" * 8 + "01"),
    (varint.SINT64, -(2**63), "08" + "ff" * 9 + "01"),
    (varint.FIXED32, 1, "0d01000000"),
    (varint.FIXED64, 2**64 - 1, "09" + "ff" * 8),
    (varint.SFIXED64, -1, "09" + "ff" * 8),
    (varint.SFIXED64, -(2**63), "0900000000000000" + "80"),
    (varint.DOUBLE, 1.0, "09000000000000f03f"),
    (varint.STRING, "é", "0a02c3a9"),
    (varint.BYTES, b"\xff", "0a01ff"),
    (varint.enum_of(Colour), Colour.BLUE, "0805"),
]


@pytest.mark.parametrize(("scalar", "value", "written"), WRITTEN)
def test_each_kind_has_these_bytes(scalar: Scalar, value: Any, written: str) -> None:
    assert scalar.write(1, value).hex() == written
    (raw,) = read_fields(bytes.fromhex(written))
    found = scalar.read(raw)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("scalar", "value", "reason"),
    [
        (varint.UINT32, 2**32, "not between"),
        (varint.UINT32, -1, "not between"),
        (varint.UINT64, 2**64, "not between"),
        (varint.FIXED32, 2**32, "not between"),
        (varint.FIXED64, 2**64, "not between"),
        (varint.SFIXED64, 2**63, "not between"),
        (varint.SFIXED64, -(2**63) - 1, "not between"),
        (varint.SINT64, 2**63, "not between"),
        (varint.SINT64, -(2**63) - 1, "not between"),
        (varint.UINT32, True, "a whole number"),
        (varint.UINT32, "1", "a whole number"),
        (varint.UINT64, 1.0, "a whole number"),
        (varint.BOOL, 1, "True or False"),
        (varint.DOUBLE, 1, "a float"),
        (varint.STRING, b"a", "a string"),
        (varint.STRING, "\ud800", "UTF-8"),
        (varint.BYTES, "a", "bytes"),
        (varint.enum_of(Colour), 1, "is no Colour"),
        (varint.enum_of(Colour), "RED", "is no Colour"),
    ],
)
def test_what_no_field_of_a_kind_can_hold(scalar: Scalar, value: Any, reason: str) -> None:
    with pytest.raises(Malformed, match=reason):
        scalar.write(1, value)


@pytest.mark.parametrize(
    ("scalar", "written", "reason"),
    [
        (varint.UINT32, "088080808010", "not between"),
        (varint.BOOL, "0802", "0 or 1"),
        (varint.STRING, "0a01ff", "not UTF-8"),
        (varint.STRING, "0a03eda080", "not UTF-8"),
        (varint.enum_of(Colour), "0801", "is no Colour"),
        (varint.enum_of(Colour), "08" + "ff" * 9 + "01", "is no Colour"),
        (varint.UINT32, "0d01000000", "wire type 5"),
        (varint.STRING, "0801", "wire type 0"),
        (varint.FIXED64, "0d01000000", "wire type 5"),
        (varint.DOUBLE, "0a00", "wire type 2"),
    ],
)
def test_what_is_read_of_a_kind_is_checked(scalar: Scalar, written: str, reason: str) -> None:
    (raw,) = read_fields(bytes.fromhex(written))
    with pytest.raises(Malformed, match=reason):
        scalar.read(raw)


@settings(derandomize=True)
@given(st.integers(0, 2**64 - 1))
def test_every_number_comes_back(value: int) -> None:
    written = write_varint(value)
    assert read_varint(b"\xff" + written + b"\xff", 1) == (value, 1 + len(written))
