"""
Arrow data as the columns that C encodes: no copy of values and keys, no Python object per record.

Needs pyarrow, the extra ``arrow``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from logstore._native import Columns
from logstore.extras import import_extra
from logstore.given_records import GivenColumns, check_units


class ArrowRows:
    """
    Rows as Arrow arrays of the same length, and what C and the checks make of them.

    Attributes:
        values: Of type binary or large_binary.
        keys: The same, or None: no row has one.
        timestamps: int64 milliseconds, or None: one time for all, which needs no check.
        headers: Headers as the format has them, large_binary; None: no row has any.
        partitions: The partition of each row, where it was given; None: of none.
    """

    __slots__ = ("headers", "keys", "partitions", "timestamps", "values")

    def __init__(
        self,
        values: Any,
        keys: Any = None,
        timestamps: npt.NDArray[np.int64] | None = None,
        *,
        headers: Any = None,
        partitions: Any = None,
    ) -> None:
        self.values = values
        self.keys = keys
        self.timestamps = timestamps
        self.headers = headers
        self.partitions = partitions

    def __len__(self) -> int:
        return len(self.values)

    def picked(self, order: npt.NDArray[np.int64]) -> ArrowRows:
        """Return rows with these indices, in this order: their bytes are copied together."""
        if len(order) == len(self) and (np.diff(order) == 1).all():
            return self
        indices = import_extra("pyarrow").array(order)
        return self._each(
            lambda column: column.take(indices),
            None if self.timestamps is None else self.timestamps[order],
        )

    def slice(self, start: int, stop: int) -> ArrowRows:
        """Return some of the rows, without a copy."""
        return self._each(
            lambda column: column.slice(start, stop - start),
            None if self.timestamps is None else self.timestamps[start:stop],
        )

    def _each(
        self, change: Callable[[Any], Any], timestamps: npt.NDArray[np.int64] | None
    ) -> ArrowRows:
        values, keys, headers, partitions = (
            None if column is None else change(column)
            for column in (self.values, self.keys, self.headers, self.partitions)
        )
        return ArrowRows(values, keys, timestamps, headers=headers, partitions=partitions)

    def columns(self, now_ms: int) -> Columns:
        """Return what C encodes; without times the rows get ``now_ms``."""
        data, offsets, validity = binary_buffers(self.values)
        others: dict[str, Any] = {}
        if self.keys is not None:
            key_data, key_offsets, key_validity = binary_buffers(self.keys)
            others = {"keys": key_data, "key_offsets": key_offsets, "key_validity": key_validity}
        if self.headers is not None:
            others["headers"], others["header_offsets"], _ = binary_buffers(self.headers)
        return Columns(
            data,
            offsets,
            value_validity=validity,
            timestamps=self.timestamps,
            timestamp=now_ms,
            count=len(self),
            **others,
        )

    def given(self, now_ms: int) -> GivenColumns:
        """Return what C encodes, with what must be checked of it."""
        return GivenColumns(self.columns(now_ms), self.timestamps, self.null_key())

    def null_key(self) -> int | None:
        """Return the index of the first row without a key, None if all have one."""
        if self.keys is None:
            return 0
        validity = binary_buffers(self.keys)[2]
        return None if validity is None else _first_null(validity)

    def sizes(self) -> npt.NDArray[np.int64]:
        """Return the bytes of each row's key and value, int64."""
        sizes = np.zeros(len(self), np.int64)
        for array in (self.values, self.keys):
            if array is None:
                continue
            _, offsets, validity = binary_buffers(array)
            lengths = np.diff(offsets)
            if validity is not None:  # What lies under a null means nothing.
                lengths *= np.unpackbits(validity, count=len(self), bitorder="little")
            sizes += lengths
        return sizes


def arrow_rows(
    data: Any,
    value: str,
    key: str | None,
    timestamp: str | None,
    now_ms: int,
    *,
    check_times: bool = True,
) -> Iterator[ArrowRows]:
    """
    Yield the record batches of Arrow data, but for those without rows.

    Args:
        data: A pyarrow Table or RecordBatch, or anything with the Arrow PyCapsule interface.
        value: Column of the values.
        key: Column of the keys, or None.
        timestamp: Column of the times, or None.
        now_ms: The time of records without one.
        check_times: Look at the units of times. Who writes the first record batch in C before the
            next is looked at leaves that to it, if there is one only.

    Raises:
        KeyError: A column is not there.
        TypeError: A column has a type that cannot be bytes, or a time.
        ValueError: A time has no zone, or is in the wrong unit.
    """
    pa = import_extra("pyarrow")
    if isinstance(data, pa.RecordBatch):
        batches = [data]
    elif isinstance(data, pa.Table):
        batches = data.to_batches()
    elif hasattr(data, "__arrow_c_stream__"):
        batches = pa.table(data).to_batches()
    elif hasattr(data, "__arrow_c_array__"):
        batches = [pa.record_batch(data)]
    else:
        raise TypeError(f"{type(data).__name__} is not Arrow data; give a Table or a RecordBatch")
    check_times = check_times or len(batches) > 1
    for batch in batches:
        if batch.num_rows == 0:
            continue
        timestamps = None
        if timestamp is not None:
            timestamps = _milliseconds(pa, _column(batch, timestamp), timestamp, now_ms)
            if check_times:
                check_units(timestamps)
        yield ArrowRows(
            binary_array(pa, _column(batch, value), value),
            None if key is None else binary_array(pa, _column(batch, key), key),
            timestamps,
        )


def _column(batch: Any, name: str) -> Any:
    index = batch.schema.get_field_index(name)
    if index < 0:
        raise KeyError(f"there is no column {name!r}; there are {batch.schema.names}")
    return batch.column(index)


def binary_array(pa: Any, array: Any, name: str) -> Any:
    """Return a column as binary or large_binary; other layouts of bytes and text are cast."""
    types = pa.types
    kind = array.type
    if types.is_dictionary(kind):
        array = array.dictionary_decode()
        kind = array.type
    if types.is_binary(kind) or types.is_large_binary(kind):
        return array
    if types.is_string(kind):
        return array.cast(pa.binary())
    if types.is_null(kind):
        return array.cast(pa.binary())
    is_view = getattr(types, "is_binary_view", None)
    is_text_view = getattr(types, "is_string_view", None)
    if (
        types.is_large_string(kind)
        or types.is_fixed_size_binary(kind)
        or (is_view is not None and is_view(kind))
        or (is_text_view is not None and is_text_view(kind))
    ):
        return array.cast(pa.large_binary())
    raise TypeError(f"column {name!r} is {kind}, not binary or string; cast it")


def binary_buffers(array: Any) -> tuple[Any, npt.NDArray[Any], npt.NDArray[np.uint8] | None]:
    """Return bytes, offsets and bitmap of a binary column; the bitmap is moved to bit 0."""
    validity, offsets, data = array.buffers()
    width = np.int64 if "large" in str(array.type) else np.int32
    if offsets is None:
        offset_array = np.zeros(len(array) + 1, width)
    else:
        offset_array = np.frombuffer(offsets, width)[array.offset : array.offset + len(array) + 1]
    bitmap = None
    if validity is not None and array.null_count:
        bitmap = np.frombuffer(validity, np.uint8)[array.offset // 8 :]
        if array.offset % 8:
            bits = np.unpackbits(bitmap, bitorder="little")[array.offset % 8 :]
            bitmap = np.packbits(bits, bitorder="little")
    return (b"" if data is None else data), offset_array, bitmap


def _first_null(bitmap: npt.NDArray[np.uint8]) -> int:
    """Return the place of the first 0 in a bitmap that has one."""
    at = int(np.argmax(bitmap != 0xFF))
    bits = int(bitmap[at])
    return 8 * at + (~bits & -~bits).bit_length() - 1


def _milliseconds(pa: Any, array: Any, name: str, now_ms: int) -> npt.NDArray[np.int64]:
    kind = array.type
    if pa.types.is_timestamp(kind):
        if kind.tz is None:
            raise ValueError(f"column {name!r} has times without a zone; cast it to one with")
        array = array.cast(pa.timestamp("ms", tz=kind.tz), safe=False).cast(pa.int64())
    elif not pa.types.is_integer(kind):
        raise TypeError(f"column {name!r} is {kind}, not a timestamp or int64; cast it")
    else:
        array = array.cast(pa.int64())
    if array.null_count:
        array = array.fill_null(now_ms)
    return np.ascontiguousarray(array.to_numpy(zero_copy_only=False), np.int64)
