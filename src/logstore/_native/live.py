"""
A page of live offsets, typed: what a log's writer shares with readers in other processes.

Rules and format are in ``live_offsets.py``; here each native function has a method.
"""

from __future__ import annotations

import errno
import mmap
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from logstore._native._core import ffi, lib
from logstore._native.io import Mapping, check
from logstore._native.kernels import address_of
from logstore._native.objects import objects

LIVE_BYTES: Final = lib.LS_LIVE_BYTES
LIVE_HEADER_BYTES: Final = lib.LS_LIVE_HEADER_BYTES
LIVE_WAIT_MAX: Final = lib.LS_LIVE_WAIT_MAX
WRITER_SLOT: Final = lib.LS_LIVE_WRITER_SLOT
READERS_SLOT: Final = lib.LS_LIVE_READERS_SLOT

LIVE_TRUNCATIONS_AT: Final = lib.LS_LIVE_TRUNCATIONS_AT
_END_AT: Final = lib.LS_LIVE_END_AT
_OFFSETS: Final = struct.Struct("=15q")
assert _OFFSETS.size == ffi.sizeof("struct ls_live_offsets")
_NANOSECONDS: Final = 1_000_000_000

_load = objects.load
_change = lib.ls_live_change
live_is_at = objects.live_is_at

if TYPE_CHECKING:
    from logstore._native.writer import Writer


class PageOffsets(NamedTuple):
    """
    What a page of live offsets says, all of one moment.

    Attributes:
        change_count: Moves with everything but the log end.
        writer_epoch: The number of writers there have been.
        is_open: The writer has not closed the log.
        log_end_offset: What the next record gets.
        active_base_offset: Of the segment that is written.
        size_bytes: Of that segment; everything below the log end lies within it.
        offset_entry_count: Entries of its offset index.
        time_entry_count: Entries of its time index.
        log_start_offset: The first offset that may be read.
        high_watermark: -1: the log end.
        first_unstable_offset: -1: none.
        recovery_point: Below it everything is on the device.
        truncation_count: Two for each truncation there was: odd while one is under way.
        writer_pid: The writer's process.
        pid_namespace: In which that is its number; 0: not known.
    """

    change_count: int
    writer_epoch: int
    is_open: int
    log_end_offset: int
    active_base_offset: int
    size_bytes: int
    offset_entry_count: int
    time_entry_count: int
    log_start_offset: int
    high_watermark: int
    first_unstable_offset: int
    recovery_point: int
    truncation_count: int
    writer_pid: int
    pid_namespace: int

    @property
    def history(self) -> tuple[int, int]:
        """What changes when files may be others of the same name."""
        return self.writer_epoch, self.truncation_count

    @property
    def place(self) -> tuple[int, int, int, int]:
        """What changes when there are other segments."""
        return (
            self.writer_epoch,
            self.truncation_count,
            self.active_base_offset,
            self.log_start_offset,
        )


class LivePage:
    """
    A mapped page of live offsets.

    **Lifetime**: the mapping lives as long as this object.

    **Thread rule**: the methods of the writer under the log's lock; all others from any thread.
    """

    __slots__ = ("_address", "_end_address", "_memory")

    def __init__(self, mapping: Mapping) -> None:
        assert len(mapping) >= LIVE_BYTES
        self._set(mapping.view, mapping.address)

    def _set(self, memory: memoryview, address: int) -> None:
        self._memory = memory  # It keeps what is behind it.
        self._address = address
        self._end_address = address + _END_AT

    @classmethod
    def private(cls) -> LivePage:
        """Return a page of this process alone: to wait on, and to be woken by a poke."""
        page = cls.__new__(cls)
        memory = memoryview(mmap.mmap(-1, LIVE_BYTES))
        page._set(memory, address_of(memory))
        return page

    @property
    def address(self) -> int:
        """Where it is mapped, for :func:`live_is_at`; valid while the caller holds this object."""
        return self._address

    @property
    def header(self) -> bytes:
        """The first bytes, of which the native core knows only the size."""
        return bytes(self._memory[:LIVE_HEADER_BYTES])

    @property
    def truncations(self) -> bytes:
        """The end of the page, from the truncation count on, for its writer."""
        return bytes(self._memory[LIVE_TRUNCATIONS_AT:LIVE_BYTES])

    # -- the writer --------------------------------------------------------------------------------

    def open(self, header: bytes, offsets: PageOffsets) -> None:
        """Take the page over and show these offsets."""
        assert len(header) == LIVE_HEADER_BYTES
        lib.ls_live_open(self._address, header, [offsets])

    def close(self) -> None:
        """Say that the writer has closed the log."""
        lib.ls_live_close(self._address)

    def bind(self, writer: Writer) -> None:
        """Let a writer publish here, too; :meth:`unbind` before this object goes."""
        handle = ffi.cast("ls_writer *", writer.address)
        check(lib.ls_writer_set_live(handle, self._address), "publish live offsets")

    @staticmethod
    def unbind(writer: Writer) -> None:
        """Let a writer publish here no more."""
        lib.ls_writer_set_live(ffi.cast("ls_writer *", writer.address), 0)

    def set_marks(self, offsets: PageOffsets) -> None:
        """Show log start, high watermark, first unstable offset and recovery point."""
        lib.ls_live_set_marks(self._address, [offsets])

    def place(self, active_base_offset: int, size_bytes: int) -> None:
        """Show that another segment is active; nothing is known of its indexes."""
        lib.ls_live_place(self._address, active_base_offset, size_bytes)

    def truncating(self, target_offset: int) -> None:
        """Say, before files change, that everything from an offset on goes."""
        lib.ls_live_truncating(self._address, target_offset)

    def replacing(self) -> None:
        """Say, before files change, that sealed segments get other ones; nothing goes."""
        lib.ls_live_truncating(self._address, lib.LS_LIVE_REPLACED)

    def truncated(self) -> None:
        """Say that it is gone, or replaced."""
        lib.ls_live_truncated(self._address)

    # -- readers -----------------------------------------------------------------------------------

    @property
    def log_end_offset(self) -> int:
        """What the next record gets; may be read alone at any time."""
        end: int = _load(self._end_address)
        return end

    @property
    def change_count(self) -> int:
        """The change count; it is read after everything that was read before."""
        return _change(self._address)  # type: ignore[no-any-return]

    def load(self) -> PageOffsets | None:
        """Return all offsets of one moment; None if they are being changed, or never will be."""
        offsets = ffi.new("struct ls_live_offsets *")
        if lib.ls_live_load(self._address, offsets) < 0:
            return None
        return PageOffsets._make(_OFFSETS.unpack(ffi.buffer(offsets)))

    def truncated_to(self, since: int) -> int | None:
        """
        Return the lowest offset truncated to since a truncation count, None if there was none.

        -1 if there were too many to know.
        """
        lowest: int = lib.ls_live_truncated_to(self._address, since)
        return None if lowest == 2**63 - 1 else lowest

    def replaced_since(self, since: int) -> bool:
        """Whether segments were replaced since a truncation count, as far as that is known."""
        return bool(lib.ls_live_replaced(self._address, since))

    # -- sleeping ----------------------------------------------------------------------------------

    def prepare(self) -> int:
        """Announce a wait; look for news after this, and :meth:`wait` with the result."""
        return lib.ls_live_prepare(self._address)  # type: ignore[no-any-return]

    def wait(self, word: int, seconds: float) -> bool:
        """
        Sleep until something moves, at most ``seconds``; return whether waiting is possible here.

        A signal ends it, too. Releases the GIL.
        """
        rc = lib.ls_live_wait(self._address, word, int(seconds * _NANOSECONDS))
        return bool(rc != -errno.ENOSYS)

    def spin(self, end: int, change_count: int, seconds: float) -> bool:
        """Return True as soon as the log end or the change count differs, False after a time."""
        nanoseconds = int(seconds * _NANOSECONDS)
        return bool(lib.ls_live_spin(self._address, end, change_count, nanoseconds))

    def poke(self) -> None:
        """Wake everybody who waits, in all processes."""
        lib.ls_live_poke(self._address)


def wait_any(pages: Sequence[LivePage], words: Sequence[int], seconds: float) -> bool:
    """
    Sleep until one of several pages moves, at most ``seconds``; False if that is not possible here.

    Each was announced with :meth:`LivePage.prepare`; at most LIVE_WAIT_MAX. Releases the GIL.
    """
    addresses = [page._address for page in pages]
    rc = lib.ls_live_wait_any(addresses, words, len(addresses), int(seconds * _NANOSECONDS))
    return bool(rc != -errno.ENOSYS)


def lock_slot(fd: int, slot: int) -> bool:
    """Take a byte lock of the open file; False if somebody has it. It ends with the file."""
    rc = lib.ls_live_lock(fd, slot)
    if rc == -errno.EAGAIN:
        return False
    check(rc, "lock")
    return True


def is_slot_locked(fd: int, slot: int) -> bool:
    """Return whether another open file holds a byte lock; a read-only descriptor will do."""
    return bool(check(lib.ls_live_is_locked(fd, slot), "look for a lock") == 1)
