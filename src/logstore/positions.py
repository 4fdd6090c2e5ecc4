"""
Positions: where a group goes on reading, kept in ``__consumer_offsets``.

::

    positions = store.positions("billing")
    start = positions.get(("orders", 0), default=0)
    ...
    positions.commit({("orders", 0): 42})

A position is the offset of the next record to read. What is known is a fold over the topic: the
last record of a group and partition holds, a tombstone ends it, and what a transaction wrote
waits for its marker. Positions never expire here; a broker's own rule is offsets.retention.minutes.

Source: Kafka ``OffsetMetadataManager``; KIP-98, KIP-447; spec 8.9.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, overload

from logstore.checkpoint import TopicPartition
from logstore.control_record import ControlRecordType
from logstore.coordinator_record import partition_for
from logstore.errors import OffsetMetadataTooLargeError
from logstore.given_records import milliseconds_of
from logstore.group_metadata import (
    GROUP_METADATA,
    OffsetCommitValue,
    decode_group_record,
    offset_commit_key,
)
from logstore.legacy import LegacyEntry
from logstore.topic_names import GROUP_METADATA_TOPIC

if TYPE_CHECKING:
    from logstore.coordinator_store import CoordinatorStore
    from logstore.log import Log
    from logstore.records_builder import RecordFields

FETCH_BYTES: Final = 1 << 20

# A mapping's keys are invariant: both kinds of tuple are welcome.
Offsets: TypeAlias = Mapping[tuple[str, int], int] | Mapping[TopicPartition, int]
OffsetsOrNone: TypeAlias = (
    Mapping[tuple[str, int], int | None] | Mapping[TopicPartition, int | None] | Offsets
)
ResetTo: TypeAlias = Literal["earliest", "latest"] | int | datetime


class PositionSettings(NamedTuple):
    """
    Settings of positions, by the names of Kafka's properties.

    Attributes:
        num_partitions: Of ``__consumer_offsets``, when it is made.
        segment_bytes: Likewise.
        metadata_max_bytes: The largest metadata that a position may have.

    Source: Kafka ``GroupCoordinatorConfig``; spec 9.2.
    """

    num_partitions: int = 50
    segment_bytes: int = 104_857_600
    metadata_max_bytes: int = 4096

    def topic_config(self) -> dict[str, object]:
        """Return what ``__consumer_offsets`` is made with; a broker enforces it."""
        return {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": self.segment_bytes,
        }


class _Written(NamedTuple):
    """What a record said; ``value`` is None for a tombstone."""

    group: str
    place: TopicPartition
    value: OffsetCommitValue | None
    record_offset: int


class _Partition:
    """What one partition of the topic says, up to an offset."""

    __slots__ = ("groups", "next_offset", "pending", "topic_id")

    def __init__(self, topic_id: str | None) -> None:
        self.topic_id: Final = topic_id
        self.next_offset = -1
        self.groups: dict[str, dict[TopicPartition, tuple[OffsetCommitValue, int]]] = {}
        self.pending: dict[int, list[_Written]] = {}

    def apply(self, written: _Written) -> None:
        """Take over what a record says, unless a later one has spoken already."""
        known = self.groups.get(written.group, {}).get(written.place)
        if known is not None and known[1] > written.record_offset:
            return
        if written.value is not None:
            positions = self.groups.setdefault(written.group, {})
            positions[written.place] = (written.value, written.record_offset)
        elif known is not None:
            positions = self.groups[written.group]
            del positions[written.place]
            if not positions:
                del self.groups[written.group]


class OffsetMetadataManager:
    """
    The positions of all groups of a store.

    Args:
        store: Its topics; ``__consumer_offsets`` is made with the first commit.
        settings: None: the defaults.

    **Thread rule**: any thread may call anything.

    Source: Kafka ``OffsetMetadataManager``.
    """

    def __init__(self, store: CoordinatorStore, settings: PositionSettings | None = None) -> None:
        self._store = store
        self._settings = settings or PositionSettings()
        self._lock = threading.RLock()
        self._partitions: dict[int, _Partition] = {}

    @property
    def store(self) -> CoordinatorStore:
        """The store that this is about."""
        return self._store

    # -- reading -----------------------------------------------------------------------------------

    def groups(self) -> list[str]:
        """Return the groups that have a position, sorted."""
        if GROUP_METADATA_TOPIC not in self._store:
            return []
        with self._lock:
            count = self._store[GROUP_METADATA_TOPIC].partition_count
            return sorted(
                group for number in range(count) for group in self._refreshed(number).groups
            )

    def positions(self, group: str) -> dict[TopicPartition, OffsetCommitValue]:
        """Return a group's committed positions."""
        if GROUP_METADATA_TOPIC not in self._store:
            return {}
        with self._lock:
            known = self._refreshed(self._partition_for(group)).groups.get(group, {})
            return {place: value for place, (value, _) in known.items()}

    def pending(self, group: str) -> set[TopicPartition]:
        """
        Return the partitions whose position an open transaction is about to change.

        Source: Kafka: what makes a fetch fail with UNSTABLE_OFFSET_COMMIT.
        """
        if GROUP_METADATA_TOPIC not in self._store:
            return set()
        with self._lock:
            partition = self._refreshed(self._partition_for(group))
            return {
                written.place
                for records in partition.pending.values()
                for written in records
                if written.group == group
            }

    def _refreshed(self, number: int) -> _Partition:
        """Return what a partition says, up to its high watermark."""
        log = self._store[GROUP_METADATA_TOPIC, number]
        end = log.reading_end("read_uncommitted")
        partition = self._partitions.get(number)
        if (
            partition is None
            or partition.topic_id != log.topic_id  # It was deleted, and made again.
            or end < partition.next_offset  # It was truncated.
        ):
            partition = self._partitions[number] = _Partition(log.topic_id)
        partition.next_offset = max(partition.next_offset, log.log_start_offset)
        while partition.next_offset < end:
            self._read_on(partition, log)
        return partition

    def _read_on(self, partition: _Partition, log: Log) -> None:
        found = log.fetch(
            partition.next_offset, max_bytes=FETCH_BYTES, isolation="read_uncommitted"
        )
        before = partition.next_offset
        for batch in found.records.batches():
            if batch.last_offset < partition.next_offset:
                continue
            batch.ensure_valid()
            _apply_batch(partition, batch)
            partition.next_offset = batch.last_offset + 1
        if partition.next_offset == before:
            # Nothing but a gap up to the end: compaction took what was there.
            partition.next_offset = log.reading_end("read_uncommitted")

    # -- writing -----------------------------------------------------------------------------------

    def commit(
        self,
        group: str,
        positions: OffsetsOrNone,
        *,
        metadata: str = "",
        sync: bool = False,
    ) -> None:
        """Write positions; None ends one. See :meth:`Positions.commit`."""
        place, rows = self.records(group, positions, metadata, self._store.clock.milliseconds())
        if rows:
            self._store[place].extend(
                [row[3] for row in rows], keys=[row[2] for row in rows], sync=sync
            )

    def records(
        self,
        group: str,
        positions: OffsetsOrNone,
        metadata: str,
        now_ms: int,
    ) -> tuple[TopicPartition, list[RecordFields]]:
        """
        Return the records of positions, and the partition that they belong to.

        Raises:
            ValueError: The group is empty, an offset negative, or a topic has no such partition.
            OffsetMetadataTooLargeError: The metadata is larger than offset.metadata.max.bytes.
        """
        if not group:
            raise ValueError("the group is empty; give it a name")
        if len(metadata.encode()) > self._settings.metadata_max_bytes:
            raise OffsetMetadataTooLargeError(
                f"metadata of {len(metadata.encode())} bytes is larger than"
                f" offset.metadata.max.bytes {self._settings.metadata_max_bytes}; shorten it"
            )
        rows: list[RecordFields] = []
        for place, offset in positions.items():
            topic, partition = TopicPartition.of(place)
            value = None
            if offset is not None:
                if offset < 0:
                    raise ValueError(
                        f"position {offset} of {topic}-{partition} is negative;"
                        " give the offset of the next record"
                    )
                count = self._store[topic].partition_count
                if not 0 <= partition < count:
                    raise ValueError(f"{topic} has {count} partitions, and none is {partition}")
                value = OffsetCommitValue(
                    offset, metadata=metadata, commit_timestamp=now_ms
                ).encode()
            rows.append((None, now_ms, offset_commit_key(group, topic, partition), value, ()))
        self._ensure_topic()
        return TopicPartition(GROUP_METADATA_TOPIC, self._partition_for(group)), rows

    def _partition_for(self, group: str) -> int:
        return partition_for(group, self._store[GROUP_METADATA_TOPIC].partition_count)

    def _ensure_topic(self) -> None:
        with self._lock:
            if GROUP_METADATA_TOPIC not in self._store:
                self._store.create_topic(
                    GROUP_METADATA_TOPIC,
                    partitions=self._settings.num_partitions,
                    config=self._settings.topic_config(),
                )


def _apply_batch(partition: _Partition, batch: Any) -> None:
    """Take over a batch; a transaction's records wait for its marker."""
    if isinstance(batch, LegacyEntry):
        for written in _written(batch.records()):
            partition.apply(written)
        return
    if batch.is_control:
        for record in batch.records():
            kind = ControlRecordType.parse(record.key)
            waiting: list[_Written] = []
            if kind in (ControlRecordType.COMMIT, ControlRecordType.ABORT):
                waiting = partition.pending.pop(batch.producer_id, [])
            if kind is ControlRecordType.COMMIT:
                for written in waiting:
                    partition.apply(written)
    elif batch.is_transactional:
        partition.pending.setdefault(batch.producer_id, []).extend(_written(batch.records()))
    else:
        for written in _written(batch.records()):
            partition.apply(written)


def _written(records: Iterable[Any]) -> Iterator[_Written]:
    """Yield what records say of positions; the others are a broker's."""
    for record in records:
        decoded = decode_group_record(record.key, record.value)
        if decoded is None or decoded.record_type.type_id >= GROUP_METADATA.type_id:
            continue
        place = TopicPartition(decoded.key["topic"], decoded.key["partition"])
        value = OffsetCommitValue.of(decoded)
        yield _Written(decoded.key["group"], place, value, record.offset)


class Positions:
    """
    Where one group goes on reading; ``store.positions(group)`` gives it.

    It reads as a mapping from (topic, partition) to the offset of the next record, and always
    tells what is committed now, by whomever.

    **Durability**: a commit is *written* when it returns: it survives a crash of the process.
    ``sync=True`` returns when it survives a power loss.

    **Thread rule**: any thread may call anything.
    """

    def __init__(self, manager: OffsetMetadataManager, group: str) -> None:
        self._manager = manager
        self._group = group

    @property
    def group(self) -> str:
        """Its name."""
        return self._group

    @overload
    def get(self, place: tuple[str, int], /) -> int | None: ...
    @overload
    def get(self, place: tuple[str, int], /, default: int) -> int: ...
    def get(self, place: tuple[str, int], /, default: int | None = None) -> int | None:
        """Return the offset of the next record to read, or ``default`` if there is none."""
        found = self.describe().get(TopicPartition.of(place))
        return default if found is None else found.offset

    def __getitem__(self, place: tuple[str, int]) -> int:
        return self.describe()[TopicPartition.of(place)].offset

    def __contains__(self, place: object) -> bool:
        return place in self.describe()

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(sorted(self.describe()))

    def __len__(self) -> int:
        return len(self.describe())

    def keys(self) -> list[TopicPartition]:
        """Return the partitions with a position, sorted; so ``dict(positions)`` has all."""
        return sorted(self.describe())

    def items(self) -> list[tuple[TopicPartition, int]]:
        """Return each partition with its position, sorted."""
        return sorted((place, value.offset) for place, value in self.describe().items())

    def describe(self) -> dict[TopicPartition, OffsetCommitValue]:
        """Return each partition with what was committed: offset, metadata, time."""
        return self._manager.positions(self._group)

    def pending(self) -> set[TopicPartition]:
        """Return the partitions whose position an open transaction is about to change."""
        return self._manager.pending(self._group)

    def commit(
        self,
        positions: Offsets,
        *,
        metadata: str = "",
        sync: bool = False,
    ) -> None:
        """
        Set positions, all or none.

        Args:
            positions: For each partition the offset of the next record to read.
            metadata: What to remember with them.
            sync: Return when they survive a power loss.

        Raises:
            ValueError: An offset is negative, or there is no such partition.
            OffsetMetadataTooLargeError: The metadata is larger than offset.metadata.max.bytes.
            StorageError: Nothing was committed.
        """
        self._manager.commit(self._group, positions, metadata=metadata, sync=sync)

    def forget(
        self, places: Iterable[tuple[str, int]] | None = None, *, sync: bool = False
    ) -> None:
        """Remove positions; None: all of the group."""
        chosen = list(self.describe()) if places is None else list(places)
        self._manager.commit(self._group, dict.fromkeys(chosen), sync=sync)

    def lag(self) -> dict[TopicPartition, int]:
        """
        Return how many offsets each position is behind what a read_committed reader may read.

        Offsets of markers, and those that were compacted away, count too, as in Kafka. A topic
        that was deleted is left out.
        """
        store = self._manager.store
        return {
            place: max(0, store[place].reading_end("read_committed") - value.offset)
            for place, value in sorted(self.describe().items())
            if place.topic in store
        }

    def reset(
        self,
        to: ResetTo,
        places: Iterable[tuple[str, int]] | None = None,
        *,
        relative: bool = False,
        sync: bool = False,
    ) -> dict[TopicPartition, int]:
        """Set positions by a rule, and return them; as :meth:`planned` and :meth:`commit`."""
        positions = self.planned(to, places, relative=relative)
        self.commit(positions, sync=sync)
        return positions

    def planned(
        self,
        to: ResetTo,
        places: Iterable[tuple[str, int]] | None = None,
        *,
        relative: bool = False,
    ) -> dict[TopicPartition, int]:
        """
        Return the positions that :meth:`reset` would set; nothing is changed.

        Args:
            to: ``"earliest"``, ``"latest"``, an aware datetime (the first record at or after it,
                else the end), or an offset.
            places: Which; None: those that the group has.
            relative: ``to`` is a number to be added to where the group is.

        An offset outside the log becomes its start or its end.

        Raises:
            ValueError: ``to`` is none of these; or relative, and a partition has no position.
        """
        known = self.describe()
        chosen = sorted(known) if places is None else [TopicPartition.of(place) for place in places]
        positions = {}
        for place in chosen:
            log = self._manager.store[place]
            if relative:
                if place not in known:
                    raise ValueError(f"{self._group} has no position in {place} to move from")
                if not isinstance(to, int):
                    raise ValueError(f"{to!r} is no number to move by")
                wanted = known[place].offset + to
            else:
                wanted = _offset_of(log, to)
            end = log.reading_end("read_committed")
            positions[place] = min(max(wanted, log.log_start_offset), end)
        return positions

    def __repr__(self) -> str:
        return f"<Positions {self._group!r}>"


def _offset_of(log: Log, to: ResetTo) -> int:
    if to == "earliest":
        return log.log_start_offset
    if to == "latest":
        return log.reading_end("read_committed")
    if isinstance(to, datetime):
        found = log.offset_at(milliseconds_of(to))
        return log.reading_end("read_committed") if found is None else found.offset
    if isinstance(to, int):
        return to
    raise ValueError(f"{to!r} is not earliest, latest, an offset or an aware datetime")
