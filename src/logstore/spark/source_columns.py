"""
Columns of the source: the schema of Spark's Kafka connector, and what a user's own may ask for.

=============  ==============================  =====================================================
column         type                            null
=============  ==============================  =====================================================
key, value     BINARY, or STRING if asked for  as in Kafka
topic          STRING                          never
partition      INT                             never
offset         BIGINT                          never
timestamp      TIMESTAMP                       never; one millisecond before 1970 stands for none
timestampType  INT                             never: -1 none, 0 create, 1 log append
headers        ARRAY<STRUCT<key, value>>       without headers
=============  ==============================  =====================================================

Source: Spark ``KafkaRecordToRowConverter``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from logstore.spark.errors import SparkSourceError

SQL_TYPES: Final = {
    "key": "BINARY",
    "value": "BINARY",
    "topic": "STRING NOT NULL",
    "partition": "INT NOT NULL",
    "offset": "BIGINT NOT NULL",
    "timestamp": "TIMESTAMP NOT NULL",
    "timestampType": "INT NOT NULL",
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
}
COLUMNS: Final = tuple(SQL_TYPES)
NULLABLE: Final = ("key", "value", "headers")
# How Spark spells the types that a user's schema may have.
ACCEPTED: Final = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "offset": ("bigint",),
    "timestamp": ("timestamp",),
    "timestampType": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}


class Column(NamedTuple):
    """
    One column of a query.

    Attributes:
        name: As the user's schema spells it.
        source: Which of ``COLUMNS`` it is.
        is_text: Key or value as a string.
        nullable: What Spark believes, and checks.
        nested_nullable: The same of an item of headers, of its key and its value.
    """

    name: str
    source: str
    is_text: bool = False
    nullable: bool = True
    nested_nullable: tuple[bool, bool, bool] = (True, True, True)


def schema_ddl(columns: Sequence[str] | None, *, include_headers: bool) -> str:
    """Return the schema of a query as Spark's DDL."""
    names = columns or [name for name in COLUMNS if name != "headers" or include_headers]
    return ", ".join(f"{name} {SQL_TYPES[name]}" for name in names)


def columns_of(schema: Any) -> tuple[Column, ...]:
    """
    Return the columns of a schema: any of ours, in any order.

    Args:
        schema: A ``StructType``.

    Raises:
        SparkSourceError: UNKNOWN_COLUMN, COLUMN_TYPE.
    """
    known = {name.lower(): name for name in COLUMNS}
    found = []
    for field in schema.fields:
        source = known.get(field.name.lower())
        if source is None:
            raise SparkSourceError(
                "UNKNOWN_COLUMN",
                f"there is no column {field.name!r}; there are {', '.join(COLUMNS)}",
            )
        kind = field.dataType.simpleString()
        if kind not in ACCEPTED[source]:
            raise SparkSourceError(
                "COLUMN_TYPE",
                f"column {field.name} is {kind} in the schema; it can be"
                f" {' or '.join(ACCEPTED[source])}: read it so, and cast it in the query",
            )
        nested = (True, True, True)
        if source == "headers":
            item = field.dataType.elementType
            nested = (
                field.dataType.containsNull,
                item.fields[0].nullable,
                item.fields[1].nullable,
            )
        found.append(Column(field.name, source, kind == "string", field.nullable, nested))
    return tuple(found)
