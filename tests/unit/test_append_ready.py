"""Ready batches: what C appends at once is what the general path would have made of them."""

from __future__ import annotations

import contextlib
import errno
import struct
import threading

import numpy as np
import pytest

from logstore._native import crc32c
from logstore.clock import ManualClock
from logstore.compression import CompressionType
from logstore.errors import (
    InvalidRecordError,
    LogStoreError,
    PoisonedError,
    StorageError,
)
from logstore.record import TimestampType, encode_batch
from logstore.simulated_files import FailingFiles
from logstore.testing import open_log

NOW = 1_700_000_000_000
EPOCH = 3
CONFIG = {"index.interval.bytes": 200}
SMALL_SEGMENTS = {"segment.bytes": 2000, "segment.index.bytes": 240, "index.interval.bytes": 100}
ANOTHER_TYPE = {"message.timestamp.type": "LogAppendTime"}


def batch(*values, offset=0, epoch=-1, timestamp=NOW, key=None, **fields):
    rows = [(None, timestamp + i, key, value, ()) for i, value in enumerate(values or (b"v",))]
    return encode_batch(rows, base_offset=offset, leader_epoch=epoch, **fields)


def changed(data, at, form, value):
    """The batch with another field and a right CRC."""
    data = bytearray(data)
    struct.pack_into(form, data, at, value)
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return bytes(data)


def follow(data, **arguments):
    return {"batches": data, "leader_epoch": EPOCH, "origin": "replication"} | arguments


def lead(data, **arguments):
    return {"batches": data, "leader_epoch": EPOCH} | arguments


class Pair:
    """Two logs, of which one goes the general way with everything, because somebody listens."""

    def __init__(self, directory, config):
        self.directory = directory
        clock = ManualClock(NOW)
        self.logs = [
            open_log(directory / name / "log-0", "x", config=config, clock=clock)
            for name in ("quick", "general")
        ]
        self.logs[1].add_listener(lambda _: None)
        for log in self.logs:
            log.append_batches(**lead(batch(b"the epoch", key=b"k")))

    def append(self, arguments):
        """Append to both; they say the same. Return whether C did the first one at once."""
        outcomes = []
        for log in self.logs:
            try:
                info = log.append_batches(**arguments)
                outcomes.append((info, info.batches is None))
            except LogStoreError as error:
                message = str(error).replace("quick", "general")
                outcomes.append((type(error), message, error.kafka_error_code))
        (first, *rest), (second, *_) = outcomes
        assert first == second
        return rest[0] is True

    def update_config(self, settings):
        """Change settings, and append a batch: the first one attaches the writer again."""
        for log in self.logs:
            log.update_config(settings)
        self.append(lead(batch(b"the settings", key=b"k")))

    def close(self):
        for log in self.logs:
            assert [] == list(log.check())
            log.close()
        quick, general = (self.directory / name / "log-0" for name in ("quick", "general"))
        names = sorted(path.name for path in general.iterdir())
        assert names == sorted(path.name for path in quick.iterdir())
        for name in set(names) - {"live-offsets"}:  # It counts changes, of which there are fewer.
            assert (general / name).read_bytes() == (quick / name).read_bytes(), name


@pytest.fixture(name="pair")
def _pair(tmp_path, request):
    pair = Pair(tmp_path, getattr(request, "param", CONFIG))
    yield pair
    pair.close()


PLAIN = {
    "one": lead(batch()),
    "several records": lead(batch(b"a", b"", b"c" * 100)),
    "keys": lead(batch(b"a", b"b", key=b"k" * 10)),
    "long keys": lead(batch(b"a", b"b", key=b"k" * 100)),
    "headers": lead(encode_batch([(None, NOW, None, b"v", (("h", b"x"), ("n", None)))])),
    "null values": lead(batch(None, None, key=b"k")),
    "no timestamps": lead(encode_batch([(None, -1, None, b"v", ())] * 3)),
    "times go back": lead(encode_batch([(None, NOW - 1000 * i, None, b"v", ()) for i in range(5)])),
    "of another epoch": lead(batch(epoch=7)),
    "many records": lead(encode_batch([(None, NOW, None, b"%d" % i, ()) for i in range(9000)])),
    "a bytearray": lead(bytearray(batch())),
    "following": follow(batch(b"a", b"b", offset=1, epoch=EPOCH)),
    "a gap": follow(batch(b"a", b"b", offset=50, epoch=EPOCH)),
    "two": follow(batch(offset=1, epoch=EPOCH) + batch(offset=2, epoch=EPOCH, timestamp=NOW - 9)),
    "compressed": follow(
        batch(offset=1, epoch=EPOCH, compression=CompressionType.GZIP)
        + batch(offset=2, epoch=EPOCH)
    ),
    "log append time": follow(
        batch(
            offset=1, epoch=EPOCH, timestamp_type=TimestampType.LOG_APPEND_TIME, log_append_time=NOW
        )
    ),
    "a later leader": follow(batch(offset=1, epoch=EPOCH), leader_epoch=EPOCH + 1),
}
OTHER = {
    "nothing": lead(b""),
    "less than a batch": lead(batch()[:40]),
    "cut": lead(batch()[:-1]),
    "two of a client": lead(batch() + batch()),
    "damaged": lead(batch()[:-3] + b"xyz"),
    "damaged length": lead(batch()[:11] + b"\x00" + batch()[12:]),
    "old": lead(bytes(16) + b"\x01" + bytes(60)),
    "base offset": lead(batch(offset=9)),
    "compressed": lead(batch(compression=CompressionType.GZIP)),
    "producer": lead(batch(producer_id=5, producer_epoch=0, base_sequence=0)),
    "control": lead(changed(batch(), 21, ">h", 0x20)),
    "unknown attribute": lead(changed(batch(), 21, ">h", 0x80)),
    "log append time": lead(changed(batch(), 21, ">h", 0x08)),
    "wrong max timestamp": lead(changed(batch(), 35, ">q", NOW + 5)),
    "too few offsets": lead(changed(batch(b"a", b"b"), 23, ">i", 0)),
    "too many offsets": lead(changed(batch(b"a", b"b"), 23, ">i", 5)),
    "too few records": lead(changed(batch(b"a", b"b"), 57, ">i", 1)),
    "too many records": lead(changed(batch(b"a", b"b"), 57, ">i", 3)),
    "no records": lead(changed(batch()[:61], 8, ">i", 49)),
    "another epoch": lead(batch(), leader_epoch=EPOCH + 1),
    "coordinator": lead(batch(), origin="coordinator"),
    "raft leader": lead(batch(offset=1, epoch=EPOCH), origin="raft_leader"),
    "too late": lead(batch(timestamp=NOW + 10_000_000)),
    "too large": lead(batch(bytes(2 << 20))),
    "below the end": follow(batch(offset=0, epoch=EPOCH)),
    "unordered": follow(batch(offset=2, epoch=EPOCH) + batch(offset=1, epoch=EPOCH)),
    "epoch left out": follow(batch(offset=1, epoch=EPOCH + 1)),
    "epoch of a part": follow(batch(offset=1, epoch=EPOCH) + batch(offset=2, epoch=EPOCH + 1)),
    "new epoch": follow(batch(offset=1, epoch=EPOCH + 1), leader_epoch=EPOCH + 1),
    "unknown codec": follow(changed(batch(offset=1, epoch=EPOCH), 21, ">h", 0x07)),
    "follower's cut": follow(batch(offset=1, epoch=EPOCH) + batch(offset=2, epoch=EPOCH)[:30]),
    "second with producer": follow(
        batch(offset=1, epoch=EPOCH)
        + batch(offset=2, epoch=EPOCH, producer_id=5, producer_epoch=0, base_sequence=0)
    ),
    "too many batches": follow(b"".join(batch(offset=i, epoch=EPOCH) for i in range(1, 200))),
}


class TestSameAsGeneral:
    @pytest.mark.parametrize("arguments", PLAIN.values(), ids=PLAIN)
    def test_plain_batches_go_at_once(self, pair, arguments):
        """The answer and every byte of every file are the general path's."""
        assert pair.append(arguments)
        pair.append(lead(batch(b"and the next one")))

    @pytest.mark.parametrize("arguments", OTHER.values(), ids=OTHER)
    def test_others_go_the_general_way(self, pair, arguments):
        """What needs a decision, or is wrong, is left to Python; the log stays good for more."""
        assert not pair.append(arguments)
        pair.append(lead(batch(b"and the next one")))

    @pytest.mark.parametrize("pair", [SMALL_SEGMENTS], indirect=True)
    def test_rolls(self, pair):
        """A batch that needs a roll goes the general way, the ones between at once."""
        at_once = [pair.append(lead(batch(bytes(300)))) for _ in range(30)]
        assert {True, False} == set(at_once)
        assert len(pair.logs[0].segments) > 3

    @pytest.mark.parametrize("pair", [{"cleanup.policy": "compact"}], indirect=True)
    def test_compacted(self, tmp_path, pair):
        """In a compacted log a record needs a key."""
        assert pair.append(lead(batch(key=b"k")))
        assert not pair.append(lead(batch()))

    def test_append_time(self, pair):
        """A leader that stamps the time makes another CRC; a follower has nothing to stamp."""
        pair.update_config(ANOTHER_TYPE)
        assert not pair.append(lead(batch()))
        assert pair.append(follow(batch(offset=3, epoch=EPOCH)))

    def test_bounds_of_time(self, pair):
        """A record that is too old is refused, one at the bound is not."""
        pair.update_config({"message.timestamp.before.max.ms": 1000})
        assert pair.append(lead(batch(timestamp=NOW - 1000)))
        assert not pair.append(lead(batch(timestamp=NOW - 1001)))
        assert not pair.append(lead(batch(timestamp=-1)))

    def test_every_damaged_byte(self, pair):
        """Wherever one byte is wrong, both say the same."""
        good = batch(b"a", b"bc", key=b"k")
        for at in range(8, len(good)):
            damaged = bytearray(good)
            damaged[at] ^= 0x41
            pair.append(lead(bytes(damaged)))

    def test_every_damaged_record_byte(self, pair):
        """The same with a right CRC: the structure of the records decides."""
        rows = [(None, NOW + i, b"k" * i, b"v" * i, ()) for i in range(3)]
        good = encode_batch([*rows, (None, NOW, None, None, (("h", b"x"),))])
        for at in range(61, len(good)):
            for wrong in (good[at] ^ 0x41, good[at] ^ 0x80, 0, 1):
                pair.append(lead(changed(good, at, ">B", wrong)))

    @pytest.mark.parametrize("distance", [0, 1, 31, 32])
    def test_large_batches_from_anywhere(self, pair, distance):
        """Whatever the distance of the bytes to their place in the file, and over its pieces."""
        pair.update_config({"max.message.bytes": 4 << 20})
        for size in (70_000, 1_500_000):
            data = batch(b"x", bytes(range(256)) * (size // 256), b"y")
            room = np.zeros(len(data) + 8192, np.uint8)
            position = pair.logs[0].active_segment.size_bytes
            start = (position - distance - room.ctypes.data) % 4096
            room[start : start + len(data)] = np.frombuffer(data, np.uint8)
            assert pair.append(lead(memoryview(room)[start : start + len(data)]))


class TestOnItsOwn:
    def test_epoch_is_the_logs(self, tmp_path):
        """The first batch of an epoch tells the log of it; later ones have nothing to tell."""
        with open_log(tmp_path / "log-0", "x", clock=ManualClock(NOW)) as log:
            assert log.append_batches(**lead(batch())).batches is not None
            assert log.append_batches(**lead(batch())).batches is None
            assert [EPOCH] * 2 == [record.leader_epoch for record in log]

    @pytest.mark.parametrize("epoch", [-2, 2**31, 2**63])
    @pytest.mark.parametrize("origin", ["client", "coordinator", "raft_leader", "replication"])
    def test_an_epoch_that_is_none(self, tmp_path, origin, epoch):
        """What is not an int32 fits no batch and no checkpoint; nothing is written."""
        with open_log(tmp_path / "log-0", "x") as log:
            with pytest.raises(ValueError, match=f"leader_epoch {epoch} is not within"):
                log.append_batches(batch(), leader_epoch=epoch, origin=origin)
            with pytest.raises(ValueError, match=f"epoch {epoch}"):
                log.assign_epoch_start_offset(epoch, 0)
            assert (0, None) == (log.log_end_offset, log.leader_epochs.latest_epoch)
            assert 0 == log.append(b"v")

    @pytest.mark.parametrize("operation", ["pwritev", "pwrite"])
    def test_failed_write(self, tmp_path, operation):
        """A write that fails once is done again; one that fails on leaves the log as it was."""
        files = FailingFiles()
        with open_log(tmp_path / "log-0", "x", clock=ManualClock(NOW), files=files) as log:
            log.append_batches(**lead(batch()))
            files.fail(operation, errno.EIO)
            assert 1 == log.append_batches(**lead(batch())).first_offset
            for name in ("pwritev", "pwrite"):
                files.fail(name, errno.ENOSPC, persistent=True)
            with pytest.raises(StorageError):
                log.append_batches(**lead(batch()))
            files.clear()
            assert 2 == log.append_batches(**lead(batch())).first_offset
            assert [] == list(log.check())

    def test_poisoned(self, tmp_path):
        """After a failed fsync nothing is appended, quick or not."""
        files = FailingFiles()
        log = open_log(tmp_path / "log-0", "x", clock=ManualClock(NOW), files=files)
        log.append_batches(**lead(batch()))
        files.fail("fdatasync", errno.EIO)
        with pytest.raises(StorageError):
            log.flush()
        with pytest.raises(PoisonedError):
            log.append_batches(**lead(batch()))
        with contextlib.suppress(StorageError):
            log.close()

    def test_beside_other_appends(self, tmp_path):
        """Large ready batches, records and lists from several threads: each has its own offsets."""
        count = 40
        large = batch(*[bytes(1000)] * 100)
        seen = []
        with open_log(tmp_path / "log-0", "x", clock=ManualClock(NOW)) as log:
            log.append_batches(**lead(batch()))

            def ready():
                for _ in range(count):
                    info = log.append_batches(**lead(large))
                    seen.append(range(info.first_offset, info.last_offset + 1))

            def records():
                for _ in range(count):
                    offset = log.append(b"one")
                    seen.append(range(offset, offset + 1))

            def lists():
                seen.extend(log.extend([bytes(100)] * 50) for _ in range(count))

            threads = [threading.Thread(target=work) for work in (ready, ready, records, lists)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            offsets = sorted(offset for part in seen for offset in part)
            assert list(range(1, log.log_end_offset)) == offsets
            assert [] == list(log.check())


LARGE_LIST = [bytes([i % 251]) * 1000 for i in range(3000)]
LISTS = {
    "nothing": [],
    "one": [b"v"],
    "a tuple": (b"a", b"b"),
    "nulls": [None, b"", None],
    "a bytearray": [b"a", bytearray(b"b"), b"c"],
    "other buffers": [b"a", memoryview(b"b"), np.zeros(3, np.uint8)],
    "pieces": LARGE_LIST,
    "text at the end": [*LARGE_LIST, "text"],
    "no buffer": [b"a", 5],
    "too large": [b"a", bytes(2 << 20), b"b"],
}


class TestLists:
    @pytest.mark.parametrize("values", LISTS.values(), ids=LISTS)
    def test_same_as_general(self, pair, values):
        """Offsets, errors and every byte of every file are the general path's."""
        outcomes = []
        for log in pair.logs:
            try:
                outcomes.append(log.extend(values))
            except (LogStoreError, TypeError) as error:
                outcomes.append((type(error), str(error)))
        assert outcomes[0] == outcomes[1]
        assert pair.logs[0].log_end_offset == pair.logs[1].log_end_offset
        pair.append(lead(batch(b"and a batch")))

    @pytest.mark.parametrize("pair", [SMALL_SEGMENTS], indirect=True)
    def test_rolls(self, pair):
        """Lists that fit the segment, that fit the next one, and that fit none."""
        for count in [1, 2, 3, 5, 8] * 10 + [100]:
            first, second = (log.extend([bytes(100)] * count) for log in pair.logs)
            assert first == second
        assert len(pair.logs[0].segments) > 5

    @pytest.mark.parametrize("pair", [{"cleanup.policy": "compact"}], indirect=True)
    def test_compacted(self, pair):
        """Without keys nothing is taken."""
        for log in pair.logs:
            with pytest.raises(InvalidRecordError):
                log.extend([b"v"])

    def test_a_change_waits_for_the_list(self, tmp_path):
        """A roll that comes while a list is written without the GIL comes before or after it."""
        with open_log(tmp_path / "log-0", "x", clock=ManualClock(NOW)) as log:
            log.append(b"first")
            found = []

            def extend():
                found.extend(log.extend(LARGE_LIST) for _ in range(10))

            thread = threading.Thread(target=extend)
            thread.start()
            while thread.is_alive():
                log.roll()
                log.append_batches(**lead(batch(b"between"), leader_epoch=0))
            thread.join()
            assert all(len(LARGE_LIST) == len(offsets) for offsets in found)
            assert [] == list(log.check())
            values = list(log.read_values())
            for offsets in found:
                assert LARGE_LIST == values[offsets.start : offsets.stop]
