"""The clocks."""

from __future__ import annotations

import ctypes
import time

from logstore.clock import SYSTEM_CLOCK, Clock, ManualClock


class TestSystemClock:
    def test_is_the_wall_clock(self):
        """Milliseconds lie between two readings of the system's own time."""
        before = time.time_ns() // 1_000_000
        now = SYSTEM_CLOCK.milliseconds()
        assert before <= now <= time.time_ns() // 1_000_000
        assert SYSTEM_CLOCK.address == 0
        assert isinstance(SYSTEM_CLOCK, Clock)

    def test_sleeps(self):
        """Sleep returns when its time has gone by."""
        start = SYSTEM_CLOCK.monotonic()
        SYSTEM_CLOCK.sleep(0.002)
        assert SYSTEM_CLOCK.monotonic() - start >= 0.002


class TestManualClock:
    def test_moves_only_when_told(self):
        """set, advance and sleep move it, nothing else does."""
        clock = ManualClock(1000)
        assert isinstance(clock, Clock)
        assert clock.milliseconds() == 1000
        clock.advance(5)
        assert clock.milliseconds() == 1005
        clock.sleep(0.0101)
        assert clock.milliseconds() == 1016  # Never less than asked for.
        assert clock.monotonic() == 1.016
        clock.set(7)
        assert clock.milliseconds() == 7

    def test_native_code_reads_the_same_cell(self):
        """The address stays, and holds what Python sees, negative times included."""
        clock = ManualClock(1)
        cell = ctypes.c_int64.from_address(clock.address)
        for now_ms in (0, -1, 2**62):
            clock.set(now_ms)
            assert now_ms == cell.value
        clock.advance(3)
        assert clock.milliseconds() == cell.value
