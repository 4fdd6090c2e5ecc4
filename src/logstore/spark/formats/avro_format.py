"""Avro's binary encoding, plain or in a registry's frame."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any

from logstore.extras import import_extra
from logstore.spark.formats.framing import framed, unframed
from logstore.spark.formats.value_format import UnsupportedSchemaError, ValueFormat


class AvroFormat(ValueFormat):
    """
    Avro's binary encoding of one value, without a container file.

    Args:
        schema: The reader's schema, and the one that values are written with; JSON.
        written_with: Values have a registry's frame; the schema of each id, JSON. None: they have
            none, and were written with ``schema``.
        schema_id: Of ``schema``, for writing with a frame.

    Raises:
        UnsupportedSchemaError: It has a union of several types, a type that holds itself, or a
            time of day.

    Source: the Avro specification, "Binary Encoding", "Schema Resolution".
    """

    def __init__(
        self,
        schema: str,
        written_with: Mapping[int, str] | None = None,
        schema_id: int | None = None,
    ) -> None:
        self._arguments = (schema, written_with, schema_id)
        self._avro = import_extra("fastavro")
        self._schema = self._parsed(schema)
        self._arrow_type = _arrow_type(self._schema, {})
        self._written_with = {id_: self._parsed(each) for id_, each in (written_with or {}).items()}
        if written_with is not None and schema_id is not None:
            self._written_with.setdefault(schema_id, self._schema)
        self._is_framed = written_with is not None or schema_id is not None
        self._schema_id = schema_id

    def __reduce__(self) -> tuple[Any, ...]:
        return AvroFormat, self._arguments

    def _parsed(self, schema: str) -> Any:
        # Names of one schema say nothing of another's.
        return self._avro.parse_schema(json.loads(schema), named_schemas={})

    @property
    def arrow_type(self) -> Any:
        """The ``pyarrow.DataType`` of a decoded value."""
        return self._arrow_type

    def decode(self, data: bytes) -> Any:
        """Return the value of the bytes, all of which it takes."""
        writer, reader = self._schema, None
        if self._is_framed:
            schema_id, data = unframed(data)
            if schema_id not in self._written_with:
                raise ValueError(f"nobody gave the schema with the id {schema_id}")
            writer, reader = self._written_with[schema_id], self._schema
        stream = io.BytesIO(data)
        value = self._avro.schemaless_reader(stream, writer, reader)
        if stream.tell() != len(data):
            raise ValueError(f"the value ends after {stream.tell()} of {len(data)} bytes")
        return value

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a value."""
        stream = io.BytesIO()
        self._avro.schemaless_writer(stream, self._schema, value, strict_allow_default=True)
        data = stream.getvalue()
        return data if self._schema_id is None else framed(self._schema_id, data)

    def leaf(self, arrow_type: Any) -> Callable[[Any], Any] | None:
        """Return what makes a text of a UUID."""
        return str if import_extra("pyarrow").types.is_string(arrow_type) else None


_PRIMITIVE_TYPES = {
    "null": "null",
    "boolean": "bool_",
    "int": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "bytes": "binary",
    "string": "string",
    "fixed": "binary",
    "enum": "string",
}


def _arrow_type(schema: Any, above: dict[str, Any]) -> Any:
    """Return the Arrow type of a parsed schema; ``above`` are the named types around it."""
    pa = import_extra("pyarrow")
    if isinstance(schema, list):
        others = [each for each in schema if each != "null"]
        if len(others) != 1:
            names = ", ".join(each if isinstance(each, str) else each["type"] for each in schema)
            raise UnsupportedSchemaError(f"a union of [{names}]: a column has one type")
        return _arrow_type(others[0], above)
    if isinstance(schema, str):
        if schema in above:
            named = above[schema]
            if named is None:
                raise UnsupportedSchemaError(f"{schema} holds itself: a column's type is finite")
            return named
        return getattr(pa, _PRIMITIVE_TYPES[schema])()
    kind = schema["type"]
    if isinstance(kind, (dict, list)):
        return _arrow_type(kind, above)
    if kind == "record":
        above[schema["name"]] = None
        fields = [(field["name"], _arrow_type(field["type"], above)) for field in schema["fields"]]
        above[schema["name"]] = pa.struct(fields)
        return above[schema["name"]]
    if kind == "array":
        return pa.list_(_arrow_type(schema["items"], above))
    if kind == "map":
        return pa.map_(pa.string(), _arrow_type(schema["values"], above))
    arrow_type = _logical_type(schema) or _arrow_type(kind, above)
    if "name" in schema:
        above[schema["name"]] = arrow_type
    return arrow_type


def _logical_type(schema: dict[str, Any]) -> Any:
    pa = import_extra("pyarrow")
    logical = schema.get("logicalType")
    if logical == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if logical in {"time-millis", "time-micros"}:
        raise UnsupportedSchemaError(f"{logical}: tables have no time of day")
    return {
        "date": pa.date32(),
        "timestamp-millis": pa.timestamp("us", tz="UTC"),
        "timestamp-micros": pa.timestamp("us", tz="UTC"),
        "local-timestamp-millis": pa.timestamp("us"),
        "local-timestamp-micros": pa.timestamp("us"),
        "uuid": pa.string(),
    }.get(logical or "")
