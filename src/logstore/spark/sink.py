"""
What batch and streaming writers have in common: a plan, tasks that stage, a commit.

::

    driver: writer()      checks columns and options, looks at the store     SinkPlan, pickled
    task:   write(rows)   writes staged files, appends nothing               StagedMessage
    driver: commit(...)   appends all staged files in one transaction, once

Each of the three is a process of its own, and a task may be run several times.
"""

from __future__ import annotations

import contextlib
import socket
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import WriterCommitMessage

from logstore.clock import SYSTEM_CLOCK
from logstore.errors import InconsistentTopicIdError, LogNotFoundError, LogStoreError
from logstore.sink_commits import JOB_PREFIX
from logstore.spark.errors import SparkSourceError, named
from logstore.spark.sink_columns import check_columns
from logstore.spark.sink_options import SinkOptions
from logstore.spark.task_memory import large_batches_in_files, task_memory
from logstore.spark.worker_process import settle
from logstore.staged_batches import BATCH_BYTES, StagedBatchWriter, delete_staged, staged_path
from logstore.staged_commit import check_store_id, commit_staged, store_id_of
from logstore.store import LogStore, open_store
from logstore.topic_names import INTERNAL_TOPICS

if TYPE_CHECKING:
    import pyarrow as pa

    from logstore.spark.staging import TopicPlan


class StagedMessage(WriterCommitMessage):
    """
    What a task tells the driver.

    Attributes:
        task: Which task; the order of records in a partition is that of tasks.
        paths: Its staged files, none if it had no row.
        record_count: Rows in it.
        sink_id: On whose behalf.
        version: Of which version.
    """

    def __init__(
        self, task: int, paths: tuple[str, ...], record_count: int, sink_id: str, version: int
    ) -> None:
        self.task = task
        self.paths = paths
        self.record_count = record_count
        self.sink_id = sink_id
        self.version = version


class SinkPlan(NamedTuple):
    """
    What a task and the commit need; picklable.

    Attributes:
        options: The sink's.
        store_id: Of the store that the planner saw.
        job_id: Of a write that has no number of its own.
    """

    options: SinkOptions
    store_id: str | None
    job_id: str

    @classmethod
    def make(cls, options: SinkOptions, schema: Any) -> SinkPlan:
        """
        Check what can be checked before a task runs.

        Raises:
            SparkSourceError: A column, the store or the topic is not right.
        """
        check_columns(schema, options.topic)
        if options.topic in INTERNAL_TOPICS:
            raise SparkSourceError("INVALID_TOPIC", f"{options.topic} is not for records of others")
        try:
            if options.create_partitions is not None:
                _make_store(options)
            store_id = store_id_of(options.roots[0])
            if options.topic is not None:
                with _reader(options) as store:
                    _plan_of(store, options.topic, options.create_partitions)
        except LogNotFoundError as error:
            text = f"there is no store in {options.roots[0]}; check path, or set createTopics=true"
            raise SparkSourceError("STORE_NOT_FOUND", text) from error
        except LogStoreError as error:
            raise named(error) from error
        return cls(options, store_id, JOB_PREFIX + uuid.uuid4().hex)

    # -- task --------------------------------------------------------------------------------------

    def stage(
        self, batches: Iterator[pa.RecordBatch], task: int, attempt: int, sink_id: str, version: int
    ) -> StagedMessage:
        """
        Write the rows of a task to its staged files.

        **Cost**: memory of 30 MiB beside Spark's record batches; what is above 16 MiB, also of
        those, is in files in Spark's local directory and beside the staged files.

        Raises:
            SparkSourceError: What is wrong; nothing is left of the files.
        """
        from logstore.spark.staging import RecordStager  # noqa: PLC0415 - not in the planner

        options = self.options
        root = options.roots[0]
        with contextlib.ExitStack() as opened, large_batches_in_files():
            store: LogStore | None = None

            def plan_of(topic: str) -> TopicPlan:
                nonlocal store
                if store is None:
                    store = opened.enter_context(_reader(options))
                return _plan_of(store, topic, options.create_partitions)

            stager = RecordStager(
                lambda: StagedBatchWriter(staged_path(root, sink_id, version, task, attempt)),
                topic=options.topic,
                plan_of=plan_of,
                keeps_timestamps=options.keeps_timestamps,
                now_ms=SYSTEM_CLOCK.milliseconds(),
                turn=task + max(version, 0),
                large_memory=task_memory(),
            )
            try:
                check_store_id(root, self.store_id)
                for batch in batches:
                    stager.add(batch)
                paths = stager.finish()
            except BaseException as error:
                with contextlib.suppress(LogStoreError):  # The first error is the one to see.
                    stager.discard()
                if isinstance(error, LogStoreError):
                    raise _named(error) from error
                raise
        settle()
        return StagedMessage(task, paths, stager.record_count, sink_id, version)

    # -- driver ------------------------------------------------------------------------------------

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """
        Append what the tasks have staged, once.

        Raises:
            SparkSourceError: Nothing was appended; or the disk has failed.
        """
        staged = staged_of(messages)
        if not staged:
            return
        options = self.options
        try:
            commit_staged(
                options.roots,
                staged[0].sink_id,
                staged[0].version,
                paths_of(staged),
                store_id=self.store_id,
                create_partitions=options.create_partitions,
                timeout_seconds=options.writer_timeout_ms / 1000,
            )
        except LogStoreError as error:
            raise _named(error) from error
        settle()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete what the tasks have staged. What was committed stays so."""
        with contextlib.suppress(LogStoreError):  # They are swept later.
            delete_staged(paths_of(staged_of(messages)))


def staged_of(messages: Sequence[WriterCommitMessage | None]) -> list[StagedMessage]:
    """Return the messages of tasks that had rows, in the order of the tasks."""
    found = [each for each in messages if isinstance(each, StagedMessage) and each.paths]
    return sorted(found, key=lambda each: each.task)


def paths_of(staged: Iterable[StagedMessage]) -> list[str]:
    """Return the paths of staged files."""
    return [path for each in staged for path in each.paths]


def _named(error: LogStoreError) -> SparkSourceError:
    """Return an error as one line; what is not the planner's store has the codes of a reader."""
    if isinstance(error, LogNotFoundError):
        code = "STORE_NOT_FOUND"
    elif isinstance(error, InconsistentTopicIdError):
        code = "STORE_MISMATCH"
    else:
        return named(error)
    return SparkSourceError(code, f"on host {socket.gethostname()}: {error}")


def _make_store(options: SinkOptions) -> None:
    """Make a store where there is none; that is a part of making topics."""
    try:
        if store_id_of(options.roots[0]) is not None:
            return
    except LogNotFoundError:
        pass
    open_store(*options.roots, lazy=True).close()


def _reader(options: SinkOptions) -> LogStore:
    return open_store(*options.roots, mode="r", lazy=True)


def _plan_of(store: LogStore, topic: str, create_partitions: int | None) -> TopicPlan:
    from logstore.spark.staging import TopicPlan  # noqa: PLC0415

    if topic not in store:
        if create_partitions is None:
            raise SparkSourceError(
                "UNKNOWN_TOPIC",
                f"there is no topic {topic!r} in {store.paths[0]}; create it, or set"
                " createTopics=true",
            )
        return TopicPlan(create_partitions)
    found = store[topic]
    config = found.config
    return TopicPlan(
        found.partition_count,
        min(BATCH_BYTES, config.max_message_bytes, config.segment_bytes),
        config.max_message_bytes,
    )
