"""ProducerStateManager and ProducerAppendInfo: Kafka's rules one by one."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from logstore.append_origin import AppendOrigin
from logstore.clock import ManualClock
from logstore.errors import (
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from logstore.file_records import LogOffsetMetadata
from logstore.producer_state import (
    LATE_TRANSACTION_BUFFER_MS,
    CompletedTxn,
    ProducerStateManager,
    VerificationGuard,
    read_snapshot,
    write_snapshot,
)

NOW = 1_700_000_000_000
DAY = 86_400_000
PID = 7


@dataclass
class Config:
    producer_id_expiration_ms: int = DAY
    transaction_max_timeout_ms: int = 900_000
    transaction_partition_verification_enable: bool = True


@dataclass
class Batch:
    """As much of a batch as producer state looks at."""

    base_offset: int
    base_sequence: int = 0
    count: int = 1
    producer_epoch: int = 0
    max_timestamp: int = NOW
    is_transactional: bool = False
    is_control: bool = False
    marker: tuple = ()

    @property
    def last_offset(self):
        return self.base_offset + self.count - 1

    @property
    def last_sequence(self):
        return (self.base_sequence + self.count - 1) % 2**31

    def records(self):
        return [SimpleNamespace(key=k, value=v, timestamp=t) for k, v, t in self.marker]


def marker(offset, *, commit=True, producer_epoch=0, coordinator_epoch=0, timestamp=NOW, kind=None):
    kind = (1 if commit else 0) if kind is None else kind
    record = (struct.pack(">hh", 0, kind), struct.pack(">hi", 0, coordinator_epoch), timestamp)
    return Batch(
        offset,
        -1,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
        marker=(record,),
    )


@pytest.fixture(name="clock")
def _clock():
    return ManualClock(NOW)


@pytest.fixture(name="manager")
def _manager(tmp_path, clock):
    return ProducerStateManager(tmp_path, config=Config(), clock=clock, name="t-0")


def append(manager, *batches, origin=AppendOrigin.CLIENT, producer_id=PID):
    """Append as a log does: check all, apply, then complete transactions."""
    info = manager.prepare_update(producer_id, origin)
    completed = [done for batch in batches if (done := info.append(batch)) is not None]
    manager.update(info)
    for batch in batches:
        manager.maybe_clear_verification_state_entry(producer_id, batch)
    for done in completed:
        manager.complete_txn(done)
    manager.update_map_end_offset(batches[-1].last_offset + 1)
    return completed


class TestSequences:
    def test_in_order(self, manager):
        """Sequences go on from batch to batch, within one append and across appends."""
        append(manager, Batch(0, 0, 3), Batch(3, 3, 2))
        append(manager, Batch(5, 5))
        entry = manager.last_entry(PID)
        assert (0, 5, 3) == (entry.first_sequence, entry.last_sequence, len(entry.batch_metadata))

    @pytest.mark.parametrize("sequence", [0, 2, 4, 100])
    def test_gaps_and_repeats_are_refused(self, manager, sequence):
        """Anything but the next sequence is out of order, and changes nothing."""
        append(manager, Batch(0, 0, 3))
        with pytest.raises(OutOfOrderSequenceError):
            append(manager, Batch(3, sequence))
        assert 2 == manager.last_entry(PID).last_sequence

    def test_wrap_around(self, manager):
        """2^31 - 1 is followed by 0."""
        append(manager, Batch(0, 2**31 - 2, 2))
        append(manager, Batch(2, 0, 3))
        assert 2 == manager.last_entry(PID).last_sequence
        append(manager, Batch(5, 3, 1))

    def test_a_batch_may_cross_the_wrap(self, manager):
        """Its first sequence is found again for duplicates."""
        batch = Batch(0, 2**31 - 2, 4)
        append(manager, batch)
        assert 1 == manager.last_entry(PID).last_sequence
        assert manager.last_entry(PID).find_duplicate_batch(batch) is not None

    def test_an_unknown_producer_may_go_on_anywhere(self, manager):
        """Its earlier records may have been deleted."""
        append(manager, Batch(0, 55), Batch(1, 56))
        assert 55 == manager.last_entry(PID).first_sequence

    def test_an_unknown_producer_may_even_jump_within_its_first_append(self, manager):
        """The check asks what was known before the append, as in Kafka."""
        append(manager, Batch(0, 55), Batch(1, 77))
        assert 77 == manager.last_entry(PID).last_sequence

    def test_a_new_epoch_begins_at_zero(self, manager):
        """Else records of it are missing; older batches are forgotten."""
        append(manager, Batch(0, 0, 3))
        with pytest.raises(OutOfOrderSequenceError):
            append(manager, Batch(3, 3, producer_epoch=1))
        append(manager, Batch(3, 0, producer_epoch=1))
        assert 1 == len(manager.last_entry(PID).batch_metadata)

    def test_an_older_epoch_is_fenced(self, manager):
        """A zombie's batch is refused, whatever its sequence."""
        append(manager, Batch(0, 0, producer_epoch=3))
        for sequence in (0, 1):
            with pytest.raises(InvalidProducerEpochError):
                append(manager, Batch(1, sequence, producer_epoch=2))

    @pytest.mark.parametrize("origin", [AppendOrigin.REPLICATION, AppendOrigin.COORDINATOR])
    def test_only_clients_sequences_are_checked(self, manager, origin):
        """What the leader or the coordinator wrote is taken as it is."""
        append(manager, Batch(0, 0), origin=origin)
        append(manager, Batch(1, 99), origin=origin)
        assert 99 == manager.last_entry(PID).last_sequence

    def test_replication_logs_an_older_epoch(self, manager, caplog):
        """It is in the leader's log already; the epoch goes back."""
        append(manager, Batch(0, 0, producer_epoch=3), origin=AppendOrigin.REPLICATION)
        append(manager, Batch(1, 0, producer_epoch=2), origin=AppendOrigin.REPLICATION)
        assert 2 == manager.last_entry(PID).producer_epoch
        assert "older than 3" in caplog.text
        with pytest.raises(InvalidProducerEpochError):
            append(manager, Batch(2, 0, producer_epoch=1), origin=AppendOrigin.COORDINATOR)

    def test_after_a_marker_only_the_epoch_is_known(self, manager):
        """Sequences begin at 0 after a marker has forgotten the batches by a new epoch."""
        append(manager, Batch(0, 0, is_transactional=True))
        append(manager, marker(1, producer_epoch=1), origin=AppendOrigin.COORDINATOR)
        with pytest.raises(OutOfOrderSequenceError):
            append(manager, Batch(2, 1, producer_epoch=1, is_transactional=True))
        append(manager, Batch(2, 0, producer_epoch=1, is_transactional=True))


class TestDuplicates:
    def test_the_last_five_batches_are_recognised(self, manager):
        """By epoch and exact sequences; the answer tells the offsets of the first time."""
        batches = [Batch(number * 2, number * 2, 2) for number in range(6)]
        for batch in batches:
            append(manager, batch)
        entry = manager.last_entry(PID)
        assert entry.find_duplicate_batch(batches[0]) is None
        for batch in batches[1:]:
            found = entry.find_duplicate_batch(batch)
            assert (batch.base_offset, batch.last_offset) == (found.first_offset, found.last_offset)

    def test_other_sequences_or_epochs_are_no_duplicates(self, manager):
        """A part of a batch is none."""
        append(manager, Batch(0, 0, 4))
        entry = manager.last_entry(PID)
        assert entry.find_duplicate_batch(Batch(9, 0, 3)) is None
        assert entry.find_duplicate_batch(Batch(9, 1, 3)) is None
        assert entry.find_duplicate_batch(Batch(9, 0, 4, producer_epoch=1)) is None


class TestTransactions:
    def test_from_begin_to_commit(self, manager):
        """The first unstable offset stays until the marker is below the high watermark."""
        assert manager.first_unstable_offset is None
        append(manager, Batch(5, 0, 2, is_transactional=True))
        append(manager, Batch(7, 2, is_transactional=True))
        assert (LogOffsetMetadata(5), 5) == (
            manager.first_unstable_offset,
            manager.first_undecided_offset,
        )
        (done,) = append(manager, marker(8), origin=AppendOrigin.COORDINATOR)
        assert CompletedTxn(PID, 5, 8, is_aborted=False) == done
        assert manager.first_undecided_offset is None
        manager.on_high_watermark_updated(8)
        assert LogOffsetMetadata(5) == manager.first_unstable_offset
        manager.on_high_watermark_updated(9)
        assert manager.first_unstable_offset is None

    def test_the_place_of_the_first_offset_is_kept(self, manager):
        """So that the last stable offset needs no search."""
        info = manager.prepare_update(PID, AppendOrigin.CLIENT)
        info.append(Batch(5, 0, is_transactional=True), LogOffsetMetadata(5, 0, 300))
        manager.update(info)
        assert LogOffsetMetadata(5, 0, 300) == manager.first_unstable_offset

    def test_abort(self, manager):
        """An abort marker says so."""
        append(manager, Batch(5, 0, is_transactional=True))
        (done,) = append(manager, marker(6, commit=False), origin=AppendOrigin.COORDINATOR)
        assert done.is_aborted

    def test_last_stable_offset_of_a_completed_transaction(self, manager):
        """The first transaction of another producer that is open, else behind the marker."""
        append(manager, Batch(0, 0, is_transactional=True), producer_id=1)
        append(manager, Batch(1, 0, is_transactional=True), producer_id=2)
        append(manager, Batch(2, 0, is_transactional=True), producer_id=3)
        first = CompletedTxn(1, 0, 3, is_aborted=True)
        assert 1 == manager.last_stable_offset(first)
        assert 0 == manager.last_stable_offset(CompletedTxn(2, 1, 3, is_aborted=True))
        for producer_id in (1, 2, 3):
            append(manager, marker(2 + producer_id), producer_id=producer_id)
        assert 4 == manager.last_stable_offset(first)

    def test_a_marker_without_a_transaction(self, manager):
        """Nothing is completed, but epoch, coordinator and time are known."""
        assert [] == append(manager, marker(0, producer_epoch=4, coordinator_epoch=2, timestamp=5))
        entry = manager.last_entry(PID)
        assert (4, 2, 5) == (entry.producer_epoch, entry.coordinator_epoch, entry.last_timestamp)

    def test_an_empty_control_batch_changes_nothing(self, manager):
        """The cleaner leaves those when the whole transaction is gone."""
        empty = Batch(0, -1, is_transactional=True, is_control=True)
        assert [] == append(manager, empty)
        assert -1 == manager.last_entry(PID).producer_epoch

    def test_a_control_batch_that_is_no_marker(self, manager):
        """Other control records have no producer."""
        with pytest.raises(InvalidRecordError):
            append(manager, marker(0, kind=2))

    def test_coordinator_fencing(self, manager, caplog):
        """A marker of an older coordinator is refused, unless it is in the leader's log."""
        append(manager, marker(0, coordinator_epoch=5))
        with pytest.raises(TransactionCoordinatorFencedError):
            append(manager, marker(1, coordinator_epoch=4), origin=AppendOrigin.COORDINATOR)
        caplog.set_level("INFO")
        append(manager, marker(1, coordinator_epoch=4), origin=AppendOrigin.REPLICATION)
        assert 4 == manager.last_entry(PID).coordinator_epoch
        assert "coordinator epoch 4" in caplog.text

    def test_marker_epochs(self, manager):
        """An older producer epoch is fenced; version 2 markers carry the next one."""
        append(manager, Batch(0, 0, producer_epoch=3, is_transactional=True))
        with pytest.raises(InvalidProducerEpochError):
            append(manager, marker(1, producer_epoch=2))
        (done,) = append(manager, marker(1, producer_epoch=4))
        assert (0, 1) == (done.first_offset, done.last_offset)
        assert (4, True) == (
            manager.last_entry(PID).producer_epoch,
            manager.last_entry(PID).is_empty,
        )

    def test_a_version_1_marker_keeps_the_batches(self, manager):
        """Epoch unchanged: sequences go on in the next transaction."""
        append(manager, Batch(0, 0, 2, is_transactional=True))
        append(manager, marker(2))
        append(manager, Batch(3, 2, is_transactional=True))
        assert 2 == len(manager.last_entry(PID).batch_metadata)

    def test_plain_batches_while_a_transaction_is_open(self, manager):
        """Mixing is refused and leaves the state as it was."""
        append(manager, Batch(0, 0, is_transactional=True))
        with pytest.raises(InvalidTxnStateError):
            append(manager, Batch(1, 1))
        assert 0 == manager.last_entry(PID).last_sequence
        append(manager, marker(1))
        append(manager, Batch(2, 1))

    def test_several_transactions_in_one_append(self, manager):
        """A follower's append may hold whole transactions."""
        done = append(
            manager,
            Batch(0, 0, is_transactional=True),
            marker(1),
            Batch(2, 1, is_transactional=True),
            marker(3, commit=False),
            Batch(4, 2, is_transactional=True),
            origin=AppendOrigin.REPLICATION,
        )
        assert [(0, 1, False), (2, 3, True)] == [tuple(txn)[1:] for txn in done]
        assert 4 == manager.first_undecided_offset
        manager.on_high_watermark_updated(2)
        assert LogOffsetMetadata(2) == manager.first_unstable_offset

    def test_unknown_transactions_cannot_complete(self, manager):
        """It is a mistake of the caller."""
        with pytest.raises(ValueError):
            manager.complete_txn(CompletedTxn(PID, 0, 1, is_aborted=False))

    def test_late_transactions(self, manager):
        """The oldest open transaction counts, by its producer's last time, plus five minutes."""
        limit = 900_000 + LATE_TRANSACTION_BUFFER_MS
        assert not manager.has_late_transaction(NOW + 10 * DAY)
        append(manager, Batch(0, 0, is_transactional=True))
        assert not manager.has_late_transaction(NOW + limit)
        assert manager.has_late_transaction(NOW + limit + 1)
        append(manager, Batch(1, 1, is_transactional=True, max_timestamp=NOW + 5))
        assert not manager.has_late_transaction(NOW + limit + 5)
        append(manager, marker(2))
        assert not manager.has_late_transaction(NOW + 10 * DAY)


class TestVerification:
    def test_guards(self, manager):
        """The same guard for each question until the transaction begins; then none is needed."""
        guard = manager.maybe_start_transaction_verification(PID, 0, 0, supports_epoch_bump=False)
        again = manager.maybe_start_transaction_verification(PID, 0, 0, supports_epoch_bump=False)
        assert guard == again
        batch = Batch(0, 0, is_transactional=True)
        assert not manager.is_missing_required_verification(batch, PID, guard)
        assert manager.is_missing_required_verification(batch, PID, VerificationGuard())
        assert manager.is_missing_required_verification(batch, PID, VerificationGuard.SENTINEL)
        assert manager.is_missing_required_verification(batch, PID, None)
        append(manager, batch)
        assert manager.verification_state_entry(PID) is None
        assert manager.has_ongoing_transaction(PID, 0)
        assert not manager.has_ongoing_transaction(PID, 1)
        assert not manager.is_missing_required_verification(
            Batch(1, 1, is_transactional=True), PID, None
        )
        begun = manager.maybe_start_transaction_verification(PID, 1, 0, supports_epoch_bump=False)
        assert begun is VerificationGuard.SENTINEL

    def test_what_needs_no_guard(self, manager):
        """Plain batches, markers, and everything when verification is off."""
        assert not manager.is_missing_required_verification(Batch(0, 0), PID, None)
        assert not manager.is_missing_required_verification(marker(0), PID, None)
        manager.config = Config(transaction_partition_verification_enable=False)
        batch = Batch(0, 0, is_transactional=True)
        assert not manager.is_missing_required_verification(batch, PID, None)

    def test_a_marker_ends_a_verification(self, manager):
        """A guard from before the marker does not pass afterwards."""
        guard = manager.maybe_start_transaction_verification(PID, 0, 0, supports_epoch_bump=False)
        append(manager, marker(0))
        other = manager.maybe_start_transaction_verification(PID, 0, 0, supports_epoch_bump=False)
        assert guard != other
        assert manager.is_missing_required_verification(
            Batch(1, 0, is_transactional=True), PID, guard
        )

    def test_a_version_2_marker_keeps_the_verification_of_the_next_transaction(self, manager):
        """Its epoch is that of the next transaction, whose verification may have begun."""
        guard = manager.maybe_start_transaction_verification(PID, 0, 5, supports_epoch_bump=True)
        append(manager, marker(0, producer_epoch=5))
        assert guard == manager.verification_state_entry(PID).verification_guard
        append(manager, marker(1, producer_epoch=6))
        assert manager.verification_state_entry(PID) is None

    def test_guards_are_unique_and_the_sentinel_never_passes(self):
        """Two guards differ; the sentinel does not even verify itself."""
        first, second = VerificationGuard(), VerificationGuard()
        assert first.verify(first)
        assert not first.verify(second)
        assert not VerificationGuard.SENTINEL.verify(VerificationGuard.SENTINEL)
        assert VerificationGuard.SENTINEL.is_sentinel
        assert 2 == len({first, second, first})

    def test_the_lowest_sequence_seen_must_come_first(self, manager):
        """A later batch of the same epoch, verified first, waits for the earlier one."""
        manager.maybe_start_transaction_verification(PID, 5, 0, supports_epoch_bump=False)
        manager.maybe_start_transaction_verification(PID, 3, 0, supports_epoch_bump=False)
        manager.maybe_start_transaction_verification(PID, 4, 0, supports_epoch_bump=False)
        with pytest.raises(OutOfOrderSequenceError):
            append(manager, Batch(0, 4, is_transactional=True))
        append(manager, Batch(0, 3, is_transactional=True))

    def test_a_higher_epoch_resets_the_lowest_sequence(self, manager):
        """The sequence of an older epoch says nothing."""
        manager.maybe_start_transaction_verification(PID, 0, 0, supports_epoch_bump=False)
        manager.maybe_start_transaction_verification(PID, 9, 1, supports_epoch_bump=False)
        manager.maybe_start_transaction_verification(PID, 2, 0, supports_epoch_bump=False)
        assert 9 == manager.verification_state_entry(PID).lowest_sequence

    def test_version_2_begins_at_zero(self, manager):
        """A producer that bumps its epoch and is not known cannot begin in the middle."""
        manager.maybe_start_transaction_verification(PID, 3, 0, supports_epoch_bump=True)
        with pytest.raises(OutOfOrderSequenceError):
            append(manager, Batch(0, 3, is_transactional=True))
        append(manager, Batch(0, 0, is_transactional=True))

    def test_verifications_expire(self, manager, clock):
        """By the time they began."""
        manager.maybe_start_transaction_verification(PID, 0, 0, supports_epoch_bump=False)
        clock.advance(DAY - 1)
        manager.remove_expired_producers(clock.milliseconds())
        assert manager.verification_state_entry(PID) is not None
        clock.advance(1)
        manager.remove_expired_producers(clock.milliseconds())
        assert manager.verification_state_entry(PID) is None


class TestExpiry:
    def test_idle_producers_expire(self, manager):
        """At exactly the limit; an expired producer may go on anywhere."""
        append(manager, Batch(0, 0))
        manager.remove_expired_producers(NOW + DAY - 1)
        assert 1 == manager.producer_id_count
        manager.remove_expired_producers(NOW + DAY)
        assert 0 == manager.producer_id_count
        append(manager, Batch(1, 77))

    def test_producers_in_a_transaction_do_not(self, manager):
        """Its records must not become stable by themselves."""
        append(manager, Batch(0, 0, is_transactional=True))
        manager.remove_expired_producers(NOW + 10 * DAY)
        assert 1 == manager.producer_id_count

    def test_expired_entries_of_a_snapshot_are_not_loaded(self, manager, tmp_path, clock):
        """Their time is compared when the snapshot is read."""
        append(manager, Batch(0, 0), producer_id=1)
        append(manager, Batch(1, 0, max_timestamp=NOW + 5), producer_id=2)
        manager.take_snapshot()
        other = ProducerStateManager(tmp_path, config=Config(), clock=clock)
        other.truncate_and_reload(0, 2, NOW + DAY)
        assert [2] == list(other.active_producers)


class TestSnapshots:
    def names(self, tmp_path):
        return sorted(os.listdir(tmp_path))

    def test_taken_only_beyond_the_last_one(self, manager, tmp_path):
        """The same offset again writes nothing."""
        assert manager.take_snapshot() is None
        append(manager, Batch(0, 0, 3))
        assert str(tmp_path / "00000000000000000003.snapshot") == manager.take_snapshot(sync=False)
        assert manager.take_snapshot() is None
        assert (3, 3, (3,)) == (
            manager.latest_snapshot_offset,
            manager.oldest_snapshot_offset,
            manager.snapshot_offsets,
        )
        assert manager.fetch_snapshot(3) is not None
        assert manager.fetch_snapshot(4) is None

    def test_reload_gives_the_state_back(self, manager, tmp_path):
        """Producers, open transactions and the last batch, but not older ones."""
        append(manager, Batch(0, 0, 3), Batch(3, 3))
        append(manager, Batch(4, 0, is_transactional=True), producer_id=8)
        manager.take_snapshot()
        other = ProducerStateManager(tmp_path, config=Config())
        assert other.is_empty
        other.truncate_and_reload(0, 5, NOW)
        assert 5 == other.map_end_offset
        assert 3 == other.last_entry(PID).last_sequence
        assert 1 == len(other.last_entry(PID).batch_metadata)
        assert LogOffsetMetadata(4) == other.first_unstable_offset
        (done,) = append(other, marker(5), producer_id=8)
        assert 4 == done.first_offset

    def test_reload_deletes_what_is_out_of_range(self, manager, tmp_path):
        """Snapshots at or below the log start and above the log end go."""
        for offset in (1, 2, 3, 4):
            manager.update_map_end_offset(offset)
            manager.take_snapshot()
        manager.truncate_and_reload(1, 3, NOW)
        assert ((2, 3), 3) == (manager.snapshot_offsets, manager.map_end_offset)
        assert 2 == len(self.names(tmp_path))

    def test_reload_at_the_same_end_keeps_the_state(self, manager):
        """Only the log start may have moved."""
        append(manager, Batch(0, 0, 3))
        manager.truncate_and_reload(1, 3, NOW)
        assert (3, 1) == (manager.map_end_offset, len(manager.active_producers))

    def test_damaged_snapshots_are_thrown_away(self, manager, tmp_path, caplog):
        """The next older one is taken, at last none."""
        for offset in (2, 4, 6):
            append(manager, Batch(offset - 1, offset // 2))
            manager.take_snapshot()
        for offset in (4, 6):
            (tmp_path / f"{offset:020d}.snapshot").write_bytes(b"\0\1garbage")
        other = ProducerStateManager(tmp_path, config=Config())
        other.truncate_and_reload(0, 7, NOW)
        assert (2, ["00000000000000000002.snapshot"]) == (
            other.map_end_offset,
            self.names(tmp_path),
        )
        assert 2 == caplog.text.count("producer snapshot")
        (tmp_path / "00000000000000000002.snapshot").write_bytes(b"")
        other.truncate_and_reload(1, 7, NOW)
        assert (1, []) == (other.map_end_offset, self.names(tmp_path))
        assert other.is_empty

    def test_a_snapshot_that_vanished(self, manager, tmp_path):
        """Somebody deleted it: as if it had never been."""
        manager.update_map_end_offset(5)
        os.unlink(manager.take_snapshot())
        manager.truncate_and_reload(0, 9, NOW)
        assert (0, ()) == (manager.map_end_offset, manager.snapshot_offsets)

    def test_truncate_fully(self, manager, tmp_path):
        """Nothing is left, and the next snapshot is at the new start or later."""
        append(manager, Batch(0, 0, is_transactional=True))
        manager.take_snapshot()
        manager.truncate_fully_and_start_at(50)
        assert (50, [], None) == (
            manager.map_end_offset,
            self.names(tmp_path),
            manager.first_unstable_offset,
        )
        assert manager.is_empty
        assert manager.take_snapshot() is not None

    def test_log_start_moves(self, manager):
        """Producers stay known, completed transactions below go, the map end follows."""
        append(manager, Batch(0, 0, is_transactional=True))
        append(manager, marker(1))
        manager.on_log_start_offset_incremented(1)
        assert LogOffsetMetadata(0) == manager.first_unstable_offset
        manager.on_log_start_offset_incremented(7)
        assert (None, 7, 1) == (
            manager.first_unstable_offset,
            manager.map_end_offset,
            manager.producer_id_count,
        )
        assert manager.take_snapshot() is None

    @pytest.mark.parametrize(
        ("bases", "kept"),
        [
            ([1, 2], [1, 2, 5]),
            ([5], [5]),
            ([4], [5]),
            ([6], []),
            ([2, 6], [2]),
            ([], [5]),
        ],
    )
    def test_stray_snapshots(self, manager, tmp_path, bases, kept):
        """Those of segments stay, and one newest at or above the last segment's base."""
        for offset in (1, 2, 3, 5):
            write_snapshot(tmp_path / f"{offset:020d}.snapshot", [])
        (tmp_path / "other.snapshot").touch()
        manager.remove_stray_snapshots(bases)
        assert kept == list(manager.snapshot_offsets)
        assert len(kept) + 1 == len(self.names(tmp_path))

    def test_delete_before_and_mark(self, manager, tmp_path):
        """Snapshots go with their segments: at once or under another name first."""
        for offset in (1, 2, 3):
            manager.update_map_end_offset(offset)
            manager.take_snapshot()
        manager.delete_snapshots_before(2)
        assert (2, 3) == manager.snapshot_offsets
        renamed = manager.remove_and_mark_snapshot_for_deletion(2)
        assert str(tmp_path / "00000000000000000002.snapshot.deleted") == renamed
        assert os.path.exists(renamed)
        assert manager.remove_and_mark_snapshot_for_deletion(2) is None
        os.unlink(tmp_path / "00000000000000000003.snapshot")
        assert manager.remove_and_mark_snapshot_for_deletion(3) is None
        assert () == manager.snapshot_offsets

    def test_the_directory_moves(self, manager, tmp_path):
        """Later snapshots are written in the new place."""
        (tmp_path / "new").mkdir()
        manager.update_directory(tmp_path / "new")
        manager.update_map_end_offset(1)
        manager.take_snapshot()
        assert ["00000000000000000001.snapshot"] == os.listdir(tmp_path / "new")
        assert [] == read_snapshot(tmp_path / "new" / "00000000000000000001.snapshot")

    def test_a_missing_directory_has_no_snapshots(self, tmp_path):
        """A log that is about to be made."""
        assert () == ProducerStateManager(tmp_path / "no", config=Config()).snapshot_offsets
