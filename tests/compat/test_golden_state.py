"""Indexes, snapshots and checkpoints of Kafka's directories, against what Kafka said of them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import golden_set
import numpy as np
import pytest

from logstore._native import BATCH_DTYPE
from logstore.append_origin import AppendOrigin
from logstore.checkpoint import (
    LeaderEpochCheckpointFile,
    OffsetCheckpointFile,
    PartitionMetadataFile,
    topic_partition_of,
)
from logstore.clock import ManualClock
from logstore.errors import LogStoreError
from logstore.index import OffsetIndex, TimeIndex, TransactionIndex
from logstore.leader_epoch import LeaderEpochCache
from logstore.producer_state import (
    ProducerStateManager,
    list_snapshot_offsets,
    read_snapshot,
    write_snapshot,
)
from logstore.record import RecordBatch, iterate_batches
from logstore.scheduler import ManualScheduler

YEAR_OF_THE_DATA = 1_750_000_000_000  # Between the times in plain topics and those of the runs.


@pytest.fixture(name="family", params=golden_set.families())
def _family(golden, request):
    return golden / request.param


def expected_of(family):
    return json.loads((family / "expected.json").read_text())


def files_of(family, *suffixes):
    """Yield (path, what Kafka's tool printed) of the files that are as they were when it did."""
    for name, partition in expected_of(family).get("partitions", {}).items():
        for file, about in partition.get("files", {}).items():
            path = family / "logdir" / name / file
            if not file.endswith(suffixes) or not path.exists():
                continue
            if hashlib.sha256(path.read_bytes()).hexdigest() != about["sha256"]:
                continue  # The damage came first; this is what Kafka made of it.
            dump = about.get("dump", about.get("text"))
            if dump is not None:
                yield path, dump["entries"] if isinstance(dump, dict) else dump


def is_damaged(family):
    return expected_of(family)["stopped"] not in ("clean", "sigkill")


def batches_of(path):
    """Headers of a segment's batches; what cannot be read ends them."""
    rows = []
    position = 0
    try:
        for batch in iterate_batches(path.read_bytes()):
            rows.append((position, batch.last_offset, batch.max_timestamp))
            position += batch.size_bytes
    except LogStoreError:
        pass
    batches = np.zeros(len(rows), BATCH_DTYPE)
    for field, column in zip(
        ("position", "last_offset", "max_timestamp"), zip(*rows, strict=True), strict=False
    ):
        batches[field] = column
    return batches


def shown(entries):
    """Kafka's tool ends at the first zero entry after the first."""
    for slot, entry in enumerate(entries):
        if slot and entry[0] in (0, None):
            return entries[:slot]
    return entries


def test_offset_indexes(family):
    """Every entry is what Kafka read, looking one up finds it, and it points to a batch."""
    for path, dump in files_of(family, ".index"):
        base_offset = int(path.name.split(".")[0])
        index = OffsetIndex(path, base_offset, writable=False)
        expected = [[entry["offset"], entry["position"]] for entry in dump]
        actual = index.entries().tolist()
        assert expected == actual[: len(expected)], path
        assert not any(position for _, position in actual[len(expected) :]), path
        if not is_damaged(family):
            index.sanity_check()
            batches = batches_of(path.with_suffix(".log"))
            assert [] == list(index.check(batches, allow_padding=True)), path
            if actual == expected:
                for offset, position in expected:
                    assert (offset, position) == index.lookup(offset)
                assert index.tail_problem(path.with_suffix(".log").stat().st_size) is None
        index.close()


def test_time_indexes(family):
    """Every entry is what Kafka read, and a batch explains it."""
    for path, dump in files_of(family, ".timeindex"):
        base_offset = int(path.name.split(".")[0])
        index = TimeIndex(path, base_offset, writable=False)
        expected = [[entry["timestamp"], entry["offset"]] for entry in dump]
        actual = index.entries().tolist()
        assert expected == actual[: len(expected)], path
        assert not any(timestamp for timestamp, _ in actual[len(expected) :]), path
        if not is_damaged(family):
            batches = batches_of(path.with_suffix(".log"))
            assert [] == list(index.check(batches, allow_padding=True)), path
            if actual == expected:
                index.sanity_check()
                assert index.tail_problem() is None
                for timestamp, offset in expected:
                    assert (timestamp, offset) == index.lookup(timestamp)
        index.close()


def test_transaction_indexes(family):
    """Every aborted transaction is what Kafka read."""
    for path, dump in files_of(family, ".txnindex"):
        index = TransactionIndex(path, int(path.name.split(".")[0]), writable=False)
        expected = [
            (
                entry["producerId"],
                entry["firstOffset"],
                entry["lastOffset"],
                entry["lastStableOffset"],
            )
            for entry in dump
        ]
        assert expected == index.all_aborted_txns(), path
        index.sanity_check()
        assert [] == list(index.check())


def test_snapshots(family, tmp_path):
    """Every producer is what Kafka read, and what is written back has the same size."""
    for path, dump in files_of(family, ".snapshot"):
        entries = read_snapshot(path)
        assert sorted(dump, key=lambda fields: fields["producerId"]) == sorted(
            map(dumped_entry, entries), key=lambda fields: fields["producerId"]
        ), path
        write_snapshot(tmp_path / "copy", entries, sync=False)
        assert path.read_bytes() == (tmp_path / "copy").read_bytes()


def dumped_entry(entry):
    """The entry with the names of DumpLogSegments."""
    fields = {
        "producerId": entry.producer_id,
        "producerEpoch": entry.producer_epoch,
        "coordinatorEpoch": entry.coordinator_epoch,
        "currentTxnFirstOffset": entry.current_txn_first_offset,
        "lastTimestamp": entry.last_timestamp,
    }
    for batch in entry.batch_metadata:
        fields |= {
            "firstSequence": batch.first_sequence,
            "lastSequence": batch.last_sequence,
            "lastOffset": batch.last_offset,
            "offsetDelta": batch.offset_delta,
            "timestamp": batch.timestamp,
        }
    return fields


@dataclass
class NoExpiry:
    producer_id_expiration_ms: int = 2**62
    transaction_max_timeout_ms: int = 900_000
    transaction_partition_verification_enable: bool = True


def test_state_of_the_batches_is_the_snapshot(family, tmp_path):
    """Applying every batch below a snapshot's offset gives what Kafka wrote into it."""
    if is_damaged(family) or family.name in ("compacted", "internal-topics", "unclean"):
        pytest.skip("the batches that Kafka saw are not all there any more")
    for partition in (family / "logdir").iterdir():
        if topic_partition_of(partition.name) is None:
            continue
        logs = sorted(partition.glob("*.log"))
        if int(logs[0].name.split(".")[0]) > 0:
            continue  # The first batches are gone.
        wanted = list_snapshot_offsets(partition)
        manager = ProducerStateManager(tmp_path, config=NoExpiry(), clock=ManualClock())
        for batch in (each for log in logs for each in iterate_batches(log.read_bytes())):
            while wanted and batch.last_offset >= wanted[0]:
                compare_with_snapshot(manager, partition, wanted.pop(0))
            if isinstance(batch, RecordBatch) and batch.producer_id >= 0:
                info = manager.prepare_update(batch.producer_id, AppendOrigin.REPLICATION)
                completed = info.append(batch)
                manager.update(info)
                if completed is not None:
                    manager.complete_txn(completed)
        while wanted:
            compare_with_snapshot(manager, partition, wanted.pop(0))


def compare_with_snapshot(manager, partition, offset):
    path = partition / f"{offset:020d}.snapshot"
    expected = {entry.producer_id: dumped_entry(entry) for entry in read_snapshot(path)}
    actual = {
        producer_id: dumped_entry(entry) for producer_id, entry in manager.active_producers.items()
    }
    for fields in actual.values():
        if "timestamp" in fields:
            fields["timestamp"] = fields["lastTimestamp"]  # The file has one for both.
    for producer_id in actual.keys() - expected.keys():
        # Its batches have times long before the run: it expired at a restart.
        assert actual.pop(producer_id)["lastTimestamp"] < YEAR_OF_THE_DATA
    assert expected == actual, path


def test_leader_epochs(family, tmp_path):
    """The entries are read, and written back as the same bytes."""
    for path, text in files_of(family, "leader-epoch-checkpoint"):
        entries = LeaderEpochCheckpointFile(path).read()
        assert len(text.splitlines()[2:]) == len(entries)
        if text:
            copy = LeaderEpochCheckpointFile(tmp_path / "copy")
            copy.write(entries)
            assert text == Path(copy.path).read_text()
        cache = LeaderEpochCache(LeaderEpochCheckpointFile(path), ManualScheduler(ManualClock()))
        assert entries == list(cache.epoch_entries)


def test_partition_metadata(family, tmp_path):
    """The topic id is read, and written back as the same bytes."""
    for path, text in files_of(family, "partition.metadata"):
        topic_id = PartitionMetadataFile(path).read().topic_id
        copy = PartitionMetadataFile(tmp_path / f"{topic_id}")
        copy.write(topic_id)
        assert text == Path(copy.path).read_text() == path.read_text()


def test_offset_checkpoints(family, tmp_path):
    """Each line names a partition; written back the lines are the same."""
    for name, text in (expected_of(family).get("root_files") or {}).items():
        path = family / "logdir" / name
        if not name.endswith("-checkpoint") or not path.exists() or path.read_text() != text:
            continue
        offsets = OffsetCheckpointFile(path).read()
        copy = OffsetCheckpointFile(tmp_path / "copy")
        copy.write(offsets)
        assert text == Path(copy.path).read_text() or not text


def test_directory_names(family):
    """Every partition's directory is called after it."""
    for name, partition in expected_of(family).get("partitions", {}).items():
        found = topic_partition_of(name)
        assert (partition["topic"], partition["partition"]) == found
