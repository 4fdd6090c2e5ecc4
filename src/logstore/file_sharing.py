"""
Files of a store that another one is to have, too: one file under two names, or a copy.

A file that is not written any more gets a second name (a hard link), which takes no space. Where
that cannot be, as across file systems, it is copied; a copy that an earlier snapshot has there
already is linked instead. Who has a file with several names never changes it in place.

Source: DESIGN.md D6; decision 0067.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from logstore.errors import StorageError
from logstore.files import Files

# What says that there can be no second name: another file system, one that knows no links, too
# many names, or a kernel that protects files of others.
NO_LINK_ERRORS: Final = frozenset(
    {errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOSYS}
)
COPY_BYTES: Final = 16 << 20

Advance: TypeAlias = Callable[[int], object]


class FileIdentity(NamedTuple):
    """What tells one state of a file from every other that is or was."""

    device: int
    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int  #: When the inode last changed, which nobody can set.


def identity_of(path: str, files: Files) -> FileIdentity:
    """
    Return a file's identity.

    Raises:
        StorageError: There is none.
    """
    status = files._stat(path)
    return FileIdentity(
        status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    )


class FileSharing:
    """
    Gives files of one directory tree a place in another.

    Attributes:
        linked_bytes: Of files that have two names now.
        copied_bytes: Of files, and of parts of files, that were copied.
        reused_bytes: Of ``linked_bytes``: those whose other name is in the earlier snapshot.
        refusal: Why the first file was copied instead of linked; None: none was.
        copies: Identities of the files that were copied, or taken from the earlier snapshot, by
            their names below the target.

    **Thread rule**: one thread.

    Args:
        files: The door to the file system.
        base: Directory of an earlier snapshot; None: there is none.
        base_copies: The identities that it noted.
        advance: Told how many bytes are there, each time there are more.
    """

    def __init__(
        self,
        files: Files,
        *,
        base: str | None = None,
        base_copies: Mapping[str, FileIdentity] | None = None,
        advance: Advance | None = None,
    ) -> None:
        self._files = files
        self._base = base
        self._base_copies = base_copies or {}
        self._advance = advance or (lambda _size_bytes: None)
        self._unlinkable: set[int] = set()  # Devices whose files cannot be linked to the target.
        self.linked_bytes = 0
        self.copied_bytes = 0
        self.reused_bytes = 0
        self.refusal: str | None = None
        self.copies: dict[str, FileIdentity] = {}

    def share(
        self, source: str, target_directory: str, name: str, size_bytes: int | None = None
    ) -> bool:
        """
        Give a file that nobody writes any more a place; False: it is not there.

        **Durability**: a copy's contents survive a power loss on return; its name, and a link's,
        once the directory is synced. What is linked is as durable as it was.

        Args:
            source: The file.
            target_directory: Where the tree begins that gets it.
            name: Its path from there.
            size_bytes: What counts of it: a longer one is copied so far; None: all of it.

        Raises:
            StorageError: It has no place there.
        """
        try:
            identity = identity_of(source, self._files)
        except StorageError as error:
            if error.errno == errno.ENOENT:
                return False
            raise
        target = os.path.join(target_directory, name)
        if size_bytes is not None and identity.size_bytes != size_bytes:
            return self.copy_beginning(source, target, size_bytes)
        if identity.device not in self._unlinkable:
            try:
                self._files.link(source, target)
            except StorageError as error:
                if error.errno == errno.ENOENT:
                    return False
                if error.errno not in NO_LINK_ERRORS:
                    raise
                self.refusal = self.refusal or os.strerror(error.errno or 0)
                if error.errno == errno.EXDEV:
                    self._unlinkable.add(identity.device)
            else:
                self._note_link(identity.size_bytes)
                return True
        if self._reuse(name, identity, target):
            return True
        return self._copy(source, target, name, identity)

    def _note_link(self, size_bytes: int) -> None:
        self.linked_bytes += size_bytes
        self._advance(size_bytes)

    def _reuse(self, name: str, identity: FileIdentity, target: str) -> bool:
        """Take the earlier snapshot's copy of this very file, if it has one and still has it."""
        if self._base is None or self._base_copies.get(name) != identity:
            return False
        copy = os.path.join(self._base, name)
        try:
            if self._files.file_size(copy) != identity.size_bytes:
                return False
            self._files.link(copy, target)
        except StorageError as error:
            if error.errno == errno.ENOENT or error.errno in NO_LINK_ERRORS:
                return False
            raise
        self.copies[name] = identity
        self.reused_bytes += identity.size_bytes
        self._note_link(identity.size_bytes)
        return True

    def _copy(self, source: str, target: str, name: str, identity: FileIdentity) -> bool:
        if not self.copy_beginning(source, target, identity.size_bytes):
            return False
        self._files.set_modified_ms(target, identity.modified_ns // 1_000_000)
        self.copies[name] = identity
        return True

    def copy_beginning(
        self, source: str, target: str, size_bytes: int, *, sync: bool = True
    ) -> bool:
        """
        Copy the first bytes of a file; False: it is not there, or shorter.

        **Durability**: with ``sync`` as of :meth:`share`.
        """
        try:
            source_fd = self._files.open(source, os.O_RDONLY)
        except StorageError as error:
            if error.errno == errno.ENOENT:
                return False
            raise
        try:
            target_fd = self._files.open(target, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            try:
                done = 0
                while done < size_bytes:
                    step = min(COPY_BYTES, size_bytes - done)
                    copied = self._files.copy_range(source_fd, done, target_fd, done, step)
                    self._advance(copied)
                    self.copied_bytes += copied
                    done += copied
                    if copied < step:
                        return False
                if sync:
                    self._files.fdatasync(target_fd)
            finally:
                self._files.close(target_fd)
        finally:
            self._files.close(source_fd)
        return True
