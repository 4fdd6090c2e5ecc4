"""JSON texts, of a schema that the reader gives."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
from collections.abc import Callable
from typing import Any

from logstore.extras import import_extra
from logstore.spark.formats.framing import framed, unframed
from logstore.spark.formats.value_format import UnsupportedSchemaError, ValueFormat


class JsonFormat(ValueFormat):
    """
    JSON texts.

    A member that the schema does not have is left out, one that is missing is null. A number is no
    string and a string no number: such a value breaks the schema. Times and dates are ISO 8601
    texts (a time without a zone is in UTC), decimals numbers or texts, binary is base64.

    Args:
        arrow_type: The ``pyarrow.DataType`` of a value.
        schema_id: Values have a registry's frame, and are written with this id; None: they have
            none. What id a value has that is read does not matter.
    """

    def __init__(self, arrow_type: Any, schema_id: int | None = None) -> None:
        self._arrow_type = arrow_type
        self._schema_id = schema_id
        self._json = import_extra("orjson")
        _check_keys(arrow_type)

    def __reduce__(self) -> tuple[Any, ...]:
        return JsonFormat, (self._arrow_type, self._schema_id)

    @property
    def arrow_type(self) -> Any:
        """The ``pyarrow.DataType`` of a decoded value."""
        return self._arrow_type

    def decode(self, data: bytes) -> Any:
        """Return the value of a text."""
        text = data if self._schema_id is None else unframed(data)[1]
        return self._json.loads(text)

    def encode(self, value: Any) -> bytes:
        """Return the text of a value."""
        text: bytes = self._json.dumps(
            value, default=_to_json, option=self._json.OPT_UTC_Z | self._json.OPT_NON_STR_KEYS
        )
        return text if self._schema_id is None else framed(self._schema_id, text)

    def leaf(self, arrow_type: Any) -> Callable[[Any], Any] | None:
        """Return what reads a value that JSON has no type of its own for, or too wide a one."""
        types = import_extra("pyarrow").types
        if types.is_timestamp(arrow_type):
            return _local_time if arrow_type.tz is None else _time
        for is_of_type, read in (
            (types.is_date, dt.date.fromisoformat),
            (types.is_binary, _binary),
            (types.is_boolean, _boolean),
            (types.is_integer, _integer),
            (types.is_decimal, _decimal),
        ):
            if is_of_type(arrow_type):
                return read
        return None


def _check_keys(arrow_type: Any) -> None:
    """
    Look for maps that JSON has no objects for.

    Raises:
        UnsupportedSchemaError: There is one.
    """
    types = import_extra("pyarrow").types
    if types.is_map(arrow_type) and not types.is_string(arrow_type.key_type):
        raise UnsupportedSchemaError("the keys of a JSON object are strings")
    for index in range(arrow_type.num_fields):
        _check_keys(arrow_type.field(index).type)


def _to_json(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, decimal.Decimal):
        return str(value)
    raise TypeError(f"JSON has no {type(value).__name__}")


def _time(text: Any) -> dt.datetime:
    time = dt.datetime.fromisoformat(text)
    return time if time.tzinfo is not None else time.replace(tzinfo=dt.UTC)


def _local_time(text: Any) -> dt.datetime:
    time = dt.datetime.fromisoformat(text)
    if time.tzinfo is not None:
        raise ValueError(f"{text!r} has a zone, and the column has none")
    return time


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"true or false is wanted, not {value!r}")
    return value


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"an integer is wanted, not {value!r}")
    return value


def _decimal(value: Any) -> decimal.Decimal:
    # Of the digits that were written, not of the binary fraction nearest to them.
    return decimal.Decimal(repr(value) if isinstance(value, float) else value)


def _binary(value: Any) -> bytes:
    return base64.b64decode(value, validate=True)
