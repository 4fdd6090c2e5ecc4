"""
A limit on how many bytes a second something does, averaged over short intervals.

Source: Kafka ``Throttler``; spec 7.6.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from logstore.clock import Clock

CHECK_INTERVAL_MS: Final = 300


class Throttler:
    """
    Makes whoever has done too much wait.

    **Thread rule**: any thread; all of them together keep to the rate.

    Args:
        desired_rate_per_second: The limit; infinite: none.
        clock: To measure and to wait with.
        check_interval_ms: How long an interval is at least.

    Source: Kafka ``Throttler``.
    """

    __slots__ = ("_check_interval_ms", "_clock", "_guard", "_observed", "_rate", "_started")

    def __init__(
        self,
        desired_rate_per_second: float,
        clock: Clock,
        check_interval_ms: int = CHECK_INTERVAL_MS,
    ) -> None:
        self._rate = desired_rate_per_second
        self._clock = clock
        self._check_interval_ms: Final = check_interval_ms
        self._guard = threading.Lock()
        self._started = clock.monotonic()
        self._observed = 0.0

    def update_desired_rate(self, desired_rate_per_second: float) -> None:
        """Set another limit, from now on."""
        with self._guard:
            self._rate = desired_rate_per_second

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit."""
        return not math.isinf(self._rate)

    def maybe_throttle(self, observed: float) -> None:
        """Count what was done, and wait if it was too much since the interval began."""
        if not self.is_limited:
            return
        with self._guard:
            self._observed += observed
            elapsed_ms = (self._clock.monotonic() - self._started) * 1000
            if elapsed_ms < self._check_interval_ms or self._observed <= 0:
                return
            rate_per_ms = self._rate / 1000
            if self._observed / elapsed_ms > rate_per_ms:
                wait_ms = round(self._observed / rate_per_ms - elapsed_ms)
                if wait_ms > 0:
                    self._clock.sleep(wait_ms / 1000)
            self._started = self._clock.monotonic()
            self._observed = 0.0
