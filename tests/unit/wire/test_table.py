"""Checks how the first bytes of a connection tell its protocol."""

import random

import pytest

from regraft.errors import PeerError
from regraft.wire.table import PREFACE_BYTES_MAX, PROTOCOLS, detect


@pytest.mark.parametrize(("name", "preface"), PROTOCOLS.items())
def test_a_protocol_is_known_by_its_preface(name: str, preface: bytes) -> None:
    assert detect(preface) == name
    assert detect(preface + b"\x00more") == name
    for size in range(len(preface)):
        assert detect(preface[:size]) is None


def test_no_preface_begins_another() -> None:
    for name, preface in PROTOCOLS.items():
        others = [other for key, other in PROTOCOLS.items() if key != name]
        assert not any(other.startswith(preface) for other in others)


@pytest.mark.parametrize(
    ("first", "advice"),
    [
        (b"GET / HTTP/1.1\r\n", "not HTTP"),
        (b"POST /x HTTP/1.1\r\n", "not HTTP"),
        (b"OPTIONS * HTTP/1.1\r\n", "not HTTP"),
        (b"PRI * HTTP/2.0\r\n", "not HTTP"),
        (b"\x16\x03\x01\x02\x00", "without TLS"),
        (b"REGRAFT\r", "begins with 52 45 47 52 41 46 54 0d"),
        (b"\x00\xff", "begins with 00 ff.*native"),
    ],
)
def test_other_beginnings_are_refused_with_advice(first: bytes, advice: str) -> None:
    with pytest.raises(PeerError, match=advice) as caught:
        detect(first)
    assert caught.value.code.name == "unknown-protocol"


def test_any_bytes_are_told_apart_in_time() -> None:
    choice = random.Random(7)
    for _ in range(2_000):
        first = choice.choice([b"", b"REG", b"G", b"\x16", b"OPTION"]) + choice.randbytes(10)
        try:
            assert detect(first[:PREFACE_BYTES_MAX]) in PROTOCOLS
        except PeerError as error:
            assert error.code.name == "unknown-protocol"
