"""
The scheduler: background work as an argument, so that a test decides when it runs.

Deleting renamed segments, flushing by time and expiring producers are tasks given to a
:class:`Scheduler` with a name, a delay and perhaps a period.

Source: Kafka ``org.apache.kafka.server.util.Scheduler``, ``KafkaScheduler``, ``MockScheduler``.
"""

from __future__ import annotations

import heapq
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from logstore.clock import Clock, ManualClock
from logstore.errors import ForkedError, raise_first

Action = Callable[[], object]

# Errors kept for drain(): enough to see what went wrong, bounded if nobody looks.
ERRORS_MAX = 16


class Task:
    """One scheduled action; :meth:`cancel` keeps it from running again."""

    __slots__ = ("_is_cancelled", "action", "due", "name", "owner", "period")

    def __init__(
        self, name: str, action: Action, due: float, period: float, owner: object = None
    ) -> None:
        self.name = name
        self.action = action
        self.due = due
        self.period = period
        self.owner = owner
        self._is_cancelled = False

    @property
    def is_cancelled(self) -> bool:
        """Whether it will not run again."""
        return self._is_cancelled

    def cancel(self) -> None:
        """Do not run it again. A run under way goes on; a second call does nothing."""
        self._is_cancelled = True
        self.action = _nothing  # What the action holds can go now.

    def __repr__(self) -> str:
        return f"<Task {self.name!r} due {self.due}{' cancelled' if self._is_cancelled else ''}>"


def _nothing() -> None:
    """What a cancelled task does."""


@runtime_checkable
class Scheduler(Protocol):
    """Runs actions later, once or periodically."""

    def schedule(self, name: str, action: Action, delay_ms: int = 0, period_ms: int = 0) -> Task:
        """Run ``action`` after ``delay_ms``, and then every ``period_ms`` if that is above 0."""
        ...

    def shutdown(self, wait: bool = True) -> None:
        """Drop every task; with ``wait``, return after a run under way has ended."""
        ...


class ThreadScheduler:
    """
    Runs tasks one after another in a daemon thread, which starts with the first task.

    Delays are measured by ``clock.monotonic()``. An error ends neither the thread nor a periodic
    task; it is kept and raised by :meth:`drain`. After :meth:`shutdown` a new task is ignored, as
    in Kafka.

    Thread rule: any thread may call any method. Only the process that made it may schedule.
    """

    def __init__(self, clock: Clock, name: str = "logstore-scheduler") -> None:
        self._clock = clock
        self._name = name
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._queue: list[tuple[float, int, Task]] = []
        self._sequence = itertools.count()
        self._thread: threading.Thread | None = None
        self._running: Task | None = None
        self._is_shut_down = False
        self.errors: list[Exception] = []

    def schedule(self, name: str, action: Action, delay_ms: int = 0, period_ms: int = 0) -> Task:
        """
        Run ``action`` after ``delay_ms``, and then every ``period_ms`` if that is above 0.

        Raises:
            ForkedError: This is a child of the process that made the scheduler.
        """
        if os.getpid() != self._pid:
            message = f"cannot schedule {name} in a forked child; make a scheduler in the child"
            raise ForkedError(message)
        due = self._clock.monotonic() + max(delay_ms, 0) / 1000
        task = Task(name, action, due, max(period_ms, 0) / 1000)
        with self._changed:
            if self._is_shut_down:
                task.cancel()
                return task
            heapq.heappush(self._queue, (due, next(self._sequence), task))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return task

    def pending(self) -> list[str]:
        """Names of the tasks that will run, sorted."""
        with self._changed:
            return sorted(task.name for _, _, task in self._queue if not task.is_cancelled)

    def drain(self, timeout_seconds: float = 60.0) -> None:
        """
        Wait until no task is due or running, then raise the first error that a task has met.

        Raises:
            TimeoutError: Tasks were still due after ``timeout_seconds``.
        """
        assert threading.current_thread() is not self._thread  # It would wait for itself.
        with self._changed:
            if not self._changed.wait_for(self._is_idle, timeout_seconds):
                message = f"tasks still due after {timeout_seconds} s; look at pending()"
                raise TimeoutError(message)
            errors, self.errors = self.errors, []
        if errors:
            raise_first(errors)

    def shutdown(self, wait: bool = True) -> None:
        """Drop every task; with ``wait``, return after a run under way has ended."""
        if sys.is_finalizing():
            return  # The thread ended where it was, perhaps with the lock.
        with self._changed:
            self._is_shut_down = True
            for _, _, task in self._queue:
                task.cancel()
            self._queue.clear()
            thread = self._thread
            self._changed.notify_all()
        if wait and thread not in (None, threading.current_thread()) and os.getpid() == self._pid:
            assert thread is not None
            thread.join()

    def _is_idle(self) -> bool:
        if self._running is not None:
            return False
        now = self._clock.monotonic()
        return not any(due <= now for due, _, task in self._queue if not task.is_cancelled)

    def _run(self) -> None:
        with self._changed:
            while not self._is_shut_down:
                if not self._queue:
                    self._changed.notify_all()
                    self._changed.wait()
                    continue
                due, _, task = self._queue[0]
                delay = due - self._clock.monotonic()
                if delay > 0 and not task.is_cancelled:
                    self._changed.notify_all()
                    # Bounded: threading refuses waits of many years.
                    self._changed.wait(min(delay, 3600.0))
                    continue
                heapq.heappop(self._queue)
                if not task.is_cancelled:
                    self._run_task(task)

    def _run_task(self, task: Task) -> None:
        """Run one task with the lock released around its action."""
        action = task.action
        self._running = task
        self._changed.release()
        try:
            action()
        except Exception as error:  # noqa: BLE001 - raised by drain()
            if len(self.errors) < ERRORS_MAX:
                self.errors.append(error)
        finally:
            self._changed.acquire()
            self._running = None
        if task.period > 0 and not task.is_cancelled and not self._is_shut_down:
            # At a fixed rate; rounds that were missed are not made up for.
            task.due = max(task.due + task.period, self._clock.monotonic())
            heapq.heappush(self._queue, (task.due, next(self._sequence), task))


class ManualScheduler:
    """
    Runs tasks when the test says so, in the order of their due time, on the caller's thread.

    With a :class:`ManualClock` the same calls always give the same run. :meth:`for_log` gives a
    second scheduler on the same queue, whose ``shutdown`` drops only its own tasks.
    """

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._queue: list[tuple[float, int, Task]] = []
        self._sequence = itertools.count()
        self.errors: list[Exception] = []

    def for_log(self) -> ManualScheduler:
        """A scheduler for one log, so that its tasks can be dropped together."""
        other = ManualScheduler(self._clock)
        other._queue = self._queue
        other._sequence = self._sequence
        other.errors = self.errors
        return other

    def schedule(self, name: str, action: Action, delay_ms: int = 0, period_ms: int = 0) -> Task:
        """Keep ``action`` for :meth:`run_due` and :meth:`advance_to`."""
        due = self._clock.milliseconds() + max(delay_ms, 0)
        task = Task(name, action, due, max(period_ms, 0), owner=self)
        heapq.heappush(self._queue, (due, next(self._sequence), task))
        return task

    def shutdown(self, wait: bool = True) -> None:  # noqa: ARG002 - nothing runs beside the caller
        """Drop the tasks that were scheduled here."""
        for _, _, task in self._queue:
            if task.owner is self:
                task.cancel()
        self._queue[:] = [item for item in self._queue if not item[2].is_cancelled]
        heapq.heapify(self._queue)

    def pending(self) -> list[str]:
        """Names of the tasks scheduled here that will run, sorted."""
        return sorted(
            task.name for _, _, task in self._queue if task.owner is self and not task.is_cancelled
        )

    def run_due(self) -> list[str]:
        """Run every task that is due now and return their names, as :meth:`advance_to`."""
        return self.advance_to(self._clock.milliseconds())

    def advance_to(self, now_ms: int) -> list[str]:
        """
        Move the clock to ``now_ms``, running on the way whatever falls due, of every log.

        Returns:
            The names of the tasks run; ``"name failed: error"`` for one that raised, whose error is
            in :attr:`errors` too.
        """
        ran: list[str] = []
        while self._queue and self._queue[0][0] <= now_ms:
            _, _, task = heapq.heappop(self._queue)
            if task.is_cancelled:
                continue
            self._clock.set(max(self._clock.milliseconds(), int(task.due)))
            try:
                task.action()
                ran.append(task.name)
            except Exception as error:  # noqa: BLE001 - reported in the result
                ran.append(f"{task.name} failed: {error}")
                self.errors.append(error)
            if task.period > 0 and not task.is_cancelled:
                task.due += task.period
                heapq.heappush(self._queue, (task.due, next(self._sequence), task))
        self._clock.set(now_ms)
        return ran


def weakly(log: Any, method: Callable[[Any], object]) -> Action:
    """Return an action that calls a log's method without keeping the log alive."""
    reference = weakref.ref(log)

    def call() -> None:
        found = reference()
        if found is not None and not found.is_closed:
            method(found)

    return call
