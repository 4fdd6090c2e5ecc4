"""
Aborted transactions of a segment that are not in its ``.txnindex`` file, because there was none.

They are found when they are first asked for, by whoever can read the log; see ``aborted_finder``.
"""

from __future__ import annotations

from typing import Any, Protocol

from logstore.index import AbortedTxn, TxnIndexSearchResult


class Finder(Protocol):
    """Who looks into the log."""

    def find(self, segment: Any, end_offset: int) -> list[AbortedTxn]:
        """Return the transactions whose abort marker is in a segment, below ``end_offset``."""
        ...


class UnindexedAborted:
    """
    The aborted transactions of one segment below an offset; above it the index has them.

    **Thread rule**: any thread; two at once may both look into the log.
    """

    __slots__ = ("_end_offset", "_finder", "_found")

    def __init__(self, finder: Finder, end_offset: int) -> None:
        self._finder = finder
        self._end_offset = end_offset
        self._found: list[AbortedTxn] | None = None

    def collect(
        self,
        segment: Any,
        fetch_offset: int,
        upper_bound_offset: int,
        indexed: TxnIndexSearchResult,
    ) -> TxnIndexSearchResult:
        """Return what the index told of a fetch, with what it does not know."""
        found = self._found
        if found is None:
            found = self._found = self._finder.find(segment, self._end_offset)
        if not found:
            return indexed
        aborted = [
            txn
            for txn in found
            if txn.last_offset >= fetch_offset and txn.first_offset < upper_bound_offset
        ]
        is_complete = any(txn.last_stable_offset >= upper_bound_offset for txn in found)
        return TxnIndexSearchResult(
            [*aborted, *indexed.aborted_transactions], indexed.is_complete or is_complete
        )

    def truncate_to(self, offset: int) -> None:
        """Forget what was truncated."""
        self._end_offset = min(self._end_offset, offset)
        if self._found is not None:
            self._found = [txn for txn in self._found if txn.last_offset < offset]
