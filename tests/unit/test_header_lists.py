"""Lists of headers as records have them, put together in C: byte for byte as one by one."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from logstore._native import Columns, encode_header_lists
from logstore.large_memory import LARGE_BYTES, LargeMemory
from logstore.records_builder import encode_headers


def columns(headers, *, width=np.int32):
    """Names and values, in one buffer each."""
    names = [name.encode() for name, _ in headers]
    values = [value or b"" for _, value in headers]
    validity = np.array([value is not None for _, value in headers], bool)
    return Columns(
        b"".join(values),
        np.cumsum([0, *map(len, values)]).astype(width),
        value_validity=np.packbits(validity, bitorder="little"),
        keys=b"".join(names),
        key_offsets=np.cumsum([0, *map(len, names)]).astype(width),
    )


@pytest.mark.parametrize("width", [np.int32, np.int64])
def test_like_one_by_one(width):
    """Names and values of all sizes of a varint, nulls, the same name twice, rows without any."""
    draw = random.Random(7)
    sizes = [0, 1, 63, 64, 8191, 8192, 1 << 20]
    values = [None, b"", *(bytes(size) for size in sizes)]
    names = ["", "h", "é" * 40, "n" * 9000]
    rows = [
        [(draw.choice(names), draw.choice(values)) for _ in range(draw.choice([0, 1, 2, 70]))]
        for _ in range(60)
    ]
    ends = np.cumsum([len(row) for row in rows])
    flat = [header for row in rows for header in row]
    data, offsets = encode_header_lists(columns(flat, width=width), ends)
    found = [bytes(data[start:stop]) for start, stop in itertools.pairwise(offsets)]
    assert found == [encode_headers(row) if row else b"" for row in rows]


@pytest.mark.parametrize("size", [10, LARGE_BYTES])
def test_into_memory_of_a_task(tmp_path, size):
    """A sink's task has memory for what is large, and does not take it for what is not."""
    row = [("h", bytes(size))]
    data, offsets = encode_header_lists(columns(row), np.array([1]), LargeMemory(tmp_path))
    assert encode_headers(row) == data
    assert [0, len(data)] == offsets.tolist()


def test_nothing():
    """No rows, and rows without headers."""
    none = columns([])
    assert (b"", [0]) == tuple(map(list_or_bytes, encode_header_lists(none, np.array([], int))))
    found = encode_header_lists(none, np.array([0, 0]))
    assert (b"", [0, 0, 0]) == tuple(map(list_or_bytes, found))


def list_or_bytes(each):
    return bytes(each) if isinstance(each, memoryview) else each.tolist()


@pytest.mark.parametrize(
    ("ends", "name_offsets", "value_offsets"),
    [
        ([3], [0, 1, 2], [0, 1, 2]),
        ([2, 1], [0, 1, 2], [0, 1, 2]),
        ([2], [0, 2, 1], [0, 1, 2]),
        ([2], [0, 1, 3], [0, 1, 2]),
        ([2], [0, 1, 2], [0, 1, 99]),
        ([2], [0, 1, 2], [-1, 1, 2]),
    ],
)
def test_offsets_that_lie(ends, name_offsets, value_offsets):
    """Nothing beside the buffers is read."""
    given = Columns(b"ab", np.array(value_offsets), keys=b"cd", key_offsets=np.array(name_offsets))
    with pytest.raises(ValueError, match="descend or exceed"):
        encode_header_lists(given, np.array(ends))
