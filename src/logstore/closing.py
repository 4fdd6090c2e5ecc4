"""What a `with` block closes, and what becomes of the forgotten: given up with a warning."""

from __future__ import annotations

import contextlib
import warnings
from abc import abstractmethod
from typing import Self

from logstore.errors import LogStoreError


class Closing:
    """
    A log or a store, which is closed at the end of its ``with`` block.

    An error of the block is the one to see: an error of the closing after it is left out. What the
    collector meets open is abandoned as if the process had been killed, and recovered at the next
    open, for a flush may not wait for the disk there.
    """

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Flush, and give everything back."""

    @abstractmethod
    def abandon(self) -> None:
        """Give everything back, and write nothing."""

    @abstractmethod
    def check_open(self) -> None:
        """Raise if it was closed."""

    @abstractmethod
    def _leak(self) -> str | None:
        """Say what nobody closed, and how it should have been; None: nothing is lost by it."""

    @abstractmethod
    def _is_ended(self) -> bool:
        """Whether it was closed, was never opened, or is another process's."""

    def __enter__(self) -> Self:
        self.check_open()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is None:
            self.close()
            return
        with contextlib.suppress(LogStoreError):  # The first error is the one to see.
            self.close()

    def __del__(self) -> None:
        if self._is_ended():
            return
        with contextlib.suppress(Exception):
            self.abandon()
        leak = self._leak()
        if leak is not None:
            warnings.warn(leak, ResourceWarning, source=self, stacklevel=2)
