"""
Values of records as columns: JSON, Avro and Protobuf, read and written by Arrow UDFs.

::

    from logstore.spark import functions as lf

    orders = records.select("offset", lf.from_json("value", "id long, total double").alias("order"))

Every ``from_…`` takes ``mode``, which says what becomes of a value that its format or its schema
refuses: ``"fail"`` fails the query, ``"null"`` makes it null, ``"quarantine"`` makes a struct of
``value`` and ``error``, which :func:`split_quarantine` takes apart. A null value (a tombstone)
stays null in all of them.

``schema_id`` stands for a schema registry's frame around each value (Confluent's wire format). No
registry is asked: schemas are arguments.

Works with Spark Connect, too. Needs the extra ``formats``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from logstore.extras import import_extra
from logstore.files import REAL_FILES
from logstore.spark.formats.avro_format import AvroFormat
from logstore.spark.formats.json_format import JsonFormat
from logstore.spark.formats.protobuf_format import ProtobufFormat
from logstore.spark.formats.value_format import (
    MODES,
    MalformedValueError,
    Mode,
    UnsupportedSchemaError,
    ValueFormat,
)

__all__ = [
    "MalformedValueError",
    "UnsupportedSchemaError",
    "from_avro",
    "from_json",
    "from_protobuf",
    "split_quarantine",
    "to_avro",
    "to_json",
    "to_protobuf",
]

# Columns of a quarantine, where the records have them.
PLACE = ("topic", "partition", "offset")


def from_json(
    column: Any, schema: Any, *, mode: Mode = "fail", schema_id: int | None = None
) -> Any:
    """
    Read JSON texts.

    Members that the schema does not have are left out, missing ones are null; times are ISO 8601
    texts, decimals numbers or texts, binary is base64. Nothing is guessed: a number is no string.

    Args:
        column: Name or Column of the texts: binary or string.
        schema: What they hold: a DDL string or a ``DataType``.
        mode: What becomes of others; see above.
        schema_id: Not None: the texts stand in a registry's frame, with whatever id.

    Returns:
        A Column of the schema's type; with ``mode="quarantine"`` a struct of ``value`` and
        ``error``.

    Raises:
        ValueError: The mode is none.
        UnsupportedSchemaError: The schema has a map whose keys are no strings.
    """
    return _decoded(column, JsonFormat(_arrow_type(schema), schema_id), mode)


def to_json(column: Any, *, schema_id: int | None = None) -> Any:
    """Write JSON texts of a Column of structs, maps or arrays: a Column of binary."""
    return _encoded(column, JsonFormat(import_extra("pyarrow").null(), schema_id))


def from_avro(
    column: Any,
    schema: str,
    *,
    mode: Mode = "fail",
    written_with: Mapping[int, str] | None = None,
) -> Any:
    """
    Read values in Avro's binary encoding.

    Args:
        column: Name or Column of binary.
        schema: As JSON: what the column is to hold.
        mode: What becomes of values that do not; see above.
        written_with: The values stand in a registry's frame, and this is the schema, as JSON, of
            each id; they are read as ``schema``, by Avro's rules of resolution. None: they stand
            in no frame, and were written with ``schema``.

    Returns:
        A Column of the schema's type; with ``mode="quarantine"`` a struct of ``value`` and
        ``error``.

    Raises:
        ValueError: The mode is none, or a schema is not JSON.
        UnsupportedSchemaError: A union of several types, a recursive type, a time of day.
    """
    return _decoded(column, AvroFormat(schema, written_with), mode)


def to_avro(column: Any, schema: str, *, schema_id: int | None = None) -> Any:
    """
    Write values in Avro's binary encoding: a Column of binary.

    Args:
        column: Name or Column of what the schema describes.
        schema: As JSON.
        schema_id: Not None: each value gets a registry's frame with this id.
    """
    return _encoded(column, AvroFormat(schema, schema_id=schema_id))


def from_protobuf(
    column: Any,
    descriptors: bytes | str | os.PathLike[str],
    message: str,
    *,
    mode: Mode = "fail",
    schema_id: int | None = None,
) -> Any:
    """
    Read Protobuf messages.

    A field without presence that is not set has its default; one with presence is null. Enums are
    their names, 64-bit unsigned integers decimals, ``google.protobuf.Timestamp`` a timestamp.

    Args:
        column: Name or Column of binary.
        descriptors: A ``FileDescriptorSet`` (``protoc --include_imports
            --descriptor_set_out=FILE``): its bytes, or the path of the file, read here and now.
        message: The message's full name.
        mode: What becomes of values that are none; see above.
        schema_id: Not None: the messages stand in a registry's frame, with whatever id.

    Returns:
        A Column of structs; with ``mode="quarantine"`` a struct of ``value`` and ``error``.

    Raises:
        ValueError: The mode is none.
        UnsupportedSchemaError: The message is not there, or holds itself.
    """
    return _decoded(column, ProtobufFormat(_bytes_of(descriptors), message, schema_id), mode)


def to_protobuf(
    column: Any,
    descriptors: bytes | str | os.PathLike[str],
    message: str,
    *,
    schema_id: int | None = None,
) -> Any:
    """Write Protobuf messages of a Column of structs: a Column of binary; arguments as above."""
    return _encoded(column, ProtobufFormat(_bytes_of(descriptors), message, schema_id))


def split_quarantine(frame: Any, column: str) -> tuple[Any, Any]:
    """
    Take apart what a ``from_…`` with ``mode="quarantine"`` has made.

    Args:
        frame: A DataFrame, batch or streaming, with that column.
        column: Its name.

    Returns:
        Two DataFrames. The first has the rows that could be read, and in ``column`` what was read.
        The second has the others: ``topic``, ``partition`` and ``offset`` as far as the frame has
        them, ``value`` if it has it, and ``error``.
    """
    functions = import_extra("pyspark.sql.functions")
    error = functions.col(f"`{column}`.error")
    good = frame.where(error.isNull()).withColumn(column, functions.col(f"`{column}`.value"))
    kept = [name for name in (*PLACE, "value") if name in frame.columns and name != column]
    return good, frame.where(error.isNotNull()).select(*kept, error.alias("error"))


# ---- between Spark and Arrow ---------------------------------------------------------------------


def _decoded(column: Any, value_format: ValueFormat, mode: Mode) -> Any:
    if mode not in MODES:
        raise ValueError(f"mode {mode!r} is not one of {', '.join(MODES)}")
    types = import_extra("pyspark.sql.types")
    of_value = import_extra("pyspark.sql.pandas.types").from_arrow_type(value_format.arrow_type)
    if mode == "quarantine":
        returned = types.StructType().add("value", of_value).add("error", types.StringType())
    else:
        returned = of_value

    def decode(data: Any) -> Any:
        return value_format.decode_column(data, mode)

    return _arrow_udf(decode, returned)(column)


def _encoded(column: Any, value_format: ValueFormat) -> Any:
    def encode(values: Any) -> Any:
        return value_format.encode_column(values)

    return _arrow_udf(encode, import_extra("pyspark.sql.types").BinaryType())(column)


def _arrow_udf(function: Any, returned: Any) -> Any:
    array = import_extra("pyarrow").Array
    # What tells Spark of which kind it is; as types, for pyarrow is imported in functions only.
    function.__annotations__ = dict.fromkeys(function.__annotations__, array)
    return import_extra("pyspark.sql.functions").arrow_udf(function, returned)


def _arrow_type(schema: Any) -> Any:
    types = import_extra("pyspark.sql.types")
    if isinstance(schema, str):
        schema = types.DataType.fromDDL(schema)
    return import_extra("pyspark.sql.pandas.types").to_arrow_type(schema, timezone="UTC")


def _bytes_of(descriptors: bytes | str | os.PathLike[str]) -> bytes:
    if isinstance(descriptors, bytes):
        return descriptors
    return REAL_FILES.read_file(os.fspath(descriptors))
