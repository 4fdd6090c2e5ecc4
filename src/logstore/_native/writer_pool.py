"""
What many writers share: memory kept between appends, and room on the device allocated ahead.

Source: DESIGN.md D12.
"""

from __future__ import annotations

from typing import Any, Final

from logstore._native._core import ffi, lib
from logstore.store_config import PREALLOCATED_BYTES_MAX, STAGING_BYTES_MAX


class WriterPool:
    """
    The bounds of many writers together; each keeps its pool alive.

    A writer that finds its pool used up works without: its memory is given back after each append,
    its file grows as it is written.

    **Thread rule**: any thread may ask.

    Attributes:
        handle: The native pool, for writers.
    """

    __slots__ = ("handle",)

    def __init__(
        self,
        *,
        staging_bytes_max: int = STAGING_BYTES_MAX,
        preallocated_bytes_max: int = PREALLOCATED_BYTES_MAX,
    ) -> None:
        """
        Make a pool that nobody uses yet.

        Args:
            staging_bytes_max: Memory in which records are put together, kept between appends.
            preallocated_bytes_max: Room on the device behind the ends of the writers' files.
        """
        handle = lib.ls_pool_new(staging_bytes_max, preallocated_bytes_max)
        if handle == ffi.NULL:
            raise MemoryError("no memory for a pool of writers")
        self.handle: Final[Any] = ffi.gc(handle, lib.ls_pool_free)

    @property
    def staging_bytes(self) -> int:
        """Memory that its writers keep now, in bytes."""
        return int(lib.ls_pool_staging_bytes(self.handle))

    @property
    def preallocated_bytes(self) -> int:
        """Room that was allocated ahead of its writers, in bytes; what they used of it counts."""
        return int(lib.ls_pool_preallocated_bytes(self.handle))


# Of logs that belong to no store.
PROCESS_POOL: Final = WriterPool()
