"""
What a test of a program that uses logstore needs.

The pytest plugin (``pytest_logstore``, found by its entry point) gives this as fixtures:
``logstore_log``, ``logstore_store``, ``logstore_clock``, ``assert_records``.
With another runner use it directly::

    clock = ManualClock()
    with open_log(tmp_path / "orders-0", clock=clock) as log:
        log.append(b"value", key=b"k")
        assert_records(log, [{"key": b"k", "value": b"value"}])
"""

from logstore.clock import ManualClock
from logstore.opening import open_log
from logstore.scheduler import ManualScheduler
from logstore.store import open_log_store
from logstore.testing.records import assert_records

__all__ = ["ManualClock", "ManualScheduler", "assert_records", "open_log", "open_log_store"]
