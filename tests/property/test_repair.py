"""
Damage to any byte, and what a repair makes of it.

Whatever happens to a small log, a repair leaves one that verifies, holds every batch that was not
damaged at its offset, and has put aside exactly the bytes that it took out.
"""

from __future__ import annotations

import errno
import re
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import examples

from logstore.checkpoint import HIGH_WATERMARK_CHECKPOINT, LOG_START_CHECKPOINT
from logstore.clock import ManualClock
from logstore.errors import LockedError, StorageError
from logstore.files import REAL_FILES
from logstore.log import Log
from logstore.partition_state import PartitionState
from logstore.record import iterate_batches
from logstore.repairing import repair_partition
from logstore.simulated_files import FailingFiles
from logstore.verification import verify_partition
from logstore.writer_lock import WriterLock

NOW_MS = 1_700_000_000_000
CONFIG = {"segment.bytes": 400, "index.interval.bytes": 64, "segment.index.bytes": 256}
QUARANTINE = re.compile(r"(\d{20}\.log)\.(\d+)\.(\d+)-(\d*)\.quarantine")


def open_log(directory):
    """Open a log as a program does: lock, state and all."""
    clock = ManualClock(NOW_MS)
    directory.mkdir(exist_ok=True)
    state = PartitionState.for_writing(str(directory), clock=clock)
    return Log.create(
        directory,
        CONFIG,
        log_start_offset=state.log_start_offset,
        recovery_point=state.recovery_point,
        had_clean_shutdown=state.had_clean_shutdown,
        clock=clock,
        checkpoints=state,
    )


def fill(directory):
    """A closed log of four segments: single records, batches, one compressed, an inner batch."""
    with open_log(directory) as log:
        for number in range(4):
            log.append(b"single %d" % number, key=b"k", timestamp=NOW_MS + number)
        log.extend([b"a", None, b"c"], timestamps=[NOW_MS] * 3)
        log.extend([b"compressed " * 8] * 4, compression="zstd")
        for number in range(6):
            log.append(b"later %d" % number, headers=[("h", b"1")], timestamp=NOW_MS + 9 + number)
        first = min(directory.glob("*.log")).read_bytes()
        inner = next(iterate_batches(first))
        # A record whose value is a batch with an offset that would fit.
        value = (log.offsets.log_end_offset + 1).to_bytes(8, "big") + first[8 : inner.size_bytes]
        log.append(value, timestamp=NOW_MS + 20)
        log.append(b"last", timestamp=NOW_MS + 21)


@pytest.fixture(name="template", scope="module")
def _template(tmp_path_factory):
    directory = tmp_path_factory.mktemp("repair") / "orders-0"
    fill(directory)
    assert [] == list(verify_partition(directory))
    assert 4 <= len(list(directory.glob("*.log")))
    return directory


def batches_of(directory):
    """Return (file name, position, bytes) of every batch."""
    found = []
    for path in sorted(directory.glob("*.log")):
        data, position = path.read_bytes(), 0
        for batch in iterate_batches(data):
            found.append((path.name, position, data[position : position + batch.size_bytes]))
            position += batch.size_bytes
    return found


def records_of(batches):
    """Return offset -> (key, value, headers, timestamp) of the records in batches."""
    return {
        record.offset: (record.key, record.value, record.headers, record.timestamp)
        for _, _, data in batches
        for batch in iterate_batches(data)
        for record in batch.records()
    }


def readable_records(directory):
    with open_log(directory) as log:
        return {
            record.offset: (record.key, record.value, record.headers, record.timestamp)
            for record in log.read("earliest")
        }


def reassembled(directory, name):
    """A segment's bytes as they were before a repair: what was kept and what was set aside."""
    kept = (directory / name).read_bytes()
    pieces = {}
    for path in directory.iterdir():
        found = QUARANTINE.fullmatch(path.name)
        if found is not None and found[1] == name:
            pieces[int(found[2])] = path.read_bytes()
    data = b""
    while kept or pieces:
        piece = pieces.pop(len(data), None)
        if piece is None:
            end = min(pieces, default=len(data) + len(kept))
            piece, kept = kept[: end - len(data)], kept[end - len(data) :]
            assert piece
        data += piece
    return data


def repair(directory, files=REAL_FILES):
    return list(repair_partition(directory, files=files, clock=ManualClock(NOW_MS)))


def judge(directory, damaged_from, damaged_to, name, original, damaged_data):
    """What holds after every repair."""
    untouched = [
        (file, position, data)
        for file, position, data in original
        if file != name or position + len(data) <= damaged_from or damaged_to <= position
    ]
    wanted = records_of(untouched)
    found = readable_records(directory)
    assert {offset: found.get(offset) for offset in wanted} == wanted
    assert damaged_data == reassembled(directory, name)
    assert not list(directory.glob("*.tmp"))
    assert not list(directory.glob("*.repaired"))
    before = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
    assert [] == repair(directory)
    after = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
    for each in (before, after):
        each.pop(".lock")
        each.pop("recovery-point-offset-checkpoint", None)
    assert before == after
    return found


def is_unprotected(original, name, position):
    """Whether a byte is of a base offset or a leader epoch, which no CRC covers."""
    for file, start, data in original:
        if file == name and start <= position < start + len(data):
            return position - start < 8 or 12 <= position - start < 16
    return False


@settings(max_examples=examples(25))
@given(data=st.data())
def test_any_byte(template, tmp_path_factory, data):
    """One byte of a segment has another value."""
    directory = tmp_path_factory.mktemp("byte") / "orders-0"
    shutil.copytree(template, directory)
    original = batches_of(directory)
    name = data.draw(st.sampled_from(sorted({file for file, _, _ in original})))
    content = bytearray((directory / name).read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= data.draw(st.sampled_from([1, 2, 0x80, 0xFF]))
    (directory / name).write_bytes(content)

    is_free = is_unprotected(original, name, position)
    repair(directory)

    judge(directory, position, position + 1, name, original, bytes(content))
    kinds = {damage.kind for damage in verify_partition(directory)}
    assert kinds <= ({"gap", "epoch"} if is_free else set())
    shutil.rmtree(directory)


@settings(max_examples=examples(25))
@given(data=st.data())
def test_torn_zeroed_or_overwritten(template, tmp_path_factory, data):
    """A segment loses its end, or a range of it becomes zeros or something else."""
    directory = tmp_path_factory.mktemp("range") / "orders-0"
    shutil.copytree(template, directory)
    original = batches_of(directory)
    name = data.draw(st.sampled_from(sorted({file for file, _, _ in original})))
    content = (directory / name).read_bytes()
    start = data.draw(st.integers(0, len(content) - 1))
    end = min(len(content), start + data.draw(st.sampled_from([1, 7, 61, 90, 1000])))
    how = data.draw(st.sampled_from(["tear", "zero", "fill", "append"]))
    if how == "tear":
        end, damaged = len(content), content[:start]
    elif how == "append":
        start = end = len(content)
        damaged = content + data.draw(st.sampled_from([bytes(100), b"\xff" * 7, content[:80]]))
    else:
        filler = b"\0" if how == "zero" else b"\x02"
        damaged = content[:start] + filler * (end - start) + content[end:]
    (directory / name).write_bytes(damaged)

    repairs = repair(directory)

    found = judge(directory, start, end, name, original, damaged)
    # Whole batches that were cut off a segment leave a gap, and no bytes to set aside.
    left = {damage.kind for damage in verify_partition(directory)}
    if start < end and all(is_unprotected(original, name, each) for each in range(start, end)):
        assert left <= {"gap", "epoch"}
        return
    assert left <= ({"gap"} if how == "tear" else set())
    # Everything that cannot be read any more was told.
    lost = {offset for each in repairs if each.first_offset is not None for offset in told(each)}
    assert records_of(original).keys() - found.keys() <= lost | torn_away(damaged, content, start)
    shutil.rmtree(directory)


def told(repair):
    last = 1000 if repair.last_offset is None else repair.last_offset
    return range(repair.first_offset, last + 1)


def torn_away(damaged, content, start):
    """Offsets whose every byte was cut off: nobody can know of them."""
    if len(damaged) >= len(content):
        return set()
    offsets, position = set(), 0
    for batch in iterate_batches(content):
        if position >= start:
            offsets |= set(range(batch.base_offset, batch.last_offset + 1))
        position += batch.size_bytes
    return offsets


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot"])
@pytest.mark.parametrize("how", ["garbage", "torn", "missing"])
def test_files_that_repeat_the_log(template, tmp_path, suffix, how):
    """A damaged index or snapshot is set aside and made again; the records are untouched."""
    directory = tmp_path / "orders-0"
    shutil.copytree(template, directory)
    wanted = records_of(batches_of(directory))
    for path in sorted(directory.glob(f"*{suffix}"))[-2:]:
        content = path.read_bytes()
        if how == "missing":
            path.unlink()
        else:
            path.write_bytes(b"\xa5" * max(8, len(content)) if how == "garbage" else content + b"x")
    damages = list(verify_partition(directory))

    repairs = repair(directory)

    assert bool(damages) == bool(repairs)
    assert all(each.first_offset is None for each in repairs)
    assert [] == list(verify_partition(directory))
    assert wanted == readable_records(directory)


def test_epochs_and_checkpoints(template, tmp_path):
    """Files of text that do not parse are set aside; a log start beyond the end is taken back."""
    directory = tmp_path / "orders-0"
    shutil.copytree(template, directory)
    wanted = records_of(batches_of(directory))
    (directory / "leader-epoch-checkpoint").write_text("nonsense\n")
    (directory / HIGH_WATERMARK_CHECKPOINT).write_text("0\n7\n")
    (directory / LOG_START_CHECKPOINT).write_text("0\n1\norders 0 5000\n")

    repairs = repair(directory)

    assert {"leader-epoch-checkpoint", HIGH_WATERMARK_CHECKPOINT, LOG_START_CHECKPOINT} == {
        each.path.name for each in repairs
    }
    assert "nonsense\n" == (directory / "leader-epoch-checkpoint.quarantine").read_text()
    assert [] == list(verify_partition(directory))
    assert wanted == readable_records(directory)


def test_healthy_log_is_left_alone(template, tmp_path):
    """Not a byte changes, and the log stays marked as closed."""
    directory = tmp_path / "orders-0"
    shutil.copytree(template, directory)
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    assert [] == repair(directory)
    after = {path.name: path.read_bytes() for path in directory.iterdir()}
    before.pop(".lock")
    after.pop(".lock")
    assert before == after


def test_locked_log(template, tmp_path):
    """Somebody is writing: nothing is touched."""
    directory = tmp_path / "orders-0"
    shutil.copytree(template, directory)
    with open_log(directory), pytest.raises(LockedError):
        repair(directory)


def test_partition_of_a_log_directory(template, tmp_path):
    """The lock and the checkpoints are the log directory's; its clean marker comes back."""
    (tmp_path / "meta.properties").write_text("version=0\nbroker.id=1\n")
    (tmp_path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":7}')
    directory = tmp_path / "orders-0"
    shutil.copytree(template, directory)
    for name in (
        ".lock",
        ".kafka_cleanshutdown",
        *(path.name for path in directory.glob("*-offset-checkpoint")),
    ):
        (directory / name).unlink()
    active = max(directory.glob("*.log"))
    active.write_bytes(active.read_bytes()[:-3])
    lock = WriterLock(str(tmp_path), files=REAL_FILES, clock=ManualClock(NOW_MS))
    with pytest.raises(LockedError):
        repair(directory)
    lock.release()

    assert 1 == sum(not each.is_consequence for each in repair(directory))

    assert '{"version":0,"brokerEpoch":7}' == (tmp_path / ".kafka_cleanshutdown").read_text()
    assert "orders 0" in (tmp_path / "recovery-point-offset-checkpoint").read_text()
    assert not (directory / "recovery-point-offset-checkpoint").exists()
    assert [] == list(verify_partition(directory))


def test_what_a_repair_says(template, tmp_path):
    """Position, size, where it went, and the offsets that are lost."""
    directory = tmp_path / "orders-0"
    shutil.copytree(template, directory)
    name, position, data = batches_of(directory)[1]
    content = bytearray((directory / name).read_bytes())
    content[position + 70] ^= 1
    (directory / name).write_bytes(content)
    first = repair(directory)[0]
    assert (
        f"{directory / name}: position {position}: {len(data)} bytes moved to "
        f"{name}.{position}.1-1.quarantine (the batch at offset 1 has a wrong CRC-32C; "
        f"{len(data)} bytes up to the next valid batch); lost: offset 1"
    ) == str(first)
    assert data != (directory / f"{name}.{position}.1-1.quarantine").read_bytes()


# Which calls of an operation fail, one after the other: most are those of the load at the end.
STEPS = {
    "open": 9,
    "pwrite": 5,
    "fdatasync": 2,
    "fsync_dir": 4,
    "rename": 2,
    "copy_file_range": 1,
    "set_modified": 1,
}


@pytest.mark.parametrize("operation", STEPS)
def test_interrupted(template, tmp_path, operation):
    """A repair that fails at a file operation has lost nothing, and the next one ends it."""
    source = tmp_path / "damaged"
    shutil.copytree(template, source)
    original = batches_of(source)
    name, position, _ = original[2]
    content = bytearray((source / name).read_bytes())
    content[position + 65] ^= 0xFF
    (source / name).write_bytes(content)
    (sorted(source.glob("*.timeindex"))[1]).write_bytes(b"\xa5" * 12)
    wanted = records_of([batch for batch in original if batch != original[2]])
    failed = 0
    for call in range(1, 200, STEPS[operation]):
        directory = tmp_path / f"{call}" / "orders-0"
        shutil.copytree(source, directory)
        files = FailingFiles()
        files.fail(operation, errno.EIO, at=call)
        try:
            repair(directory, files)
        except StorageError:
            failed += 1
            kept = [path for path in directory.iterdir() if path.suffix in (".log", ".quarantine")]
            assert sum(path.stat().st_size for path in kept) >= sum(
                len(each) for _, _, each in original
            )
            repair(directory)
        assert bytes(content) == reassembled(directory, name)
        assert [] == list(verify_partition(directory))
        assert wanted == readable_records(directory)
        shutil.rmtree(directory)
        if files.calls(operation) < call:
            break
    assert failed
