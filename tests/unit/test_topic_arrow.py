"""Arrow data into the partitions of a topic: as ``Topic.extend`` does with the same records."""

from __future__ import annotations

import random

import numpy as np
import pytest

import logstore
from logstore.clock import ManualClock
from logstore.errors import (
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
    TopicAppendError,
)
from logstore.partitioner import StickyPartition
from logstore.store import open_log_store

pa = pytest.importorskip("pyarrow")

NOW = 1_700_000_000_000
COUNT = 300
VALUES = [None if n % 7 == 3 else b"value %d" % n for n in range(COUNT)]
KEYS = [None if n % 5 == 4 else b"key %d" % (n % 40) for n in range(COUNT)]
TIMES = [NOW + n % 3 for n in range(COUNT)]
COLUMNS = {"key": "key", "timestamp": "timestamp"}


@pytest.fixture(name="store")
def _store(tmp_path):
    with open_log_store(tmp_path / "data", clock=ManualClock(NOW)) as store:
        yield store
        assert [] == list(store.check())


def table(start=0, stop=COUNT, kind=None):
    """Return rows of the records above."""
    kind = pa.binary() if kind is None else kind
    columns = {
        "value": pa.array(VALUES, pa.binary()).cast(kind),
        "key": pa.array(KEYS, pa.binary()).cast(kind),
        "timestamp": pa.array(TIMES, pa.int64()),
    }
    return pa.table(columns).slice(start, stop - start)


def topics(store, partitions=5, config=None):
    """Return two topics that choose the same partitions for what has no key."""
    found = []
    for name in ("rows", "records"):
        topic = store.create_topic(name, partitions=partitions, config=config)
        topic._sticky = StickyPartition(2000, random.Random(1))
        found.append(topic)
    return found


def records(topic):
    return [
        [(record.timestamp, record.key, record.value) for record in log] for log in topic.logs()
    ]


class TestRows:
    @pytest.mark.parametrize("compression", [None, "zstd"])
    @pytest.mark.parametrize(("start", "stop"), [(0, COUNT), (3, COUNT), (9, 10), (15, 80), (7, 7)])
    def test_as_extend(self, store, start, stop, compression):
        """The same partitions and offsets, the same records, sliced anywhere."""
        by_rows, by_records = topics(store)
        given = slice(start, stop)
        found = by_rows.extend_arrow(table(start, stop), **COLUMNS, compression=compression)
        expected = by_records.extend(
            VALUES[given], keys=KEYS[given], timestamps=TIMES[given], compression=compression
        )
        assert list(expected) == list(found)
        assert (np.int32, np.int64) == (found.partitions.dtype, found.offsets.dtype)
        assert records(by_records) == records(by_rows)

    @pytest.mark.parametrize(
        "kind", [pa.large_binary(), pa.string(), pa.large_string(), pa.binary_view()]
    )
    def test_layouts(self, store, kind):
        """Whatever the type is called, keys go where their bytes belong."""
        by_rows, by_records = topics(store)
        found = by_rows.extend_arrow(table(kind=kind), **COLUMNS)
        assert list(by_records.extend(VALUES, keys=KEYS, timestamps=TIMES)) == list(found)
        assert records(by_records) == records(by_rows)

    def test_values_alone(self, store):
        """Without keys runs of rows have a partition in turn; without times it is now."""
        by_rows, by_records = topics(store)
        found = by_rows.extend_arrow(table().select(["value"]))
        assert list(by_records.extend(VALUES)) == list(found)
        assert 1 < len(set(found.partitions.tolist()))
        assert records(by_records) == records(by_rows)
        assert {NOW} == {record.timestamp for log in by_rows.logs() for record in log}

    def test_several_record_batches(self, store):
        """One after the other; in the result all rows are in their order."""
        (topic, _) = topics(store)
        data = pa.concat_tables([table(3, 120), table(0, 0), table(120, 121), table(2, 90)])
        found = topic.extend_arrow(data, **COLUMNS, sync=True)
        order = [*range(3, 121), *range(2, 90)]
        assert len(order) == len(found)
        for n, (partition, offset) in zip(order, found, strict=True):
            record = topic[partition][offset]
            assert (TIMES[n], KEYS[n], VALUES[n]) == (record.timestamp, record.key, record.value)
            assert KEYS[n] is None or partition == topic.partition_for(KEYS[n])
        assert all(log.recovery_point == log.log_end_offset for log in topic.logs())

    @pytest.mark.parametrize("data", [table(0, 0), table(0, 0).schema.empty_table()])
    def test_nothing(self, store, data):
        """No rows are no offsets."""
        (topic, _) = topics(store)
        assert 0 == len(topic.extend_arrow(data))

    def test_a_null_hides_what_is_under_it(self, store):
        """Bytes under a null count for nothing, however many they are."""
        topic = store.create_topic("rows", config={"max.message.bytes": 500})
        offsets, data = np.array([0, 900, 901], np.int32), bytes(901)
        valid = np.packbits([False, True], bitorder="little")
        values = pa.Array.from_buffers(
            pa.binary(), 2, [pa.py_buffer(each) for each in (valid, offsets, data)]
        )
        topic.extend_arrow(pa.table({"value": values}))
        assert [None, b"\0"] == list(topic[0].read_values())


class TestMistakes:
    """Nothing is written, to no partition and of no record batch."""

    @pytest.mark.parametrize(
        ("wrong", "error", "says"),
        [
            ({"value": pa.array([bytes(2000)])}, RecordTooLargeError, "record 0: 2001 bytes"),
            ({"key": pa.array([None], pa.binary())}, InvalidRecordError, "record 0 has no key"),
            ({"timestamp": pa.array([NOW // 1000])}, ValueError, "seconds"),
            ({"timestamp": pa.array([NOW + 4_000_000])}, InvalidTimestampError, "record 0"),
            ({"timestamp": pa.array([-5])}, ValueError, "negative"),
        ],
    )
    def test_a_row(self, store, wrong, error, says):
        """Wherever it would go."""
        config = {"cleanup.policy": "compact", "max.message.bytes": 1000}
        topic = store.create_topic("rows", partitions=4, config=config)
        row = {"value": pa.array([b"v"]), "key": pa.array([b"k"]), "timestamp": pa.array([NOW])}
        good, bad = pa.record_batch(row), pa.record_batch(row | wrong)
        for data in (bad, pa.Table.from_batches([good, bad])):
            with pytest.raises(error, match=says):
                topic.extend_arrow(data, **COLUMNS)
            assert [0, 0, 0, 0] == [log.log_end_offset for log in topic.logs()]

    @pytest.mark.parametrize(
        ("options", "error", "says"),
        [
            ({"value": "timestamp"}, TypeError, "'timestamp' is int64"),
            ({"key": "timestamp"}, TypeError, "'timestamp' is int64"),
            ({"timestamp": "value"}, TypeError, "'value' is binary"),
            ({"value": "missing"}, KeyError, "no column 'missing'"),
            ({"compression": "zip"}, ValueError, "compression 'zip'"),
        ],
    )
    def test_a_column(self, store, options, error, says):
        """One that cannot be what it is named for."""
        (topic, _) = topics(store)
        with pytest.raises(error, match=says):
            topic.extend_arrow(table(), **options)
        assert 0 == sum(log.log_end_offset for log in topic.logs())

    def test_what_is_no_arrow_data(self, store):
        """Lists are for extend."""
        with pytest.raises(TypeError, match="is not Arrow data"):
            store.create_topic("rows").extend_arrow([b"v"])


def test_a_partition_that_fails(store):
    """The others have their rows; record batches that were not begun with have -1 throughout."""
    topic = store.create_topic("rows", partitions=4, config={"max.message.bytes": 1000})
    keys = [b"%d" % n for n in range(100)]
    keys[70] = bytes(950)  # No batch has room for such a record.
    failed = topic.partition_for(keys[70])
    data = pa.table({"value": [b"v"] * 100, "key": keys})
    with pytest.raises(TopicAppendError, match=f"partitions that failed: {failed}") as caught:
        topic.extend_arrow(pa.concat_tables([data.slice(0, 80), data.slice(80)]), key="key")
    error = caught.value
    assert 100 == len(error.offsets) == len(error.partitions)
    assert np.array_equal(error.partitions[:80] == failed, error.offsets[:80] < 0)
    assert {-1} == set(error.partitions[80:].tolist()) == set(error.offsets[80:].tolist())
    assert [RecordTooLargeError] == [type(error.errors[failed])]
    assert 0 == topic[failed].log_end_offset
    for n in np.flatnonzero(error.offsets >= 0).tolist():
        assert keys[n] == topic[int(error.partitions[n])][int(error.offsets[n])].key


def test_a_closed_store(tmp_path):
    """It says so, whatever the data is."""
    with logstore.open_store(tmp_path / "data") as store:
        topic = store.create_topic("rows")
    with pytest.raises(logstore.ClosedError):
        topic.extend_arrow(table())
