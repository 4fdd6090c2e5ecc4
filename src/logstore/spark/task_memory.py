"""
Very large rows in a task of Spark: in files in Spark's local directory, not in RAM.

A source makes its record batches there itself. A sink is handed them: Spark's worker lets pyarrow
read each in one piece from a socket, and holds the one before meanwhile. pyarrow asks its input for
``read_buffer(n)``, if there is such a method, and takes whatever has the buffer protocol for the
body of a batch. So Spark's own reading goes on as it is, with bodies in files.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
from collections.abc import Iterator
from typing import Any, Final

from logstore.files import REAL_FILES
from logstore.large_memory import LARGE_BYTES, LargeMemory

#: What daemon and socket give a worker; another kind of input is left alone.
INPUTS: Final = (io.BufferedReader, io.BufferedRWPair)


def task_memory() -> LargeMemory:
    """Return room for rows that are larger than a task may be: where Spark has its own."""
    directories = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    return LargeMemory(next(filter(REAL_FILES.is_directory, directories), None))


@contextlib.contextmanager
def large_batches_in_files() -> Iterator[None]:
    """
    Let Spark's worker read record batches above 16 MiB into files, until the block is left.

    To be entered before the first batch is asked for. It changes nothing outside a worker of
    Spark's, or in one that is made in another way: then batches are in memory.

    **Thread rule**: the thread that runs the task.

    **Lifetime**: a batch's file goes with the last view of it.
    """
    stream = _worker_input()
    if stream is None:
        yield
        return
    with large_reads_in_files(stream, task_memory()):
        yield


@contextlib.contextmanager
def large_reads_in_files(
    stream: Any, memory: LargeMemory, large_bytes: int = LARGE_BYTES
) -> Iterator[None]:
    """
    Let pyarrow read from a stream into files what is large, until the block is left.

    Args:
        stream: One of :data:`INPUTS`, blocking. Its other methods stay as they are.
        memory: Where the files are.
        large_bytes: What is larger goes into one.

    Raises:
        StorageError: From pyarrow's reading: there is no room for a file.
    """

    def read_buffer(size_bytes: int) -> bytes | memoryview:
        if size_bytes <= large_bytes:
            data: bytes = stream.read(size_bytes)
            return data
        view = memory.take(size_bytes)
        return view[: stream.readinto(view)]  # Less only where the stream ends.

    stream.read_buffer = read_buffer
    try:
        yield
    finally:
        del stream.read_buffer


def _worker_input() -> Any:
    """Return what the worker of Spark's that runs this thread reads from, None if there is none."""
    frame = inspect.currentframe()
    while frame is not None:
        module = getattr(frame.f_globals.get("__spec__"), "name", None)  # Of `-m` too.
        if module == "pyspark.worker" and frame.f_code.co_name == "main":
            stream = frame.f_locals.get("infile")
            return stream if isinstance(stream, INPUTS) else None
        frame = frame.f_back
    return None
