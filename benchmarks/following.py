"""
Contests of following: how soon another process has a record, and how many asyncio takes.

Records are appended at a fixed rate; each says when it was due, so that a delay of the writer
counts, too. The yardstick is the same with nothing but a futex and a word of shared memory; of who
spins, writers too, it is what nobody gets around: a pwrite, the word, and a pread of what it is of.
"""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import logstore
from benchmarks.harness import Contest, Stopwatch, Target, Variant
from benchmarks.material import Values, written_log
from benchmarks.sizes import Size
from benchmarks.yardsticks import iterate_list
from logstore._native import LIVE_BYTES, LivePage
from logstore.files import REAL_FILES

INTERVAL_SECONDS = 0.002
SPINNING_INTERVAL_SECONDS = 0.0001
RECORD_BYTES = 77  # In the file, of eight bytes.
WARM_UP = 20
DUE = struct.Struct("=q")
THE_END = -1
DUE_AT = 3072  # In the yardstick's page, behind all that is used.
WRITTEN_AT = 3136


Ready = Callable[[], object]
Work = Callable[[Ready], Iterator[int]]


def in_child(work: Work) -> tuple[int, int]:
    """Start a process that sends how late it had each event; pid and pipe, once it is ready."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read_end)
            delays = [time.monotonic_ns() - due for due in work(lambda: os.write(write_end, b"!"))]
            os.write(write_end, struct.pack(f"={len(delays)}q", *delays))
        finally:
            os._exit(0)
    os.close(write_end)
    os.read(read_end, 1)
    return pid, read_end


def delays_of(pid: int, pipe: int) -> list[float]:
    """Return how late the process had each event, in seconds, ascending, once it has ended."""
    data = b""
    while piece := os.read(pipe, 1 << 16):
        data += piece
    os.close(pipe)
    os.waitpid(pid, 0)
    nanoseconds = struct.unpack(f"={len(data) // 8}q", data)
    return sorted(each / 1e9 for each in nanoseconds[WARM_UP:])


def at_a_fixed_rate(count: int, emit: Callable[[int], object]) -> None:
    """Call ``emit`` with the time at which it is due, so many times."""
    time.sleep(0.01)  # The child sleeps by then.
    begin = time.monotonic_ns()
    for at in range(count):
        due = begin + int(at * INTERVAL_SECONDS * 1e9)
        while (left := due - time.monotonic_ns()) > 0:
            time.sleep(left / 1e9)
        emit(due)


def _spinning(count: int, emit: Callable[[int], object]) -> None:
    """The same without sleeping; who comes late has missed its time: that is another matter."""
    time.sleep(0.01)
    now = time.monotonic_ns
    step = int(SPINNING_INTERVAL_SECONDS * 1e9)
    due = now()
    for _ in range(count):
        due = max(due + step, now())
        while now() < due:
            continue
        emit(due)


def latency(directory: Path, size: Size) -> Contest:
    """Time from the moment that a record is due to the moment that another process has it."""
    count = WARM_UP + max(10, size.calls // 50)
    fd = REAL_FILES.open(directory / "page", os.O_RDWR | os.O_CREAT)
    REAL_FILES.pwrite(fd, bytes(LIVE_BYTES), 0)
    mapping = REAL_FILES.map(fd, LIVE_BYTES, writable=True)
    page, memory = LivePage(mapping), mapping.writable_view
    plain = os.open(directory / "plain", os.O_RDWR | os.O_CREAT)
    log = logstore.open(directory / "follow-0")

    def wake_ups(ready: Ready) -> Iterator[int]:
        (before,) = DUE.unpack_from(memory, DUE_AT)
        ready()
        while True:
            word = page.prepare()
            (due,) = DUE.unpack_from(memory, DUE_AT)
            if due == before:
                page.wait(word, 1.0)
            elif due == THE_END:
                return
            else:
                before = due
                yield due

    def wake(due: int) -> None:
        DUE.pack_into(memory, DUE_AT, due)
        page.poke()

    def records(spin: float, ready: Ready) -> Iterator[int]:
        with log.follow(spin=spin, timeout=5.0) as follower:
            ready()
            for _, record in zip(range(count), follower, strict=False):
                yield DUE.unpack(record.value or b"")[0]

    def append(due: int) -> None:
        log.append(DUE.pack(due))

    position = 0

    def system_calls(ready: Ready) -> Iterator[int]:
        signal.alarm(60)  # It would spin for ever, were its parent gone.
        at = position
        ready()
        for _ in range(count):
            while DUE.unpack_from(memory, WRITTEN_AT)[0] <= at:
                continue
            (due,) = DUE.unpack_from(os.pread(plain, RECORD_BYTES, at))
            at += RECORD_BYTES
            yield due

    def write(due: int) -> None:
        nonlocal position
        os.pwrite(plain, DUE.pack(due).ljust(RECORD_BYTES), position)
        position += RECORD_BYTES
        DUE.pack_into(memory, WRITTEN_AT, position)

    def quantile(
        work: Work,
        emit: Callable[[int], object],
        part: float,
        _: Stopwatch,
        rate: Callable[[int, Callable[[int], object]], None] = at_a_fixed_rate,
    ) -> float:
        delays: list[float] = []
        while not delays:  # Those that come while the child cannot run are one wake-up.
            DUE.pack_into(memory, DUE_AT, 0)  # Else the last end might be taken for this one.
            child = in_child(work)
            rate(count, emit)
            wake(THE_END)
            delays = delays_of(*child)
        return delays[int(len(delays) * part)]

    variants, targets = [], []
    for part, floor, ambition in ((0.5, 1.5, 1.2), (0.99, 3.0, 1.5)):
        p = f"p{part * 100:.0f}"
        variants += [
            Variant(f"futex {p}", partial(quantile, wake_ups, wake, part), "wall"),
            Variant(f"follow {p}", partial(quantile, partial(records, 0.0), append, part), "wall"),
        ]
        targets.append(
            Target(
                f"another process has a record, {p}",
                f"follow {p}",
                f"futex {p}",
                floor,
                ambition,
                at_most=True,
                unit="futex wake-up",
                peer="broker 470 us" if part == 0.5 else "-",
            )
        )
    spinning = partial(quantile, rate=_spinning)
    variants += [
        Variant("system calls p50", partial(spinning, system_calls, write, 0.5), "wall"),
        Variant("spin p50", partial(spinning, partial(records, 1.0), append, 0.5), "wall"),
    ]
    targets += [
        Target(
            "the same, spinning, p50, seconds",
            "spin p50",
            None,
            1e-6,
            at_most=True,
            unit="s",
            peer="Chronicle 0.3 us",
        ),
        Target(
            "the same, spinning, p50",
            "spin p50",
            "system calls p50",
            at_most=True,
            unit="pwrite + pread",
        ),
    ]

    def close() -> None:
        log.close()
        os.close(plain)
        REAL_FILES.close(fd)

    return Contest("follow latency", tuple(variants), tuple(targets), rounds=5, close=close)


def asynchronous(directory: Path, size: Size) -> Contest:
    """``async for`` over records that are there, one by one and in batches."""
    values = Values.of(100, size.read_bytes // 4)
    log = logstore.open(written_log(directory / "async-0", values))

    def one_by_one(watch: Stopwatch) -> None:
        async def run() -> int:
            count = 0
            with log.follow("earliest", timeout=0.0) as records:
                async for _record in records:
                    count += 1
            return count

        with watch.running():
            count = asyncio.run(run())
        assert values.count == count

    def batches(watch: Stopwatch) -> None:
        async def run() -> int:
            count = 0
            with log.follow("earliest") as records:
                while batch := await records.batch_later(timeout=0.0):
                    count += len(batch)
            return count

        with watch.running():
            count = asyncio.run(run())
        assert values.count == count

    return Contest(
        "follow asyncio",
        (
            iterate_list("L of Records", list(log.read())),
            Variant("async for", one_by_one, "cpu", values.count),
            Variant("batches", batches, "cpu", values.count),
        ),
        (
            Target(
                "async for, records/s",
                "async for",
                None,
                200_000,
                1_000_000,
                unit="records/s",
            ),
            Target("async batches", "batches", "L of Records", 12, 8, at_most=True, unit="L"),
        ),
        close=log.close,
    )
