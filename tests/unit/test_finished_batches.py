"""Finished batches in a transaction: the log is what one append after the other makes of it."""

from __future__ import annotations

import struct
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sampling import examples

from logstore._native import crc32c
from logstore.clock import ManualClock
from logstore.compression import CompressionType
from logstore.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    LogStoreError,
    RecordBatchTooLargeError,
    RecordTooLargeError,
)
from logstore.records_builder import encode_batch
from logstore.scheduler import ManualScheduler
from logstore.store import open_log_store

NOW = 1_700_000_000_000
FEW = {"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1}
TOPICS = {
    "plain": {},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "gzip": {"compression.type": "gzip"},
    "small": {"segment.bytes": "1200", "index.interval.bytes": "100", "segment.index.bytes": "120"},
    "bounded": {"max.message.bytes": "300"},
    "keyed": {"cleanup.policy": "compact"},
    "punctual": {"message.timestamp.before.max.ms": "1000"},
}


def batch(*values, key=b"k", timestamp=NOW, **fields):
    """Return a batch as a task writes it."""
    rows = [(None, timestamp + at, key, value, ()) for at, value in enumerate(values)]
    return encode_batch(rows, base_offset=0, leader_epoch=-1, **fields)


def numbered(data, producer, sequence):
    """Return a batch with a producer, and a CRC over all of it."""
    data = bytearray(data)
    (attributes,) = struct.unpack_from(">h", data, 21)
    struct.pack_into(">h", data, 21, attributes | 0x10)
    struct.pack_into(">qhi", data, 43, producer.producer_id, producer.producer_epoch, sequence)
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return bytes(data)


def one_by_one(store, transaction, place, batches):
    """Append batches as a client's, each alone."""
    transaction.note_partitions([place])
    log, producer = store[place], transaction.producer
    sequence = 0
    for data in batches:
        guard = None
        if sequence == 0:
            guard = log.maybe_start_transaction_verification(
                producer.producer_id, 0, producer.producer_epoch, supports_epoch_bump=True
            )
        log.append_batches(
            numbered(data, producer, sequence),
            leader_epoch=log.leader_epoch,
            verification_guard=guard,
        )
        sequence += struct.unpack_from(">i", data, 57)[0]


def together(_store, transaction, place, batches):
    """Append them at once."""
    transaction.append_batches(place, bytearray(b"".join(batches)))


def result_of(directory, topic, batches, append):
    """Return the log, what readers see, producer state, and the error."""
    clock = ManualClock(NOW)
    scheduler = ManualScheduler(clock)
    with open_log_store(
        directory, config=FEW, clock=clock, scheduler=scheduler, live_offsets=False
    ) as store:
        log = store.create_topic(topic, config=TOPICS[topic])[0]
        error = None
        try:
            with store.transaction("t") as transaction:
                append(store, transaction, (topic, 0), batches)
        except LogStoreError as caught:
            error = caught
        files = sorted(Path(log.directory).glob("*.log"))
        seen = [(each.offset, each.timestamp, each.key, each.value) for each in log]
        state = log.producer_state.active_producers
        assert [] == list(store.check())
        return error, b"".join(file.read_bytes() for file in files), seen, state


values = st.lists(st.binary(max_size=120), min_size=1, max_size=6)
made = st.builds(
    lambda values, key, timestamp, codec: batch(
        *values, key=key, timestamp=timestamp, compression=codec
    ),
    values,
    st.none() | st.just(b"k"),
    st.sampled_from([NOW, NOW - 5000]),
    st.sampled_from([CompressionType.NONE] * 5 + [CompressionType.GZIP]),
)


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(topic=st.sampled_from(sorted(TOPICS)), batches=st.lists(made, min_size=1, max_size=12))
def test_as_one_by_one(tmp_path_factory, topic, batches):
    """Bytes, records, producers; and the error, if a batch is refused."""
    results = []
    for append in (one_by_one, together):
        directory = tmp_path_factory.mktemp("store")
        results.append(result_of(directory, topic, batches, append))
    (expected, *rest), (found, *same) = results
    assert type(expected) is type(found)
    assert str(expected) == str(found)
    assert rest == same


@pytest.fixture(name="store")
def _store(tmp_path):
    clock = ManualClock(NOW)
    scheduler = ManualScheduler(clock)
    with open_log_store(
        tmp_path / "data", config=FEW, clock=clock, scheduler=scheduler, live_offsets=False
    ) as store:
        yield store


def refused(store, kind, *batches, topic="plain", match=None):
    """Append batches that are refused; return what is seen of them."""
    if topic not in store:
        store.create_topic(topic, config=TOPICS[topic])
    with pytest.raises(kind, match=match), store.transaction("t") as transaction:
        transaction.append_batches((topic, 0), bytearray(b"".join(batches)))
    assert "aborted" == transaction.outcome
    return [each.value for each in store[topic, 0]]


def test_what_is_damaged(store):
    """Bytes that are no whole batches; the transaction is aborted."""
    whole = batch(b"1", b"2")
    for wrong in (whole[:-1], whole + b"x", whole[:20], whole[:-2] + b"\0\0", b"x" * 100):
        assert [] == refused(store, CorruptRecordError, wrong, match="encode the records again")
        assert [] == refused(store, CorruptRecordError, whole, wrong)


def test_whose_batches_are(store):
    """Those of a producer, and control batches, are refused."""
    mine = batch(b"1", producer_id=7, producer_epoch=2, base_sequence=9)
    assert [] == refused(store, InvalidRecordError, batch(b"1"), mine, match=r"producers \[-1, 7\]")
    marker = bytearray(batch(b"1"))
    struct.pack_into(">h", marker, 21, 0x20)
    struct.pack_into(">I", marker, 17, crc32c(bytes(marker[21:])))
    assert [] == refused(store, InvalidRecordError, bytes(marker), match=r"attributes \[32\]")


def test_what_a_topic_refuses(store):
    """As of a client, with its errors."""
    fine = batch(b"1")
    late, large = batch(b"1", timestamp=NOW - 5000), batch(b"x" * 400)
    assert [] == refused(store, RecordTooLargeError, fine, large, topic="bounded")
    assert [] == refused(store, InvalidRecordError, fine, batch(b"1", key=None), topic="keyed")
    assert [] == refused(store, InvalidTimestampError, fine, late, topic="punctual")
    huge = batch(b"x" * 2000)
    assert [] == refused(store, RecordBatchTooLargeError, fine, huge, topic="small")
    misplaced = bytearray(fine)
    struct.pack_into(">q", misplaced, 0, 5)
    assert [] == refused(store, InvalidRecordError, fine, misplaced, match="base offset")


def test_many(store):
    """More than are scanned at once, into segments that take a few."""
    log = store.create_topic("small", config=TOPICS["small"])[0]
    batches = [batch(b"%d" % at * 30) for at in range(150)]
    with store.transaction("t") as transaction:
        transaction.append_batches(("small", 0), bytearray(b"".join(batches[:140])))
        transaction.append_batches(("small", 0), bytearray(b"".join(batches[140:])))
    assert len(log.segments) > 10
    assert max(segment.size_bytes for segment in log.segments) <= 1200
    assert [b"%d" % at * 30 for at in range(150)] == list(log.read_values())


def test_a_large_batch(store):
    """Its CRC is made from the old one, too."""
    log = store.create_topic("plain")[0]
    value = bytes(range(256)) * 4000
    with store.transaction("t") as transaction:
        transaction.append_batches(("plain", 0), bytearray(batch(value)))
    assert [value] == list(log.read_values())


def test_from_several_threads(store):
    """Each to a partition of its own: in order there, and all of one transaction."""
    topic = store.create_topic("plain", partitions=4)
    expected = [b"%d" % at for at in range(40)]
    with store.transaction("t") as transaction:
        transaction.append(("plain", 2), b"first")

        def append(partition):
            for value in expected:
                transaction.append_batches(("plain", partition), bytearray(batch(value)))

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(append, range(4)))
    for partition in range(4):
        first = [b"first"] if partition == 2 else []
        assert [*first, *expected] == list(topic[partition].read_values())


def test_whoever_ends_it_waits(store):
    """So does who comes with more for the same partition; others do not."""
    store.create_topic("plain", partitions=2)
    log = store["plain", 0]
    with ThreadPoolExecutor(3) as threads, store.transaction("t") as transaction:
        transaction.append_batches(("plain", 0), bytearray(batch(b"1")))
        with log.changing():
            slow = threads.submit(transaction.append_batches, ("plain", 0), bytearray(batch(b"2")))
            while not transaction._busy:
                time.sleep(0.001)
            next_one = threads.submit(transaction.append, ("plain", 0), b"3")
            transaction.append_batches(("plain", 1), bytearray(batch(b"other")))
            next_one.result(10)  # It is kept until the end.
            end = threads.submit(transaction.commit)
            time.sleep(0.02)
            assert [False, False] == [each.done() for each in (slow, end)]
            assert "open" == transaction.outcome
        slow.result(10)
        end.result(10)
        assert "committed" == transaction.outcome
    assert [b"1", b"2", b"3"] == list(log.read_values())
