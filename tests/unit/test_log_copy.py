"""A copy of a log: the same records at the same offsets, whatever had to be encoded anew."""

from __future__ import annotations

import struct
import zlib

import pytest

import logstore
from logstore.errors import CorruptRecordError, LogExistsError, OffsetOutOfRangeError
from logstore.log_comparison import compare_logs
from logstore.log_copy import copy_log
from logstore.record import RecordBatch, encode_batch

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(name="source")
def _source(tmp_path):
    """Ten batches of ten records with all that records have, over several segments."""
    with logstore.open(tmp_path / "orders-0", config={"segment.bytes": 2000}) as log:
        for number in range(10):
            log.extend(
                [b"value %d" % number * 3] * 9 + [None],
                keys=[b"%d" % each if each else None for each in range(10)],
                headers=[[("h", b"1"), ("n", None)]] * 10,
                timestamps=range(1_700_000_000_000 + number, 1_700_000_000_010 + number),
                compression=CODECS[number % 5],
            )
        yield log


@pytest.fixture(name="target")
def _target(tmp_path):
    with logstore.open(tmp_path / "copy" / "orders-0") as log:
        yield log


def batches(log, start=None):
    first = log.log_start_offset if start is None else start
    fetched = log.fetch(first, max_bytes=1 << 20, isolation="log_end")
    return list(fetched.batches())


def test_batches_are_kept_byte_for_byte(source, target):
    """Over segment borders; what was done is told."""
    told = []
    copied = copy_log(source, target, advance=told.append)
    assert range(100) == copied.offsets
    assert source.size_bytes == copied.size_bytes == target.size_bytes
    assert sum(told) == 100
    assert list(source) == list(target)
    assert source.log_end_offset == target.log_end_offset


@pytest.mark.parametrize("codec", CODECS)
def test_another_codec(source, target, codec):
    """Every batch has it, and the records are the same."""
    copy_log(source, target, compression=codec)
    assert {codec} == {batch.compression_type.label for batch in batches(target)}
    assert list(source) == list(target)


@pytest.mark.parametrize(("start", "stop"), [(0, 55), (37, 100), (13, 17), (20, 30), (40, 40)])
@pytest.mark.parametrize("codec", [None, "lz4"])
def test_a_range_cuts_batches(source, target, start, stop, codec):
    """The copy begins and ends exactly there, with the offsets that the records had."""
    assert range(start, stop) == copy_log(source, target, start, stop, compression=codec).offsets
    assert (start, stop) == (target.log_start_offset, target.log_end_offset)
    assert list(source.read(start, stop)) == list(target)


def test_it_goes_on_where_it_ended(source, target):
    """In the middle of a batch, too; the second time nothing is left to do."""
    copy_log(source, target, stop=44, compression="zstd")
    assert range(44, 100) == copy_log(source, target).offsets
    assert range(100, 100) == copy_log(source, target).offsets
    source.append(b"new")
    assert range(100, 101) == copy_log(source, target).offsets
    assert list(source) == list(target)


class TestRefusals:
    def test_other_records(self, source, target):
        """A target with records of its own stays as it is."""
        target.extend([b"mine"] * 50)
        with pytest.raises(LogExistsError, match="another record at offset 40"):
            copy_log(source, target)
        assert 50 == target.log_end_offset

    def test_more_records(self, source, target):
        """A target that is ahead was not copied from there."""
        copy_log(source, target)
        target.append(b"mine")
        with pytest.raises(LogExistsError, match="ends at offset 101, behind"):
            copy_log(source, target)

    def test_records_that_are_gone(self, source, target):
        """A hole is not copied over."""
        copy_log(source, target, stop=10)
        source.maybe_increment_log_start_offset(50)
        with pytest.raises(OffsetOutOfRangeError, match="begins at 50 only"):
            copy_log(source, target)
        assert 10 == target.log_end_offset

    @pytest.mark.parametrize("codec", [None, "gzip"])
    # Of a batch, in its offset or in its value; a high bit in the last one moves the log end.
    @pytest.mark.parametrize(("batch", "at"), [(5, 0), (5, 7), (5, 100), (9, 7), (9, 100)])
    def test_damage(self, tmp_path, target, codec, at, batch):
        """It is not copied, nor left out; what lies before is copied."""
        path = tmp_path / "damaged-0"
        with logstore.open(path) as log:
            for number in range(10):
                log.append(b"%d" % number * 100)
        file = path / "00000000000000000000.log"
        data = bytearray(file.read_bytes())
        data[batch * len(data) // 10 + at] ^= 1
        file.write_bytes(data)
        with logstore.open(path, mode="r") as log:
            with pytest.raises(CorruptRecordError):
                copy_log(log, target, compression=codec)
            assert target.log_end_offset <= batch
            assert [b"%d" % n * 100 for n in range(target.log_end_offset)] == (
                list(target.read_values())
            )

    def test_batches_that_overlap(self, tmp_path, target):
        """A base offset that is too low, which no CRC covers, loses no record and alters none."""
        path = tmp_path / "damaged-0"
        with logstore.open(path) as log:
            for _ in range(10):
                log.extend([b"v"] * 10)
        file = path / "00000000000000000000.log"
        data = bytearray(file.read_bytes())
        data[5 * len(data) // 10 + 7] ^= 2  # 50 becomes 48.
        file.write_bytes(data)
        with logstore.open(path, mode="r") as log, pytest.raises(CorruptRecordError, match="48"):
            copy_log(log, target)
        assert 50 >= target.log_end_offset


class TestProducers:
    @pytest.fixture(name="store")
    def _store(self, tmp_path):
        config = {"transaction.state.log.num.partitions": 1}
        with logstore.open_store(tmp_path / "data", config=config) as store:
            store.create_topic("orders")
            yield store

    def test_transactions(self, store, target):
        """Aborted records stay aborted, and an open transaction is left for the next time."""
        for outcome in ("commit", "abort"):
            transaction = store.transaction("t")
            transaction.append(("orders", 0), outcome.encode())
            getattr(transaction, outcome)()
        store["orders", 0].append(b"plain")
        transaction = store.transaction("t")
        transaction.append(("orders", 0), b"late")
        transaction.flush()
        log = store["orders", 0]
        copied = copy_log(log, target)
        assert log.last_stable_offset == copied.offsets.stop < log.log_end_offset
        assert [b"commit", b"plain"] == list(target.read_values())
        transaction.commit()
        copy_log(log, target)
        assert [b"commit", b"plain", b"late"] == list(target.read_values())
        assert log.producer_state.active_producers.keys() == (
            target.producer_state.active_producers.keys()
        )

    def test_a_cut_batch_keeps_its_sequence_numbers(self, tmp_path, target):
        """The producer may go on: its numbers moved along with the first record."""
        rows = [(None, 1, None, b"%d" % number, ()) for number in range(10)]
        with logstore.open(tmp_path / "a-0") as log:
            log.append_batches(
                encode_batch(rows, producer_id=7, producer_epoch=0, base_sequence=0),
                leader_epoch=0,
            )
            copy_log(log, target, 4, 8)
        (batch,) = batches(target)
        assert (4, 7, 4, 7) == (
            batch.base_offset,
            batch.last_offset,
            batch.base_sequence,
            batch.last_sequence,
        )


def test_leader_epochs(tmp_path, source, target):
    """Each batch has the one that it had."""
    source.append_batches(encode_batch([(None, 1, None, b"v", ())]), leader_epoch=5)
    copy_log(source, target)
    assert 5 == batches(target)[-1].leader_epoch
    assert 5 == target.leader_epoch


def test_compacted(tmp_path, target):
    """Gaps are copied as gaps, at the beginning and at the end of a range, too."""
    with logstore.open(tmp_path / "c-0", config={"cleanup.policy": "compact"}) as log:
        for _ in range(3):
            log.extend([b"v"] * 20, keys=[b"%d" % each for each in range(20)])
        log.roll()
        log.append(b"end", key=b"end")
        log.compact()
        assert 61 > len(list(log))
        copy_log(log, target, 3, 51, compression="snappy")
        copy_log(log, target)
        assert compare_logs(log, target, 3).is_same
        assert log.log_end_offset == target.log_end_offset


def old_entry(offset, value, magic):
    """An entry of magic 0 or 1 with a key."""
    stamp = struct.pack(">q", 1000 + offset) if magic else b""
    body = struct.pack(">bb", magic, 0) + stamp
    for part in (b"key", value):
        body += struct.pack(">i", len(part)) + part
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def test_old_formats_become_new_ones(tmp_path, target):
    """Magic 0 and 1 cannot be appended; their records are what they were."""
    path = tmp_path / "old-0"
    path.mkdir()
    data = b"".join(old_entry(offset, b"%d" % offset, offset % 2) for offset in range(6))
    new = encode_batch([(6, 1, None, b"6", ())], leader_epoch=0)
    (path / "00000000000000000000.log").write_bytes(data + new)
    with logstore.open(path, mode="r") as log:
        copy_log(log, target)
        assert [b"%d" % offset for offset in range(7)] == list(target.read_values())
        assert [-1, 1001, -1, 1003, -1, 1005, 1] == [each.timestamp for each in target]
    assert all(isinstance(batch, RecordBatch) for batch in batches(target))
