"""
Arrow record batches of records: their schema, and the buffers that C fills.

================  ==========================================  =====================================
column            type                                        null
================  ==========================================  =====================================
offset            int64                                       never
timestamp         timestamp[ms, UTC]                          never; -1 ms stands for none
key, value        binary, or binary_view                      null, as in Kafka
headers           list<struct<key: string, value: binary>>    never; the value of a header may be
topic             string                                      never; on request, as are those below
partition         int32                                       never
timestamp_type    int32                                       never: -1 none, 0 create, 1 log append
leader_epoch      int32                                       never; -1 unknown
================  ==========================================  =====================================

Needs pyarrow, the extra ``arrow``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from logstore._native import GATHER_SLACK, GATHER_VIEW_BYTES, GatherFull, Record
from logstore.errors import RecordTooLargeError
from logstore.extras import import_extra
from logstore.large_memory import LARGE_BYTES, LargeMemory

DEFAULT_COLUMNS: Final = ("offset", "timestamp", "key", "value", "headers")
COLUMNS: Final = (*DEFAULT_COLUMNS, "topic", "partition", "timestamp_type", "leader_epoch")

INT32_MAX: Final = 2**31 - 1
KEY_BYTES_MIN: Final = 64 << 10
HEADERS_MIN: Final = 256
HEADER_BYTES_MIN: Final = 4 << 10


def column_names(columns: Sequence[str] | None) -> tuple[str, ...]:
    """
    Return the names of a selection, in its order; None: the default one.

    Raises:
        TypeError: ``columns`` is not a sequence of names.
        ValueError: A name is unknown, there twice, or there is none.
    """
    if isinstance(columns, (str, bytes)):
        raise TypeError(f"columns is a sequence of names, such as [{columns!r}]")
    names = DEFAULT_COLUMNS if columns is None else tuple(columns)
    if not names:
        raise ValueError(f"no column is selected; there are {', '.join(COLUMNS)}")
    for name in names:
        if name not in COLUMNS:
            raise ValueError(f"there is no column {name!r}; there are {', '.join(COLUMNS)}")
        if names.count(name) > 1:
            raise ValueError(f"column {name!r} is selected twice")
    return names


class Layout(NamedTuple):
    """
    Which columns, of which types.

    Attributes:
        pa: The module pyarrow.
        schema: What every record batch has.
        fields: The schema's, which makes them anew at every look.
        names: Theirs.
        has_views: Keys and values point into the bytes that they were read from.
        topic: What the column ``topic`` says.
        partition: What the column ``partition`` says.
    """

    pa: Any
    schema: Any
    fields: tuple[Any, ...]
    names: tuple[str, ...]
    has_views: bool
    topic: str
    partition: int

    @classmethod
    def of(
        cls,
        columns: Sequence[str] | None,
        topic_partition: tuple[str, int] | None,
        *,
        views: bool,
    ) -> Layout:
        """
        Return the layout for a selection of columns.

        Raises:
            MissingExtraError: pyarrow is not installed.
            TypeError, ValueError: As :func:`column_names`; or the directory is not called after a
                topic and a partition, and these are asked for.
        """
        pa = import_extra("pyarrow")
        names = column_names(columns)
        if topic_partition is None:
            for name in ("topic", "partition"):
                if name in names:
                    raise ValueError(
                        f"column {name!r} needs a directory called <topic>-<partition>; leave it"
                        " out, or rename the directory"
                    )
        fields = tuple(_field(pa, name, views=views) for name in names)
        topic, partition = topic_partition or ("", 0)
        return cls(pa, pa.schema(fields), fields, names, views, topic, partition)

    @property
    def has_bytes(self) -> bool:
        """Whether there are columns whose size depends on the records'."""
        names = self.names
        return "value" in names or "key" in names or "headers" in names

    def from_records(self, records: list[Record]) -> Any:
        """Return records that Python made as a record batch."""
        pa, columns = self.pa, []
        for field in self.fields:
            values = [self._item(field.name, record) for record in records]
            columns.append(pa.array(values, field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _item(self, name: str, record: Record) -> Any:
        if name == "headers":
            return [{"key": _well_formed(key), "value": value} for key, value in record.headers]
        if name in ("topic", "partition"):
            return getattr(self, name)
        return getattr(record, name)


def _well_formed(name: str) -> str:
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _field(pa: Any, name: str, *, views: bool) -> Any:
    blob = pa.binary_view() if views else pa.binary()
    header = pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.binary())])
    types = {
        "offset": pa.int64(),
        "timestamp": pa.timestamp("ms", tz="UTC"),
        "key": blob,
        "value": blob,
        "headers": pa.list_(header),
        "topic": pa.string(),
    }
    nullable = name in ("key", "value", "headers")
    return pa.field(name, types.get(name, pa.int32()), nullable=nullable)


class _Bytes:
    """The buffers of one ``struct ls_gather_bytes``."""

    __slots__ = ("_large_memory", "_pa", "data", "offsets", "struct", "validity")

    def __init__(
        self,
        pa: Any,
        struct: Any,
        rows_max: int,
        bytes_max: int,
        large_memory: LargeMemory | None,
        *,
        has_views: bool = False,
    ) -> None:
        self._pa = pa
        self._large_memory = large_memory
        self.struct = struct
        self.validity = _allocate(pa, -(-rows_max // 8))
        width = GATHER_VIEW_BYTES * rows_max if has_views else 4 * (rows_max + 1)
        self.offsets = _allocate(pa, width)
        self.data = None if has_views else _allocate(pa, bytes_max + GATHER_SLACK)
        struct.size = struct.null_count = 0
        self._tell(0 if has_views else bytes_max)

    def _tell(self, capacity: int) -> None:
        struct = self.struct
        struct.capacity = capacity
        struct.offsets = self.offsets.address
        struct.validity = self.validity.address
        struct.bytes = 0 if self.data is None else self.data.address

    def grow(self, bytes_max: int, rows_max: int | None = None) -> None:
        """Make room, and keep what is there."""
        assert self.data is not None
        room = bytes_max + GATHER_SLACK
        if self._large_memory is not None and room > LARGE_BYTES:
            view = self._large_memory.take(room)
            view[: self.struct.size] = memoryview(self.data).cast("B")[: self.struct.size]
            self.data = self._pa.py_buffer(view)
        else:
            self.data.resize(room)
        if rows_max is not None:
            self.validity.resize(-(-rows_max // 8))
            self.offsets.resize(4 * (rows_max + 1))
        self._tell(bytes_max)

    def array(self, kind: Any, rows: int, views: Sequence[Any] = ()) -> Any:
        """Return the column; nothing may be added afterwards."""
        null_count = self.struct.null_count
        validity = _cut(self.validity, -(-rows // 8)) if null_count else None
        if self.data is None:
            offsets = _cut(self.offsets, GATHER_VIEW_BYTES * rows)
            buffers = [validity, offsets, *views]
        else:
            offsets = _cut(self.offsets, 4 * (rows + 1))
            buffers = [validity, offsets, _cut(self.data, self.struct.size)]
        return self._pa.Array.from_buffers(kind, rows, buffers, null_count)


class _Headers:
    """The buffers of ``struct ls_gather_headers``."""

    __slots__ = ("_names", "_offsets", "_pa", "_struct", "_values")

    def __init__(
        self, pa: Any, struct: Any, rows_max: int, large_memory: LargeMemory | None
    ) -> None:
        self._pa = pa
        self._struct = struct
        self._offsets = _allocate(pa, 4 * (rows_max + 1))
        self._names = _Bytes(pa, struct.names, HEADERS_MIN, HEADER_BYTES_MIN, large_memory)
        self._values = _Bytes(pa, struct.values, HEADERS_MIN, HEADER_BYTES_MIN, large_memory)
        struct.offsets = self._offsets.address
        struct.count = 0
        struct.count_max = HEADERS_MIN

    @property
    def wanted(self) -> int:
        """Bytes, or items, that the largest of the buffers would have with the next record."""
        struct = self._struct
        wanted = max(
            struct.names.size + struct.wanted_names,
            struct.values.size + struct.wanted_values,
            struct.count + struct.wanted_count,
        )
        return int(wanted)

    def grow(self) -> None:
        """Make room for the next record, and as much again."""
        struct = self._struct
        count = min(2 * (struct.count + struct.wanted_count), INT32_MAX)
        self._names.grow(min(2 * (struct.names.size + struct.wanted_names), INT32_MAX), count)
        self._values.grow(min(2 * (struct.values.size + struct.wanted_values), INT32_MAX), count)
        struct.count_max = count

    def array(self, kind: Any, rows: int) -> Any:
        """Return the column."""
        pa, count = self._pa, self._struct.count
        item = kind.value_type
        if count:
            names = self._names.array(pa.string(), count)
            values = self._values.array(pa.binary(), count)
        else:
            names, values = pa.nulls(0, pa.string()), pa.nulls(0, pa.binary())
        items = pa.Array.from_buffers(item, count, [None], 0, children=[names, values])
        offsets = _cut(self._offsets, 4 * (rows + 1))
        return pa.Array.from_buffers(kind, rows, [None, offsets], 0, children=[items])


class ColumnBuffers:
    """
    The buffers of one record batch while C appends rows to them.

    Args:
        layout: The columns.
        gather: The C struct ``ls_gather``; its fields for columns are set here.
        rows_max: Rows that there is room for.
        bytes_max: Bytes that a column should have at most. A record that is larger gets a record
            batch of its own.
        key_bytes: Bytes of keys to make room for at first.
        large_memory: For records that are very large; None: ordinary memory.
    """

    __slots__ = (
        "_bytes_max",
        "_fixed",
        "_gather",
        "_headers",
        "_keys",
        "_layout",
        "_values",
        "has_views",
        "views",
    )

    def __init__(
        self,
        layout: Layout,
        gather: Any,
        rows_max: int,
        bytes_max: int,
        key_bytes: int,
        large_memory: LargeMemory | None = None,
    ) -> None:
        assert rows_max > 0
        assert 0 < key_bytes <= bytes_max <= INT32_MAX
        pa, names, has_views = layout.pa, layout.names, layout.has_views
        self._layout = layout
        self._gather = gather
        self._bytes_max = bytes_max
        self._fixed: dict[str, Any] = {}
        self.has_views: Final = has_views
        #: Buffers that views point into, by their number.
        self.views: list[Any] = []
        gather.rows = 0
        gather.rows_max = rows_max
        gather.offsets = self._fix("offset", 8 * rows_max)
        gather.timestamps = self._fix("timestamp", 8 * rows_max)
        gather.timestamp_types = self._fix("timestamp_type", 4 * rows_max)
        gather.leader_epochs = self._fix("leader_epoch", 4 * rows_max)
        self._keys = self._values = self._headers = None
        if "key" in names:
            self._keys = _Bytes(
                pa, gather.keys, rows_max, key_bytes, large_memory, has_views=has_views
            )
        if "value" in names:
            self._values = _Bytes(
                pa, gather.values, rows_max, bytes_max, large_memory, has_views=has_views
            )
        if "headers" in names:
            self._headers = _Headers(pa, gather.headers, rows_max, large_memory)

    def _fix(self, name: str, size_bytes: int) -> int:
        if name not in self._layout.names:
            return 0
        buffer = self._fixed[name] = _allocate(self._layout.pa, size_bytes)
        return int(buffer.address)

    def point_into(self, buffer: Any) -> None:
        """Let the views of the next rows be positions in ``buffer``, of at most 2^31 - 1 bytes."""
        if buffer.size > INT32_MAX:
            raise RecordTooLargeError(
                f"{buffer.size} bytes of records are too many for views; read without views"
            )
        if not self.views or self.views[-1] is not buffer:
            self.views.append(buffer)
        self._gather.view_base = buffer.address
        self._gather.view_buffer = len(self.views) - 1

    def make_room(self) -> bool:
        """
        Make room for the record that did not fit; False: the record batch is full.

        Raises:
            RecordTooLargeError: Arrow's columns cannot hold the record's headers.
        """
        gather = self._gather
        is_empty: bool = gather.rows == 0
        if gather.full == GatherFull.HEADERS:
            headers = self._headers
            assert headers is not None
            if headers.wanted > (INT32_MAX if is_empty else self._bytes_max):
                if is_empty:
                    raise RecordTooLargeError("the headers of a record exceed 2^31 - 1 bytes")
                return False
            headers.grow()
            return True
        if gather.full == GatherFull.ROWS:
            assert not is_empty
            return False
        column = self._keys if gather.full == GatherFull.KEYS else self._values
        assert column is not None
        wanted = column.struct.size + gather.wanted
        if wanted <= self._bytes_max:
            column.grow(min(2 * wanted, self._bytes_max))
            return True
        if is_empty:
            column.grow(wanted)
        return is_empty

    def finish(self) -> Any:
        """Return the rows as a record batch; the buffers are its own from now on."""
        layout, rows = self._layout, self._gather.rows
        assert rows > 0
        arrays = [self._array(field, rows) for field in layout.fields]
        return layout.pa.RecordBatch.from_arrays(arrays, schema=layout.schema)

    def _array(self, field: Any, rows: int) -> Any:
        name, pa = field.name, self._layout.pa
        if name == "value" and self._values is not None:
            return self._values.array(field.type, rows, self.views)
        if name == "key" and self._keys is not None:
            return self._keys.array(field.type, rows, self.views)
        if name == "headers" and self._headers is not None:
            return self._headers.array(field.type, rows)
        if name in ("topic", "partition"):
            return constant_array(pa, field.type, getattr(self._layout, name), rows)
        width = field.type.bit_width // 8
        buffer = _cut(self._fixed[name], width * rows)
        return pa.Array.from_buffers(field.type, rows, [None, buffer], 0)


def constant_array(pa: Any, kind: Any, value: str | int, rows: int) -> Any:
    """
    Return a column of one value.

    pyarrow's own way, a scalar, imports pandas where there is one: time, and memory.

    Args:
        pa: The module pyarrow.
        kind: string or int32.
        value: What all rows have.
        rows: How many.
    """
    if isinstance(value, int):
        buffers = [None, pa.py_buffer(np.full(rows, value, np.int32))]
        return pa.Array.from_buffers(kind, rows, buffers, 0)
    text = value.encode()
    assert len(text) * rows <= INT32_MAX
    ends = np.arange(rows + 1, dtype=np.int32) * len(text)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(text * rows)]
    return pa.Array.from_buffers(kind, rows, buffers, 0)


def _allocate(pa: Any, size_bytes: int) -> Any:
    return pa.allocate_buffer(size_bytes, resizable=True)


def _cut(buffer: Any, size_bytes: int) -> Any:
    """Return the buffer with what is in it; give back what was much too much."""
    room = buffer.size
    assert size_bytes <= room
    if not hasattr(buffer, "resize"):
        return buffer.slice(0, size_bytes)  # Of large memory, which is no RAM.
    if size_bytes < room:
        # In place if more than half of it stays; below, the copy is small beside the decoding.
        buffer.resize(size_bytes, shrink_to_fit=4 * size_bytes < 3 * room)
    return buffer
