"""JSON, Avro and Protobuf between columns of bytes and of values; no Spark runs here."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import io
import json
import pickle
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("fastavro", reason="needs the extra [formats]")
pytest.importorskip("orjson", reason="needs the extra [formats]")
pytest.importorskip("google.protobuf", reason="needs the extra [formats]")

import fastavro
import pyarrow as pa
from google.protobuf import descriptor_pb2, timestamp_pb2

from logstore.spark.formats.avro_format import AvroFormat
from logstore.spark.formats.framing import framed, split_path, unframed
from logstore.spark.formats.json_format import JsonFormat
from logstore.spark.formats.protobuf_format import ProtobufFormat
from logstore.spark.formats.value_format import MalformedValueError, UnsupportedSchemaError

UTC_TIME = pa.timestamp("us", tz="UTC")
NOON = dt.datetime(2013, 1, 1, 12, 0, 0, 250000, tzinfo=dt.UTC)


def decoded(value_format, rows, mode="fail"):
    column = value_format.decode_column(pa.array(rows, pa.binary()), mode)
    column.validate(full=True)
    return column.to_pylist(maps_as_pydicts="strict")


def copied(value_format):
    """The format as a task gets it."""
    return pickle.loads(pickle.dumps(value_format))


class TestModes:
    FORMAT = JsonFormat(pa.struct({"a": pa.int32(), "b": pa.string()}))
    ROWS = (b'{"a": 1}', None, b'{"a": "1"}', b"{", b'{"a": 2147483648}', b'{"b": "x", "c": 0}')

    def test_fail(self):
        with pytest.raises(MalformedValueError) as error:
            decoded(self.FORMAT, self.ROWS)
        text = str(error.value)
        assert text.startswith("LOGSTORE_MALFORMED_VALUE: a value of 10 bytes cannot be decoded")
        assert "an integer is wanted, not '1'" in text
        assert "\n" not in text

    def test_fail_for_a_value_beyond_its_type(self):
        with pytest.raises(MalformedValueError, match="a value of 17 bytes"):
            decoded(self.FORMAT, self.ROWS[4:])

    def test_null(self):
        """What cannot be read is null; the others are where they were."""
        expected = [{"a": 1, "b": None}, None, None, None, None, {"a": None, "b": "x"}]
        assert expected == decoded(self.FORMAT, self.ROWS, "null")

    def test_quarantine(self):
        """A row has a value or an error; a tombstone has neither."""
        rows = decoded(self.FORMAT, self.ROWS, "quarantine")
        assert [{"a": 1, "b": None}, None, None, None, None, {"a": None, "b": "x"}] == [
            row["value"] for row in rows
        ]
        assert [False, False, True, True, True, False] == [row["error"] is not None for row in rows]

    @pytest.mark.parametrize("mode", ["fail", "null", "quarantine"])
    def test_no_rows(self, mode):
        assert [] == decoded(self.FORMAT, [], mode)

    def test_column_of_strings(self):
        column = self.FORMAT.decode_column(pa.array(['{"b": "ä"}'], pa.string()), "fail")
        assert [{"a": None, "b": "ä"}] == column.to_pylist()


class TestJson:
    TYPE = pa.struct(
        {
            "text": pa.string(),
            "time": UTC_TIME,
            "local": pa.timestamp("us"),
            "date": pa.date32(),
            "price": pa.decimal128(10, 2),
            "raw": pa.binary(),
            "is_new": pa.bool_(),
            "ratio": pa.float64(),
            "tags": pa.list_(pa.string()),
            "counts": pa.map_(pa.string(), pa.int64()),
            "inner": pa.struct({"day": pa.date32()}),
        }
    )
    VALUE = {  # noqa: RUF012
        "text": "grün",
        "time": NOON,
        "local": NOON.replace(tzinfo=None),
        "date": dt.date(2013, 1, 1),
        "price": decimal.Decimal("12.50"),
        "raw": b"\0\xff",
        "is_new": True,
        "ratio": 0.5,
        "tags": ["a", None],
        "counts": {"x": 1},
        "inner": {"day": dt.date(2013, 1, 2)},
    }

    def test_round_trip(self):
        json_format = copied(JsonFormat(self.TYPE))
        column = pa.array([{**self.VALUE, "counts": [("x", 1)]}, None], self.TYPE)
        encoded = json_format.encode_column(column)
        text = json.loads(encoded[0].as_py())
        assert base64.b64encode(b"\0\xff").decode() == text["raw"]
        assert "2013-01-01T12:00:00.250000Z" == text["time"]
        assert [self.VALUE, None] == decoded(json_format, encoded.to_pylist())

    @pytest.mark.parametrize(
        ("text", "arrow_type", "expected"),
        [
            (b'"2013-01-01T13:00:00.25+01:00"', UTC_TIME, NOON),
            (b'"2013-01-01T12:00:00.25"', UTC_TIME, NOON),
            (b"12.1", pa.decimal128(5, 2), decimal.Decimal("12.10")),
            (b"1", pa.float64(), 1.0),
            (b"null", pa.int32(), None),
            (b"[1, null]", pa.list_(pa.int32()), [1, None]),
        ],
    )
    def test_values_that_json_has_no_type_for(self, text, arrow_type, expected):
        assert [expected] == decoded(JsonFormat(arrow_type), [text])

    @pytest.mark.parametrize(
        ("text", "arrow_type"),
        [
            (b"1.0", pa.int32()),
            (b"true", pa.int32()),
            (b"1", pa.bool_()),
            (b"1", pa.string()),
            (b'"1"', pa.float64()),
            (b'"12:00"', UTC_TIME),
            (b"0", UTC_TIME),
            (b'"2013-01-01T12:00:00Z"', pa.timestamp("us")),
            (b'"2013-02-30"', pa.date32()),
            (b'"%"', pa.binary()),
            (b"12.345", pa.decimal128(4, 1)),
            (b"[]", pa.struct({"a": pa.int32()})),
            (b"{}", pa.list_(pa.int32())),
            (b"[]", pa.map_(pa.string(), pa.int32())),
            (b"", pa.int32()),
            (b"\xff", pa.string()),
        ],
    )
    def test_nothing_is_guessed(self, text, arrow_type):
        with pytest.raises(MalformedValueError):
            decoded(JsonFormat(arrow_type), [text])

    def test_keys_that_are_no_strings(self):
        with pytest.raises(UnsupportedSchemaError, match="LOGSTORE_UNSUPPORTED_SCHEMA"):
            JsonFormat(pa.struct({"a": pa.list_(pa.map_(pa.int32(), pa.int32()))}))

    def test_frame(self):
        json_format = copied(JsonFormat(pa.struct({"a": pa.int32()}), schema_id=7))
        (row,) = json_format.encode_column(pa.array([{"a": 1}])).to_pylist()
        assert b'\0\0\0\0\x07{"a":1}' == row
        assert [{"a": 1}] == decoded(json_format, [row])
        with pytest.raises(MalformedValueError, match="begins with byte 0"):
            decoded(json_format, [b'{"a": 1}'])


AVRO = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["OPEN", "SHUT"]}},
        {"name": "before", "type": ["State", "null"]},
        {"name": "sum", "type": {"type": "fixed", "name": "Sum", "size": 5,
                                 "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "key", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "lines", "type": {"type": "array", "items": {
            "type": "record", "name": "Line", "fields": [{"name": "sku", "type": "bytes"}]}}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
    ],
}  # fmt: skip
ORDER = {
    "id": 7,
    "note": None,
    "state": "OPEN",
    "before": "SHUT",
    "sum": decimal.Decimal("12.50"),
    "key": "3a5c5d6e-0f3b-4c57-a2f5-1c1d2e3f4a5b",
    "time": NOON,
    "day": dt.date(2013, 1, 1),
    "lines": [{"sku": b"\1"}],
    "counts": {"a": 1},
}


class TestAvro:
    def test_round_trip(self):
        """What fastavro writes is read, and what we write fastavro reads."""
        avro = copied(AvroFormat(json.dumps(AVRO)))
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO), ORDER)
        assert [ORDER, None] == decoded(avro, [stream.getvalue(), None])
        column = pa.array([{**ORDER, "counts": [("a", 1)]}, None], avro.arrow_type)
        assert [stream.getvalue(), None] == avro.encode_column(column).to_pylist()

    def test_frame_and_resolution(self):
        """Each value is read with the schema that it was written with, as the one that is asked."""
        old = '{"type": "record", "name": "P", "fields": [{"name": "a", "type": "int"}]}'
        new = (
            '{"type": "record", "name": "P", "fields": [{"name": "a", "type": "long"},'
            ' {"name": "b", "type": "string", "default": "-"}]}'
        )
        written = [
            *AvroFormat(old, schema_id=1).encode_column(pa.array([{"a": 1}])).to_pylist(),
            *AvroFormat(new, schema_id=2).encode_column(pa.array([{"a": 2, "b": "x"}])).to_pylist(),
        ]
        assert [1, 2] == [unframed(each)[0] for each in written]
        avro = copied(AvroFormat(new, written_with={1: old, 2: new}))
        assert [{"a": 1, "b": "-"}, {"a": 2, "b": "x"}] == decoded(avro, written)
        with pytest.raises(MalformedValueError, match="schema with the id 2"):
            decoded(AvroFormat(new, written_with={1: old}), written)

    @pytest.mark.parametrize("data", [b"", b"\x02\x02", b"\x80" * 20])
    def test_bytes_that_are_no_value(self, data):
        """Too few, too many, or no number."""
        with pytest.raises(MalformedValueError):
            decoded(AvroFormat('"long"'), [data])

    @pytest.mark.parametrize(
        ("schema", "why"),
        [
            (["int", "string"], "union"),
            ({"type": "int", "logicalType": "time-millis"}, "time of day"),
            (
                {"type": "record", "name": "T", "fields": [{"name": "t", "type": ["null", "T"]}]},
                "holds itself",
            ),
        ],
    )
    def test_schema_that_no_column_has(self, schema, why):
        with pytest.raises(UnsupportedSchemaError, match=why):
            AvroFormat(json.dumps(schema))

    def test_value_that_does_not_fit(self):
        with pytest.raises(MalformedValueError, match="does not fit the schema"):
            AvroFormat('"long"').encode_column(pa.array(["x"]))

    @given(data=st.binary(max_size=60))
    def test_any_bytes(self, data):
        """They are a value, or refused; nothing else is raised."""
        (row,) = decoded(AvroFormat(json.dumps(AVRO)), [data], "quarantine")
        assert (row["value"] is None) == (row["error"] is not None)


def descriptor_set():
    """Return what protoc would write of a file with every kind of field."""
    field_type = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="shop.proto", package="shop", syntax="proto3", dependency=[timestamp_pb2.__name__]
    )
    file.dependency[0] = "google/protobuf/timestamp.proto"
    state = file.enum_type.add(name="State")
    state.value.add(name="UNKNOWN", number=0)
    state.value.add(name="OPEN", number=1)
    file.message_type.add(name="First")
    order = file.message_type.add(name="Order")
    line = order.nested_type.add(name="Line")
    line.field.add(name="sku", number=1, type=field_type.TYPE_BYTES, label=1)
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field_type.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, type=field_type.TYPE_INT32, label=1)
    for number, (name, kind, label, type_name) in enumerate(
        [
            ("id", "INT64", 1, ""),
            ("small", "UINT32", 1, ""),
            ("large", "FIXED64", 1, ""),
            ("ratio", "FLOAT", 1, ""),
            ("is_new", "BOOL", 1, ""),
            ("text", "STRING", 1, ""),
            ("state", "ENUM", 1, ".shop.State"),
            ("states", "ENUM", 3, ".shop.State"),
            ("line", "MESSAGE", 1, ".shop.Order.Line"),
            ("lines", "MESSAGE", 3, ".shop.Order.Line"),
            ("counts", "MESSAGE", 3, ".shop.Order.CountsEntry"),
            ("time", "MESSAGE", 1, ".google.protobuf.Timestamp"),
        ],
        start=1,
    ):
        order.field.add(
            name=name,
            number=number,
            type=getattr(field_type, f"TYPE_{kind}"),
            label=label,
            type_name=type_name or None,
        )
    tree = file.message_type.add(name="Tree")
    tree.field.add(
        name="below", number=1, type=field_type.TYPE_MESSAGE, label=3, type_name=".shop.Tree"
    )
    times = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(times)
    return descriptor_pb2.FileDescriptorSet(file=[times, file]).SerializeToString()


DESCRIPTORS = descriptor_set()
MESSAGE = {
    "id": -7,
    "small": 2**32 - 1,
    "large": decimal.Decimal(2**64 - 1),
    "ratio": 0.5,
    "is_new": True,
    "text": "grün",
    "state": "OPEN",
    "states": ["UNKNOWN", "9"],
    "line": {"sku": b""},
    "lines": [{"sku": b"\1"}, {"sku": b"\2"}],
    "counts": {"a": 1, "b": -1},
    "time": NOON,
}
UNSET = {
    "id": 0,
    "small": 0,
    "large": decimal.Decimal(0),
    "ratio": 0.0,
    "is_new": False,
    "text": "",
    "state": "UNKNOWN",
    "states": [],
    "line": None,
    "lines": [],
    "counts": {},
    "time": None,
}


class TestProtobuf:
    FORMAT = ProtobufFormat(DESCRIPTORS, "shop.Order")

    def test_round_trip(self):
        protobuf = copied(self.FORMAT)
        column = pa.array(
            [{**MESSAGE, "counts": list(MESSAGE["counts"].items())}, None], protobuf.arrow_type
        )
        encoded = protobuf.encode_column(column).to_pylist()
        assert [MESSAGE, None] == decoded(protobuf, encoded)

    def test_nothing_is_set(self):
        assert [UNSET] == decoded(self.FORMAT, [b""])
        assert [b""] == self.FORMAT.encode_column(
            pa.array([dict.fromkeys(UNSET)], self.FORMAT.arrow_type)
        ).to_pylist()

    def test_frame(self):
        """The path says which message of its file it is: Line is the first in the second."""
        protobuf = copied(ProtobufFormat(DESCRIPTORS, "shop.Order.Line", schema_id=9))
        (row,) = protobuf.encode_column(pa.array([{"sku": b"x"}])).to_pylist()
        assert b"\0\0\0\0\x09" + b"\x04\x02\x00" + b"\x0a\x01x" == row
        assert [{"sku": b"x"}] == decoded(protobuf, [row])
        with pytest.raises(MalformedValueError, match="is at"):
            decoded(protobuf, [framed(9, b"\x0a\x01x", (0,))])

    def test_message_that_is_not_there(self):
        with pytest.raises(UnsupportedSchemaError, match=r"no message shop\.Nothing"):
            ProtobufFormat(DESCRIPTORS, "shop.Nothing")

    def test_bytes_that_are_no_descriptors(self):
        with pytest.raises(UnsupportedSchemaError, match="no set of file descriptors"):
            ProtobufFormat(b"\xff\xff", "shop.Order")

    def test_message_that_holds_itself(self):
        with pytest.raises(UnsupportedSchemaError, match="holds itself"):
            ProtobufFormat(DESCRIPTORS, "shop.Tree")

    def test_number_beyond_its_field(self):
        column = pa.array([{**UNSET, "counts": [], "small": 2**32}], self.FORMAT.arrow_type)
        with pytest.raises(MalformedValueError, match="does not fit"):
            self.FORMAT.encode_column(column)

    @given(data=st.binary(max_size=60))
    def test_any_bytes(self, data):
        """They are a message, or refused; nothing else is raised."""
        (row,) = decoded(self.FORMAT, [data], "quarantine")
        assert (row["value"] is None) == (row["error"] is not None)


class TestFraming:
    @given(path=st.lists(st.integers(0, 300), min_size=1, max_size=4), data=st.binary(max_size=9))
    def test_round_trip(self, path, data):
        schema_id, rest = unframed(framed(2**31 - 1, data, path))
        assert 2**31 - 1 == schema_id
        assert (tuple(path), data) == split_path(rest)

    @pytest.mark.parametrize("data", [b"", b"\0\0\0\0", b"\1\0\0\0\1x"])
    def test_no_frame(self, data):
        with pytest.raises(ValueError, match="a frame"):
            unframed(data)

    @given(data=st.binary(max_size=12))
    def test_any_path(self, data):
        """A path is read, or refused; none is longer than the bytes."""
        try:
            path, _ = split_path(data)
        except ValueError:
            return
        assert len(path) <= max(1, len(data))

    def test_endless_varint(self):
        with pytest.raises(ValueError, match="no varint"):
            split_path(struct.pack("6B", *[0xFF] * 6))
