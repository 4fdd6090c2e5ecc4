"""
What one task does: read its offsets of one log, as record batches for Spark.

A task runs in a process of its own, on any host that sees the files. It opens the log for reading
and makes sure that it is the one that the planner saw; it never makes or locks anything.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any, Final

from logstore.arrow_batches import ArrowBatches
from logstore.clock import SYSTEM_CLOCK
from logstore.errors import LogNotFoundError, LogStoreError, OffsetOutOfRangeError
from logstore.files import REAL_FILES
from logstore.large_memory import LARGE_BYTES
from logstore.log import Log
from logstore.opening import open_log
from logstore.spark.arrow_columns import SparkColumns
from logstore.spark.errors import SparkSourceError, named
from logstore.spark.options import SourceOptions
from logstore.spark.source_columns import Column
from logstore.spark.source_logs import ReadTask, store_id_of
from logstore.spark.task_memory import task_memory

logger = logging.getLogger("logstore.spark")

POLL_SECONDS: Final = 0.01


class DataLoss:
    """
    What to do when records are gone: fail, or tell and go on.

    Args:
        is_fatal: The option failOnDataLoss.
    """

    def __init__(self, is_fatal: bool) -> None:
        self._is_fatal: Final = is_fatal
        self._told: set[str] = set()

    def report(self, text: str) -> None:
        """
        Tell of records that are gone; the same ones once.

        Args:
            text: Which, and why.

        Raises:
            SparkSourceError: DATA_LOSS: it is fatal.
        """
        if self._is_fatal:
            raise SparkSourceError(
                "DATA_LOSS", f"{text}; set failOnDataLoss=false to step over what is gone"
            )
        if text not in self._told:
            self._told.add(text)
            logger.warning("stepped over data loss: %s", text)


def read_task(task: ReadTask, columns: Sequence[Column], options: SourceOptions) -> Iterator[Any]:
    """
    Yield the record batches of a task.

    CRCs are checked, control batches and gaps stepped over.

    Args:
        task: What to read.
        columns: What Spark wants.
        options: The source's.

    **Cost**: memory of a few record batches, of ``batchBytes`` each; records above 16 MiB are in
    files in Spark's local directory, up to three times.

    Raises:
        SparkSourceError: STORE_NOT_FOUND, STORE_MISMATCH, DATA_LOSS, or what the log raises.
    """
    return TaskRead(task, columns, options).batches()


class TaskRead:
    """
    A task while it is under way: what is left of it, ``[offset, stop)``.

    Args:
        task: What to read.
        columns: What Spark wants.
        options: The source's.
    """

    def __init__(self, task: ReadTask, columns: Sequence[Column], options: SourceOptions) -> None:
        self._task: Final = task
        self._options: Final = options
        self._columns: Final = SparkColumns(columns, task.topic_partition)
        self._loss: Final = DataLoss(options.fail_on_data_loss)
        self._offset = task.start
        self._stop = task.stop

    def batches(self) -> Iterator[Any]:
        """Yield its record batches."""
        name = str(self._task.topic_partition)
        while self._offset < self._stop:
            try:
                with self._open() as log:
                    self._fit(log)
                    yield from self._scan(log)
            except OffsetOutOfRangeError as error:
                # Retention has overtaken the read: the next turn sees how far. Or a truncation.
                if error.log_start_offset is None or error.log_start_offset <= self._offset:
                    self._loss.report(f"{name}: {error}")
            except SparkSourceError:
                raise
            except _GoneError:
                self._lose(self._stop, "the topic was deleted, or made anew")
            except LogStoreError as error:
                if REAL_FILES.is_directory(self._task.path):
                    raise named(error, name) from None
                self._lose(self._stop, "the topic was deleted while it was read")

    def _open(self) -> Log:
        """
        Return the log that the planner saw, open for reading.

        Raises:
            _GoneError: It is not in its store any more.
            SparkSourceError: STORE_NOT_FOUND, STORE_MISMATCH: the store itself is another one.
        """
        task = self._task
        parent = os.path.dirname(task.path)
        host = socket.gethostname()
        if not REAL_FILES.is_directory(parent):
            raise SparkSourceError(
                "STORE_NOT_FOUND",
                f"{task.topic_partition}: host {host} has no directory {parent}, which the driver"
                " has; mount the same file system there on every host",
            )
        store_id = store_id_of(parent)
        if task.store_id is not None and store_id != task.store_id:
            raise SparkSourceError(
                "STORE_MISMATCH",
                f"{task.topic_partition}: {parent} on host {host} is not the store that the driver"
                f" saw: its directory.id is {store_id}, not {task.store_id}; mount the same file"
                " system there on every host",
            )
        try:
            log = open_log(task.path, "r")
        except LogNotFoundError:
            if task.store_id is not None:
                raise _GoneError from None
            raise SparkSourceError(
                "STORE_NOT_FOUND",
                f"{task.topic_partition}: there is no log in {task.path} on host {host}, where the"
                " driver saw one; mount the same file system there on every host",
            ) from None
        if task.topic_id is not None and log.topic_id != task.topic_id:
            log.close()
            raise _GoneError
        return log

    def _fit(self, log: Log) -> None:
        """Make sure that everything is there that the planner saw, or lose what is not."""
        deadline = SYSTEM_CLOCK.monotonic() + self._options.poll_timeout_ms / 1000
        while (end := log.reading_end(self._options.isolation)) < self._stop:
            # Another host's writes may take a while to be seen here.
            if SYSTEM_CLOCK.monotonic() >= deadline:
                self._lose_from(end)
                break
            SYSTEM_CLOCK.sleep(POLL_SECONDS)
        first = log.log_start_offset
        if self._offset < first:
            self._lose(min(first, self._stop), f"the log begins at {first} now")

    def _lose(self, offset: int, why: str) -> None:
        """Step over what lies before an offset."""
        self._loss.report(
            f"{self._task.topic_partition}: offsets [{self._offset}, {offset}) are gone: {why}"
        )
        self._offset = offset

    def _lose_from(self, end: int) -> None:
        """End before what is gone."""
        self._loss.report(
            f"{self._task.topic_partition}: offsets [{max(end, self._offset)}, {self._stop}) are"
            f" gone: the log ends at {end} now"
        )
        self._stop = end

    def _scan(self, log: Log) -> Iterator[Any]:
        if self._offset >= self._stop:
            return
        batches = ArrowBatches(
            log,
            self._columns.layout,
            self._offset,
            self._stop,
            self._options.isolation,
            truncations=log.truncations,
            batch_rows=self._options.batch_rows or self._columns.batch_rows,
            batch_bytes=self._options.batch_bytes,
            large_memory=task_memory(),
        )
        for batch in batches:
            is_large = batch.nbytes > LARGE_BYTES
            if is_large and self._offset == self._task.start:
                yield self._columns.empty  # Spark keeps the first as long as the task runs.
            converted = self._columns.convert(batch)
            del batch  # One record may be all that memory has room for.
            self._offset = batches.next_offset
            yield converted
            del converted
            if is_large:
                yield self._columns.empty  # And the last until it has the next.
        self._offset = self._stop


class _GoneError(Exception):
    """The log that the planner saw is not in its store any more."""
