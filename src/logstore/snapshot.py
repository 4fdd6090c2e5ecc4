"""
Snapshots: a store as it was at one moment, as another store that shares its sealed segments.

1. *Stage*: sealed segments get a second name in the new store; its own appends go on.
2. *Cut*: all partitions stand still for a moment, and it is noted where each is. No file is
   touched.
3. *Complete*: what was sealed since is linked, and of each active segment what was there is copied.
   If a partition was truncated, or cleaned there, meanwhile, the cut is made again; and that
   partition held until it is complete.
4. *Settle*: the new store is opened. That recovers the copied tails, and its coordinator ends the
   transactions that were under way at the moment: decided ones as decided, open ones by aborting.
5. *Finish*: everything is durable, and gets its name.

Nothing here waits for the log's own flushes: beside a writer that is faster than the device each of
them has more to do than the one before. What was not on the device when it was linked is flushed by
its name in the new store, once.

Source: decision 0067.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from logstore.append_times import APPEND_TIMES_FILE, read_append_times, write_append_times
from logstore.checkpoint import TopicPartition
from logstore.clock import ManualClock
from logstore.errors import ClosedError, OfflineError, StorageError, UnknownTopicError
from logstore.file_sharing import FileSharing
from logstore.meta_properties import MetaProperties, new_directory_id, read_meta_properties
from logstore.producer_ids import latest_block
from logstore.producer_snapshot import snapshot_file_name
from logstore.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    LogSegment,
    segment_file_name,
)
from logstore.segment_files import INDEX_SUFFIXES
from logstore.snapshot_manifest import SnapshotManifest, existing_snapshot
from logstore.store_copy import OpenStore, PartitionFiles, StoreCopy
from logstore.store_cut import PartitionCut, cut_of, standing_still
from logstore.topic_configs import DELETING, TopicEntry

if TYPE_CHECKING:
    from logstore.log import Log
    from logstore.transactional_store import TransactionalStore

CUTS_MAX: Final = 20

#: Told (bytes that are there, bytes in all), as far as that is known.
ProgressListener: TypeAlias = Callable[[int, int], object]


@dataclass(frozen=True, slots=True, repr=False)
class Snapshot:
    """
    A store as it was at one moment: what :meth:`LogStore.snapshot` has made.

    Attributes:
        path: Its directory, which opens as an ordinary store.
        taken_ms: The moment, in milliseconds since the epoch.
        end_offsets: Where each partition of the store ended then. The snapshot's own may end
            later: by the markers of transactions that were open.
        linked_bytes: Of files that it shares with the store, or with the earlier snapshot.
        copied_bytes: Of what was copied.
        reused_bytes: Of ``linked_bytes``: those shared with the earlier snapshot.
        copied_because: Why sealed segments were copied instead of linked, such as ``Invalid
            cross-device link``; None: they were not.
    """

    path: str
    taken_ms: int
    end_offsets: Mapping[TopicPartition, int]
    linked_bytes: int
    copied_bytes: int
    reused_bytes: int = 0
    copied_because: str | None = None

    def __repr__(self) -> str:
        return (
            f"<Snapshot {self.path!r} partitions={len(self.end_offsets)}"
            f" linked_bytes={self.linked_bytes} copied_bytes={self.copied_bytes}>"
        )


@dataclass(slots=True)
class _Staged:
    """What is in place of one partition."""

    log: Log
    truncations: int
    segments: dict[int, LogSegment] = field(default_factory=dict)  # By id, which they keep alive.
    unsynced: set[str] = field(default_factory=set)  # Names of files to be made durable.


@dataclass(frozen=True, slots=True)
class _StoreCut:
    """The store at the moment."""

    taken_ms: int
    partitions: list[PartitionCut]
    topics: dict[str, TopicEntry]
    directories: list[str]


def copy_store(
    store: TransactionalStore,
    dest: str | os.PathLike[str],
    open_store: OpenStore,
    *,
    is_snapshot: bool = True,
    base: str | os.PathLike[str] | None = None,
    progress: ProgressListener | None = None,
) -> Snapshot:
    """
    Make another store of what a store is at one moment; see :meth:`LogStore.snapshot`.

    Args:
        store: The store; open for writing.
        dest: Where it goes.
        open_store: Opens it while it is being made.
        is_snapshot: Whether it says of itself that it is one.
        base: An earlier snapshot.
        progress: Told how many bytes are there, of how many.
    """
    store.check_writable()
    base_path = None if base is None else os.path.realpath(os.fspath(base))
    manifest = None if base_path is None else existing_snapshot(base_path, store.files)
    with StoreCopy(dest, store.paths, files=store.files, clock=store.clock) as copy:
        done = 0
        total = sum(log.size_bytes for log in store.logs())

        def advance(size_bytes: int) -> None:
            nonlocal done, total
            done += size_bytes
            total = max(total, done)
            if progress is not None:
                progress(done, total)

        sharing = FileSharing(
            store.files,
            base=base_path,
            base_copies=None if manifest is None else manifest.copies,
            advance=advance,
        )
        maker = _SnapshotMaker(store, copy, sharing)
        cut = maker.make()
        with copy.opened(open_store, store.config, ManualClock(store.clock.milliseconds())):
            pass
        end_offsets = {each.topic_partition: each.log_end_offset for each in cut.partitions}
        for each in cut.partitions:
            # A failure that a flush of the log was told of is not told to one that comes later.
            with contextlib.suppress(ClosedError):
                each.log.check_writable()
        copy.finish(
            SnapshotManifest(True, cut.taken_ms, end_offsets, sharing.copies)
            if is_snapshot
            else None
        )
    return Snapshot(
        copy.dest,
        cut.taken_ms,
        end_offsets,
        sharing.linked_bytes,
        sharing.copied_bytes,
        sharing.reused_bytes,
        sharing.refusal,
    )


class _SnapshotMaker:
    """
    Stages, cuts and completes one snapshot.

    **Thread rule**: one thread.
    """

    def __init__(self, store: TransactionalStore, copy: StoreCopy, sharing: FileSharing) -> None:
        self._store = store
        self._files = store.files
        self._copy = copy
        self._sharing = sharing
        self._staged: dict[TopicPartition, _Staged] = {}

    def make(self) -> _StoreCut:
        """Put everything in place but for the end of transactions; return the moment."""
        for topic_partition in self._store.partitions():
            # A topic may be deleted now.
            with contextlib.suppress(ClosedError, UnknownTopicError):
                self._stage(topic_partition, self._store[topic_partition])
        disturbed: set[TopicPartition] = set()
        for _ in range(CUTS_MAX):
            again: set[TopicPartition] = set()
            with contextlib.ExitStack() as stack:
                held: dict[TopicPartition, contextlib.ExitStack] = {}
                cut = self._cut(disturbed, held, stack)
                # First those that are held: nothing else is waited for until they are free again.
                for each in sorted(
                    cut.partitions, key=lambda each: each.topic_partition not in held
                ):
                    if not self._complete(each):
                        again.add(each.topic_partition)
                    if each.topic_partition in held:
                        held[each.topic_partition].close()
            if not again:
                self._finish(cut)
                return cut
            disturbed |= again
        names = ", ".join(sorted(map(str, disturbed)))
        raise StorageError(f"{names} changed all the time; take the snapshot again")

    # -- stage -------------------------------------------------------------------------------------

    def _stage(self, topic_partition: TopicPartition, log: Log) -> None:
        """Link a partition's sealed segments."""
        with log._lock:  # Not while segments are being replaced.
            truncations, segments = log.truncations, log.segments
        self._forget_unless(topic_partition, log, truncations)
        staged = self._staged.setdefault(topic_partition, _Staged(log, truncations))
        unlinked = [each for each in segments[:-1] if id(each) not in staged.segments]
        linked = self._link(topic_partition, log.directory, segments, unlinked)
        with log._lock:
            present = {id(segment) for segment in log.segments}
            if log.is_closed or log.truncations != truncations:
                self._forget(topic_partition)
                return
        for segment in linked:
            if id(segment) in present:
                staged.segments[id(segment)] = segment
            else:
                self._unlink(topic_partition, segment.base_offset)

    def _forget_unless(self, topic_partition: TopicPartition, log: Log, truncations: int) -> None:
        """Begin anew with a partition that is not what it was."""
        staged = self._staged.get(topic_partition)
        if staged is not None and (staged.log is not log or staged.truncations != truncations):
            self._forget(topic_partition)

    def _forget(self, topic_partition: TopicPartition) -> None:
        self._staged.pop(topic_partition, None)
        self._copy.drop(topic_partition)

    def _link(
        self,
        topic_partition: TopicPartition,
        directory: str,
        segments: Sequence[LogSegment],
        wanted: Sequence[LogSegment],
    ) -> list[LogSegment]:
        """
        Give files of sealed segments their place; return those whose ``.log`` was still there.

        Args:
            topic_partition: The partition.
            directory: Where they are.
            segments: All of the log.
            wanted: Those of them.
        """
        staged = self._staged[topic_partition]
        log = staged.log
        if any(each.has_unwritten_aborted for each in wanted):
            log._flush_sealed_files()  # Which writes them, or says why it cannot.
        with log._lock:
            durable_end = log._offsets_to_keep().recovery_point
        durable = {
            id(each)
            for each, following in itertools.pairwise(segments)
            if following.base_offset <= durable_end
        }
        linked = []
        for each in wanted:
            names = self._link_files(topic_partition, directory, each)
            if not names:
                continue
            linked.append(each)
            if id(each) not in durable:
                staged.unsynced.update(names)
        return linked

    def _link_files(
        self, topic_partition: TopicPartition, directory: str, segment: LogSegment
    ) -> list[str]:
        """Return the names of a segment's files that have their place; none: it is gone."""
        self._unlink(topic_partition, segment.base_offset)
        self._copy.directory_of(topic_partition)
        base_offset = segment.base_offset
        name = segment_file_name(base_offset, LOG_SUFFIX)
        if not self._share(topic_partition, directory, name, segment.size_bytes):
            return []
        # The state of producers before the segment: a recovery begins with the latest one.
        others = [segment_file_name(base_offset, suffix) for suffix in INDEX_SUFFIXES]
        others.append(snapshot_file_name(base_offset))
        return [name, *(each for each in others if self._share(topic_partition, directory, each))]

    def _share(
        self,
        topic_partition: TopicPartition,
        directory: str,
        name: str,
        size_bytes: int | None = None,
    ) -> bool:
        return self._sharing.share(
            os.path.join(directory, name),
            self._copy.path,
            os.path.join(str(topic_partition), name),
            size_bytes,
        )

    def _unlink(self, topic_partition: TopicPartition, base_offset: int) -> None:
        """Take a segment's files away, if they are there."""
        directory = self._copy.directory_of(topic_partition)
        names = [segment_file_name(base_offset, suffix) for suffix in SEGMENT_SUFFIXES]
        staged = self._staged.get(topic_partition)
        for name in (*names, snapshot_file_name(base_offset)):
            self._files.unlink(os.path.join(directory, name), missing_ok=True)
            if staged is not None:
                staged.unsynced.discard(name)

    # -- cut ---------------------------------------------------------------------------------------

    def _cut(
        self,
        disturbed: set[TopicPartition],
        held: dict[TopicPartition, contextlib.ExitStack],
        stack: contextlib.ExitStack,
    ) -> _StoreCut:
        """
        Note where everything is.

        Args:
            disturbed: Partitions that have changed before they were complete.
            held: Gets those, which stay locked, with what unlocks each.
            stack: Unlocks them at the latest.
        """
        store = self._store
        with store._changing():
            missing = [each for each in store.partitions() if store.path_of(*each) is None]
            if missing:
                raise OfflineError(
                    f"{missing[0]} is in none of the directories that work, and a snapshot would"
                    " not have it; open the store again with all of them",
                    topic=missing[0].topic,
                    partition=missing[0].partition,
                )
            logs = {each: store[each] for each in store.partitions()}
            with standing_still(list(logs.values())):
                taken_ms = store.clock.milliseconds()
                cuts = [cut_of(each, log) for each, log in logs.items()]
                for each in disturbed & logs.keys():
                    held[each] = stack.enter_context(contextlib.ExitStack())
                    held[each].enter_context(logs[each]._lock)
            topics = {
                name: entry for name, entry in store.configs.items() if entry.state != DELETING
            }
            return _StoreCut(taken_ms, cuts, topics, list(store.paths))

    # -- complete ----------------------------------------------------------------------------------

    def _complete(self, cut: PartitionCut) -> bool:
        """Put in place what is missing of a partition; False: it has changed meanwhile."""
        topic_partition, log = cut.topic_partition, cut.log
        try:
            self._forget_unless(topic_partition, log, cut.truncations)
            staged = self._staged.setdefault(topic_partition, _Staged(log, cut.truncations))
            wanted = {id(segment) for segment in cut.segments[:-1]}
            for key in staged.segments.keys() - wanted:  # Deleted, or cleaned, before the cut.
                self._unlink(topic_partition, staged.segments.pop(key).base_offset)
            missing = [each for each in cut.segments[:-1] if id(each) not in staged.segments]
            linked = self._link(topic_partition, cut.directory, cut.segments, missing)
            is_done = len(linked) == len(missing) and self._copy_tail(cut, staged)
            with log._lock:
                present = {id(each) for each in log.segments}
                is_done = is_done and cut.is_undisturbed() and present.issuperset(map(id, missing))
            if not is_done:
                self._forget(topic_partition)
                return False
            staged.segments.update((id(each), each) for each in missing)
        except ClosedError:
            self._store.check_writable()
            return False  # The topic was deleted.
        return True

    def _copy_tail(self, cut: PartitionCut, staged: _Staged) -> bool:
        """Copy what was in the active segment, and what a recovery of it begins with."""
        directory = self._copy.directory_of(cut.topic_partition)
        name = segment_file_name(cut.active.base_offset, LOG_SUFFIX)
        source = os.path.join(cut.directory, name)
        if not self._sharing.copy_beginning(
            source, os.path.join(directory, name), cut.active_bytes, sync=False
        ):
            return False
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):  # The recovery fills them.
            path = os.path.join(directory, segment_file_name(cut.active.base_offset, suffix))
            self._files.close(self._files.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC))
        snapshot = snapshot_file_name(cut.active.base_offset)
        self._files.unlink(os.path.join(directory, snapshot), missing_ok=True)
        staged.unsynced.add(name)
        if self._share(cut.topic_partition, cut.directory, snapshot):
            staged.unsynced.add(snapshot)
        return True

    def _finish(self, cut: _StoreCut) -> None:
        """Write what is there beside segments, and take away what was there only for a while."""
        cuts = {each.topic_partition: each for each in cut.partitions}
        for topic_partition in self._staged.keys() - cuts.keys():
            self._forget(topic_partition)
        for each in cut.partitions:
            self._write_append_times(each)
        self._copy.finish_partitions(
            [
                PartitionFiles(
                    each.topic_partition,
                    each.epochs,
                    each.topic_id,
                    sorted(self._staged[each.topic_partition].unsynced),
                )
                for each in cut.partitions
            ]
        )
        self._copy.write_store_files(
            # All before is durable, and was closed by a roll: only the tails are recovered.
            recovery_points={name: each.active.base_offset for name, each in cuts.items()},
            log_starts={name: each.log_start_offset for name, each in cuts.items()},
            high_watermarks={name: each.high_watermark for name, each in cuts.items()},
            cleaner_offsets={
                name: each.cleaner_offset
                for name, each in cuts.items()
                if each.cleaner_offset is not None
            },
            topics=cut.topics,
            identity=self._identity(cut.directories),
            producer_id_block=latest_block(cut.directories, self._files),
        )

    def _write_append_times(self, cut: PartitionCut) -> None:
        """Keep the notes of when what was appended; those of later are not true of the copy."""
        path = os.path.join(cut.directory, APPEND_TIMES_FILE)
        times = [
            each
            for each in read_append_times(path, self._files)
            if each.log_end_offset <= cut.log_end_offset
        ]
        if times:
            directory = self._copy.directory_of(cut.topic_partition)
            write_append_times(os.path.join(directory, APPEND_TIMES_FILE), times, self._files)

    def _identity(self, directories: list[str]) -> MetaProperties:
        """Return whose the new store is: the same cluster's and node's, in another directory."""
        for directory in directories:
            found = read_meta_properties(directory, self._files)
            if found is not None and found.cluster_id is not None and found.node_id is not None:
                return found
        config = self._store.config
        return MetaProperties(config.cluster_id or new_directory_id(), config.node_id, None)
