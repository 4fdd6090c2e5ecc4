"""
Where ``log[offset]`` may look without a line of Python, and what may be read there.

A :class:`RecordPlaces` tells a ``RecordGetter`` (in C) of places of the log, one after the other,
as the general way finds records there:

=================  ==================================  ============================================
place              how it is looked into               until
=================  ==================================  ============================================
sealed segment     mapped; at most                     it was used longest ago of all, or it goes
                   mapped.segments.max of them
active segment     read, 16 KiB or a batch             it is sealed
=================  ==================================  ============================================

What may be read follows from the watermarks' marks, which are replaced as a whole whenever one
moves, and from the log end that the writer has published: C looks at both in each call.

A log that another process may be writing is looked at before and after each get, in Python: its
files may be cut, so they are all read, and what a truncation has touched meanwhile is not answered.

Batches that are compressed, or a transaction's, are taken apart by Python. The last one is kept, as
its neighbours are asked for next, as a rule.

Places hold mappings and descriptors. Whoever cuts or deletes segments drops this object first
(``Partition.forget_places``), under the log's lock, under which it is also made: no place outlives
the bytes that it stands for.

Source: DESIGN.md D5, D6, D12.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from logstore._native import RecordGetter, ffi
from logstore.errors import ClosedError, InvalidRecordError, StorageError
from logstore.files import HeldLease

if TYPE_CHECKING:
    from logstore.index import OffsetIndex
    from logstore.local_log import LocalLog
    from logstore.reader import Section
    from logstore.record import Record
    from logstore.segment import LogSegment
    from logstore.segments import Segments
    from logstore.watermarks import Watermarks

OFFSET_MAX: Final = 2**63 - 1
NO_DESCRIPTOR: Final = -1
VIEWED_FILES_MIN: Final = 4


class RecordPlaces:
    """
    The places of one log that its ``getter`` knows.

    **Thread rule**: any thread may call anything.
    """

    __slots__ = (
        "_entry_count",
        "_is_view",
        "_local_log",
        "_marks",
        "_range",
        "_section",
        "_segments",
        "_truncations",
        "_watermarks",
        "getter",
    )

    def __init__(self, local_log: LocalLog, watermarks: Watermarks, *, is_view: bool) -> None:
        self._local_log = local_log
        self._watermarks = watermarks
        self._is_view = is_view
        self._section: Section | None = None
        self._segments: Segments | None = None  # Those that the getter's places belong to.
        self._truncations = -1  # When those were learnt.
        self._entry_count = 0  # Of the active segment's index, as far as the getter knows.
        self._range: tuple[int, int] | None = None  # As the getter knows it.
        self._marks: object = None
        self.getter = self._new_getter()

    def _new_getter(self) -> RecordGetter:
        writer, most = self._local_log.writer, self._local_log.config.mapped_segments_max
        if not self._is_view:
            return RecordGetter(self._watermarks, writer, writer.published_address, most)
        # Where a log ends that somebody else writes is part of the range that it is told.
        end = ffi.new("int64_t *", OFFSET_MAX)
        address = int(ffi.cast("uintptr_t", end))
        return RecordGetter(self._watermarks, end, address, 0, max(most, VIEWED_FILES_MIN))

    def get(self, offset: int, truncations: int, first: int, end: int) -> Record | None:
        """
        Return the record at an offset in ``[first, end)``, None if it is to be got in general.

        Args:
            offset: What is wanted.
            truncations: Of the log, now: if they are the same afterwards, the answer counts.
            first: The first offset that a committed reader may read.
            end: Where it ends, exclusive.
        """
        if self._is_view and not self._is_current(truncations):
            return None
        section = self._section
        if section is not None and section.covers(offset):
            with contextlib.suppress(InvalidRecordError):
                for record in section.records(offset, offset + 1, 1):
                    return record
            return None
        if not self._is_view:
            return None  # C was asked before.
        marks = self._watermarks.committed_range()[2]  # C asks whether they are still the same.
        if self._range != (first, end) or self._marks is not marks:
            self.getter.set_range(first, end, marks)
            self._range, self._marks = (first, end), marks
        return self.getter.get(offset)

    def _is_current(self, truncations: int) -> bool:
        """Whether what was learnt still holds; forget it if not."""
        segments = self._local_log.segments
        if segments is self._segments and truncations == self._truncations:
            return True
        self._section = self._range = None
        self.getter = self._new_getter()
        self._segments, self._truncations = segments, truncations
        return False

    def learn(self, offset: int, section: Section | None) -> None:
        """
        Let C answer for the neighbourhood of an offset, at which there is a record.

        ``section`` is the batch that has it, if C cannot take it apart. Nothing happens if the
        segment is going away, or the system refuses another mapping.
        """
        self._section = section
        segments = self._local_log.segments
        if not self._is_view:
            self.getter.set_range(*self._watermarks.committed_range())
            if segments is not self._segments:
                self.getter.retain(segments.first.base_offset, segments.active.base_offset)
                self._segments = segments
        elif segments is not self._segments:
            return
        segment = segments.floor(offset)
        if segment is None or section is not None:
            return
        with contextlib.suppress(ClosedError, StorageError):
            if segment is segments.active:
                self._add_active(segment, offset)
            elif not self.getter.covers(offset):
                following = segments.higher(segment.base_offset)
                assert following is not None
                self._add_sealed(segment, following.base_offset)

    def _add_active(self, segment: LogSegment, offset: int) -> None:
        index = _sure_index(segment)
        if self.getter.covers(offset) and self._entry_count == index.entry_count:
            return
        self._entry_count = index.entry_count
        self._add_file(segment, index, OFFSET_MAX)

    def _add_sealed(self, segment: LogSegment, end_offset: int) -> None:
        index = _sure_index(segment)
        if self._local_log.config.mapped_segments_max == 0 or not segment.may_be_mapped:
            self._add_file(segment, index, end_offset)
            return
        size_bytes = segment.size_bytes
        if size_bytes == 0:
            return
        mapping, view = segment.map_sealed(), index.finder()
        self.getter.add(
            (mapping, view),
            segment.base_offset,
            end_offset,
            mapping.address,
            size_bytes,
            view.address,
            view.count,
            0,
            NO_DESCRIPTOR,
        )

    def _add_file(self, segment: LogSegment, index: OffsetIndex, end_offset: int) -> None:
        view = index.finder()
        lease = HeldLease(segment.handle)
        self.getter.add(
            (lease, view),
            segment.base_offset,
            end_offset,
            0,
            0,
            view.address,
            view.count,
            int(ffi.cast("uintptr_t", segment.files.io)),
            lease.fd,
        )


def _sure_index(segment: LogSegment) -> OffsetIndex:
    """Return the offset index with all its entries, repaired if it had to be."""
    segment.take_index_entries()
    return segment.offset_index
