"""Iteration over a log: every kind of batch, bounds, isolation, damage, where to read on."""

from __future__ import annotations

import base64
import zlib
from datetime import UTC, datetime
from weakref import WeakSet

import pytest

import logstore
from logstore.aborted_transactions import AbortedTransactions
from logstore.compression import CompressionType
from logstore.control_record import ControlRecordType, EndTransactionMarker
from logstore.entries import entry_headers
from logstore.errors import (
    ClosedError,
    CorruptRecordError,
    OffsetGapError,
    OffsetOutOfRangeError,
)
from logstore.file_records import AbortedTransaction, LogOffsetMetadata
from logstore.files import REAL_FILES, FileHandle
from logstore.readable_log import start_offset, stop_offset
from logstore.reader import RecordIterator
from logstore.record import (
    RecordBatch,
    empty_batch,
    encode_batch,
    end_transaction_marker,
    iterate_batches,
)
from logstore.single_record import read_first, read_last, read_one

LEGACY = base64.b16decode(
    # Spec 11, G9: two magic 1 messages at offsets 3 and 4, then a gzip wrapper at 4, then magic 0.
    "00000000000000030000001ab1a6ec76010000000000000003e8000000026b310000000276310000000000000004"
    "00000018ef17230e010000000000000003e9ffffffff000000027632",
    casefold=True,
)
WRAPPER = base64.b16decode(
    "0000000000000004000000515a2b9eaa010100000000000003e9ffffffff0000003b1f8b08000000000000ff6360"
    "8003a98dcbde94314239cc2f800453b621882c33840a822425de8b2bf3c155bdfc0f0460354600d084e0744a0000"
    "00",
    casefold=True,
)


def batch(first, values, **fields):
    """Encode records with consecutive offsets, timestamp = offset, key = decimal offset."""
    return encode_batch(
        [
            (first + at, first + at, b"%d" % (first + at), value, ())
            for at, value in enumerate(values)
        ],
        **fields,
    )


def marker(offset, producer_id, kind):
    return end_transaction_marker(
        EndTransactionMarker(kind, 0),
        producer_id=producer_id,
        producer_epoch=0,
        timestamp=offset,
        base_offset=offset,
    )


def transactional(first, values, producer_id):
    return batch(
        first,
        values,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )


class FakeSegment:
    """A segment that finds batches by walking, and has a given list of aborted transactions."""

    def __init__(self, path, base_offset, data, aborted=()):
        path.write_bytes(data)
        self.base_offset = base_offset
        self.size_bytes = len(data)
        self.handle = FileHandle(REAL_FILES, path)
        self.data = data
        self.log_path = str(path)
        self.aborted = list(aborted)
        self.collections = 0

    def read_at(self, position, size):
        return self.data[position : position + size]

    def headers(self, start=0, end=None):
        return entry_headers(self.read_at, start, self.size_bytes if end is None else end)

    def headers_from(self, offset):
        return self.headers()

    headers_around = headers_from

    def headers_end(self, offset):
        return self.size_bytes

    def collect_aborted_txns(self, fetch_offset, upper_bound_offset):
        self.collections += 1
        return self.aborted, False


class FakeLog:
    """The part of a log that reading needs."""

    decompressed_bytes_max = 1 << 20

    def __init__(self, segments, end, *, start=0, stable=None):
        self.segments = segments
        self.end = end
        self.log_start_offset = start
        self.stable = end if stable is None else stable
        self.is_closed = False
        self.truncations = 0
        self.readers = WeakSet()
        self.lowest = None

    @property
    def log_end_offset_metadata(self):
        last = self.segments[-1]
        return LogOffsetMetadata(self.end, last.base_offset, last.size_bytes)

    def truncate(self, target):
        self.truncations += 2
        self.lowest = target

    def truncated_to(self, since):
        return self.lowest if since != self.truncations else None

    def settled_truncations(self):
        return self.truncations

    def reading_end(self, isolation):
        if self.is_closed:
            raise ClosedError("closed; open the log again")
        return self.stable if isolation == "read_committed" else self.end

    def reading_segments(self, offset):
        at = max(
            (n for n, each in enumerate(self.segments) if each.base_offset <= offset), default=0
        )
        return tuple(self.segments[at:])

    def fetch_offset_by_timestamp(self, timestamp):
        for record in RecordIterator(self, self.log_start_offset, None, "log_end"):
            if record.timestamp >= timestamp:
                return record
        return None

    def read(self, start=None, stop=None, isolation="read_committed", **options):
        start = self.log_start_offset if start is None else start
        return RecordIterator(self, start, stop, isolation, **options)


@pytest.fixture(name="log_of")
def _log_of(tmp_path):
    made = []

    def make(*contents, end=None, aborted=(), **options):
        segments = []
        for data in contents:
            first = next(iterate_batches(data)).base_offset if data else 0
            segments.append(FakeSegment(tmp_path / f"{len(made)}.log", first, data, aborted))
            made.append(segments[-1])
        if end is None:
            end = max(each.next_offset for data in contents for each in iterate_batches(data))
        return FakeLog(segments, end, **options)

    yield make
    for segment in made:
        segment.handle.close()


def offsets(records):
    return [record.offset for record in records]


class TestPlainBatches:
    def test_records_over_segments(self, log_of):
        """Records of several batches and segments come in order, with all their fields."""
        log = log_of(batch(0, [b"a", None]) + batch(2, [b"c"]), batch(3, [b"d"], leader_epoch=7))
        records = list(log.read())
        assert [(0, b"0", b"a", 0), (1, b"1", None, 1), (2, b"2", b"c", 2), (3, b"3", b"d", 3)] == [
            (record.offset, record.key, record.value, record.timestamp) for record in records
        ]
        assert 7 == records[3].leader_epoch

    def test_values(self, log_of):
        """read_values gives the same values without the rest."""
        log = log_of(batch(0, [b"a", None]) + batch(2, [b"", b"d"]))
        assert [b"a", None, b"", b"d"] == list(log.read(values_only=True))

    @pytest.mark.parametrize("start", range(7))
    @pytest.mark.parametrize("stop", range(7))
    def test_every_start_and_stop(self, log_of, start, stop):
        """Both ends may lie inside batches, in the gap and between segments."""
        log = log_of(batch(0, [b"", b""]) + batch(3, [b""]), batch(4, [b"", b""]), end=6)
        expected = [offset for offset in (0, 1, 3, 4, 5) if start <= offset < stop]
        records = log.read(start, stop)
        assert expected == offsets(records)
        assert max(start, stop) == records.next_offset

    def test_many_records_in_many_blocks(self, log_of):
        """Batches of thousands of records are delivered in blocks that end inside them."""
        count = 5000
        log = log_of(batch(0, [b"%d" % at for at in range(count)]), batch(count, [b"last"]))
        values = list(log.read(values_only=True))
        assert [*(b"%d" % at for at in range(count)), b"last"] == values
        assert list(range(1500, count + 1)) == offsets(log.read(1500))

    def test_batches_larger_than_a_read(self, log_of):
        """A batch that is larger than one read of the file is read as a whole."""
        big = bytes(300_000)
        log = log_of(batch(0, [b"x"]) + batch(1, [big]) + batch(2, [b"y"]) + batch(3, [big, big]))
        assert [b"x", big, b"y", big, big] == list(log.read(values_only=True))

    def test_next_offset_at_every_step(self, log_of):
        """After each record, next_offset is where another read delivers the rest."""
        log = log_of(batch(0, [b"a", b"b"]) + batch(5, [b"c", b"d"]), batch(9, [b"e"]), end=12)
        for values_only in (False, True):
            records = log.read(values_only=values_only)
            assert 0 == records.next_offset
            assert [1, 2, 6, 7, 10] == [records.next_offset for _ in records]
            assert 12 == records.next_offset

    def test_limit(self, log_of):
        """No more than limit items; next_offset is behind the last."""
        log = log_of(batch(0, [b"a", b"b", b"c"]), batch(3, [b"d", b"e"]))
        for limit, expected in ((0, []), (2, [0, 1]), (4, [0, 1, 2, 3]), (9, [0, 1, 2, 3, 4])):
            records = log.read(limit=limit)
            assert expected == offsets(records)
            assert len(expected) == records.next_offset
        with pytest.raises(ValueError, match="limit -1 is negative"):
            log.read(limit=-1)

    def test_end_is_fixed_when_iteration_begins(self, log_of):
        """What is appended before the first step is read, what comes later is not."""
        log = log_of(batch(0, [b"a", b"b", b"c", b"d"]), end=1)
        records = log.read()
        log.end = log.stable = 2
        assert 0 == next(records).offset
        log.end = log.stable = 4
        assert [1] == offsets(records)
        assert [] == offsets(records)
        assert 2 == records.next_offset

    def test_unfinished_append_behind_the_end(self, log_of):
        """Bytes of an append that is not published yet are not looked at, whatever they are."""
        for tail in (b"\0" * 40, b"\xff" * 90, batch(2, [b"x"])[:-3], batch(2, [b"x"])[:11]):
            log = log_of(batch(0, [b"a", b"b"]) + tail, end=2)
            assert [0, 1] == offsets(log.read())

    def test_empty_log(self, log_of):
        """A log without a byte ends at once."""
        records = log_of(b"", end=0).read()
        assert [] == list(records)
        assert 0 == records.next_offset

    def test_offsets_that_truncation_left_without_records(self, log_of):
        """The log may end above its last batch: the read ends there without error."""
        records = log_of(batch(0, [b"a"]), end=5).read()
        assert [0] == offsets(records)
        assert 5 == records.next_offset


class TestOtherBatches:
    @pytest.mark.parametrize("codec", list(CompressionType)[1:])
    def test_compressed(self, log_of, codec):
        """Batches of each codec are read, between plain ones, with limits and bounds."""
        log = log_of(
            batch(0, [b"a"]) + batch(1, [b"b", None, b"d"], compression=codec) + batch(4, [b"e"])
        )
        assert [b"a", b"b", None, b"d", b"e"] == list(log.read(values_only=True))
        assert [2] == offsets(log.read(2, 3))
        records = log.read(values_only=True, limit=3)
        assert [b"a", b"b", None] == list(records)
        assert 3 == records.next_offset

    def test_next_offset_inside_a_compressed_batch(self, log_of):
        """Values of a compressed batch know where to read on, gaps included."""
        data = encode_batch(
            [(at, 0, None, b"v", ()) for at in (3, 5, 9)], compression=CompressionType.GZIP
        )
        records = log_of(data).read(0, values_only=True)
        assert [4, 6, 10] == [records.next_offset for _ in records]

    def test_large_compressed_batch_in_blocks(self, log_of):
        """A compressed batch of many records is delivered in several blocks."""
        count = 20_000
        log = log_of(batch(0, [b"x"] * count, compression=CompressionType.GZIP))
        assert list(range(100, count)) == offsets(log.read(100))

    def test_legacy(self, log_of):
        """Messages of the old formats are records too, wrapped or not."""
        log = log_of(LEGACY + batch(5, [b"new"]))
        assert [(3, b"k1", b"v1"), (4, None, b"v2"), (5, b"5", b"new")] == [
            (record.offset, record.key, record.value) for record in log.read(0)
        ]
        assert [(4, b"v2")] == [(record.offset, record.value) for record in log_of(WRAPPER).read(4)]
        records = log_of(WRAPPER).read(0, limit=1, values_only=True)
        assert ([b"v1"], 4) == (list(records), records.next_offset)

    def test_legacy_larger_than_a_read(self, log_of):
        """An entry of the old formats may be larger than one read of the file, or cut."""
        value = bytes(40_000)
        message = b"\1\0" + bytes(8) + b"\xff" * 4 + len(value).to_bytes(4, "big") + value
        message = zlib.crc32(message).to_bytes(4, "big") + message
        entry = (5).to_bytes(8, "big") + len(message).to_bytes(4, "big") + message
        log = log_of(LEGACY + entry + batch(6, [b"new"]))
        assert [(3, 2), (4, 2), (5, 40_000), (6, 3)] == [
            (record.offset, len(record.value)) for record in log.read()
        ]
        with pytest.raises(CorruptRecordError, match="ends inside"):
            list(log_of(LEGACY + entry[:-1], batch(6, [b"new"])).read())

    def test_empty_and_control_batches(self, log_of):
        """What compaction leaves and control records are stepped over, and their offsets too."""
        data = (
            batch(0, [b"a"])
            + empty_batch(
                base_offset=1, last_offset=4, producer_id=5, producer_epoch=0, base_sequence=0
            )
            + marker(5, 5, ControlRecordType.COMMIT)
            + batch(6, [b"b"])
            + marker(7, 5, ControlRecordType.COMMIT)
        )
        for isolation in ("read_committed", "read_uncommitted", "log_end"):
            records = log_of(data).read(0, isolation=isolation)
            assert [0, 6] == offsets(records)
            assert 8 == records.next_offset


class TestTransactions:
    DATA = (
        transactional(0, [b"a0"], 1)
        + transactional(1, [b"b1", b"b2"], 2)
        + batch(3, [b"plain"])
        + marker(4, 1, ControlRecordType.ABORT)
        + transactional(5, [b"a5"], 1)
        + marker(6, 2, ControlRecordType.COMMIT)
        + marker(7, 1, ControlRecordType.COMMIT)
        + transactional(8, [b"open"], 3)
    )
    ABORTED = (AbortedTransaction(1, 0),)

    def test_aborted_records_are_not_delivered(self, log_of):
        """A producer's records are skipped up to its abort marker, and not those after it."""
        log = log_of(self.DATA, aborted=self.ABORTED, stable=8)
        assert [1, 2, 3, 5] == offsets(log.read())
        assert [2, 3] == offsets(log.read(2, 5))

    def test_uncommitted_reads_see_everything(self, log_of):
        """The two other isolations deliver aborted and open transactions."""
        log = log_of(self.DATA, aborted=self.ABORTED, stable=8)
        for isolation in ("read_uncommitted", "log_end"):
            assert [0, 1, 2, 3, 5, 8] == offsets(log.read(isolation=isolation))
        assert 0 == log.segments[0].collections

    def test_without_transactions_nothing_is_collected(self, log_of):
        """The transaction indexes are only read when a transaction is met."""
        log = log_of(batch(0, [b"a", b"b"]))
        assert [0, 1] == offsets(log.read())
        assert 0 == log.segments[0].collections

    def test_transactions_without_an_aborted_one(self, log_of):
        """The list is asked for once in a segment; if it is empty, C takes over."""
        log = log_of(
            *[b"".join(transactional(n, [b"v"], 1) for n in range(at, at + 50)) for at in (0, 50)]
        )
        assert list(range(100)) == offsets(log.read())
        assert [2, 1] == [segment.collections for segment in reversed(log.segments)]

    def test_compressed_transactions(self, log_of):
        """Aborted and committed batches may be compressed."""
        data = b"".join(
            batch(
                first,
                [b"x", b"y"],
                producer_id=producer,
                producer_epoch=0,
                base_sequence=0,
                is_transactional=True,
                compression=CompressionType.ZSTD,
            )
            for first, producer in ((0, 1), (2, 2))
        )
        log = log_of(
            data + marker(4, 1, ControlRecordType.ABORT), aborted=[AbortedTransaction(1, 0)]
        )
        assert [2, 3] == offsets(log.read())

    def test_client_algorithm(self):
        """Transactions open at their first offset and close at their producer's abort marker."""
        aborted = AbortedTransactions([AbortedTransaction(9, 30), AbortedTransaction(9, 10)])
        seen = [
            aborted.is_aborted(RecordBatch(data))
            for data in (
                transactional(5, [b""], 9),
                transactional(10, [b""], 9),
                transactional(11, [b""], 8),
                marker(12, 9, ControlRecordType.ABORT),
                transactional(13, [b""], 9),
                transactional(29, [b"", b""], 9),
                batch(35, [b""]),
            )
        ]
        assert [False, True, False, True, False, True, False] == seen


class TestDamage:
    def damaged(self, data, at):
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    @pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.GZIP])
    def test_flipped_bit(self, log_of, codec):
        """What lies before damage is delivered, then the error says where it is, each time."""
        first, second = batch(0, [b"a", b"b"]), batch(2, [b"c" * 50], compression=codec)
        log = log_of(first + self.damaged(second, len(second) - 3) + batch(3, [b"d"]))
        for values_only in (False, True):
            records = log.read(values_only=values_only)
            assert 2 == len([next(records), next(records)])
            for _ in range(2):
                with pytest.raises(CorruptRecordError) as caught:
                    next(records)
                error = caught.value
                assert (2, len(first), log.segments[0].handle.path) == (
                    error.offset,
                    error.position,
                    error.path,
                )
            assert 2 == records.next_offset
        assert [3] == offsets(log.read(3))

    def test_every_byte_inside_the_crc(self, log_of):
        """No flipped bit is delivered as data."""
        data = batch(0, [b"key and value"])
        for at in range(16, len(data)):
            with pytest.raises(CorruptRecordError):
                list(log_of(self.damaged(data, at), end=1).read())

    def test_segment_that_ends_inside_a_batch(self, log_of):
        """A cut batch below the end of the log is damage, also where another segment follows."""
        first, second = batch(0, [b"a"]), batch(1, [b"b"])
        for kept in (5, 12, 40, len(second) - 1):
            log = log_of(first + second[:kept], batch(2, [b"c"]))
            records = log.read()
            assert 0 == next(records).offset
            with pytest.raises(CorruptRecordError) as caught:
                next(records)
            assert (1, len(first)) == (caught.value.offset, caught.value.position)

    def test_records_that_break_the_format(self, log_of):
        """A batch with a right CRC and impossible records is damage too."""
        data = bytearray(batch(0, [b"abcdef"]))
        data[61] = 2  # The first record's size.
        data[17:21] = crc(data[21:])
        with pytest.raises(CorruptRecordError, match="break the format"):
            list(log_of(bytes(data), end=1).read())

    def test_decompressed_size_is_bounded(self, log_of):
        """A batch that would decompress to more than the setting allows is refused."""
        log = log_of(batch(0, [bytes(2 << 20)], compression=CompressionType.ZSTD))
        with pytest.raises(CorruptRecordError):
            list(log.read())


def crc(data):
    from logstore._native import crc32c

    return crc32c(bytes(data)).to_bytes(4, "big")


class TestChangesDuringARead:
    def test_closed(self, log_of):
        """Closing the log ends every read at its next step."""
        log = log_of(b"".join(batch(at, [b"x"]) for at in range(3000)))
        records, values = log.read(), log.read(values_only=True)
        assert (0, b"x") == (next(records).offset, next(values))
        log.is_closed = True
        for reader in log.readers:
            reader.discard()
        for reader in (records, values):
            with pytest.raises(ClosedError):
                next(reader)
            assert 1 == reader.next_offset

    def test_segment_deleted_below_the_log_start(self, log_of):
        """A read that retention has overtaken fails; it does not skip in silence."""
        log = log_of(b"".join(batch(at, [b"x"]) for at in range(1500)), batch(1500, [b"y"]))
        records = log.read()
        next(records)
        log.segments.pop(0).handle.close()
        log.log_start_offset = 1500
        log.end = log.stable = 1600  # It has grown.
        with pytest.raises(OffsetOutOfRangeError, match="deleted while they were read") as caught:
            list(records)
        assert (1500, 1600) == (caught.value.log_start_offset, caught.value.log_end_offset)

    def test_file_replaced(self, log_of, tmp_path):
        """After a truncation the read goes on by offset in the new file, up to the new end."""
        batches = [batch(at, [b"x"]) for at in range(2000)]
        log = log_of(b"".join(batches))
        records = log.read()
        next(records)
        segment = log.segments[0]
        log.segments[0] = FakeSegment(tmp_path / "new.log", 0, b"".join(batches[100:1900]))
        segment.handle.close()
        log.end = log.stable = 1900
        rest = offsets(records)
        assert list(range(1, 1900)) == rest
        log.segments[0].handle.close()

    def test_truncated_and_written_again(self, log_of, tmp_path):
        """What was read ahead of a truncation is not delivered after it."""
        old = [batch(at, [b"old"]) for at in range(3000)]
        new = [*old[:2000], *(batch(at, [b"new"]) for at in range(2000, 3000))]
        log = log_of(b"".join(old))
        values = log.read(values_only=True)
        assert b"old" == next(values)
        log.truncate(2000)
        segment = log.segments[0]
        log.segments[0] = FakeSegment(tmp_path / "new.log", 0, b"".join(new))
        segment.handle.close()
        assert [b"old"] * 1999 + [b"new"] * 1000 == list(values)
        log.segments[0].handle.close()

    def test_truncated_below_a_read(self, log_of):
        """A read that lost what it stands on says so; it neither skips nor repeats."""
        log = log_of(b"".join(batch(at, [b"x"]) for at in range(2000)))
        records = log.read()
        while records.next_offset <= 1000 or records._index < len(records._block):
            next(records)
        reached = records.next_offset
        log.truncate(1000)
        with pytest.raises(OffsetOutOfRangeError, match="truncated") as caught:
            next(records)
        assert (reached, 1000) == (caught.value.offset, caught.value.log_end_offset)


class TestBounds:
    def test_start(self, log_of):
        """Offsets, times and words name a first offset."""
        log = log_of(batch(0, [b"a"] * 10), stable=8)
        assert 0 == start_offset(log, "earliest", "read_committed")
        assert 8 == start_offset(log, "latest", "read_committed")
        assert 10 == start_offset(log, "latest", "log_end")
        assert 10 == start_offset(log, 10, "read_committed")
        assert 3 == start_offset(log, datetime.fromtimestamp(0.003, UTC), "log_end")
        assert 8 == start_offset(log, datetime.now(UTC), "read_committed")

    @pytest.mark.parametrize("start", [-1, 2, 11])
    def test_start_outside(self, log_of, start):
        """An offset below the log start or above the end is an error with both bounds."""
        log = log_of(batch(3, [b"a"] * 7), start=3)
        with pytest.raises(OffsetOutOfRangeError) as caught:
            start_offset(log, start, "log_end")
        assert (3, 10, start) == (
            caught.value.log_start_offset,
            caught.value.log_end_offset,
            caught.value.offset,
        )

    @pytest.mark.parametrize("start", ["first", None, 1.0, True])
    def test_start_of_a_wrong_kind(self, log_of, start):
        """What is no start is told what would be."""
        with pytest.raises(TypeError, match="'earliest' or 'latest'"):
            start_offset(log_of(batch(0, [b"a"])), start, "log_end")

    def test_stop(self, log_of):
        """A stop beyond what may be read is that end; times are exclusive ends."""
        log = log_of(batch(0, [b"a"] * 10), stable=8)
        assert 8 == stop_offset(log, None, "read_committed")
        assert 8 == stop_offset(log, 99, "read_committed")
        assert 2 == stop_offset(log, 2, "log_end")
        assert 5 == stop_offset(log, datetime.fromtimestamp(0.005, UTC), "log_end")
        with pytest.raises(ValueError, match="stop -1 is negative"):
            stop_offset(log, -1, "log_end")
        with pytest.raises(TypeError, match="not 'latest'"):
            stop_offset(log, "latest", "log_end")

    def test_isolation(self, log_of):
        """A word that is no isolation is refused."""
        with pytest.raises(ValueError, match="is not one of read_committed"):
            start_offset(log_of(batch(0, [b"a"])), 0, "committed")

    def test_times(self, log_of):
        """A datetime without zone names no moment."""
        with pytest.raises(ValueError, match="has no time zone"):
            start_offset(log_of(batch(0, [b"a"])), datetime(2023, 11, 14), "log_end")  # noqa: DTZ001


class TestSingleRecords:
    def test_one(self, log_of):
        """A record by its offset."""
        log = log_of(batch(0, [b"a", b"b"]), batch(2, [b"c"]))
        assert [b"a", b"b", b"c"] == [read_one(log, at, "read_committed").value for at in range(3)]

    def test_gap(self, log_of):
        """An offset that no record has says which is the next, or the end."""
        log = log_of(batch(0, [b"a"]) + batch(5, [b"b"]), end=9)
        for offset, following in ((1, 5), (4, 5), (6, 9)):
            with pytest.raises(OffsetGapError) as caught:
                read_one(log, offset, "read_committed")
            assert (offset, following) == (caught.value.offset, caught.value.next_offset)

    def test_outside(self, log_of):
        """An offset below the start, at the end, or not stable yet is out of range."""
        log = log_of(batch(2, [b"a"] * 8), start=2, stable=6)
        for offset in (1, 6, 10):
            with pytest.raises(OffsetOutOfRangeError):
                read_one(log, offset, "read_committed")
        assert 6 == read_one(log, 6, "log_end").offset

    def test_first_and_last(self, log_of):
        """The first and last records that are delivered, over gaps, markers and aborted ones."""
        log = log_of(
            marker(0, 1, ControlRecordType.COMMIT)
            + batch(1, [b"first", b"x", b"last"])
            + transactional(4, [b"aborted"] * 40, 1)
            + marker(44, 1, ControlRecordType.ABORT),
            aborted=[AbortedTransaction(1, 4)],
        )
        assert b"first" == read_first(log, "read_committed").value
        assert b"last" == read_last(log, "read_committed").value
        assert 43 == read_last(log, "log_end").offset

    def test_none(self, log_of):
        """A log without records has neither."""
        for log in (log_of(b"", end=0), log_of(marker(0, 1, ControlRecordType.COMMIT))):
            assert (None, None) == (read_first(log, "log_end"), read_last(log, "log_end"))


class TestTruncation:
    def test_no_old_record_after_a_truncation(self, tmp_path):
        """What was read ahead is dropped, and a read that stands on nothing any more says so."""
        with logstore.open(tmp_path / "t-0") as log:
            log.extend([b"old %d" % at for at in range(3000)])
            for each in (log.read(), log.read_values()):
                log.truncate_to(0)
                log.extend([b"old %d" % at for at in range(3000)])
                first = [next(each) for _ in range(10)]
                log.truncate_to(0)
                log.extend([b"new %d" % at for at in range(3000)])
                each.discard()
                values = [getattr(item, "value", item) for item in first]
                assert [b"old %d" % at for at in range(10)] == values
                with pytest.raises(OffsetOutOfRangeError, match="read on from 0"):
                    next(each)

    def test_file_cut_under_a_read(self, log_of):
        """What looks like damage because of a truncation under way is read again."""
        log = log_of(batch(0, [b"a", b"b"]) + batch(2, [b"c"]))
        segment = log.segments[0]
        broken, whole = segment.handle, segment.data

        class Cut:
            path = "cut"

            def lease(self):
                raise CorruptRecordError("cut")

        def settle():
            segment.handle = broken
            log.truncations += 2
            return log.truncations

        assert whole
        segment.handle = Cut()
        segment.handle.files = REAL_FILES
        log.settled_truncations = settle
        assert [0, 1, 2] == offsets(log.read())
