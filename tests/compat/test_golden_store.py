"""
A broker's log directories, opened as a store: every partition at once, held, changed by nothing.

Records and offsets are what Kafka said of them; ``test_golden.py`` looks at damage case by case.
"""

from __future__ import annotations

import gzip
import json
import shutil

import golden_set
import pytest

from logstore.checkpoint import OffsetCheckpointFile
from logstore.clock import ManualClock
from logstore.scheduler import ManualScheduler
from logstore.store import open_log_store

# When the directories were made: producers that are a day older would be forgotten.
NOW_MS = 1_795_256_000_000
SOUND = [
    name
    for name in golden_set.families()
    if not name.startswith(("damaged", "unclean", "startup", "metadata"))
]
DAY_MS = 86_400_000


def copied(golden, family, target):
    shutil.copytree(golden / family / "logdir", target, copy_function=shutil.copyfile)
    for path in target.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
    target.chmod(0o755)
    return target


@pytest.fixture(name="opened")
def _opened():
    """Open a store by a clock of the time when the directories were made."""
    stores = []

    def opened(path, **options):
        clock = ManualClock(NOW_MS)
        scheduler = ManualScheduler(clock)
        store = open_log_store(path, clock=clock, scheduler=scheduler, **options)
        stores.append(store)
        return store, scheduler

    yield opened
    for store in stores:
        store.abandon()


def lines_of(golden, family, partition):
    """Return the records that Kafka's consumer got."""
    packed = (golden / family / partition["records"]["file"]).read_bytes()
    return [json.loads(line) for line in gzip.decompress(packed).splitlines()]


@pytest.mark.parametrize("family", SOUND)
def test_as_a_store(golden, tmp_path, opened, family):
    """Each has its records; a day of background work deletes nothing; the end is clean."""
    expected = {
        name: partition
        for name, partition in json.loads((golden / family / "expected.json").read_text())[
            "partitions"
        ].items()
        if partition["topic"] != "__cluster_metadata"  # A broker's own; no partition to it either.
    }
    path = copied(golden, family, tmp_path / "data")
    was_clean = (path / ".kafka_cleanshutdown").exists()
    store, scheduler = opened(path, config={"log.retention.ms": 1})
    assert [] == list(store.errors)
    assert {(p["topic"], p["partition"]) for p in expected.values()} == set(store.partitions())
    for topic in store.topics():
        assert topic.is_held
    for partition in expected.values():
        log = store[partition["topic"], partition["partition"]]
        offsets = [line["offset"] for line in lines_of(golden, family, partition)]
        found = [record.offset for record in log.read(isolation="read_uncommitted")]
        assert offsets == found[: len(offsets)]
        assert partition["offsets"]["log_start_offset"] == log.log_start_offset
        if "__transaction_state" not in store:  # Else what a broker left undecided is decided.
            assert len(offsets) == len(found)
            assert partition["offsets"]["log_end_offset"] == log.log_end_offset
    before = {log.name: log.offsets for log in store.logs()}
    scheduler.advance_to(NOW_MS + DAY_MS)
    for log in store.logs():
        assert before[log.name].log_start_offset == log.log_start_offset
        assert before[log.name].log_end_offset <= log.log_end_offset
        assert log.high_watermark == log.last_stable_offset
    ends = {log.name: log.log_end_offset for log in store.logs()}
    store.close()
    assert (path / ".kafka_cleanshutdown").exists()
    assert was_clean
    points = OffsetCheckpointFile(path / "recovery-point-offset-checkpoint").read()
    assert ends == {str(each): offset for each, offset in points.items()}
    reader, _ = opened(path, mode="r", lazy=True)
    assert set(ends) == {str(each) for each in reader.partitions()}
    reader.close()


@pytest.mark.parametrize("family", ["damaged-clean", "unclean", "unclean-no-checkpoint"])
def test_damage_is_isolated(golden, tmp_path, opened, family):
    """Whatever state partitions are in, the store opens, and the sound ones are written on."""
    path = copied(golden, family, tmp_path / "data")
    store, _ = opened(path)
    online = [each for each in store.partitions() if store.online_partitions_of(each.topic)]
    assert len(online) == len(store.partitions()) - len(store.errors)
    offsets = {}
    for topic, partition in online:
        log = store[topic, partition]
        offsets[topic, partition] = log.append(b"on", key=b"k")
    store.close()
    store, _ = opened(path)
    for key, offset in offsets.items():
        (record,) = store[key].read(offset, isolation="read_uncommitted")
        assert (offset, b"on") == (record.offset, record.value)
    store.close()


def test_settings_out_of_the_metadata(golden, tmp_path, opened):
    """Held topics get what the controller knew, out of its newest snapshot and its log."""
    expected = json.loads((golden / "internal-topics" / "expected.json").read_text())
    path = copied(golden, "internal-topics", tmp_path / "data")
    store, _ = opened(path)
    found = store.import_configs()
    stated = {
        partition["topic"]: partition["topic_config"]
        for partition in expected["partitions"].values()
        if partition["topic"] != "__cluster_metadata"
    }
    assert stated == found.imported
    assert {} == found.held
    assert [] == [topic.name for topic in store.topics() if topic.is_held]
    assert store["__consumer_offsets"].config.compact
