"""
Mappings of one file, shared by all who look at it, and whether anybody does.

The memory stays mapped until its last view is gone, whatever becomes of the file's name and of the
descriptor that it was mapped by. In return the file must not shrink meanwhile (DESIGN.md D6): who
would cut it in place asks :attr:`FileViews.is_viewed` first.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logstore.files import Files, Mapping


class FileViews:
    """
    The mappings of one file that are in use.

    **Thread rule**: any thread may call anything.
    """

    __slots__ = ("_claims", "_guard", "_mapping")

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._mapping: weakref.ref[Mapping] | None = None
        self._claims: list[weakref.ref[Any]] = []  # One for each mapping: views outlive the object.

    def map(self, files: Files, fd: int, size_bytes: int) -> Mapping:
        """
        Return a mapping of the file's first bytes, at least ``size_bytes``, which it has.

        Args:
            files: The door to the file system.
            fd: Of the file; the caller keeps it open for this call.
            size_bytes: How much has to be in the mapping.

        Raises:
            StorageError: The system refuses another mapping.
        """
        assert size_bytes > 0
        with self._guard:
            mapping = None if self._mapping is None else self._mapping()
            if mapping is None or mapping.size < size_bytes:
                mapping = files.map(fd, max(size_bytes, files.size(fd)))
                self._mapping = weakref.ref(mapping)
                self._claims = [claim for claim in self._claims if claim() is not None]
                self._claims.append(mapping.claim())
            return mapping

    @property
    def is_viewed(self) -> bool:
        """Whether a mapping, or a view of one, is held by anybody."""
        with self._guard:
            return any(claim() is not None for claim in self._claims)
