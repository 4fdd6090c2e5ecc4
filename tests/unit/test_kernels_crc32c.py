"""CRC-32C: every variant against the others, at every size and alignment."""

from __future__ import annotations

import random
import re
from pathlib import Path

import kernel_reference as reference
import pytest
from kernel_reference import Guarded

from logstore import _native

SIZE_MAX = 2000
NOISE = random.Random(32).randbytes(SIZE_MAX + 64)
LARGE = random.Random(33).randbytes(200_000)


AVAILABLE = [name for name in _native.CRC_VARIANTS if _native.crc32c_with(name, b"") is not None]


@pytest.fixture(name="variant", params=AVAILABLE)
def _variant(request):
    return request.param


def test_table_is_always_there():
    """Every machine has the portable variant."""
    assert "table" in AVAILABLE


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"a", 0xC1D04330),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_known_values(variant, data, expected):
    """The vectors of RFC 3720, appendix B.4, and two more."""
    assert expected == _native.crc32c_with(variant, data)


def test_table_agrees_with_the_definition():
    """The table variant, judge of the others below, equals the bit by bit definition."""
    for size in (*range(40), 255, 256, 257):
        assert reference.crc32c(NOISE[:size]) == _native.crc32c_with("table", NOISE[:size])


def test_every_size(variant):
    """Sizes 0 to 2000: every combination of blocks and tail."""
    for size in range(SIZE_MAX + 1):
        expected = _native.crc32c_with("table", NOISE[:size])
        assert expected == _native.crc32c_with(variant, NOISE[:size]), size


def test_every_alignment(variant):
    """Starts 0 to 63 bytes into memory, for sizes around each threshold."""
    view = memoryview(NOISE)
    for start in range(64):
        for size in (1, 7, 63, 127, 255, 256, 257, 511, 1007, 1008, 1009, 1500):
            part = view[start : start + size]
            assert _native.crc32c_with("table", part) == _native.crc32c_with(variant, part)


def test_large(variant):
    """The blocks of large inputs, at several alignments and with a tail."""
    for start, size in (
        (0, 200_000),
        (1, 12_288),
        (3, 12_287),
        (5, 65_536),
        (8, 131_071),
        (0, 12_289),
    ):
        part = LARGE[start : start + size]
        assert _native.crc32c_with("table", part) == _native.crc32c_with(variant, part), size


def test_continues(variant):
    """A CRC in two parts equals the CRC of the whole, wherever the cut is."""
    expected = _native.crc32c(NOISE)
    for cut in (0, 1, 8, 63, 64, 100, 256, 1000, len(NOISE)):
        first = _native.crc32c_with(variant, NOISE[:cut])
        assert expected == _native.crc32c_with(variant, NOISE[cut:], first)


def test_reads_nothing_beyond(variant):
    """The bytes may be the last readable ones, and the first."""
    guarded = Guarded(4096)
    for size in range(0, 1200, 7):
        for at_end in (True, False):
            part = guarded(NOISE[:size], at_end=at_end)
            assert _native.crc32c_with("table", NOISE[:size]) == _native.crc32c_with(variant, part)


def test_chosen_variant():
    """What the library chooses gives the same at the sizes where it changes its mind."""
    for size in (0, 1, 16, 100, 399, 400, 401, 1023, 1024, 4096, 12_288, 65_536, 100_000):
        assert _native.crc32c_with("table", LARGE[:size]) == _native.crc32c(LARGE[:size])


@pytest.mark.repository
def test_table_is_the_polynomials():
    """The committed table is the one that the polynomial gives."""
    native = Path(__file__).resolve().parents[2] / "src/logstore/_native"
    text = (native / "ls_crc32c_table.h").read_text(encoding="utf-8").split("= {", 1)[1]
    words = [int(word, 16) for word in re.findall(r"0x([0-9a-f]{8})", text)]
    expected = []
    for zeros in range(8):
        for byte in range(256):
            state = byte
            for _ in range(8 * (zeros + 1)):
                state = (state >> 1) ^ (0x82F63B78 if state & 1 else 0)
            expected.append(state)
    assert expected == words
