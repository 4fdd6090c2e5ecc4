"""
Errors of background work: where they go when there is no caller to raise them to.

A :class:`Reports` keeps the last ones, logs each and tells who asked to be told. Actions that a
:class:`ReportingScheduler` runs end there with whatever they raise, so that nothing vanishes.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from logstore.clock import Clock
from logstore.errors import ClosedError
from logstore.scheduler import Action, Scheduler, Task

logger = logging.getLogger(__name__)

# What is kept for who looks later; each one is logged anyway.
REPORTS_MAX: Final = 1000


class Report(NamedTuple):
    """
    Something that went wrong in the background.

    Attributes:
        timestamp: When, in milliseconds since the epoch.
        what: What was being done, such as ``"load orders-0"``.
        error: What was raised.
    """

    timestamp: int
    what: str
    error: BaseException

    def __str__(self) -> str:
        return f"{self.what}: {self.error}"


Listener: TypeAlias = Callable[[Report], object]


class Reports:
    """
    The errors of one store's background work.

    Args:
        clock: What time it is.
        listener: Called with each report, in the thread that met the error.

    **Thread rule**: any thread.
    """

    def __init__(self, clock: Clock, listener: Listener | None = None) -> None:
        self._clock = clock
        self._listener = listener
        self.last: Final[deque[Report]] = deque(maxlen=REPORTS_MAX)

    def report(self, error: BaseException, what: str) -> None:
        """Keep an error, log it and tell the listener; this never raises an Exception."""
        _forget_locals(error)
        report = Report(self._clock.milliseconds(), what, error)
        self.last.append(report)
        logger.error("%s", report)
        if self._listener is None:
            return
        try:
            self._listener(report)
        except Exception:
            logger.exception("the listener for errors of background work failed")


def _forget_locals(error: BaseException | None) -> None:
    """Let an error that is kept keep no memory: see :func:`~logstore.errors.raise_first`."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


class ReportingScheduler:
    """
    Runs actions on another scheduler, and reports what they raise.

    But for ClosedError: what an action was for has gone.

    Its ``shutdown`` drops what was scheduled here; the scheduler below goes on, unless it is owned.

    Args:
        scheduler: Runs the actions.
        report: Told of errors: the error, and the task's name.
        is_owner: Whether ``shutdown`` also ends the scheduler below.

    **Thread rule**: any thread.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        report: Callable[[BaseException, str], object],
        *,
        is_owner: bool = False,
    ) -> None:
        self._scheduler = scheduler
        self._report = report
        self._is_owner = is_owner
        self._guard = threading.Lock()
        self._tasks: set[Task] = set()
        self._is_shut_down = False

    def schedule(self, name: str, action: Action, delay_ms: int = 0, period_ms: int = 0) -> Task:
        """Run ``action`` after ``delay_ms``, and then every ``period_ms`` if that is above 0."""
        holder: list[Task] = []

        def run() -> None:
            if self._is_shut_down:
                return
            if period_ms <= 0 and holder:
                with self._guard:
                    self._tasks.discard(holder[0])
            try:
                action()
            except ClosedError as error:
                # Of what was deleted or closed meanwhile, by somebody who knows.
                logger.debug("%s: %s", name, error)
            except Exception as error:  # noqa: BLE001 - it ends here, reported
                self._report(error, name)

        task = self._scheduler.schedule(name, run, delay_ms, period_ms)
        with self._guard:
            if self._is_shut_down:
                task.cancel()
                return task
            if len(self._tasks) > 2 * self._swept:
                self._tasks = {each for each in self._tasks if not each.is_cancelled}
                self._swept = max(1024, len(self._tasks))
            self._tasks.add(task)
        holder.append(task)
        return task

    _swept = 1024  # Tasks when those that were cancelled were last dropped.

    def shutdown(self, wait: bool = True) -> None:
        """Drop every task; with ``wait``, return after a run under way has ended."""
        with self._guard:
            self._is_shut_down = True
            tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        if self._is_owner:
            self._scheduler.shutdown(wait)
