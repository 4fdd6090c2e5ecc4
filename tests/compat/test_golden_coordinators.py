"""
A broker's ``__consumer_offsets`` and ``__transaction_state`` taken over: positions, ids, open ends.

What Kafka said of each directory is in its ``expected.json``.
"""

from __future__ import annotations

import shutil

import golden_set
import pytest

import logstore
from logstore.checkpoint import TopicPartition
from logstore.transaction_log import TransactionLogValue, decode_transaction_record


@pytest.fixture(name="family")
def _family(request, tmp_path, golden):
    """A copy of a family's log directory, opened, and what is expected of it."""
    name = request.param
    path = tmp_path / "logdir"
    shutil.copytree(golden / name / "logdir", path)
    problems = []
    with logstore.open_store(path, on_error=problems.append) as store:
        yield store, golden_set.expected(name)


@pytest.mark.parametrize("family", ["internal-topics"], indirect=True)
class TestPositions:
    def test_every_group(self, family):
        """What the broker answered before it stopped: offsets, metadata, leader epochs."""
        store, expected = family
        for group, answered in expected["committed_offsets"].items():
            found = store.positions(group).describe()
            assert {
                (each["topic"], each["partition"]): (
                    each["offset"],
                    each["metadata"],
                    -1 if each["leader_epoch"] is None else each["leader_epoch"],
                )
                for each in answered
            } == {
                place: (value.offset, value.metadata, value.leader_epoch)
                for place, value in found.items()
            }, group
        groups = [group for group, answered in expected["committed_offsets"].items() if answered]
        assert sorted(groups) == store.groups()

    def test_going_on(self, family):
        """A group of the broker's is moved, in its partition of three."""
        store, _ = family
        end = store["__consumer_offsets", 0].log_end_offset
        ends = [store["__consumer_offsets", number].log_end_offset for number in range(3)]
        store.positions("simple-group").commit({("events", 0): 4})
        after = [store["__consumer_offsets", number].log_end_offset for number in range(3)]
        assert 1 == sum(after) - sum(ends)
        assert end + 1 == after[0]  # Where the broker has the group.
        assert 4 == store.positions("simple-group")["events", 0]


def last_values(store):
    """Return what the transaction topic says last of each id."""
    found = {}
    for log in store["__transaction_state"].logs():
        for record in log.read(isolation="log_end"):
            decoded = decode_transaction_record(record.key, record.value)
            found[decoded.key["transactionalId"]] = TransactionLogValue.of(decoded)
    return found


@pytest.mark.parametrize(
    "family", ["internal-topics", "transactions", "v2-from-2.8"], indirect=True
)
class TestTransactions:
    def test_nothing_stays_open(self, family):
        """What a producer left open is aborted; nothing else changes for readers."""
        store, expected = family
        for topic in store:
            if topic.startswith("__"):
                continue
            for number in store[topic].partitions:
                log = store[topic, number]
                assert log.last_stable_offset == log.log_end_offset
                seen = expected["partitions"][f"{topic}-{number}"]["records"]
                offsets = {record.offset for record in log.read()}
                visible = set()
                for first, last in seen["read_committed_offsets"]:
                    visible.update(range(first, last + 1))
                stable = expected["partitions"][f"{topic}-{number}"]["offsets"]
                stable = stable["last_stable_offset"]
                assert {offset for offset in offsets if offset < stable} == {
                    offset for offset in visible if offset < stable
                }

    def test_ids_go_on(self, family):
        """An id of the broker's keeps its producer id and gets the next epoch, where it was."""
        store, _ = family
        before = last_values(store)
        assert before
        topic = next(name for name in store if not name.startswith("__"))
        for name, value in before.items():
            with store.transaction(name) as transaction:
                transaction.append((topic, 0), b"by us")
            assert value.producer_id == transaction.producer.producer_id
            assert transaction.producer.producer_epoch > value.producer_epoch
        after = last_values(store)
        assert before.keys() == after.keys()
        log = store[topic, 0]
        assert [b"by us"] * len(before) == [
            value for value in log.read_values() if value == b"by us"
        ]

    def test_new_producer_ids(self, family):
        """They begin above all that the broker has given out."""
        store, _ = family
        used = [0]
        for topic_partition in store.partitions():
            used += store[topic_partition].producer_state.active_producers
        with store.transaction("a new one") as transaction:
            transaction.commit_positions("g", {TopicPartition(next(iter(store)), 0): 1})
        assert max(used) < transaction.producer.producer_id
