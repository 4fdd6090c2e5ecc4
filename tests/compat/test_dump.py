"""
``logstore dump`` and ``logstore verify`` on Kafka's own log directories, against what Kafka said.

The directories are unpacked from ``tests/compat/golden``, or read from ``$LOGSTORE_GOLDEN``.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import shutil
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from logstore.cli import main
from logstore.file_dump import dump_file
from logstore.group_metadata import OFFSET_COMMIT, OffsetCommitValue, decode_group_record
from logstore.inspection import Part, find_partitions, scan_log_file
from logstore.repairing import repair_partition
from logstore.state_verification import verify_root
from logstore.transaction_log import TransactionLogValue, decode_transaction_record
from logstore.verification import verify_partition

ROOT = Path(os.environ.get("LOGSTORE_GOLDEN") or Path(__file__).with_name("golden"))
FAMILIES = sorted(
    {
        path.name.removesuffix(".tar.xz")
        for path in ROOT.glob("*")
        if path.name not in ("README.md", "startup-failures", "startup-failures.tar.xz")
    }
)
DAMAGED = ("damaged-clean", "damaged-clean-fatal", "unclean", "unclean-no-checkpoint")

# What a damage is called, and where: the name's place in the sorted segments (-1: the active one)
# or the file; then kind, and for the log file what is counted from its end of valid bytes.
SEGMENT_DAMAGE = {
    "bad-length": ("corrupt", -1),
    "bad-magic": ("corrupt", -1),
    "bit-flip-active": ("corrupt", -1),
    "bit-flip-last": ("corrupt", -1),
    "bit-flip-old": ("corrupt", 1),
    "garbage-tail": ("corrupt", -1),
    "repeated-batch": ("order", -1),
    "short-length": ("corrupt", -1),
    "torn-header": ("torn", -1),
    "torn-prefix": ("torn", -1),
    "torn-tail": ("torn", -1),
    "zero-tail": ("zeros", -1),
}
FILE_DAMAGE = {
    "corrupt-newest-snapshot": {(".snapshot", "snapshot")},
    "corrupt-snapshots": {(".snapshot", "snapshot")},
    "corrupt-txnindex": {(".txnindex", "index")},
    "epoch-beyond-end": {("leader-epoch-checkpoint", "checkpoint")},
    "hw-beyond-end": {("replication-offset-checkpoint", "checkpoint")},
    "index-beyond-log": {(".index", "index")},
    "index-beyond-log-active": {(".index", "index")},
    "index-garbage-active": {(".index", "index")},
    "index-garbage-old": {(".index", "index")},
    "index-odd-size": {(".index", "index")},
    "index-zero-tail": {(".index", "index"), (".timeindex", "index")},
    "log-start-beyond-end": {("log-start-offset-checkpoint", "checkpoint")},
    "missing-epoch-file": {("leader-epoch-checkpoint", "checkpoint")},
    "missing-index-active": {(".index", "index")},
    "missing-index-old": {(".index", "index")},
    "missing-partition-metadata": {("partition.metadata", "checkpoint")},
    "missing-segment": {(".log", "gap")},
    "missing-snapshots": {(".snapshot", "snapshot")},
    "missing-timeindex-active": {(".timeindex", "index")},
    "missing-timeindex-old": {(".timeindex", "index")},
    "missing-txnindex": {(".txnindex", "index")},
    "recovery-point-beyond-end": {("recovery-point-offset-checkpoint", "checkpoint")},
    "timeindex-garbage-old": {(".timeindex", "index")},
    "torn-txnindex": {(".txnindex", "index")},
}
# Segments are gone: the files that know of them are named.
LOST_SEGMENTS = {
    "empty-log-active": (".index", "index"),
    "missing-log-active": (".index", "index"),
    "missing-log-old": (".log", "gap"),
    "no-segments": (".snapshot", "snapshot"),
}
# Nothing is wrong, or nothing that files can tell: a checkpoint may always be behind, and what a
# crash of the cleaner leaves is finished by the next load.
SOUND = {
    "__transaction_state",
    "hw-missing",
    "leftover-cleaned",
    "leftover-deleted",
    "leftover-swap",
    "leftover-swap-deleted",
    "log-start-in-log",
    "none",
    "recovery-point-zero",
    "swap-and-cleaned",
    "swap-split",
}


@pytest.fixture(name="family", scope="module", params=FAMILIES)
def _family(request, tmp_path_factory):
    if (ROOT / request.param).is_dir():
        return ROOT / request.param
    directory = tmp_path_factory.mktemp("golden")
    with tarfile.open(ROOT / f"{request.param}.tar.xz") as archive:
        archive.extractall(directory, filter="data")
    return directory / request.param


@pytest.fixture(name="expected", scope="module")
def _expected(family):
    return json.loads((family / "expected.json").read_text())


def log_entry_of(fields):
    """A batch as Kafka's tool prints it, without what README says is left to a part of it."""
    return {name: value for name, value in fields.items() if name != "decoded_records"}


def test_every_file_is_dumped_as_kafka_dumps_it(family, expected):
    """Batches, index entries, snapshots and checkpoints, with the tool's own names."""
    count = 0
    for name, partition in expected["partitions"].items():
        for file, about in partition.get("files", {}).items():
            path = family / "logdir" / name / file
            if "dump" not in about or not path.exists():
                continue
            if hashlib.sha256(path.read_bytes()).hexdigest() != about["sha256"]:
                continue  # Kafka changed it when it loaded the directory.
            wanted = about["dump"]
            wanted = wanted["entries"] if isinstance(wanted, dict) else wanted
            found = dump_file(path).entries
            for entry in found:
                entry.pop("records", None)
            if path.suffix == ".snapshot":
                wanted = sorted(wanted, key=lambda entry: entry["producerId"])
                found = sorted(found, key=lambda entry: entry["producerId"])
            assert [log_entry_of(entry) for entry in wanted] == found, path
            count += 1
    assert count > 0 or not any(part.get("files") for part in expected["partitions"].values()), (
        "no file was compared"
    )


def test_control_batches_are_decoded(family, expected):
    """A control batch names its type, as Kafka's tool does."""
    for name, partition in expected["partitions"].items():
        for file, about in partition.get("files", {}).items():
            path = family / "logdir" / name / file
            if not file.endswith(".log") or "dump" not in about or not path.exists():
                continue
            if name.startswith("__") or family.name in DAMAGED:
                continue  # The tool decoded the topic's own records there.
            dump = about["dump"]
            entries = dump["entries"] if isinstance(dump, dict) else dump
            wanted = {entry["baseOffset"] for entry in entries if entry.get("isControl")}
            found = {
                entry["baseOffset"]: entry["records"]
                for entry in dump_file(path).entries
                if "records" in entry
            }
            assert wanted == set(found)
            kinds = {record["controlType"] for records in found.values() for record in records}
            assert kinds <= {"COMMIT", "ABORT", "LEADER_CHANGE", "SNAPSHOT_HEADER"}


def text_of(shown):
    """What a record says as the tool prints it."""
    key, payload = (
        part
        if isinstance(part, str)
        else json.dumps(part, separators=(",", ":"), ensure_ascii=False)
        for part in (shown["key"], shown["payload"])
    )
    return f"key: {key} payload: {payload}"


def test_internal_topics_are_decoded(family, expected):
    """Positions, groups and transactional ids, as the tool's decoders print them."""
    for name, partition in expected["partitions"].items():
        if not name.startswith(("__consumer_offsets-", "__transaction_state-")):
            continue
        for file, about in partition.get("files", {}).items():
            path = family / "logdir" / name / file
            if not file.endswith(".log") or "dump" not in about or not path.exists():
                continue
            dump = about["dump"]
            entries = dump["entries"] if isinstance(dump, dict) else dump
            wanted = {
                record["offset"]: record["decoded"]
                for entry in entries
                if not entry["isControl"]
                for record in entry.get("decoded_records", ())
            }
            found = {
                record["offset"]: text_of(record)
                for entry in dump_file(path).entries
                if not entry["isControl"]
                for record in entry["records"]
            }
            assert not wanted or wanted == found, path


def test_internal_records_are_encoded_as_kafka_does(family, expected):
    """Decoding and encoding again gives the broker's bytes, in its versions and in ours."""
    for name, partition in expected["partitions"].items():
        topic = name.rpartition("-")[0]
        if topic not in ("__consumer_offsets", "__transaction_state") or family.name in DAMAGED:
            continue
        with gzip.open(family / partition["records"]["file"], "rt") as lines:
            stored = [json.loads(line) for line in lines]
        for line in stored:
            key = base64.b64decode(line["key"])
            value = None if line["value"] is None else base64.b64decode(line["value"])
            decode = (
                decode_group_record if topic == "__consumer_offsets" else decode_transaction_record
            )
            record = decode(key, value)
            assert key == record.record_type.key_bytes(record.key)
            if value is None:
                continue
            assert value == record.record_type.value_bytes(record.value, record.version)
            if topic == "__transaction_state":
                assert value == TransactionLogValue.of(record).encode(record.version)
            elif record.record_type is OFFSET_COMMIT:
                assert value == OffsetCommitValue.of(record).encode()


def digest(data):
    return hashlib.sha256(data).hexdigest()


def as_stored(line, wanted):
    """A dumped record line in the short form of the golden set: large fields by their hash."""
    for field in ("key", "value"):
        if f"{field}_sha256" in wanted:
            data = base64.b64decode(line.pop(field))
            line |= {f"{field}_length": len(data), f"{field}_sha256": digest(data)}
    return line


def in_ranges(offset, ranges):
    return any(first <= offset <= last for first, last in ranges)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_record_lines(family, expected, isolation, capsys):
    """``dump --records --json`` prints the lines of the golden set, for both isolations."""
    if family.name in DAMAGED:
        pytest.skip("Kafka's records are those after its recovery")
    for name, partition in expected["partitions"].items():
        records = partition.get("records")
        if not records or "file" not in records or "read_uncommitted_error" in records:
            continue
        with gzip.open(family / records["file"], "rt") as lines:
            wanted = [json.loads(line) for line in lines]
        if isolation == "read_committed":
            visible = records["read_committed_offsets"]
            wanted = [line for line in wanted if in_ranges(line["offset"], visible)]
        path = family / "logdir" / name
        arguments = ["dump", "--records", "--json", "--isolation", isolation, str(path)]
        assert 0 == main(arguments)
        found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert len(wanted) == len(found), path
        for expected_line, line in zip(wanted, found, strict=True):
            assert expected_line == as_stored(line, expected_line), path


def test_healthy_directories_have_no_damage(family):
    """No false alarm: not in a log that was closed, killed, compacted, truncated or upgraded."""
    if family.name in DAMAGED:
        pytest.skip("damaged on purpose")
    assert [] == list(verify_root(family / "logdir"))
    for partition in find_partitions(family / "logdir"):
        assert [] == list(verify_partition(partition)), partition


def label_of(path):
    """The suffix of a segment's file, the name of any other."""
    return path.suffix if path.stem.isdecimal() else path.name


def test_each_damage_is_named(family, expected):
    """One cause, one file, the right place; nothing else is said of the partition."""
    if family.name not in DAMAGED:
        pytest.skip("nothing is damaged")
    for name, partition in expected["partitions"].items():
        case = name.removesuffix("-0")
        directory = family / "logdir" / name
        if partition.get("damage", "").startswith("no damage"):
            case = "none"
        found = list(verify_partition(directory))
        named = Counter((label_of(damage.path), damage.kind) for damage in found)
        logs = sorted(directory.glob("*.log"))
        if case in SOUND:
            assert [] == found, directory
        elif case in SEGMENT_DAMAGE:
            kind, slot = SEGMENT_DAMAGE[case]
            assert [(logs[slot], kind)] == [(damage.path, damage.kind) for damage in found], case
            if "changes" in partition and logs[slot].name in partition["files"]:
                # Kafka, too, cut the file there, unless it gave up a clean tail.
                kept = partition["files"][logs[slot].name]["size"]
                assert found[0].position == kept or kept == logs[slot].stat().st_size
        elif case in LOST_SEGMENTS:
            assert LOST_SEGMENTS[case] in named, case
        elif family.name == "unclean-no-checkpoint" and case not in FILE_DAMAGE:
            pytest.fail(f"{case} is not judged")
        else:
            assert FILE_DAMAGE[case] == set(named), case


def test_verify_command_exits_with_one(family, capsys):
    """Damage is an answer: exit status 1, one JSON object for each."""
    if family.name not in DAMAGED:
        assert 0 == main(["verify", str(family / "logdir")])
        assert ": sound" in capsys.readouterr().out
        return
    assert 1 == main(["verify", "--json", str(family / "logdir")])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines
    for line in lines:
        assert {"file", "position", "size_bytes", "offset", "kind", "reason"} == set(line)


def test_info_tells_the_offsets(family, expected, capsys):
    """Log start and end of a log that was closed are what the broker answered."""
    if family.name in DAMAGED:
        pytest.skip("the broker answered after its recovery")
    assert 0 == main(["info", "--json", str(family / "logdir")])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    by_name = {Path(line["path"]).name: line for line in found}
    for name, partition in expected["partitions"].items():
        if "offsets" not in partition or name not in by_name:
            continue
        for field in ("log_start_offset", "log_end_offset"):
            assert partition["offsets"].get(field) in (None, by_name[name][field]), (name, field)


# What cannot be made again: offsets of a segment that is gone, a topic's id.
LEFT = {
    "missing-log-old": {"gap"},
    "missing-partition-metadata": {"checkpoint"},
    "missing-segment": {"gap"},
}


@pytest.fixture(name="copy")
def _copy(family, tmp_path):
    if family.name not in ("damaged-clean", "damaged-clean-fatal", "unclean"):
        pytest.skip("nothing is damaged, or as in unclean")
    shutil.copytree(family / "logdir", tmp_path / "logdir", copy_function=shutil.copyfile)
    for path in [tmp_path / "logdir", *(tmp_path / "logdir").rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return tmp_path / "logdir"


def valid_batches(partition):
    """Every valid batch of a partition's segments."""
    return {
        (path.name, bytes(part.slice(slot, slot + 1).data))
        for path in partition.glob("*.log")
        for part in scan_log_file(path)
        if isinstance(part, Part)
        for slot in range(len(part.batches))
    }


def test_repair(copy, capsys):
    """Each damaged directory is sound afterwards, keeps every valid batch, and stays as it is."""
    for partition in find_partitions(copy):
        case = partition.name.removesuffix("-0")
        before = valid_batches(partition)
        is_sound = not list(verify_partition(partition))
        repairs = list(repair_partition(partition))
        assert is_sound == (not repairs) or case in LEFT, case
        left = {damage.kind for damage in verify_partition(partition)}
        assert LEFT.get(case, set()) == left, case
        assert before <= valid_batches(partition), case
        assert case in LEFT or [] == list(repair_partition(partition)), case
