"""
Options of the sink: the names of Spark's Kafka connector, and those that files need.

Source: Spark ``KafkaSourceProvider``, ``KafkaWriter``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from logstore.errors import InvalidTopicError
from logstore.spark.errors import SparkSourceError
from logstore.spark.offsets import invalid
from logstore.spark.options import SINK_OPTIONS, SPARK_OPTIONS, OptionMap
from logstore.topic_names import check_topic_name

WRITER_TIMEOUT_MS: Final = 60_000
# What both ends take.
SHARED_OPTIONS: Final = ("path", "paths", "kafka.bootstrap.servers")


class SinkOptions(NamedTuple):
    """
    What a sink was asked for; picklable.

    Attributes:
        roots: Directories of the store, absolute.
        topic: Of every record, whatever the column says; None: the column's.
        create_partitions: A missing topic is made with so many; None: it is an error.
        keeps_timestamps: Records get the column's times; else all that of the write.
        application: txnAppId, None: the write is a job without a number.
        version: txnVersion.
        writer_timeout_ms: How long to wait for another process that writes.
    """

    roots: tuple[str, ...]
    topic: str | None
    create_partitions: int | None
    keeps_timestamps: bool
    application: str | None
    version: int
    writer_timeout_ms: int


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """
    Return the options of a sink.

    Args:
        options: As Spark gives them: keys in any case, values as text.

    Raises:
        SparkSourceError: The first thing that is wrong: UNKNOWN_OPTION, UNSUPPORTED_OPTION,
            INVALID_OPTION, MISSING_PATH, RELATIVE_PATH.
    """
    given = OptionMap(options)
    for name in sorted(given.names):
        if name not in (*SINK_OPTIONS, *SPARK_OPTIONS, *SHARED_OPTIONS):
            raise SparkSourceError("UNKNOWN_OPTION", f"option {name} is for reading")
    if "kafka.partitioner.class" in given:
        raise SparkSourceError(
            "UNSUPPORTED_OPTION",
            "kafka.partitioner.class names a class of Java; give the DataFrame a column partition",
        )
    topic = given.text("topic")
    if topic is not None:
        try:
            check_topic_name(topic)
        except InvalidTopicError as error:
            raise invalid("topic", f"is no topic's name: {error}") from None
    creates = given.flag("createTopics", False)
    partitions = given.number("numPartitions")
    if partitions is not None and not creates:
        raise invalid("numPartitions", "is for topics that are made; set createTopics=true")
    application, version = given.text("txnAppId"), given.number("txnVersion", 0)
    if (application is None) != (version is None):
        raise invalid(
            "txnAppId" if version is None else "txnVersion",
            "goes with the other one: txnAppId says who writes, and txnVersion is a number that"
            " grows with each write",
        )
    if application is not None and (not application or re.match(r"job_", application)):
        raise invalid("txnAppId", f"is {application!r}; give a lasting name that is not job_…")
    timeout_ms = given.milliseconds("writerTimeout", WRITER_TIMEOUT_MS)
    return SinkOptions(
        roots=given.roots(),
        topic=topic,
        create_partitions=(partitions or 1) if creates else None,
        keeps_timestamps=given.choice("timestamps", ("column", "write"), "column") == "column",
        application=application,
        version=version or 0,
        writer_timeout_ms=timeout_ms,
    )


def parse_stream_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """
    Return the options of a streaming sink, whose batches have numbers already.

    Raises:
        SparkSourceError: As :func:`parse_sink_options`.
    """
    found = parse_sink_options(options)
    if found.application is not None:
        raise invalid(
            "txnAppId",
            "is for batch writes and foreachBatch; a stream is known by its checkpoint",
        )
    return found
