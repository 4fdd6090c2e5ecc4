"""Rows that are larger than a task may be: what is read into files, and what tasks then take."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import examples

import logstore
from logstore.errors import StorageError
from logstore.large_memory import LargeMemory
from logstore.spark.task_memory import INPUTS, large_batches_in_files, large_reads_in_files

pa = pytest.importorskip("pyarrow")

TASK_BYTES_MAX = 256 << 20
# Two of them are more than a task may take, and the tests' Java has 1 GiB for some copies.
LARGE_ROW_BYTES = 112 << 20


# -- reading, without Spark ------------------------------------------------------------------------


def ipc_bytes(*batches):
    """Return batches as Spark sends them."""
    out = io.BytesIO()
    with pa.ipc.new_stream(out, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return out.getvalue()


def from_daemon(near):
    """Return the input of a worker that Spark's daemon made."""
    return os.fdopen(os.dup(near.fileno()), "rb", 4096)


def alone(near):
    """Return the input of a worker that was started by itself."""
    return near.makefile("rwb", 4096)


@contextlib.contextmanager
def sent(data, sizes, opened=from_daemon):
    """Give what reads from a socket, as a worker does, what comes in pieces of these sizes."""
    near, far = socket.socketpair()

    def send():
        at, turn = 0, 0
        with contextlib.suppress(OSError), far:  # The reader may not want all of it.
            while at < len(data):
                size = sizes[turn % len(sizes)]
                far.sendall(data[at : at + size])
                at, turn = at + size, turn + 1

    sender = threading.Thread(target=send)
    sender.start()
    with near, opened(near) as stream:
        assert isinstance(stream, INPUTS)
        yield stream
        near.shutdown(socket.SHUT_RDWR)
    sender.join()


VALUES = st.lists(
    st.none() | st.integers(0, 40_000).map(lambda size: os.urandom(size // 2) + bytes(size // 2)),
    max_size=4,
)


class TestReading:
    @settings(max_examples=examples(40))
    @given(
        rows=st.lists(VALUES, min_size=1, max_size=4),
        sizes=st.lists(st.integers(1, 20_000), min_size=1, max_size=3),
        large_bytes=st.sampled_from([0, 1, 300, 5_000, 1 << 20]),
        opened=st.sampled_from([from_daemon, alone]),
    )
    def test_it_is_the_same(self, tmp_path_factory, rows, sizes, large_bytes, opened):
        """Whatever is large, and however it comes; and what follows is where it was."""
        batches = [
            pa.record_batch(
                {"value": pa.array(each, pa.binary()), "key": pa.array(each[::-1], pa.binary())}
            )
            for each in rows
        ]
        memory = LargeMemory(tmp_path_factory.getbasetemp())
        with sent(ipc_bytes(*batches) + b"and so on", sizes, opened) as stream:
            with large_reads_in_files(stream, memory, large_bytes):
                assert batches == list(pa.ipc.open_stream(stream))
            assert b"and so on" == stream.read(9)
            assert not hasattr(stream, "read_buffer")

    @pytest.mark.parametrize("missing_bytes", [1, 30_000])
    def test_a_stream_that_ends_too_early(self, tmp_path, missing_bytes):
        """It is the error that it is without files."""
        data = ipc_bytes(pa.record_batch({"value": [os.urandom(50_000)]}))[:-8]
        messages = []
        for large_bytes in (1 << 20, 0):
            with (
                sent(data[:-missing_bytes], [4096]) as stream,
                large_reads_in_files(stream, LargeMemory(tmp_path), large_bytes),
                pytest.raises(OSError, match="Expected to be able to read") as caught,
            ):
                list(pa.ipc.open_stream(stream))
            messages.append(str(caught.value))
        assert messages[0] == messages[1]

    def test_no_room(self, tmp_path):
        """The error is the file's, through all of pyarrow."""
        data = ipc_bytes(pa.record_batch({"value": [bytes(50_000)]}))
        with (
            sent(data, [4096]) as stream,
            large_reads_in_files(stream, LargeMemory(tmp_path / "gone"), 10_000),
            pytest.raises(StorageError, match="for a large record in") as caught,
        ):
            list(pa.ipc.open_stream(stream))
        assert errno.ENOENT == caught.value.errno

    def test_outside_of_a_worker(self):
        """A function of that name is not yet Spark's."""

        def main(infile):
            with large_batches_in_files():
                return hasattr(infile, "read_buffer")

        assert not main(io.BufferedReader(io.BytesIO()))


# -- a task's own part, without Spark --------------------------------------------------------------

# A task that gets little more memory once it has staged something.
FRUGAL_TASK = """
import resource, sys
import pyarrow as pa
from logstore.large_memory import LargeMemory
from logstore.spark.staging import RecordStager, TopicPlan
from logstore.spark.task_memory import large_reads_in_files
from logstore.staged_batches import StagedBatchWriter, StagedFile

memory = LargeMemory(None)
stager = RecordStager(
    lambda: StagedBatchWriter(sys.argv[2]),
    topic=None,
    plan_of=lambda topic: TopicPlan(2, max_message_bytes=1 << 30),
    keeps_timestamps=True,
    now_ms=1,
    large_memory=memory,
)
with open(sys.argv[1], "rb") as stream, large_reads_in_files(stream, memory):
    batches = iter(pa.ipc.open_stream(stream))
    stager.add(next(batches))
    for line in open("/proc/self/status"):
        if line.startswith("VmData:"):
            now = int(line.split()[1]) << 10
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (now + (32 << 20), before[1]))
    for batch in batches:
        stager.add(batch)
sizes = []
for path in stager.finish():
    with StagedFile(path) as file:
        sizes += [each.size_bytes >> 20 for each in file.batches if file.read([each])]
resource.setrlimit(resource.RLIMIT_DATA, before)
print(stager.record_count, *sorted(sizes)[-5:])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="ASan wants more itself")
def test_a_row_may_be_larger_than_a_tasks_memory(tmp_path):
    """By its value, key or headers; alone, or among others that go to other topics."""
    small = {"topic": "a", "key": b"k", "value": b"v", "headers": [{"key": "h", "value": b"x"}]}
    large = os.urandom(1 << 20) * 40
    rows = [
        [
            {**small, "topic": "ab"[at % 2], "headers": [None, small["headers"]][at % 3 == 0]}
            for at in range(6)
        ],
        [{**small, "value": large}],
        [{**small, "key": large}],
        [small, {**small, "headers": None}, {**small, "headers": [{"key": "h", "value": large}]}],
        [small, {**small, "topic": "b"}] * 700 + [{**small, "value": 2 * large}],
    ]
    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    schema = [("topic", pa.string()), ("key", pa.binary()), ("value", pa.binary())]
    schema = pa.schema([*schema, ("headers", pa.list_(pair))])
    batches = [pa.RecordBatch.from_pylist(each, schema) for each in rows]
    (tmp_path / "rows").write_bytes(ipc_bytes(*batches))
    done = subprocess.run(
        [sys.executable, "-c", FRUGAL_TASK, tmp_path / "rows", tmp_path / "staged"],
        env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1412 0 40 40 40 80\n" == done.stdout, done.stderr


# -- tasks, in Spark -------------------------------------------------------------------------------


class Peaks(threading.Thread):
    """
    Looks at Python's processes below this one, until its block is left.

    Attributes:
        anonymous_bytes: The most that one of them had of its own: pages of files are not counted.
    """

    def __init__(self):
        super().__init__()
        self.anonymous_bytes = 0
        self._is_done = threading.Event()

    def run(self):
        while not self._is_done.is_set():
            processes = list(python_processes())
            for _ in range(25):
                self.anonymous_bytes = max(self.anonymous_bytes, *map(anonymous_bytes, processes))
                self._is_done.wait(0.02)  # What is not held for so long is not much.

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *error):
        self._is_done.set()
        self.join()


def python_processes():
    """Yield 0, and the processes of Python that are descendants of this one."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    yield 0
    for process, parent in parents.items():
        above = parent
        while above not in (0, os.getpid()):
            above = parents.get(above, 0)
        with contextlib.suppress(OSError):
            if above and b"python" in Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[0]:
                yield process


def anonymous_bytes(process):
    """Return what a process has in memory of its own, 0 if it is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) << 10
    return 0


@pytest.fixture(name="path")
def _path(tmp_path):
    """A store with a topic for large records."""
    config = {"max.message.bytes": LARGE_ROW_BYTES + 100, "segment.bytes": 1 << 30}
    with logstore.open_store(tmp_path / "data") as store:
        store.create_topic("out", config=config)
    return str(tmp_path / "data")


# A literal of this size would be in the plan, and in all that Spark tells of it.
LARGE_ROW = f"CAST(repeat('x', {LARGE_ROW_BYTES} - id) AS BINARY) AS value"


def sizes(path):
    with logstore.open_store(path, mode="r") as store:
        return [len(record.value) for record in store["out", 0]]


@pytest.mark.skipif(sys.platform != "linux", reason="what a process has is Linux's to say")
class TestTasks:
    def test_batch(self, spark, path):
        """Spark holds two rows at a time, and each is encoded; then they are committed."""
        rows = spark.range(1, 3, numPartitions=1).selectExpr("CAST(id AS INT)")
        with Peaks() as peaks:
            writer = rows.selectExpr(LARGE_ROW).write.format("logstore").option("topic", "out")
            writer.mode("append").save(path)
        assert [LARGE_ROW_BYTES - at for at in (1, 2)] == sizes(path)
        assert 0 < peaks.anonymous_bytes <= TASK_BYTES_MAX

    def test_stream(self, spark, path, tmp_path):
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "1.json").write_text('{"id": 1}')
        rows = spark.readStream.schema("id INT").json(str(tmp_path / "in"))
        with Peaks() as peaks:
            writer = rows.selectExpr(LARGE_ROW).writeStream.format("logstore")
            writer = writer.options(topic="out", checkpointLocation=str(tmp_path / "checkpoint"))
            writer.trigger(availableNow=True).start(path).awaitTermination()
        assert [LARGE_ROW_BYTES - 1] == sizes(path)
        assert 0 < peaks.anonymous_bytes <= TASK_BYTES_MAX
