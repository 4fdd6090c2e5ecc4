"""Many records of a topic: which partition each goes to, and what stays when one fails."""

from __future__ import annotations

import pickle
import random
from array import array

import numpy as np
import pytest

import logstore
from logstore import CompressionType
from logstore._native import group_partitions
from logstore.clock import ManualClock
from logstore.errors import (
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
    TopicAppendError,
)
from logstore.partitioner import StickyPartition, partition_of_key, partitions_for_keys
from logstore.record import encode_batch
from logstore.store import open_log_store

NOW = 1_700_000_000_000


@pytest.fixture(name="store")
def _store(tmp_path):
    with logstore.open_store(tmp_path / "data") as store:
        yield store
        assert [] == list(store.check())


def column(keys, width=np.int32):
    """Keys as an Arrow column."""
    offsets = np.cumsum([0, *(len(key or b"") for key in keys)], dtype=width)
    valid = np.packbits([key is not None for key in keys], bitorder="little")
    return b"".join(key or b"" for key in keys), offsets, valid


class TestPartitionsForKeys:
    """Hashing a column."""

    @pytest.mark.parametrize("width", [np.int32, np.int64])
    def test_as_one_by_one(self, width):
        """Each key has the partition that it has alone; null has none."""
        chance = random.Random(3)
        keys = [chance.randbytes(chance.randrange(20)) for _ in range(500)]
        keys[7] = keys[499] = None
        data, offsets, valid = column(keys, width)
        found = partitions_for_keys(data, offsets, 7, validity=valid)
        assert np.int32 == found.dtype
        assert [-1 if key is None else partition_of_key(key, 7) for key in keys] == found.tolist()

    def test_slice(self):
        """The rows of a slice: offsets from the middle, and a bitmap that begins within a byte."""
        keys = [b"%d" % n if n % 3 else None for n in range(40)]
        data, offsets, valid = column(keys)
        all_of_them = partitions_for_keys(data, offsets, 5, validity=valid)
        found = partitions_for_keys(data, offsets[11:31], 5, validity=valid, bit_offset=11)
        assert all_of_them[11:30].tolist() == found.tolist()

    def test_no_keys(self):
        """A column without rows."""
        assert [] == partitions_for_keys(b"", np.zeros(1, np.int32), 3).tolist()

    @pytest.mark.parametrize("offsets", [[0, 5, 3], [0, 5, 11], [-1, 2, 3]])
    def test_wrong_offsets(self, offsets):
        """Offsets that descend or exceed the keys are refused."""
        with pytest.raises(ValueError, match="descend or exceed"):
            partitions_for_keys(b"0123456789", np.array(offsets, np.int64), 3)

    def test_no_partitions(self):
        """There must be one."""
        with pytest.raises(ValueError, match="at least one partition"):
            partitions_for_keys(b"", np.zeros(1, np.int32), 0)


def test_group_partitions():
    """Indices by partition, ascending in each; a number that is no partition is refused."""
    numbers = np.array([2, 0, 2, 3, 0, 2], np.int32)
    grouped = group_partitions(numbers, 5)
    assert [[1, 4], [], [0, 2, 5], [3], []] == [grouped.indices(p).tolist() for p in range(5)]
    assert [0, 2, 3] == grouped.partitions()
    for wrong in (-1, 5):
        with pytest.raises(ValueError, match="is not in"):
            group_partitions(np.array([wrong], np.int32), 5)


def test_sticky_as_one_by_one():
    """Many records at once go where they would have gone alone, and the next one too."""
    sizes = np.array([random.Random(n).randrange(1, 90) for n in range(400)])
    alone, together = (StickyPartition(100, random.Random(1)) for _ in range(2))
    expected = []
    for size in sizes.tolist():
        partition = alone.take(size)
        expected.append(alone.choose((0, 1, 2), size) if partition < 0 else partition)
    found = [together.take_many(sizes[at : at + 57], (0, 1, 2)) for at in range(0, 400, 57)]
    assert expected == np.concatenate(found).tolist()
    assert alone.take(1) == together.take(1)


class TestExtend:
    """Records in the partitions of their keys."""

    @pytest.mark.parametrize("kind", [list, tuple, iter])
    def test_with_keys(self, store, kind):
        """Each record is where the result says, with all it came with, and where append puts it."""
        topic = store.create_topic("orders", partitions=5)
        keys = [b"key %d" % (n % 50) for n in range(1000)]
        values = [None if n % 9 == 0 else b"%d" % n for n in range(1000)]
        times = [NOW + n for n in range(1000)]
        headers = [{"n": b"%d" % n} if n % 2 else () for n in range(1000)]
        found = topic.extend(
            kind(values), keys=kind(keys), timestamps=kind(times), headers=kind(headers)
        )
        assert 1000 == len(found)
        assert (np.int32, np.int64) == (found.partitions.dtype, found.offsets.dtype)
        for n, (partition, offset) in enumerate(found):
            record = topic[partition][offset]
            assert partition == topic.partition_for(keys[n])
            assert (keys[n], values[n], times[n]) == (record.key, record.value, record.timestamp)
            assert dict(headers[n]) == dict(record.headers)
        for partition in topic:
            assert list(range(topic[partition].log_end_offset)) == found.of(partition).tolist()
        assert found[17] == (topic.partition_for(keys[17]), found.offsets[17])

    def test_without_keys(self, store):
        """Runs of about a batch, each in one partition; offsets tell the order."""
        topic = store.create_topic("orders", partitions=3, config={"batch.bytes": 4096})
        values = [b"%0100d" % n for n in range(5000)]
        found = topic.extend(values)
        runs = np.flatnonzero(np.diff(found.partitions)) + 1
        assert {0, 1, 2} == set(found.partitions.tolist())
        assert all((np.diff(runs) * 170 >= 4096).tolist())
        assert values == [topic[partition][offset].value for partition, offset in found]

    def test_some_keys(self, store):
        """Records without one fill in between."""
        topic = store.create_topic("orders", partitions=4)
        keys = [None if n % 3 == 0 else b"%d" % n for n in range(300)]
        found = topic.extend([b"%d" % n for n in range(300)], keys=keys)
        for n, (partition, offset) in enumerate(found):
            record = topic[partition][offset]
            assert (keys[n], b"%d" % n) == (record.key, record.value)
            assert keys[n] is None or partition == topic.partition_for(keys[n])
        assert 1 == len(set(found.partitions[::3].tolist()))

    def test_other_buffers(self, store):
        """Anything with the buffer protocol is bytes."""
        topic = store.create_topic("orders", partitions=4)
        numbers = array("i", [1, 2])
        found = topic.extend(
            [bytearray(b"v"), memoryview(b"w"), numbers], keys=[bytearray(b"k"), numbers, b""]
        )
        assert [b"v", b"w", numbers.tobytes()] == [topic[p][o].value for p, o in found]
        assert [topic.partition_for(key) for key in (b"k", numbers, b"")] == [p for p, _ in found]

    def test_nothing(self, store):
        """No records are no offsets."""
        topic = store.create_topic("orders", partitions=4)
        assert 0 == len(topic.extend([])) == len(topic.extend(iter([]), keys=iter([])))

    def test_many_parts(self, store):
        """Input without a length is taken in parts; the result is of all."""
        topic = store.create_topic("orders", partitions=2)
        found = topic.extend(
            (b"%d" % n for n in range(70_000)), keys=(b"%d" % n for n in range(70_000))
        )
        assert 70_000 == len(found)
        assert all(np.all(np.diff(found.of(partition)) == 1) for partition in topic)

    def test_sync(self, store):
        """On return each partition is durable to its end."""
        topic = store.create_topic("orders", partitions=3)
        topic.extend([b"v"] * 100, keys=[b"%d" % n for n in range(100)], sync=True)
        assert all(log.recovery_point == log.log_end_offset > 0 for log in topic.logs())

    def test_compression(self, store):
        """A codec as in Log.extend."""
        topic = store.create_topic("orders", partitions=2)
        found = topic.extend(
            [b"v" * 50] * 100, keys=[b"%d" % n for n in range(100)], compression="gzip"
        )
        assert all(b"v" * 50 == topic[partition][offset].value for partition, offset in found)
        batches = topic[0].fetch(0, max_bytes=1 << 20).records.batches()
        assert {CompressionType.GZIP} == {batch.compression_type for batch in batches}


class TestMistakes:
    """What is wrong with a record is found before anything is written."""

    @pytest.mark.parametrize(
        ("wrong", "error"),
        [
            ({"values": ["text"]}, TypeError),
            ({"values": [3]}, TypeError),
            ({"keys": ["text"]}, TypeError),
            ({"keys": [None]}, InvalidRecordError),
            ({"timestamps": [NOW // 1000]}, ValueError),
            ({"timestamps": [NOW + 4_000_000]}, InvalidTimestampError),
            ({"timestamps": [2**70]}, ValueError),
            ({"headers": [[("h", "text")]]}, TypeError),
            ({"values": [bytes(2000)]}, RecordTooLargeError),
            ({"values": []}, ValueError),
        ],
    )
    def test_nothing_is_written(self, tmp_path, wrong, error):
        """To no partition, wherever the record that is wrong would go."""
        config = {
            "cleanup.policy": "compact",
            "max.message.bytes": 1000,
            "message.timestamp.after.max.ms": 3_600_000,
        }
        given = {
            "values": [b"v"] * 40,
            "keys": [b"%d" % n for n in range(40)],
            "timestamps": [NOW] * 40,
            "headers": [()] * 40,
        }
        with open_log_store(tmp_path, clock=ManualClock(NOW)) as store:
            topic = store.create_topic("orders", partitions=4, config=config)
            for name, items in wrong.items():
                given[name] = given[name][:-1] + items
            with pytest.raises(error):
                topic.extend(given.pop("values"), **given)
            assert [0, 0, 0, 0] == [log.log_end_offset for log in topic.logs()]

    def test_single_value(self, store):
        """A value is not a list of them."""
        with pytest.raises(TypeError, match="use append"):
            store.create_topic("orders").extend(b"abc")


class TestFailures:
    """One partition fails."""

    def test_one_of_several(self, store):
        """The others have their records; the error says which, and why."""
        topic = store.create_topic("orders", partitions=4, config={"max.message.bytes": 1000})
        values = [b"%d" % n for n in range(100)]
        keys = [*values[:99], bytes(1000)]  # No batch has room for such a key.
        failed = topic.partition_for(keys[99])
        with pytest.raises(TopicAppendError, match=f"partitions that failed: {failed}") as caught:
            topic.extend(values, keys=keys)
        error = pickle.loads(pickle.dumps(caught.value))
        assert "orders" == error.topic
        assert [RecordTooLargeError] == [type(error.errors[failed])]
        assert "record 99:" in str(error.errors[failed])  # As the caller counts.
        assert np.array_equal(error.partitions == failed, error.offsets < 0)
        assert 0 == topic[failed].log_end_offset
        for n in np.flatnonzero(error.offsets >= 0).tolist():
            assert values[n] == topic[int(error.partitions[n])][int(error.offsets[n])].value

    def test_a_part_of_one(self, store):
        """A partition that took several segments: the records before have their offsets."""
        config = {"max.message.bytes": 1000, "segment.bytes": 4000}
        topic = store.create_topic("orders", config=config)
        values = [b"%0100d" % n for n in range(200)]
        with pytest.raises(TopicAppendError) as caught:
            topic.extend(values, keys=[*values[:190], bytes(1000), *values[191:]])
        end = topic[0].log_end_offset
        assert 100 < end <= 190
        assert [*range(end), *[-1] * (200 - end)] == caught.value.offsets.tolist()

    def test_the_only_one(self, store):
        """Nothing was appended: the error is the partition's own."""
        topic = store.create_topic("orders", partitions=2, config={"max.message.bytes": 1000})
        with pytest.raises(RecordTooLargeError):
            topic.extend([b"v"], keys=[bytes(1000)])

    def test_a_later_part(self, store):
        """Input without a length that ends in a mistake: what came before stays, and is told."""
        topic = store.create_topic("orders", partitions=2)

        def values():
            for n in range(65_536 + 10):
                yield b"%d" % n
            yield "text"

        with pytest.raises(TopicAppendError, match="0 were not appended") as caught:
            topic.extend(values())
        assert 65_536 == len(caught.value.offsets)
        assert {} == caught.value.errors
        assert isinstance(caught.value.__cause__, TypeError)


class TestInATransaction:
    """The same records, seen all or not at all."""

    @pytest.mark.parametrize("compression", [None, "gzip"])
    def test_with_keys(self, store, compression):
        """In the partitions of their keys, in order, with all they came with; more than a batch."""
        topic = store.create_topic("orders", partitions=3, config={"batch.bytes": 2000})
        count = 1000
        values = [None if n % 9 == 0 else b"%d" % n for n in range(count)]
        keys = [bytearray(b"%d" % (n % 50)) for n in range(count)]
        headers = [{"n": b"%d" % n} for n in range(count)]
        times = [NOW + n for n in range(count)]
        with store.transaction("t", compression=compression) as transaction:
            transaction.append("orders", b"first", key=b"0")
            transaction.extend("orders", values, keys=keys, headers=headers, timestamps=times)
            transaction.append("orders", b"last", key=b"0")
            assert [] == [record for log in topic.logs() for record in log]
        found = {partition: list(topic[partition]) for partition in topic}
        place = topic.partition_for(b"0")
        assert (b"first", b"last") == (found[place].pop(0).value, found[place].pop(-1).value)
        for partition, records in found.items():
            mine = [n for n in range(count) if topic.partition_for(keys[n]) == partition]
            assert [(values[n], bytes(keys[n]), times[n], headers[n]) for n in mine] == [
                (record.value, record.key, record.timestamp, dict(record.headers))
                for record in records
            ]

    def test_one_partition(self, store):
        """A place instead of a topic takes them all; without keys they stay in order."""
        topic = store.create_topic("orders", partitions=3)
        with store.transaction("t") as transaction:
            transaction.extend(("orders", 1), (b"%d" % n for n in range(5000)))
        assert [b"%d" % n for n in range(5000)] == list(topic[1].read_values())

    def test_abort(self, store):
        """None of them."""
        topic = store.create_topic("orders", partitions=3)
        with store.transaction("t") as transaction:
            transaction.extend("orders", [b"v" * 100] * 5000)
            transaction.abort()
        assert [[], [], []] == [list(log) for log in topic.logs()]

    def test_a_batch_that_fails(self, store):
        """Batches before it are not written again with what is left."""
        config = {"batch.bytes": 1000, "max.message.bytes": 1000}
        topic = store.create_topic("orders", config=config)
        values = [b"%0100d" % n for n in range(100)]
        with store.transaction("t") as transaction:
            with pytest.raises(RecordTooLargeError):
                transaction.extend("orders", [*values, bytes(2000), b"behind it"])
            end = topic[0].log_end_offset
            assert 0 < end <= 100
            with pytest.raises(RecordTooLargeError):
                transaction.flush()
            assert end == topic[0].log_end_offset
            transaction.abort()

    def test_a_topic_that_is_made_anew(self, store):
        """What comes after goes to the new one, with sequences from the beginning."""
        store.create_topic("orders")
        with store.transaction("t") as transaction:
            transaction.append("orders", b"old")
            transaction.flush()
            store.delete_topic("orders")
            topic = store.create_topic("orders")
            transaction.extend("orders", [b"new", b"newer"])
        assert [b"new", b"newer"] == list(topic[0].read_values())

    def test_finished_batches_for_a_topic_that_is_made_anew(self, store):
        """The same holds for batches; before, the transaction said that it was fenced."""
        store.create_topic("orders")
        with store.transaction("t") as transaction:
            for value in (b"old", b"new"):
                batch = encode_batch([(None, NOW, None, value, ())])
                transaction.append_batches(("orders", 0), bytearray(batch))
                if value == b"old":
                    store.delete_topic("orders")
                    topic = store.create_topic("orders")
        assert [b"new"] == list(topic[0].read_values())
