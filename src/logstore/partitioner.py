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
from typing import Final

from logstore._native import Buffer, murmur2

INT_MAX: Final = 0x7FFFFFFF


def partition_of_key(key: Buffer, partitions: int) -> int:
    """
    Return the partition that a key belongs to.

    Source: Kafka ``BuiltInPartitioner.partitionForKey``.
    """
    assert partitions > 0
    return (murmur2(key) & INT_MAX) % partitions


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
