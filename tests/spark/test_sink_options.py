"""Options and columns of the sink, checked before a task runs."""

from __future__ import annotations

import pytest

from logstore.spark.errors import SparkSourceError
from logstore.spark.sink_options import parse_sink_options, parse_stream_sink_options

ROOT = {"path": "/data"}


def refused(text, options):
    with pytest.raises(SparkSourceError, match=text):
        parse_sink_options({**ROOT, **options})


def test_defaults():
    """As the connector's: append, times of its own aside."""
    options = parse_sink_options({"PATH": "file:///data/logs"})
    assert (("/data/logs",), None, None, True) == options[:4]
    assert (None, 0, 60_000) == options[4:]


def test_values():
    """Names in any case."""
    options = parse_sink_options(
        {
            **ROOT,
            "topic": "t",
            "createtopics": "true",
            "NUMPARTITIONS": "3",
            "timestamps": "write",
            "txnAppId": "load",
            "txnVersion": "7",
            "writerTimeout": "5s",
            "checkpointlocation": "/c",
            "kafka.acks": "all",
        }
    )
    assert (("/data",), "t", 3, False, "load", 7, 5000) == tuple(options)
    assert 1 == parse_sink_options({**ROOT, "createTopics": "true"}).create_partitions


def test_refused():
    """With the option's name and what to do."""
    refused("option subscribe is for reading", {"subscribe": "t"})
    refused("did you mean topic", {"topics": "t"})
    refused("option numPartitions is for topics that are made", {"numPartitions": "2"})
    refused("option txnAppId goes with the other one", {"txnAppId": "a"})
    refused("option txnVersion goes with the other one", {"txnVersion": "1"})
    refused("option txnVersion is '-1'", {"txnAppId": "a", "txnVersion": "-1"})
    refused("option txnAppId is 'job_1'", {"txnAppId": "job_1", "txnVersion": "1"})
    refused("option topic is no topic's name", {"topic": "a/b"})
    refused("kafka.partitioner.class names a class of Java", {"kafka.partitioner.class": "x"})
    refused("Kafka option 'kafka.value.serializer' is not supp", {"kafka.value.serializer": "x"})
    refused("MISSING_PATH", {"path": " "})
    with pytest.raises(SparkSourceError, match="a stream is known by its checkpoint"):
        parse_stream_sink_options({**ROOT, "txnAppId": "a", "txnVersion": "1"})


def test_columns():
    """The connector's texts where it has some."""
    types = pytest.importorskip("pyspark.sql.types")
    from logstore.spark.sink_columns import check_columns

    def schema(**columns):
        kinds = {
            "string": types.StringType(),
            "binary": types.BinaryType(),
            "int": types.IntegerType(),
            "long": types.LongType(),
            "time": types.TimestampType(),
            "headers": types.ArrayType(
                types.StructType(
                    [
                        types.StructField("key", types.StringType()),
                        types.StructField("value", types.BinaryType()),
                    ]
                )
            ),
        }
        return types.StructType(
            [types.StructField(name, kinds[kind]) for name, kind in columns.items()]
        )

    check_columns(
        schema(
            Value="string",
            key="binary",
            topic="string",
            partition="int",
            headers="headers",
            timestamp="time",
            offset="long",
            timestampType="int",
        ),
        None,
    )
    check_columns(schema(value="binary"), "t")
    for columns, text in (
        ({"value": "binary"}, "topic option required when no 'topic' attribute is present"),
        ({"topic": "string"}, "Required attribute 'value' not found"),
        ({"topic": "string", "value": "long"}, r"value must be a\(n\) string or binary, not big"),
        ({"topic": "long", "value": "binary"}, r"topic must be a\(n\) string, not bigint"),
        ({"topic": "string", "value": "binary", "kee": "binary"}, "no place for column 'kee'"),
        ({"topic": "string", "value": "binary", "VALUE": "binary"}, "there twice"),
    ):
        with pytest.raises(SparkSourceError, match=text):
            check_columns(schema(**columns), None)
