"""What many writers share: memory kept between appends, room allocated ahead (DESIGN.md D12)."""

from __future__ import annotations

import errno
import os

import pytest

from logstore import open as open_log
from logstore import open_store
from logstore._native import PROCESS_POOL, Writer, WriterPool
from logstore.clock import ManualClock
from logstore.errors import ConfigError
from logstore.files import REAL_FILES
from logstore.scheduler import ManualScheduler
from logstore.simulated_files import FailingFiles
from logstore.store import open_log_store
from logstore.store_config import StoreConfig

pytestmark = pytest.mark.linux  # Elsewhere room cannot be seen, or there is none.

MIB = 1 << 20
CHUNK = [bytes(1024)] * 64  # The least that has room allocated: 2 MiB of it, for more like it.


@pytest.fixture(autouse=True)
def _room_can_be_reserved(tmp_path):
    fd = REAL_FILES.open(tmp_path / "try", os.O_RDWR | os.O_CREAT)
    can_be = REAL_FILES.fallocate(fd, 0, 4096)
    REAL_FILES.close(fd)
    if not can_be:
        pytest.skip("this file system reserves nothing")


@pytest.fixture(name="make")
def _make(tmp_path):
    """Return a function that opens a store with one topic: its logs and its pool."""
    stores = []

    def make(partitions, **options):
        clock = ManualClock()
        store = open_log_store(
            tmp_path / f"data-{len(stores)}",
            clock=clock,
            scheduler=ManualScheduler(clock),
            **options,
        )
        stores.append(store)
        topic = store.create_topic("orders", partitions=partitions)
        return store, list(topic.logs()), store.writer_pool

    yield make
    for store in stores:
        if not store.is_closed:
            assert [] == list(store.check())
            store.close()
            assert (0, 0) == (store.writer_pool.staging_bytes, store.writer_pool.preallocated_bytes)


def room_ahead(log):
    """Bytes that the device holds behind the page in which a log ends."""
    state = os.stat(log.active_segment.log_path)
    return state.st_blocks * 512 - (state.st_size + 4095) // 4096 * 4096


def advance(store, minutes):
    store.scheduler._scheduler.advance_to(store.clock.milliseconds() + minutes * 60_000)


class TestRoomAhead:
    def test_all_logs_together(self, make):
        """The first get what they want, later ones less, then nothing; no record is missing."""
        _, logs, pool = make(8, config={"preallocated.bytes.max": 5 * MIB})
        for log in logs:
            log.extend(CHUNK)
            assert pool.preallocated_bytes <= 5 * MIB
        ahead = [room_ahead(log) for log in logs]
        assert sum(ahead) <= 5 * MIB
        assert ahead[0] == ahead[1] > ahead[2] > MIB // 2
        assert [0] * 5 == ahead[3:]
        for log in logs:
            for n in range(40):
                log.append(b"%d" % n)
            log.extend(CHUNK * 20)
            assert pool.preallocated_bytes <= 5 * MIB
            assert 40 + 64 * 21 == log.log_end_offset == log.scan().count()
        assert sum(map(room_ahead, logs)) <= 5 * MIB

    def test_none(self, make):
        """With 0 nothing is allocated ahead, ever."""
        store, logs, pool = make(2, config={"preallocated.bytes.max": 0})
        store.files.count_operations()
        before = store.files.operation_counts()["fallocate"]
        for log in logs:
            log.extend(CHUNK * 64)
            log.append(b"one")
        store.files.count_operations(False)
        assert before == store.files.operation_counts()["fallocate"]
        assert [0, 0] == [room_ahead(log) for log in logs]
        assert 0 == pool.preallocated_bytes

    def test_who_got_nothing_asks_again(self, make):
        """A log that was late is served when others have given their room back."""
        _, (early, late), pool = make(2, config={"preallocated.bytes.max": 2 * MIB})
        early.extend(CHUNK)
        late.extend(CHUNK)
        assert room_ahead(early) > MIB
        assert 0 == room_ahead(late)
        early.roll()
        assert 0 == pool.preallocated_bytes
        late.extend(CHUNK * 16)  # It asks a piece later, not at each append.
        late.extend(CHUNK)
        assert room_ahead(late) > MIB

    def test_refused_single_appends_stay_quick(self, make):
        """They ask once for each piece of 1 MiB: the pool is not looked at for each."""
        store, (early, late), _ = make(2, config={"preallocated.bytes.max": 2 * MIB})
        early.extend(CHUNK)
        late.extend(CHUNK * 17)
        store.files.count_operations()
        before = store.files.operation_counts()
        for _ in range(500):
            late.append(bytes(100))
        store.files.count_operations(False)
        after = store.files.operation_counts()
        assert before["fallocate"] == after["fallocate"]
        assert 500 <= after["pwrite"] - before["pwrite"] <= 520  # And index entries.

    @pytest.mark.parametrize("end", ["roll", "delete", "abandon", "truncate", "full"])
    def test_given_back(self, make, end):
        """What ends a segment, or a log, ends its share."""
        files = FailingFiles()
        store, (log,), pool = make(1, files=files)
        log.extend(CHUNK)
        assert 2 * MIB > pool.preallocated_bytes > MIB
        if end == "roll":
            log.roll()
        elif end == "delete":
            store.delete_topic("orders")
        elif end == "abandon":
            store.abandon()
        elif end == "truncate":
            log.truncate_to(1)
        else:
            files.fail("pwrite", errno.ENOSPC)
            log.extend(CHUNK)
        assert 0 == pool.preallocated_bytes

    def test_an_idle_log(self, make):
        """A minute without an append; one that is used keeps its own."""
        store, (used, idle), pool = make(2)
        used.extend(CHUNK)
        idle.extend(CHUNK)
        for _ in range(2):
            advance(store, 1)
            used.append(b"v")
        assert 0 == room_ahead(idle)
        assert room_ahead(used) > MIB
        assert room_ahead(used) <= pool.preallocated_bytes < 2 * MIB
        assert 0 < pool.staging_bytes < MIB
        idle.extend(CHUNK)
        assert room_ahead(idle) > MIB
        assert 128 == idle.scan().count()

    def test_an_append_under_way_is_not_idle(self, make):
        """Nobody waits for it, nothing of it is taken."""
        store, (log,), pool = make(1)
        log.extend(CHUNK)
        advance(store, 1)

        def values():
            yield from CHUNK
            advance(store, 1)
            yield from CHUNK

        log.extend(values())
        assert pool.preallocated_bytes > MIB
        assert 192 == log.scan().count()

    def test_stores_and_logs_have_their_own(self, make, tmp_path):
        """Stores share nothing; logs that belong to none share the bounds of the process."""
        _, (log,), pool = make(1, config={"preallocated.bytes.max": 0})
        _, (other,), other_pool = make(1)
        log.extend(CHUNK)
        other.extend(CHUNK)
        assert 0 == pool.preallocated_bytes < other_pool.preallocated_bytes
        before = PROCESS_POOL.preallocated_bytes
        with open_log(tmp_path / "alone") as alone:
            alone.extend(CHUNK)
            assert PROCESS_POOL.preallocated_bytes > before + MIB
        assert before == PROCESS_POOL.preallocated_bytes

    def test_a_log_that_stands_alone(self, tmp_path):
        """It looks after itself."""
        with open_log(tmp_path / "alone") as log:
            log.extend(CHUNK)
            log.give_back_if_idle()
            assert room_ahead(log) > MIB
            log.give_back_if_idle()
            assert 0 == room_ahead(log)


class TestStaging:
    def test_all_logs_together(self, make):
        """Who finds too little left keeps nothing; appends work all the same."""
        _, logs, pool = make(6, config={"staging.bytes.max": 256 << 10})
        for log in logs:
            log.extend(CHUNK)
            assert 0 < pool.staging_bytes <= 256 << 10
        for log in logs:
            assert CHUNK == list(log.read_values())

    def test_none(self, make):
        """With 0 each append gives back what it took."""
        _, (log,), pool = make(1, config={"staging.bytes.max": 0})
        log.extend(CHUNK)
        log.extend(CHUNK)
        assert 0 == pool.staging_bytes
        assert 128 == log.scan().count()


def test_defaults():
    """As DESIGN.md D12 states them."""
    config = StoreConfig()
    assert (64 * MIB, 1024 * MIB) == (config.staging_bytes_max, config.preallocated_bytes_max)
    properties = config.to_properties()
    assert "67108864" == properties["staging.bytes.max"]
    assert "1073741824" == properties["preallocated.bytes.max"]


def test_wrong_bounds(tmp_path):
    """Told together, before anything is made."""
    config = {"staging.bytes.max": "64M", "preallocated.bytes.max": -1}
    with pytest.raises(ConfigError, match=r"(?s)staging\.bytes\.max.*preallocated\.bytes\.max"):
        open_store(tmp_path / "data", config=config)
    assert not (tmp_path / "data").exists()


def test_a_pool_lives_as_long_as_its_writers():
    """Whoever made it may have let go of it."""
    pool = WriterPool(staging_bytes_max=1, preallocated_bytes_max=1)
    writers = [Writer(REAL_FILES.io, pool=pool) for _ in range(2)]
    del pool
    while writers:
        writers.pop().trim()
