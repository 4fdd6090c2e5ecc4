"""Snapshots: what is written is read, and no damaged byte is believed; transactions by a model."""

from __future__ import annotations

import os
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.append_origin import AppendOrigin
from logstore.clock import ManualClock
from logstore.config import LogConfig
from logstore.control_record import ControlRecordType, EndTransactionMarker
from logstore.errors import (
    CorruptSnapshotError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from logstore.file_records import LogOffsetMetadata
from logstore.producer_snapshot import (
    BatchMetadata,
    ProducerStateEntry,
    encode_snapshot,
    read_snapshot,
)
from logstore.producer_state import ProducerStateManager

EDGES_32 = st.sampled_from([0, 1, 2**31 - 1])
EDGES_64 = st.sampled_from([0, 1, 2**62, 2**63 - 1])
ENTRIES = st.lists(
    st.builds(
        ProducerStateEntry,
        producer_id=EDGES_64,
        producer_epoch=st.sampled_from([-1, 0, 32767]),
        coordinator_epoch=st.sampled_from([-1, 0, 2**31 - 1]),
        last_timestamp=st.sampled_from([-1, 0, 2**63 - 1]),
        current_txn_first_offset=st.none() | EDGES_64,
    ),
    max_size=4,
    unique_by=lambda entry: entry.producer_id,
)


@given(ENTRIES, st.lists(st.tuples(EDGES_32, EDGES_64, EDGES_32), min_size=4, max_size=4))
def test_round_trip(entries, batches):
    """Every entry comes back with its newest batch."""
    for entry, (last_sequence, last_offset, offset_delta) in zip(entries, batches, strict=False):
        if last_sequence != 1:
            entry.batch_metadata = (
                BatchMetadata(last_sequence, last_offset, offset_delta, entry.last_timestamp),
            )
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "s")
        with open(path, "wb") as file:
            file.write(encode_snapshot(entries))
        found = read_snapshot(path)
        by_id = sorted(entries, key=lambda entry: entry.producer_id)
        assert by_id == sorted(found, key=lambda entry: entry.producer_id)


@given(ENTRIES, st.data())
def test_damage(entries, data):
    """A byte changed, bytes cut or bytes added: never believed, never another error."""
    good = encode_snapshot(entries)
    kind = data.draw(st.sampled_from(["flip", "cut", "add"]))
    if kind == "flip":
        bad = bytearray(good)
        bad[data.draw(st.integers(0, len(good) - 1))] ^= data.draw(st.integers(1, 255))
    elif kind == "cut":
        bad = good[: data.draw(st.integers(0, len(good) - 1))]
    else:
        bad = good + data.draw(st.binary(min_size=1, max_size=60))
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "s")
        with open(path, "wb") as file:
            file.write(bad)
        with pytest.raises(CorruptSnapshotError):
            read_snapshot(path)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("data"),
            st.integers(1, 2),  # Producer.
            st.integers(0, 2),  # Epoch.
            st.integers(0, 3),  # Sequence: the next one, 0, another one, the next one.
            st.booleans(),  # Transactional.
        ),
        st.tuples(
            st.just("marker"),
            st.integers(1, 2),
            st.integers(0, 2),
            st.integers(0, 1),  # Coordinator epoch.
            st.booleans(),  # Abort.
        ),
        st.tuples(st.just("high_watermark"), st.integers(0, 3)),
        st.tuples(st.just("reload"), st.booleans()),
    ),
    max_size=25,
)


@given(OPERATIONS)
def test_transactions_equal_the_model(operations):
    """The first unstable offset is that of the oldest transaction open or above the watermark."""
    with tempfile.TemporaryDirectory() as directory:
        manager = ProducerStateManager(directory, config=LogConfig(), clock=ManualClock(0))
        end = 0
        open_txns = {}  # Producer id -> first offset.
        completed = []  # (first offset, marker offset).
        epochs = {}
        for operation, *arguments in operations:
            if operation in ("data", "marker"):
                producer_id, epoch = arguments[:2]
                info = manager.prepare_update(producer_id, AppendOrigin.CLIENT)
                done = None
                try:
                    if operation == "data":
                        entry = manager.last_entry(producer_id)
                        last = (
                            entry.last_sequence if entry and entry.producer_epoch == epoch else -1
                        )
                        sequence = [last + 1, 0, 7, last + 1][arguments[2]]
                        info.append_data_batch(
                            epoch,
                            sequence,
                            sequence,
                            0,
                            LogOffsetMetadata(end),
                            end,
                            is_transactional=arguments[3],
                        )
                    else:
                        kind = ControlRecordType.ABORT if arguments[3] else ControlRecordType.COMMIT
                        marker = EndTransactionMarker(kind, arguments[2])
                        done = info.append_end_txn_marker(marker, epoch, end, 0)
                except InvalidProducerEpochError:
                    assert epoch < epochs[producer_id]
                    continue
                except InvalidTxnStateError:
                    assert producer_id in open_txns
                    assert not arguments[3]
                    continue
                except (OutOfOrderSequenceError, TransactionCoordinatorFencedError):
                    continue
                assert epoch >= epochs.get(producer_id, -1)
                epochs[producer_id] = epoch
                manager.update(info)
                if operation == "data" and arguments[3]:
                    open_txns.setdefault(producer_id, end)
                if operation == "marker":
                    first = open_txns.pop(producer_id, None)
                    assert (first is None) == (done is None)
                    if done is not None:
                        others = list(open_txns.values())
                        assert min(others, default=end + 1) == manager.last_stable_offset(done)
                        manager.complete_txn(done)
                        completed.append((first, end))
                end += 1
                manager.update_map_end_offset(end)
            elif operation == "high_watermark":
                high_watermark = max(0, end - arguments[0])
                manager.on_high_watermark_updated(high_watermark)
                completed = [txn for txn in completed if txn[1] >= high_watermark]
            else:
                manager.take_snapshot(sync=False)
                if arguments[0]:
                    manager = ProducerStateManager(
                        directory, config=LogConfig(), clock=ManualClock(0)
                    )
                manager.truncate_and_reload(0, end, 0)
                if arguments[0] and end:
                    completed = []
                assert end == manager.map_end_offset
            firsts = [*open_txns.values(), *(first for first, _ in completed)]
            found = manager.first_unstable_offset
            assert min(firsts, default=None) == (None if found is None else found.message_offset)
