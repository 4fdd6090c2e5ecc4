"""LeaderEpochCache: assignment, questions, truncation, and when the file is written."""

from __future__ import annotations

import os

import pytest

from logstore.checkpoint import EpochEntry, LeaderEpochCheckpointFile
from logstore.clock import ManualClock
from logstore.errors import StorageError
from logstore.leader_epoch import LeaderEpochCache
from logstore.scheduler import ManualScheduler


@pytest.fixture(name="scheduler")
def _scheduler():
    return ManualScheduler(ManualClock())


@pytest.fixture(name="checkpoint")
def _checkpoint(tmp_path):
    return LeaderEpochCheckpointFile(tmp_path / "leader-epoch-checkpoint", create=True)


@pytest.fixture(name="cache")
def _cache(checkpoint, scheduler):
    return LeaderEpochCache(checkpoint, scheduler, "t-0")


def filled(cache, *entries):
    for epoch, start_offset in entries:
        cache.assign(epoch, start_offset)
    return cache


class TestAssign:
    def test_is_durable_on_return(self, cache, checkpoint, scheduler):
        """Each new entry is in the file when assign returns; nothing is left to the scheduler."""
        filled(cache, (2, 0), (5, 10))
        assert [(2, 0), (5, 10)] == checkpoint.read()
        assert [(2, 0), (5, 10)] == list(LeaderEpochCache(checkpoint, scheduler).epoch_entries)
        assert [] == scheduler.pending()

    @pytest.mark.parametrize(
        ("entry", "expected"),
        [
            ((5, 10), [(2, 0), (5, 10)]),
            ((5, 11), [(2, 0), (5, 10)]),
            ((5, 9), [(2, 0), (5, 9)]),
            ((6, 20), [(2, 0), (5, 10), (6, 20)]),
            ((6, 10), [(2, 0), (6, 10)]),
            ((6, 3), [(2, 0), (6, 3)]),
            ((6, 0), [(6, 0)]),
            ((4, 20), [(2, 0), (4, 20)]),
            ((1, 20), [(1, 20)]),
        ],
    )
    def test_contradictions_are_removed(self, cache, entry, expected):
        """A lower epoch or offset truncates; the same epoch at a higher offset says nothing."""
        filled(cache, (2, 0), (5, 10))
        cache.assign(*entry)
        assert expected == list(cache.epoch_entries)

    def test_negative_arguments(self, cache):
        """Epochs and offsets are not negative."""
        with pytest.raises(ValueError):
            cache.assign(-1, 0)
        with pytest.raises(ValueError):
            cache.assign(0, -1)

    def test_failed_write_is_tried_again(self, cache, checkpoint, tmp_path):
        """If the file cannot be written assign raises, and a later write has the entry too."""
        checkpoint.update_path(tmp_path / "gone" / "c")
        with pytest.raises(StorageError):
            cache.assign(1, 0)
        checkpoint.update_path(tmp_path / "c")
        cache.flush()
        assert [(1, 0)] == checkpoint.read()

    def test_one_write_for_many(self, cache, checkpoint):
        """Recovery writes once, also if it fails in between."""

        def fail_in_between():
            with cache.one_write():
                filled(cache, (2, 0), (5, 10))
                cache.truncate_from_start(1)
                assert [] == checkpoint.read()
                raise KeyError

        with pytest.raises(KeyError):
            fail_in_between()
        assert [(2, 1), (5, 10)] == checkpoint.read()


class TestQuestions:
    @pytest.mark.parametrize(
        ("epoch", "expected"),
        [
            (-1, (-1, -1)),
            (0, (0, 11)),
            (2, (2, 20)),
            (3, (2, 20)),
            (4, (4, 30)),
            (6, (6, 99)),
            (7, (-1, -1)),
        ],
    )
    def test_end_offset_for(self, cache, epoch, expected):
        """The table of the docstring, and Kafka's."""
        filled(cache, (2, 11), (4, 20), (6, 30))
        assert expected == cache.end_offset_for(epoch, 99)

    def test_end_offset_of_an_empty_cache(self, cache):
        """Nothing is known."""
        assert (-1, -1) == cache.end_offset_for(0, 99)
        assert cache.is_empty
        assert (None, None, None) == (cache.latest_epoch, cache.latest_entry, cache.earliest_entry)
        assert (None, None) == (cache.previous_epoch(), cache.epoch_for_offset(5))

    def test_neighbours(self, cache):
        """Entries before, after and of an epoch."""
        filled(cache, (2, 11), (4, 20), (6, 30))
        assert ((2, 11), (6, 30), 6) == (
            cache.earliest_entry,
            cache.latest_entry,
            cache.latest_epoch,
        )
        assert (4, 20) == cache.epoch_entry(4)
        assert cache.epoch_entry(5) is None
        assert [4, None, 2, 6] == [cache.previous_epoch(epoch) for epoch in (None, 2, 4, 7)]
        assert [2, 4, 6, None] == [cache.next_epoch(epoch) for epoch in (0, 2, 5, 6)]

    @pytest.mark.parametrize(
        ("offset", "expected"), [(10, None), (11, 2), (19, 2), (20, 4), (30, 6), (1000, 6)]
    )
    def test_epoch_for_offset(self, cache, offset, expected):
        """An epoch covers its start up to the next one's."""
        filled(cache, (2, 11), (4, 20), (6, 30))
        assert expected == cache.epoch_for_offset(offset)

    @pytest.mark.parametrize(
        ("start", "end", "expected"),
        [
            (-1, -1, [(2, 11), (4, 20), (6, 30)]),
            (0, 30, [(2, 11), (4, 20)]),
            (15, 21, [(2, 15), (4, 20)]),
            (20, 31, [(4, 20), (6, 30)]),
            (40, 40, []),
        ],
    )
    def test_entries_in_range(self, cache, start, end, expected):
        """Both truncations on a copy."""
        filled(cache, (2, 11), (4, 20), (6, 30))
        assert expected == cache.epoch_entries_in_range(start, end)
        assert 3 == len(cache.epoch_entries)


class TestTruncation:
    def test_from_end_is_written_later(self, cache, checkpoint, scheduler):
        """The file follows when the scheduler runs; a flush before makes that run do nothing."""
        filled(cache, (2, 11), (4, 20), (6, 30))
        cache.truncate_from_end(31)
        cache.truncate_from_end(-1)
        assert [] == scheduler.pending()
        cache.truncate_from_end(20)
        assert [(2, 11)] == list(cache.epoch_entries)
        assert 3 == len(checkpoint.read())
        assert ["leader-epoch-cache-flush-t-0"] == scheduler.run_due()
        assert [(2, 11)] == checkpoint.read()

    def test_from_start_keeps_the_covering_epoch(self, cache, checkpoint, scheduler):
        """The last removed epoch comes back, starting at the offset."""
        filled(cache, (2, 11), (4, 20), (6, 30))
        cache.truncate_from_start(10)
        cache.truncate_from_start(11)
        assert [] == scheduler.pending()
        cache.truncate_from_start(25)
        assert [(4, 25), (6, 30)] == list(cache.epoch_entries)
        cache.flush()
        assert [(4, 25), (6, 30)] == checkpoint.read()
        os.unlink(checkpoint.path)
        scheduler.run_due()
        assert not checkpoint.exists()

    def test_background_write_after_the_directory_is_gone(self, cache, checkpoint, scheduler):
        """A log that was renamed for deletion in between is no error."""
        filled(cache, (2, 11), (4, 20))
        cache.truncate_from_end(15)
        checkpoint.update_path("/nonexistent/directory/leader-epoch-checkpoint")
        scheduler.run_due()
        assert [] == scheduler.errors

    def test_clear(self, cache, checkpoint):
        """Clearing for a new start is durable; clearing before deletion leaves the file."""
        filled(cache, (2, 11))
        cache.clear()
        assert [(2, 11)] == checkpoint.read()
        filled(cache, (3, 11)).clear_and_flush()
        assert [] == checkpoint.read()
        assert cache.is_empty


class TestFile:
    def test_an_unreadable_checkpoint_counts_as_empty(self, checkpoint, scheduler, caplog):
        """Damage is told, not raised; the next entry is written over it."""
        with open(checkpoint.path, "w", encoding="utf-8") as file:
            file.write("0\n1\ngarbage\n")
        cache = LeaderEpochCache(checkpoint, scheduler)
        assert cache.is_empty
        assert cache.problem is not None
        assert "garbage" in caplog.text
        cache.assign(7, 5)
        assert [(7, 5)] == checkpoint.read()

    def test_contradicting_entries_of_a_file(self, checkpoint, scheduler):
        """Entries that do not increase are assigned one after the other, as Kafka does."""
        checkpoint.write([EpochEntry(3, 5), EpochEntry(2, 9), EpochEntry(4, 9), EpochEntry(4, 12)])
        assert [(4, 9)] == list(LeaderEpochCache(checkpoint, scheduler).epoch_entries)

    def test_with_checkpoint(self, cache, tmp_path):
        """The same entries under another file, for a directory that was renamed."""
        filled(cache, (2, 11))
        other = cache.with_checkpoint(LeaderEpochCheckpointFile(tmp_path / "other"))
        other.flush()
        assert [(2, 11)] == LeaderEpochCheckpointFile(tmp_path / "other").read()
