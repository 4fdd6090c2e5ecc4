"""
What sinks have committed, and commits of staged batches that happen once.

A sink (a streaming query, a job that is run again) numbers what it writes. A commit appends the
staged batches of one number, the *version*, and notes (topic, sink, version) in the same
transaction. Whoever comes with a version that is noted has been there before: nothing happens.

The notes are records of ``__logstore_sink_commits``, a compacted topic of one partition:

======  ===========================================================================================
key     JSON ``{"sink": ..., "topic": ...}``
value   JSON ``{"topic_id": ..., "version": ..., "time": ..., "staged": ...}``; null: forgotten
======  ===========================================================================================

So a note is there if and only if its records are, and what becomes of the records later (retention,
compaction, deletion) and of the producer does not concern it. A note of another topic id is about a
topic of the same name that was deleted, and holds no more. ``staged`` is a hash of the names of
the files: whoever comes again with files that are gone learns from it that these were committed,
and not others of the same version to other topics.

====================  ==============================================================================
version               what a commit does, for each topic
====================  ==============================================================================
none noted, or lower  appends
the one noted         nothing
higher one noted      fails: an older state of the sink has come back
====================  ==============================================================================
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from logstore.checkpoint import TopicPartition
from logstore.cleaner_config import CleanerConfig
from logstore.coordinator_store import CoordinatorStore
from logstore.errors import (
    ClosedError,
    CorruptRecordError,
    InvalidRecordError,
    LogStoreError,
    OfflineError,
    SinkVersionError,
    StagedBatchesError,
    StorageError,
    UnknownTopicError,
    raise_first,
)
from logstore.files import REAL_FILES, Files
from logstore.staged_batches import (
    PAGE_BYTES,
    ReadMemory,
    StagedFile,
    StagedName,
    delete_staged,
    sink_slug,
)
from logstore.thread_map import map_in_threads
from logstore.topic_names import SINK_COMMITS_TOPIC
from logstore.transaction_coordinator import TransactionCoordinator
from logstore.transactions import Transaction

if TYPE_CHECKING:
    from logstore.log import Log
    from logstore.records_builder import RecordFields

PLACE: Final = TopicPartition(SINK_COMMITS_TOPIC, 0)

# One for all sinks: a commit finishes what one before, of any sink, has left unfinished, and so
# reads every note there is.
TRANSACTIONAL_ID: Final = "__logstore-sinks"

# Jobs that have no number of their own get an id that is used once, and is forgotten after a day.
JOB_PREFIX: Final = "job_"
JOB_NOTE_MS: Final = 86_400_000
# How many partitions are appended to, or files deleted, at the same time.
THREADS: Final = 2
# A staged file that nobody has written to for so long has lost its owner.
ORPHAN_MS: Final = 7 * 86_400_000

TOPIC_CONFIG: Final[dict[str, object]] = {
    "cleanup.policy": "compact",
    "compression.type": "uncompressed",
    "segment.bytes": 1 << 20,  # The least that a broker starts with.
}
# A process that comes for one commit runs no cleaner: it cleans itself when there is so much.
CLEAN_BYTES: Final = 1 << 20


class SinkCommit(NamedTuple):
    """
    What a commit has done.

    Attributes:
        record_counts: Records appended, by topic.
        repeated: Topics that had this version already.
    """

    record_counts: dict[str, int]
    repeated: tuple[str, ...]


class CommittedVersion(NamedTuple):
    """
    What a sink has committed to a topic.

    Attributes:
        sink_id: The sink.
        topic: The topic.
        version: The highest version, which is the last.
        time: When it was committed, in milliseconds since the epoch.
    """

    sink_id: str
    topic: str
    version: int
    time: int


class CommittingStore(CoordinatorStore, Protocol):
    """What commits of sinks ask of a store; :class:`~logstore.store.LogStore` has it."""

    @property
    def files(self) -> Files:
        """The door to the file system."""
        ...

    @property
    def paths(self) -> tuple[str, ...]:
        """Its directories."""
        ...

    def topic_id_of(self, topic: str) -> str | None:
        """Return a topic's id."""
        ...


class _Note(NamedTuple):
    topic_id: str | None
    version: int
    time: int
    staged: str | None = None


class SinkCommits:
    """
    Commits staged batches of sinks, each version once.

    Args:
        store: Where the topics are.
        coordinator: Its coordinator of transactions.

    **Thread rule**: any thread may call anything; commits wait for each other.
    """

    def __init__(self, store: CommittingStore, coordinator: TransactionCoordinator) -> None:
        self._store = store
        self._coordinator = coordinator
        self._lock = threading.Lock()
        self._is_closed = False

    def close(self) -> None:
        """Wait for a commit under way, and refuse others."""
        with self._lock:
            self._is_closed = True

    # -- commit ------------------------------------------------------------------------------------

    def commit(
        self,
        sink_id: str,
        version: int,
        staged: Sequence[str],
        *,
        create_partitions: int | None = None,
        frees_staged: bool = False,
    ) -> SinkCommit:
        """
        Append what is in staged files, once; see ``LogStore.commit_staged``.

        The files are deleted, and what earlier attempts have left of this sink.
        """
        if not sink_id:
            raise ValueError("the sink's id is empty; give it a lasting name")
        staged = list(dict.fromkeys(staged))
        with self._lock:
            if self._is_closed:
                raise ClosedError("the store is closed; open it again")
            done = self._commit(sink_id, version, staged, create_partitions, frees_staged)
        self._sweep(sink_id, version, staged)
        return done

    def _commit(
        self,
        sink_id: str,
        version: int,
        staged: Sequence[str],
        create_partitions: int | None,
        frees_staged: bool,
    ) -> SinkCommit:
        missing: list[StagedBatchesError] = []
        places: dict[TopicPartition, None] = {}
        for path in staged:
            try:
                with self._opened(path) as file:
                    places.update(dict.fromkeys(batch.place for batch in file.batches))
            except StagedBatchesError as error:
                missing.append(error)  # Whoever has committed them before has deleted them.
                break
        topics = list(dict.fromkeys(place.topic for place in places))
        if not missing:
            if not places:
                return SinkCommit({}, ())
            self._check_places(places, topics, create_partitions)
        with self._transaction() as transaction:
            notes = self._notes()
            if missing:
                repeated = self._repeated(notes, sink_id, version, staged)
                if not repeated:
                    raise_first(missing)
                return SinkCommit({}, repeated)
            new = [topic for topic in topics if self._is_new(notes, topic, sink_id, version)]
            repeated = tuple(topic for topic in topics if topic not in new)
            if not new:
                return SinkCommit({}, repeated)
            transaction.note_partitions([*(place for place in places if place.topic in new), PLACE])
            appended = [place for place in places if place.topic in new]
            counts = self._append(transaction, staged, appended, frees_staged)
            transaction.add_rows(PLACE, self._rows(notes, sink_id, version, new, staged))
            transaction.commit()
        self._clean()
        return SinkCommit(counts, repeated)

    def _append(
        self,
        transaction: Transaction,
        staged: Sequence[str],
        places: Sequence[TopicPartition],
        frees_staged: bool,
    ) -> dict[str, int]:
        """
        Append what is staged for partitions, and return how many records that were, by topic.

        Two threads have half of the partitions each: what they do is mostly the core's.
        """
        shares = [frozenset(places[at::THREADS]) for at in range(min(THREADS, len(places)))]
        readers = dict.fromkeys(staged, len(shares))
        lock = threading.Lock()
        has_failed = threading.Event()
        counts: Counter[str] = Counter()
        with ThreadPoolExecutor(1, thread_name_prefix="logstore") as pool:

            def delete(path: str) -> None:
                if self._threads > 1:  # It waits for the file system.
                    pool.submit(self._delete, path)
                else:
                    self._delete(path)

            def unread() -> Iterator[str]:
                """Yield the files to a thread, and free each behind its last reader."""
                for path in staged:
                    if has_failed.is_set():  # Nothing of this will be committed.
                        return
                    yield path
                    with lock:
                        readers[path] -= 1
                        is_last = readers[path] == 0
                    if is_last and frees_staged:
                        delete(path)

            def append(share: AbstractSet[TopicPartition]) -> dict[str, int]:
                try:
                    return self._append_share(transaction, unread(), share)
                except BaseException:
                    has_failed.set()
                    raise

            for found in map_in_threads(append, shares, self._threads):
                counts.update(found)
        return dict(counts)

    def _delete(self, path: str) -> None:
        with contextlib.suppress(StorageError):  # A commit, this one or a later, tries again.
            delete_staged([path], self._store.files)

    @property
    def _threads(self) -> int:
        """How many there may be: on a test's files everything happens in order."""
        return THREADS if self._store.files is REAL_FILES else 1

    def _append_share(
        self, transaction: Transaction, staged: Iterable[str], places: AbstractSet[TopicPartition]
    ) -> dict[str, int]:
        counts = dict.fromkeys((place.topic for place in places), 0)
        memory = ReadMemory(self._store.paths[0], self._store.files)
        for path in staged:
            with self._opened(path, memory) as file:
                for batches in file.stretches():
                    place = batches[0].place
                    if place not in places:
                        continue
                    skew = self._store[place].active_segment.size_bytes % PAGE_BYTES
                    try:
                        transaction.append_batches(place, file.read(batches, skew))
                    except CorruptRecordError as error:
                        raise file.not_whole() from error
                    counts[place.topic] += sum(batch.record_count for batch in batches)
        return counts

    def _opened(self, path: str, memory: ReadMemory | None = None) -> StagedFile:
        """Open a staged file: one at a time, as there may be more than a process may have open."""
        return StagedFile(path, files=self._store.files, memory=memory)

    def _transaction(self) -> Transaction:
        """Begin; whatever an earlier commit has left open or half ended is ended now."""
        if SINK_COMMITS_TOPIC not in self._store:
            self._store.create_topic(SINK_COMMITS_TOPIC, partitions=1, config=TOPIC_CONFIG)
        timeout_ms = self._coordinator.max_timeout_ms  # There may be a lot to copy.
        return Transaction(self._store, self._coordinator, TRANSACTIONAL_ID, timeout_ms=timeout_ms)

    def _check_places(
        self,
        places: Iterable[TopicPartition],
        topics: Iterable[str],
        create_partitions: int | None,
    ) -> None:
        for topic in topics:
            self._ensure_topic(topic, create_partitions)
        for place in places:
            if place not in self._store:
                raise UnknownTopicError(
                    f"topic {place.topic} has no partition {place.partition} here; run the write"
                    " again, or create the partition",
                    topic=place.topic,
                    partition=place.partition,
                )

    def _repeated(
        self,
        notes: Mapping[tuple[str, str], _Note],
        sink_id: str,
        version: int,
        staged: Sequence[str],
    ) -> tuple[str, ...]:
        """Return the topics that have a version of a sink; none if these files did not make it."""
        found = {
            topic: note.staged
            for (other, topic), note in notes.items()
            if other == sink_id and note.version == version and self._holds(topic, note)
        }
        return tuple(found) if _hash_of(staged) in found.values() else ()

    def _ensure_topic(self, topic: str, create_partitions: int | None) -> None:
        if topic in self._store:
            return
        if create_partitions is None:
            raise UnknownTopicError(f"there is no topic {topic!r} here; create it", topic=topic)
        self._store.create_topic(topic, partitions=create_partitions)

    def _is_new(
        self, notes: Mapping[tuple[str, str], _Note], topic: str, sink_id: str, version: int
    ) -> bool:
        note = notes.get((sink_id, topic))
        if note is None or note.topic_id != self._store.topic_id_of(topic):
            return True
        if note.version > version:
            raise SinkVersionError(
                f"the sink {sink_id!r} has committed version {note.version} to {topic}, and"
                f" {version} is below it: an older checkpoint was restored, or another writer has"
                f" the same id; go on from {note.version + 1}, or run `logstore forget-sink`",
                sink_id=sink_id,
                version=version,
                committed_version=note.version,
                topic=topic,
            )
        return note.version < version

    def _rows(
        self,
        notes: Mapping[tuple[str, str], _Note],
        sink_id: str,
        version: int,
        topics: Iterable[str],
        staged: Sequence[str],
    ) -> list[RecordFields]:
        now_ms = self._store.clock.milliseconds()
        names = _hash_of(staged)
        rows = [
            _row(
                sink_id,
                topic,
                _Note(self._store.topic_id_of(topic), version, now_ms, names),
                now_ms,
            )
            for topic in topics
        ]
        for (other, topic), note in notes.items():
            is_over = other.startswith(JOB_PREFIX) and now_ms - note.time > JOB_NOTE_MS
            if (is_over or not self._holds(topic, note)) and other != sink_id:
                rows.append(_row(other, topic, None, now_ms))
        return rows

    def _clean(self) -> None:
        """Let the topic of notes not grow for ever: what a failure leaves is tried again."""
        log = self._store[PLACE]
        if log.size_bytes < CLEAN_BYTES:
            return
        try:
            log.roll()
            log.compact(config=CleanerConfig(log_cleaner_dedupe_buffer_size=1 << 20))
        except LogStoreError as error:
            self._store.report(error, f"clean {SINK_COMMITS_TOPIC}")

    # -- notes -------------------------------------------------------------------------------------

    def committed(self) -> list[CommittedVersion]:
        """Return what sinks have committed, by topic and sink; jobs without a number are not in."""
        if SINK_COMMITS_TOPIC not in self._store:
            return []
        return sorted(
            (
                CommittedVersion(sink_id, topic, note.version, note.time)
                for (sink_id, topic), note in _read_notes(self._store[PLACE]).items()
                if not sink_id.startswith(JOB_PREFIX) and self._holds(topic, note)
            ),
            key=lambda each: (each.topic, each.sink_id),
        )

    def forget(self, sink_id: str, topic: str | None = None) -> list[CommittedVersion]:
        """Remove a sink's notes; see ``LogStore.forget_sink``."""
        with self._lock:
            found = [
                each
                for each in self.committed()
                if each.sink_id == sink_id and topic in (None, each.topic)
            ]
            if found:
                now_ms = self._store.clock.milliseconds()
                with self._transaction() as transaction:
                    transaction.add_rows(
                        PLACE, [_row(sink_id, each.topic, None, now_ms) for each in found]
                    )
            return found

    def _holds(self, topic: str, note: _Note) -> bool:
        return topic in self._store and note.topic_id == self._store.topic_id_of(topic)

    def _notes(self) -> dict[tuple[str, str], _Note]:
        """Return all notes; in a transaction, so that none of another one is undecided."""
        log = self._store[PLACE]
        if log.last_stable_offset != log.log_end_offset:
            raise OfflineError(
                f"{PLACE} has a transaction that is not ended; look at store.errors",
                path=log.directory,
            )
        return _read_notes(log)

    # -- leftovers ---------------------------------------------------------------------------------

    def _sweep(self, sink_id: str, version: int, staged: Sequence[str]) -> None:
        """Delete what was committed, what earlier attempts have left, and what nobody owns."""
        try:
            # The kernel takes as long to give up a file's memory as to read it.
            map_in_threads(
                lambda path: delete_staged([path], self._store.files), staged, self._threads
            )
            sweep_staged(
                self._store.paths,
                self._store.files,
                now_ms=self._store.clock.milliseconds(),
                sink_id=sink_id,
                version=version,
            )
        except StorageError as error:  # The next commit tries again.
            self._store.report(error, "delete staged batches")


def sweep_staged(
    directories: Iterable[str],
    files: Files,
    *,
    now_ms: int,
    sink_id: str | None = None,
    version: int = -1,
) -> list[str]:
    """
    Delete staged files that have no owner any more, and return their paths.

    Args:
        directories: Where to look.
        files: The door to the file system.
        now_ms: Files that were last written a week before have no owner.
        sink_id: Of a sink that has committed ``version``, no file below it has one, and of a job
            none at all; None: of no sink. Another write may be at the same version.
        version: See ``sink_id``.
    """
    slug = None if sink_id is None else sink_slug(sink_id)
    end = version + 1 if sink_id is not None and sink_id.startswith(JOB_PREFIX) else version
    found = []
    for directory in directories:
        for name in files.listdir(directory):
            parsed = StagedName.parse(name)
            if parsed is None:
                continue
            path = os.path.join(directory, name)
            is_done = parsed.sink == slug and parsed.version < end
            if is_done or _is_old(path, files, now_ms):
                files.unlink(path, missing_ok=True)
                found.append(path)
    return found


def _is_old(path: str, files: Files, now_ms: int) -> bool:
    try:
        return now_ms - files.modified_ms(path) > ORPHAN_MS
    except StorageError:  # Its owner has deleted it.
        return False


def _hash_of(staged: Sequence[str]) -> str:
    """Return what a note has of the files: no two writes have files of the same names."""
    names = "\n".join(os.path.basename(path) for path in staged)
    return hashlib.sha256(names.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _row(sink_id: str, topic: str, note: _Note | None, now_ms: int) -> RecordFields:
    key = json.dumps({"sink": sink_id, "topic": topic}, separators=(",", ":"))
    value = None if note is None else json.dumps(note._asdict(), separators=(",", ":")).encode()
    return None, now_ms, key.encode(), value, ()


def _read_notes(log: Log) -> dict[tuple[str, str], _Note]:
    notes: dict[tuple[str, str], _Note] = {}
    for record in log.read("earliest"):
        try:
            key: Any = json.loads(record.key or b"")
            place = (str(key["sink"]), str(key["topic"]))
            if record.value is None:
                notes.pop(place, None)
                continue
            value: Any = json.loads(record.value)
            notes[place] = _Note(
                value["topic_id"], int(value["version"]), int(value["time"]), value.get("staged")
            )
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidRecordError(
                f"a record of {SINK_COMMITS_TOPIC} is no note of a sink ({error}); somebody else"
                " has written there: remove it with `logstore repair`, or delete the topic",
                path=log.directory,
                offset=record.offset,
            ) from error
    return notes
