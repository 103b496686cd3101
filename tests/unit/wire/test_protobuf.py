"""Checks the table-driven codec with a message that has a field of every kind."""

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any

import pytest

from regraft.errors import LocalError, PeerError
from regraft.model import varint
from regraft.wire import protobuf
from regraft.wire.protobuf import decode, encode


class Shape(IntEnum):
    ROUND = 0
    SQUARE = 1


@dataclass(frozen=True, slots=True)
class Inner:
    label: str = protobuf.string(1)


@dataclass(frozen=True, slots=True)
class Sample:
    last: int = protobuf.uint32(16)  # declared first, written last
    small: int = protobuf.uint32(1)
    large: int = protobuf.uint64(2)
    flag: bool = protobuf.boolean(3)
    signed: int = protobuf.sint64(4)
    f32: int = protobuf.fixed32(5)
    f64: int = protobuf.fixed64(6)
    s64: int = protobuf.sfixed64(7)
    real: float = protobuf.double(8)
    text: str = protobuf.string(9)
    data: bytes = protobuf.octets(10)
    shape: Shape = protobuf.enumeration(11, Shape)  # noqa: RUF009, it declares a field
    inner: Inner | None = protobuf.message(12, Inner)  # noqa: RUF009
    numbers: tuple[int, ...] = protobuf.repeated(13, varint.UINT32)
    inners: tuple[Inner, ...] = protobuf.repeated(14, Inner)
    reals: tuple[float, ...] = protobuf.repeated(15, varint.DOUBLE)


FULL = Sample(
    last=1,
    small=2**32 - 1,
    large=2**64 - 1,
    flag=True,
    signed=-(2**63),
    f32=1,
    f64=2,
    s64=-3,
    real=1.5,
    text="é",
    data=b"\x00",
    shape=Shape.SQUARE,
    inner=Inner("x"),
    numbers=(0, 1, 300),
    inners=(Inner(), Inner("y")),
    reals=(0.0, 2.5),
)


def read(text: str) -> Sample:
    return decode(Sample, bytes.fromhex(text))


def test_a_full_message_comes_back() -> None:
    assert decode(Sample, encode(FULL)) == FULL
    numbers = [raw.number for raw in varint.read_fields(encode(FULL))]
    assert numbers == sorted(numbers)


@pytest.mark.parametrize("name", [field.name for field in fields(Sample)])
def test_each_field_alone_comes_back(name: str) -> None:
    sample = Sample(**{name: getattr(FULL, name)})
    assert encode(sample) != b""
    assert decode(Sample, encode(sample)) == sample


def test_absent_is_zero_and_zero_is_not_written() -> None:
    assert encode(Sample()) == b""
    found = read("")
    assert found == Sample(0, 0, 0, False, 0, 0, 0, 0, 0.0, "", b"", Shape.ROUND, None)
    assert type(found.shape) is Shape


def test_a_written_zero_is_read() -> None:
    assert read("0800" + "1800" + "4a00" + "5800" + "6a00") == Sample()


def test_minus_zero_is_not_zero() -> None:
    assert encode(Sample(real=-0.0)).hex() == "410000000000000080"


def test_an_empty_message_is_not_an_absent_one() -> None:
    assert encode(Sample(inner=Inner())).hex() == "6200"
    assert read("6200").inner == Inner()


def test_repeated_numbers_are_written_packed_and_read_either_way() -> None:
    assert encode(Sample(numbers=(1, 300))).hex() == "6a0301ac02"
    assert read("6801" + "68ac02").numbers == (1, 300)
    assert read("6a0101" + "6802" + "6a020304").numbers == (1, 2, 3, 4)


def test_unknown_fields_are_skipped() -> None:
    unknown = "a00601" + "a206020102" + "a1060102030405060708" + "a50601020304"
    assert read(unknown + "0805" + unknown) == Sample(small=5)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("08010801", "Sample.small: .*twice"),
        ("08000800", "Sample.small: .*twice"),
        ("4a004a00", "Sample.text: .*twice"),
        ("62006200", "Sample.inner: .*twice"),
        ("0b0c", "Sample: field 1: wire type 3"),
        ("a306a406", "Sample: field 100: wire type 3"),
        ("a406", "Sample: field 100: wire type 4"),
        ("0e", "Sample: field 1: wire type 6"),
        ("0f", "Sample: field 1: wire type 7"),
        ("0a00", "Sample.small: wire type 2"),
        ("0d00000000", "Sample.small: wire type 5"),
        ("2801", "Sample.f32: wire type 0"),
        ("4801", "Sample.text: wire type 0"),
        ("6801" + "6d00000000", "Sample.numbers: wire type 5"),
        ("7001", "Sample.inners: wire type 0"),
        ("08", "Sample: field 1: a varint is cut off"),
        ("0880", "Sample: field 1: a varint is cut off"),
        ("80", "Sample: a varint is cut off"),
        ("10" + "80" * 10 + "00", "Sample: field 2: a varint does not fit 64 bits"),
        ("10" + "ff" * 9 + "02", "Sample: field 2: a varint does not fit 64 bits"),
        ("088080808010", "Sample.small: 4294967296 is not between"),
        ("6a058080808010", "Sample.numbers: 4294967296 is not between"),
        ("0001", "Sample: field number 0"),
        ("4a01ff", "Sample.text: the string is not UTF-8"),
        ("4a0261", "Sample: field 9: the value is cut off"),
        ("1802", "Sample.flag: a bool is 0 or 1, not 2"),
        ("5802", "Sample.shape: 2 is no Shape"),
        ("62030a01ff", "Inner.label: the string is not UTF-8"),
        ("72040a000a00", "Inner.label: .*twice"),
        ("6a0180", "Sample.numbers: a varint is cut off"),
        ("7a0401020304", "Sample.reals: a packed number is cut off"),
    ],
)
def test_what_is_refused(data: str, reason: str) -> None:
    with pytest.raises(PeerError, match=reason) as caught:
        read(data)
    assert caught.value.code.name == "malformed-envelope"


def test_repeated_fields_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf, "REPEATED_MAX", 3)
    assert read("6a03010203").numbers == (1, 2, 3)
    for data in ("6a0401020304", "6801" * 4, "7200" * 4):
        with pytest.raises(PeerError, match="more than 3 elements"):
            read(data)
    with pytest.raises(LocalError, match="4 elements; the limit is 3"):
        encode(Sample(numbers=(1, 2, 3, 4)))


def wrong(**changes: Any) -> Sample:
    return Sample(**changes)


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        (wrong(small=2**32), "Sample.small: 4294967296 is not between"),
        (wrong(small=-1), "Sample.small: -1"),
        (wrong(text=None), "Sample.text: a string is needed, not NoneType"),
        (wrong(data="a"), "Sample.data: bytes are needed"),
        (wrong(flag=1), "Sample.flag: True or False"),
        (wrong(shape=7), "Sample.shape: 7 is no Shape"),
        (wrong(inner="x"), "Sample.inner: a Inner is needed, not str"),
        (wrong(inners=(None,)), "Sample.inners: a Inner is needed, not NoneType"),
        (wrong(numbers=5), "Sample.numbers: a tuple is needed"),
        (wrong(inner=Inner("\ud800")), "Inner.label: .*UTF-8"),
    ],
)
def test_what_cannot_be_encoded(sample: Sample, reason: str) -> None:
    with pytest.raises(LocalError, match=reason) as caught:
        encode(sample)
    assert caught.value.code.name == "bad-message"
