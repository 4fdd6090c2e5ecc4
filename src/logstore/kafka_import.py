"""
Topics of a running Kafka cluster, copied into a store with their offsets.

::

    broker ─▶ consumer, read_committed ─▶ batches at the same offsets ─▶ the store's partitions
                                          gaps kept; the last one as an empty batch

A consumer does not see how the producer's batches were cut, nor markers and what was aborted. What
it does see arrives unchanged: offset, timestamp and its type, key, value, headers. So positions and
Spark checkpoints that hold for the cluster hold for the store.

Needs the extra ``kafka``: a client, which this module imports where it is used.

Source: Kafka ``MirrorMaker``, but for offsets, which are kept here.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any, Final, NamedTuple

from logstore.checkpoint import TopicPartition
from logstore.compression import CompressionType
from logstore.errors import ConfigError, KafkaImportError, UnsupportedCompressionTypeError
from logstore.extras import import_extra
from logstore.log import Log
from logstore.record import RecordFields, empty_batch, encode_batch
from logstore.store import LogStore
from logstore.timestamp_type import TimestampType

CONSUMED_MAX: Final = 2000  # Messages of one call of the client,
CONSUME_SECONDS: Final = 0.2  # which waits so long for as many.
BATCH_BYTES: Final = 512 << 10  # Of a batch that is written; below max.message.bytes by default.
SILENCE_SECONDS_MAX: Final = 60.0  # An unreachable broker is no error for the client.
RECORD_OVERHEAD: Final = 32
VERIFIED_MAX: Final = 100_000  # Records that are read back at a time.
FILLED_MAX: Final = 2**31 - 1  # Offsets that one empty batch stands for.
OFFSET_AND_TIME: Final = struct.Struct(">qq")
LENGTH: Final = struct.Struct(">i")

# What the client would print, an error says in one line.
QUIET_SETTINGS: Final[Mapping[str, object]] = {"log_level": 0}

# The client's, which nobody may set otherwise: an import asks for offsets by itself.
CONSUMER_SETTINGS: Final[Mapping[str, object]] = {
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "check.crcs": True,
    "isolation.level": "read_committed",
}
GROUP_ID: Final = "logstore-import"  # The client wants one; nothing is ever committed for it.

Advance = Callable[[int], object]


class PartitionImport(NamedTuple):
    """What one run copied of a partition."""

    partition: int
    start_offset: int  #: where it went on, or began
    end_offset: int  #: the log end offset now
    record_count: int
    missing: range  #: offsets that the cluster had deleted before they were copied


class TopicImport(NamedTuple):
    """What one run copied of a topic."""

    topic: str
    partitions: tuple[PartitionImport, ...]
    config: dict[str, str]  #: settings that came with it
    refused: dict[str, str]  #: settings that a store does not have


class KafkaImporter:
    """
    Copies topics of a cluster into a store.

    An interrupted import goes on where it was: at the end of what is there. What was copied is read
    back and compared with what the client gave, in parts while more comes.

    **Durability**: each partition is flushed when it is done.

    **Thread rule**: one thread at a time.

    Args:
        store: Open for writing.
        bootstrap_servers: ``host:port``, several joined by commas.
        settings: More of the client's, such as ``security.protocol``.
        compression: Of what is written; None: as ``compression.type`` of the topic, if that is a
            codec, else none.

    Raises:
        MissingExtraError: The client is not installed.
        ConfigError: The client refuses a setting.
    """

    def __init__(
        self,
        store: LogStore,
        bootstrap_servers: str,
        *,
        settings: Mapping[str, object] | None = None,
        compression: str | None = None,
    ) -> None:
        self._client: Final = import_extra("confluent_kafka")
        self._admin_client: Final = import_extra("confluent_kafka.admin")
        self._store: Final = store
        self._connection: Final = {
            "group.id": GROUP_ID,
            **QUIET_SETTINGS,
            **(settings or {}),
            "bootstrap.servers": bootstrap_servers,
        }
        self._told = ""  # Why there is no connection, as the client said last.
        self._compression: Final = None if compression is None else CompressionType.of(compression)
        connection = {key: value for key, value in self._connection.items() if key != "group.id"}
        self._admin: Final = self._made(
            self._admin_client.AdminClient, {**connection, "error_cb": self._tell}
        )

    # -- what there is -----------------------------------------------------------------------------

    def topics(self, timeout_seconds: float = 30.0) -> list[str]:
        """
        Return the names of the cluster's topics but for internal ones, sorted.

        Raises:
            KafkaImportError: No broker answers.
        """
        found = self._asked(lambda: self._admin.list_topics(timeout=timeout_seconds))
        return sorted(name for name in found.topics if not name.startswith("__"))

    def offset_count(self, topic: str) -> int:
        """Return how many offsets are still to be copied, at this moment."""
        with closing(self._consumer()) as consumer:
            count = 0
            for number in self._partitions_of(topic):
                low, high = self._watermarks(consumer, topic, number)
                at = low
                if topic in self._store:
                    at = max(low, self._store[topic, number].log_end_offset)
                count += max(0, high - at)
            return count

    # -- copy --------------------------------------------------------------------------------------

    def import_topic(self, topic: str, advance: Advance | None = None) -> TopicImport:
        """
        Copy all that the cluster has of a topic at this moment and the store has not.

        Args:
            topic: Its name; it is created in the store if it is not there.
            advance: Told how many offsets more are done.

        Raises:
            KafkaImportError: The cluster does not have it or cannot be asked, or what the store has
                under this name is another topic.
            StorageError: It cannot be written.
        """
        numbers = self._partitions_of(topic)
        config, refused = self._config_of(topic)
        if topic not in self._store:
            self._store.create_topic(topic, partitions=len(numbers), config=config)
        elif (count := len(self._store.topic(topic))) != len(numbers):
            raise KafkaImportError(
                f"{topic} has {count} partitions in the store and {len(numbers)} in the cluster;"
                " use `logstore create --grow`, or another store",
                topic=topic,
            )
        compression = self._compression
        if compression is None:
            compression = _codec_of(config.get("compression.type"))
        with closing(self._consumer()) as consumer:
            partitions = tuple(
                self._import_partition(consumer, topic, number, compression, advance)
                for number in numbers
            )
        return TopicImport(topic, partitions, config, refused)

    def _import_partition(
        self,
        consumer: Any,
        topic: str,
        number: int,
        compression: CompressionType,
        advance: Advance | None,
    ) -> PartitionImport:
        log = self._store[topic, number]
        low, high = self._watermarks(consumer, topic, number)
        if log.log_end_offset == 0 and low > 0:
            log.truncate_fully_and_start_at(low)
        start = log.log_end_offset
        if start > high:
            raise KafkaImportError(
                f"{topic}-{number} ends at {start} in the store and at {high} in the cluster: it is"
                " another topic, or records were appended here; import into another store",
                topic=topic,
                partition=number,
                offset=start,
            )
        copied = Copied(log, TopicPartition(topic, number), start)
        position = start
        last = log.last()
        begin = max(low, start if last is None else last.offset)
        for rows, end in self._consumed(consumer, topic, number, begin):
            known = [row for row in rows if row.offset < start]
            if known and last is not None:
                _compare_last(topic, number, last, known)
            new = rows[len(known) :]
            for batch_rows in _cut(new):
                log.append_as_follower(_encoded(batch_rows, compression))
            _fill(log, end)
            copied.add(row.fields for row in new)
            if advance is not None:
                advance(max(0, end - position))
            position = max(position, end)
        log.flush()
        copied.verify()
        return PartitionImport(
            number, start, log.log_end_offset, copied.record_count, range(start, max(start, low))
        )

    # -- positions of groups -----------------------------------------------------------------------

    def import_group(self, group: str) -> dict[TopicPartition, int]:
        """
        Commit where a consumer group of the cluster goes on, in the topics that the store has.

        Returns:
            What was committed.

        Raises:
            KafkaImportError: The cluster cannot be asked.
        """
        asked = self._client.ConsumerGroupTopicPartitions(group)
        future = self._admin.list_consumer_group_offsets([asked])[group]
        found = self._asked(lambda: future.result(timeout=30)).topic_partitions
        offsets = {
            TopicPartition(each.topic, each.partition): each.offset
            for each in found
            if each.offset >= 0 and each.topic in self._store
        }
        if offsets:
            self._store.positions(group).commit(offsets)
        return offsets

    # -- the client --------------------------------------------------------------------------------

    def _consumer(self) -> Any:
        return self._made(self._client.Consumer, {**self._connection, **CONSUMER_SETTINGS})

    def _tell(self, error: Any) -> None:
        if "ALL_BROKERS_DOWN" not in error.name():  # Which says no more than that there is none.
            self._told = error.str()

    def _made(self, client: Callable[[dict[str, object]], Any], settings: dict[str, object]) -> Any:
        try:
            return client(settings)
        except self._client.KafkaException as error:
            raise ConfigError(
                [f"the client refuses its settings: {error.args[0].str()}"]
            ) from error

    def _asked(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except self._client.KafkaException as error:
            servers = self._connection["bootstrap.servers"]
            self._admin.poll(0)  # It tells what it has met.
            told = f" ({self._told})" if self._told else ""
            raise KafkaImportError(
                f"{servers} cannot be asked: {error.args[0].str()}{told}"
            ) from error

    def _partitions_of(self, topic: str) -> list[int]:
        metadata = self._asked(lambda: self._admin.list_topics(topic, timeout=30)).topics[topic]
        if metadata.error is not None or not metadata.partitions:
            raise KafkaImportError(
                f"the cluster has no topic {topic}: {metadata.error or 'no partitions'}",
                topic=topic,
            )
        return sorted(metadata.partitions)

    def _watermarks(self, consumer: Any, topic: str, number: int) -> tuple[int, int]:
        place = self._client.TopicPartition(topic, number)
        low, high = self._asked(lambda: consumer.get_watermark_offsets(place, timeout=30))
        return low, high

    def _config_of(self, topic: str) -> tuple[dict[str, str], dict[str, str]]:
        """Return the settings stated for a topic, and why a store does not take the others."""
        resource = self._admin_client.ConfigResource(self._admin_client.ResourceType.TOPIC, topic)
        future = self._admin.describe_configs([resource])[resource]
        entries = self._asked(lambda: future.result(timeout=30)).values()
        stated = self._admin_client.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        taken: dict[str, str] = {}
        refused: dict[str, str] = {}
        for entry in entries:
            if entry.source != stated or entry.value is None:
                continue
            try:
                self._store.configs.checked({entry.name: entry.value})
            except ConfigError as error:
                refused[entry.name] = str(error)
            else:
                taken[entry.name] = entry.value
        return taken, refused

    def _consumed(
        self, consumer: Any, topic: str, number: int, begin: int
    ) -> Iterator[tuple[list[_Row], int]]:
        """Yield rows, and the offset that they reach up to, until the end of the partition."""
        consumer.assign([self._client.TopicPartition(topic, number, begin)])
        end_of_partition = self._client.KafkaError._PARTITION_EOF
        clock = self._store.clock
        heard_at = clock.monotonic()
        has_ended = False
        while not has_ended:
            rows: list[_Row] = []
            end = begin
            messages = consumer.consume(CONSUMED_MAX, timeout=CONSUME_SECONDS)
            if messages:
                heard_at = clock.monotonic()
            elif clock.monotonic() - heard_at > SILENCE_SECONDS_MAX:
                raise KafkaImportError(
                    f"{self._connection['bootstrap.servers']} has said nothing for"
                    f" {SILENCE_SECONDS_MAX:.0f} s; run the import again to go on",
                    topic=topic,
                    partition=number,
                    offset=end,
                )
            for message in messages:
                error = message.error()
                if error is None:
                    rows.append(_row_of(message))
                    end = message.offset() + 1
                elif error.code() == end_of_partition:
                    end = max(end, message.offset())
                    has_ended = True
                elif error.fatal() or not error.retriable():
                    raise KafkaImportError(
                        f"{topic}-{number} cannot be read from offset {end}: {error.str()}",
                        topic=topic,
                        partition=number,
                        offset=end,
                    )
            begin = end
            yield rows, end
        consumer.unassign()


class _Row(NamedTuple):
    """A record as the client gave it."""

    offset: int
    fields: RecordFields
    timestamp_type: TimestampType
    leader_epoch: int
    size_bytes: int


def _row_of(message: Any) -> _Row:
    kind, timestamp = message.timestamp()
    headers = tuple(message.headers() or ())
    key, value = message.key(), message.value()
    epoch = message.leader_epoch()
    return _Row(
        message.offset(),
        (message.offset(), timestamp if kind else -1, key, value, headers),
        TimestampType.LOG_APPEND_TIME if kind == 2 else TimestampType.CREATE_TIME,
        0 if epoch is None or epoch < 0 else epoch,
        RECORD_OVERHEAD
        + len(key or b"")
        + len(value or b"")
        + sum(len(name) * 4 + len(each or b"") + 10 for name, each in headers),
    )


def _cut(rows: Iterable[_Row]) -> Iterator[list[_Row]]:
    """Yield the rows of one batch each: of one epoch, kind of time, and of a sensible size."""
    batch: list[_Row] = []
    size_bytes = 0
    for row in rows:
        if batch:
            first = batch[0]
            is_of_it = (
                row.timestamp_type is first.timestamp_type
                and row.leader_epoch == first.leader_epoch
                and row.offset - first.offset < FILLED_MAX
                and size_bytes + row.size_bytes <= BATCH_BYTES
                # A batch has one such time for all of its records.
                and (
                    row.timestamp_type is TimestampType.CREATE_TIME
                    or row.fields[1] == first.fields[1]
                )
            )
            if not is_of_it:
                yield batch
                batch, size_bytes = [], 0
        batch.append(row)
        size_bytes += row.size_bytes
    if batch:
        yield batch


def _encoded(rows: list[_Row], compression: CompressionType) -> bytes:
    first = rows[0]
    is_appended = first.timestamp_type is TimestampType.LOG_APPEND_TIME
    return encode_batch(
        [row.fields for row in rows],
        compression=compression,
        timestamp_type=first.timestamp_type,
        log_append_time=(first.fields[1] or 0) if is_appended else -1,
        leader_epoch=first.leader_epoch,
    )


def _fill(log: Log, end: int) -> None:
    """Let the log end there: what no record is at was a marker, aborted, or compacted away."""
    while (begin := log.log_end_offset) < end:
        log.append_as_follower(
            empty_batch(
                base_offset=begin,
                last_offset=min(end, begin + FILLED_MAX) - 1,
                leader_epoch=max(log.leader_epoch, 0),
            )
        )


def _codec_of(compression_type: str | None) -> CompressionType:
    try:
        return CompressionType.of(compression_type or "none")
    except UnsupportedCompressionTypeError:
        return CompressionType.NONE  # "producer".


def _compare_last(topic: str, number: int, last: Any, rows: list[_Row]) -> None:
    """See that the last record of an earlier run is the cluster's, where that still has it."""
    for row in rows:
        if row.offset != last.offset:
            continue
        ours, theirs = Fingerprint(), Fingerprint()
        ours.add([(last.offset, last.timestamp, last.key, last.value, last.headers)])
        theirs.add([row.fields])
        if ours != theirs:
            raise KafkaImportError(
                f"{topic}-{number} has another record at offset {last.offset} than the cluster: it"
                " is another topic; import into another store",
                topic=topic,
                partition=number,
                offset=last.offset,
            )


class Fingerprint:
    """A digest of records: offset, timestamp, key, value, headers."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=16)
        self.count = 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Fingerprint):
            return NotImplemented
        return (self.count, self._digest.digest()) == (other.count, other._digest.digest())

    __hash__ = None  # type: ignore[assignment]

    def add(self, records: Iterable[RecordFields]) -> None:
        """Add records in their order."""
        update = self._digest.update
        for offset, timestamp, key, value, headers in records:
            update(OFFSET_AND_TIME.pack(offset or 0, timestamp))
            for each in (key, value):
                update(LENGTH.pack(-1 if each is None else len(each)))
                update(each or b"")
            update(LENGTH.pack(len(headers)))
            for name, each in headers:
                update(LENGTH.pack(len(name)))
                update(name.encode())
                update(LENGTH.pack(-1 if each is None else len(each)))
                update(each or b"")
            self.count += 1


class Copied:
    """
    What was copied of a partition, until it was read back.

    Args:
        log: Where to.
        place: Which that is.
        start: Where it begins.
    """

    def __init__(self, log: Log, place: TopicPartition, start: int) -> None:
        self._log: Final = log
        self._place: Final = place
        self._start = start
        self._given = Fingerprint()
        #: All, read back or not.
        self.record_count = 0

    def add(self, records: Iterable[RecordFields]) -> None:
        """Add records that end where the log ends."""
        before = self._given.count
        self._given.add(records)
        self.record_count += self._given.count - before
        if self._given.count >= VERIFIED_MAX:
            self.verify()

    def verify(self) -> None:
        """
        Read back what was not yet.

        Raises:
            KafkaImportError: It is not what was given.
        """
        log, place, start = self._log, self._place, self._start
        written = Fingerprint()
        written.add(
            (record.offset, record.timestamp, record.key, record.value, record.headers)
            for record in log.read(start)
        )
        if written != self._given:
            raise KafkaImportError(
                f"{place} does not read as it was copied from offset {start} on: run"
                " `logstore verify`, and import into another store",
                topic=place.topic,
                partition=place.partition,
                offset=start,
            )
        self._start, self._given = log.log_end_offset, Fingerprint()
