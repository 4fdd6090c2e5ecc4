"""``log[offset]`` in C: what it answers, what it leaves to Python, and what it holds meanwhile."""

from __future__ import annotations

import gc
import itertools
import os
import random
import sys
import threading
import time
from pathlib import Path

import pytest
from patience import PATIENCE_SECONDS

import logstore
from logstore._native import RecordGetter
from logstore.clock import ManualClock
from logstore.control_record import ControlRecordType, EndTransactionMarker
from logstore.opening import open_log
from logstore.reader import Section
from logstore.record import encode_batch, end_transaction_marker
from logstore.scheduler import ManualScheduler
from logstore.simulated_files import FailingFiles
from logstore.single_record import read_one

SMALL = {
    "segment.bytes": 2000,
    "batch.bytes": 300,
    "index.interval.bytes": 200,
    "transaction.partition.verification.enable": "false",
}


@pytest.fixture(name="log")
def _log(tmp_path):
    with logstore.open(tmp_path / "log-0", config=SMALL) as log:
        yield log
        if not log.is_closed:
            assert [] == list(log.check())


def outcome(get, offset):
    """Return what a get answers or raises, in a form that can be compared."""
    try:
        return get(offset)
    except logstore.LogStoreError as error:
        return type(error), str(error), error.offset, getattr(error, "position", None)


def assert_same(log, offsets):
    """Each offset is asked for twice: in general and, at the latest then, through C."""
    for offset in offsets:
        expected = outcome(lambda at: read_one(log, at, "read_committed"), offset)
        assert expected == outcome(log.__getitem__, offset)
        assert expected == outcome(log.__getitem__, offset)


def fill(log, count=200, text=b"value"):
    for first in range(0, count, 5):
        log.extend([b"%s %d" % (text, at) for at in range(first, first + 5)])


def by_c(log, offset):
    """Return what C alone answers."""
    return log.record_places().getter.get(offset)


def by_view(view, offset):
    """Return what a reader's places alone answer."""
    return view.record_places().get(offset, view.truncations, 0, view.log_end_offset)


def batches(log, data, **options):
    return log.append_batches(data, leader_epoch=0, **options)


class TestAnswers:
    def test_every_offset_of_sealed_and_active_segments(self, log):
        """Answers are those of the general way, in any order, within and outside the log."""
        fill(log)
        offsets = [*range(-2, 203), *random.Random(1).choices(range(200), k=300)]
        with pytest.raises(IndexError):
            log[-1]
        assert_same(log, offsets[2:])
        assert b"value 77" == by_c(log, 77).value
        kinds = {mapped for _, _, mapped in log.record_places().getter.places()}
        assert {True, False} == kinds

    def test_other_numbers_and_slices(self, log):
        """What is an index counts as one; slices and text do not."""
        fill(log, 10)

        class Five:
            def __index__(self):
                return 5

        assert 5 == log[Five()].offset
        assert 1 == log[True].offset
        for wrong in (slice(1, 2), "1", None, 1.0):
            with pytest.raises(TypeError, match="log"):
                log[wrong]
        with pytest.raises(logstore.OffsetOutOfRangeError):
            log[2**70]

    def test_all_fields(self, log):
        """Headers, keys, tombstones, times and epochs come through C as they were written."""
        log.append(None, key=b"k", timestamp=1_600_000_000_000)
        log.append(b"", headers=[("a", b"1"), ("b", None)])
        log.append(b"v", key=b"", headers={"c": b""})
        log.flush()  # Else the one after the roll may come in between, and C has to learn anew.
        assert_same(log, range(3))
        assert list(log) == [by_c(log, at) for at in range(3)]

    def test_gaps_between_and_inside_batches(self, log):
        """An offset without record is told with the next one that has one."""
        data = encode_batch(
            [(0, 0, None, b"a", ()), (3, 0, None, b"b", ()), (4, 0, None, b"c", ())],
            leader_epoch=0,
        )
        later = encode_batch([(9, 0, None, b"d", ())], leader_epoch=0)
        batches(log, data + later, origin="replication")
        assert_same(log, range(11))
        assert b"c" == by_c(log, 4).value
        assert by_c(log, 3).offset == 3
        assert by_c(log, 2) is None

    def test_what_is_left_to_python(self, log):
        """Compressed batches and transactions are answered, but not by C."""
        log.extend([b"a" * 50] * 4, compression="gzip")
        pid = {"producer_id": 7, "producer_epoch": 0}
        data = encode_batch(
            [(0, 0, None, b"gone", ())], base_sequence=0, is_transactional=True, **pid
        )
        batches(log, data)
        batches(
            log,
            end_transaction_marker(
                EndTransactionMarker(ControlRecordType.ABORT, 0), timestamp=0, **pid
            ),
            origin="coordinator",
        )
        fill(log, 5)
        assert_same(log, range(12))
        assert [None] * 6 == [by_c(log, at) for at in range(6)]
        assert b"value 0" == by_c(log, 6).value

    def test_undecided_transaction(self, log):
        """Nothing behind the last stable offset is answered, and what is decided is, at once."""
        fill(log, 10)
        assert 9 == log[9].offset
        pid = {"producer_id": 7, "producer_epoch": 0}
        batches(
            log,
            encode_batch([(0, 0, None, b"x", ())], base_sequence=0, is_transactional=True, **pid),
        )
        fill(log, 5)
        assert_same(log, range(16))
        marker = EndTransactionMarker(ControlRecordType.COMMIT, 0)
        batches(log, end_transaction_marker(marker, timestamp=0, **pid), origin="coordinator")
        assert_same(log, range(18))

    def test_batches_larger_than_one_read(self, log):
        """Batches of an active segment that do not fit one read, or the buffer, are answered."""
        log.update_config({"segment.bytes": 1 << 24, "max.message.bytes": 1 << 22})
        log.roll()
        for size in (100, 40_000, 200_000, 3_000_000, 100):
            log.append(bytes(size))
        assert_same(log, range(5))
        log.roll()
        assert_same(log, range(5))

    def test_neighbours_come_from_the_batch_at_hand(self, log):
        """The batch that was checked last is not read again, forwards or backwards."""
        log.update_config({"batch.bytes": 100_000, "segment.bytes": 1 << 20})
        log.roll()
        log.extend([b"%d" % at for at in range(1000)])
        assert b"500" == log[500].value
        assert b"500" == log[500].value
        files = log.active_segment.files
        files.count_operations()
        reads = files.operation_counts()["pread"]
        offsets = [*range(500, 600), *range(500, 400, -1), 0, 999]
        assert [b"%d" % at for at in offsets] == [log[at].value for at in offsets]
        assert reads == files.operation_counts()["pread"]
        files.count_operations(counting=False)

    def test_one_read_where_the_index_names_the_batch(self, log):
        """An entry has the last offset of its batch: the one before it is not read."""
        log.update_config({"batch.bytes": 400, "index.interval.bytes": 0, "segment.bytes": 1 << 20})
        log.roll()
        log.extend([b"%d" % at for at in range(1000)])
        assert_same(log, [500])
        files = log.active_segment.files
        files.count_operations()
        before = files.operation_counts()
        for offset in range(950, 20, -70):
            assert b"%d" % offset == by_c(log, offset).value
        after = files.operation_counts()
        files.count_operations(counting=False)
        assert 14 == after["pread"] - before["pread"]


class TestDamage:
    def test_damaged_batch(self, log):
        """The CRC is checked before a batch is served; the error is the general one."""
        fill(log)
        path = Path(log.segments[0].log_path)
        assert_same(log, [1])
        data = bytearray(path.read_bytes())
        at = data.index(b"value 12")
        with path.open("r+b") as file:
            file.seek(at)
            file.write(b"V")
        with pytest.raises(logstore.CorruptRecordError) as caught:
            log[12]
        assert str(path) == caught.value.path
        assert_same(log, range(30))
        with path.open("r+b") as file:
            file.seek(at)
            file.write(b"v")

    def test_wrong_index(self, log):
        """Entries that point anywhere cost time, never a record."""
        fill(log)
        index = Path(log.segments[0].offset_index.path)
        assert_same(log, [1])
        before = index.read_bytes()
        assert len(before) >= 16
        for wrong in (b"\0" * 8, b"\xff" * 8, b"\0\0\0\1\0\0\0\5", before[4:8] + before[:4]):
            with index.open("r+b") as file:
                file.write(wrong + before[8:16][::-1])
            assert_same(log, range(40))
        index.write_bytes(before)

    def test_index_of_an_old_release(self, log):
        """Up to Kafka 3.x an entry had the last offset of a whole append: any of its batches."""
        log.update_config({"index.interval.bytes": 0, "segment.bytes": 1 << 20})
        log.roll()
        fill(log, 60)
        log.roll()
        sealed = log.segments[-2]
        index = Path(sealed.offset_index.path)
        entries = sealed.offset_index.entries().tolist()
        assert len(entries) > 9
        old = b""
        for (_, position), _, (last_offset, _) in zip(
            entries[::3], entries[1::3], entries[2::3], strict=False
        ):
            old += (last_offset - sealed.base_offset).to_bytes(4, "big")
            old += position.to_bytes(4, "big")
        before = index.read_bytes()
        with index.open("r+b") as file:
            file.write(old + before[-8:] * (len(entries) - len(old) // 8))
        assert_same(log, range(60))
        index.write_bytes(before)

    def test_records_that_break_the_format(self, log):
        """A batch whose CRC is right and whose records are not is refused as in general."""
        fill(log, 5)
        data = bytearray(encode_batch([(5, 0, None, b"abc", ())]))
        data[61] = 0x7E  # The length of the record.
        data[17:21] = logstore._native.crc32c(bytes(data[21:])).to_bytes(4, "big")
        writer = log.writer
        headers = logstore._native.scan_batches(bytes(data)).batches
        with log.changing():
            writer.append_encoded(bytes(data), headers)
        assert_same(log, range(7))
        log.truncate_to(5)


class TestChanges:
    def test_truncated_and_written_again(self, log):
        """No old record comes back: not from a mapping, not from the batch at hand."""
        fill(log)
        for offset in (3, 60, 150, 196, 199):
            for target in (offset, offset - 2):
                assert_same(log, range(200))
                assert offset == log[offset].offset
                log.truncate_to(target)
                with pytest.raises(logstore.OffsetOutOfRangeError):
                    log[offset]
                log.extend([b"new %d" % at for at in range(target, 200)])
                assert [b"new %d" % at for at in range(target, 200)] == [
                    log[at].value for at in range(target, 200)
                ]
                assert_same(log, range(200))

    def test_truncated_with_a_full_disk(self, tmp_path):
        """What C held does not keep a truncation from cutting in place."""
        files = FailingFiles()
        with open_log(tmp_path / "full-0", config=SMALL, files=files) as log:
            fill(log, 20)
            assert_same(log, range(20))
            files.budget = 100  # Checkpoints fit, a copy does not.
            log.truncate_to(17)
            files.budget = None
            assert_same(log, range(20))

    def test_view_keeps_a_full_disk_from_cutting_in_place(self, tmp_path):
        """A mapped range stays whole: the truncation fails, and changes nothing."""
        files = FailingFiles()
        scheduler = ManualScheduler(ManualClock())  # No flush in another thread reads the file.
        with open_log(tmp_path / "full-0", config=SMALL, files=files, scheduler=scheduler) as log:
            fill(log, 10)
            log.roll()
            segment = log.segments[0]
            view = segment.map_sealed().view[:]
            before = bytes(view)
            files.budget = 100  # Checkpoints fit, a copy does not.
            with pytest.raises(logstore.DiskFullError):
                log.truncate_to(7)
            assert segment.views.is_viewed
            assert before == bytes(view)
            del view
            gc.collect()
            assert not segment.views.is_viewed
            assert 10 == log.log_end_offset
            log.truncate_to(7)
            files.budget = None
            assert 7 == log.log_end_offset
            assert 5 == segment.read_next_offset()

    def test_deleted_segments_are_let_go(self, log):
        """A get leaves nothing behind that keeps deleted files on the disk."""
        fill(log)
        assert_same(log, range(200))
        views = [segment.views for segment in log.segments[:-1]]
        assert all(each.is_viewed for each in views)
        log.update_config({"retention.bytes": 100})
        assert log.delete_old_segments() > 0
        gc.collect()
        assert not any(each.is_viewed for each in views)
        with pytest.raises(logstore.OffsetOutOfRangeError):
            log[0]
        assert_same(log, range(200))

    def test_log_start_and_high_watermark(self, tmp_path):
        """Both bounds are those of the moment of the get."""
        with logstore.open(tmp_path / "w-0", config=SMALL, high_watermark="replicas") as log:
            fill(log, 100)
            log.update_high_watermark(60)
            assert_same(log, range(101))
            log.update_high_watermark(50)
            assert_same(log, range(101))
            log.maybe_increment_log_start_offset(20)
            assert_same(log, range(101))
            log.update_high_watermark(100)
            assert_same(log, range(101))

    def test_closed(self, log):
        """After close a get says so, and no descriptor is left."""
        fill(log)
        assert_same(log, range(200))
        log.close()
        with pytest.raises(logstore.ClosedError):
            log[0]
        descriptors = [os.readlink(f"/proc/self/fd/{fd}") for fd in _open_descriptors()]
        assert not any(str(log.directory) in path for path in descriptors)

    def test_child_of_a_fork(self, log):
        """A child gets what its parent's log held."""
        fill(log)
        assert_same(log, range(200))
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                assert log.record_places() is None
                assert_same(log, range(203))
                status = 0
            finally:
                os._exit(status)
        assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def test_child_sees_what_its_parent_truncates(self, log):
        """Nothing that the parent's log held in C is served in the child after the fork."""
        fill(log)
        assert_same(log, range(200))
        assert b"value 150" == log[150].value
        ready, truncated = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.write(ready[1], b"x")
                os.read(truncated[0], 1)
                with pytest.raises(logstore.OffsetOutOfRangeError):
                    log[199]
                assert b"new" == log[150].value
                status = 0
            finally:
                os._exit(status)
        os.read(ready[0], 1)
        log.truncate_to(150)
        log.extend([b"new"] * 3)
        os.write(truncated[1], b"x")
        assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for fd in (*ready, *truncated):
            os.close(fd)

    def test_read_only(self, log):
        """The files of a log that is only read are read, and not mapped; C gets their records."""
        fill(log)
        log.close()
        with logstore.open(log.directory, "r") as view:
            assert_same(view, range(203))
            assert len(view.record_places().getter.places()) > 2
            assert not any(mapped for _, _, mapped in view.record_places().getter.places())
            for offset in (0, 77, 199):
                assert by_view(view, offset) == view[offset]

    def test_beside_a_writer(self, log):
        """A reader sees what was appended, cut and deleted since its last look."""
        fill(log)
        with logstore.open(log.directory, "r") as view:
            assert_same(view, range(203))
            log.append(b"another")
            assert b"another" == view[200].value
            assert_same(view, range(190, 203))
            assert b"value 150" == view[150].value
            log.truncate_to(145)
            with pytest.raises(logstore.OffsetOutOfRangeError):
                view[150]
            for at in range(145, 190):
                log.append(b"again %d" % at)
            assert b"again 150" == view[150].value
            assert b"value 144" == view[144].value
            assert_same(view, range(203))
            log.maybe_increment_log_start_offset(60)
            log.delete_old_segments()
            with pytest.raises(logstore.OffsetOutOfRangeError):
                view[20]
            assert_same(view, range(203))

    def test_c_answers_for_a_reader(self, log, monkeypatch):
        """While nothing changes, and for a tenth of a second, Python is not asked."""
        fill(log)
        with logstore.open(log.directory, "r") as view:
            asked = []
            general = logstore.Log._get_general

            def ask(self, offset):
                asked.append(offset)
                return general(self, offset)

            monkeypatch.setattr(logstore.Log, "_get_general", ask)
            assert_same(view, range(200))
            for offset in range(195, 200):
                assert b"value %d" % offset == view[offset].value
            asked.clear()
            assert [b"value 198", b"value 199"] == [view[at].value for at in (198, 199)]
            assert len(asked) < 2
            log.append(b"more")
            assert b"more" == view[200].value
            assert 200 in asked
            log.truncate_to(195)
            with pytest.raises(logstore.OffsetOutOfRangeError):
                view[198]
            log.extend([b"new"] * 5)
            assert b"new" == view[198].value
        with pytest.raises(logstore.ClosedError):
            view[198]

    def test_a_moment_that_is_over(self, log):
        """What a reader's C knows does not outlive its page's change count, nor its time."""
        fill(log)
        with logstore.open(log.directory, "r") as view:
            assert b"value 7" == view[7].value
            view._view.refresh()
            getter = view.record_places().getter
            assert b"value 7" == view[7].value
            page = log.live_page
            getter.set_moment(page, page.address, page.change_count - 2, 60.0)
            assert b"value 7" == view[7].value
            getter.set_moment(page, page.address, page.change_count, 0.0)
            assert b"value 8" == view[8].value

    def test_gets_of_a_reader_beside_truncations(self, log):
        """Every record is of the log as it was at some moment of the call."""
        fill(log, 60, b"0")
        errors, is_over = [], threading.Event()

        def get():
            draw = random.Random(4)
            with logstore.open(log.directory, "r") as view:
                while not is_over.is_set():
                    before, offset = rounds[0], draw.randrange(40, 60)
                    try:
                        value = view[offset].value
                    except logstore.OffsetOutOfRangeError:
                        continue
                    text, at = value.split()
                    if int(at) != offset or not before - 1 <= int(text) <= rounds[0] + 1:
                        errors.append((value, offset, before))

        rounds = [0]
        reader = threading.Thread(target=get)
        reader.start()
        for number in range(1, 40):
            rounds[0] = number
            log.truncate_to(40)
            log.extend([b"%d %d" % (number, at) for at in range(40, 60)])
        is_over.set()
        reader.join()
        assert [] == errors

    @pytest.mark.parametrize("mode", ["a", "r"])
    def test_batches_that_python_takes_apart(self, tmp_path, mode, monkeypatch):
        """A compressed batch, and a transaction's, is kept for its neighbours, until it is cut."""
        with logstore.open(tmp_path / "z-0", config={**SMALL, "segment.bytes": 20_000}) as log:
            pid = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
            log.extend([b"%d" % at for at in range(50)], compression="zstd")
            rows = [(None, 0, None, b"%d" % at, ()) for at in range(50, 60)]
            batches(log, encode_batch(rows, is_transactional=True, **pid))
            marker = EndTransactionMarker(ControlRecordType.COMMIT, 0)
            end = {"timestamp": 0, "producer_id": 7, "producer_epoch": 0}
            batches(log, end_transaction_marker(marker, **end), origin="coordinator")
            view = log if mode == "a" else logstore.open(tmp_path / "z-0", "r")
            opened = []
            real = Section.__init__
            monkeypatch.setattr(
                Section, "__init__", lambda *all: (opened.append(all[1].base_offset), real(*all))[1]
            )
            assert [b"%d" % at for at in range(10, 60)] == [view[at].value for at in range(10, 60)]
            assert b"12" == view[12].value
            assert len(opened) < 12  # One for each batch, and one to go back.
            log.truncate_to(0)
            with pytest.raises(logstore.OffsetOutOfRangeError):
                view[12]
            log.extend([b"again %d" % at for at in range(50)], compression="zstd")
            assert b"again 12" == view[12].value
            assert b"again 13" == view[13].value
            view.close()


def _open_descriptors():
    for name in os.listdir("/proc/self/fd"):
        if os.path.exists(f"/proc/self/fd/{name}"):
            yield name


class TestBounds:
    @pytest.mark.parametrize("most", [0, 1, 3])
    def test_mapped_segments(self, tmp_path, most):
        """At most mapped.segments.max are mapped, those used last; 0: all are read."""
        config = {**SMALL, "segment.bytes": 700, "mapped.segments.max": most}
        with logstore.open(tmp_path / "b-0", config=config) as log:
            fill(log)
            assert len(log.segments) > 7
            assert_same(log, range(200))
            places = log.record_places().getter.places()
            assert most == sum(mapped for _, _, mapped in places)
            assert 1 <= sum(not mapped for _, _, mapped in places) <= 4
            assert most == sum(segment.views.is_viewed for segment in log.segments)

    def test_wrong_places_are_refused(self):
        """A getter takes no place without memory or descriptor."""
        with pytest.raises(ValueError, match="no address"):
            RecordGetter(None, None, 0, 1)
        getter = RecordGetter(None, None, id(getter_memory := bytearray(100)), 1)
        for arguments in (
            (None, -1, 5, 1, 1, 0, 0, 0, -1),
            (None, 5, 4, 1, 1, 0, 0, 0, -1),
            (None, 0, 5, 1, 0, 0, 0, 0, -1),
            (None, 0, 5, 1, 1, 0, 1, 0, -1),
            (None, 0, 5, 0, 0, 0, 0, 0, 3),
            (None, 0, 5, 0, 0, 0, 0, 1, -1),
        ):
            with pytest.raises(ValueError, match="a place without"):
                getter.add(*arguments)
        assert ([], None) == (getter.places(), getter.get(0))
        del getter_memory


class TestThreads:
    def test_gets_beside_everything_that_changes_a_log(self, tmp_path, request):
        """Readers get the record of their offset, whole, or an error that is true of the moment."""
        config = {**SMALL, "segment.bytes": 3000, "mapped.segments.max": 2, "retention.bytes": 8000}
        found, failures = [0] * 3, []
        stop = threading.Event()

        def read(number):
            draw = random.Random(number)
            while not stop.is_set():
                offset = draw.randrange(max(1, log.log_end_offset))
                try:
                    record = log[offset]
                except (LookupError, logstore.ClosedError):
                    continue  # Out of range, or in a gap: truncation takes whole batches.
                except Exception as error:  # noqa: BLE001 - told by the main thread
                    failures.append(error)
                    return
                found[number] += 1
                if record.offset != offset or record.value != b"value %d" % offset * 3:
                    failures.append(record)
                    return

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-4)
        request.addfinalizer(lambda: sys.setswitchinterval(interval))
        with logstore.open(tmp_path / "t-0", config=config) as log:
            threads = [threading.Thread(target=read, args=(at,)) for at in range(3)]
            for thread in threads:
                thread.start()
            draw = random.Random(9)
            deadline = time.monotonic() + PATIENCE_SECONDS
            for step in itertools.count():
                if failures or (step >= 60 and min(found) > 20):
                    break
                assert time.monotonic() < deadline, found
                end = log.log_end_offset
                log.extend([b"value %d" % at * 3 for at in range(end, end + draw.randrange(1, 60))])
                if step % 5 == 4:
                    span = log.log_end_offset - log.log_start_offset
                    log.truncate_to(log.log_end_offset - draw.randrange(span // 2 + 1))
                if step % 7 == 6:
                    log.delete_old_segments()
        stop.set()
        for thread in threads:
            thread.join()
        assert [] == failures
