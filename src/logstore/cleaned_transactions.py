"""
Which transactions a cleaning has met, and whether their batches and markers may go.

Source: Kafka ``CleanedTransactionMetadata``; spec 7.4.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from logstore.control_record import ControlRecordType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from logstore.index import AbortedTxn
    from logstore.record import RecordBatch


class _Aborted:
    """An aborted transaction under way, and whether one of its data batches was seen."""

    __slots__ = ("is_observed", "txn")

    def __init__(self, txn: AbortedTxn) -> None:
        self.txn = txn
        self.is_observed = False


class CleanedTransactionMetadata:
    """
    The transactions of the batches that are shown to it, in offset order.

    Attributes:
        on_retained: Called with each aborted transaction whose marker stays, when that is met: it
            belongs into the cleaned segment's transaction index.

    Source: Kafka ``CleanedTransactionMetadata``.
    """

    __slots__ = ("_aborted", "_coming", "_committed", "on_retained")

    def __init__(self) -> None:
        self._committed: set[int] = set()  # Producers with data of an undecided transaction.
        self._aborted: dict[int, _Aborted] = {}
        self._coming: list[tuple[int, int, AbortedTxn]] = []
        self.on_retained: Callable[[AbortedTxn], object] | None = None

    def add_aborted_transactions(self, transactions: Iterable[AbortedTxn]) -> None:
        """Learn of aborted transactions; one that is known already changes nothing."""
        for txn in transactions:
            heapq.heappush(self._coming, (txn.first_offset, txn.last_offset, txn))

    def on_control_batch_read(self, batch: RecordBatch, control_type: int | None) -> bool:
        """
        Return whether a control batch may go, as far as transactions have a say.

        Args:
            batch: The batch.
            control_type: Of its first record; None: it has none.
        """
        self._consume_up_to(batch.last_offset)
        if control_type is None:
            return True  # Cleaned already.
        if control_type == ControlRecordType.ABORT:
            aborted = self._aborted.pop(batch.producer_id, None)
            if aborted is None or not aborted.is_observed:
                return True
            if self.on_retained is not None:
                self.on_retained(aborted.txn)
            return False
        if control_type == ControlRecordType.COMMIT:
            if batch.producer_id in self._committed:
                self._committed.discard(batch.producer_id)
                return False
            return True
        return False

    def on_batch_read(self, batch: RecordBatch) -> bool:
        """Return whether a data batch belongs to an aborted transaction."""
        self._consume_up_to(batch.last_offset)
        if not batch.is_transactional:
            return False
        aborted = self._aborted.get(batch.producer_id)
        if aborted is None:
            self._committed.add(batch.producer_id)
            return False
        aborted.is_observed = True
        return True

    def _consume_up_to(self, offset: int) -> None:
        while self._coming and self._coming[0][0] <= offset:
            txn = heapq.heappop(self._coming)[2]
            self._aborted.setdefault(txn.producer_id, _Aborted(txn))
