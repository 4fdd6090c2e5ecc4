"""
Where partitions are cut to be what they were at a time, as pure functions.

1. Each partition ends before its first entry, in the order of offsets, whose timestamp is after the
   time: a record, or the marker of a transaction. What comes behind it goes, whatever its
   timestamps are.
2. A transaction of which anything went (records, or a commit marker in any partition) is aborted:
   in every partition where its commit marker is still there, that becomes an abort marker.

Which parts in several partitions are one transaction follows from the producer's id and epoch:
since KIP-890 each transaction has its own epoch. Where an epoch has several transactions, they are
one if their markers were written within a second.

Source: decision 0068.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from logstore.checkpoint import TopicPartition

SAME_TRANSACTION_MS: Final = 1000


class CommittedPart(NamedTuple):
    """What a committed transaction has in one partition."""

    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int
    first_offset: int
    marker_offset: int
    marker_timestamp: int


class Entry(NamedTuple):
    """
    One batch of a partition, as far as a plan needs to know it.

    Attributes:
        is_commit: Of a marker: whether it commits; None: it is no marker.
        first_after: The offset of its first record after the time, None if there is none.
    """

    base_offset: int
    producer_id: int
    producer_epoch: int
    is_transactional: bool
    is_commit: bool | None
    max_timestamp: int
    first_after: int | None


class ProducerEpoch(NamedTuple):
    """Who wrote a transaction."""

    producer_id: int
    producer_epoch: int


class PartitionHistory(NamedTuple):
    """
    What a partition's entries say.

    Attributes:
        cut: Where it ends at the time; None: nothing is after it.
        committed: Transactions that were committed from the cut on, and those that were asked for.
    """

    cut: int | None
    committed: list[CommittedPart]

    @property
    def gone(self) -> set[ProducerEpoch]:
        """Who wrote the transactions that were committed from the cut on."""
        if self.cut is None:
            return set()
        return {
            ProducerEpoch(part.producer_id, part.producer_epoch)
            for part in self.committed
            if part.marker_offset >= self.cut
        }


def history_of(
    topic_partition: TopicPartition,
    entries: Iterable[Entry],
    wanted: Container[ProducerEpoch] = frozenset(),
) -> PartitionHistory:
    """
    Return what the entries of a partition, in the order of offsets, say.

    A marker that ends nothing, as one that is written a second time, says nothing.

    Args:
        topic_partition: The partition.
        entries: All of them.
        wanted: Whose transactions are told that were committed before the cut.
    """
    cut: int | None = None
    committed: list[CommittedPart] = []
    open_since: dict[int, int] = {}
    for entry in entries:
        if cut is None and entry.first_after is not None:
            cut = entry.first_after
        if entry.is_commit is not None:
            first_offset = open_since.pop(entry.producer_id, None)
            producer = ProducerEpoch(entry.producer_id, entry.producer_epoch)
            is_told = cut is not None or producer in wanted
            if entry.is_commit and first_offset is not None and is_told:
                committed.append(
                    CommittedPart(
                        topic_partition,
                        *producer,
                        first_offset,
                        entry.base_offset,
                        entry.max_timestamp,
                    )
                )
        elif entry.is_transactional:
            open_since.setdefault(entry.producer_id, entry.base_offset)
    return PartitionHistory(cut, committed)


def markers_to_abort(
    histories: Mapping[TopicPartition, PartitionHistory],
) -> dict[TopicPartition, set[int]]:
    """Return the offsets of the commit markers that stay, and have to become abort markers."""
    found: dict[TopicPartition, set[int]] = {}
    for transaction in transactions_of(histories.values()):
        gone = [part for part in transaction if not _stays(part, histories)]
        if not gone:
            continue
        for part in transaction:
            if _stays(part, histories):
                found.setdefault(part.topic_partition, set()).add(part.marker_offset)
    return found


def _stays(part: CommittedPart, histories: Mapping[TopicPartition, PartitionHistory]) -> bool:
    cut = histories[part.topic_partition].cut
    return cut is None or part.marker_offset < cut


def transactions_of(histories: Iterable[PartitionHistory]) -> Iterator[list[CommittedPart]]:
    """Yield the parts of each committed transaction together."""
    by_producer: dict[tuple[int, int], list[CommittedPart]] = {}
    for history in histories:
        for part in history.committed:
            by_producer.setdefault((part.producer_id, part.producer_epoch), []).append(part)
    for parts in by_producer.values():
        if len({part.topic_partition for part in parts}) == len(parts):
            yield parts
        else:
            yield from _told_apart(sorted(parts, key=lambda part: part.marker_timestamp))


def _told_apart(parts: Sequence[CommittedPart]) -> Iterator[list[CommittedPart]]:
    """Yield the transactions of one producer epoch, whose parts are given in order of time."""
    together: list[CommittedPart] = []
    for part in parts:
        if together and (
            part.marker_timestamp - together[0].marker_timestamp > SAME_TRANSACTION_MS
            or any(part.topic_partition == each.topic_partition for each in together)
        ):
            yield together
            together = []
        together.append(part)
    yield together
