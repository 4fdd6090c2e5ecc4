"""What all formats share: columns of bytes to columns of values and back, and what is refused."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal

from logstore.extras import import_extra
from logstore.spark.errors import SparkSourceError

Mode = Literal["fail", "null", "quarantine"]
MODES: tuple[Mode, ...] = ("fail", "null", "quarantine")

# Of a value in an error's text: enough to know it again.
SHOWN_BYTES = 40


class MalformedValueError(SparkSourceError, ValueError):
    """A value is not what its format or its schema says."""

    def __init__(self, text: str) -> None:
        super().__init__("MALFORMED_VALUE", text)


class UnsupportedSchemaError(SparkSourceError, ValueError):
    """A schema has a type that no column of a table can hold."""

    def __init__(self, text: str) -> None:
        super().__init__("UNSUPPORTED_SCHEMA", text)


class ValueFormat(ABC):
    """
    One format with its schema.

    It is pickled into each task: subclasses keep there what they were made of, and nothing else.

    **Thread rule**: one thread at a time.
    """

    @property
    @abstractmethod
    def arrow_type(self) -> Any:
        """The ``pyarrow.DataType`` of a decoded value."""

    @abstractmethod
    def decode(self, data: bytes) -> Any:
        """
        Return the value: dicts, lists and scalars.

        Raises:
            Exception: Whatever the format's package raises for bytes that it cannot read.
        """

    @abstractmethod
    def encode(self, value: Any) -> bytes:
        """Return the bytes of a value."""

    def leaf(self, arrow_type: Any) -> Callable[[Any], Any] | None:
        """Return what makes a decoded scalar one of an Arrow type; None: it is one."""
        del arrow_type
        return None

    # -- columns -----------------------------------------------------------------------------------

    def decode_column(self, data: Any, mode: Mode) -> Any:
        """
        Decode a column.

        Args:
            data: A ``pyarrow.Array`` of binary or string; a null stays null.
            mode: What becomes of a value that cannot be decoded: ``"fail"`` raises, ``"null"``
                makes it null, ``"quarantine"`` tells why.

        Returns:
            A ``pyarrow.Array`` of :attr:`arrow_type`; with ``"quarantine"`` a struct of ``value``,
            of that type, and ``error``, a string, of which at most one is not null.

        Raises:
            MalformedValueError: In mode ``"fail"``; it shows the value's beginning.
        """
        pa = import_extra("pyarrow")
        rows = [_as_bytes(row) for row in data.to_pylist()]
        to_arrow = converter(self.arrow_type, self.leaf)
        values: list[Any] = [None] * len(rows)
        errors: dict[int, str] = {}
        for index, row in enumerate(rows):
            if row is None:
                continue
            try:
                values[index] = _converted(self.decode(row), to_arrow)
            except Exception as error:  # noqa: BLE001 - packages raise what they like for bad bytes.
                errors[index] = self._refuse(row, error, mode)
        try:
            column = pa.array(values, self.arrow_type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            # Some value has another type than the schema says; which one is found singly.
            for index, row in enumerate(rows):
                try:
                    pa.array(values[index : index + 1], self.arrow_type)
                except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                    errors[index] = self._refuse(row or b"", error, mode)
                    values[index] = None
            column = pa.array(values, self.arrow_type)
        if mode != "quarantine":
            return column
        reasons = pa.array([errors.get(index) for index in range(len(rows))], pa.string())
        return pa.StructArray.from_arrays([column, reasons], ["value", "error"])

    def encode_column(self, column: Any) -> Any:
        """
        Encode a column.

        Args:
            column: A ``pyarrow.Array`` of the schema's values; a null stays null.

        Returns:
            A ``pyarrow.Array`` of binary.

        Raises:
            MalformedValueError: A value does not fit the schema.
        """
        pa = import_extra("pyarrow")
        encoded: list[bytes | None] = []
        for value in column.to_pylist(maps_as_pydicts="strict"):
            try:
                encoded.append(None if value is None else self.encode(value))
            except Exception as error:  # As in decoding.
                raise MalformedValueError(
                    f"a value does not fit the schema: {_one_line(error)}"
                ) from error
        return pa.array(encoded, pa.binary())

    def _refuse(self, data: bytes, error: Exception, mode: Mode) -> str:
        reason = _one_line(error)
        if mode == "fail":
            shown = data[:SHOWN_BYTES].hex(" ") + (" …" if len(data) > SHOWN_BYTES else "")
            raise MalformedValueError(
                f"a value of {len(data)} bytes cannot be decoded: {reason}; it begins with"
                f" {shown or 'nothing'}; mode='null' or mode='quarantine' goes on without it"
            ) from error
        return reason


def _as_bytes(row: bytes | str | None) -> bytes | None:
    return row.encode() if isinstance(row, str) else row


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text or type(error).__name__


# ---- values to Arrow -----------------------------------------------------------------------------

Converter = Callable[[Any], Any]


def converter(arrow_type: Any, leaf: Callable[[Any], Converter | None]) -> Converter | None:
    """
    Return what makes of a decoded value one that ``pyarrow.array`` takes for a type.

    Args:
        arrow_type: A ``pyarrow.DataType``.
        leaf: Gives the converter of a type that is no struct, list or map, None if none is needed.

    Returns:
        A function of a value that is not None; None: the type takes values as they are.
    """
    types = import_extra("pyarrow").types
    if types.is_struct(arrow_type):
        return _of_struct([(field.name, converter(field.type, leaf)) for field in arrow_type])
    if types.is_map(arrow_type):
        return _of_map(converter(arrow_type.item_type, leaf))
    if types.is_list(arrow_type):
        return _of_list(converter(arrow_type.value_type, leaf))
    return leaf(arrow_type)


def _of_struct(fields: list[tuple[str, Converter | None]]) -> Converter:
    def convert(value: Any) -> Any:
        _expect(dict, value)
        return {name: _converted(value.get(name), each) for name, each in fields}

    return convert


def _of_map(item: Converter | None) -> Converter:
    def convert(value: Any) -> Any:
        _expect(dict, value)
        return [(key, _converted(each, item)) for key, each in value.items()]

    return convert


def _of_list(item: Converter | None) -> Converter:
    def convert(value: Any) -> Any:
        _expect(list, value)
        return value if item is None else [_converted(each, item) for each in value]

    return convert


def _converted(value: Any, convert: Converter | None) -> Any:
    return value if value is None or convert is None else convert(value)


def _expect(kind: type, value: Any) -> None:
    if not isinstance(value, kind):
        wanted = "an array" if kind is list else "an object"
        raise TypeError(f"{wanted} is wanted, not {type(value).__name__}")
