"""Batches whose base offset is damaged, which no CRC covers: nothing is lost in silence."""

from __future__ import annotations

import pytest

import logstore
from logstore.damage import sound_batch_after

ROWS = 10  # Records of a batch.


@pytest.fixture(name="path", params=["closed", "live"])
def _path(request, tmp_path):
    """A log of three segments with three batches each, and whether something writes it."""
    path = tmp_path / "orders-0"
    with logstore.open(path, config={"segment.bytes": 4000}) as log:
        for _ in range(9):
            _append(log)
        assert [0, 30, 60] == [segment.base_offset for segment in log.segments]
        if request.param == "live":
            yield path
            return
    yield path


def _append(log):
    log.extend([b"%0100d" % at for at in range(ROWS)])


def misplace(path, *, in_segment, batch, by=1 << 40):
    """Have a batch of a segment say that it is far up, or not; return its first offset."""
    with logstore.open(path, "r") as log:
        segment = log.segments[in_segment]
        header = list(segment.headers())[batch]
        with open(segment.log_path, "r+b") as file:
            file.seek(header.position)
            file.write((header.base_offset + by).to_bytes(8, "big", signed=True))
        return header.base_offset


@pytest.mark.parametrize("in_segment", [0, -1])
class TestBatchThatSaysItIsAboveTheEnd:
    """Found by every read; one that skips damage goes on behind it."""

    def test_read(self, path, in_segment):
        """What is before it is delivered, and what is behind it."""
        first = misplace(path, in_segment=in_segment, batch=1)
        with logstore.open(path, "r") as log:
            with pytest.raises(logstore.CorruptRecordError, match=f"offset {first + (1 << 40)}"):
                list(log.read())
            with pytest.raises(logstore.CorruptRecordError):
                list(log.read(first))
            records = log.read(on_corrupt="skip")
            lost = set(range(first, first + ROWS))
            expected = [at for at in range(log.log_end_offset) if at not in lost]
            assert expected == [record.offset for record in records]
            assert [(first, first + ROWS)] == [(each.start, each.stop) for each in records.skipped]
            with pytest.raises(logstore.CorruptRecordError):
                log[first]

    def test_scan(self, path, in_segment):
        """Also the scan, which counts, too."""
        pytest.importorskip("pyarrow")
        first = misplace(path, in_segment=in_segment, batch=1)
        with logstore.open(path, "r") as log:
            for views in (False, True):
                batches = log.scan(views=views).to_arrow()
                assert first == batches.read_next_batch().num_rows
                with pytest.raises(logstore.CorruptRecordError):
                    batches.read_next_batch()
            with pytest.raises(logstore.CorruptRecordError):
                log.scan().count()


# The last batch of a log that nobody writes says where the log ends.
@pytest.mark.parametrize(("in_segment", "batch"), [(0, 1), (0, 2), (-1, 1)])
@pytest.mark.parametrize("by", [-1, -5, -10, -15])
class TestBatchThatSaysItBeginsBelowTheEndOfTheLast:
    """Its records would get offsets of others, or be passed over."""

    def test_every_start(self, path, in_segment, batch, by):
        """Found from below, from any of its offsets, by every read; behind it all is well."""
        first = misplace(path, in_segment=in_segment, batch=batch, by=by)
        with logstore.open(path, "r") as log:
            lost, end = set(range(first, first + ROWS)), log.log_end_offset
            if end == first:
                return  # Below its segment's base offset: a log that nobody writes ends before it.
            for start in (0, first - 1, first, first + 4, first + ROWS - 1):
                for read in (lambda at: list(log.read(at)), lambda at: log.scan(at).count()):
                    with pytest.raises(logstore.CorruptRecordError, match="the one before it") as e:
                        read(start)
                    assert max(start, first) == e.value.offset
                records = log.read(start, on_corrupt="skip")
                expected = [at for at in range(start, end) if at not in lost]
                assert expected == [record.offset for record in records]
                assert [first + ROWS] == [each.stop for each in records.skipped]
            for offset in lost:
                with pytest.raises(logstore.CorruptRecordError):
                    log[offset]
            behind = list(range(first + ROWS, end))
            assert behind == [record.offset for record in log.read(first + ROWS)]


def test_a_batch_that_was_written_twice(path):
    """It hides nothing: every read steps over the repetition."""
    with logstore.open(path, "r") as log:
        segment = log.segments[0]
        data = segment.read_at(0, segment.size_bytes)
        _, second, last = segment.headers()
        with open(segment.log_path, "r+b") as file:
            file.seek(last.position)
            file.write(data[second.position : last.position] + data[last.position :])
    with logstore.open(path, "r") as log:
        for start in (0, 15, 25, 45):
            assert list(range(start, 90)) == [record.offset for record in log.read(start)]
            assert 90 - start == log.scan(start).count()
            assert start == log[start].offset
            pytest.importorskip("pyarrow")
            scanned = log.scan(start).to_table()["offset"].to_pylist()
            assert list(range(start, 90)) == scanned


def test_what_follows_damage_may_begin_below_the_read(tmp_path):
    """A read from inside a sound batch gets what that has from there on."""
    with logstore.open(tmp_path / "orders-0") as log:
        for _ in range(3):
            _append(log)
        (segment,) = log.segments
        _, damaged, sound = segment.headers()
        assert (sound.position, 20) == sound_batch_after(segment, damaged.position, 25, 30)
        assert sound_batch_after(segment, damaged.position, 30, 40) is None


@pytest.mark.parametrize("batch", [1, 2])
def test_a_damaged_batch_is_no_gap(path, batch):
    """A batch whose header has lost its last offsets is found by a read that begins at one."""
    with logstore.open(path, "r") as log:
        header = list(log.segments[0].headers())[batch]
        with open(log.segments[0].log_path, "r+b") as file:
            file.seek(header.position + 23)
            file.write(bytes(4))  # The last offset delta.
    wanted, end = header.base_offset + 5, header.base_offset + ROWS
    with logstore.open(path, "r") as log:
        records = log.read(wanted)
        for _ in range(2):
            with pytest.raises(logstore.CorruptRecordError):
                next(records)
        with pytest.raises(logstore.CorruptRecordError):
            log[wanted]
        pytest.importorskip("pyarrow")
        with pytest.raises(logstore.CorruptRecordError):
            log.scan(wanted).to_table()
        records = log.read(wanted, on_corrupt="skip")
        assert list(range(end, 90)) == [record.offset for record in records]
        assert [(wanted, end)] == [(each.start, each.stop) for each in records.skipped]


def test_damage_that_has_no_offsets_is_no_skipped_range(path, caplog):
    """Bytes between two whole batches: a warning, nothing is left out."""
    with logstore.open(path, "r") as log:
        _, second, third = list(log.segments[0].headers())[:3]
        log_path = log.segments[0].log_path
    with open(log_path, "r+b") as file:
        data = file.read()
        extra = bytearray(data[second.position : third.position])
        extra[16] = 9  # Its magic.
        file.seek(0)
        file.write(data[: third.position] + extra + data[third.position :])
    with logstore.open(path, "r") as log:
        records = log.read(stop=30, on_corrupt="skip")
        assert list(range(30)) == [record.offset for record in records]
        assert [] == records.skipped
    assert "no offset is missing" in caplog.text
