"""Ranges of a segment file: bytes, batches, where to read on."""

from __future__ import annotations

import pytest

from logstore.errors import ClosedError, CorruptRecordError
from logstore.file_records import (
    CHUNK_BYTES,
    NO_RECORDS,
    FetchDataInfo,
    FileRecords,
    LogOffsetMetadata,
)
from logstore.files import REAL_FILES, FileHandle
from logstore.record import encode_batch


def batch(first, values):
    return encode_batch([(first + at, 1, None, value, ()) for at, value in enumerate(values)])


@pytest.fixture(name="handle_of")
def _handle_of(tmp_path):
    handles = []

    def make(data):
        path = tmp_path / f"{len(handles)}.log"
        path.write_bytes(data)
        handles.append(FileHandle(REAL_FILES, path))
        return handles[-1]

    yield make
    for handle in handles:
        handle.close()


class TestFileRecords:
    def test_bytes_of_a_range(self, handle_of):
        """A range is the file's bytes between two positions, whichever way they are asked for."""
        records = FileRecords(handle_of(b"0123456789"), 2, 6)
        buffer = bytearray(4)

        assert b"234567" == records.to_bytes()
        assert (4, b"2345") == (records.read_into(buffer), bytes(buffer))
        assert (1, b"7345") == (records.read_into(buffer, 5), bytes(buffer))
        assert (6, 2) == (records.size_bytes, records.file_position)
        assert 0 == records.read_into(buffer, 6)

    def test_next_offset_does_not_lead_back(self, handle_of):
        """A batch whose offset is too low, which no CRC tells, has nobody read in a circle."""
        data = batch(3, [b"a", b"b"]) + batch(1, [b"c"])
        assert 5 == FileRecords(handle_of(data), 0, len(data)).next_offset

    def test_batches_and_next_offset(self, handle_of):
        """Whole batches are yielded; a cut one at the end is ignored."""
        first, second = batch(3, [b"a", b"b"]), batch(7, [b"c"])
        whole = FileRecords(handle_of(b"??" + first + second), 2, len(first) + len(second))
        cut = FileRecords(handle_of(first + second), 0, len(first) + len(second) - 1)

        assert [3, 7] == [each.base_offset for each in whole.batches()]
        assert [3] == [each.base_offset for each in cut.batches()]
        assert (8, 5) == (whole.next_offset, cut.next_offset)

    def test_nothing_whole(self, handle_of):
        """A range that ends inside its first batch has no offset to go on from."""
        records = FileRecords(handle_of(batch(0, [b"value"])), 0, 60)
        assert [] == list(records.batches())
        assert records.next_offset is None

    def test_batches_larger_than_a_step(self, handle_of):
        """A batch that is larger than one read of the file is read alone."""
        large = [batch(at, [bytes(CHUNK_BYTES + 5)]) for at in range(2)]
        small = [batch(2 + at, [b"x"]) for at in range(3)]
        data = b"".join([small[0], large[0], *small[1:], large[1]])
        sizes = [each.size_bytes for each in FileRecords(handle_of(data), 0, len(data)).batches()]
        assert [len(small[0]), len(large[0]), *map(len, small[1:]), len(large[1])] == sizes

    def test_damage_is_located(self, handle_of):
        """An impossible length is reported with file and position, after what is before it."""
        good = batch(0, [b"a"])
        handle = handle_of(b"-" + good + bytes(40))
        found = []
        with pytest.raises(CorruptRecordError) as caught:
            found.extend(
                each.base_offset for each in FileRecords(handle, 1, len(good) + 40).batches()
            )
        assert (1 + len(good), handle.path) == (caught.value.position, caught.value.path)

    def test_file_shorter_than_its_range(self, handle_of):
        """Bytes that were written and are gone are damage, not an end."""
        records = FileRecords(handle_of(b"0123"), 1, 10)
        with pytest.raises(CorruptRecordError, match="ends 7 bytes before") as caught:
            records.to_bytes()
        assert 4 == caught.value.position
        with pytest.raises(CorruptRecordError):
            records.read_into(bytearray(10))

    def test_closed_file(self, handle_of):
        """After close a range cannot be read, and what was read stays."""
        handle = handle_of(b"0123")
        records = FileRecords(handle, 0, 4)
        data = records.to_bytes()
        handle.close()
        with pytest.raises(ClosedError):
            records.to_bytes()
        assert b"0123" == data

    def test_empty_range(self):
        """The empty answer needs no file."""
        assert not NO_RECORDS
        assert (b"", [], None, None) == (
            NO_RECORDS.to_bytes(),
            list(NO_RECORDS.batches()),
            NO_RECORDS.next_offset,
            NO_RECORDS.path,
        )
        assert 0 == NO_RECORDS.read_into(bytearray(3))


class TestLogOffsetMetadata:
    def test_order_and_distance(self):
        """Two known places compare by segment, and by bytes within one."""
        early, late = LogOffsetMetadata(5, 0, 100), LogOffsetMetadata(9, 0, 300)
        other = LogOffsetMetadata(20, 20, 0)
        assert late.on_same_segment(early)
        assert 200 == late.position_diff(early)
        assert early.on_older_segment(other)
        assert not other.on_older_segment(early)

    def test_only_the_offset(self):
        """An offset without place says so."""
        assert LogOffsetMetadata(5).message_offset_only
        assert not LogOffsetMetadata(5, 0, 0).message_offset_only


class TestFetchDataInfo:
    def test_next_offset_is_that_of_the_records(self, handle_of):
        """A fetch loop goes on behind the last whole batch."""
        data = batch(4, [b"a", b"b"])
        found = FetchDataInfo(
            LogOffsetMetadata(4, 0, 0), FileRecords(handle_of(data), 0, len(data))
        )
        assert 6 == found.next_offset
        assert found.aborted_transactions is None
