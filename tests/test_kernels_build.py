"""How kernels are loaded, and the checksum: known answers, and compiled equal to interpreted."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from regraft import kernels
from regraft.kernels import checksum

TWIN = kernels.load_interpreted()["checksum"]

KNOWN = [
    (b"", 0),
    (b"a", 0xC1D04330),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(reversed(range(32))), 0x113FDB5C),
]
BIG = [511, 767, 768, 769, 1100, 4096, 6143, 6144, 6145, 6167, 6168, 12288, 12300, 65536, 100_003]


@pytest.fixture
def source() -> random.Random:
    return random.Random(20)


@pytest.mark.parametrize(("data", "expected"), KNOWN)
def test_known_answers(data: bytes, expected: int) -> None:
    for module in (checksum, TWIN):
        assert module.crc32c(data) == expected
        assert module.crc32c_portable(data) == expected
    assert TWIN.crc32c_at(data, 0, len(data)) == expected


def test_compiled_equals_interpreted_at_every_length(source: random.Random) -> None:
    for length in [*range(301), *BIG]:
        data = source.randbytes(length)
        expected = TWIN.crc32c(data)
        assert checksum.crc32c(data) == expected, length
        assert checksum.crc32c_portable(data) == expected, length


def test_alignment_does_not_matter(source: random.Random) -> None:
    data = memoryview(source.randbytes(1000))
    for offset in range(17):
        for length in (0, 1, 7, 8, 9, 63, 191, 192, 200, 777, 983):
            piece = data[offset : offset + length]
            assert checksum.crc32c(piece) == TWIN.crc32c(piece), (offset, length)


def test_a_checksum_continues(source: random.Random) -> None:
    data = source.randbytes(700)
    whole = checksum.crc32c(data)
    for cut in (0, 1, 8, 191, 350, 699, 700):
        for module in (checksum, TWIN):
            assert module.crc32c(data[cut:], module.crc32c(data[:cut])) == whole
            assert module.crc32c_portable(data[cut:], module.crc32c(data[:cut])) == whole


def test_every_bytes_like_is_taken() -> None:
    for module in (checksum, TWIN):
        for kind in (bytes, bytearray, memoryview):
            assert module.crc32c(kind(b"123456789")) == 0xE3069283


def test_the_twin_is_interpreted_and_leaves_the_module_in_place() -> None:
    assert str(TWIN.__file__).endswith("checksum.py")
    assert TWIN is not checksum
    assert sys.modules["regraft.kernels.checksum"] is checksum
    assert kernels.checksum is checksum


def test_kernels_load_without_cython(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cython", None)
    modules = kernels.load_interpreted()
    for module in (modules[name] for name in kernels.KERNELS):
        assert module.cython.__name__ == "regraft.kernels._shadow"


def test_compiled_where_that_is_required() -> None:
    kernels.require_compiled()
    if os.environ.get("REGRAFT_REQUIRE_COMPILED") == "1":
        assert kernels.is_compiled()
        assert kernels.describe() == "compiled"


def fake_origins(monkeypatch: pytest.MonkeyPatch, endings: dict[str, str]) -> None:
    found = {leaf: f"{leaf}{ending}" for leaf, ending in endings.items()}
    monkeypatch.setattr(kernels, "_origins", lambda: found)


def test_a_mix_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = kernels.EXTENSION_SUFFIXES[0]
    fake_origins(monkeypatch, {"checksum": shared, "frame": ".py", "lane": shared})
    assert kernels.describe() == "mixed: frame interpreted, the others compiled"
    assert not kernels.is_compiled()
    fake_origins(monkeypatch, {"checksum": shared, "frame": shared})
    assert kernels.describe() == "compiled"
    fake_origins(monkeypatch, {"checksum": ".py", "frame": ".py"})
    assert kernels.describe() == "interpreted"


def test_interpreted_kernels_are_refused_where_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_origins(monkeypatch, {"checksum": ".py"})
    monkeypatch.setenv("REGRAFT_REQUIRE_COMPILED", "0")
    kernels.require_compiled()
    monkeypatch.setenv("REGRAFT_REQUIRE_COMPILED", "1")
    with pytest.raises(kernels.InterpretedKernelError, match="the kernels are interpreted"):
        kernels.require_compiled()


SAY = """
import regraft.kernels as k, regraft.kernels.checksum as c
print(k.describe(), c.crc32c(b'123456789') == 0xE3069283, c.__file__.endswith('.py'))
"""


def test_a_process_can_choose_the_sources() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SAY],
        env=os.environ | {"REGRAFT_KERNELS": "interpreted"},
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["interpreted", "True", "True"]


def test_an_unknown_choice_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SAY],
        env=os.environ | {"REGRAFT_KERNELS": "fast"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "REGRAFT_KERNELS is 'fast'" in done.stderr
