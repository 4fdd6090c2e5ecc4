"""
How much a micro-batch reads, and how offsets are spread over tasks: the Kafka connector's rules.

Pure functions. Sizes are counts of offsets; gaps count, as they do there.

Source: Spark ``KafkaMicroBatchStream.rateLimit``, ``KafkaOffsetRangeCalculator``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from logstore.checkpoint import TopicPartition
from logstore.spark.offsets import Offsets


class OffsetRange(NamedTuple):
    """The offsets ``[start, stop)`` of a partition."""

    topic_partition: TopicPartition
    start: int
    stop: int

    @property
    def size(self) -> int:
        """The number of offsets."""
        return self.stop - self.start

    def __str__(self) -> str:
        return f"{self.topic_partition} [{self.start}, {self.stop})"


def rate_limited(
    limit: int, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> Offsets:
    """
    Return where a micro-batch of about ``limit`` offsets ends.

    The limit is spread in proportion to what each partition has. A share is rounded down, but never
    to nothing: no partition starves.

    Args:
        limit: Offsets in all.
        starts: Of each partition in ``ends``.
        ends: As far as there are records.
    """
    sizes = {each: end - starts[each] for each, end in ends.items() if end > starts[each]}
    total = sum(sizes.values())
    if total <= limit:
        return dict(ends)
    return {
        each: min(end, starts[each] + max(limit * sizes[each] // total, 1))
        if each in sizes
        else end
        for each, end in ends.items()
    }


def split_ranges(
    ranges: Sequence[OffsetRange], *, min_partitions: int | None, max_records: int | None
) -> list[OffsetRange]:
    """
    Return ranges, one for each task; none is empty, and no offset is dropped.

    Args:
        ranges: What to read.
        min_partitions: Split large ranges to reach about so many; None: do not.
        max_records: Split ranges with more offsets into equal parts.
    """
    found = [each for each in ranges if each.size > 0]
    if max_records is not None:
        found = [part for each in found for part in divided(each, -(-each.size // max_records))]
    if min_partitions is None or len(found) >= min_partitions:
        return found
    total = sum(each.size for each in found)
    # Small ones stay whole; the large ones share the tasks that are left.
    is_whole = [_part_count(each.size, total, min_partitions) == 1 for each in found]
    rest = sum(each.size for each, whole in zip(found, is_whole, strict=True) if not whole)
    wanted = max(min_partitions - sum(is_whole), 1)
    return [
        part
        for each, whole in zip(found, is_whole, strict=True)
        for part in divided(each, 1 if whole else _part_count(each.size, rest, wanted))
        if part.size > 0
    ]


def shared(ranges: Sequence[OffsetRange], tasks_max: int | None) -> list[list[OffsetRange]]:
    """
    Return the ranges of each task: one, or where that would be too many tasks some neighbours.

    Args:
        ranges: What to read; none is empty.
        tasks_max: As many tasks at most, with about the same number of offsets; None: any number.
    """
    if tasks_max is None or len(ranges) <= tasks_max:
        return [[each] for each in ranges]
    total = sum(each.size for each in ranges)
    found: list[list[OffsetRange]] = [[] for _ in range(tasks_max)]
    before = 0
    for each in ranges:
        middle = 2 * before + each.size
        found[middle * tasks_max // (2 * total)].append(each)
        before += each.size
    return [task for task in found if task]


def _part_count(size: int, total: int, wanted: int) -> int:
    """Return ``size / total * wanted``, rounded half up, at least 1."""
    return max((2 * size * wanted + total) // (2 * total), 1)


def divided(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    """Return a range in so many parts, of which the last ones take what division leaves."""
    found = []
    start = whole.start
    for part in range(parts):
        stop = start + (whole.stop - start) // (parts - part)
        found.append(OffsetRange(whole.topic_partition, start, stop))
        start = stop
    return found
