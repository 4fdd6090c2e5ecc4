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

The files of a log that another process may be writing are all read, as they may be cut. What is
known of such a log holds for a :class:`Moment`: C compares the change count of its live offsets
before and after a read, and who writes is looked at in Python every 0.1 s.

Batches that are compressed, or a transaction's, are taken apart by Python. The last one is kept, as
its neighbours are asked for next, as a rule.

Places hold mappings and descriptors. Whoever cuts or deletes segments drops this object first
(``Partition.forget_places``), under the log's lock, under which it is also made: no place outlives
the bytes that it stands for.

Source: DESIGN.md D5, D6, D12.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from logstore._native import RecordGetter, ffi
from logstore.errors import ClosedError, InvalidRecordError, StorageError
from logstore.files import HeldLease

if TYPE_CHECKING:
    from collections.abc import Callable

    from logstore._native import LivePage
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


class Moment(NamedTuple):
    """
    Until when a look at another process's log holds.

    Attributes:
        page: What its writer shows, or the next one will.
        change_count: Of the page, at the look: the look holds no longer than that.
        seconds: How long it holds from now on, at most.
        truncations: ``log.truncations`` at the look.
    """

    page: LivePage
    change_count: int
    seconds: float
    truncations: int


class MomentaryLog(Protocol):
    """What the places need of a log that another process may write."""

    def moment(self) -> Moment | None:
        """Return until when the last look holds; None: nobody can tell."""
        ...


class RecordPlaces:
    """
    The places of one log that its ``getter`` knows.

    **Thread rule**: any thread may call anything.

    Args:
        local_log: The log's segments.
        watermarks: The log's.
        view: What another process's log is seen through; None: this process writes it.
        bind: Has ``log[offset]`` ask a getter first, from now on.
    """

    __slots__ = (
        "_bind",
        "_entry_count",
        "_local_log",
        "_marks",
        "_range",
        "_section",
        "_segments",
        "_truncations",
        "_view",
        "_watermarks",
        "getter",
    )

    def __init__(
        self,
        local_log: LocalLog,
        watermarks: Watermarks,
        *,
        view: MomentaryLog | None,
        bind: Callable[[RecordGetter], None],
    ) -> None:
        self._local_log = local_log
        self._watermarks = watermarks
        self._view = view
        self._bind = bind
        self._section: Section | None = None
        self._segments: Segments | None = None  # Those that the getter's places belong to.
        self._truncations = -1  # When those were learnt.
        self._entry_count = 0  # Of the active segment's index, as far as the getter knows.
        self._range: tuple[int, int] | None = None  # As the getter knows it.
        self._marks: object = None
        self.getter = self._new_getter()
        if view is None:
            bind(self.getter)

    def _new_getter(self) -> RecordGetter:
        writer, most = self._local_log.writer, self._local_log.config.mapped_segments_max
        if self._view is None:
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
        view = self._view
        if view is not None:
            if not self._is_current(truncations):
                return None
            self._let_c_look(view, truncations)
        section = self._section
        if section is not None and section.covers(offset):
            with contextlib.suppress(InvalidRecordError):
                for record in section.records(offset, offset + 1, 1):
                    return record
            return None
        if view is None:
            return None  # C was asked before.
        marks = self._watermarks.committed_range()[2]  # C asks whether they are still the same.
        if self._range != (first, end) or self._marks is not marks:
            self.getter.set_range(first, end, marks)
            self._range, self._marks = (first, end), marks
        return self.getter.get(offset)

    def _let_c_look(self, view: MomentaryLog, truncations: int) -> None:
        """Have C answer by itself as long as the last look at the log holds."""
        moment = view.moment()
        if moment is not None and moment.truncations == truncations:
            page = moment.page
            self.getter.set_moment(page, page.address, moment.change_count, moment.seconds)
            self._bind(self.getter)

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
        if self._view is None:
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
