"""
Which partition a record goes to, as Kafka's producers decide it.

With a key: ``toPositive(murmur2(key)) % partitions``, so that a key's records stay in order and
other producers agree. Without one: the same partition until ``batch.bytes`` have gone there, then
another one by chance ("sticky"), which makes large batches.

Source: Kafka ``BuiltInPartitioner``, ``Utils.murmur2``; KIP-480, KIP-794.
"""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import numpy as np

from logstore._native import (
    Buffer,
    Columns,
    Grouped,
    group_partitions,
    measure_list,
    murmur2,
    partition_keys,
    partition_list,
)
from logstore.arrow_columns import ArrowRows, binary_buffers
from logstore.given_records import GivenRecords

if TYPE_CHECKING:
    import numpy.typing as npt

# Records as a caller gave them.
GivenT = TypeVar("GivenT", GivenRecords, ArrowRows)

INT_MAX: Final = 0x7FFFFFFF
# What a record without key and headers has besides its value, about.
RECORD_OVERHEAD_BYTES: Final = 70
HEADER_BYTES: Final = 16  # About.


def partition_of_key(key: Buffer, partitions: int) -> int:
    """
    Return the partition that a key belongs to.

    Source: Kafka ``BuiltInPartitioner.partitionForKey``.
    """
    assert partitions > 0
    return (murmur2(key) & INT_MAX) % partitions


def partitions_for_keys(
    keys: Buffer,
    key_offsets: npt.NDArray[Any],
    partitions: int,
    *,
    validity: Buffer | None = None,
    bit_offset: int = 0,
) -> npt.NDArray[np.int32]:
    """
    Return the partition of each key of a column, as :func:`partition_of_key` does.

    The layout is Arrow's: key *i* is ``keys[key_offsets[i]:key_offsets[i + 1]]``. A slice of an
    array is given by a slice of its offsets and by ``bit_offset``; nothing is copied.

    Args:
        keys: All bytes of the keys.
        key_offsets: int32 or int64, shape (count + 1,), ascending.
        partitions: How many the topic has.
        validity: A bitmap, least significant bit first: 0 is a null key. None: no key is null.
        bit_offset: First bit of the bitmap.

    Returns:
        int32, shape (count,): in [0, ``partitions``), or -1 where the key is null.

    Raises:
        ValueError: A shape or type does not fit, or offsets descend or exceed the keys.

    **Cost**: one pass in C; 3 ns for a key of 8 bytes. The GIL is released.
    """
    if partitions <= 0:
        raise ValueError(f"a topic has at least one partition, not {partitions}")
    columns = Columns(
        None,
        None,
        keys=keys,
        key_offsets=key_offsets,
        key_validity=validity,
        count=len(key_offsets) - 1,
        bit_offset=bit_offset,
    )
    return partition_keys(columns, partitions)


class StickyPartition:
    """
    The partition for records without a key: one for a while, then another.

    Args:
        bytes_min: After as many bytes another partition is chosen.
        chance: Chooses; given by tests.

    **Thread rule**: any thread.

    Source: Kafka ``BuiltInPartitioner.StickyPartitionInfo``.
    """

    __slots__ = ("_bytes", "_bytes_min", "_chance", "_guard", "_partition")

    def __init__(self, bytes_min: int, chance: random.Random | None = None) -> None:
        self._bytes_min = max(1, bytes_min)
        self._chance = random.Random() if chance is None else chance  # noqa: S311 - no secret
        self._guard = threading.Lock()
        self._partition = -1  # Until one is chosen, as these are too many bytes:
        self._bytes = self._bytes_min

    def take(self, size_bytes: int) -> int:
        """Return the partition of a record of ``size_bytes``; -1: another has to be chosen."""
        with self._guard:
            if self._bytes >= self._bytes_min:
                return -1
            self._bytes += size_bytes
            return self._partition

    def choose(self, partitions: tuple[int, ...], size_bytes: int) -> int:
        """Choose another one of ``partitions``, and return it for a record of ``size_bytes``."""
        with self._guard:
            self._partition = self._chance.choice(partitions)
            self._bytes = size_bytes
            return self._partition

    def take_many(
        self, sizes: npt.NDArray[np.int64], partitions: tuple[int, ...]
    ) -> npt.NDArray[np.int32]:
        """
        Return the partitions of records, as :meth:`take` and :meth:`choose` would one by one.

        Args:
            sizes: int64, shape (count,): bytes of each, more than 0.
            partitions: Those to choose from.

        Returns:
            int32, shape (count,).

        **Cost**: a step for each choice, not for each record.
        """
        assert partitions
        ends = np.cumsum(sizes)
        numbers = np.empty(len(sizes), np.int32)
        first = before = 0
        with self._guard:
            while first < len(sizes):
                if self._bytes >= self._bytes_min or self._partition not in partitions:
                    self._partition = self._chance.choice(partitions)
                    self._bytes = 0
                # The record that reaches the bytes is the last one.
                full = before + self._bytes_min - self._bytes
                last = min(int(np.searchsorted(ends, full)), len(sizes) - 1)
                numbers[first : last + 1] = self._partition
                self._bytes += int(ends[last]) - before
                first, before = last + 1, int(ends[last])
        return numbers


@dataclass(frozen=True, slots=True)
class SpreadRecords(Generic[GivenT]):
    """
    Records of one call, and the partition of each.

    Attributes:
        given: The records, in the caller's order.
        sizes: int64, shape (count,): bytes of each value; of Arrow's rows, with its key.
        numbers: int32, shape (count,): the partition of each.
        grouped: The same in the order of partitions.
    """

    given: GivenT
    sizes: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int32]
    grouped: Grouped

    def part(self, partition: int) -> GivenT:
        """Return the records of one partition, in the caller's order."""
        return self.given.picked(self.grouped.indices(partition))


def spread_records(
    given: GivenT,
    partition_count: int,
    sticky: StickyPartition,
    online: tuple[int, ...],
) -> SpreadRecords[GivenT]:
    """
    Return records with the partition of each.

    Args:
        given: The records.
        partition_count: How many partitions keys are spread over.
        sticky: Chooses for records without a key.
        online: What it chooses from.

    Raises:
        TypeError: A value or a key is neither a buffer nor None.

    **Cost**: three passes in C; nothing is done for each record in Python, but for its headers.
    """
    sizes = given.sizes() if isinstance(given, ArrowRows) else measure_list(given.values)
    if given.keys is None:
        keyless = np.arange(len(sizes))
        numbers = np.empty(len(sizes), np.int32)
    else:
        if isinstance(given, ArrowRows):
            keys, offsets, validity = binary_buffers(given.keys)
            numbers = partitions_for_keys(keys, offsets, partition_count, validity=validity)
        else:
            numbers = partition_list(given.keys, partition_count)
        keyless = np.flatnonzero(numbers < 0)
    if len(keyless):
        weights = sizes[keyless] + RECORD_OVERHEAD_BYTES
        if isinstance(given, GivenRecords) and given.headers is not None:
            counts = np.fromiter(map(len, given.headers), np.int64, len(sizes))
            weights += HEADER_BYTES * counts[keyless]
        numbers[keyless] = sticky.take_many(weights, online)
    return SpreadRecords(given, sizes, numbers, group_partitions(numbers, partition_count))
