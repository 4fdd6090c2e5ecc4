"""
What a store has for sinks: commits of staged batches that happen once.

Source: none of Kafka's; :mod:`logstore.sink_commits` says how it works.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any, Final

from logstore.errors import ClosedError, LogStoreError, StorageError
from logstore.loading_store import ProgressListener
from logstore.scheduler import Task
from logstore.sink_commits import CommittedVersion, SinkCommit, SinkCommits
from logstore.sink_requests import RequestDesk, SinkRequest
from logstore.transactional_store import TransactionalStore

# How often a process that holds a store looks for what others want to commit.
REQUEST_INTERVAL_MS: Final = 100


class SinkStore(TransactionalStore):
    """A store that sinks commit to."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._sinks: Final = SinkCommits(self, self._transactions)
        self._requests_task: Task | None = None
        self._desk: RequestDesk | None = None
        # A scheduler of the caller's: then the caller says when requests are answered.
        self._answers_requests = options.get("scheduler") is None

    def commit_staged(
        self,
        sink_id: str,
        version: int,
        staged: Sequence[str | os.PathLike[str]],
        *,
        create_partitions: int | None = None,
        frees_staged: bool = False,
    ) -> SinkCommit:
        """
        Append the records of staged files in one transaction, once for a sink and a version.

        What was committed before is recognised, also after a crash at whatever moment: nothing
        happens then. The order within a partition is that of the files, and in each that in which
        it was written. The files are deleted.

        Args:
            sink_id: A lasting name of who writes.
            version: A number that grows from one commit of the sink to the next.
            staged: Files that :class:`~logstore.staged_batches.StagedBatchWriter` has finished.
            create_partitions: A topic that is missing is made with so many; None: it is an error.
            frees_staged: Delete each file as soon as it is read, so that the log grows into its
                space and memory. If the commit fails, the records have to be staged again.

        Returns:
            How many records of which topics were appended, and which topics had them.

        **Durability**: on return it survives a power loss.

        Raises:
            SinkVersionError: The sink has committed a later version.
            StagedBatchesError: A file is missing or not whole.
            UnknownTopicError: There is no such topic or partition.
            RecordTooLargeError: A batch is larger than a topic's max.message.bytes.
            StorageError: A disk has failed; call it again with the same version, and what
                ``frees_staged`` has deleted staged anew.
        """
        self.check_writable()
        return self._sinks.commit(
            sink_id,
            version,
            [os.fspath(path) for path in staged],
            create_partitions=create_partitions,
            frees_staged=frees_staged,
        )

    def sinks(self) -> list[CommittedVersion]:
        """Return what sinks have committed, by topic and sink."""
        self.check_open()
        return self._sinks.committed()

    def forget_sink(self, sink_id: str, topic: str | None = None) -> list[CommittedVersion]:
        """
        Forget what a sink has committed, to one topic or all: any version is new from then on.

        Returns:
            What was forgotten.

        **Durability**: durable on return.
        """
        self.check_writable()
        return self._sinks.forget(sink_id, topic)

    # -- requests of other processes ---------------------------------------------------------------

    def answer_requests(self) -> int:
        """
        Commit what other processes want to be committed; return how many requests there were.

        A store does so by itself, every 100 ms.
        """
        if self._desk is None or self.is_closed or self._is_forked():
            return 0
        try:
            return self._desk.serve(self._commit_request, self.clock.milliseconds())
        except StorageError as error:  # A directory that has failed is noticed by others.
            self.report(error, "answer requests of sinks")
            return 0

    def _commit_request(self, request: SinkRequest, paths: list[str]) -> SinkCommit:
        try:
            return self.commit_staged(
                request.sink_id,
                request.version,
                paths,
                create_partitions=request.create_partitions,
            )
        except LogStoreError as error:
            if not isinstance(error, ClosedError):
                self.report(error, f"commit version {request.version} of {request.sink_id!r}")
            raise

    def _load(self, progress: ProgressListener | None) -> None:
        super()._load(progress)
        if self._is_read_only or not self.paths:
            return
        self._desk = RequestDesk(self.paths[0], self.files)
        if self._answers_requests:
            this = weakref.ref(self)  # What is scheduled must not keep the store alive.

            def answer() -> None:
                store = this()
                if store is not None:
                    store.answer_requests()

            self._requests_task = self.scheduler.schedule(
                "sink-requests", answer, REQUEST_INTERVAL_MS, REQUEST_INTERVAL_MS
            )

    def _close_sinks(self) -> None:
        """Answer no more, after what is under way."""
        if self._requests_task is not None:
            self._requests_task.cancel()
        self._sinks.close()
