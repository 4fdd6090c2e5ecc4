"""Scans: schema and selection, the same twice, lifetimes, bounds, every kind of batch, damage."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import random
import subprocess
import sys
import threading
from datetime import UTC, datetime

import pytest

import logstore
from logstore.control_record import ControlRecordType, EndTransactionMarker
from logstore.errors import MissingExtraError
from logstore.record import encode_batch, end_transaction_marker
from logstore.simulated_files import FailingFiles
from logstore.testing import open_log

pa = pytest.importorskip("pyarrow")

ALL = (
    *("offset", "timestamp", "key", "value", "headers"),
    *("topic", "partition", "timestamp_type", "leader_epoch"),
)
SMALL = {"segment.bytes": 2000, "batch.bytes": 500}
SMALL_SEGMENTS = pytest.mark.parametrize("log", [SMALL], indirect=True)


@pytest.fixture(name="log")
def _log(request, tmp_path):
    """A log that is checked after the test."""
    with logstore.open(tmp_path / "log-0", config=getattr(request, "param", None)) as log:
        yield log
        if not log.is_closed:
            assert [] == list(log.check())


def rows_of(records):
    """Records as the rows of a scan."""
    return [
        {
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": record.key,
            "value": record.value,
            "headers": [{"key": key, "value": value} for key, value in record.headers],
            "timestamp_type": record.timestamp_type,
            "leader_epoch": record.leader_epoch,
        }
        for record in records
    ]


def rows(scan):
    table = scan.to_table()
    table.validate(full=True)
    if "timestamp" in table.column_names:
        at = table.column_names.index("timestamp")
        table = table.set_column(at, "timestamp", table["timestamp"].cast(pa.int64()))
    return table.to_pylist()


def fill(log, count=200):
    """Records of all shapes: nulls, headers, sizes around those that views inline."""
    for number in range(count):
        size = (0, 1, 12, 13, 70, 300)[number % 6]
        log.append(
            None if number % 7 == 0 else bytes([number % 256]) * size,
            key=None if number % 2 else b"key-%d" % number,
            headers=[("h", None), ("ü", b"x" * size)] if number % 5 == 0 else (),
            timestamp=1_700_000_000_000 + number,
        )


def both(log, **options):
    """Check a scan, with and without views, against the records of a read, and return its rows."""
    expected = rows_of(log.read(**{k: v for k, v in options.items() if k != "batch_rows"}))
    start, stop = options.pop("start", "earliest"), options.pop("stop", None)
    names = ["offset", "timestamp", "key", "value", "headers", "timestamp_type", "leader_epoch"]
    for views in (False, True):
        scan = log.scan(start, stop, columns=names, views=views, **options)
        assert expected == rows(scan)
        assert len(expected) == scan.count()
    return expected


class TestSchema:
    def test_default(self, log):
        """Five columns, in this order; only keys, values and a header's value may be null."""
        header = pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.binary())])
        expected = pa.schema(
            [
                pa.field("offset", pa.int64(), nullable=False),
                pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
                pa.field("key", pa.binary()),
                pa.field("value", pa.binary()),
                pa.field("headers", pa.list_(header)),
            ]
        )
        scan = log.scan()
        assert expected == scan.schema
        assert expected == scan.to_table().schema
        assert expected == scan.to_arrow().schema

    def test_views(self, log):
        """Keys and values are views; what is in headers is not."""
        schema = log.scan(views=True).schema
        assert [pa.binary_view()] * 2 == [schema.field(name).type for name in ("key", "value")]

    def test_on_request(self, log):
        """Constants of the partition, and what the batch's header says."""
        log.append(b"v")
        found = rows(log.scan(columns=["partition", "topic", *ALL[7:]]))
        assert [{"partition": 0, "topic": "log", "timestamp_type": 0, "leader_epoch": 0}] == found

    def test_pandas_is_not_imported(self, tmp_path):
        """It takes longer than the reading, where pyarrow wants it for a scalar or a list."""
        with logstore.open(tmp_path / "log-0") as log:
            log.append(b"v")
        code = (
            "import sys, logstore\n"
            "with logstore.open(sys.argv[1], 'r') as log:\n"
            f"    assert log.scan(columns={[*ALL[:4], *ALL[5:]]}).to_table().num_rows == 1\n"
            "assert 'pandas' not in sys.modules\n"
        )
        subprocess.run([sys.executable, "-c", code, tmp_path / "log-0"], check=True)

    @pytest.mark.parametrize("name", ALL)
    def test_each_column_alone(self, log, name):
        """A selection gives what is selected, and the number of rows."""
        fill(log, 20)
        table = log.scan(columns=[name]).to_table()
        assert [name] == table.column_names
        assert log.scan(columns=ALL).to_table()[name].equals(table[name])

    def test_order_is_the_callers(self, log):
        """Columns come in the order that was asked for."""
        fill(log, 20)
        names = list(reversed(ALL))
        assert names == log.scan(columns=names).to_table().column_names

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"columns": ["offset", "offsets"]}, ValueError),
            ({"columns": ["key", "key"]}, ValueError),
            ({"columns": []}, ValueError),
            ({"columns": "key"}, TypeError),
            ({"isolation": "none"}, ValueError),
            ({"batch_rows": 0}, ValueError),
        ],
    )
    def test_wrong_arguments(self, log, options, error):
        """They are refused when the scan is made."""
        with pytest.raises(error):
            log.scan(**options)

    def test_topic_needs_a_partition_directory(self, tmp_path):
        """A directory that says no topic has none."""
        with logstore.open(tmp_path / "anything") as log:
            log.append(b"v")
            assert 1 == log.scan().count()
            with pytest.raises(ValueError, match="<topic>-<partition>"):
                log.scan(columns=["topic"])

    def test_missing_pyarrow_names_its_extra(self, log, monkeypatch):
        """The error says what to install."""
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(MissingExtraError, match=r"\[arrow\]"):
            log.scan()


class TestRows:
    @SMALL_SEGMENTS
    def test_like_read(self, log):
        """Rows are the records, over many segments and whatever the size of a record batch."""
        fill(log)
        assert 200 == len(both(log))
        for batch_rows in (1, 7, 64):
            both(log, batch_rows=batch_rows)
            sizes = [batch.num_rows for batch in log.scan(batch_rows=batch_rows).to_arrow()]
            assert batch_rows >= max(sizes)

    @SMALL_SEGMENTS
    @pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
    def test_compressed(self, log, codec):
        """Compressed batches among others, cut anywhere by the size of a record batch."""
        values = [b"value %d" % number for number in range(100)]
        log.extend(values, compression=codec)
        fill(log, 10)
        log.extend(values, keys=values, compression=codec)
        for batch_rows in (None, 1, 7):
            both(log, batch_rows=batch_rows)
        both(log, start=50, stop=150)

    @SMALL_SEGMENTS
    @pytest.mark.parametrize("time_type", ["CreateTime", "LogAppendTime"])
    def test_what_headers_say(self, log, time_type):
        """Columns for which no record is decoded: over any batches, cut anywhere, the same rows."""
        log.update_config({"message.timestamp.type": time_type})
        for codec in ("none", "zstd"):
            log.extend([b"value %d" % number for number in range(100)], compression=codec)
        batch = encode_batch(
            [(200 + delta, 5, None, b"v", ()) for delta in (0, 2, 3)],
            base_offset=200,
            leader_epoch=0,
        )
        log.append_batches(batch, leader_epoch=0, origin="replication")
        names = ["offset", "timestamp", "timestamp_type", "leader_epoch"]
        for options in ({}, {"start": 31, "stop": 177}, {"batch_rows": 7}, {"batch_rows": 64}):
            whole = log.scan(columns=[*names, "value"], **options).to_table().drop(["value"])
            for columns in (names, ["offset"], ["timestamp_type", "leader_epoch"]):
                found = log.scan(columns=columns, **options).to_table()
                assert whole.select(columns).equals(found)

    def test_empty(self, log):
        """An empty log has a schema and no rows."""
        scan = log.scan()
        assert ([], 0, 0) == (rows(scan), scan.count(), scan.stop)

    @SMALL_SEGMENTS
    def test_bounds(self, log):
        """Offsets and times, through the indexes; a stop before the start is an empty range."""
        fill(log)
        both(log, start=73, stop=121)
        at = datetime.fromtimestamp(1_700_000_000.1, UTC)
        assert 100 == log.scan(at).start
        assert 100 == log.scan(0, at).stop
        both(log, start=at)
        assert [] == rows(log.scan(100, 50))
        assert [] == rows(log.scan("latest"))
        with pytest.raises(logstore.OffsetOutOfRangeError):
            log.scan(201).to_table()

    def test_gaps(self, log):
        """Offsets that compaction took away are no rows."""
        for first in (0, 10, 30):
            batch = encode_batch(
                [(first + delta, 5, None, b"%d" % delta, ()) for delta in (0, 2, 3)],
                base_offset=first,
                leader_epoch=0,
            )
            log.append_batches(batch, leader_epoch=0, origin="replication")
        assert [0, 2, 3, 10, 12, 13, 30, 32, 33] == [row["offset"] for row in both(log)]
        assert [3, 10] == [row["offset"] for row in both(log, start=3, stop=12)]

    def test_large_records(self, log):
        """A record larger than a record batch should be has one of its own."""
        large = b"x" * (5 << 20)
        log.update_config({"max.message.bytes": str(64 << 20)})
        for value in (b"a", large, b"b", large, large):
            log.append(value, key=value[:1], headers=[("h", value)])
        both(log)
        sizes = [batch.num_rows for batch in log.scan(columns=["value"]).to_arrow()]
        assert [1, 1, 1, 1, 1] == sizes

    def test_names_that_are_no_text(self, log):
        """Malformed names become U+FFFD, as for Kafka's clients: Arrow's strings are UTF-8."""
        batch = encode_batch([(0, 0, None, b"v", (("b\udcff", b"1"), ("\udced\udca0", None)))])
        log.append_batches(batch, leader_epoch=0)
        scan = log.scan(columns=["headers"])
        expected = [{"key": "b\ufffd", "value": b"1"}, {"key": "\ufffd\ufffd", "value": None}]
        assert [{"headers": expected}] == rows(scan)

    def test_many_headers(self, log):
        """The room for headers grows within a record batch."""
        headers = [(f"name-{number}", b"v" * number) for number in range(300)]
        log.extend([b"v"] * 20, headers=[headers] * 20)
        both(log)
        assert [20] == [batch.num_rows for batch in log.scan().to_arrow()]


class TestTransactions:
    @staticmethod
    def append(log, first, values, producer_id):
        batch = encode_batch(
            [(first + at, first, None, value, ()) for at, value in enumerate(values)],
            base_offset=first,
            leader_epoch=0,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=first,
            is_transactional=True,
        )
        log.append_batches(batch, leader_epoch=0, origin="replication")

    @staticmethod
    def end(log, offset, producer_id, kind):
        marker = end_transaction_marker(
            EndTransactionMarker(kind, 0),
            producer_id=producer_id,
            producer_epoch=0,
            timestamp=offset,
            base_offset=offset,
            leader_epoch=0,
        )
        log.append_batches(marker, leader_epoch=0, origin="replication")

    @pytest.mark.parametrize("batch_rows", [None, 1])
    def test_isolation(self, log, batch_rows):
        """Aborted and undecided records are left out, or not; markers always."""
        self.append(log, 0, [b"a0", b"a1"], 1)
        self.append(log, 2, [b"b2", b"b3"], 2)
        self.end(log, 4, 1, ControlRecordType.ABORT)
        self.append(log, 5, [b"a5"], 1)
        self.end(log, 6, 2, ControlRecordType.COMMIT)
        self.end(log, 7, 1, ControlRecordType.COMMIT)
        log.roll()
        self.append(log, 8, [b"open"], 3)
        found = both(log, batch_rows=batch_rows)
        assert [b"b2", b"b3", b"a5"] == [row["value"] for row in found]
        found = both(log, batch_rows=batch_rows, isolation="read_uncommitted")
        assert [0, 1, 2, 3, 5, 8] == [row["offset"] for row in found]

    def test_committed_only(self, log):
        """Without an aborted transaction C steps over the markers."""
        for first in range(0, 30, 3):
            self.append(log, first, [b"x", b"y"], 1)
            self.end(log, first + 2, 1, ControlRecordType.COMMIT)
        assert 20 == len(both(log))


class TestUse:
    @SMALL_SEGMENTS
    def test_two_scans_agree(self, log):
        """The range is fixed at the first use, whatever is appended since."""
        fill(log, 50)
        scan = log.scan()
        log.append(b"before the first use")
        assert 51 == scan.count()
        log.append(b"after it")
        first, second = scan.to_table(), scan.to_table()
        assert first.equals(second)
        assert (51, 0, 51) == (first.num_rows, scan.start, scan.stop)
        assert 52 == log.scan().count()

    @SMALL_SEGMENTS
    def test_half_read_is_no_obstacle(self, log):
        """Readers of one scan do not know of each other."""
        fill(log, 50)
        scan = log.scan(batch_rows=10)
        first, second = scan.to_arrow(), scan.to_arrow()
        assert first.read_next_batch().equals(second.read_next_batch())
        assert 40 == first.read_all().num_rows == second.read_all().num_rows

    @pytest.mark.parametrize("views", [False, True])
    def test_data_outlives_the_log(self, tmp_path, views):
        """What was read stays when the log is closed, deleted and collected."""
        log = logstore.open(tmp_path / "t-0", config=SMALL)
        fill(log)
        expected = rows_of(log.read())
        scan = log.scan(columns=list(expected[0]), views=views)
        table = scan.to_table()
        log.delete()
        del log, scan
        gc.collect()
        at = table.column_names.index("timestamp")
        table = table.set_column(at, "timestamp", table["timestamp"].cast(pa.int64()))
        assert expected == table.to_pylist()

    def test_closed(self, log):
        """A reader of a closed log raises at its next step; so does a new one."""
        fill(log, 50)
        scan = log.scan(batch_rows=10)
        reader = scan.to_arrow()
        reader.read_next_batch()
        log.close()
        with pytest.raises(logstore.ClosedError):
            reader.read_next_batch()
        with pytest.raises(logstore.ClosedError):
            scan.to_table()
        with pytest.raises(logstore.ClosedError):
            log.scan()

    @SMALL_SEGMENTS
    def test_truncated_under_a_reader(self, log):
        """Records that are gone are no rows: the error has the valid range."""
        fill(log)
        reader = log.scan(batch_rows=10).to_arrow()
        reader.read_next_batch()
        log.truncate_to(60)
        with pytest.raises(logstore.OffsetOutOfRangeError) as caught:
            reader.read_all()
        assert (0, 60) == (caught.value.log_start_offset, caught.value.log_end_offset)
        assert 60 == log.scan().count()

    @SMALL_SEGMENTS
    def test_truncated_and_written_again(self, log):
        """Other records in the place of those that are gone are none of this scan's."""
        fill(log)
        scan = log.scan(0, 150, batch_rows=10)
        early = log.scan(0, 50)
        reader = scan.to_arrow()
        assert 10 == reader.read_next_batch().num_rows
        assert 50 == early.count()
        log.truncate_to(60)
        fill(log)
        for read in (reader.read_all, scan.to_table, scan.count):
            with pytest.raises(logstore.OffsetOutOfRangeError):
                read()
        assert 50 == early.to_table().num_rows == early.count()

    @SMALL_SEGMENTS
    @pytest.mark.parametrize("views", [False, True])
    def test_deleted_under_a_reader(self, log, views):
        """A reader whose records retention deletes goes on with what it has, or says so."""
        fill(log)
        expected = [record.offset for record in log.read()]
        scan = log.scan(batch_rows=10, views=views)
        reader = scan.to_arrow()
        batches = [reader.read_next_batch()]
        log.maybe_increment_log_start_offset(190)
        log.delete_old_segments()
        with contextlib.suppress(logstore.OffsetOutOfRangeError):
            batches.extend(reader)
        found = [offset for batch in batches for offset in batch["offset"].to_pylist()]
        assert expected[: len(found)] == found
        with pytest.raises(logstore.OffsetOutOfRangeError) as caught:
            scan.to_table()
        assert (190, 200) == (caught.value.log_start_offset, caught.value.log_end_offset)
        log.extend([b"later"] * 100)
        log.maybe_increment_log_start_offset(250)
        with pytest.raises(logstore.OffsetOutOfRangeError) as caught:
            scan.to_table()
        assert (250, 300) == (caught.value.log_start_offset, caught.value.log_end_offset)

    @SMALL_SEGMENTS
    def test_views_share_the_segment(self, log):
        """Views point into the mapped segment: a megabyte of them costs no copy."""
        log.extend([b"x" * 200] * 100)
        log.roll()
        column = log.scan(columns=["value"], views=True).to_table()["value"]
        sizes = [buffer.size for chunk in column.chunks for buffer in chunk.buffers()[2:]]
        files = [segment.size_bytes for segment in log.reading_segments(0)]
        assert set(sizes) <= set(files)

    def test_read_only(self, tmp_path):
        """A reader of files that others may write copies, and gives the same."""
        with logstore.open(tmp_path / "t-0", config=SMALL) as log:
            fill(log)
            expected = rows_of(log.read())
        with logstore.open(tmp_path / "t-0", "r") as log:
            assert expected == both(log)

    def test_viewed_segment_is_not_cut(self, tmp_path):
        """Without space for a copy a truncation waits until nobody looks: a cut would kill them."""
        files = FailingFiles()
        with open_log(tmp_path / "t-0", config=SMALL, files=files) as log:
            fill(log)
            segment = log.reading_segments(0)[0]
            assert segment.size_bytes > 1000
            table = log.scan(0, 10, views=True).to_table()
            values = table["value"].to_pylist()
            assert segment.views.is_viewed
            files.fail("copy_file_range", errno.ENOSPC)
            with pytest.raises(logstore.DiskFullError):
                log.truncate_to(5)
            assert values == table["value"].to_pylist()
            del table
            gc.collect()
            assert not segment.views.is_viewed
            files.fail("copy_file_range", errno.ENOSPC)
            assert log.truncate_to(5)
            assert 5 == log.scan().to_table().num_rows

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
    @pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
    @SMALL_SEGMENTS
    @pytest.mark.parametrize("views", [False, True])
    def test_forked_child(self, log, views):
        """A child goes on with a reader that its parent began, and so does the parent."""
        fill(log)
        scan = log.scan(batch_rows=10, views=views)
        reader = scan.to_arrow()
        reader.read_next_batch()
        child = os.fork()
        if child == 0:
            answers = (reader.read_all().num_rows, scan.to_table().num_rows, log.scan().count())
            os._exit(answers != (190, 200, 200))
        assert 0 == os.waitpid(child, 0)[1]
        assert 190 == reader.read_all().num_rows

    def test_repr(self, log):
        """It says its range once that is fixed."""
        scan = log.scan(columns=["offset"])
        assert "['earliest', None) offset" in repr(scan)
        scan.count()
        assert "[0, 0) offset" in repr(scan)


class TestBeside:
    """A scan beside a writer, of the same handle or of a reader's."""

    def test_reader_sees_what_is_written(self, log):
        """A new scan of a reader ends where the writer is; an old one where it was."""
        fill(log, 50)
        with logstore.open(log.directory, "r") as reader:
            scan = reader.scan()
            assert 50 == scan.to_table().num_rows
            fill(log, 10)
            log.roll()
            fill(log, 10)
            assert (50, 70) == (scan.count(), reader.scan().count())
            assert (
                log.scan().to_table().equals(reader.scan(views=True).to_table().cast(scan.schema))
            )
            log.truncate_to(30)
            for read in (scan.to_table, scan.count):
                with pytest.raises(logstore.OffsetOutOfRangeError):
                    read()
            assert 30 == reader.scan().to_table().num_rows

    @pytest.mark.parametrize("mode", ["a", "r"])
    @pytest.mark.parametrize("log", [SMALL], indirect=True)
    def test_writer_that_truncates(self, log, mode):
        """Every scan gives one state of the log, or says that it was truncated."""
        done = threading.Event()

        def write():
            draw, starts = random.Random(7), [0]
            for generation in range(60):
                # A target inside a batch takes what is before it, too.
                target = draw.choice(starts)
                log.truncate_to(target)
                starts = [start for start in starts if start <= target]
                starts.append(log.extend([b"%d" % generation] * draw.randrange(1, 40)).stop)
                if generation % 3 == 0:
                    log.roll()
            done.set()

        writer = threading.Thread(target=write)
        reader = log if mode == "a" else logstore.open(log.directory, "r")
        writer.start()
        scans = 0
        while not done.is_set() or scans == 0:
            try:
                scan = reader.scan(batch_rows=5, columns=["offset", "value"], views=scans % 2 == 1)
                table, count = scan.to_table(), scan.count()
            except logstore.OffsetOutOfRangeError:
                continue
            finally:
                scans += 1
            offsets = table["offset"].to_pylist()
            generations = [int(value) for value in table["value"].to_pylist()]
            assert sorted(set(offsets)) == offsets
            assert sorted(generations) == generations
            assert len(offsets) == count
        writer.join()
        if mode == "r":
            reader.close()


class TestDamage:
    @staticmethod
    def damaged(tmp_path, position, byte):
        with logstore.open(tmp_path / "t-0", config={"batch.bytes": 500}) as log:
            log.extend([b"v" * 40] * 100)
            path = log.reading_segments(0)[0].log_path
        with open(path, "r+b") as file:
            file.seek(position)
            file.write(byte)
        return logstore.open(tmp_path / "t-0", "r"), path

    @pytest.mark.parametrize("views", [False, True])
    def test_place(self, tmp_path, views):
        """What lies before the damage is delivered; the error says where it is."""
        log, path = self.damaged(tmp_path, 1300, b"\xff\xff")
        good = []
        with pytest.raises(logstore.CorruptRecordError) as expected:
            good.extend(record.offset for record in log.read())
        found = []
        with pytest.raises(logstore.CorruptRecordError) as caught:
            found.extend(
                offset
                for batch in log.scan(views=views).to_arrow()
                for offset in batch["offset"].to_pylist()
            )
        assert good == found
        for name in ("path", "offset", "position"):
            assert getattr(expected.value, name) == getattr(caught.value, name)
        assert path == caught.value.path
        log.close()

    def test_in_records_that_nobody_wants(self, tmp_path):
        """The CRC is checked, whatever the columns are."""
        log, _ = self.damaged(tmp_path, 1300, b"\xff\xff")
        found = []
        with pytest.raises(logstore.CorruptRecordError) as caught:
            found.extend(
                offset
                for batch in log.scan(columns=["offset"]).to_arrow()
                for offset in batch["offset"].to_pylist()
            )
        assert list(range(18)) == found
        assert (18, 968) == (caught.value.offset, caught.value.position)
        log.close()

    def test_unverified(self, tmp_path):
        """Without verification wrong bytes of a value are delivered."""
        log, _ = self.damaged(tmp_path, 1300, b"\xff\xff")
        assert 100 == log.scan(verify_crc=False).to_table().num_rows
        assert 100 == log.scan().count()
        log.close()

    def test_every_byte(self, tmp_path):
        """Any byte may be anything: a reader ends with rows or with an error of ours."""
        with logstore.open(tmp_path / "t-0") as log:
            log.append(b"value", key=b"key", headers=[("h", b"x")])
            log.extend([b"v" * 20] * 3, compression="lz4")
            path = log.reading_segments(0)[0].log_path
        with logstore.open(tmp_path / "t-0", "r") as log, open(path, "r+b") as file:
            whole = file.read()
            for position in range(len(whole)):
                file.seek(position)
                file.write(bytes([whole[position] ^ 0x81]))
                file.flush()
                for verify_crc in (True, False):
                    with contextlib.suppress(logstore.LogStoreError):
                        log.scan(verify_crc=verify_crc).to_table().validate(full=True)
                file.seek(position)
                file.write(whole[position : position + 1])
                file.flush()


class TestTools:
    """Each takes a scan as it is, and again."""

    @pytest.fixture(name="scan", params=[False, True], ids=["binary", "views"])
    def _scan(self, log, request):
        fill(log)
        log.roll()
        fill(log)
        return log.scan(views=request.param, batch_rows=30)

    def test_polars(self, scan):
        """One line, twice."""
        polars = pytest.importorskip("polars")
        for _ in range(2):
            frame = polars.DataFrame(scan)
            assert (400, 5) == frame.shape
            assert scan.to_table()["value"].to_pylist() == frame["value"].to_list()

    def test_duckdb(self, scan):
        """One line, twice; DuckDB finds the variable by its name."""
        duckdb = pytest.importorskip("duckdb")
        expected = (399, sum(len(value or b"") for value in scan.to_table()["value"].to_pylist()))
        for _ in range(2):
            found = duckdb.sql('SELECT max("offset"), sum(octet_length(value)) FROM scan')
            assert [expected] == found.fetchall()

    def test_duckdb_tells_of_damage(self, tmp_path):
        """An error under way is DuckDB's error, with what ours says."""
        duckdb = pytest.importorskip("duckdb")
        log, _ = TestDamage.damaged(tmp_path, 1300, b"\xff\xff")
        scan = log.scan()
        with pytest.raises(duckdb.Error, match="CRC-32C"):
            duckdb.sql("SELECT count(value) FROM scan").fetchall()
        assert scan.start == 0
        log.close()

    def test_pandas(self, scan):
        """One line, twice."""
        pandas = pytest.importorskip("pandas")
        for _ in range(2):
            frame = scan.to_table().to_pandas()
            assert (400, 5) == frame.shape
            assert pandas.Timestamp("2023-11-14T22:13:20.199Z") == frame["timestamp"].max()

    def test_pyarrow(self, scan):
        """A table or a reader of the same rows."""
        assert pa.table(scan).equals(scan.to_table())
        assert pa.RecordBatchReader.from_stream(scan).read_all().equals(scan.to_table())
