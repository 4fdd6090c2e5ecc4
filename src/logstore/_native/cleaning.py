"""
Kernels of the cleaner: the offset map, and what a round retains of batches: typed wrappers.

Nothing here keeps a reference to a buffer after the call but the map's own memory; all calls over
batches release the GIL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from logstore._native._core import ffi, lib

if TYPE_CHECKING:
    import numpy.typing as npt

    from logstore._native.io import NativeFiles
    from logstore._native.kernels import Buffer

OFFSET_MAP_ENTRY_BYTES: int = lib.LS_OFFSET_MAP_ENTRY_BYTES

CLEAN_END: int = lib.LS_CLEAN_END
CLEAN_TORN: int = lib.LS_CLEAN_TORN
CLEAN_INVALID: int = lib.LS_CLEAN_INVALID
CLEAN_LEGACY: int = lib.LS_CLEAN_LEGACY
CLEAN_SPECIAL: int = lib.LS_CLEAN_SPECIAL
CLEAN_FULL: int = lib.LS_CLEAN_FULL
CLEAN_TAKEN: int = lib.LS_CLEAN_TAKEN

SECRET_BYTES = 16
_ALL_BATCHES = 2**62
_STRETCH_BYTES: int = ffi.sizeof("struct ls_stretch")
_STRETCHES_MAX = 32_768
_BYTES_PER_STRETCH = 32_768  # Of a file, at first: less would take as long to ask for as to read.
_UINTPTR = ffi.typeof("uintptr_t")


def _address(data: Buffer) -> Any:
    return ffi.cast(_UINTPTR, ffi.from_buffer(data))


def siphash128(secret: bytes, data: Buffer) -> bytes:
    """Return SipHash-2-4 with 128 bits of ``data`` under a secret of 16 bytes."""
    assert len(secret) == SECRET_BYTES
    view = ffi.from_buffer(data)
    words = np.frombuffer(secret, np.uint64)
    found = ffi.new("uint64_t[2]")
    lib.ls_siphash128(
        ffi.from_buffer("uint64_t[]", words), ffi.cast(_UINTPTR, view), len(view), found
    )
    return bytes(ffi.buffer(found))


class Mapped(NamedTuple):
    """What was put into a map: bytes of batches, records, those without a key, why it stopped."""

    bytes_read: int
    records_read: int
    null_keys: int
    stop: int


class Cleaned(NamedTuple):
    """What was retained of batches, or of one section; the fields of ``struct ls_cleaned``."""

    bytes_read: int
    bytes_written: int
    records_read: int
    records_retained: int
    records_invalid: int
    base_timestamp: int
    max_timestamp: int
    stop: int
    has_horizon: bool
    is_unchanged: bool


class Pieces:
    """
    Batches of a file that C reads piece by piece; what of the last piece it left is in memory.

    Args:
        files: Of the file.
        fd: Open for reading; a lease on it is the caller's.
        position: Of a batch.
        end: Where the file's batches end.
        buffer: The size of a piece.
        count: Of pieces, unless batches that are cut ask for more.
        segment: Which of a log's files it is: its base offset.
    """

    __slots__ = ("_buffer", "_files", "_struct")

    def __init__(
        self,
        files: NativeFiles,
        fd: int,
        position: int,
        end: int,
        buffer: memoryview,
        count: int,
        segment: int = 0,
    ) -> None:
        self._files = files
        self._buffer = buffer
        self._struct = ffi.new("struct ls_pieces *")
        self._struct.buffer = _address(buffer)
        self._struct.buffer_size = len(buffer)
        self._struct.position = position
        self._struct.pause = min(end, position + (count - 1) * len(buffer) + 1)
        self._struct.end = end
        self._struct.segment = segment
        self._struct.fd = fd

    @property
    def position(self) -> int:
        """Of the first byte that was not taken."""
        return int(self._struct.position)

    @property
    def bytes_read(self) -> int:
        """Of the file: what was taken without a look is not among them, what is held is."""
        return int(self._struct.bytes_read)

    @property
    def held(self) -> memoryview:
        """The rest of the piece, from that byte on."""
        at = self._struct.held_at
        return self._buffer[at : at + self._struct.held_size]

    def check(self, status: int) -> None:
        """Raise StorageError for the status of a walk that could not read."""
        if status < 0:
            self._files.fail_to_read(status, self._struct.fd, self.position)


class NativeOffsetMap:
    """
    The C half of an offset map: slots in memory of its own, and the walks that use them.

    Args:
        slots: How many entries there is room for.
        entries_max: How many a walk puts in at most.
        secret: Of the hash, 16 bytes.
        superseded_max: Of how many offsets it is noted at most whether they are superseded. Memory
            that this leaves notes where in the files batches are.
    """

    __slots__ = (
        "_entries",
        "_entries_max",
        "_slots",
        "_stretches",
        "_struct",
        "_superseded",
        "_superseded_max",
    )

    def __init__(
        self, slots: int, entries_max: int, secret: bytes, superseded_max: int = 0
    ) -> None:
        assert 0 < entries_max <= slots
        assert len(secret) == SECRET_BYTES
        self._struct = ffi.new("struct ls_offset_map *")
        self._slots = slots
        self._entries_max = entries_max
        words = np.frombuffer(secret, np.uint64)
        self._struct.secret[0], self._struct.secret[1] = int(words[0]), int(words[1])
        self._superseded_max = superseded_max
        self._entries: npt.NDArray[np.uint64] = np.empty(0, np.uint64)
        self._superseded: npt.NDArray[np.uint64] = np.empty(0, np.uint64)
        self._stretches: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self.clear()

    def clear(self, start_offset: int = 0, end_offset: int = 0) -> None:
        """
        Forget everything; memory is only taken for slots that are used again.

        Args:
            start_offset: No lower one is put.
            end_offset: Nor this one, unless it is 0. There are two slots for each offset below it
                at most, and it is noted which are superseded, as far as memory goes.
        """
        assert start_offset >= 0
        struct = self._struct
        offsets = max(1, end_offset - start_offset)
        slots = self._slots if end_offset == 0 else min(self._slots, 2 * offsets)
        if struct.entry_count > 0 or struct.slot_count != slots:
            self._entries = np.empty(0, np.uint64)  # Before the new memory is there: never both.
            self._entries = np.zeros(slots * OFFSET_MAP_ENTRY_BYTES // 8, np.uint64)
            struct.slot_count = slots
            struct.entries_max = min(slots, self._entries_max)
        words = max(0, min(end_offset - start_offset + 63, self._superseded_max)) // 64
        self._superseded = np.zeros(words, np.uint64)
        struct.entries = _address(self._entries)
        struct.entry_count = 0
        struct.base_offset = start_offset
        struct.latest_offset = -1
        struct.superseded = _address(self._superseded)
        struct.superseded_count = 64 * words
        stretches = min((self._superseded_max // 8 - 8 * words) // _STRETCH_BYTES, _STRETCHES_MAX)
        self._stretches = np.empty(max(0, stretches) * _STRETCH_BYTES // 8, np.int64)
        struct.stretches = _address(self._stretches)
        struct.stretch_count = 0
        struct.stretches_max = max(0, stretches)
        struct.stretch_bytes = _BYTES_PER_STRETCH

    @property
    def slots(self) -> int:
        """Entries that there is room for."""
        return self._slots

    @property
    def entries_max(self) -> int:
        """Entries that a walk puts in at most."""
        return self._entries_max

    @property
    def size(self) -> int:
        """Keys in the map."""
        return int(self._struct.entry_count)

    @property
    def latest_offset(self) -> int:
        """The offset up to which everything is in the map; -1: nothing."""
        return int(self._struct.latest_offset)

    @property
    def noted_offsets(self) -> int:
        """Of how many offsets it is noted whether they are superseded; 0: of none any more."""
        return int(self._struct.superseded_count)

    def update_latest_offset(self, offset: int) -> None:
        """Say that everything up to an offset was looked at."""
        self._struct.latest_offset = offset

    def has_room(self, offset: int) -> bool:
        """Whether a walk would put one more key, at this offset."""
        return bool(lib.ls_offset_map_has_room(self._struct, offset))

    def put(self, key: Buffer, offset: int) -> bool:
        """Put an offset in place of the one that is there; False: there is no slot for it."""
        view = ffi.from_buffer(key)
        address = ffi.cast(_UINTPTR, view)
        return bool(lib.ls_offset_map_put(self._struct, address, len(view), offset) == 0)

    def get(self, key: Buffer) -> int:
        """Return the last offset put for a key, or -1."""
        view = ffi.from_buffer(key)
        return int(lib.ls_offset_map_get(self._struct, ffi.cast(_UINTPTR, view), len(view)))

    # -- building ----------------------------------------------------------------------------------

    def map_batches(
        self,
        data: Buffer,
        start_offset: int,
        *,
        transactional: bool = False,
        batches_max: int = _ALL_BATCHES,
    ) -> Mapped:
        """
        Put the records of batches; see ``ls_map_batches``.

        Args:
            data: From a batch boundary on.
            start_offset: Records below it are left out.
            transactional: Take transactional batches, too.
            batches_max: Take at most so many.
        """
        view = ffi.from_buffer(data)
        mapped = ffi.new("struct ls_mapped *")
        lib.ls_map_batches(
            self._struct,
            ffi.cast(_UINTPTR, view),
            len(view),
            start_offset,
            lib.LS_CLEAN_TRANSACTIONAL if transactional else 0,
            batches_max,
            mapped,
        )
        return Mapped(mapped.bytes_read, mapped.records_read, mapped.null_keys, mapped.stop)

    def map_file(self, pieces: Pieces, start_offset: int) -> Mapped:
        """
        Put the records of batches, piece by piece; see ``ls_map_file``.

        Raises:
            StorageError: The file cannot be read.
        """
        mapped = ffi.new("struct ls_mapped *")
        io, struct = pieces._files.io, pieces._struct
        pieces.check(lib.ls_map_file(self._struct, io, struct, start_offset, mapped))
        return Mapped(mapped.bytes_read, mapped.records_read, mapped.null_keys, mapped.stop)

    def map_section(
        self,
        section: Buffer,
        record_count: int,
        *,
        base_offset: int,
        last_offset: int,
        start_offset: int,
    ) -> Mapped:
        """Put the records of one plain section; see ``ls_map_section``."""
        view = ffi.from_buffer(section)
        mapped = ffi.new("struct ls_mapped *")
        lib.ls_map_section(
            self._struct,
            ffi.cast(_UINTPTR, view),
            len(view),
            record_count,
            base_offset,
            last_offset - base_offset,
            start_offset,
            mapped,
        )
        return Mapped(mapped.bytes_read, mapped.records_read, mapped.null_keys, mapped.stop)


class RecordFilter:
    """
    What a round retains, as C applies it to batches and sections.

    Args:
        offset_map: The last offset of each key.
        now_ms: Tombstones whose delete horizon is there or before go.
        delete_horizon: What batches get whose tombstones stay.
        kept_ends: Last offsets of batches that stay without records when all of them go.

    Source: Kafka ``MemoryRecords.RecordFilter``.
    """

    __slots__ = ("_kept_ends", "_runs", "_struct", "offset_map")

    def __init__(
        self,
        offset_map: NativeOffsetMap,
        *,
        now_ms: int,
        delete_horizon: int,
        kept_ends: list[int],
    ) -> None:
        self.offset_map = offset_map
        self._runs: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._kept_ends = np.array(sorted(kept_ends), np.int64)
        self._struct = ffi.new("struct ls_cleaning *")
        self._struct.now_ms = now_ms
        self._struct.delete_horizon = delete_horizon
        self._struct.kept_ends = _address(self._kept_ends)
        self._struct.kept_end_count = len(self._kept_ends)

    def _runs_for(self, size: int) -> npt.NDArray[np.int64]:
        """Return scratch memory for the records of so many bytes: one takes 7 or more."""
        if len(self._runs) < size // 14 + 1:
            self._runs = np.empty(size // 14 + 1, np.int64)
        return self._runs

    def clean_batches(
        self,
        data: Buffer,
        out: Buffer,
        *,
        transactional: bool = False,
        batches_max: int = _ALL_BATCHES,
    ) -> Cleaned:
        """Copy what stays of uncompressed batches to ``out``; see ``ls_clean_batches``."""
        view = ffi.from_buffer(data)
        out_view = ffi.from_buffer(out, require_writable=True)
        runs = self._runs_for(len(view))
        cleaned = ffi.new("struct ls_cleaned *")
        lib.ls_clean_batches(
            self.offset_map._struct,
            self._struct,
            ffi.cast(_UINTPTR, view),
            len(view),
            lib.LS_CLEAN_TRANSACTIONAL if transactional else 0,
            batches_max,
            ffi.cast(_UINTPTR, out_view),
            len(out_view),
            _address(runs),
            len(runs),
            cleaned,
        )
        return _cleaned(cleaned)

    def clean_file(self, pieces: Pieces, out: Buffer) -> Cleaned:
        """
        Copy what stays of uncompressed batches, piece by piece; see ``ls_clean_file``.

        Raises:
            StorageError: The file cannot be read.
        """
        out_view = ffi.from_buffer(out, require_writable=True)
        runs = self._runs_for(pieces._struct.buffer_size)
        cleaned = ffi.new("struct ls_cleaned *")
        pieces.check(
            lib.ls_clean_file(
                self.offset_map._struct,
                self._struct,
                pieces._files.io,
                pieces._struct,
                ffi.cast(_UINTPTR, out_view),
                len(out_view),
                _address(runs),
                len(runs),
                cleaned,
            )
        )
        return _cleaned(cleaned)

    def clean_section(
        self, header: Buffer, section: Buffer, record_count: int
    ) -> tuple[Cleaned, memoryview]:
        """
        Return what stays of one plain section, and the bytes of it; see ``ls_clean_section``.

        The bytes are empty if nothing stays, or everything does, unchanged.
        """
        view = ffi.from_buffer(section)
        header_view = ffi.from_buffer(header)
        runs = self._runs_for(len(view))
        room = len(view) + 14 * max(0, min(record_count, len(view) // 7))
        out = bytearray(room)
        cleaned = ffi.new("struct ls_cleaned *")
        lib.ls_clean_section(
            self.offset_map._struct,
            self._struct,
            ffi.cast(_UINTPTR, header_view),
            ffi.cast(_UINTPTR, view),
            len(view),
            _address(out),
            room,
            _address(runs),
            len(runs),
            cleaned,
        )
        return _cleaned(cleaned), memoryview(out)[: cleaned.bytes_written]


def _cleaned(cleaned: Any) -> Cleaned:
    return Cleaned(
        cleaned.bytes_read,
        cleaned.bytes_written,
        cleaned.records_read,
        cleaned.records_retained,
        cleaned.records_invalid,
        cleaned.base_timestamp,
        cleaned.max_timestamp,
        cleaned.stop,
        bool(cleaned.has_horizon),
        bool(cleaned.is_unchanged),
    )
