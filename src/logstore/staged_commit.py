"""
A commit of staged batches by whoever wants one: with the store's lock, or by who holds it.

A process that comes for one commit opens the store, lazily, commits and closes it. If another one
has it open for writing, the commit is asked of that one, until it is done or the lock is free.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from typing import Final

from logstore.clock import SYSTEM_CLOCK, Clock
from logstore.errors import (
    ClosedError,
    InconsistentTopicIdError,
    LockedError,
    LogNotFoundError,
    LogStoreError,
    ProducerFencedError,
    StorageError,
)
from logstore.files import REAL_FILES, Files
from logstore.meta_properties import read_meta_properties
from logstore.sink_commits import SinkCommit
from logstore.sink_requests import PostedRequest, SinkRequest
from logstore.store import LogStore, open_log_store

TIMEOUT_SECONDS: Final = 60.0
LOCK_WAIT_SECONDS: Final = 0.05  # For another one that commits, before it is asked.
POLL_SECONDS: Final = 0.01

logger = logging.getLogger(__name__)


def store_id_of(directory: str, files: Files = REAL_FILES) -> str | None:
    """
    Return what tells a store from every other one, None if it has no such id.

    Raises:
        LogNotFoundError: There is no such directory.
    """
    if not files.is_directory(directory):
        raise LogNotFoundError(f"there is no store in {directory}; check the path", path=directory)
    properties = read_meta_properties(directory, files)
    return None if properties is None else properties.directory_id or properties.cluster_id


def check_store_id(directory: str, expected: str | None, files: Files = REAL_FILES) -> None:
    """
    Raise unless a directory is the store that somebody else has seen; nothing is made.

    Raises:
        LogNotFoundError: There is no such directory.
        InconsistentTopicIdError: It is another store.
    """
    found = store_id_of(directory, files)
    if expected is not None and found != expected:
        raise InconsistentTopicIdError(
            f"{directory} is the store {found} here, and {expected} where the write was planned;"
            " every machine has to see the same directory",
            path=directory,
        )


def commit_staged(
    paths: Sequence[str],
    sink_id: str,
    version: int,
    staged: Sequence[str],
    *,
    store_id: str | None = None,
    create_partitions: int | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
    clock: Clock = SYSTEM_CLOCK,
) -> SinkCommit:
    """
    Commit staged batches to a store that this process has not opened.

    Args:
        paths: The store's directories; the staged files are in the first.
        sink_id: As of ``LogStore.commit_staged``, like the following.
        version: See there.
        staged: The files.
        store_id: The store has to have this id; see :func:`store_id_of`.
        create_partitions: As of ``LogStore.commit_staged``.
        timeout_seconds: How long to wait until another process that has the store open begins.
        clock: What time it is.

    Raises:
        LockedError: Another process has the store open, and did not answer; it names that one.
            Nothing was committed, unless it says so.
        LogNotFoundError: There is no store; none is made.

    Other errors are those of ``LogStore.commit_staged``.
    """
    check_store_id(paths[0], store_id)
    deadline = clock.monotonic() + timeout_seconds
    ask_at = clock.monotonic() + min(LOCK_WAIT_SECONDS, timeout_seconds)
    request: PostedRequest | None = None
    was_taken = False
    try:
        while True:
            try:
                store = open_log_store(*paths, lazy=True, clock=clock)
            except LockedError as error:
                locked = error
            else:
                return _commit_and_close(
                    store, request, sink_id, version, staged, create_partitions
                )
            if request is None and clock.monotonic() >= ask_at:
                names = [os.path.basename(path) for path in staged]
                until = clock.milliseconds() + int(1000 * (deadline - clock.monotonic()))
                request = PostedRequest(
                    paths[0], SinkRequest(sink_id, version, names, create_partitions, until)
                )
            retry_at = clock.monotonic() + 10 * POLL_SECONDS
            while clock.monotonic() < retry_at:
                done = _answer(request)
                if done is not None:
                    return done
                clock.sleep(POLL_SECONDS)
                if request is None:
                    break
            if clock.monotonic() >= deadline and not _is_at_it(request):
                # It may have answered before it was looked whether it is still at it.
                done = _answer(request)
                if done is not None:
                    return done
                raise _not_answered(paths[0], locked, timeout_seconds, was_taken) from locked
            was_taken = was_taken or (request is not None and request.is_taken)
    finally:
        if request is not None:
            with contextlib.suppress(StorageError):  # What is left of it is swept.
                request.withdraw()


def _commit_and_close(
    store: LogStore,
    request: PostedRequest | None,
    sink_id: str,
    version: int,
    staged: Sequence[str],
    create_partitions: int | None,
) -> SinkCommit:
    done: SinkCommit | None = None
    try:
        with store:
            done = _answer(request)
            if done is None:
                if request is not None:
                    request.take_back()  # Else this store would answer it as well.
                # If it fails nobody comes with these files again.
                done = store.commit_staged(
                    sink_id, version, staged, create_partitions=create_partitions, frees_staged=True
                )
    except LogStoreError as error:
        if done is None:
            raise
        # The next one to open it recovers it: it is committed.
        logger.warning("%s was committed to, and not closed in order: %s", store.paths[0], error)
    return done


def _is_at_it(request: PostedRequest | None) -> bool:
    """Whether the holder has begun: it is waited for, as it may commit at any moment."""
    return request is not None and not request.take_back() and request.is_taken


def _answer(request: PostedRequest | None) -> SinkCommit | None:
    if request is None:
        return None
    try:
        return request.answer()
    except (ClosedError, ProducerFencedError):
        return None  # It was about to close the store, which will be free.


def _not_answered(
    directory: str, locked: LockedError, timeout_seconds: float, was_taken: bool
) -> LockedError:
    who = (
        "another program (a broker?)"
        if locked.pid is None
        else f"process {locked.pid} on host {locked.host}"
    )
    outcome = "it may have been committed" if was_taken else "nothing was written"
    return LockedError(
        f"{who} has {directory} open for writing and did not answer within {timeout_seconds:g} s;"
        f" close it there, or raise writerTimeout; {outcome}",
        host=locked.host,
        pid=locked.pid,
        path=directory,
    )
