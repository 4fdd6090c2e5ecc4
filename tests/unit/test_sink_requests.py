"""Commits asked of the process that holds a store, and what becomes of them when it goes."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import time

import pytest
from patience import PATIENCE_SECONDS, until
from staged_records import stage, staged

import logstore
from logstore.clock import ManualClock, SystemClock
from logstore.errors import (
    InconsistentTopicIdError,
    LockedError,
    LogNotFoundError,
    LogStoreError,
    SinkVersionError,
    StorageError,
    UnknownTopicError,
)
from logstore.files import Files
from logstore.scheduler import ManualScheduler
from logstore.sink_commits import SinkCommit
from logstore.sink_requests import ANSWER_PREFIX, REQUEST_PREFIX, PostedRequest, SinkRequest
from logstore.staged_batches import STAGED_PREFIX
from logstore.staged_commit import commit_staged, store_id_of
from logstore.store import LogStore, open_log_store

FEW = {"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1}
LATE = 1 << 60


@pytest.fixture(name="path")
def _path(tmp_path):
    path = str(tmp_path / "data")
    with logstore.open_store(path, config=FEW) as store:
        store.create_topic("t")
    return path


@pytest.fixture(name="holder")
def _holder(path):
    """A store that answers when it is told to."""
    clock = ManualClock()
    with open_log_store(path, config=FEW, clock=clock, scheduler=ManualScheduler(clock)) as store:
        yield store


def leftovers(path):
    """Return files of requests and of staging."""
    return [name for name in os.listdir(path) if name.startswith(".logstore-")]


def values(path):
    """Return what is committed."""
    with logstore.open_store(path, mode="r") as store:
        return list(store["t", 0].read_values())


def test_nobody_holds_it(path):
    """The commit opens the store, and closes it."""
    file = stage(path, "q", 0, {("t", 0): [b"1"]})
    assert SinkCommit({"t": 1}, ()) == commit_staged([path], "q", 0, [file])
    assert ([b"1"], []) == (values(path), leftovers(path))


def test_the_holder_commits(path):
    """In the background, while it is in use; what it refuses comes back as it is."""
    with logstore.open_store(path, config=FEW) as holder:
        for version in (1, 2):
            text = b"%d" % version
            file = stage(path, "q", version, {("t", 0): [text]})
            assert SinkCommit({"t": 1}, ()) == commit_staged([path], "q", version, [file])
            holder["t", 0].append(b"own " + text)
        assert SinkCommit({}, ("t",)) == commit_staged([path], "q", 2, [file])
        file = stage(path, "q", 1, {("t", 0): [b"1"]})
        with pytest.raises(SinkVersionError) as caught:
            commit_staged([path], "q", 1, [file])
        assert 2 == caught.value.committed_version
        file = stage(path, "q", 3, {("new", 0): [b"1"]})
        with pytest.raises(UnknownTopicError):
            commit_staged([path], "q", 3, [file])
        assert 2 == len(holder.errors)
        holder.errors.clear()
        commit_staged([path], "q", 3, [file], create_partitions=2)
        assert 2 == len(holder["new"])
        assert [b"1", b"own 1", b"2", b"own 2"] == list(holder["t", 0].read_values())
    assert [name for name in leftovers(path) if "staged" not in name] == []


def test_the_holder_is_another_process(path, tmp_path):
    """And is killed before it answers: then the lock is free."""
    program = (
        "import sys, time, logstore\n"
        f"store = logstore.open_store({path!r}, config={FEW!r})\n"
        "if sys.argv[1] == 'deaf': store._requests_task.cancel()\n"
        "print('open', flush=True)\n"
        "time.sleep(60)\n"
    )
    for kind, version in (("deaf", 0), ("listening", 1)):
        with subprocess.Popen(
            [sys.executable, "-c", program, kind], stdout=subprocess.PIPE
        ) as process:
            assert b"open\n" == process.stdout.readline()
            file = stage(path, "q", version, {("t", 0): [b"%d" % version]})
            if kind == "deaf":
                with pytest.raises(LockedError, match=rf"process {process.pid} on host .* 0.2 s"):
                    commit_staged([path], "q", version, [file], timeout_seconds=0.2)
                assert [os.path.basename(file)] == leftovers(path)
                threading.Timer(0.2, process.kill).start()
            assert SinkCommit({"t": 1}, ()) == commit_staged([path], "q", version, [file])
            process.kill()
    with logstore.open_store(path) as store:
        assert [b"0", b"1"] == list(store["t", 0].read_values())


def test_the_holder_closes(path):
    """A request that is not answered is taken back, and the lock is there."""
    holder = logstore.open_store(path, config=FEW)
    holder._requests_task.cancel()
    file = stage(path, "q", 0, {("t", 0): [b"1"]})
    done = []
    thread = threading.Thread(target=lambda: done.append(commit_staged([path], "q", 0, [file])))
    thread.start()
    until(lambda: any(name.startswith(REQUEST_PREFIX) for name in os.listdir(path)))
    holder.close()
    thread.join()
    assert ([SinkCommit({"t": 1}, ())], []) == (done, leftovers(path))


class HastyClock(SystemClock):
    """Goes right until it is set ahead."""

    def __init__(self):
        self.ahead_seconds = 0.0

    def monotonic(self):
        return super().monotonic() + self.ahead_seconds


def test_the_holder_takes_long(path, monkeypatch):
    """Who has begun is waited for, whatever the time-out: it may commit at any moment."""
    holder = logstore.open_store(path, config=FEW)
    commit = holder._sinks.commit

    clock = HastyClock()

    def slowly(*arguments, **options):
        clock.ahead_seconds = 2 * PATIENCE_SECONDS
        time.sleep(0.3)
        return commit(*arguments, **options)

    monkeypatch.setattr(holder._sinks, "commit", slowly)
    file = stage(path, "q", 0, {("t", 0): [b"1"]})
    done = commit_staged([path], "q", 0, [file], timeout_seconds=PATIENCE_SECONDS, clock=clock)
    assert SinkCommit({"t": 1}, ()) == done
    holder.close()
    assert ([b"1"], []) == (values(path), leftovers(path))


class TestDesk:
    """Request by request."""

    def post(self, holder, version=0, deadline_ms=LATE, topic="t"):
        file = staged(holder, "q", version, {(topic, 0): [b"%d" % version]})
        names = [os.path.basename(file)]
        return PostedRequest(
            holder.paths[0], SinkRequest("q", version, names, None, deadline_ms), holder.files
        )

    def test_answers(self, holder, path):
        """Each is answered once; nothing is left when the answer was taken."""
        first, second = self.post(holder), self.post(holder, 1, topic="no")
        assert first.answer() is None
        assert 2 == holder.answer_requests()
        assert 0 == holder.answer_requests()
        assert (False, False) == (first.take_back(), first.is_taken)
        assert SinkCommit({"t": 1}, ()) == first.answer()
        with pytest.raises(UnknownTopicError):
            second.answer()
        holder.errors.clear()
        for request in (first, second):
            request.withdraw()
            request.withdraw()
        assert [] == [name for name in leftovers(path) if "staged" not in name]

    def test_too_late(self, holder, path):
        """Nobody waits for it any more: it is dropped."""
        request = self.post(holder, deadline_ms=holder.clock.milliseconds() - 1)
        assert 0 == holder.answer_requests()
        assert request.answer() is None
        assert [] == list(holder["t", 0].read_values())
        assert all("staged" in name for name in leftovers(path))

    def test_after_a_kill(self, holder, path):
        """Committed, and killed before the answer: whoever takes over finds it noted."""
        request = self.post(holder)
        (file,) = (name for name in os.listdir(path) if name.startswith(STAGED_PREFIX))
        name = next(name for name in os.listdir(path) if name.startswith(REQUEST_PREFIX))
        holder.answer_requests()
        os.unlink(os.path.join(path, name.replace(REQUEST_PREFIX, ANSWER_PREFIX)))
        assert request.answer() is None
        assert SinkCommit({}, ("t",)) == holder.commit_staged("q", 0, [os.path.join(path, file)])

    def test_an_answer_that_cannot_be_written(self, holder, path, monkeypatch):
        """It is reported once, and written when there is room, however long that takes."""
        request = self.post(holder)
        replace_file = Files.replace_file

        def replace(files, file, data):
            if ANSWER_PREFIX in file:
                full_disk()
            replace_file(files, file, data)

        with monkeypatch.context() as patch:
            patch.setattr(Files, "replace_file", replace)
            for _ in range(3):
                holder.answer_requests()
        assert (None, True, 1) == (request.answer(), request.is_taken, len(holder.errors))
        holder.errors.clear()
        (taken,) = (name for name in os.listdir(path) if name.endswith(".taken"))
        os.utime(os.path.join(path, taken), (0, 0))
        holder.answer_requests()
        assert SinkCommit({"t": 1}, ()) == request.answer()
        assert not request.is_taken

    def test_any_error_is_an_answer(self, holder, monkeypatch):
        """Else who asks would wait for it."""
        request = self.post(holder)

        def broken(*_arguments, **_options):
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(holder._sinks, "commit", broken)
        assert 1 == holder.answer_requests()
        with pytest.raises(LogStoreError, match="RuntimeError: can't start new thread"):
            request.answer()

    def test_malformed(self, holder, path):
        """It is answered, and reaches no file elsewhere."""
        for data in (b"{", json.dumps({"sink_id": 1}).encode(), b"[]"):
            holder.files.replace_file(os.path.join(path, REQUEST_PREFIX + "1"), data)
            assert 1 == holder.answer_requests()
            answer = json.loads(holder.files.read_file(os.path.join(path, ANSWER_PREFIX + "1")))
            assert answer["error"]["type"] in ("JSONDecodeError", "TypeError")

    def test_leftovers(self, holder, path):
        """Answers that nobody took, and requests that a kill has left, go after an hour."""
        for name in (ANSWER_PREFIX + "1", REQUEST_PREFIX + "1.taken", REQUEST_PREFIX + "2.tmp"):
            file = os.path.join(path, name)
            holder.files.replace_file(file, b"{}")
            os.utime(file, (0, 0))
        holder.clock.set(3_600_000)
        holder.answer_requests()
        assert 3 == len(leftovers(path))
        holder.clock.set(3_600_001)
        holder.answer_requests()
        assert [] == leftovers(path)


def full_disk(*_arguments):
    """Fail as a full disk does."""
    raise StorageError("no space", errno.ENOSPC)


def test_committed_and_not_closed_in_order(path, monkeypatch, caplog):
    """It is committed all the same: to say that it was not would have it written twice."""
    file = stage(path, "q", 0, {("t", 0): [b"1"]})
    close = LogStore.close

    def failing(self):
        close(self)
        full_disk()

    with monkeypatch.context() as patch:
        patch.setattr(LogStore, "close", failing)
        assert SinkCommit({"t": 1}, ()) == commit_staged([path], "q", 0, [file])
        assert "was committed to, and not closed in order: no space" in caplog.text
        with pytest.raises(UnknownTopicError):
            commit_staged([path], "q", 1, [stage(path, "q", 1, {("no", 0): [b"1"]})])
    assert [b"1"] == values(path)


def test_never_makes_a_store(tmp_path, path):
    """A path that is wrong here is said, also one that leads to another store."""
    with pytest.raises(LogNotFoundError):
        commit_staged([str(tmp_path / "no")], "q", 0, [])
    assert not (tmp_path / "no").exists()
    other = str(tmp_path / "other")
    logstore.open_store(other).close()
    with pytest.raises(InconsistentTopicIdError, match=r"is the store .* here, and"):
        commit_staged([other], "q", 0, [], store_id=store_id_of(path))
    commit_staged([path], "q", 0, [], store_id=store_id_of(path))
