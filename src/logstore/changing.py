"""
What whoever changes a partition holds meanwhile: its lock, and the writer for itself.

Source: Kafka ``UnifiedLog``, whose changes are made under one lock.
"""

from __future__ import annotations

from typing import Any


class Changing:
    """
    What ``Partition.changing`` returns. Not a generator: it is on every append's way.

    Args:
        log: The ``Partition``.
    """

    __slots__ = ("_log",)

    def __init__(self, log: Any) -> None:
        self._log = log

    def __enter__(self) -> None:
        log = self._log
        log._lock.acquire()
        try:
            log.check_writable()
            log._writer.enter_exclusive()
        except BaseException:
            log._lock.release()
            raise
        log._depth += 1

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        log = self._log
        log._depth -= 1
        is_outermost = log._depth == 0
        try:
            log._writer.leave_exclusive()
        finally:
            log._lock.release()
        if is_outermost and log._listeners:
            log._tell_listeners()
