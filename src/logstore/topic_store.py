"""
How topics of a store come, change and go.

What is to be is written first (``logstore-topics``): a crash in between is finished, or taken back,
at the next open.

Source: Kafka ``LogManager.getOrCreateLog``, ``asyncDelete``; spec 6.7.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from typing import Final

from logstore.checkpoint import (
    PARTITION_METADATA,
    PartitionMetadataFile,
    TopicPartition,
    random_topic_id,
)
from logstore.config import LogConfig
from logstore.errors import (
    ConfigError,
    InvalidPartitionsError,
    InvalidTopicError,
    LogStoreError,
    StorageError,
    TopicExistsError,
    raise_first,
)
from logstore.hosted_partition import HostedPartition
from logstore.hosting_store import WAITING_THREADS, HostingStore
from logstore.log import Log
from logstore.topic import Topic
from logstore.topic_configs import CREATING, DELETING, TopicEntry
from logstore.topic_names import check_topic_name, colliding_name, set_aside_name

PARTITIONS_MAX: Final = 1_000_000


class TopicStore(HostingStore):
    """
    A store whose topics can be created, altered and deleted.

    Source: Kafka ``LogManager``, ``Admin``.
    """

    # -- topics come and go ------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        config: Mapping[str, object] | None = None,
    ) -> Topic:
        """
        Create a topic.

        Args:
            name: 1 to 249 characters out of ``A-Z a-z 0-9 . _ -``.
            partitions: How many; None: ``num.partitions``.
            config: Settings that are not the store's defaults, by Kafka's names.

        **Durability**: on return the topic survives a power loss.

        Raises:
            TopicExistsError: There is one.
            InvalidTopicError: No topic can be called so, or it differs from one in '.' and '_'.
            InvalidPartitionsError: A topic cannot have this number of partitions.
            ConfigError: Every wrong setting.
            StorageError: It could not be made; nothing is left of it.
        """
        check_topic_name(name)
        with self._changing():
            if name in self._numbers:
                raise TopicExistsError(f"there is a topic {name}; use store[{name!r}]", topic=name)
            collision = colliding_name(name, self._numbers)
            if collision is not None:
                raise InvalidTopicError(
                    f"{name} and {collision} differ in '.' and '_' only, and would be one name in"
                    " metrics; use another name"
                )
            count = self.config.num_partitions if partitions is None else partitions
            numbers = tuple(range(_checked_count(count)))
            entry = TopicEntry(
                random_topic_id(), numbers, self.configs.checked(config or {}), state=CREATING
            )
            self._put(name, entry)
            self._make_or_take_back(name, numbers, None)
            return self.topic(name)

    def create_partitions(self, name: str, count: int) -> Topic:
        """
        Give a topic more partitions: ``count`` in all. Keys go to other partitions from then on.

        Raises:
            InvalidPartitionsError: It has as many, or more.

        Source: Kafka ``Admin.createPartitions``.
        """
        with self._changing():
            numbers = self.partitions_of(name)
            _checked_count(count)
            if count <= numbers[-1] + 1:
                raise InvalidPartitionsError(
                    f"topic {name} has {numbers[-1] + 1} partitions already; give a higher number",
                    topic=name,
                )
            entry = self.configs.get(name) or TopicEntry(
                self.topic_id_of(name), numbers, is_held=True
            )
            new = tuple(range(numbers[-1] + 1, count))
            self._put(name, entry.replace(partitions=(*numbers, *new), state=CREATING))
            self._make_or_take_back(name, new, entry)
            return self.topic(name)

    def _put(self, topic: str, entry: TopicEntry | None) -> None:
        """Set what is known of a topic; durable on return, or nothing has changed."""
        self._put_all({topic: entry})

    def _put_all(self, entries: Mapping[str, TopicEntry | None]) -> None:
        """Set what is known of topics; durable on return, or nothing has changed."""
        before = {topic: self.configs.get(topic) for topic in entries}
        for topic, entry in entries.items():
            self.configs.put(topic, entry)
        try:
            failed = self.configs.write(self._live)
        except BaseException:
            for topic, entry in before.items():
                self.configs.put(topic, entry)
            raise
        for path, error in failed.items():
            self._note_failure(path, error, "write the topics")

    def _make_or_take_back(
        self, name: str, numbers: tuple[int, ...], before: TopicEntry | None
    ) -> None:
        """Make partitions of a topic that is marked ``creating``; all of them, or none."""
        entry = self.configs.get(name)
        assert entry is not None
        try:
            self._make_partitions(name, numbers, entry.topic_id)
        except BaseException:
            with contextlib.suppress(StorageError):
                self._remove([TopicPartition(name, number) for number in numbers])
                self._put(name, before)
            self._count()
            raise
        # Lost in a crash this costs a look at the directories. The next write has it.
        self.configs.put(name, entry.replace(state=None))
        self._count()

    def _make_partitions(self, topic: str, numbers: Iterable[int], topic_id: str | None) -> None:
        """Make directories for partitions, each where the fewest are, and open their logs."""
        counts = dict.fromkeys(self._live, 0)
        for hosted in self._hosted.values():
            if hosted.directory is not None and hosted.directory.path in counts:
                counts[hosted.directory.path] += 1
        made: list[HostedPartition] = []
        for number in numbers:
            hosted = self._make_directory(TopicPartition(topic, number), counts)
            made.append(hosted)
            self._hosted[hosted.topic_partition] = hosted
        for path in {os.path.dirname(hosted.path) for hosted in made}:
            self.files.fsync_directory(path)

        def finish(hosted: HostedPartition) -> None:
            if topic_id is not None:
                path = os.path.join(hosted.path, PARTITION_METADATA)
                PartitionMetadataFile(path, files=self.files).write(topic_id)
            hosted.log(self)

        self._together(finish, made, WAITING_THREADS)

    def _make_directory(
        self, topic_partition: TopicPartition, counts: dict[str, int]
    ) -> HostedPartition:
        """
        Make a partition's directory where the fewest are, or in the next one if that fails.

        Source: Kafka ``LogManager.nextLogDirs``; spec 6.7.
        """
        failures: list[StorageError] = []
        for path in sorted(counts, key=counts.__getitem__):
            directory = self._live[path]
            assert directory is not None
            target = os.path.join(path, str(topic_partition))
            try:
                # What a partition of this name had before does not hold for the new one.
                directory.forget([topic_partition])
                self.files.mkdir(target)
            except StorageError as error:
                failures.append(error)
                self._note_failure(path, error, f"create {topic_partition}")
                continue
            counts[path] += 1
            return HostedPartition(topic_partition, target, directory, is_new=True)
        if failures:
            raise_first(failures)
        raise self._no_directory()

    def delete_topic(self, name: str) -> None:
        """
        Delete a topic with all of its records.

        Its directories are renamed at once, and removed after ``file.delete.delay.ms``.

        **Durability**: on return the topic is gone, also after a power loss.

        Raises:
            UnknownTopicError: There is none.
            StorageError: A directory could not be renamed; the rest goes at the next open.
        """
        with self._changing():
            numbers = self.partitions_of(name)
            entry = self.configs.get(name) or TopicEntry(None, numbers)
            self._put(name, entry.replace(state=DELETING))
            self._delete_partitions(name, numbers)

    def _delete_partitions(self, name: str, numbers: Iterable[int]) -> None:
        delay_ms = self.config_of(name).file_delete_delay_ms
        try:
            self._remove([TopicPartition(name, number) for number in numbers], delay_ms)
            self._put(name, None)
        finally:
            self._topics.pop(name, None)
            self._count()
            self._tasks.schedule_deletion()

    def delete_partition(self, topic: str, partition: int) -> None:
        """
        Delete one partition; keys that belong to it cannot be appended any more.

        A broker does so when the partition is moved to another one.

        Raises:
            UnknownTopicError: There is none.
            InvalidPartitionsError: It is the only one; delete the topic.
        """
        with self._changing():
            numbers = self.partitions_of(topic)
            if partition not in numbers:
                raise self._missing(TopicPartition(topic, partition))
            if len(numbers) == 1:
                raise InvalidPartitionsError(
                    f"{topic}-{partition} is the only partition; use delete_topic({topic!r})",
                    topic=topic,
                )
            entry = self.configs.get(topic) or TopicEntry(
                self.topic_id_of(topic), numbers, is_held=True
            )
            left = tuple(number for number in numbers if number != partition)
            delay_ms = self.config_of(topic).file_delete_delay_ms
            self._put(topic, entry.replace(partitions=left))
            try:
                self._remove([TopicPartition(topic, partition)], delay_ms)
            finally:
                self._count()
                self._tasks.schedule_deletion()

    def _update_config(self, log: Log, config: LogConfig) -> None:
        """Put settings of a log in force; a cleaning that they do not want any more ends first."""
        if log.config.compact and not config.compact:
            with self.cleaner.manager.paused(log):
                log.update_config(config)
        else:
            log.update_config(config)

    def purge(self) -> None:
        """Remove the directories of deleted topics now, whatever file.delete.delay.ms says."""
        with self._changing():
            self._tasks.delete_directories(self, is_due_now=True)

    def _remove(self, topic_partitions: list[TopicPartition], delay_ms: int = 0) -> None:
        """
        Rename partitions' directories for deletion; durable on return.

        Source: Kafka ``LogManager.asyncDelete``; spec 6.7.
        """
        renamed: dict[str, list[TopicPartition]] = {}
        due_ms = self.clock.milliseconds() + delay_ms
        for topic_partition in topic_partitions:
            hosted = self._hosted.get(topic_partition)
            if hosted is None:
                continue
            log = hosted.open_log
            with contextlib.nullcontext() if log is None else self.cleaner.manager.paused(log):
                hosted.drop()
            parent = os.path.dirname(hosted.path)
            target = os.path.join(parent, set_aside_name(*topic_partition, "delete"))
            if self.files.exists(hosted.path):
                self.files.rename(hosted.path, target)
                self._deleted.append((due_ms, target))
            del self._hosted[topic_partition]
            renamed.setdefault(parent, []).append(topic_partition)
        for parent, gone in renamed.items():
            self.files.fsync_directory(parent)
            directory = self._live.get(parent)
            if directory is not None:
                directory.forget(gone)

    def alter_topic(self, name: str, config: Mapping[str, object]) -> LogConfig:
        """
        Change settings of a topic, at once and for good; its logs stay open.

        Stating ``retention.ms``, ``retention.bytes`` or ``cleanup.policy`` ends the hold of a topic
        that was found on the disk.

        Args:
            name: The topic.
            config: Values by Kafka's names; None: the store's default from now on.

        Returns:
            The settings in force.

        **Durability**: durable on return.

        Raises:
            UnknownTopicError: There is no such topic.
            ConfigError: Every unknown name and wrong value; nothing was changed.
        """
        refused = self.alter_topics({name: config})
        if refused:
            raise refused[name]
        return self.config_of(name)

    def alter_topics(self, changes: Mapping[str, Mapping[str, object]]) -> dict[str, ConfigError]:
        """
        Do :meth:`alter_topic` for several topics, which are written together.

        Returns:
            The topics whose settings were refused, and why; the others have theirs.

        Raises:
            UnknownTopicError: There is no such topic; nothing was changed.
        """
        with self._changing():
            entries: dict[str, TopicEntry | None] = {}
            refused = {}
            for name, config in changes.items():
                numbers = self.partitions_of(name)
                try:
                    entry = self.configs.changed(name, config)
                except ConfigError as error:
                    refused[name] = error
                    continue
                if not entry.partitions:
                    entry = entry.replace(partitions=numbers, topic_id=self.topic_id_of(name))
                entries[name] = entry
            if entries:
                self._put_all(entries)
            for name in entries:
                self._put_in_force(name)
            return refused

    def _put_in_force(self, name: str) -> None:
        """Let the open logs of a topic have its settings."""
        settings = self.config_of(name)
        for number in self.partitions_of(name):
            hosted = self._hosted.get(TopicPartition(name, number))
            log = None if hosted is None else hosted.open_log
            if log is not None:
                try:
                    self._update_config(log, settings)
                except LogStoreError as error:  # It has the settings when it is opened again.
                    self.report(error, f"alter {name}-{number}")


def _checked_count(count: int) -> int:
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"partitions is {type(count).__name__}; give a whole number")
    if not 1 <= count <= PARTITIONS_MAX:
        raise InvalidPartitionsError(
            f"a topic cannot have {count} partitions; give 1 to {PARTITIONS_MAX:,}"
        )
    return count
