"""
Checkpoints: the small text files of a log directory, replaced atomically.

=====================================  =============================================================
``recovery-point-offset-checkpoint``   topic partition offset: everything below is on the device
``log-start-offset-checkpoint``        the same lines: log starts above the first segment's base
``replication-offset-checkpoint``      the same lines: high watermarks
``cleaner-offset-checkpoint``          the same lines: first offsets not yet cleaned
``leader-epoch-checkpoint``            epoch start-offset, ascending; in the partition's directory
``partition.metadata``                 the topic id; in the partition's directory
``.kafka_cleanshutdown``               JSON; its existence marks a clean end
=====================================  =============================================================

The first five are one format: a line with the version (0), a line with the number of entries, a
line for each entry, fields separated by spaces. Anything else is malformed, trailing blank lines
too; an empty file has no entries.

**Durability:** a write leaves the old contents or the new, whole, and is durable on return.

Source: Kafka ``CheckpointFile``, ``OffsetCheckpointFile``, ``LeaderEpochCheckpointFile``,
``PartitionMetadataFile``, ``CleanShutdownFileHandler``; spec 2.2 to 2.6.
"""

from __future__ import annotations

import base64
import binascii
import errno
import json
import os
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from operator import index
from typing import Final, NamedTuple, SupportsIndex, TypeVar

from logstore.errors import CorruptCheckpointError, InconsistentTopicIdError, StorageError
from logstore.files import REAL_FILES, TEMPORARY_SUFFIX, Files, Path

RECOVERY_POINT_CHECKPOINT: Final = "recovery-point-offset-checkpoint"
LOG_START_CHECKPOINT: Final = "log-start-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT: Final = "replication-offset-checkpoint"
CLEANER_CHECKPOINT: Final = "cleaner-offset-checkpoint"
LEADER_EPOCH_CHECKPOINT: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"

CURRENT_VERSION: Final = 0
# A broker with a million partitions has 30 MB; what is larger is no checkpoint.
FILE_BYTES_MAX: Final = 256 << 20
NO_BROKER_EPOCH: Final = -1

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

T = TypeVar("T")

_INTEGER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_WHITE_SPACE: Final = re.compile(r"[ \t\n\x0b\f\r]+")
_LINE_END: Final = re.compile(r"\r\n|\r|\n")


class TopicPartition(NamedTuple):
    """A topic's name and the number of one of its partitions."""

    topic: str
    partition: int

    @classmethod
    def of(cls, place: tuple[str, int]) -> TopicPartition:
        """
        Return it for a topic and a number that a user gives.

        Raises:
            TypeError: It is not these two.
        """
        if isinstance(place, tuple) and len(place) == 2:
            topic, partition = place
            if isinstance(topic, str) and isinstance(partition, SupportsIndex):
                return cls(topic, index(partition))
        raise TypeError(f'{place!r} is no partition; give a topic and a number: ("orders", 0)')

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class EpochEntry(NamedTuple):
    """A leader epoch and the offset of its first record."""

    epoch: int
    start_offset: int


class PartitionMetadata(NamedTuple):
    """What ``partition.metadata`` says."""

    version: int
    topic_id: str


# ---- text ----------------------------------------------------------------------------------------


class _MalformedError(Exception):
    """What is wrong with a text; the reader adds the path."""


def _integer(text: str, limit: int) -> int:
    """Parse as Java does: a sign and digits, nothing else, within the type's range."""
    if not _INTEGER.fullmatch(text):
        raise _MalformedError(f"{_shown(text)} is not a number")
    if len(text.lstrip("+-0")) > 19:
        raise _MalformedError(f"{_shown(text)} is out of range")
    value = int(text)
    if not -limit - 1 <= value <= limit:
        raise _MalformedError(f"{_shown(text)} is out of range")
    return value


def _fields(line: str, count: int) -> list[str]:
    """Split at white space, as Java does: before the first field it makes an empty one."""
    fields = _WHITE_SPACE.split(line)
    while fields and not fields[-1]:
        fields.pop()
    if len(fields) != count:
        raise _MalformedError(f"malformed line {_shown(line)}")
    return fields


def _lines(text: str) -> list[str]:
    lines = _LINE_END.split(text)
    if lines[-1] == "":
        lines.pop()
    return lines


def _shown(line: str) -> str:
    return repr(line if len(line) <= 60 else line[:57] + "...")


def _entry_lines(lines: list[str]) -> list[str]:
    """Return the lines of the entries, after checking version and count."""
    if not lines:
        return []
    if _integer(lines[0], INT32_MAX) != CURRENT_VERSION:
        raise _MalformedError(f"version {lines[0]} is unknown")
    if len(lines) == 1:
        return []
    count = _integer(lines[1], INT32_MAX)
    if len(lines) - 2 != count:
        raise _MalformedError(f"{len(lines) - 2} entries where {count} were declared")
    return lines[2:]


def _parse_offset(line: str) -> tuple[TopicPartition, int]:
    topic, partition, offset = _fields(line, 3)
    return TopicPartition(topic, _integer(partition, INT32_MAX)), _integer(offset, INT64_MAX)


def _parse_epoch(line: str) -> EpochEntry:
    epoch, start_offset = _fields(line, 2)
    entry = EpochEntry(_integer(epoch, INT32_MAX), _integer(start_offset, INT64_MAX))
    if entry.epoch < 0 or entry.start_offset < 0:
        raise _MalformedError(f"negative number in line {_shown(line)}")
    return entry


def _parse_metadata(lines: list[str]) -> PartitionMetadata:
    version = _integer(_value(lines, 0), INT32_MAX)
    if version < CURRENT_VERSION:
        raise _MalformedError(f"version {version} is unknown")
    topic_id = _value(lines, 1)
    try:
        is_zero = uuid_of(topic_id).int == 0
    except ValueError as error:
        raise _MalformedError(f"malformed topic id: {error}") from None
    if is_zero:
        raise _MalformedError("the topic id is zero")
    return PartitionMetadata(version, topic_id)


class _TextFile:
    """One small file that is read whole and replaced whole."""

    __slots__ = ("_files", "_lock", "path")

    def __init__(self, path: Path, *, files: Files = REAL_FILES) -> None:
        self.path = os.fspath(path)
        self._files = files
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"

    def exists(self) -> bool:
        """Whether there is a file."""
        return self._files.exists(self.path)

    def update_path(self, path: Path) -> None:
        """Learn that the file has another name now."""
        self.path = os.fspath(path)

    def delete(self) -> None:
        """Delete the file, durably; a missing one is fine."""
        with self._lock:
            if self.exists():
                self._files.unlink(self.path, missing_ok=True)
                self._files.fsync_directory(os.path.dirname(self.path) or ".")

    def _text(self) -> str | None:
        """Return the contents, None if there is no file."""
        try:
            size_bytes = self._files.file_size(self.path)
            if size_bytes > FILE_BYTES_MAX:
                raise self._corrupt(f"{size_bytes} bytes are too many")
            data = self._files.read_file(self.path)
        except StorageError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        return data.decode("utf-8", "replace")

    def _corrupt(self, what: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(
            f"checkpoint {self.path}: {what}; delete the file to start without it", path=self.path
        )


class _CheckpointFile(_TextFile):
    """
    A checkpoint with a version, a count and a line for each entry.

    Thread rule: any thread may read and write; writes are serialised.

    Args:
        path: The file.
        create: Make an empty file if there is none, as Kafka does.
        files: The door to the file system.
    """

    __slots__ = ()

    def __init__(self, path: Path, *, create: bool = False, files: Files = REAL_FILES) -> None:
        super().__init__(path, files=files)
        if create:
            self.create()

    def create(self) -> None:
        """Make an empty file if there is none."""
        if not self.exists():
            self._files.close(self._files.open(self.path, os.O_WRONLY | os.O_CREAT))

    def _read(self, parse: Callable[[str], T]) -> list[T]:
        """Return what ``parse`` makes of each entry's line; it raises _MalformedError."""
        text = self._text()
        try:
            return [parse(line) for line in _entry_lines(_lines(text or ""))]
        except _MalformedError as error:
            raise self._corrupt(str(error)) from None

    def _write_lines(self, lines: list[str], *, missing_directory_ok: bool = False) -> None:
        text = "".join(f"{line}\n" for line in [str(CURRENT_VERSION), str(len(lines)), *lines])
        with self._lock:
            try:
                self._files.replace_file(self.path, text.encode())
            except StorageError as error:
                # The directory was renamed, because the log is being deleted.
                if not (missing_directory_ok and error.errno == errno.ENOENT):
                    raise


class OffsetCheckpointFile(_CheckpointFile):
    """
    Offsets of partitions: recovery points, log starts, high watermarks, cleaner positions.

    Source: Kafka ``OffsetCheckpointFile``.
    """

    __slots__ = ()

    def read(self) -> dict[TopicPartition, int]:
        """
        Return the offset of each partition; a missing file has none. The last of equal lines wins.

        Raises:
            CorruptCheckpointError: The file is malformed.
        """
        return dict(self._read(_parse_offset))

    def write(self, offsets: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int]) -> None:
        """Replace the contents, durably."""
        lines = []
        for (topic, partition), offset in offsets.items():
            assert topic
            assert not _WHITE_SPACE.search(topic)
            lines.append(f"{topic} {partition} {offset}")
        self._write_lines(lines)


class LeaderEpochCheckpointFile(_CheckpointFile):
    """
    The leader epochs of a partition and where each begins.

    Source: Kafka ``LeaderEpochCheckpointFile``.
    """

    __slots__ = ()

    def read(self) -> list[EpochEntry]:
        """
        Return the entries as they are in the file; a missing file has none.

        Raises:
            CorruptCheckpointError: The file is malformed.
        """
        return self._read(_parse_epoch)

    def write(self, entries: Iterable[EpochEntry]) -> None:
        """Replace the contents, durably."""
        self._write_lines([f"{epoch} {start_offset}" for epoch, start_offset in entries])

    def write_for_truncation(self, entries: Iterable[EpochEntry]) -> None:
        """
        The same, but nothing happens if the directory is gone.

        Truncations write in the background: the log may have been renamed for deletion by then.
        """
        lines = [f"{epoch} {start_offset}" for epoch, start_offset in entries]
        self._write_lines(lines, missing_directory_ok=True)


class PartitionMetadataFile(_TextFile):
    """
    The topic id of a partition, in ``partition.metadata``.

    Source: Kafka ``PartitionMetadataFile``.
    """

    __slots__ = ("_recorded",)

    def __init__(self, path: Path, *, files: Files = REAL_FILES) -> None:
        super().__init__(path, files=files)
        self._recorded: str | None = None

    def read(self) -> PartitionMetadata:
        """
        Return the contents.

        Raises:
            CorruptCheckpointError: The file is malformed, or its topic id is zero.
            StorageError: There is no file.
        """
        text = self._text()
        if text is None:
            raise StorageError(
                f"there is no {self.path}; the topic id is not known",
                errno.ENOENT,
                path=self.path,
            )
        try:
            return _parse_metadata(_lines(text))
        except _MalformedError as error:
            raise self._corrupt(str(error)) from None

    def record(self, topic_id: str) -> None:
        """
        Keep a topic id for :meth:`maybe_flush`.

        Raises:
            InconsistentTopicIdError: Another one is waiting to be written.
        """
        assert uuid_of(topic_id).int != 0
        if self._recorded is not None and self._recorded != topic_id:
            raise InconsistentTopicIdError(
                f"topic id {topic_id} differs from {self._recorded}, which is to be written to"
                f" {self.path}; open the directory of that topic",
                path=self.path,
            )
        self._recorded = topic_id

    @property
    def recorded_topic_id(self) -> str | None:
        """The topic id that waits to be written."""
        return self._recorded

    def maybe_flush(self) -> None:
        """Write the recorded topic id, durably; do it before the partition's first record."""
        if self._recorded is None:
            return
        with self._lock:
            topic_id = self._recorded
            if topic_id is not None:
                text = f"version: {CURRENT_VERSION}\ntopic_id: {topic_id}"
                self._files.replace_file(self.path, text.encode())
                self._recorded = None

    def write(self, topic_id: str) -> None:
        """Replace the contents, durably."""
        self.record(topic_id)
        self.maybe_flush()

    def delete(self) -> None:
        """Delete the file, durably; a recorded topic id is forgotten."""
        self._recorded = None
        super().delete()


def _value(lines: list[str], slot: int) -> str:
    """Return what stands behind ``name: `` in a line."""
    if slot >= len(lines):
        raise _MalformedError(f"{len(lines)} lines where 2 are needed")
    parts = re.split(r":[ \t\n\x0b\f\r]+", lines[slot])
    while parts and not parts[-1]:
        parts.pop()
    if len(parts) != 2:
        raise _MalformedError(f"malformed line {_shown(lines[slot])}")
    return parts[1]


class CleanShutdownFile(_TextFile):
    """
    ``.kafka_cleanshutdown``: there only between a clean end and the next start.

    Its existence alone decides. It is written last and removed, durably, before anything is
    changed: a crash in between counts as unclean.

    Source: Kafka ``CleanShutdownFileHandler``.
    """

    __slots__ = ()

    def __init__(self, directory: Path, *, files: Files = REAL_FILES) -> None:
        super().__init__(os.path.join(os.fspath(directory), CLEAN_SHUTDOWN), files=files)

    def write(self, broker_epoch: int = NO_BROKER_EPOCH) -> None:
        """Put the marker in place, durably."""
        text = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
        with self._lock:
            self._files.replace_file(self.path, text.encode())

    def read(self) -> int | None:
        """Return the broker epoch, None if it says none or there is no marker."""
        text = self._text()
        try:
            content = json.loads(text or "")
            epoch = content["brokerEpoch"] if int(content["version"]) == 0 else None
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        return epoch if isinstance(epoch, int) and not isinstance(epoch, bool) else None


# ---- names of directories ------------------------------------------------------------------------

_SET_ASIDE: Final = re.compile(r"(\S+)-(\S+)\.(\S+)-(delete|future|stray)", re.ASCII)
SET_ASIDE_SUFFIXES: Final = ("-delete", "-future", "-stray")


def topic_partition_of(
    name: str, default: TopicPartition | tuple[str, int] | None = None
) -> TopicPartition | None:
    """
    Return the partition that a directory is called after, or ``default`` if it is none.

    ``orders-0`` and ``orders-0.<uuid>-delete``, ``-future`` and ``-stray`` are partition 0 of
    ``orders``.

    Source: Kafka ``LocalLog.parseTopicPartitionName``; spec 2.2.
    """
    other = None if default is None else TopicPartition(*default)
    if name.endswith(SET_ASIDE_SUFFIXES):
        if not _SET_ASIDE.fullmatch(name):
            return other
        name = name[: name.rindex(".")]
    topic, dash, partition = name.rpartition("-")
    if not dash or not topic:
        return other
    try:
        return TopicPartition(topic, _integer(partition, INT32_MAX))
    except _MalformedError:
        return other


# ---- topic ids -----------------------------------------------------------------------------------

_RESERVED: Final = frozenset({0, 1})  # Zero, and the id of the metadata topic.


def uuid_of(text: str) -> uuid.UUID:
    """
    Return the UUID of an id in Kafka's form: 22 characters of URL-safe base64.

    Raises:
        ValueError: The text is not 16 bytes in base64.
    """
    if len(text) > 24 or not re.fullmatch(r"[A-Za-z0-9_-]*={0,2}", text):
        raise ValueError(f"{_shown(text)} is not 22 characters of URL-safe base64")
    stripped = text.rstrip("=")
    try:
        data = base64.urlsafe_b64decode(stripped + "=" * (-len(stripped) % 4))
    except binascii.Error as error:
        raise ValueError(f"{_shown(text)} is not base64: {error}") from None
    if len(data) != 16:
        raise ValueError(f"{_shown(text)} is {len(data)} bytes, not 16")
    return uuid.UUID(bytes=data)


def text_of_uuid(value: uuid.UUID) -> str:
    """Return a UUID in Kafka's form: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


def random_topic_id() -> str:
    """Return a new topic id; never a reserved one, and never one that looks like an option."""
    while True:
        value = uuid.uuid4()
        text = text_of_uuid(value)
        if value.int not in _RESERVED and not text.startswith("-"):
            return text


assert TEMPORARY_SUFFIX == ".tmp"  # What a load ignores (spec 2.1).
