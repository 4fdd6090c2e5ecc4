"""
What a store has for transactions and positions: ``store.transaction``, ``store.positions``.

The internal topics are made with the first transaction and the first commit of a position. They
have Kafka's numbers of partitions (``transaction.state.log.num.partitions`` and
``offsets.topic.num.partitions``, 50) unless the settings say otherwise; a broker's have its own.

Source: Kafka ``BrokerServer``, which starts the coordinators.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from logstore.errors import LogStoreError
from logstore.files import REAL_FILES
from logstore.loading_store import LoadingStore, ProgressListener
from logstore.positions import OffsetMetadataManager, Positions, PositionSettings
from logstore.producer_ids import ProducerIdManager
from logstore.topic_names import TRANSACTION_STATE_TOPIC
from logstore.transaction_coordinator import (
    TIMEOUT_MS_DEFAULT,
    TransactionCoordinator,
    TransactionSettings,
)
from logstore.transactions import Transaction

# Partitions that are flushed at once at the end of a transaction.
FLUSH_THREADS: Final = 8


class TransactionalStore(LoadingStore):
    """
    A store with coordinators for transactions and groups.

    Attributes:
        producer_ids: Gives out the producer ids of the store's transactions.

    Source: Kafka ``TransactionCoordinator``, ``GroupCoordinator``.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        config = self.config
        self.producer_ids: Final = ProducerIdManager(
            self._producer_id_directories,
            first_free=self._first_free_producer_id,
            broker=config.node_id,
            files=self.files,
        )
        self._transactions = TransactionCoordinator(
            self,
            self.producer_ids,
            TransactionSettings(
                config.transaction_state_log_num_partitions,
                config.transaction_state_log_segment_bytes,
                config.topic_defaults.transaction_max_timeout_ms,
                transactional_id_expiration_ms=config.transactional_id_expiration_ms,
                # On a test's files everything happens in order, and in the caller's thread.
                flush_threads=FLUSH_THREADS if self.files is REAL_FILES else 0,
            ),
        )
        self._positions = OffsetMetadataManager(
            self,
            PositionSettings(
                config.offsets_topic_num_partitions,
                config.offsets_topic_segment_bytes,
                config.offset_metadata_max_bytes,
            ),
        )

    # -- what a program uses -----------------------------------------------------------------------

    def transaction(
        self,
        transactional_id: str,
        *,
        timeout_ms: int = TIMEOUT_MS_DEFAULT,
        compression: str | None = None,
    ) -> Transaction:
        """
        Begin a transaction, as a context manager over any number of partitions.

        Leaving its block commits, an exception aborts.

        Args:
            transactional_id: A lasting name of who writes. Who comes with the same one fences the
                one before, and its transaction is aborted.
            timeout_ms: After so long a transaction that has not ended is aborted.
            compression: ``gzip``, ``snappy``, ``lz4``, ``zstd``, or None: as the topics say.

        Raises:
            ValueError: The id is empty.
            InvalidTransactionTimeoutError: The time-out is not in (0, transaction.max.timeout.ms].
            ReadOnlyError: The store was opened with mode "r".
            OfflineError: What is known of the id could not be read.
            StorageError: It cannot be begun.

        Source: Kafka ``KafkaProducer.beginTransaction``.
        """
        self.check_writable()
        return Transaction(
            self,
            self._transactions,
            transactional_id,
            timeout_ms=timeout_ms,
            compression=compression,
            position_records=self._positions.records,
        )

    def positions(self, group: str) -> Positions:
        """Return where a group goes on reading: (topic, partition) to the next offset."""
        self.check_open()
        return Positions(self._positions, group)

    def groups(self) -> list[str]:
        """Return the groups that have a position, sorted."""
        self.check_open()
        return self._positions.groups()

    # -- loading -----------------------------------------------------------------------------------

    def _load(self, progress: ProgressListener | None) -> None:
        super()._load(progress)
        if not self._is_read_only:
            self._transactions.load(
                was_closed_cleanly=self._is_lazy
                and not self._offline
                and all(each.was_closed_here for each in self._directories())
            )

    def _producer_id_directories(self) -> Iterator[str]:
        return (directory.path for directory in self._directories())

    def _first_free_producer_id(self) -> int:
        """Return a producer id above all that a log knows: of a broker, or of stand-alone logs."""
        return max(self.used_producer_ids(), default=-1) + 1

    def used_producer_ids(self) -> Iterator[int]:
        """Yield the producer ids that a log or a transactional id knows."""
        for topic_partition in self.partitions():
            if topic_partition.topic == TRANSACTION_STATE_TOPIC:
                continue
            try:
                producers = self[topic_partition].producer_state.active_producers
            except LogStoreError:  # It was reported when it could not be loaded.
                continue
            yield from producers
        yield from self._transactions.producer_ids()
