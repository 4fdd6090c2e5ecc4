"""
The truncations of a log: what tells a reader that its bytes may be in the log no more.

A reader takes the count before it reads, and compares after: it is odd while a truncation is under
way, and two higher after each. Offsets below the lowest target since then are as they were.

Source: DESIGN.md D6.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from logstore.live_offsets import LiveOffsets

NOTHING_GONE: Final = 2**63 - 1
TARGETS_MAX: Final = 64


class Truncations:
    """
    The truncations of one log since it was opened.

    Attributes:
        count: Two for each; odd while one is under way.
        live: Where other processes see them, too.

    **Thread rule**: changes under the log's lock; looking from any thread.
    """

    __slots__ = ("_targets", "count", "live")

    def __init__(self) -> None:
        self.count = 0
        self.live: LiveOffsets | None = None
        self._targets: deque[tuple[int, int]] = deque(maxlen=TARGETS_MAX)

    def under_way(self, target_offset: int) -> UnderWay:
        """Return a context in which everything from an offset on goes."""
        return UnderWay(self, target_offset)

    @contextlib.contextmanager
    def replacing(self) -> Iterator[None]:
        """
        Tell other processes that sealed segments are being replaced: they open the files anew.

        Readers here hold what they read of the old ones, and go over when they open the next.
        """
        live = self.live
        if live is not None:
            live.replacing()
        try:
            yield
        finally:
            if live is not None:
                live.truncated()

    def begin(self, target_offset: int) -> None:
        """Say, before anything changes, that everything from an offset on goes."""
        assert self.count % 2 == 0
        self._targets.append((self.count // 2, target_offset))
        self.count += 1
        if self.live is not None:
            self.live.truncating(target_offset)

    def end(self) -> None:
        """Say that it is gone."""
        assert self.count % 2 == 1
        self.count += 1
        if self.live is not None:
            self.live.truncated()

    def note(self, target_offset: int) -> None:
        """Learn of one that another process has made; NOTHING_GONE: other files hold the same."""
        self._targets.append((self.count // 2, target_offset))
        self.count += 2

    def lowest_since(self, count: int) -> int | None:
        """Return the lowest target since a count, None if there was none, 0: not known."""
        first = count // 2
        if (self.count + 1) // 2 == first:
            return None
        targets = list(self._targets)  # Perhaps with one that begins at this moment.
        if targets[0][0] > first:
            return 0
        return min(target for number, target in targets if number >= first)


class UnderWay:
    """What :meth:`Truncations.under_way` returns; in a truncation it does nothing more."""

    __slots__ = ("_is_outermost", "_target_offset", "_truncations")

    def __init__(self, truncations: Truncations, target_offset: int) -> None:
        self._truncations = truncations
        self._target_offset = target_offset
        self._is_outermost = False

    def __enter__(self) -> None:
        if self._truncations.count % 2 == 0:
            self._is_outermost = True
            self._truncations.begin(self._target_offset)

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if self._is_outermost:
            self._truncations.end()
