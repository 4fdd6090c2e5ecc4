"""
The aborted transactions of a range: which of them there are, and which batches are theirs.

Source: Kafka ``LocalLog.collectAbortedTransactions``, ``CompletedFetch``; spec 5.6.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from logstore.aborted_finder import is_abort_marker

if TYPE_CHECKING:
    from logstore.file_records import AbortedTransaction
    from logstore.index import AbortedTxn
    from logstore.record import RecordBatch
    from logstore.segment import LogSegment


def collect_aborted(
    segments: Iterable[LogSegment], start_offset: int, stop_offset: int
) -> list[AbortedTxn]:
    """
    Return the aborted transactions that touch ``[start_offset, stop_offset)``.

    Args:
        segments: From the one of ``start_offset`` on, ascending; no more are looked at than needed.
        start_offset: The first offset of a fetch.
        stop_offset: Its end, exclusive.

    Source: Kafka ``LocalLog.collectAbortedTransactions``.
    """
    aborted: list[AbortedTxn] = []
    for segment in segments:
        found, is_complete = segment.collect_aborted_txns(start_offset, stop_offset)
        aborted += found
        if is_complete:
            break
    return aborted


class AbortedTransactions:
    """
    Says which batches of a read_committed read belong to aborted transactions.

    Batches are shown to it in offset order, from the offset that the list was collected for.

    Source: Kafka ``CompletedFetch.consumeAbortedTransactionsUpTo``; spec 5.6.
    """

    __slots__ = ("_coming", "_open")

    def __init__(self, aborted: Iterable[AbortedTransaction | AbortedTxn]) -> None:
        self._coming = [(txn.first_offset, txn.producer_id) for txn in aborted]
        heapq.heapify(self._coming)
        self._open: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._coming or self._open)

    def is_aborted(self, batch: RecordBatch) -> bool:
        """Return whether a batch is to be skipped; an abort marker ends its transaction."""
        if batch.producer_id < 0:
            return False
        while self._coming and self._coming[0][0] <= batch.last_offset:
            self._open.add(heapq.heappop(self._coming)[1])
        if batch.is_control:
            if is_abort_marker(batch):
                self._open.discard(batch.producer_id)
            return True
        return batch.is_transactional and batch.producer_id in self._open


NONE_ABORTED: Final = AbortedTransactions(())
