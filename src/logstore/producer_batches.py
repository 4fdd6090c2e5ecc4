"""
Batches of idempotent producers, many at a time, brought into producer state.

Of a producer that sends no transactions its last batches are remembered, and nothing else follows
from those before: what a log holds of them need not go through producer state one by one.

Source: Kafka ``LogSegment.updateProducerState``, which is called for each; spec 5.9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from logstore._native import BATCH_DTYPE
from logstore.append_origin import AppendOrigin
from logstore.file_records import LogOffsetMetadata
from logstore.producer_snapshot import BATCHES_RETAINED, NO_SEQUENCE
from logstore.record import increment_sequence
from logstore.records_builder import CONTROL_FLAG, INT32_MAX, TRANSACTIONAL_FLAG

if TYPE_CHECKING:
    import numpy.typing as npt

    from logstore.producer_state import ProducerStateManager

WAITING_MAX: Final = 1 << 16  # Rows of batches: 6 MiB.
FIELDS: Final = [
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "max_timestamp",
    "base_offset",
    "last_offset",
]


class ProducerBatches:
    """
    Batches of producers that are to be brought into producer state, in the order of the log.

    Args:
        producer_state: Of everything before; up to date after :meth:`apply`.
    """

    __slots__ = ("_count", "_producer_state", "_waiting")

    def __init__(self, producer_state: ProducerStateManager) -> None:
        self._producer_state = producer_state
        self._waiting: list[npt.NDArray[Any]] = []
        self._count = 0

    def add(self, batches: npt.NDArray[Any]) -> bool:
        """
        Add batches of producers, if all of them are plain data; else nothing happens.

        Args:
            batches: ``BATCH_DTYPE``; a copy is kept.

        Returns:
            Whether they were: no transaction's, no markers.
        """
        assert batches.dtype == BATCH_DTYPE
        if (batches["attributes"] & (TRANSACTIONAL_FLAG | CONTROL_FLAG)).any():
            return False
        self._waiting.append(batches.copy())
        self._count += len(batches)
        if self._count >= WAITING_MAX:
            self.apply()
        return True

    def apply(self) -> None:
        """
        Bring what was added into producer state.

        Raises:
            InvalidTxnStateError: A producer of one has a transaction open.
        """
        if not self._waiting:
            return
        batches = np.concatenate(self._waiting)
        self._waiting.clear()
        self._count = 0
        for each, is_of_one_epoch in needed_batches(batches):
            if is_of_one_epoch:
                self._append(each)
            else:
                for row in each:  # An epoch that comes back has forgotten what it knew.
                    self._append([row])

    def _append(self, rows: list[tuple[Any, ...]]) -> None:
        """Append batches of one producer, as tuples of ``FIELDS``."""
        append_info = self._producer_state.prepare_update(rows[0][0], AppendOrigin.REPLICATION)
        for _, epoch, base_sequence, max_timestamp, base_offset, last_offset in rows:
            last_sequence = NO_SEQUENCE
            if base_sequence >= 0:
                delta = (last_offset - base_offset) & INT32_MAX
                last_sequence = increment_sequence(base_sequence, delta)
            append_info.append_data_batch(
                epoch,
                base_sequence,
                last_sequence,
                max_timestamp,
                LogOffsetMetadata(base_offset),
                last_offset,
                is_transactional=False,
            )
        self._producer_state.update(append_info)


def needed_batches(batches: npt.NDArray[Any]) -> list[tuple[list[tuple[Any, ...]], bool]]:
    """
    Return the batches that matter, by producer, in the order in which producers appear.

    The last ones of a producer; if its epoch changes, all of them.

    Args:
        batches: ``BATCH_DTYPE``, at least one, in the order of the log, plain data all of them.

    Returns:
        For each producer its batches as tuples of ``FIELDS``, and whether they have one epoch.
    """
    count = len(batches)
    order = np.argsort(batches["producer_id"], kind="stable")
    producer_ids, epochs = batches["producer_id"][order], batches["producer_epoch"][order]
    is_first = np.concatenate(([True], producer_ids[1:] != producer_ids[:-1]))
    is_other_epoch = np.concatenate(([False], epochs[1:] != epochs[:-1])) & ~is_first
    starts = np.flatnonzero(is_first)
    producer = np.cumsum(is_first) - 1
    following_count = np.append(starts[1:], count)[producer] - np.arange(count)
    has_other_epoch = np.logical_or.reduceat(is_other_epoch, starts)
    is_needed = (following_count <= BATCHES_RETAINED) | has_other_epoch[producer]
    rows = batches[order[is_needed]][FIELDS].tolist()
    ends = np.cumsum(np.add.reduceat(is_needed.astype(np.int64), starts)).tolist()
    found = [
        (rows[start:end], not is_mixed)
        for start, end, is_mixed in zip([0, *ends], ends, has_other_epoch.tolist(), strict=False)
    ]
    return [found[at] for at in np.argsort(order[starts]).tolist()]
