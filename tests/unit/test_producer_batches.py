"""Batches of producers brought into producer state together, against one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore._native import BATCH_DTYPE
from logstore.append_origin import AppendOrigin
from logstore.clock import ManualClock
from logstore.config import LogConfig
from logstore.errors import InvalidTxnStateError
from logstore.file_records import LogOffsetMetadata
from logstore.producer_batches import WAITING_MAX, ProducerBatches, needed_batches
from logstore.producer_snapshot import encode_snapshot
from logstore.producer_state import ProducerStateManager
from logstore.record import RecordBatch, encode_batch
from logstore.records_builder import CONTROL_FLAG, TRANSACTIONAL_FLAG

INT32_MAX = 2**31 - 1


def new_state(directory):
    return ProducerStateManager(directory, config=LogConfig.of({}), clock=ManualClock())


def encoded(drawn, offset):
    """Return a batch as it is in a log."""
    producer_id, epoch, sequence, count, timestamp = drawn
    return encode_batch(
        [(None, timestamp, None, b"v", ())] * count,
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def row_of(batch):
    """Return what a scan makes of a batch."""
    row = np.zeros(1, BATCH_DTYPE)
    for name in (
        "base_offset",
        "last_offset",
        "max_timestamp",
        "producer_id",
        "producer_epoch",
        "base_sequence",
        "attributes",
    ):
        row[name] = getattr(batch, name)
    return row


def rows(count, producer_id=1, *, attributes=0, first=0):
    """Return plain rows of one record each."""
    made = np.zeros(count, BATCH_DTYPE)
    made["base_offset"] = made["last_offset"] = made["base_sequence"] = first + np.arange(count)
    made["producer_id"] = producer_id
    made["attributes"] = attributes
    return made


def one_by_one(state, batches):
    for batch in batches:
        append_info = state.prepare_update(batch.producer_id, AppendOrigin.REPLICATION)
        assert append_info.append(batch) is None
        state.update(append_info)


BATCH = st.tuples(
    st.sampled_from([1, 2, 3]),
    st.sampled_from([0, 0, 0, 1]),
    st.sampled_from([0, 7, INT32_MAX]),
    st.sampled_from([1, 3]),
    st.sampled_from([10, 20]),
)


@given(
    known=st.lists(BATCH, max_size=6),
    drawn=st.lists(BATCH, min_size=1, max_size=30),
    cut=st.integers(0, 30),
)
def test_together_is_as_one_by_one(tmp_path_factory, known, drawn, cut):
    """Whatever was known before, and in however many parts they come."""
    directory = tmp_path_factory.getbasetemp()
    batches, offset = [], 0
    for each in [*known, *drawn]:
        batches.append(RecordBatch(encoded(each, offset)))
        offset = batches[-1].next_offset + 1  # Compaction leaves gaps.
    expected, actual = new_state(directory), new_state(directory)
    one_by_one(expected, batches)
    one_by_one(actual, batches[: len(known)])
    together = ProducerBatches(actual)
    waiting = batches[len(known) :]
    for part in (waiting[:cut], waiting[cut:]):
        if part:
            assert together.add(np.concatenate([row_of(batch) for batch in part]))
    together.apply()
    assert list(expected._producers.items()) == list(actual._producers.items())
    assert encode_snapshot(expected._producers.values()) == encode_snapshot(
        actual._producers.values()
    )


@pytest.mark.parametrize("attributes", [TRANSACTIONAL_FLAG, TRANSACTIONAL_FLAG | CONTROL_FLAG])
def test_transactions_are_not_taken(tmp_path, attributes):
    """They go through producer state one by one."""
    state = new_state(tmp_path)
    together = ProducerBatches(state)
    assert not together.add(np.concatenate([rows(3), rows(1, 2, attributes=attributes)]))
    together.apply()
    assert state.is_empty


def test_a_producer_with_an_open_transaction(tmp_path):
    """Its plain batch is refused, as one by one."""
    state = new_state(tmp_path)
    append_info = state.prepare_update(1, AppendOrigin.REPLICATION)
    append_info.append_data_batch(0, 0, 0, 0, LogOffsetMetadata(0), 0, is_transactional=True)
    state.update(append_info)
    together = ProducerBatches(state)
    assert together.add(rows(1, first=1))
    with pytest.raises(InvalidTxnStateError):
        together.apply()


def test_few_of_many_are_needed():
    """Five of a producer."""
    (found, is_of_one_epoch), *others = needed_batches(rows(1000))
    assert is_of_one_epoch
    assert [] == others
    assert [995, 996, 997, 998, 999] == [row[2] for row in found]


def test_memory_is_bounded(tmp_path):
    """What waits is applied when it becomes much."""
    state = new_state(tmp_path)
    together = ProducerBatches(state)
    assert together.add(rows(WAITING_MAX - 1))
    assert state.is_empty
    assert together.add(rows(1, first=WAITING_MAX - 1))
    assert not state.is_empty


def test_rows_are_copied(tmp_path):
    """The scan's memory is used again."""
    state = new_state(tmp_path)
    together = ProducerBatches(state)
    made = rows(5)
    assert together.add(made)
    made["producer_id"] = 9
    together.apply()
    assert [1] == list(state._producers)
