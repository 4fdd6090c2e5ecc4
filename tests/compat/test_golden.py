"""
Kafka's own log directories, opened: offsets, records and lookups, against what Kafka said of them.

Damaged directories are opened as a broker found them. Where logstore does not do on purpose what
Kafka did (DESIGN.md D8; docs/decisions), ``OTHERWISE`` says what it does, case by case.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import json
import shutil

import golden_set
import pytest

from logstore.clock import ManualClock
from logstore.errors import CorruptRecordError
from logstore.record import iterate_batches
from logstore.testing import open_log

# When the directories were made: producers that are a day older would be forgotten.
NOW_MS = 1_795_256_000_000

TIMESTAMP_TYPES = {-1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"}
TIMESTAMPS = {"earliest": -2, "latest": -1, "max_timestamp": -3}

# SOUND: nothing is lost. The batches are those of the family's `none-0`, the records those in the
# partition's own files (timestamps of the last ones differ from case to case).
SOUND = {"like": "none-0"}
OTHERWISE = {
    # The tail of a log that was closed does not parse. Kafka stops, or takes the base offset of the
    # active segment for the end; here the segment is recovered (decision 0020).
    ("damaged-clean", "bad-length-0"): {"like": "none-0", "end": 87, "bytes": 5597},
    ("damaged-clean", "index-beyond-log-active-0"): SOUND,
    ("damaged-clean", "index-garbage-active-0"): SOUND,
    ("damaged-clean", "torn-header-0"): {"bytes": 5676},
    ("damaged-clean", "torn-prefix-0"): {"bytes": 5676},
    ("damaged-clean", "torn-tail-0"): {"bytes": 5676},
    ("damaged-clean-fatal", "garbage-tail-0"): SOUND,
    ("damaged-clean-fatal", "short-length-0"): {"like": "none-0", "end": 87, "bytes": 5597},
    ("damaged-clean-fatal", "zero-tail-0"): SOUND,
    # An index does not hide records, and stale entries answer nothing (decision 0021).
    ("damaged-clean", "index-garbage-old-0"): SOUND,
    ("damaged-clean", "missing-timeindex-active-0"): SOUND,
    ("damaged-clean", "timeindex-garbage-old-0"): SOUND,
    ("damaged-clean", "empty-log-active-0"): {"end": 69},
    # Transactions are rebuilt from the log, not forgotten (decision 0022).
    ("damaged-clean", "missing-snapshots-0"): SOUND,
    ("damaged-clean", "missing-txnindex-0"): SOUND,
    ("damaged-clean", "torn-txnindex-0"): SOUND,
    ("unclean", "missing-txnindex-0"): SOUND,
    # What was not flushed ends where offsets go back: no CRC covers them (decision 0048).
    ("unclean", "repeated-batch-0"): {"bytes": 9094},
    ("unclean-no-checkpoint", "repeated-batch-0"): {"bytes": 9094},
    # A broker sets the directory aside because it has no topic id. Here nobody asked for one.
    ("damaged-clean", "missing-partition-metadata-0"): SOUND,
    ("unclean", "missing-partition-metadata-0"): SOUND,
    ("unclean-no-checkpoint", "missing-partition-metadata-0"): SOUND,
}


@pytest.fixture(name="expected_of", scope="module")
def _expected_of(golden):
    read = {}

    def expected_of(family):
        if family not in read:
            read[family] = json.loads((golden / family / "expected.json").read_text())["partitions"]
        return read[family]

    return expected_of


class Expectation:
    """What a partition holds after it was loaded: as Kafka said, or as OTHERWISE says."""

    def __init__(self, golden, expected_of, family, name):
        partition = expected_of(family)[name]
        otherwise = OTHERWISE.get((family, name))
        like = otherwise and otherwise.get("like")
        # The fatal cases are of the same run as damaged-clean.
        source_family = "damaged-clean" if family == "damaged-clean-fatal" else family
        source = expected_of(source_family)[like] if like else partition

        self.config = source.get("topic_config")
        end = (otherwise or {}).get("end", source["offsets"]["log_end_offset"])
        self.offsets = {
            **source["offsets"],
            "log_end_offset": end,
            "high_watermark": end,
            "last_stable_offset": min(end, source["offsets"]["last_stable_offset"]),
        }
        if otherwise and "bytes" in otherwise:
            self.offsets["log_bytes"] = otherwise["bytes"]
        self.committed = [
            [first, min(last, end - 1)]
            for first, last in source["records"]["read_committed_offsets"]
            if first < end
        ]
        self.ends_in_damage = source["records"].get("read_uncommitted_error") is not None
        # A broker adds its own epoch when it becomes leader.
        self.has_broker_epoch = family.startswith(("damaged", "unclean"))
        if like or "end" in (otherwise or {}):
            records = own_records(golden / family / "logdir" / name, end)
            self.records = [line_of(record) for record, is_control in records if not is_control]
            self.lookups = own_lookups([record for record, _ in records])
        else:
            lines = gzip.decompress((golden / family / source["records"]["file"]).read_bytes())
            self.records = list(map(json.loads, lines.splitlines()))
            self.lookups = [query for query in source["list_offsets"] if "error" not in query]


def own_records(directory, end):
    """Return the records below an offset that are in a partition's files: (record, is control)."""
    records = []
    for path in sorted(directory.glob("*.log")):
        with contextlib.suppress(CorruptRecordError):
            for batch in iterate_batches(path.read_bytes()):
                records += [(record, batch.is_control) for record in batch.records()]
    return [each for each in records if each[0].offset < end]


def own_lookups(records):
    """Return lookups by time with the answers that a list of records gives; markers count."""
    timestamps = {record.timestamp for record in records}
    for timestamp in sorted({0, *timestamps, *(each + 1 for each in timestamps)}):
        found = next((each for each in records if each.timestamp >= timestamp), None)
        yield answer_of("timestamp", found) | {"timestamp": timestamp}
    largest = max(timestamps, default=None)
    found = next((each for each in records if each.timestamp == largest), None)
    yield answer_of("max_timestamp", found)


def answer_of(query, record):
    if record is None:
        return {"query": query, "offset": -1, "found_timestamp": -1}
    return {
        "query": query,
        "offset": record.offset,
        "found_timestamp": record.timestamp,
        "leader_epoch": record.leader_epoch,
    }


def copy_of(directory, name, target):
    """Copy a partition and the files of its log directory so that they can be changed."""
    target.mkdir()
    for path in (directory / "logdir").iterdir():
        if path.is_file():
            shutil.copyfile(path, target / path.name)
    shutil.copytree(directory / "logdir" / name, target / name, copy_function=shutil.copyfile)
    (target / name).chmod(0o755)
    return target


def opened(path, mode, expectation=None):
    config = expectation.config if expectation else None
    return open_log(path, mode, config=config or None, clock=ManualClock(NOW_MS))


def line_of(record):
    """Return a record in the form of the golden record lines."""
    line = {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": TIMESTAMP_TYPES[record.timestamp_type],
        "headers": [[key, encoded(value)] for key, value in record.headers],
        "leader_epoch": None if record.leader_epoch < 0 else record.leader_epoch,
    }
    for name in ("key", "value"):
        data = getattr(record, name)
        if data is not None and len(data) > 1024:
            line[f"{name}_length"] = len(data)
            line[f"{name}_sha256"] = hashlib.sha256(data).hexdigest()
        else:
            line[name] = encoded(data)
    return line


def encoded(data):
    return None if data is None else base64.b64encode(data).decode()


def ranges(offsets):
    """Return offsets as inclusive ranges."""
    found = []
    for offset in offsets:
        if found and found[-1][1] == offset - 1:
            found[-1][1] = offset
        else:
            found.append([offset, offset])
    return found


def up_to_damage(records):
    """Return what can be read, and whether damage ended it."""
    found = []
    try:
        found.extend(records)
    except CorruptRecordError:
        return found, True
    return found, False


def compare(log, expectation):
    """Compare a log with all that Kafka said of it."""
    offsets = log.offsets
    found = {
        "log_start_offset": offsets.log_start_offset,
        "high_watermark": offsets.high_watermark,
        "last_stable_offset": offsets.last_stable_offset,
        "log_end_offset": offsets.log_end_offset,
        "segments": len(log.segments),
        "log_bytes": sum(segment.size_bytes for segment in log.segments),
    }
    assert expectation.offsets == found

    records, is_damaged = up_to_damage(log.read(isolation="read_uncommitted"))
    assert expectation.records == [line_of(record) for record in records]
    assert expectation.ends_in_damage == is_damaged
    committed, _ = up_to_damage(log.read())
    assert expectation.committed == ranges(record.offset for record in committed)
    values, _ = up_to_damage(log.read_values())
    assert [record.value for record in committed] == values

    has_epochs = log.leader_epochs.latest_epoch is not None
    for query in expectation.lookups:
        answer = log.fetch_offset_by_timestamp(
            query.get("timestamp", TIMESTAMPS.get(query["query"]))
        )
        assert query["offset"] == (-1 if answer is None else answer.offset), query
        assert query["found_timestamp"] == (-1 if answer is None else answer.timestamp), query
        # The broker knew its own epoch where the log has none, and began one when it started.
        is_of_a_record = query["found_timestamp"] >= 0
        if is_of_a_record or (has_epochs and not expectation.has_broker_epoch):
            assert query.get("leader_epoch") == (answer.leader_epoch if answer else None), query


def cases():
    """Yield every partition of every family, without those that no consumer can read."""
    for family in golden_set.families():
        if family == "startup-failures":
            continue
        for name in golden_set.expected(family)["partitions"]:
            if name != "__cluster_metadata-0":
                yield pytest.param(family, name, id=f"{family}/{name}")


@pytest.mark.parametrize(("family", "name"), list(cases()))
class TestOpened:
    def test_for_writing(self, golden, expected_of, tmp_path, family, name):
        """Offsets, segments, records and lookups are Kafka's; once closed, the same again."""
        expectation = Expectation(golden, expected_of, family, name)
        path = copy_of(golden / family, name, tmp_path / "logdir") / name
        with opened(path, "a", expectation) as log:
            log.delete_old_segments()  # What a broker does right after it started.
            compare(log, expectation)
        with opened(path, "a", expectation) as log:
            assert log.recovery_point == log.log_end_offset
            compare(log, expectation)

    def test_for_reading(self, golden, expected_of, tmp_path, family, name):
        """A reader sees the same and leaves no trace."""
        if name == "no-segments-0":
            pytest.skip("there is nothing to read")
        expectation = Expectation(golden, expected_of, family, name)
        logdir = copy_of(golden / family, name, tmp_path / "logdir")
        before = {
            path: (path.stat().st_mtime_ns, path.stat().st_size) for path in logdir.rglob("*")
        }
        with opened(logdir / name, "r", expectation) as log:
            if not name.startswith("log-start-in-log"):  # The broker has deleted segments below it.
                compare(log, expectation)
        after = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in logdir.rglob("*")}
        assert before == after


def test_every_deliberate_difference_is_one(expected_of):
    """OTHERWISE names cases that exist."""
    assert [] == [(family, name) for family, name in OTHERWISE if name not in expected_of(family)]
