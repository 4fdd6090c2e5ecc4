"""Logs for asyncio: each method beside its counterpart, following, cancellation, closing."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading

import pytest
from patience import PATIENCE_SECONDS

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


# What a program uses of Log and finds in the attribute `log` only, and why.
ELSEWHERE = {
    "check": "for tests",
    "truncate_to_divergence": "for replication",
    "create": "how the engine makes a log",
    "view": "how the engine makes a log",
}


def public_names(names):
    return {name for name in names if not name.startswith("_")}


def test_same_names():
    """What a program uses of Log is here or has a reason not to be; the options are the same."""
    ours, theirs = public_names(dir(logstore.aio.AsyncLog)), public_names(dir(logstore.Log))
    assert set() == ours - theirs
    # Log itself is what a program uses; what it inherits is replication's and the engine's.
    assert set() == public_names(vars(logstore.Log)) - ours - ELSEWHERE.keys()
    for name in ours - {"roll"}:
        here = getattr(logstore.aio.AsyncLog, name)
        if inspect.isfunction(here) and "options" not in inspect.signature(here).parameters:
            there = getattr(logstore.Log, name)
            assert [*inspect.signature(there).parameters] == [*inspect.signature(here).parameters]


def test_changes(path):
    """What changes a log is done in a thread; what is known is known at once."""

    async def main():
        async with await logstore.aio.open(path) as log:
            await log.extend([b"a"] * 10)
            await log.update_config({"segment.bytes": 2000})
            assert 2000 == log.config.segment_bytes
            await log.roll()
            assert 2 == len(log.log.segments)
            await log.flush(force=True)
            assert await log.maybe_increment_log_start_offset(4)
            assert (4, 10) == (log.log_start_offset, log.log_end_offset)
            assert (10, 10, 10) == (
                log.high_watermark,
                log.last_stable_offset,
                log.recovery_point,
            )
            assert log.size_bytes > 0
            assert (str(path), "orders-0") == (log.directory, log.name)
            assert not log.is_closed
            assert not log.is_read_only
            assert 6 == log.scan().count()
            assert (0, 10) == await log.end_offset_for_epoch(0)
            assert log.log.offset_metadata(9) == await log.offset_metadata(9)
            await log.truncate_fully_and_start_at(7)
            assert 7 == await log.append(b"b")
            await log.rename("renamed-0")
            assert "renamed-0" == log.name
            await log.delete()
            assert log.is_closed
        assert not path.exists()

    asyncio.run(main())


def damage(path, position):
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(b"damage")


def test_damage(path):
    """It is skipped, and what was left out is told, as by the log."""

    async def main():
        async with await logstore.aio.open(path) as log:
            for _ in range(3):
                await log.extend([b"a"] * 10)
            _, damaged, _ = log.log.segments[0].headers()
            log_path = log.log.segments[0].log_path
        damage(log_path, damaged.position + 70)
        async with await logstore.aio.open(path, "r") as log:
            for read in (log.read, log.read_values):
                with pytest.raises(logstore.CorruptRecordError):
                    [record async for record in read()]
                records = read(on_corrupt="skip")
                assert [] == records.skipped
                assert 20 == len([record async for record in records])
                assert [(10, 20)] == [(each.start, each.stop) for each in records.skipped]

    asyncio.run(main())


def test_spin(path):
    """A follower that spins does not hold up the loop either."""

    async def main():
        async with await logstore.aio.open(path) as log:
            records = log.follow(spin=5.0)
            task = asyncio.create_task(records.batch())
            await asyncio.sleep(0.01)
            await log.append(b"x")
            assert [b"x"] == [record.value for record in await task]
            assert [] == await records.batch(timeout=0.01)
            records.close()

    asyncio.run(main())


def test_cancellations_at_a_high_rate(path):
    """Waits that time out all the time, while records come: none is lost, none comes twice."""

    async def main():
        async with await logstore.aio.open(path) as log:

            async def append():
                for at in range(400):
                    await log.append(b"%d" % at)
                    if at % 7 == 0:
                        await asyncio.sleep(0.0005)

            async def take(one, found):
                while len(found) < 400:
                    with contextlib.suppress(TimeoutError):
                        got = await asyncio.wait_for(one(), 0.0002)
                        found.extend(got if isinstance(got, list) else [got])

            singles, batches, reads = [], [], []
            one, many = log.follow("earliest"), log.follow("earliest")
            await asyncio.wait_for(
                asyncio.gather(
                    append(),
                    take(aiter(one).__anext__, singles),
                    take(many.batch, batches),
                ),
                4 * PATIENCE_SECONDS,
            )
            records = log.read()
            while len(reads) < 400:
                with contextlib.suppress(TimeoutError):
                    reads.append(await asyncio.wait_for(anext(records), 0.0001))
            for found in (singles, batches, reads):
                assert list(range(400)) == [record.offset for record in found]
            one.close()
            many.close()

    asyncio.run(main())


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
                values = []
                async for record in each.follow(timeout=PATIENCE_SECONDS):
                    values.append(record.value)
                    if len(values) == 20:
                        break
                return values

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
            waiting = asyncio.create_task(log.follow(timeout=PATIENCE_SECONDS).batch())
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
                    assert may_go_on.wait(PATIENCE_SECONDS)
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
            async with await logstore.aio.open(path, lock_timeout=PATIENCE_SECONDS) as log:
                assert turns == await log.append(b"x")

    asyncio.run(main())


def test_uvloop(path):
    """Another event loop: appends, reads, following, cancellation."""
    uvloop = pytest.importorskip("uvloop")

    async def main():
        assert type(asyncio.get_running_loop()).__module__.startswith("uvloop")
        async with await logstore.aio.open(path) as log:
            records = log.follow("earliest")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(records.batch(), 0.01)
            task = asyncio.create_task(records.batch())
            await asyncio.sleep(0.01)
            await log.extend([b"a", b"b"])
            assert [b"a", b"b"] == [record.value for record in await task]
            assert [b"a", b"b"] == [value async for value in log.read_values()]
            async for record in log.follow("earliest", timeout=0.01):
                assert record.value in {b"a", b"b"}
            records.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_trio(path):
    """Its tasks wait for a follower's descriptor."""
    trio = pytest.importorskip("trio")

    async def take(records, found):
        while len(found) < 30:
            await trio.lowlevel.wait_readable(records)
            while batch := records.batch(timeout=0):
                found.extend(record.value for record in batch)

    async def main():
        with logstore.open(path) as log, logstore.open(path, "r") as other:
            found = [[], []]
            followers = [log.follow(), other.follow()]
            with trio.fail_after(PATIENCE_SECONDS):
                async with trio.open_nursery() as nursery:
                    for each, values in zip(followers, found, strict=True):
                        nursery.start_soon(take, each, values)
                    for at in range(30):
                        await trio.sleep(0.001)
                        log.append(b"%d" % at)
            for each in followers:
                each.close()
            assert [[b"%d" % at for at in range(30)]] * 2 == found

    trio.run(main)
