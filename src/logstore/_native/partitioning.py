"""
Which partitions keys belong to, and the records of each partition put together.

Hashing and ordering are one pass each over a column or a list, in C; nothing here is done per
record in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from logstore._native._core import ffi, lib
from logstore._native.columns import Columns
from logstore._native.kernels import Buffer
from logstore._native.objects import objects

_partition_list = objects.partition_list
_measure_list = objects.measure_list
_take_list = objects.take_list


def murmur2(data: Buffer) -> int:
    """
    Return the murmur2 hash of some bytes, unsigned 32 bits, as Kafka computes it.

    Source: Kafka ``Utils.murmur2``.
    """
    view = ffi.from_buffer(data)
    return int(lib.ls_murmur2(ffi.cast("uintptr_t", view), len(view)))


def partition_keys(columns: Columns, partitions: int) -> npt.NDArray[np.int32]:
    """
    Return the partition of each key of ``columns``, -1 where the key is null.

    Raises:
        ValueError: Offsets of the keys descend or exceed their buffer.
    """
    assert partitions > 0
    out = np.empty(columns.count, np.int32)
    if lib.ls_partition_keys(columns.struct, partitions, out.ctypes.data) < 0:
        raise ValueError("offsets of the keys descend or exceed their buffer; fix them")
    return out


def partition_list(keys: Sequence[Any], partitions: int) -> npt.NDArray[np.int32]:
    """
    Return the partition of each key of a list or tuple, -1 for None.

    Raises:
        TypeError: A key is neither a buffer nor None.
    """
    assert partitions > 0
    out = np.empty(len(keys), np.int32)
    _partition_list(keys, len(out), partitions, out.ctypes.data)
    return out


def measure_list(values: Sequence[Any]) -> npt.NDArray[np.int64]:
    """
    Return the size in bytes of each item of a list or tuple, 0 for None.

    Raises:
        TypeError: An item is neither a buffer nor None.
    """
    out = np.empty(len(values), np.int64)
    _measure_list(values, len(out), out.ctypes.data)
    return out


class Grouped(NamedTuple):
    """
    Records in the order of their partitions.

    Attributes:
        starts: int64, shape (partitions + 1,): where each partition begins in ``order``.
        order: int64, shape (count,): indices of records; those of one partition ascend.
    """

    starts: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]

    def indices(self, partition: int) -> npt.NDArray[np.int64]:
        """Return the indices of a partition's records, ascending."""
        return self.order[self.starts[partition] : self.starts[partition + 1]]

    def partitions(self) -> list[int]:
        """Return the partitions that have records, ascending."""
        return np.flatnonzero(np.diff(self.starts)).tolist()


def group_partitions(numbers: npt.NDArray[np.int32], partitions: int) -> Grouped:
    """
    Put the records of each partition together.

    Args:
        numbers: Partition of each record, in [0, ``partitions``).
        partitions: How many there are.

    Raises:
        ValueError: A number is outside.
    """
    assert partitions > 0
    numbers = np.require(numbers, np.int32, ["C", "A"])
    grouped = Grouped(np.empty(partitions + 1, np.int64), np.empty(len(numbers), np.int64))
    result = lib.ls_group_partitions(
        numbers.ctypes.data,
        len(numbers),
        partitions,
        grouped.starts.ctypes.data,
        grouped.order.ctypes.data,
    )
    if result < 0:
        raise ValueError(f"a partition is not in [0, {partitions}); correct it")
    return grouped


def take_list(items: Sequence[Any], indices: npt.NDArray[np.int64]) -> list[Any]:
    """Return a list of those items of a list or tuple; ``indices`` are contiguous."""
    assert indices.dtype == np.int64
    assert indices.flags.c_contiguous
    taken: list[Any] = _take_list(items, len(items), indices.ctypes.data, len(indices))
    return taken
