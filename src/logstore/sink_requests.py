"""
Requests to commit staged batches, for a store that another process has open for writing.

Whoever wants a commit and does not get the lock leaves a request in the store's first directory.
The holder of the lock looks for requests, commits, and answers. All are plain files, which a broker
and the loader do not look at, put in place whole by a rename::

    .logstore-request-<id>          what to commit, and until when
    .logstore-request-<id>.taken    the holder is at it
    .logstore-answer-<id>           what became of it

Nothing here is needed for a commit to happen once: who asks takes the lock when the holder is gone,
and commits the same version of the same sink, which is noted if it was committed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import uuid
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from logstore import errors
from logstore.errors import LogStoreError, StorageError
from logstore.files import REAL_FILES, TEMPORARY_SUFFIX, Files
from logstore.sink_commits import SinkCommit

REQUEST_PREFIX: Final = ".logstore-request-"
ANSWER_PREFIX: Final = ".logstore-answer-"
TAKEN_SUFFIX: Final = ".taken"
LEFTOVER_MS: Final = 3_600_000
# A file may come within the resolution of a directory's time: a change is looked at again.
LOOKS_AFTER_CHANGE: Final = 5


class SinkRequest(NamedTuple):
    """
    What is to be committed.

    Attributes:
        sink_id: Whose it is.
        version: Which version.
        staged: Names of the staged files, in their order.
        create_partitions: Of topics that are missing; None: that is an error.
        deadline_ms: After this time nobody waits any more.
    """

    sink_id: str
    version: int
    staged: list[str]
    create_partitions: int | None
    deadline_ms: int


class PostedRequest:
    """
    A request that was left for the holder of a store's lock.

    Args:
        directory: The store's first directory.
        request: What is to be committed.
        files: The door to the file system.

    **Durability**: the request is on the device.
    """

    def __init__(self, directory: str, request: SinkRequest, files: Files = REAL_FILES) -> None:
        self._files = files
        key = uuid.uuid4().hex
        self._request: Final = os.path.join(directory, REQUEST_PREFIX + key)
        self._answer: Final = os.path.join(directory, ANSWER_PREFIX + key)
        files.replace_file(self._request, json.dumps(request._asdict()).encode())

    def answer(self) -> SinkCommit | None:
        """
        Return what was committed, None: there is no answer yet.

        Raises:
            LogStoreError: What went wrong there.
        """
        if not self._files.exists(self._answer):
            return None
        answer: Any = json.loads(self._files.read_file(self._answer))
        problem = answer["error"]
        if problem is None:
            return SinkCommit(answer["record_counts"], tuple(answer["repeated"]))
        raise _error_of(problem)

    @property
    def is_taken(self) -> bool:
        """Whether the holder is at it: then it may be committed at any moment."""
        return self._files.exists(self._request + TAKEN_SUFFIX)

    def take_back(self) -> bool:
        """Remove the request before the holder takes it; False: the holder has taken it."""
        try:
            self._files.unlink(self._request)
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            return False
        return True

    def withdraw(self) -> None:
        """Remove what is left of the request and its answer."""
        for path in (self._request, self._request + TAKEN_SUFFIX, self._answer):
            self._files.unlink(path, missing_ok=True)


class RequestDesk:
    """
    Answers the requests in a directory, for the process that holds its lock.

    Args:
        directory: The store's first directory.
        files: The door to the file system.

    **Thread rule**: one thread.
    """

    def __init__(self, directory: str, files: Files) -> None:
        self._directory: Final = directory
        self._files = files
        self._modified_ms = -1
        self._looks_left = 0
        self._unsent: dict[str, bytes] = {}  # Answers that could not be written, by request.

    def serve(self, commit: Callable[[SinkRequest, list[str]], SinkCommit], now_ms: int) -> int:
        """
        Answer what is there.

        Args:
            commit: Commits a request, whose staged files have these paths.
            now_ms: The time.

        Returns:
            How many there were.

        Cost: one ``stat`` if nothing has changed.
        """
        for path, answer in list(self._unsent.items()):
            with contextlib.suppress(StorageError):  # It was raised, and reported, when it was new.
                self._send(path, answer)
        modified_ms = self._files.modified_ms(self._directory)
        if modified_ms != self._modified_ms:
            self._modified_ms = modified_ms
            self._looks_left = LOOKS_AFTER_CHANGE
        if self._looks_left == 0:
            return 0
        self._looks_left -= 1
        served = 0
        for name in self._files.listdir(self._directory):
            path = os.path.join(self._directory, name)
            if name.endswith((TAKEN_SUFFIX, TEMPORARY_SUFFIX)) or name.startswith(ANSWER_PREFIX):
                is_ours = name.startswith((REQUEST_PREFIX, ANSWER_PREFIX))
                if is_ours and path.removesuffix(TAKEN_SUFFIX) not in self._unsent:
                    self._sweep(path, now_ms)
            elif name.startswith(REQUEST_PREFIX):
                served += self._serve_one(path, commit, now_ms)
        return served

    def _serve_one(
        self,
        path: str,
        commit: Callable[[SinkRequest, list[str]], SinkCommit],
        now_ms: int,
    ) -> int:
        taken = path + TAKEN_SUFFIX
        try:
            self._files.rename(path, taken)
        except StorageError:
            return 0  # It was withdrawn.
        answer: dict[str, Any] = {"error": None, "record_counts": {}, "repeated": []}
        try:
            request = SinkRequest(**json.loads(self._files.read_file(taken)))
            if request.deadline_ms < now_ms:
                self._files.unlink(taken, missing_ok=True)
                return 0
            # Names only: a request reaches no file outside of the directory.
            paths = [
                os.path.join(self._directory, os.path.basename(each)) for each in request.staged
            ]
            done = commit(request, paths)
            answer.update(done._asdict())
        except Exception as error:  # noqa: BLE001 - somebody waits for an answer
            answer["error"] = _text_of(error)
        self._send(path, json.dumps(answer).encode())
        return 1

    def _send(self, path: str, answer: bytes) -> None:
        """Answer a request; where that cannot be written it is tried again, as somebody waits."""
        self._unsent[path] = answer
        key = os.path.basename(path).removeprefix(REQUEST_PREFIX)
        self._files.replace_file(os.path.join(self._directory, ANSWER_PREFIX + key), answer)
        del self._unsent[path]
        self._files.unlink(path + TAKEN_SUFFIX, missing_ok=True)

    def _sweep(self, path: str, now_ms: int) -> None:
        with contextlib.suppress(StorageError):
            if now_ms - self._files.modified_ms(path) > LEFTOVER_MS:
                self._files.unlink(path, missing_ok=True)


def _text_of(error: BaseException) -> dict[str, Any]:
    return {
        "type": type(error).__name__,
        "message": str(error),
        "fields": {
            name: value
            for name, value in vars(error).items()
            if value is None or isinstance(value, str | int)
        },
    }


def _error_of(problem: dict[str, Any]) -> LogStoreError:
    """Return the error that the holder has met, of the same class if it is one of ours."""
    kind = getattr(errors, problem["type"], None)
    if not (isinstance(kind, type) and issubclass(kind, LogStoreError)):
        return LogStoreError(f"{problem['type']}: {problem['message']}")
    return errors.rebuilt(kind, problem["message"], problem["fields"])
