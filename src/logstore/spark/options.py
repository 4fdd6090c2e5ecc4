"""
Options of the source: the names and rules of Spark's Kafka connector, parsed and checked at once.

Keys come in any case. What is unknown is refused with the nearest name that is known, because an
option that is silently ignored is a query that reads something else.

Source: Spark ``KafkaSourceProvider``, its validation of options.
"""

from __future__ import annotations

import difflib
import json
import logging
import os
import re
import urllib.parse
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

from logstore.checkpoint import TopicPartition
from logstore.files import REAL_FILES
from logstore.spark.errors import SparkSourceError
from logstore.spark.kafka_settings import CLIENT_SETTINGS, REFUSED_SETTINGS
from logstore.spark.offsets import (
    LATEST,
    OffsetSpec,
    invalid,
    parse_assignment,
    parse_offsets,
    parse_timestamps,
)
from logstore.spark.source_columns import COLUMNS
from logstore.store_directories import is_partition

logger = logging.getLogger("logstore.spark")

SOURCE_OPTIONS: Final = (
    "assign",
    "batchBytes",
    "batchRows",
    "columns",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "filterPushdown",
    "groupIdPrefix",
    "includeHeaders",
    "kafka.bootstrap.servers",
    "kafka.isolation.level",
    "kafkaConsumer.pollTimeoutMs",
    "maxBytesPerPartition",
    "maxOffsetsPerTrigger",
    "maxPartitions",
    "maxRecordsPerPartition",
    "maxTriggerDelay",
    "minOffsetsPerTrigger",
    "minPartitions",
    "path",
    "paths",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingTimestamp",
    "subscribe",
    "subscribePattern",
)
# Parsed where the sink is; both ends of a session share one format and its check of names.
SINK_OPTIONS: Final = (
    "createTopics",
    "kafka.partitioner.class",
    "numPartitions",
    "timestamps",
    "topic",
    "txnAppId",
    "txnVersion",
    "writerTimeout",
)
# What Spark adds by itself: for a stream, for a table of a catalog.
SPARK_OPTIONS: Final = (
    "checkpointLocation",
    "collation",
    "comment",
    "external",
    "is_managed_location",
    "location",
    "outputMode",
    "owner",
    "provider",
    "queryName",
    "serialization.format",
    "table_type",
)
# Settings of the connector's consumers, which there are none of here.
IGNORED_OPTIONS: Final = ("groupIdPrefix", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs")

KNOWN: Final = {name.lower(): name for name in (*SOURCE_OPTIONS, *SINK_OPTIONS, *SPARK_OPTIONS)}
STRATEGIES: Final = ("assign", "subscribe", "subscribePattern")
STREAM_ONLY: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
BATCH_ONLY: Final = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")

INT64_MAX: Final = 2**63 - 1
INT32_MAX: Final = 2**31 - 1
MAX_BYTES_PER_PARTITION: Final = 256 << 20
# Spark is fastest with record batches of 1 to 4 MiB.
BATCH_BYTES: Final = 3 << 20
MAX_TRIGGER_DELAY_MS: Final = 15 * 60_000
POLL_TIMEOUT_MS: Final = 5_000
MS_OF_UNIT: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}

IsolationLevel: TypeAlias = Literal["read_committed", "read_uncommitted"]


class Subscription(NamedTuple):
    """
    Which partitions are read; one of the three is there.

    Attributes:
        assign: These.
        topics: Those of these topics.
        pattern: Those of every topic whose whole name this matches.
    """

    assign: tuple[TopicPartition, ...] = ()
    topics: tuple[str, ...] = ()
    pattern: str = ""

    def wants(self, topic_partition: TopicPartition) -> bool:
        """Whether a partition is read."""
        if self.assign:
            return topic_partition in self.assign
        if self.topics:
            return topic_partition.topic in self.topics
        return re.fullmatch(self.pattern, topic_partition.topic) is not None


class SourceOptions(NamedTuple):
    """
    What a source was asked for; picklable.

    Attributes:
        roots: Directories of the store, or of one log, absolute.
        subscription: Which partitions.
        starting: Where to begin, None for the query's default.
        ending: Where to end, None for the query's default.
        latest_if_no_match: A start by time that no record is at or after is the end.
        fail_on_data_loss: Fail when records are gone, or else step over them and say so.
        min_partitions: Tasks to reach, about.
        max_partitions: Tasks at most.
        max_records_per_partition: Offsets of a task at most.
        max_bytes_per_partition: Bytes of a task at most, about; 0: any.
        batch_bytes: Of a column of a record batch at most, unless one record has more.
        batch_rows: The same in rows; None: what is best for the columns.
        include_headers: The schema has headers.
        columns: The schema's, if they are selected.
        isolation: Whether undecided and aborted transactions are read.
        max_offsets_per_trigger: Of a micro-batch.
        min_offsets_per_trigger: Wait for so many,
        max_trigger_delay_ms: at most so long.
        poll_timeout_ms: How long a task waits to see what the planner saw.
        filter_pushdown: See ``docs/spark.md``.
        given: Names of the options that were given.
    """

    roots: tuple[str, ...]
    subscription: Subscription
    starting: OffsetSpec | None
    ending: OffsetSpec | None
    latest_if_no_match: bool
    fail_on_data_loss: bool
    min_partitions: int | None
    max_partitions: int | None
    max_records_per_partition: int | None
    max_bytes_per_partition: int
    batch_bytes: int
    batch_rows: int | None
    include_headers: bool
    columns: tuple[str, ...] | None
    isolation: IsolationLevel
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    poll_timeout_ms: int
    filter_pushdown: bool
    given: frozenset[str]

    def check_batch(self) -> None:
        """Raise if an option makes no sense in a batch query; tell of those that do nothing."""
        starting = self.starting
        if starting is not None and not starting.is_timestamp:
            offsets = () if starting.offsets is None else starting.offsets.values()
            if starting.default == LATEST or LATEST in offsets:
                raise invalid(
                    starting.option,
                    "cannot be latest (-1) in a batch query, which would be empty; use earliest",
                )
        ignored = sorted(self.given.intersection(STREAM_ONLY))
        if ignored:
            logger.warning("a batch query ignores %s", ", ".join(ignored))

    def check_stream(self) -> None:
        """Raise if an option makes no sense in a stream."""
        for name in BATCH_ONLY:
            if name in self.given:
                raise invalid(name, "is for batch queries; a stream has no end")


class OptionMap:
    """
    Options as they were given, by the names that they are known by.

    Args:
        options: Keys in any case.

    Raises:
        SparkSourceError: UNKNOWN_OPTION, UNSUPPORTED_OPTION.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values: dict[str, str] = {}
        #: Those that are taken and mean nothing here, in lower case.
        self.ignored: list[str] = []
        given = {key.lower(): value for key, value in options.items()}
        for key, value in given.items():
            # A table of a catalog has its options twice, once with this prefix.
            lowered = key.removeprefix("option.")
            if lowered != key and lowered in given:
                continue
            setting = lowered.removeprefix("kafka.")
            if lowered in KNOWN:
                self._values[KNOWN[lowered]] = value
            elif lowered.startswith("kafka.") and setting in REFUSED_SETTINGS:
                raise SparkSourceError(
                    "UNSUPPORTED_OPTION",
                    f"Kafka option '{lowered}' is not supported: {REFUSED_SETTINGS[setting]}",
                )
            elif lowered.startswith("kafka.") and setting in CLIENT_SETTINGS:
                self.ignored.append(lowered)
            else:
                raise _unknown(lowered)
        self.ignored += [name for name in IGNORED_OPTIONS if name in self._values]
        if self._path() is not None and "kafka.bootstrap.servers" in self._values:
            self.ignored.append("kafka.bootstrap.servers")

    def __contains__(self, name: str) -> bool:
        return name in self._values

    @property
    def names(self) -> frozenset[str]:
        """Those that were given."""
        return frozenset(self._values)

    def text(self, name: str) -> str | None:
        """Return an option's value, None if it was not given."""
        return self._values.get(name)

    def flag(self, name: str, default: bool) -> bool:
        """Return an option that is true or false."""
        value = self._values.get(name)
        if value is None:
            return default
        word = value.strip().lower()
        if word not in ("true", "false"):
            raise invalid(name, f"is {value!r}; give true or false")
        return word == "true"

    def number(self, name: str, minimum: int = 1, maximum: int = INT64_MAX) -> int | None:
        """Return an option that is a whole number."""
        value = self._values.get(name)
        if value is None:
            return None
        if not re.fullmatch(r"\s*-?[0-9]{1,19}\s*", value) or not minimum <= int(value) <= maximum:
            bounds = "on" if maximum == INT64_MAX else f"to {maximum}"
            raise invalid(name, f"is {value!r}; give a whole number from {minimum} {bounds}")
        return int(value)

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        """Return an option that is one of several words, in any case."""
        value = self._values.get(name)
        if value is None:
            return default
        word = value.strip().lower()
        if word not in choices:
            raise invalid(name, f"is {value!r}; give {' or '.join(choices)}")
        return word

    def milliseconds(self, name: str, default: int) -> int:
        """Return an option that is a time such as ``15m`` or ``90 seconds``."""
        value = self._values.get(name)
        if value is None:
            return default
        match = re.fullmatch(r"\s*([0-9]{1,12})\s*([a-z]*)\s*", value.lower())
        unit = None
        if match is not None:
            unit = match[2] or "ms"
            for long, short in (("second", "s"), ("minute", "m"), ("hour", "h"), ("day", "d")):
                unit = short if unit in (long, f"{long}s") else unit
        if match is None or unit not in MS_OF_UNIT:
            raise invalid(name, f"is {value!r}; give a time such as 90s, 15m or 2h")
        return int(match[1]) * MS_OF_UNIT[unit]

    def _path(self) -> str | None:
        return self.text("paths") or self.text("path") or self.text("location")

    def roots(self) -> tuple[str, ...]:
        """
        Return the directories of the store.

        Raises:
            SparkSourceError: MISSING_PATH, RELATIVE_PATH, INVALID_OPTION.
        """
        servers = self.text("kafka.bootstrap.servers")
        text = self._path()
        name = "path"
        if text is None and servers is not None:
            name, text = "kafka.bootstrap.servers", servers
            if not servers.startswith(("/", "file:", "[")):
                raise SparkSourceError(
                    "MISSING_PATH",
                    f"kafka.bootstrap.servers is {servers!r}, but there is no broker: the files are"
                    " read themselves. Set path to the directory of the store, such as /data/logs",
                )
        if text is None or not text.strip():
            hint = ""
            if not self._values:
                hint = (
                    "; for a table of a catalog Spark 4.3 passes no options on: say FROM name WITH"
                    " (path = '/data/logs', ...), or use CREATE TEMPORARY VIEW"
                )
            raise SparkSourceError(
                "MISSING_PATH", f"set path to the directory of the store: load('/data/logs'){hint}"
            )
        paths = [text]
        if text.lstrip().startswith("["):
            try:
                paths = json.loads(text)
            except ValueError:
                raise invalid(name, f"is {text!r}, no JSON list of directories") from None
            if not paths or not all(isinstance(path, str) for path in paths):
                raise invalid(name, f"is {text!r}, no JSON list of directories")
        return tuple(_local_path(path) for path in paths)


def check_names(options: Mapping[str, str]) -> None:
    """
    Raise for an option that neither the source nor the sink knows; tell of those that do nothing.

    Raises:
        SparkSourceError: UNKNOWN_OPTION, UNSUPPORTED_OPTION.
    """
    ignored = OptionMap(options).ignored
    if ignored:
        logger.warning("nothing here uses %s: no broker is connected to", ", ".join(ignored))


def parse_source_options(options: Mapping[str, str]) -> SourceOptions:
    """
    Return the options of a source.

    Args:
        options: As Spark gives them: keys in any case, values as text.

    Raises:
        SparkSourceError: The first thing that is wrong: UNKNOWN_OPTION, UNSUPPORTED_OPTION,
            INVALID_OPTION, MISSING_PATH, RELATIVE_PATH.
    """
    given = OptionMap(options)
    for name in SINK_OPTIONS:
        if name in given and name != "topic":
            raise SparkSourceError("UNKNOWN_OPTION", f"option {name} is for writing")
    if "topic" in given:
        raise SparkSourceError(
            "UNKNOWN_OPTION", "option topic is for writing; for reading it is called subscribe"
        )
    roots = given.roots()
    minimum = given.number("minOffsetsPerTrigger")
    maximum = given.number("maxOffsetsPerTrigger")
    if minimum is not None and maximum is not None and minimum > maximum:
        raise invalid(
            "maxOffsetsPerTrigger",
            f"is {maximum}, less than minOffsetsPerTrigger ({minimum})",
        )
    fewest, most = given.number("minPartitions"), given.number("maxPartitions")
    if fewest is not None and most is not None and fewest > most:
        raise invalid("maxPartitions", f"is {most}, less than minPartitions ({fewest})")
    max_bytes = given.number("maxBytesPerPartition", 0)
    poll_timeout = given.number("kafkaConsumer.pollTimeoutMs", 0)
    isolation = given.choice(
        "kafka.isolation.level", ("read_committed", "read_uncommitted"), "read_committed"
    )
    strategy = given.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    return SourceOptions(
        roots=roots,
        subscription=_subscription(given, roots),
        starting=_limit(given, "starting", None),
        ending=_limit(given, "ending", LATEST),
        latest_if_no_match=strategy == "latest",
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        min_partitions=fewest,
        max_partitions=most,
        max_records_per_partition=given.number("maxRecordsPerPartition"),
        max_bytes_per_partition=MAX_BYTES_PER_PARTITION if max_bytes is None else max_bytes,
        batch_bytes=given.number("batchBytes", maximum=INT32_MAX) or BATCH_BYTES,
        batch_rows=given.number("batchRows", maximum=INT32_MAX),
        include_headers=given.flag("includeHeaders", False),
        columns=_columns(given.text("columns")),
        isolation="read_committed" if isolation == "read_committed" else "read_uncommitted",
        max_offsets_per_trigger=maximum,
        min_offsets_per_trigger=minimum,
        max_trigger_delay_ms=given.milliseconds("maxTriggerDelay", MAX_TRIGGER_DELAY_MS),
        poll_timeout_ms=POLL_TIMEOUT_MS if poll_timeout is None else poll_timeout,
        filter_pushdown=given.flag("filterPushdown", False),
        given=given.names,
    )


def _unknown(key: str) -> SparkSourceError:
    # Without the prefix, which would make all settings look alike.
    prefix = "kafka." if key.startswith("kafka.") else ""
    names = {name.removeprefix(prefix): known for name, known in KNOWN.items()}
    names |= {name if prefix else f"kafka.{name}": f"kafka.{name}" for name in CLIENT_SETTINGS}
    near = difflib.get_close_matches(key.removeprefix(prefix), names, 1, 0.6)
    hint = f"did you mean {names[near[0]]}?" if near else "see docs/spark.md"
    return SparkSourceError("UNKNOWN_OPTION", f"there is no option {key!r}; {hint}")


def _local_path(path: str) -> str:
    """Return a directory's absolute path; planner, tasks and server have other working ones."""
    text = path
    if re.match(r"file:", text):
        parts = urllib.parse.urlsplit(text)
        if parts.netloc not in ("", "localhost"):
            raise invalid("path", f"is {path!r}, on another host; mount it, and give file:///…")
        text = urllib.parse.unquote(parts.path)
    elif re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text):
        raise SparkSourceError(
            "UNSUPPORTED_FILE_SYSTEM",
            f"path is {path!r}; a store is on a local or shared POSIX file system: mount it, or"
            " copy a snapshot there",
        )
    if not os.path.isabs(text):
        raise SparkSourceError(
            "RELATIVE_PATH",
            f"path is {path!r}, relative to a directory that differs between driver and tasks;"
            f" give an absolute one, perhaps {os.path.abspath(os.path.expanduser(text))!r}",
        )
    return os.path.normpath(text)


def _subscription(given: OptionMap, roots: tuple[str, ...]) -> Subscription:
    named = [name for name in STRATEGIES if name in given]
    if not named and all(
        REAL_FILES.is_directory(root) and is_partition(root, REAL_FILES) for root in roots
    ):
        return Subscription(pattern=".*")  # The path says it all.
    if len(named) != 1:
        problem = f"{' and '.join(named)} are given" if named else "none is given"
        raise SparkSourceError(
            "INVALID_OPTION",
            f"one of the options {', '.join(STRATEGIES)} says what to read; {problem}",
        )
    name = named[0]
    text = given.text(name)
    assert text is not None
    if name == "assign":
        return Subscription(assign=parse_assignment(name, text))
    if name == "subscribe":
        topics = tuple(sorted({each.strip() for each in text.split(",") if each.strip()}))
        if not topics:
            raise invalid(name, "names no topic; give one, or several with commas between them")
        return Subscription(topics=topics)
    if not text.strip():
        raise invalid(name, "is empty; give a regular expression")
    try:
        re.compile(text)
    except re.error as error:
        raise invalid(name, f"is {text!r}, no regular expression: {error}") from None
    return Subscription(pattern=text)


def _limit(given: OptionMap, end: str, default: int | None) -> OffsetSpec | None:
    """Return where to start or end; a time for all goes before times, these before offsets."""
    timestamp = given.number(f"{end}Timestamp", 0)
    if timestamp is not None:
        return OffsetSpec(f"{end}Timestamp", timestamp=timestamp)
    text = given.text(f"{end}OffsetsByTimestamp")
    if text is not None:
        return parse_timestamps(f"{end}OffsetsByTimestamp", text)
    name = f"{end}Offsets"
    text = given.text(name)
    if text is None:
        return None if default is None else OffsetSpec(name, default=default)
    return parse_offsets(name, text, earliest=end == "starting")


def _columns(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    known = {name.lower(): name for name in COLUMNS}
    names = [each.strip() for each in text.split(",") if each.strip()]
    for name in names:
        if name.lower() not in known:
            raise invalid("columns", f"has {name!r}; there are {', '.join(COLUMNS)}")
    found = [known[name.lower()] for name in names]
    if not found or len({*found}) < len(found):
        raise invalid("columns", f"is {text!r}; name each column once, such as value,offset")
    return tuple(found)
