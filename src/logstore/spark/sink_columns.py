"""
Columns of the sink: those of Spark's Kafka connector, and ``timestamp``.

==========================  ===================================  ===================================
column                      type                                 null
==========================  ===================================  ===================================
value (required)            BINARY or STRING                     a tombstone
key                         BINARY or STRING                     no key
topic (or the option)       STRING                               is refused
partition                   INT                                  that of the key, or one in turn
headers                     ARRAY<STRUCT<key, value>>            no headers
timestamp                   TIMESTAMP                            the time of the write
offset, timestampType       any                                  are left out
==========================  ===================================  ===================================

The connector leaves out ``timestamp`` and every column that it does not know. Here a row that was
read is written back as it was, and a column with another name is an error, because it may be a
misspelt ``key``.

Source: Spark ``KafkaWriter``; the texts of its errors.
"""

from __future__ import annotations

from typing import Any, Final

from logstore.spark.errors import SparkSourceError

# How Spark spells the types, and the connector in its errors.
ACCEPTED: Final = {
    "value": (("string", "binary"), "string or binary"),
    "key": (("string", "binary"), "string or binary"),
    "topic": (("string",), "string"),
    "partition": (("int",), "int"),
    "headers": (
        ("array<struct<key:string,value:binary>>",),
        "array<struct<key:string,value:binary>>",
    ),
    "timestamp": (("timestamp",), "timestamp"),
}
LEFT_OUT: Final = ("offset", "timestamptype")


def check_columns(schema: Any, topic: str | None) -> None:
    """
    Raise unless rows of a schema can be records.

    Args:
        schema: Spark's StructType.
        topic: The option, None if it was not given.

    Raises:
        SparkSourceError: MISSING_COLUMN, UNKNOWN_COLUMN, COLUMN_TYPE.
    """
    found = {field.name.lower(): field.dataType.simpleString() for field in schema.fields}
    if len(found) < len(schema.fields):
        raise SparkSourceError("UNKNOWN_COLUMN", "a column is there twice; select it once")
    if topic is None and "topic" not in found:
        raise SparkSourceError(
            "MISSING_COLUMN",
            "topic option required when no 'topic' attribute is present. Use the topic option for"
            " setting a topic.",
        )
    if "value" not in found:
        raise SparkSourceError("MISSING_COLUMN", "Required attribute 'value' not found.")
    for name, kind in found.items():
        if name in LEFT_OUT:
            continue
        if name not in ACCEPTED:
            raise SparkSourceError(
                "UNKNOWN_COLUMN",
                f"there is no place for column {name!r} in a record; drop it, or put it into value",
            )
        kinds, text = ACCEPTED[name]
        if kind not in kinds:
            raise SparkSourceError("COLUMN_TYPE", f"{name} must be a(n) {text}, not {kind}")
