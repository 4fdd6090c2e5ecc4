"""The schedulers."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
from patience import PATIENCE_SECONDS

from logstore.clock import SYSTEM_CLOCK, ManualClock
from logstore.errors import ForkedError
from logstore.scheduler import ManualScheduler, Scheduler, ThreadScheduler


@pytest.fixture(name="threaded")
def _threaded():
    scheduler = ThreadScheduler(SYSTEM_CLOCK)
    yield scheduler
    scheduler.shutdown()


class TestThreadScheduler:
    def test_starts_no_thread_without_work(self, threaded):
        """A log that schedules nothing costs no thread."""
        before = threading.active_count()
        threaded.drain()
        assert isinstance(threaded, Scheduler)
        assert before >= threading.active_count()  # Other tests' threads may end.

    def test_runs_tasks_in_order_of_their_due_time(self):
        """Drain waits for what is due; equal times run in the order given."""
        clock = ManualClock()  # Else the machine may stand still between two of the calls.
        threaded = ThreadScheduler(clock)
        ran = []
        gate = threading.Event()
        threaded.schedule("gate", gate.wait)
        threaded.schedule("b", lambda: ran.append("b"), delay_ms=2)
        threaded.schedule("a", lambda: ran.append("a"), delay_ms=1)
        threaded.schedule("c", lambda: ran.append("c"), delay_ms=2)
        threaded.schedule("now", lambda: ran.append("now"))
        clock.advance(3)
        gate.set()
        threaded.drain()
        assert ["now", "a", "b", "c"] == ran
        threaded.shutdown()

    def test_repeats_a_periodic_task_until_cancelled(self, threaded):
        """A period runs again and again; cancel ends it, from within too."""
        third = threading.Event()
        count = 0

        def tick():
            nonlocal count
            count += 1
            if count == 3:
                task.cancel()
                third.set()

        task = threaded.schedule("tick", tick, period_ms=1)
        assert third.wait(PATIENCE_SECONDS)
        threaded.drain()
        assert count == 3
        assert threaded.pending() == []

    def test_drain_raises_what_a_task_raised(self, threaded):
        """An error ends neither the thread nor other tasks, and is raised once."""
        ran = []
        threaded.schedule("bad", lambda: 1 // 0)
        threaded.schedule("good", lambda: ran.append(1))
        with pytest.raises(ZeroDivisionError):
            threaded.drain()
        threaded.drain()
        assert ran == [1]

    def test_drain_does_not_wait_for_later_tasks(self, threaded):
        """A delayed task is pending, not due."""
        threaded.schedule("later", lambda: None, delay_ms=3_600_000)
        threaded.drain()
        assert threaded.pending() == ["later"]

    def test_drain_gives_up(self, threaded):
        """A task that never ends is reported, not waited for."""
        gate = threading.Event()
        threaded.schedule("stuck", gate.wait)
        with pytest.raises(TimeoutError, match="pending"):
            threaded.drain(timeout_seconds=0.01)
        gate.set()

    def test_shutdown_drops_tasks_and_ignores_new_ones(self, threaded):
        """After shutdown nothing runs; a second shutdown does nothing."""
        threaded.schedule("later", lambda: None, delay_ms=3_600_000)
        threaded.shutdown()
        threaded.shutdown()
        assert threaded.schedule("late", lambda: None).is_cancelled
        assert threaded.pending() == []

    def test_task_may_shut_down_its_scheduler(self, threaded):
        """Waiting for itself would never end."""
        threaded.schedule("end", threaded.shutdown)
        threaded._thread.join(PATIENCE_SECONDS)
        assert not threaded._thread.is_alive()

    def test_refuses_a_forked_child(self, threaded, monkeypatch):
        """The child has no thread to run it; silence would lose the task."""
        monkeypatch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(ForkedError):
            threaded.schedule("x", lambda: None)
        monkeypatch.undo()


class TestManualScheduler:
    def test_runs_what_falls_due_on_the_way(self):
        """The clock stands at each task's due time while it runs, as in the oracle."""
        clock = ManualClock(0)
        scheduler = ManualScheduler(clock)
        seen = []
        scheduler.schedule("b", lambda: seen.append(clock.milliseconds()), 20)
        scheduler.schedule("a", lambda: seen.append(clock.milliseconds()), 10)
        scheduler.schedule("c", lambda: seen.append(clock.milliseconds()), 31)
        assert scheduler.run_due() == []
        assert ["a", "b"] == scheduler.advance_to(30)
        assert [10, 20] == seen
        assert clock.milliseconds() == 30
        assert ["c"] == scheduler.pending()

    def test_periodic_and_nested_tasks(self):
        """A task may schedule another that is due in the same round."""
        clock = ManualClock(0)
        scheduler = ManualScheduler(clock)
        scheduler.schedule("p", lambda: scheduler.schedule("n", lambda: None), 10, period_ms=10)
        assert ["p", "n", "p", "n"] == scheduler.advance_to(25)

    def test_reports_failures(self):
        """A failing task is named with its error and stops nothing."""
        scheduler = ManualScheduler(ManualClock(0))
        scheduler.schedule("bad", lambda: 1 // 0)
        scheduler.schedule("good", lambda: None)
        assert ["bad failed: integer division or modulo by zero", "good"] == scheduler.run_due()
        assert isinstance(scheduler.errors[0], ZeroDivisionError)

    def test_log_scheduler_drops_only_its_own(self):
        """Two logs share a queue; closing one leaves the other's tasks."""
        scheduler = ManualScheduler(ManualClock(0))
        one, two = scheduler.for_log(), scheduler.for_log()
        one.schedule("one", lambda: None)
        task = two.schedule("two", lambda: None)
        two.schedule("cancelled", lambda: None).cancel()
        one.shutdown()
        assert [] == one.pending()
        assert ["two"] == two.pending()
        assert ["two"] == scheduler.run_due()
        assert not task.is_cancelled


def test_shutdown_while_the_interpreter_ends():
    """A thread that ended with the lock is not waited for: a log dropped at exit closes."""
    code = (
        "import logstore.scheduler as s, logstore.clock as c\n"
        "class Holder:\n"
        "    def __del__(self):\n"
        "        self.scheduler.shutdown(wait=False)\n"
        "holder = Holder()\n"
        "holder.scheduler = s.ThreadScheduler(c.SYSTEM_CLOCK)\n"
        "import threading\n"
        "holder.scheduler._changed = threading.Condition(threading.Lock())\n"
        "holder.scheduler._changed.acquire()\n"  # As a thread has that is no more.
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_SECONDS)
