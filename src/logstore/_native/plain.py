"""Whether a segment is what its recovery would make of it: one call for a segment."""

from __future__ import annotations

from typing import Any

from logstore._native._core import ffi, lib
from logstore._native.indexes import IndexState
from logstore._native.io import NativeFiles, encode_path
from logstore._native.kernels import address_of

ENTRIES_MAX = 4096


class PlainSegments:
    """
    Looks at one segment after the other.

    **Thread rule**: one thread at a time.

    Args:
        files: The door to the file system.
        buffer: Takes a ``.log`` file; larger ones are not looked at.
    """

    __slots__ = ("_buffer", "_entries", "_files", "_segment", "_size_max")

    def __init__(self, files: NativeFiles, buffer: memoryview) -> None:
        self._files = files
        self._size_max = len(buffer)
        self._buffer = ffi.from_buffer(buffer)
        self._entries = bytearray(ENTRIES_MAX * 20)
        self._segment: Any = ffi.new("struct ls_plain_segment *")

    def next_offset(
        self,
        path: str,
        *,
        size_bytes: int,
        leader_epoch: int,
        index: IndexState,
    ) -> int | None:
        """
        Return where a segment ends, if it is plain and has the indexes that it should have.

        Plain are whole v2 batches with right CRCs and rising offsets, of no producer, and of no
        leader epoch above ``leader_epoch``.

        Args:
            path: Of its files, without the suffixes.
            size_bytes: Size of the ``.log`` file.
            leader_epoch: The latest that is known, -1 if none is.
            index: Of an empty segment; afterwards as the batches leave it.

        Returns:
            None: something is to be done, or a file cannot be read. ``index`` is of no use then.
        """
        if size_bytes > self._size_max:
            return None
        segment = self._segment
        segment.index = index.struct[0]
        segment.size_bytes = size_bytes
        segment.leader_epoch = leader_epoch
        entries = address_of(self._entries)
        stem = encode_path(path)
        is_plain = lib.ls_is_plain_segment(
            self._files.io,
            stem + b".log",
            stem + b".index",
            stem + b".timeindex",
            int(ffi.cast("uintptr_t", self._buffer)),
            entries,
            entries + ENTRIES_MAX * 8,
            ENTRIES_MAX,
            segment,
        )
        if not is_plain:
            return None
        index.struct[0] = segment.index
        return int(segment.next_offset)
