"""
Bytes of a file to a socket, in the kernel where that is possible.

==================  ================================================  ==============================
socket              how                                               answers
==================  ================================================  ==============================
blocking            sendfile, 1 MiB a call; it waits in the kernel    when everything was taken
with a timeout      the same, and poll between the calls              the count when it has expired
non-blocking        the same, until it takes no more                  the count, 0 if none
TLS; no sendfile    reads of 256 KiB, and the socket's own send       as above, by its kind
==================  ================================================  ==============================

PERFORMANCE A: larger calls are not faster, and one call for everything would hold a timeout up.

Source: Kafka ``FileRecords.writeTo``, ``TransportLayer.transferFrom``.
"""

from __future__ import annotations

import errno
import os
import select
import sys
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from logstore.files import Files

STEP_BYTES: Final = 1 << 20
COPIED_STEP_BYTES: Final = 256 << 10  # A copy that is sent from the cache.

# What the system says when it cannot send a file to this kind of socket.
_UNSUPPORTED: Final = frozenset(
    {errno.EINVAL, errno.ENOSYS, errno.ENOTSOCK, errno.EOPNOTSUPP, errno.ENOTSUP}
)


class Sendable(Protocol):
    """A socket, or something like it: ``send`` is needed only where sendfile does not work."""

    def fileno(self) -> int:
        """Return the descriptor."""
        ...


class FileRange:
    """
    A range of an open file that is being sent; its owner keeps the descriptor open meanwhile.

    Args:
        files: The door to the file system.
        fd: Of the file.
        position: Of the first byte.
        size_bytes: How many to send.
    """

    __slots__ = ("_end", "_fd", "_files", "_position", "_start")

    def __init__(self, files: Files, fd: int, position: int, size_bytes: int) -> None:
        self._files = files
        self._fd = fd
        self._start = self._position = position
        self._end = position + size_bytes

    @property
    def sent_bytes(self) -> int:
        """How many bytes the socket has taken."""
        return self._position - self._start

    def send_to(self, socket: Sendable) -> bool:
        """
        Send until everything is sent, the socket takes no more, or its time is over.

        Returns:
            False if the file ended before its range.

        Raises:
            TimeoutError: The socket took nothing within its timeout.
            OSError: What the socket says: the peer is gone, as a rule.
        """
        timeout = _timeout_of(socket)
        step = self._send_step if _has_no_layer_above(socket) else self._copy_step
        while self._position < self._end:
            try:
                sent = step(socket)
            except OSError as error:
                if not _has_to_wait(error):
                    if step == self._copy_step or error.errno not in _UNSUPPORTED:
                        raise
                    step = self._copy_step
                    continue
                if timeout == 0:
                    return True
                if not _wait(socket, timeout, for_reading=_wants_to_read(error)):
                    if self.sent_bytes > 0:
                        return True
                    raise TimeoutError(errno.ETIMEDOUT, "the socket took nothing in time") from None
                continue
            if sent == 0:
                return False
            self._position += sent
        return True

    def _send_step(self, socket: Sendable) -> int:
        size = min(STEP_BYTES, self._end - self._position)
        return self._files.sendfile(socket.fileno(), self._fd, self._position, size)

    def _copy_step(self, socket: Any) -> int:
        size = min(COPIED_STEP_BYTES, self._end - self._position)
        data = self._files.pread(self._fd, size, self._position)
        return int(socket.send(data)) if data else 0


def _timeout_of(socket: Any) -> float | None:
    """Return the seconds to wait for the socket: None for ever, 0 not at all."""
    gettimeout = getattr(socket, "gettimeout", None)
    if gettimeout is not None:
        timeout: float | None = gettimeout()
        return timeout
    return None if os.get_blocking(socket.fileno()) else 0.0


def _has_no_layer_above(socket: Any) -> bool:
    """Whether bytes written to the descriptor are what the peer gets: not with TLS."""
    ssl = sys.modules.get("ssl")  # Who has a TLS socket has imported it.
    return ssl is None or not isinstance(socket, ssl.SSLSocket | ssl.SSLObject)


def _has_to_wait(error: OSError) -> bool:
    ssl = sys.modules.get("ssl")
    return isinstance(error, BlockingIOError) or (
        ssl is not None and isinstance(error, ssl.SSLWantReadError | ssl.SSLWantWriteError)
    )


def _wants_to_read(error: OSError) -> bool:
    ssl = sys.modules.get("ssl")
    return ssl is not None and isinstance(error, ssl.SSLWantReadError)


def _wait(socket: Sendable, timeout: float | None, *, for_reading: bool) -> bool:
    """Wait until the socket takes bytes; False: the time is over."""
    poll = select.poll()
    poll.register(socket.fileno(), select.POLLIN if for_reading else select.POLLOUT)
    return bool(poll.poll(None if timeout is None else max(1, round(timeout * 1000))))
