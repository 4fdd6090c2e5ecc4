"""Every batch and record of Kafka's own log directories, against what Kafka said of them."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import json

import golden_set
import pytest

from logstore.errors import CorruptRecordError
from logstore.record import (
    ControlRecordType,
    EndTransactionMarker,
    RecordBatch,
    TimestampType,
    iterate_batches,
)


@pytest.fixture(name="family", scope="module", params=golden_set.families())
def _family(request, golden):
    return golden / request.param


def partitions_of(family):
    expected = json.loads((family / "expected.json").read_text())
    return expected.get("partitions", {}).items()


def dumped(batch):
    """The batch with the names of DumpLogSegments."""
    fields = {
        "position": batch.position,
        "size": batch.size_bytes,
        "magic": batch.magic,
        "compresscodec": batch.compression_type.label,
        "crc": batch.crc,
        "isvalid": batch.is_valid,
        batch.timestamp_type.label: batch.max_timestamp,
    }
    if not isinstance(batch, RecordBatch):
        return fields | {"offset": batch.last_offset}
    return fields | {
        "baseOffset": batch.base_offset,
        "lastOffset": batch.last_offset,
        "count": batch.record_count,
        "baseSequence": batch.base_sequence,
        "lastSequence": batch.last_sequence,
        "producerId": batch.producer_id,
        "producerEpoch": batch.producer_epoch,
        "partitionLeaderEpoch": batch.leader_epoch,
        "isTransactional": batch.is_transactional,
        "isControl": batch.is_control,
        "deleteHorizonMs": batch.delete_horizon_ms,
    }


def dumps_of(family):
    """Yield the bytes of each log file that was dumped as it is stored, and its entries."""
    for partition, details in partitions_of(family):
        for name, file in details.get("files", {}).items():
            path = family / "logdir" / partition / name
            if ".log" not in name or "dump" not in file or not path.exists():
                continue
            data = path.read_bytes()
            if hashlib.sha256(data).hexdigest() != file.get("sha256"):
                continue  # Kafka repaired it before the dump.
            dump = file["dump"]
            yield f"{partition}/{name}", data, dump if isinstance(dump, list) else dump["entries"]


def batches_before_damage(data):
    batches = []
    # Some directories were damaged on purpose; the dump ends there too.
    with contextlib.suppress(CorruptRecordError):
        batches.extend(iterate_batches(data))  # Keeps what came before the error.
    return batches


def test_batch_headers_are_what_kafka_dumped(family):
    """Every field of every batch, in position order."""
    for name, data, entries in dumps_of(family):
        expected = [
            {key: value for key, value in entry.items() if key != "decoded_records"}
            for entry in entries
        ]
        batches = batches_before_damage(data)
        assert expected[: len(batches)] == [dumped(batch) for batch in batches], name
        assert len(expected) - len(batches) in (0, 1), name


def test_transaction_markers_are_what_kafka_decoded(family):
    """Type and coordinator epoch of every marker."""
    for name, data, entries in dumps_of(family):
        for entry, batch in zip(entries, batches_before_damage(data), strict=False):
            for decoded in entry.get("decoded_records", ()):
                if not decoded["decoded"].startswith("endTxnMarker: "):
                    continue
                (record,) = (
                    record for record in batch.records() if record.offset == decoded["offset"]
                )
                marker = EndTransactionMarker.parse(record.key, record.value)
                assert decoded["decoded"] == (
                    f"endTxnMarker: {marker.control_type.name} "
                    f"coordinatorEpoch: {marker.coordinator_epoch}"
                ), name


def base64_or_none(text):
    return None if text is None else base64.b64decode(text)


def is_same(line, name, value):
    if name in line:
        return base64_or_none(line[name]) == value
    digest = hashlib.sha256(value).hexdigest()
    return (line[f"{name}_length"], line[f"{name}_sha256"]) == (len(value), digest)


def test_records_are_what_a_consumer_got(family):
    """Offsets, timestamps, keys, values, headers and leader epochs of all data records."""
    for partition, details in partitions_of(family):
        path = family / "records" / f"{partition}.jsonl.gz"
        if not path.exists() or "damage" in details:
            continue
        found = {
            record.offset: record
            for log in sorted((family / "logdir" / partition).glob("*.log"))
            for batch in iterate_batches(log.read_bytes())
            if not batch.is_control
            for record in batch.records()
        }
        with gzip.open(path, "rt") as lines:
            for line in map(json.loads, lines):
                record = found[line["offset"]]
                assert is_same(line, "key", record.key), (partition, line)
                assert is_same(line, "value", record.value), (partition, line)
                headers = [(name, base64_or_none(value)) for name, value in line["headers"]]
                assert headers == list(record.headers), (partition, line)
                assert line["timestamp"] == record.timestamp, (partition, line)
                label = TimestampType(record.timestamp_type).label
                assert line["timestamp_type"] == label, (partition, line)
                epoch = -1 if line["leader_epoch"] is None else line["leader_epoch"]
                assert epoch == record.leader_epoch, (partition, line)


def test_control_batches_hold_control_records(family):
    """Every control batch with records has a key that parses."""
    for name, data, _ in dumps_of(family):
        for batch in batches_before_damage(data):
            if batch.is_control and batch.is_valid:
                kinds = [ControlRecordType.parse(record.key) for record in batch.records()]
                assert ControlRecordType.UNKNOWN not in kinds, name
