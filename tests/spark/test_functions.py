"""Formats as columns, in Spark."""

from __future__ import annotations

import json
import warnings

import pytest

pytest.importorskip("fastavro", reason="needs the extra [formats]")
pytest.importorskip("orjson", reason="needs the extra [formats]")
pytest.importorskip("google.protobuf", reason="needs the extra [formats]")

from logstore.spark import functions as lf

ORDER = "id long, note string, time timestamp"
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": ["null", "long"]},
        {"name": "note", "type": ["null", "string"]},
        {"name": "time", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
    ],
}


def test_a_topic_through_formats_and_a_quarantine(spark, store):
    """Texts are read, written as Avro, read again; what is no text of the schema is kept apart."""
    topic = store.create_topic("orders", partitions=1)
    texts = [b'{"id": 7, "time": "2013-01-01T12:00:00Z"}', b"{", None, b'{"id": "8"}']
    for text in texts:
        topic.append(text, key=b"k")
    records = spark.read.format("logstore").option("subscribe", "orders").load(store.paths[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        read = records.withColumn("order", lf.from_json("value", ORDER, mode="quarantine"))
    good, bad = lf.split_quarantine(read, "order")

    assert ["topic", "partition", "offset", "value", "error"] == bad.columns
    kept = bad.orderBy("offset").collect()
    assert [("orders", 0, 1, b"{"), ("orders", 0, 3, b'{"id": "8"}')] == [
        (row.topic, row.partition, row.offset, bytes(row.value)) for row in kept
    ]
    assert "an integer is wanted, not '8'" in kept[1].error

    again = good.select(
        "offset", lf.from_avro(lf.to_avro("order", json.dumps(AVRO)), json.dumps(AVRO)).alias("o")
    )
    rows = again.orderBy("offset").selectExpr(
        "offset", "o.id", "string(o.time) time", "o is null n"
    )
    assert [(0, 7, "2013-01-01 12:00:00", False), (2, None, None, True)] == [
        tuple(row) for row in rows.collect()
    ]
    with pytest.raises(Exception, match="LOGSTORE_MALFORMED_VALUE"):
        records.select(lf.from_json("value", ORDER)).collect()
