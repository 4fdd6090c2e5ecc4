"""One call for each of several things, some at a time: where calls wait, or leave the GIL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


def map_in_threads(
    call: Callable[[ItemT], ResultT], items: Sequence[ItemT], threads: int
) -> list[ResultT]:
    """
    Return what a call gives for each item, in their order.

    Args:
        call: Any number of threads may be in it.
        items: What to call it with.
        threads: As many calls at the same time; for fewer than two of these, or of items, one
            after the other in the caller's thread.

    Raises:
        BaseException: Of the first item whose call failed. No call goes on; those for items behind
            it may not have begun.
    """
    threads = min(threads, len(items))
    if threads < 2:
        return [call(item) for item in items]
    with ThreadPoolExecutor(threads, thread_name_prefix="logstore") as pool:
        return list(pool.map(call, items))
