"""
Snapshots, and what is restored of them, in Kafka's own log classes: they open as a broker's do.

Runs where there are a JDK and Kafka's jars.
"""

from __future__ import annotations

import base64
import shutil

import logstore
from logstore.checkpoint import OffsetCheckpointFile, TopicPartition
from logstore.record import iterate_batches

CONFIG = {
    "segment.bytes": 1500,
    "transaction.state.log.num.partitions": 1,
    "offsets.topic.num.partitions": 1,
}


def seen_by_kafka(kafka, path, topic, partition):
    """Open a partition in Kafka as after a clean end; return its state, and committed values."""
    place = TopicPartition(topic, partition)
    points = OffsetCheckpointFile(path / "recovery-point-offset-checkpoint").read()
    kafka.call(
        "open",
        dir=str(path),
        topic=topic,
        partition=partition,
        config={"segment.bytes": 1500},
        recovery_point=points[place],
        had_clean_shutdown=(path / ".kafka_cleanshutdown").exists(),
        log=str(place),
    )
    state = kafka.state
    end = state["log_end_offset"]
    # As a leader whose followers have it all.
    kafka.call("update_high_watermark", log=str(place), offset=end)
    state = kafka.state
    values, offset = [], 0
    while offset < end:
        found = kafka.call("read", log=str(place), start_offset=offset, isolation="txn_committed")
        coming, aborted = sorted(found["aborted_transactions"], key=lambda each: each[1]), set()
        for batch in iterate_batches(base64.b64decode(found["bytes"])):
            offset = batch.last_offset + 1
            while coming and coming[0][1] <= batch.last_offset:
                aborted.add(coming.pop(0)[0])
            if batch.is_control:
                aborted.discard(batch.producer_id)
            elif not (batch.is_transactional and batch.producer_id in aborted):
                values += [record.value for record in batch.records()]
    kafka.call("close", log=str(place))
    return state, values


def test_snapshot_and_restore(kafka, tmp_path):
    """The same end, everything decided, and the same records for who reads committed ones."""
    noon = 1_700_000_000_000
    with logstore.open_store(tmp_path / "store", config=CONFIG) as store:
        store.create_topic("orders", partitions=2)
        for number in range(60):
            store["orders", number % 2].append(b"%d" % number * 20, timestamp=noon + number)
        with store.transaction("done") as transaction:
            transaction.append(("orders", 0), b"in time", timestamp=noon)
            transaction.append(("orders", 1), b"late", timestamp=noon + 50_000)
        with store.transaction("open") as transaction:
            transaction.append(("orders", 0), b"open", timestamp=noon)
            transaction.flush()
            store.snapshot(tmp_path / "snapshot")
    logstore.restore(tmp_path / "snapshot", tmp_path / "restored", to_time=noon + 1000)
    for name in ("snapshot", "restored"):
        path = tmp_path / name
        with logstore.open_store(path, mode="r", config=CONFIG) as copy:
            ours = {n: list(copy["orders", n].read_values()) for n in range(2)}
            ends = {n: copy["orders", n].log_end_offset for n in range(2)}
        kafkas = tmp_path / f"{name}-of-kafka"
        shutil.copytree(path, kafkas)  # Kafka changes what is in a file in place.
        for partition in range(2):
            state, values = seen_by_kafka(kafka, kafkas, "orders", partition)
            assert ours[partition] == values
            assert ends[partition] == state["log_end_offset"] == state["last_stable_offset"]
    assert b"in time" not in ours[0]
