"""Protobuf messages, plain or in a registry's frame."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any

from logstore.extras import import_extra
from logstore.spark.formats.framing import framed, split_path, unframed
from logstore.spark.formats.value_format import UnsupportedSchemaError, ValueFormat

TIMESTAMP = "google.protobuf.Timestamp"


class ProtobufFormat(ValueFormat):
    """
    One kind of Protobuf message.

    A field without presence (in proto3: a scalar without ``optional``) that is not set has its
    default, as the language says; one with presence is null. An enum's value is its name, or its
    number as text where it has none; an unsigned 64-bit integer is a decimal(20, 0);
    ``google.protobuf.Timestamp`` is a timestamp.

    Args:
        descriptors: A serialized ``FileDescriptorSet`` with all imports, as
            ``protoc --include_imports --descriptor_set_out=FILE`` writes it.
        message: The message's full name.
        schema_id: Values have a registry's frame, and are written with this id; None: they have
            none. What id a value has that is read does not matter.

    Raises:
        UnsupportedSchemaError: The message is not there, or holds itself.
    """

    def __init__(self, descriptors: bytes, message: str, schema_id: int | None = None) -> None:
        self._arguments = (descriptors, message, schema_id)
        self._schema_id = schema_id
        set_pb2 = import_extra("google.protobuf.descriptor_pb2")
        pool = import_extra("google.protobuf.descriptor_pool").DescriptorPool()
        try:
            for file in set_pb2.FileDescriptorSet.FromString(descriptors).file:
                pool.Add(file)
        except Exception as error:  # The package's own, of several kinds.
            raise UnsupportedSchemaError(f"no set of file descriptors: {error}") from error
        try:
            self._descriptor = pool.FindMessageTypeByName(message)
        except KeyError as error:
            raise UnsupportedSchemaError(f"the descriptors have no message {message}") from error
        factory = import_extra("google.protobuf.message_factory")
        self._message_class = factory.GetMessageClass(self._descriptor)
        self._arrow_type = _struct_type(self._descriptor, ())
        self._path = _path_of(self._descriptor)

    def __reduce__(self) -> tuple[Any, ...]:
        return ProtobufFormat, self._arguments

    @property
    def arrow_type(self) -> Any:
        """The ``pyarrow.DataType`` of a decoded value."""
        return self._arrow_type

    def decode(self, data: bytes) -> Any:
        """Return the value of the bytes."""
        if self._schema_id is not None:
            path, data = split_path(unframed(data)[1])
            if path != self._path:
                raise ValueError(
                    f"the message at {list(path)} of its file, where"
                    f" {self._descriptor.full_name} is at {list(self._path)}"
                )
        return _value_of(self._message_class.FromString(data))

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a value."""
        message = self._message_class()
        _fill(message, value)
        data: bytes = message.SerializeToString(deterministic=True)
        return data if self._schema_id is None else framed(self._schema_id, data, self._path)


def _path_of(descriptor: Any) -> tuple[int, ...]:
    path = []
    while descriptor.containing_type is not None:
        around = descriptor.containing_type
        path.append([each.name for each in around.nested_types].index(descriptor.name))
        descriptor = around
    path.append(list(descriptor.file.message_types_by_name).index(descriptor.name))
    return tuple(reversed(path))


# ---- types ---------------------------------------------------------------------------------------


def _struct_type(descriptor: Any, above: tuple[str, ...]) -> Any:
    pa = import_extra("pyarrow")
    if descriptor.full_name in above:
        raise UnsupportedSchemaError(
            f"{descriptor.full_name} holds itself: a column's type is finite"
        )
    inside = (*above, descriptor.full_name)
    return pa.struct([(field.name, _field_type(field, inside)) for field in descriptor.fields])


def _field_type(field: Any, above: tuple[str, ...]) -> Any:
    pa = import_extra("pyarrow")
    if _is_map(field):
        key, value = field.message_type.fields
        return pa.map_(_single_type(key, above), _single_type(value, above))
    single = _single_type(field, above)
    return pa.list_(single) if field.is_repeated else single


def _single_type(field: Any, above: tuple[str, ...]) -> Any:
    pa = import_extra("pyarrow")
    if field.message_type is not None:
        if field.message_type.full_name == TIMESTAMP:
            return pa.timestamp("us", tz="UTC")
        return _struct_type(field.message_type, above)
    kind = field.cpp_type
    return {
        field.CPPTYPE_INT32: pa.int32(),
        field.CPPTYPE_UINT32: pa.int64(),
        field.CPPTYPE_INT64: pa.int64(),
        field.CPPTYPE_UINT64: pa.decimal128(20, 0),
        field.CPPTYPE_FLOAT: pa.float32(),
        field.CPPTYPE_DOUBLE: pa.float64(),
        field.CPPTYPE_BOOL: pa.bool_(),
        field.CPPTYPE_ENUM: pa.string(),
        field.CPPTYPE_STRING: pa.binary() if field.type == field.TYPE_BYTES else pa.string(),
    }[kind]


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


# ---- messages to values --------------------------------------------------------------------------


def _value_of(message: Any) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        content = getattr(message, field.name)
        if _is_map(field):
            item = field.message_type.fields_by_name["value"]
            value[field.name] = {key: _single_value(item, content[key]) for key in content}
        elif field.is_repeated:
            value[field.name] = [_single_value(field, each) for each in content]
        elif field.has_presence and not message.HasField(field.name):
            value[field.name] = None
        else:
            value[field.name] = _single_value(field, content)
    return value


def _single_value(field: Any, content: Any) -> Any:
    if field.message_type is not None:
        if field.message_type.full_name == TIMESTAMP:
            return content.ToDatetime(dt.UTC)
        return _value_of(content)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(content)
        return str(content) if named is None else named.name
    return content


# ---- values to messages --------------------------------------------------------------------------


def _fill(message: Any, value: dict[str, Any]) -> None:
    """Set the fields of a message; one that is None stays unset."""
    for field in message.DESCRIPTOR.fields:
        content = value.get(field.name)
        if content is None:
            continue
        if _is_map(field):
            _fill_map(field, getattr(message, field.name), content)
        elif field.is_repeated:
            _fill_list(field, getattr(message, field.name), content)
        elif field.message_type is not None:
            _fill_message(field, getattr(message, field.name), content)
        else:
            setattr(message, field.name, _scalar(field, content))


def _fill_map(field: Any, target: Any, content: dict[Any, Any]) -> None:
    item = field.message_type.fields_by_name["value"]
    for key, each in content.items():
        if item.message_type is not None:
            _fill_message(item, target[key], each)
        else:
            target[key] = _scalar(item, each)


def _fill_list(field: Any, target: Any, content: Iterable[Any]) -> None:
    for each in content:
        if field.message_type is not None:
            _fill_message(field, target.add(), each)
        else:
            target.append(_scalar(field, each))


def _fill_message(field: Any, target: Any, content: Any) -> None:
    target.SetInParent()
    if field.message_type.full_name == TIMESTAMP:
        target.FromDatetime(content)
    else:
        _fill(target, content)


def _scalar(field: Any, content: Any) -> Any:
    if field.enum_type is not None:
        named = field.enum_type.values_by_name.get(content)
        return int(content) if named is None else named.number
    return int(content) if field.cpp_type == field.CPPTYPE_UINT64 else content
