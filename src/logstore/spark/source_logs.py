"""
The logs that a source reads, as the planner sees them: which there are, and how far they go.

They are opened for reading: nothing is locked or changed, another process may write them, and
topics come and go. A look costs one ``stat`` for each root while no topic does.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from typing import Final, NamedTuple

from logstore.checkpoint import TopicPartition, topic_partition_of
from logstore.clock import SYSTEM_CLOCK
from logstore.config import LogConfig
from logstore.errors import LogStoreError, StorageError
from logstore.files import REAL_FILES
from logstore.index import OffsetPosition
from logstore.log import Log
from logstore.meta_properties import read_meta_properties
from logstore.opening import view_log
from logstore.spark.errors import SparkSourceError, named
from logstore.spark.offsets import LATEST, OffsetSpec
from logstore.spark.options import SourceOptions
from logstore.spark.planning import OffsetRange
from logstore.store_directories import contents_of, is_partition
from logstore.topic_names import INTERNAL_TOPICS

# A directory that changed so short ago may change again without a new time on it.
SETTLED_NS: Final = 100_000_000


class ReadTask(NamedTuple):
    """
    What one task reads; picklable.

    Attributes:
        path: The log's directory.
        topic_partition: Its partition.
        start: The first offset.
        stop: The offset to end before.
        topic_id: The partition's as the planner saw it, None if it had none.
        store_id: The same of the log directory around it.
    """

    path: str
    topic_partition: TopicPartition
    start: int
    stop: int
    topic_id: str | None
    store_id: str | None


class Bounds(NamedTuple):
    """From where to where a partition may be read."""

    start: int
    end: int


class _Found(NamedTuple):
    path: str
    inode: int  # Another one: the topic was made anew.


def partition_of_directory(path: str) -> TopicPartition:
    """Return the partition that a log's directory is; one with a name of its own is partition 0."""
    name = os.path.basename(path)
    return topic_partition_of(name) or TopicPartition(name, 0)


def store_id_of(directory: str) -> str | None:
    """Return the id of a log directory, None if it has none."""
    properties = read_meta_properties(directory)
    return None if properties is None else properties.directory_id


class SourceLogs:
    """
    The logs of the partitions that a source reads.

    **Thread rule**: one thread at a time. **Lifetime**: to be closed.

    Raises:
        SparkSourceError: STORE_NOT_FOUND: a root is not there.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options: Final = options
        self._found: dict[TopicPartition, _Found] = {}
        self._logs: dict[TopicPartition, Log] = {}
        self._mark: tuple[tuple[int, int], ...] | None = None
        self.refresh()

    def close(self) -> None:
        """Close the logs."""
        for log in self._logs.values():
            log.close()
        self._logs = {}

    # -- which there are ---------------------------------------------------------------------------

    def refresh(self) -> None:
        """Look which partitions there are now."""
        mark = tuple(self._mark_of(root) for root in self._options.roots)
        if mark == self._mark:
            return
        found: dict[TopicPartition, _Found] = {}
        for root in self._options.roots:
            for topic_partition, path in _partitions_in(root):
                if self._wants(topic_partition):
                    try:
                        entry = _Found(path, os.stat(path).st_ino)
                    except OSError:
                        continue  # Deleted at this moment.
                    if topic_partition in found:
                        raise SparkSourceError(
                            "DUPLICATE_PARTITION",
                            f"{topic_partition} is in {found[topic_partition].path} and in {path};"
                            " move the wrong one away",
                        )
                    found[topic_partition] = entry
        for topic_partition in list(self._logs):
            if found.get(topic_partition) != self._found[topic_partition]:
                self._logs.pop(topic_partition).close()
        self._found = dict(sorted(found.items()))
        newest = max(changed for changed, _ in mark)
        is_settled = SYSTEM_CLOCK.milliseconds() * 1_000_000 - newest > SETTLED_NS
        self._mark = mark if is_settled else None

    def _mark_of(self, root: str) -> tuple[int, int]:
        try:
            found = os.stat(root)
        except OSError:
            raise SparkSourceError(
                "STORE_NOT_FOUND", f"there is no directory {root} here; check path"
            ) from None
        return found.st_mtime_ns, found.st_ino

    def _wants(self, topic_partition: TopicPartition) -> bool:
        subscription = self._options.subscription
        if subscription.pattern and topic_partition.topic in INTERNAL_TOPICS:
            return False  # As Kafka's consumers leave them out.
        return subscription.wants(topic_partition)

    @property
    def assigned(self) -> tuple[TopicPartition, ...]:
        """The partitions that there are of those that are wanted, in order."""
        return tuple(self._found)

    def check_known(self) -> None:
        """
        Raise if what was named is not there.

        Raises:
            SparkSourceError: UNKNOWN_TOPIC_OR_PARTITION.
        """
        subscription = self._options.subscription
        topics = {each.topic for each in self._found}
        missing = [str(each) for each in subscription.assign if each not in self._found]
        missing += [topic for topic in subscription.topics if topic not in topics]
        if missing:
            known = {each.topic for root in self._options.roots for each, _ in _partitions_in(root)}
            raise SparkSourceError(
                "UNKNOWN_TOPIC_OR_PARTITION",
                f"there is no {', '.join(missing)} in {', '.join(self._options.roots)};"
                f" there are {', '.join(sorted(known - {*INTERNAL_TOPICS})) or 'no topics'}",
            )

    # -- how far they go ---------------------------------------------------------------------------

    def log(self, topic_partition: TopicPartition) -> Log:
        """
        Return the log of a partition that there is.

        Raises:
            SparkSourceError: It cannot be opened.
        """
        log = self._logs.get(topic_partition)
        if log is None or log.is_closed:
            path = self._found[topic_partition].path
            try:
                log = view_log(path, LogConfig(), may_be_empty=True)
            except LogStoreError as error:
                raise named(error, str(topic_partition)) from None
            self._logs[topic_partition] = log
        return log

    def bounds(self, topic_partition: TopicPartition) -> Bounds:
        """Return from where to where a partition may be read now."""
        log = self.log(topic_partition)
        try:
            end = log.reading_end(self._options.isolation)
            return Bounds(min(log.log_start_offset, end), end)
        except LogStoreError as error:
            raise named(error, str(topic_partition)) from None

    def offset_at(self, topic_partition: TopicPartition, timestamp: int) -> int | None:
        """Return the first offset at or after a time, None if there is none that may be read."""
        try:
            found = self.log(topic_partition).offset_at(timestamp)
        except LogStoreError as error:
            raise named(error, str(topic_partition)) from None
        if found is None or found.offset >= self.bounds(topic_partition).end:
            return None
        return found.offset

    def offset_of(self, spec: OffsetSpec, topic_partition: TopicPartition) -> int:
        """
        Return the offset that an option says, which may be EARLIEST or LATEST.

        Raises:
            SparkSourceError: NO_OFFSET_FOR_TIMESTAMP.
        """
        if not spec.is_timestamp:
            return spec.offset_of(topic_partition)
        timestamp = spec.timestamp_of(topic_partition)
        found = self.offset_at(topic_partition, timestamp)
        if found is None:
            if spec.option.startswith("ending") or self._options.latest_if_no_match:
                return LATEST
            raise SparkSourceError(
                "NO_OFFSET_FOR_TIMESTAMP",
                f"no record of {topic_partition} is at or after {timestamp} ({spec.option}); set"
                " startingOffsetsByTimestampStrategy=latest to begin at its end",
            )
        return found

    # -- tasks -------------------------------------------------------------------------------------

    def cut_by_bytes(self, whole: OffsetRange) -> list[OffsetRange]:
        """
        Return a range in parts of about ``maxBytesPerPartition``, cut where batches begin.

        The index knows the last offset of a batch every ``index.interval.bytes``.
        """
        bytes_max = self._options.max_bytes_per_partition
        cuts: list[int] = []
        if bytes_max and whole.size > 0:
            log, room = self.log(whole.topic_partition), bytes_max
            for segment in log.segments_between(whole.start, whole.stop):
                position, size_bytes = 0, segment.size_bytes
                if segment.base_offset < whole.start:
                    position = segment.offset_index.lookup(whole.start).position
                elif room <= 0:
                    cuts.append(segment.base_offset)
                    room = bytes_max
                while size_bytes - position > room:
                    last = segment.fetch_upper_bound_offset(OffsetPosition(0, position), room)
                    if last is None or last + 1 >= whole.stop:
                        break
                    cuts.append(last + 1)
                    position, room = segment.offset_index.lookup(last + 1).position, bytes_max
                room -= max(size_bytes - position, 0)
        edges = [whole.start, *cuts, whole.stop]
        return [
            OffsetRange(whole.topic_partition, start, stop)
            for start, stop in itertools.pairwise(edges)
            if start < stop
        ]

    def tasks(self, ranges: Iterable[OffsetRange]) -> list[ReadTask]:
        """Return a task for each range."""
        found = []
        store_ids: dict[str, str | None] = {}
        for topic_partition, start, stop in ranges:
            path = self._found[topic_partition].path
            parent = os.path.dirname(path)
            if parent not in store_ids:
                store_ids[parent] = store_id_of(parent)
            topic_id = self.log(topic_partition).topic_id
            found.append(ReadTask(path, topic_partition, start, stop, topic_id, store_ids[parent]))
        return found


def _partitions_in(root: str) -> list[tuple[TopicPartition, str]]:
    try:
        if is_partition(root, REAL_FILES):
            return [(partition_of_directory(root), root)]
        return contents_of(root, REAL_FILES).partitions
    except StorageError as error:
        raise named(error) from None
