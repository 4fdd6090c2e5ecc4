"""Logs for asyncio: each method beside its counterpart, following, cancellation, closing."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading

import pytest

import logstore
import logstore.aio
from logstore.reader import RecordIterator


@pytest.fixture(name="path")
def _path(tmp_path):
    return tmp_path / "orders-0"


def test_every_method(path):
    """The answers are those of the log."""

    async def main():
        async with await logstore.aio.open(path) as log:
            assert 0 == await log.append(b"a", key=b"k", headers=[("h", b"1")])
            assert range(1, 4) == await log.extend([b"b", b"c", b"d"])
            assert 4 == await log.append(b"e", sync=True)
            assert 5 == log.offsets.recovery_point
            assert [b"a", b"b"] == [record.value async for record in log.read(limit=2)]
            assert [b"b", b"c"] == [value async for value in log.read_values(1, 3)]
            assert 5 == len([record async for record in log])
            records = log.read(3)
            assert records.next_offset is None
            assert b"d" == (await anext(records)).value
            assert 4 == records.next_offset
            assert (b"c", b"a", b"e") == (
                (await log[2]).value,
                (await log.first()).value,
                (await log.last()).value,
            )
            assert 0 == (await log.offset_at(0)).offset
            assert await log.max_timestamp()
            assert (await log.fetch(0, max_bytes=1000)).records
            await log.flush()
            assert await log.truncate_to(4)
            assert 0 == await log.delete_old_segments()
            assert "AsyncLog" in repr(log)
        with pytest.raises(logstore.ClosedError):
            await log.append(b"x")

    asyncio.run(main())


def test_same_names():
    """What is here is called as in Log."""
    names = {
        name
        for name, _ in inspect.getmembers(logstore.aio.AsyncLog, callable)
        if not name.startswith("_")
    }
    assert names <= set(dir(logstore.Log))


def test_errors(path):
    """The log's own."""

    async def main():
        with pytest.raises(logstore.LogNotFoundError):
            await logstore.aio.open(path, "r")
        async with await logstore.aio.open(path) as log:
            with pytest.raises(logstore.OffsetOutOfRangeError):
                await log[3]
            with pytest.raises(logstore.LockedError):
                await logstore.aio.open(path)

    asyncio.run(main())


def test_follow(path):
    """Records as they come, one by one and many at once, beside the tasks that append them."""

    async def main():
        async with (
            await logstore.aio.open(path) as log,
            await logstore.aio.open(path, "r") as reader,
        ):

            async def take(each):
                return [record.value async for record in each.follow(timeout=0.5)]

            tasks = [asyncio.create_task(take(each)) for each in (log, reader)]
            await asyncio.sleep(0)
            for at in range(20):
                await log.append(b"%d" % at)
                await asyncio.sleep(0.001)
            assert [[b"%d" % at for at in range(20)]] * 2 == await asyncio.gather(*tasks)
            async with reader.follow("earliest") as records:
                assert b"0" == (await anext(records)).value
                assert (1, 19) == (records.position, records.lag)
                assert b"1" == (await records.batch(1))[0].value

    asyncio.run(main())


def test_a_wait_does_not_hold_up_the_loop(path):
    """Other tasks run while one waits."""

    async def main():
        async with await logstore.aio.open(path) as log:
            waiting = asyncio.create_task(log.follow(timeout=5).batch())
            for _ in range(5):
                await asyncio.sleep(0.001)
            await log.append(b"x")
            assert b"x" == (await waiting)[0].value

    asyncio.run(main())


def test_a_cancelled_read_loses_nothing(path):
    """A step that is cancelled while its thread reads: the next one gives what that has read."""

    async def main():
        async with await logstore.aio.open(path) as log:
            await log.extend([b"%d" % at for at in range(10000)], compression="lz4")
            started, may_go_on = threading.Event(), threading.Event()

            class Slow(RecordIterator):
                def _next_block(self):
                    started.set()
                    assert may_go_on.wait(10)
                    return super()._next_block()

            records = logstore.aio.AsyncRecords(lambda: Slow(log.log, 0, None, "read_committed"))
            taken = []
            while True:
                may_go_on.clear()
                started.clear()
                step = asyncio.ensure_future(anext(records))
                while not (started.is_set() or step.done()):  # noqa: ASYNC110 - a thread's event
                    await asyncio.sleep(0)
                if not step.done():
                    step.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await step
                    assert len(taken) == records.next_offset
                    may_go_on.set()
                    step = asyncio.ensure_future(anext(records))
                try:
                    taken.append((await step).offset)
                except StopAsyncIteration:
                    break
            assert list(range(10000)) == taken

    asyncio.run(main())


@pytest.mark.parametrize("takes_batches", [False, True])
def test_a_backlog_does_not_hold_up_the_loop(path, takes_batches):
    """A follower that always has more to read gives way to other tasks, and can be cancelled."""

    async def main():
        async with await logstore.aio.open(path) as log:
            values = [b"x"] * 10000
            await log.extend(values)
            records = log.follow("earliest")
            count = 0

            async def follow():
                nonlocal count
                while True:
                    count += len(await records.batch()) if takes_batches else 1
                    if not takes_batches:
                        await anext(records)
                    if records.lag < len(values) // 2:
                        log.log.extend(values)  # It does not catch up.
                    assert count < 20 * len(values), "nobody else had a turn"

            following = asyncio.create_task(follow())
            for _ in range(10):
                await asyncio.sleep(0)
            following.cancel()
            with pytest.raises(asyncio.CancelledError):
                await following

    asyncio.run(main())


def test_a_cancelled_open_leaves_no_writer(path):
    """A log that nobody takes is closed, and may be opened again."""

    async def main():
        for turns in range(10):
            opening = asyncio.create_task(logstore.aio.open(path))
            for _ in range(turns % 3 + 1):
                await asyncio.sleep(0.0005 * turns)
            opening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await (await opening).close()
            async with await logstore.aio.open(path, lock_timeout=10) as log:
                assert turns == await log.append(b"x")

    asyncio.run(main())
