"""
The clock: time as an argument, so that a test owns it.

No module reads the wall clock or sleeps on its own (DESIGN.md D11); each takes a :class:`Clock`.

Source: Kafka ``org.apache.kafka.common.utils.Time`` and ``MockTime``.
"""

from __future__ import annotations

import time
from array import array
from typing import Protocol, runtime_checkable

INT64_MAX = 2**63 - 1


@runtime_checkable
class Clock(Protocol):
    """Wall time in milliseconds, a time that never goes back, and waiting."""

    @property
    def address(self) -> int:
        """Address of an int64 of milliseconds, for the native core; 0: the real time."""
        ...

    def milliseconds(self) -> int:
        """Milliseconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed moment, never decreasing."""
        ...

    def sleep(self, seconds: float) -> None:
        """Return when ``seconds`` have gone by on this clock."""
        ...


class SystemClock:
    """The machine's clock."""

    __slots__ = ()

    @property
    def address(self) -> int:
        """0: the native core asks the system."""
        return 0

    def milliseconds(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds since some fixed moment, never decreasing."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)

    def __repr__(self) -> str:
        return "SystemClock()"


class ManualClock:
    """
    A clock that moves only when it is told to; sleeping moves it.

    The milliseconds stand at a fixed address, where the native core reads them, for as long as the
    clock exists.
    """

    __slots__ = ("_cell",)

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._cell = array("q", [now_ms])

    @property
    def address(self) -> int:
        """Address of the int64 that holds the milliseconds."""
        return self._cell.buffer_info()[0]

    def milliseconds(self) -> int:
        """Milliseconds since the epoch."""
        return self._cell[0]

    def monotonic(self) -> float:
        """The same in seconds. It goes back if :meth:`set` does."""
        return self._cell[0] / 1000

    def sleep(self, seconds: float) -> None:
        """Move on by ``seconds``, at least to the next millisecond, without waiting."""
        self.advance(max(0, -int(-seconds * 1000 // 1)))

    def set(self, now_ms: int) -> None:
        """Make it ``now_ms``; earlier than before is possible, as on a real machine."""
        assert -INT64_MAX <= now_ms <= INT64_MAX
        self._cell[0] = now_ms

    def advance(self, ms: int) -> None:
        """Move on by ``ms`` milliseconds."""
        assert ms >= 0
        self.set(self._cell[0] + ms)

    def __repr__(self) -> str:
        return f"ManualClock({self._cell[0]})"


SYSTEM_CLOCK = SystemClock()
