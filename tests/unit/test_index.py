"""OffsetIndex and TimeIndex: entries, searches, sizes, and readers while a file shrinks."""

from __future__ import annotations

import errno
import os
import struct
import threading

import numpy as np
import pytest

from logstore._native import BATCH_DTYPE, IndexView
from logstore.errors import (
    ClosedError,
    CorruptIndexError,
    IndexOffsetOverflowError,
    InvalidOffsetError,
    StorageError,
)
from logstore.index import (
    WARM_BYTES_MAX,
    OffsetIndex,
    OffsetPosition,
    TimeIndex,
    TimestampOffset,
)
from logstore.simulated_files import FailingFiles

BASE = 100


@pytest.fixture(name="index")
def _index(tmp_path):
    index = OffsetIndex(tmp_path / "00000000000000000100.index", BASE, 1024)
    yield index
    index.close()


@pytest.fixture(name="time_index")
def _time_index(tmp_path):
    index = TimeIndex(tmp_path / "00000000000000000100.timeindex", BASE, 1000)
    yield index
    index.close()


def batch_headers(*rows):
    """Headers of batches given as (position, last offset, max timestamp)."""
    batches = np.zeros(len(rows), BATCH_DTYPE)
    for slot, (position, last_offset, timestamp) in enumerate(rows):
        batches["position"][slot] = position
        batches["last_offset"][slot] = last_offset
        batches["max_timestamp"][slot] = timestamp
    return batches


class TestFile:
    def test_making_an_index_touches_no_file(self, index):
        """The file appears with the first use, at its full size."""
        assert not os.path.exists(index.path)
        assert 0 == index.entry_count
        assert 1024 == os.path.getsize(index.path)

    def test_preallocated_sizes_are_whole_entries(self, index, time_index):
        """Golden G10: 1024 bytes hold 128 offset entries, 1000 bytes 83 time entries in 996."""
        assert (128, 1024) == (index.max_entries, index.file_bytes)
        assert (83, 996) == (time_index.max_entries, time_index.file_bytes)
        assert 996 == os.path.getsize(time_index.path)

    def test_bytes_are_kafkas(self, index, time_index):
        """Golden G10: the bytes that Kafka writes for the same entries."""
        index.append(110, 4200)
        index.append(150, 9000)
        time_index.maybe_append(1700000000000, 110)
        time_index.maybe_append(1700000000500, 150)
        index.close()
        time_index.close()
        with open(index.path, "rb") as file:
            assert "0000000a000010680000003200002328" == file.read().hex()
        with open(time_index.path, "rb") as file:
            expected = "0000018bcfe568000000000a0000018bcfe569f400000032"
            assert expected == file.read().hex()

    def test_an_existing_file_counts_as_full(self, index):
        """A file left preallocated by a crash appears full of zero entries, as in Kafka."""
        index.append(110, 4200)
        index.close_handler()
        again = OffsetIndex(index.path, BASE, 1024)
        assert (128, True) == (again.entry_count, again.is_full)
        assert BASE == again.last_offset
        again.sanity_check()
        assert again.tail_problem(1 << 20) is not None
        again.close()

    def test_trim_and_reopen_keep_the_entries(self, index):
        """Closing cuts the file to its entries; opening counts them; resize makes room again."""
        index.append(110, 4200)
        index.close()
        assert 8 == os.path.getsize(index.path)
        again = OffsetIndex(index.path, BASE, 1024)
        assert (1, True, 110) == (again.entry_count, again.is_full, again.last_offset)
        assert again.resize(1027)
        assert not again.resize(1024)
        assert (128, False) == (again.max_entries, again.is_full)
        again.append(150, 9000)
        assert [[110, 4200], [150, 9000]] == again.entries().tolist()
        again.close()

    def test_an_odd_size_is_corrupt_and_trimmed_by_a_resize(self, index):
        """Half an entry at the end fails the sanity check; trimming cuts it off."""
        with open(index.path, "wb") as file:
            file.write(struct.pack(">II", 10, 4200) + b"\1\2\3")
        with pytest.raises(CorruptIndexError, match="multiple of 8"):
            index.sanity_check()
        assert index.tail_problem(1 << 20) is not None
        index.trim_to_valid_size()
        index.sanity_check()
        assert 8 == os.path.getsize(index.path)

    def test_close_of_an_unopened_index_changes_nothing(self, index):
        """An index that nobody needed is neither created nor cut."""
        with open(index.path, "wb") as file:
            file.write(bytes(16))
        index.close()
        assert 16 == os.path.getsize(index.path)

    def test_closed_and_deleted_indexes_refuse(self, index):
        """After close an index raises ClosedError; delete works twice."""
        index.append(110, 4200)
        index.delete()
        index.delete()
        assert not os.path.exists(index.path)
        with pytest.raises(ClosedError):
            index.lookup(110)
        with pytest.raises(ClosedError):
            _ = index.handle

    def test_rename_before_the_file_exists(self, index, tmp_path):
        """Renaming an index that was never made is accepted, as Kafka's lazy index does."""
        index.rename(tmp_path / "other.index")
        index.append(110, 4200)
        assert os.path.exists(tmp_path / "other.index")
        index.rename(tmp_path / "third.index")
        index.append(111, 4300)
        index.close()
        assert 16 == os.path.getsize(tmp_path / "third.index")

    def test_read_only_index_never_creates_a_file(self, tmp_path):
        """A missing file looks like an empty index when it may not be made."""
        index = OffsetIndex(tmp_path / "0.index", 0, 1024, writable=False)
        assert (0, 0) == (index.entry_count, index.max_entries)
        assert OffsetPosition(0, 0) == index.lookup(77)
        index.flush()
        index.close()
        assert [] == os.listdir(tmp_path)

    @pytest.mark.parametrize("before", [None, b"", b"x" * 7, bytes(1024)])
    @pytest.mark.parametrize("count", [0, 1, 5])
    def test_set_entries_is_all_that_is_there(self, tmp_path, before, count):
        """Whatever the file held, even in a mapping, it is exactly the new entries then."""
        path = tmp_path / "0.index"
        if before is not None:
            path.write_bytes(before)
        index = OffsetIndex(path, BASE, 1024)
        if before:
            index.lookup(BASE)
        entries = b"".join(struct.pack(">II", at + 1, 100 * at + 1) for at in range(count))
        index.set_entries(entries)
        assert entries == path.read_bytes()
        assert count == index.entry_count
        assert [[BASE + at + 1, 100 * at + 1] for at in range(count)] == index.entries().tolist()
        index.close()
        assert entries == path.read_bytes()

    def test_reset_makes_room_for_a_rebuild(self, index):
        """After a reset the index is empty and has its full size."""
        index.append(110, 4200)
        index.trim_to_valid_size()
        index.reset()
        assert (0, 128, 1024) == (index.entry_count, index.max_entries, index.file_bytes)
        index.append(105, 7)
        assert OffsetPosition(105, 7) == index.lookup(200)

    def test_flush_creates_the_file(self, index):
        """Flushing opens the index, as in Kafka, and works again after a trim."""
        index.flush()
        assert 1024 == os.path.getsize(index.path)
        index.append(110, 4200)
        index.trim_to_valid_size()
        index.flush()
        assert OffsetPosition(110, 4200) == index.lookup(110)

    def test_flush_after_one_that_could_not_open_the_file(self, tmp_path):
        """What a flush did not come to is left to the next."""
        files = FailingFiles()
        index = OffsetIndex(tmp_path / "00000000000000000100.index", BASE, 1024, files=files)
        index.append(110, 4200)
        index.release()
        files.fail("open", errno.EMFILE)
        with pytest.raises(StorageError):
            index.flush()
        before = files.calls("fdatasync")
        index.flush()
        assert before + 1 == files.calls("fdatasync")
        index.close()


class TestOffsetIndex:
    def test_lookup_is_the_greatest_lower_bound(self, index):
        """Lookup answers the last entry at or below, the segment's start when there is none."""
        assert OffsetPosition(BASE, 0) == index.lookup(BASE)
        index.append(110, 4200)
        index.append(150, 9000)
        assert OffsetPosition(BASE, 0) == index.lookup(109)
        assert OffsetPosition(110, 4200) == index.lookup(110)
        assert OffsetPosition(110, 4200) == index.lookup(149)
        assert OffsetPosition(150, 9000) == index.lookup(2**62)

    def test_upper_bound_of_a_fetch(self, index):
        """The first entry whose position is at or behind start plus size."""
        index.append(110, 4200)
        index.append(150, 9000)
        start = OffsetPosition(BASE, 0)
        assert OffsetPosition(110, 4200) == index.fetch_upper_bound_offset(start, 4199)
        # Kafka's search never compares the first entry for equality.
        assert OffsetPosition(150, 9000) == index.fetch_upper_bound_offset(start, 4200)
        assert OffsetPosition(150, 9000) == index.fetch_upper_bound_offset(start, 4201)
        assert index.fetch_upper_bound_offset(OffsetPosition(110, 4200), 4801) is None

    def test_offsets_must_increase_and_fit(self, index):
        """An offset not above the last, below the base or 2^31 above it is refused unwritten."""
        index.append(110, 4200)
        for offset in (110, 105):
            with pytest.raises(InvalidOffsetError):
                index.append(offset, 5000)
        for offset in (BASE - 1, BASE + 2**31):
            with pytest.raises(IndexOffsetOverflowError):
                index.append(offset, 5000)
        assert index.can_append_offset(BASE + 2**31 - 1)
        index.append(BASE + 2**31 - 1, 5000)
        assert 2 == index.entry_count

    @pytest.mark.parametrize(
        ("offset", "left"), [(99, 0), (110, 0), (111, 1), (150, 1), (151, 2), (2**40, 2)]
    )
    def test_truncate_to(self, index, offset, left):
        """Entries at or above the offset go, the file keeps its size."""
        index.append(110, 4200)
        index.append(150, 9000)
        index.truncate_to(offset)
        assert (left, 1024) == (index.entry_count, index.file_bytes)
        assert [BASE, 110, 150][left] == index.last_offset

    def test_entries_appended_through_the_descriptor(self, index):
        """Entries that somebody else wrote count once they are announced."""
        index.append(110, 4200)
        assert OffsetPosition(110, 4200) == index.lookup(150)
        with index.handle.lease() as fd:
            os.pwrite(fd, struct.pack(">II", 50, 9000), 8)
        assert OffsetPosition(110, 4200) == index.lookup(150)
        index.advance_entry_count(1)
        assert OffsetPosition(150, 9000) == index.lookup(150)
        assert 150 == index.last_offset

    def test_sanity_check_refuses_a_negative_last_offset(self, index):
        """A last offset that is negative as Kafka reads it is corrupt."""
        with open(index.path, "wb") as file:
            file.write(struct.pack(">iI", -5, 0))
        with pytest.raises(CorruptIndexError):
            index.sanity_check()


class TestLookupInC:
    def test_a_lookup_function_keeps_what_it_saw(self, index):
        """It answers positions, and goes on after the index was closed."""
        index.append(110, 4200)
        lookup = index.make_lookup()
        index.append(150, 9000)
        index.close()
        assert [0, 0, 4200, 4200] == [lookup(offset) for offset in (5, 109, 110, 2**62)]

    def test_large_indexes_are_searched_without_the_gil(self, tmp_path):
        """The answers are the same."""
        count = WARM_BYTES_MAX // 8 + 1
        entries = np.empty((count, 2), ">u4")
        entries[:, 0] = np.arange(1, count + 1)
        entries[:, 1] = np.arange(count)
        (tmp_path / "0.index").write_bytes(entries.tobytes())
        index = OffsetIndex(tmp_path / "0.index", 0)
        assert index._current_view().finder is None
        assert [(0, 0), (1, 0), (77, 76), (count, count - 1)] == [
            index.lookup(offset) for offset in (0, 1, 77, 2**60)
        ]
        index.close()

    def test_view_refuses_what_it_cannot_read(self):
        """Counts stay within the memory, arguments within int64."""
        memory = np.array([[10, 4200], [50, 9000]], ">u4")
        view = IndexView(memory, memory.ctypes.data, 2, 1, 100)
        assert [None, (110, 4200), (110, 4200)] == [view.find(n) for n in (99, 110, 150)]
        view.count = 2
        assert ((150, 9000), 9000, 2, 2) == (
            view.find(150),
            view.position(150),
            view.count,
            view.capacity,
        )
        for count in (3, -1, 2**64):
            with pytest.raises((ValueError, OverflowError)):
                view.count = count
        for arguments in (
            (None, 0, 1, 0, 0),
            (None, 8, 1, 2, 0),
            (None, 8, 1, -1, 0),
            (None, 8, 1, 0, -1),
        ):
            with pytest.raises(ValueError):
                IndexView(*arguments)
        with pytest.raises(TypeError):
            IndexView(memory, 8, 1, 0, base_offset=0)
        with pytest.raises(OverflowError):
            view.find(2**63)
        with pytest.raises(TypeError):
            view.position("1")
        with pytest.raises(ValueError):
            del view.count


class TestCheck:
    BATCHES = batch_headers((0, 104, 10), (70, 109, 30), (170, 119, 20), (260, 129, 40))

    def test_right_entries(self, index, time_index):
        """Entries per batch, and per append as releases up to 3.x wrote them, are right."""
        index.append(109, 70)
        index.append(129, 170)  # An append of the last two batches.
        time_index.maybe_append(10, 104)
        time_index.maybe_append(30, 107)  # A record's own offset, as 2.8 wrote it.
        time_index.maybe_append(40, 129)
        assert [] == list(index.check(self.BATCHES))
        assert [] == list(time_index.check(self.BATCHES))
        assert index.tail_problem(350) is None
        assert time_index.tail_problem() is None

    @pytest.mark.parametrize(
        ("entry", "problem"),
        [
            ((109, 71), "where no batch begins"),
            ((109, 5000), "where no batch begins"),
            ((109, 170), "before the position"),
            ((105, 70), "no batch ends with"),
            ((130, 260), "no batch ends with"),
        ],
    )
    def test_wrong_offset_entries(self, index, entry, problem):
        """An entry that would lead a reader astray, or that no batch explains, is named."""
        index.append(*entry)
        problems = list(index.check(self.BATCHES))
        assert 1 == len(problems)
        assert problem in problems[0]

    @pytest.mark.parametrize(
        ("entry", "problem"),
        [
            ((11, 104), "not the largest of the batch"),
            ((20, 119), "is younger"),
            ((40, 130), "beyond the log's end"),
        ],
    )
    def test_wrong_time_entries(self, time_index, entry, problem):
        """A timestamp that no batch explains, or that is not the largest so far, is named."""
        time_index.maybe_append(*entry)
        problems = list(time_index.check(self.BATCHES))
        assert 1 == len(problems)
        assert problem in problems[0]

    def test_zero_padding_and_odd_sizes(self, index, time_index):
        """What a crash leaves behind the last entry is found, by the check and by the tail."""
        index.append(109, 70)
        time_index.maybe_append(10, 104)
        index.close_handler()
        time_index.close_handler()
        for kind, path in ((OffsetIndex, index.path), (TimeIndex, time_index.path)):
            padded = kind(path, BASE, 1000)
            assert [] != list(padded.check(self.BATCHES))
            assert [] == list(padded.check(self.BATCHES, allow_padding=True))
            tail = padded.tail_problem(350) if kind is OffsetIndex else padded.tail_problem()
            assert tail is not None
            padded.close_handler()
            with open(path, "ab") as file:
                file.write(b"\0")
            odd = kind(path, BASE, 1000)
            assert "multiple" in next(iter(odd.check(self.BATCHES)))
            odd.close_handler()

    def test_entries_behind_a_shorter_log(self, index):
        """An index that is too long for its log is found in O(1)."""
        index.append(109, 70)
        assert index.tail_problem(71) is None
        assert "beyond" in index.tail_problem(70)

    def test_an_index_without_batches(self, index, time_index):
        """Against an empty log every entry is wrong, and an empty index is right."""
        none = batch_headers()
        assert [] == list(index.check(none))
        assert [] == list(time_index.check(none))
        index.append(109, 70)
        time_index.maybe_append(10, 104)
        assert 1 == len(list(index.check(none)))
        assert 1 == len(list(time_index.check(none)))


class TestTimeIndex:
    def test_maybe_append_keeps_only_larger_timestamps(self, time_index):
        """The same timestamp again and -1 write nothing."""
        time_index.maybe_append(-1, BASE)
        assert 0 == time_index.entry_count
        assert TimestampOffset(-1, BASE) == time_index.last_entry
        time_index.maybe_append(1000, 110)
        time_index.maybe_append(1000, 120)
        assert TimestampOffset(1000, 110) == time_index.last_entry
        with pytest.raises(InvalidOffsetError):
            time_index.maybe_append(2000, 109)

    def test_one_slot_is_kept_for_the_roll(self, tmp_path):
        """The index is full one entry early; the last slot takes the entry of the roll."""
        index = TimeIndex(tmp_path / "0.timeindex", 0, 36)
        index.maybe_append(1, 1)
        assert not index.is_full
        index.maybe_append(2, 2)
        assert index.is_full
        index.maybe_append(3, 3, skip_full_check=True)
        assert [[1, 1], [2, 2], [3, 3]] == index.entries().tolist()
        index.close()

    def test_lookup(self, time_index):
        """The last entry at or below the timestamp, else -1 and the base offset."""
        time_index.maybe_append(1000, 110)
        time_index.maybe_append(2000, 110)
        time_index.maybe_append(3000, 130)
        assert TimestampOffset(-1, BASE) == time_index.lookup(999)
        assert TimestampOffset(1000, 110) == time_index.lookup(1999)
        assert TimestampOffset(3000, 130) == time_index.lookup(2**62)
        assert TimestampOffset(2000, 110) == time_index.entry(1)

    def test_truncate_to_removes_by_offset(self, time_index):
        """Every entry at or above the offset goes, equal offsets included."""
        time_index.maybe_append(1000, 110)
        time_index.maybe_append(2000, 120)
        time_index.maybe_append(3000, 120)
        time_index.truncate_to(120)
        assert [[1000, 110]] == time_index.entries().tolist()
        assert TimestampOffset(1000, 110) == time_index.last_entry

    def test_sanity_check(self, time_index):
        """A last timestamp below the first one is corrupt: a zero-padded file."""
        time_index.maybe_append(1000, 110)
        time_index.sanity_check()
        time_index.close_handler()
        again = TimeIndex(time_index.path, BASE, 1000)
        with pytest.raises(CorruptIndexError):
            again.sanity_check()
        again.close_handler()

    def test_negative_timestamps_of_damage_do_not_crash(self, time_index):
        """Garbage is searched without leaving the file."""
        with open(time_index.path, "wb") as file:
            file.write(os.urandom(12 * 50 + 5))
        for timestamp in (-(2**63), -1, 0, 2**63 - 1):
            time_index.lookup(timestamp)
        assert (50, 2) == time_index.entries().shape
        time_index.truncate_to(BASE + 5)


class TestRelease:
    def test_released_files_open_again(self, index):
        """A sealed index gives mapping and descriptor up; lookups and flushes get them back."""
        index.append(110, 4200)
        lookup = index.make_lookup()
        index.release()
        assert 4200 == lookup(110)
        index.flush()
        assert OffsetPosition(110, 4200) == index.lookup(110)
        index.append(150, 9000)
        index.release()
        index.truncate_to(120)
        index.trim_to_valid_size()
        assert 4200 == lookup(110)
        assert 110 == index.last_offset


class TestReadersWhileTheFileShrinks:
    def test_a_file_that_readers_saw_is_replaced_not_cut(self, index):
        """Cutting below what a mapping has shown makes a new file; the old memory stays valid."""
        for slot in range(100):
            index.append(BASE + slot + 1, slot * 10)
        view = index._current_view()
        inode = os.stat(index.path).st_ino
        index.truncate_to(BASE + 2)
        index.trim_to_valid_size()
        assert inode != os.stat(index.path).st_ino
        assert 8 == os.path.getsize(index.path)
        assert 100 == len(bytes(view.bytes)[:800]) // 8
        assert [[BASE + 1, 0]] == index.entries().tolist()
        assert ["00000000000000000100.index"] == os.listdir(os.path.dirname(index.path))

    def test_an_ordinary_trim_keeps_the_file(self, index):
        """Sealing cuts unused space in place, also while readers look."""
        index.append(110, 4200)
        index.lookup(110)
        inode = os.stat(index.path).st_ino
        index.trim_to_valid_size()
        assert (inode, 8) == (os.stat(index.path).st_ino, os.path.getsize(index.path))

    def test_a_file_with_a_second_name_is_not_cut(self, index, tmp_path):
        """A file that a snapshot shares keeps its bytes."""
        index.append(110, 4200)
        os.link(index.path, tmp_path / "shared")
        index.trim_to_valid_size()
        assert (8, 1024) == (os.path.getsize(index.path), os.path.getsize(tmp_path / "shared"))

    def test_readers_beside_a_writer(self, tmp_path):
        """Lookups from four threads stay right while entries come, go and the file changes size."""
        index = OffsetIndex(tmp_path / "0.index", 0, 8 * 2000)
        failures = []
        is_done = threading.Event()

        def read():
            target = 0
            try:
                while not is_done.is_set():
                    target = (target + 7) % 2500
                    found = index.lookup(target)
                    # Offset n is at position 3n, always.
                    if found.position != 3 * found.offset or found.offset > target:
                        failures.append((target, found))
            except Exception as error:  # noqa: BLE001 - told to the test
                failures.append(error)

        readers = [threading.Thread(target=read) for _ in range(4)]
        for reader in readers:
            reader.start()
        for _ in range(15):
            for offset in range(index.last_offset + 1, index.last_offset + 120):
                index.append(offset, 3 * offset)
            index.truncate_to(index.last_offset - 100)
            index.trim_to_valid_size()
            index.resize(8 * 2000)
        is_done.set()
        for reader in readers:
            reader.join()
        index.close()
        assert [] == failures
