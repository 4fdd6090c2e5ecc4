"""
A new store out of a snapshot: all of it, or what it was at a time.

The snapshot is only read, and shares its sealed segments with the new store. ``point_in_time.py``
says where each partition is cut. What has to be written anew, from the first marker that becomes
another one, is written as a follower writes: offsets, timestamps and epochs stay.

``__transaction_state`` is not cut: producer epochs that have been given out must not come again.
What is committed in ``__consumer_offsets`` is cut as all else is; a position behind the end of its
partition is set to that end.

Source: decision 0068.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, TypeAlias

from logstore.append_times import APPEND_TIMES_FILE
from logstore.checkpoint import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_CHECKPOINT,
    PARTITION_METADATA,
    CleanShutdownFile,
    LeaderEpochCheckpointFile,
    OffsetCheckpointFile,
    PartitionMetadataFile,
    TopicPartition,
)
from logstore.clock import SYSTEM_CLOCK, Clock, ManualClock
from logstore.config import LogConfig
from logstore.control_record import ControlRecordType, EndTransactionMarker
from logstore.errors import StorageError
from logstore.file_sharing import FileSharing
from logstore.files import REAL_FILES, Files
from logstore.given_records import milliseconds_of
from logstore.legacy import LegacyEntry
from logstore.log import Log
from logstore.log_copy import cut_batch
from logstore.meta_properties import MetaProperties, new_directory_id, read_meta_properties
from logstore.point_in_time import (
    Entry,
    PartitionHistory,
    ProducerEpoch,
    history_of,
    markers_to_abort,
)
from logstore.producer_ids import latest_block
from logstore.producer_snapshot import SNAPSHOT_SUFFIX
from logstore.record import RecordBatch
from logstore.records_builder import end_transaction_marker
from logstore.segment import LOG_SUFFIX, SEGMENT_SUFFIXES
from logstore.snapshot_manifest import existing_snapshot
from logstore.store import LogStore, open_log_store
from logstore.store_config import StoreConfig
from logstore.store_copy import PartitionFiles, StoreCopy, abort_open_transactions
from logstore.store_directories import contents_of
from logstore.topic_configs import TopicConfigs
from logstore.topic_names import TRANSACTION_STATE_TOPIC
from logstore.writer_lock import LOCK_FILE, has_writer, locked_error

FETCH_BYTES: Final = 1 << 20
LINKED_SUFFIXES: Final = (*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX)

Batch: TypeAlias = RecordBatch | LegacyEntry


@dataclass(frozen=True, slots=True, repr=False)
class Restored:
    """
    A store that was made of a snapshot.

    Attributes:
        path: Its directory.
        end_offsets: Where its partitions end.
        cuts: Where partitions were cut that had something after the time; others are not there.
        aborted: How many commit markers became abort markers, because of their transaction
            something is after the time.
        clamped: Positions that were behind the end, by group and partition: what they were.
        linked_bytes: Of files that are shared with the snapshot.
        copied_bytes: Of what was copied.
        copied_because: Why sealed segments were copied instead of linked; None: they were not.
    """

    path: str
    end_offsets: Mapping[TopicPartition, int]
    cuts: Mapping[TopicPartition, int] = field(default_factory=dict)
    aborted: int = 0
    clamped: Mapping[tuple[str, TopicPartition], int] = field(default_factory=dict)
    linked_bytes: int = 0
    copied_bytes: int = 0
    copied_because: str | None = None

    def __repr__(self) -> str:
        return (
            f"<Restored {self.path!r} partitions={len(self.end_offsets)} cuts={len(self.cuts)}"
            f" linked_bytes={self.linked_bytes} copied_bytes={self.copied_bytes}>"
        )


def restore(
    snapshot: str | os.PathLike[str],
    dest: str | os.PathLike[str],
    *,
    to_time: int | datetime | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Restored:
    """
    Make a new store of a snapshot, which stays as it is.

    With a time, every partition ends before its first record, in the order of offsets, whose
    timestamp is after it. A record with a wrong timestamp in the future therefore ends its
    partition early: look at ``cuts``. Transactions of which anything is after the time are aborted
    in all partitions. Positions are those of then, and none is behind its partition's end. Of
    compacted topics there is what compaction had left by the snapshot: older values are gone.

    Args:
        snapshot: What ``store.snapshot()`` has made.
        dest: A directory that is not there, or empty.
        to_time: Milliseconds since the epoch or an aware datetime, inclusive; None: all of it.
        progress: Called with the bytes that are in place, and those that there are in all.

    **Durability**: on return it survives a power loss; until then there is nothing at ``dest``.

    **Cost**: sealed segments are linked, active ones copied. With a time everything is read,
    twice if transactions are taken back.

    Raises:
        LogNotFoundError: There is no finished snapshot.
        LockedError: Somebody is writing in the snapshot.
        LogExistsError: There is something at ``dest``.
        StorageError: It could not be made; nothing is left at ``dest``.

    Source: decision 0068.
    """
    return restore_store(snapshot, dest, to_time=to_time, progress=progress)


def restore_store(
    snapshot: str | os.PathLike[str],
    dest: str | os.PathLike[str],
    *,
    to_time: int | datetime | None = None,
    progress: Callable[[int, int], object] | None = None,
    files: Files = REAL_FILES,
    clock: Clock = SYSTEM_CLOCK,
) -> Restored:
    """Do what :func:`restore` does, over files and a clock of the caller's."""
    source = os.path.realpath(os.fspath(snapshot))
    time_ms = None if to_time is None else milliseconds_of(to_time)
    existing_snapshot(source, files)
    if has_writer(source, files):
        raise locked_error(os.path.join(source, LOCK_FILE), files)
    if not CleanShutdownFile(source, files=files).exists():
        raise StorageError(
            f"{source} was opened for writing and not closed; open it once more and close it",
            path=source,
        )
    with StoreCopy(dest, [source], files=files, clock=clock) as copy:
        sharing = _put_in_place(source, copy, files, progress)
        # Nothing is old yet: a producer that is forgotten because it is could have had, when the
        # log is cut, an open transaction again.
        copys_clock = ManualClock(0)
        with copy.opened(open_log_store, StoreConfig(), copys_clock) as store:
            assert isinstance(store, LogStore)
            cuts: dict[TopicPartition, int] = {}
            clamped: dict[tuple[str, TopicPartition], int] = {}
            aborted = 0
            if time_ms is not None:
                with open_log_store(source, mode="r", files=files, lazy=True) as view:
                    cuts, aborted = _cut_all(view, store, time_ms)
                copys_clock.set(time_ms)
                abort_open_transactions(store)
                clamped = _clamp_positions(store)
            end_offsets = {each: store[each].log_end_offset for each in store.partitions()}
        copy.finish(None)
    return Restored(
        copy.dest,
        end_offsets,
        cuts,
        aborted,
        clamped,
        sharing.linked_bytes,
        sharing.copied_bytes,
        sharing.refusal,
    )


# ---- files ---------------------------------------------------------------------------------------


def _put_in_place(
    source: str,
    copy: StoreCopy,
    files: Files,
    progress: Callable[[int, int], object] | None,
) -> FileSharing:
    """Give the new store the snapshot's files: sealed segments shared, the rest its own."""
    partitions = contents_of(source, files).partitions
    names = {path: files.listdir(path) for _, path in partitions}
    done = 0
    total = sum(
        files.file_size(os.path.join(path, name))
        for path, found in names.items()
        for name in found
        if name.endswith(LINKED_SUFFIXES)
    )

    def advance(size_bytes: int) -> None:
        nonlocal done
        done += size_bytes
        if progress is not None:
            progress(done, max(total, done))

    sharing = FileSharing(files, advance=advance)
    recovery_points: dict[TopicPartition, int] = {}
    finished: list[PartitionFiles] = []
    for topic_partition, path in partitions:
        active = max(name for name in names[path] if name.endswith(LOG_SUFFIX))
        stem = active.removesuffix(LOG_SUFFIX)
        recovery_points[topic_partition] = int(stem)
        directory = copy.directory_of(topic_partition)
        unsynced: list[str] = []
        for name in names[path]:
            place = os.path.join(path, name)
            if name.startswith(stem) and name.endswith(SEGMENT_SUFFIXES):
                size_bytes = files.file_size(place)
                sharing.copy_beginning(place, os.path.join(directory, name), size_bytes, sync=False)
                unsynced.append(name)
            elif name.endswith(LINKED_SUFFIXES):
                sharing.share(place, copy.path, os.path.join(str(topic_partition), name))
            elif name == APPEND_TIMES_FILE:
                files.replace_file(os.path.join(directory, name), files.read_file(place))
        epochs = LeaderEpochCheckpointFile(os.path.join(path, LEADER_EPOCH_CHECKPOINT), files=files)
        metadata = PartitionMetadataFile(os.path.join(path, PARTITION_METADATA), files=files)
        topic_id = metadata.read().topic_id if metadata.exists() else None
        finished.append(PartitionFiles(topic_partition, epochs.read(), topic_id, unsynced))
    copy.finish_partitions(finished)
    configs = TopicConfigs(LogConfig(), files)
    configs.load([source])
    copy.write_store_files(
        recovery_points=recovery_points,
        log_starts=_offsets(source, LOG_START_CHECKPOINT, files),
        high_watermarks=_offsets(source, HIGH_WATERMARK_CHECKPOINT, files),
        cleaner_offsets=_offsets(source, CLEANER_CHECKPOINT, files),
        topics=dict(configs.items()),
        identity=read_meta_properties(source, files)
        or MetaProperties(new_directory_id(), StoreConfig().node_id, None),
        producer_id_block=latest_block([source], files),
    )
    return sharing


def _offsets(source: str, name: str, files: Files) -> dict[TopicPartition, int]:
    return OffsetCheckpointFile(os.path.join(source, name), files=files).read()


# ---- to a time -----------------------------------------------------------------------------------


def _cut_all(
    view: LogStore, store: LogStore, time_ms: int
) -> tuple[dict[TopicPartition, int], int]:
    """Cut every partition; return where, and how many commit markers became abort markers."""
    places = [each for each in view.partitions() if each.topic != TRANSACTION_STATE_TOPIC]

    def histories_with(wanted: set[ProducerEpoch]) -> dict[TopicPartition, PartitionHistory]:
        return {each: history_of(each, _entries(view[each], time_ms), wanted) for each in places}

    histories = histories_with(set())
    gone = set[ProducerEpoch]().union(*(each.gone for each in histories.values()))
    if gone:  # Only now it is known which of the transactions before matter.
        histories = histories_with(gone)
    markers = markers_to_abort(histories)
    cuts: dict[TopicPartition, int] = {}
    for topic_partition, history in histories.items():
        aborted = markers.get(topic_partition, set())
        if history.cut is not None:
            cuts[topic_partition] = history.cut
        if aborted or history.cut is not None:
            _rewrite(view[topic_partition], store[topic_partition], history.cut, aborted)
    return cuts, sum(map(len, markers.values()))


def _entries(log: Log, time_ms: int) -> Iterator[Entry]:
    """Yield what a plan has to know of a log's batches."""
    for batch in _batches(log, log.log_start_offset):
        first_after = None
        if batch.max_timestamp > time_ms:
            first_after = next(
                (
                    record.offset
                    for record in batch.records()
                    if record.timestamp > time_ms and record.offset >= log.log_start_offset
                ),
                None,
            )
        if isinstance(batch, LegacyEntry):
            yield Entry(batch.base_offset, -1, -1, False, None, batch.max_timestamp, first_after)
            continue
        yield Entry(
            batch.base_offset,
            batch.producer_id,
            batch.producer_epoch,
            batch.is_transactional,
            _is_commit(batch),
            batch.max_timestamp,
            first_after,
        )


def _is_commit(batch: RecordBatch) -> bool | None:
    """Return whether a batch commits a transaction; None: it ends none."""
    if not batch.is_control:
        return None
    for record in batch.records():
        kind = ControlRecordType.parse(record.key)
        if kind in (ControlRecordType.COMMIT, ControlRecordType.ABORT):
            return kind is ControlRecordType.COMMIT
    return None


def _batches(log: Log, offset: int) -> Iterator[Batch]:
    """Yield the batches of a log from an offset on."""
    while offset < log.log_end_offset:
        before = offset
        found = log.fetch(offset, max_bytes=FETCH_BYTES, isolation="log_end")
        for batch in found.records.batches():
            if batch.last_offset < offset:
                continue
            if isinstance(batch, RecordBatch):
                batch.ensure_valid()
            yield batch
            offset = batch.last_offset + 1
        if offset == before:
            return  # Nothing but a gap up to the end.


def _rewrite(source: Log, log: Log, cut: int | None, aborted: set[int]) -> None:
    """Let a log end at a cut, and commit markers in it abort; the source has what it had."""
    end = log.log_end_offset if cut is None else cut
    start = min([end, *aborted])
    first = next(_batches(source, max(start, source.log_start_offset)), None)
    if first is not None:
        start = min(start, first.base_offset)  # Whole batches go; a part of one comes back.
    log.truncate_to(start)
    for batch in _batches(source, max(start, source.log_start_offset)):
        if batch.base_offset >= end:
            break
        data = _rewritten(batch, end, is_aborted=batch.base_offset in aborted)
        if data:
            log.append_batches(data, leader_epoch=source.leader_epoch, origin="replication")
    if log.log_start_offset < source.log_start_offset:  # It was in the batch that was cut.
        log.maybe_increment_log_start_offset(min(source.log_start_offset, log.log_end_offset))


def _rewritten(batch: Batch, end: int, *, is_aborted: bool) -> bytes:
    """Return a batch as the new store has it: aborting, or without the records from an end on."""
    if isinstance(batch, LegacyEntry):
        return b"" if batch.last_offset >= end else bytes(batch.data)
    if is_aborted:
        marker = EndTransactionMarker.parse(*_control_record(batch))
        return end_transaction_marker(
            EndTransactionMarker(ControlRecordType.ABORT, marker.coordinator_epoch),
            timestamp=batch.max_timestamp,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_offset=batch.base_offset,
            leader_epoch=batch.leader_epoch,
        )
    if batch.last_offset < end:
        return bytes(batch.data)
    return cut_batch(batch, range(batch.base_offset, end))


def _control_record(batch: RecordBatch) -> tuple[bytes | None, bytes | None]:
    record = batch.records()[0]
    return record.key, record.value


def _clamp_positions(store: LogStore) -> dict[tuple[str, TopicPartition], int]:
    """Set positions that are behind the end of their partition to that; return what they were."""
    clamped: dict[tuple[str, TopicPartition], int] = {}
    for group in store.groups():
        positions = store.positions(group)
        for place, offset in dict(positions.items()).items():
            if place in store and offset > store[place].log_end_offset:
                clamped[group, place] = offset
                positions.commit({place: store[place].log_end_offset})
    return clamped
