"""Positions of groups: a mapping over ``__consumer_offsets``, alone and in transactions."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from plain_store import PlainStore

from logstore.checkpoint import TopicPartition
from logstore.errors import OffsetMetadataTooLargeError
from logstore.group_metadata import GROUP_METADATA, OffsetCommitValue, offset_commit_key

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


@pytest.fixture(name="store")
def _store(tmp_path):
    store = PlainStore(tmp_path / "store")
    store.create_topic("a", 2)
    store.create_topic("b")
    for place, count in ((A0, 10), (A1, 5), (B0, 3)):
        store[place].extend([b"%d" % at for at in range(count)])
    yield store
    store.close()
    assert [] == store.errors


class TestMapping:
    def test_empty(self, store):
        """Without a commit there is nothing, and nothing is made."""
        positions = store.positions("g")
        assert (None, 7) == (positions.get(("a", 0)), positions.get(("a", 0), 7))
        assert ([], {}, set(), 0) == (
            list(positions),
            positions.lag(),
            positions.pending(),
            len(positions),
        )
        assert "__consumer_offsets" not in store
        assert [] == store.offsets.groups()
        with pytest.raises(KeyError):
            positions["a", 0]

    @pytest.mark.parametrize("place", ["orders", ("orders", "0"), ("orders",), 0, None])
    def test_no_partition(self, store, place):
        """What is no (topic, partition) is told so, wherever it is given."""
        positions = store.positions("g")
        transaction = store.transaction("t")
        for call in (
            lambda: positions[place],
            lambda: positions.get(place),
            lambda: positions.commit({place: 1}),
            lambda: positions.reset("latest", [place]),
            lambda: transaction.commit_positions("g", {place: 1}),
        ):
            with pytest.raises(TypeError, match="is no partition; give a topic and a number"):
                call()
        transaction.abort()

    def test_commit(self, store):
        """What was committed last holds; other groups are others."""
        positions = store.positions("g")
        positions.commit({("a", 0): 4, B0: 1})
        positions.commit({A0: 6}, metadata="é", sync=True)
        assert [(A0, 6), (B0, 1)] == positions.items()
        assert {A0: 6, B0: 1} == dict(positions)
        assert [A0, B0] == list(positions)
        assert (6, True, False) == (positions["a", 0], ("b", 0) in positions, A1 in positions)
        now = store.clock.milliseconds()
        assert OffsetCommitValue(6, -1, "é", now) == positions.describe()[A0]
        assert [] == store.positions("other").items()
        assert ["g"] == store.offsets.groups()
        assert "g" in repr(positions)

    def test_survives(self, store):
        """They are there after a kill; another group in the same partition too."""
        for group in ("g", "h", "i"):
            store.positions(group).commit({A0: 3})
        store = store.reopened(killed=True)
        assert ["g", "h", "i"] == store.offsets.groups()
        assert [(A0, 3)] == store.positions("h").items()
        store.close()

    def test_forget(self, store):
        """A tombstone ends one position, or all; the group goes with the last."""
        positions = store.positions("g")
        positions.commit({A0: 1, A1: 2, B0: 3})
        positions.forget([A1])
        assert [(A0, 1), (B0, 3)] == positions.items()
        positions.forget()
        assert ([], []) == (positions.items(), store.offsets.groups())
        positions.forget()
        positions.commit({A0: 2})
        assert 2 == positions["a", 0]

    def test_lag(self, store):
        """How far behind the readable end; a topic that is gone is left out."""
        positions = store.positions("g")
        positions.commit({A0: 4, A1: 5, B0: 0})
        assert {A0: 6, A1: 0, B0: 3} == positions.lag()
        transaction = store.transaction("t")
        transaction.append(("a", 0), b"x")
        transaction.flush()
        assert 6 == positions.lag()[A0]
        transaction.commit()
        assert 8 == positions.lag()[A0]  # The record and the marker.
        store.logs.pop(("b", 0)).delete()
        assert {A0: 8, A1: 0} == positions.lag()

    def test_wrong_arguments(self, store):
        """Nothing is committed then."""
        positions = store.positions("g")
        with pytest.raises(ValueError, match="negative"):
            positions.commit({A0: 1, A1: -1})
        with pytest.raises(ValueError, match="has 2 partitions"):
            positions.commit({("a", 2): 1})
        with pytest.raises(KeyError):
            positions.commit({("missing", 0): 1})
        with pytest.raises(ValueError, match="empty"):
            store.positions("").commit({A0: 1})
        positions.commit({A0: 1}, metadata="x" * 4096)
        with pytest.raises(OffsetMetadataTooLargeError):
            positions.commit({A0: 2}, metadata="é" * 2049)
        assert [(A0, 1)] == positions.items()

    def test_records_of_a_broker(self, store):
        """Versions of old, expiry, and records of other kinds are read over."""
        store.positions("g").commit({A0: 1})
        place, _ = store.offsets.records("g", {A0: 1}, "", 0)
        log = store[place]
        log.append(OffsetCommitValue(2).encode(1), key=offset_commit_key("g", "a", 0))
        log.append(OffsetCommitValue(3).encode(0), key=b"\0\0" + offset_commit_key("g", "a", 1)[2:])
        log.append(None, key=GROUP_METADATA.key_bytes({"group": "g"}))
        log.append(b"?", key=b"\0\x63?")
        assert [(A0, 2), (A1, 3)] == store.positions("g").items()

    def test_truncated_topic(self, store):
        """What is known is what the log says now."""
        positions = store.positions("g")
        positions.commit({A0: 1})
        positions.commit({A0: 2})
        place, _ = store.offsets.records("g", {}, "", 0)
        assert 2 == positions["a", 0]
        store[place].truncate_to(1)
        assert 1 == positions["a", 0]

    def test_deleted_records(self, store):
        """Reading begins at the log start."""
        positions = store.positions("g")
        positions.commit({A0: 1, A1: 1})
        positions.commit({A0: 2})
        place, _ = store.offsets.records("g", {}, "", 0)
        store[place].maybe_increment_log_start_offset(2)
        with store.reopened() as again:
            assert [(A0, 2)] == again.positions("g").items()


class TestReset:
    @pytest.mark.parametrize(
        ("to", "options", "expected"),
        [
            ("earliest", {}, {A0: 0, A1: 0}),
            ("latest", {}, {A0: 10, A1: 5}),
            (7, {}, {A0: 7, A1: 5}),
            (3, {"relative": True}, {A0: 7, A1: 5}),
            (-9, {"relative": True}, {A0: 0, A1: 0}),
            (datetime(2000, 1, 1, tzinfo=UTC), {}, {A0: 0, A1: 0}),
            (datetime(2100, 1, 1, tzinfo=UTC), {}, {A0: 10, A1: 5}),
            ("latest", {"places": [("b", 0)]}, {B0: 3}),
        ],
    )
    def test_rules(self, store, to, options, expected):
        """Start, end, time, offset, distance: never outside the log."""
        positions = store.positions("g")
        positions.commit({A0: 4, A1: 4})
        assert expected == positions.reset(to, **options)
        assert {A0: 4, A1: 4} | expected == dict(positions.items())

    def test_wrong_rules(self, store):
        """They are refused as a whole."""
        positions = store.positions("g")
        positions.commit({A0: 4})
        with pytest.raises(ValueError, match="no position"):
            positions.reset(1, [("b", 0)], relative=True)
        with pytest.raises(ValueError, match="no number"):
            positions.reset("earliest", relative=True)
        with pytest.raises(ValueError, match="not earliest"):
            positions.reset("soon")
        assert [(A0, 4)] == positions.items()


class TestTransactions:
    def test_exactly_once(self, store):
        """Consume, process, produce: a crash between any two steps repeats or skips nothing."""
        positions = store.positions("copy")
        crashes = iter([True, False, True, True, False, False, False])
        while positions.get(("a", 0), 0) < 10:
            start = positions.get(("a", 0), 0)
            transaction = store.transaction("copy")
            for record in store["a", 0].read(start, limit=3):
                transaction.append(("b", 0), record.value)
                start = record.offset + 1
            transaction.commit_positions("copy", {("a", 0): start})
            if next(crashes):
                transaction.flush()
                store = store.reopened(killed=True)
                positions = store.positions("copy")
            else:
                transaction.commit()
        assert [b"0", b"1", b"2"] + [b"%d" % at for at in range(10)] == store.values("b")
        store.close()

    def test_pending(self, store):
        """Until the marker the group is where it was; afterwards, or not, it has moved."""
        positions = store.positions("g")
        positions.commit({A0: 1, A1: 1})
        transaction = store.transaction("t")
        transaction.commit_positions("g", {A0: 5}, metadata="m")
        transaction.flush()
        assert ([(A0, 1), (A1, 1)], {A0}) == (positions.items(), positions.pending())
        assert set() == store.positions("h").pending()
        positions.commit({A1: 2})
        assert 2 == positions["a", 1]  # One's own commit is seen, whatever is open.
        transaction.commit()
        assert ([(A0, 5), (A1, 2)], set()) == (positions.items(), positions.pending())
        assert "m" == positions.describe()[A0].metadata

        transaction = store.transaction("t")
        transaction.commit_positions("g", {A0: 9})
        transaction.flush()
        transaction.abort()
        assert ([(A0, 5), (A1, 2)], set()) == (positions.items(), positions.pending())

    def test_later_commit_holds(self, store):
        """A plain commit behind a pending one is the newer one, whenever the marker comes."""
        transaction = store.transaction("t")
        transaction.commit_positions("g", {A0: 5, A1: 5})
        transaction.flush()
        store.positions("g").commit({A0: 2})
        transaction.commit()
        assert [(A0, 2), (A1, 5)] == store.positions("g").items()
        with store.reopened() as again:
            assert [(A0, 2), (A1, 5)] == again.positions("g").items()
