"""LeaderEpochCache against a plain model, over any sequence of operations and reloads."""

from __future__ import annotations

import os
import tempfile

from hypothesis import given
from hypothesis import strategies as st

from logstore.checkpoint import LeaderEpochCheckpointFile
from logstore.clock import ManualClock
from logstore.leader_epoch import LeaderEpochCache
from logstore.scheduler import ManualScheduler

EPOCHS = st.integers(0, 6)
OFFSETS = st.integers(0, 12)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("assign"), EPOCHS, OFFSETS),
        st.tuples(st.just("from_end"), OFFSETS),
        st.tuples(st.just("from_start"), OFFSETS),
        st.tuples(st.just("reload")),
    ),
    max_size=12,
)


def model_of(entries, operation, *arguments):
    """What a dict of epoch to start offset becomes."""
    if operation == "assign":
        epoch, offset = arguments
        latest = max(entries, default=None)
        if latest == epoch and offset >= entries[latest]:
            return entries
        kept = {e: start for e, start in entries.items() if e < epoch and start < offset}
        return kept | {epoch: offset}
    if operation == "from_end":
        return {e: start for e, start in entries.items() if start < arguments[0]}
    if operation == "from_start":
        covering = [e for e, start in entries.items() if start <= arguments[0]]
        kept = {e: start for e, start in entries.items() if start > arguments[0]}
        return ({max(covering): arguments[0]} if covering else {}) | kept
    return entries


@given(OPERATIONS)
def test_equals_the_model(operations):
    """Entries, answers and the file are those of the model after every step."""
    with tempfile.TemporaryDirectory() as directory:
        checkpoint = LeaderEpochCheckpointFile(os.path.join(directory, "leader-epoch-checkpoint"))
        scheduler = ManualScheduler(ManualClock())
        cache = LeaderEpochCache(checkpoint, scheduler)
        entries = {}
        for operation, *arguments in operations:
            entries = model_of(entries, operation, *arguments)
            if operation == "assign":
                cache.assign(*arguments)
            elif operation == "from_end":
                cache.truncate_from_end(*arguments)
            elif operation == "from_start":
                cache.truncate_from_start(*arguments)
            else:
                scheduler.run_due()
                cache = LeaderEpochCache(checkpoint, scheduler)
            assert sorted(entries.items()) == list(cache.epoch_entries)
        for offset in range(14):
            covering = [e for e, start in sorted(entries.items()) if start <= offset]
            assert (covering[-1] if covering else None) == cache.epoch_for_offset(offset)
        for epoch in range(8):
            higher = [start for e, start in sorted(entries.items()) if e > epoch]
            floor = [e for e in sorted(entries) if e <= epoch]
            if epoch == max(entries, default=None):
                expected = (epoch, 99)
            elif not higher:
                expected = (-1, -1)
            else:
                expected = (floor[-1] if floor else epoch, higher[0])
            assert expected == cache.end_offset_for(epoch, 99)
