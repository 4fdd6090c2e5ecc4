"""
A progress bar on standard error for long work at a terminal, nothing in a pipe.

``rich`` draws it when it is installed (extra ``cli``); a plain line does otherwise.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

_REDRAW_SECONDS = 0.2


class Progress(Protocol):
    """Told how much more of the work is done."""

    def advance(self, amount: int) -> None:
        """Add ``amount`` to what is done."""


class _Silent:
    def advance(self, amount: int) -> None:
        del amount


class _Line:
    """One line that is rewritten in place."""

    def __init__(self, title: str, total: int) -> None:
        self._title = title
        self._total = total
        self._done = 0
        self._drawn_at = 0.0

    def advance(self, amount: int) -> None:
        self._done += amount
        now = time.monotonic()
        if now - self._drawn_at >= _REDRAW_SECONDS:
            self._drawn_at = now
            share = self._done / self._total if self._total else 1.0
            print(f"\r{self._title} {share:4.0%}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._drawn_at:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@contextmanager
def progress(title: str, total: int) -> Iterator[Progress]:
    """
    Show a bar while the block runs.

    Args:
        title: What is being done.
        total: How much there is to do, in the unit of :meth:`Progress.advance`.
    """
    if not sys.stderr.isatty():
        yield _Silent()
        return
    try:
        from rich.console import Console
        from rich.progress import Progress as RichProgress
    except ImportError:
        line = _Line(title, total)
        try:
            yield line
        finally:
            line.close()
        return
    with RichProgress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)

        class _Rich:
            def advance(self, amount: int) -> None:
                bar.advance(task, amount)

        yield _Rich()
