"""Topics: which partition a record goes to."""

from __future__ import annotations

import random
from collections import Counter

import pytest

import logstore
from logstore.errors import InvalidTopicError, UnknownTopicError
from logstore.partitioner import StickyPartition, murmur2, partition_of_key


@pytest.fixture(name="store")
def _store(tmp_path):
    with logstore.open_store(tmp_path / "data") as store:
        yield store
        assert [] == list(store.check())


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2(key, expected):
    """The vectors of Kafka's own test (UtilsTest.testMurmur2)."""
    assert expected & 0xFFFFFFFF == murmur2(key)
    assert murmur2(key) == murmur2(bytearray(key)) == murmur2(memoryview(key))


def test_partition_of_key():
    """The sign bit is dropped, as Kafka's toPositive does."""
    assert (-973932308 & 0x7FFFFFFF) % 7 == partition_of_key(b"21", 7)


def test_sticky():
    """One partition until enough bytes have gone there; then another, by chance."""
    sticky = StickyPartition(100, random.Random(1))
    chosen = []
    for _ in range(3000):
        partition = sticky.take(40)
        chosen.append(sticky.choose((0, 1, 2), 40) if partition < 0 else partition)
    assert all(len(set(chosen[at : at + 3])) == 1 for at in range(0, 3000, 3))
    assert all(250 < count < 1500 for count in Counter(chosen).values())


def test_sticky_partition_of_a_topic(store):
    """Enough bytes for a batch go to one partition; then another is drawn."""
    topic = store.create_topic("orders", partitions=3)
    chosen = [topic.append(bytes(30_000)).partition for _ in range(90)]
    assert all(len(set(chosen[at : at + 3])) == 1 for at in range(0, 90, 3))
    assert {0, 1, 2} == set(chosen)


def test_keys_stay_together(store):
    """Each key has its partition, before and after others come between."""
    topic = store.create_topic("orders", partitions=5)
    where = {}
    for n in range(200):
        key = b"key %d" % (n % 20)
        partition, offset = topic.append(b"%d" % n, key=key)
        assert partition == where.setdefault(key, partition) == topic.partition_for(key)
        assert (key, b"%d" % n) == (topic[partition][offset].key, topic[partition][offset].value)
    assert len(set(where.values())) > 1


def test_given_partition(store):
    """It wins over the key's."""
    topic = store.create_topic("orders", partitions=3)
    assert (2, 0) == topic.append(b"v", key=b"k", partition=2)
    assert (2, 1) == topic.append(b"v", partition=2)
    with pytest.raises(UnknownTopicError):
        topic.append(b"v", partition=3)


def test_options_of_append(store):
    """They are those of Log.append."""
    topic = store.create_topic("orders")
    topic.append(None, key=b"k", headers=[("h", b"1")], timestamp=1_700_000_000_000, sync=True)
    (record,) = topic[0]
    assert (None, (("h", b"1"),), 1_700_000_000_000) == (
        record.value,
        tuple(record.headers),
        record.timestamp,
    )
    assert 1 == topic[0].recovery_point


@pytest.mark.parametrize(("value", "key"), [("v", None), (5, None), (b"v", "k"), (b"v", 5)])
def test_text_is_no_record(store, value, key):
    """A value or key of another type is named, in a topic and in a transaction."""
    topic = store.create_topic("orders", partitions=2)
    what = "key" if key is not None else "value"
    with store.transaction("t") as transaction:
        for append in (
            topic.append,
            lambda *given, **more: transaction.append("orders", *given, **more),
        ):
            with pytest.raises(TypeError, match=f"^a {what} is bytes"):
                append(value, key=key)


def test_internal_topics_are_the_stores_own(store):
    """A record of somebody else's there would keep a coordinator from loading."""
    store.create_topic("orders")
    store.positions("g").commit({("orders", 0): 1})
    with store.transaction("t") as transaction:
        transaction.append("orders", b"v")
    for name in ("__consumer_offsets", "__transaction_state"):
        topic = store[name]
        for append in (
            lambda topic=topic: topic.append(b"v"),
            lambda topic=topic: topic.append(b"v", partition=0),
            lambda topic=topic: topic.extend([b"v"]),
            lambda topic=topic: topic.extend_arrow(None),
        ):
            with pytest.raises(InvalidTopicError, match=f"{name} holds the store's own records"):
                append()
