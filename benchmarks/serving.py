"""The contest of serving: bytes of a log to a socket."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import logstore
from benchmarks.harness import Contest, Stopwatch, Target, Variant
from benchmarks.material import Values, written_log
from benchmarks.sizes import Size
from benchmarks.yardsticks import MIB, page_aligned


def serving(directory: Path, size: Size) -> Contest:
    """A range of a log over a unix socket by ``send_to``, against a bare loop of os.sendfile."""
    path = written_log(directory / "serve-0", Values.of(1024, size.read_bytes))
    log = logstore.open(path)
    part = log.fetch(0, max_bytes=1 << 40)
    plain = os.open(log.segments[0].log_path, os.O_RDONLY)
    buffer = page_aligned(MIB)

    def delivered(send: Callable[[socket.socket], None], watch: Stopwatch) -> None:
        sender, receiver = socket.socketpair()
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MIB)
        left = part.size

        def receive() -> None:
            nonlocal left
            while left > 0:
                left -= receiver.recv_into(buffer)

        thread = threading.Thread(target=receive)
        thread.start()
        with sender, receiver, watch.running():
            send(sender)
            thread.join()
        assert left == 0

    def bare(sender: socket.socket) -> None:
        target, position = sender.fileno(), 0
        while position < part.size:
            position += os.sendfile(target, plain, position, min(MIB, part.size - position))

    def by_range(sender: socket.socket) -> None:
        assert part.size == part.send_to(sender)

    def close() -> None:
        os.close(plain)
        log.close()

    return Contest(
        "serving",
        (
            Variant("bare", partial(delivered, bare), "wall", part.size),
            Variant("send_to", partial(delivered, by_range), "wall", part.size),
        ),
        (Target("serving with sendfile, 1 MiB", "send_to", "bare", 0.95, 1.0, unit="bare"),),
        close=close,
    )
