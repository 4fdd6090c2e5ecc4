"""Any sequence of operations leaves an index equal to a list of entries."""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_right

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from logstore.index import OffsetIndex, OffsetPosition, TimeIndex, TimestampOffset

BASE = 50
MAX_BYTES = 12 * 8


class IndexMachine(RuleBasedStateMachine):
    """The model is ``entries`` and, for the file, ``file_bytes``."""

    kind: type
    entry_bytes: int

    def __init__(self):
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.directory.name, "50.index")
        self.index = self.kind(self.path, BASE, MAX_BYTES)
        self.entries = []
        self.file_bytes = MAX_BYTES - MAX_BYTES % self.entry_bytes

    @property
    def has_room(self):
        return len(self.entries) < self.file_bytes // self.entry_bytes

    @rule(offset=st.integers(BASE - 1, BASE + 45))
    def truncate_to(self, offset):
        self.index.truncate_to(offset)
        self.entries = [entry for entry in self.entries if self.offset_of(entry) < offset]

    @rule()
    def truncate(self):
        self.index.truncate()
        self.entries = []

    @rule(entries=st.integers(0, 10))
    def resize(self, entries):
        self.index.resize(entries * self.entry_bytes + 3)
        self.file_bytes = entries * self.entry_bytes
        del self.entries[entries:]

    @rule()
    def trim(self):
        self.index.trim_to_valid_size()
        self.file_bytes = len(self.entries) * self.entry_bytes

    @rule()
    def reset(self):
        self.index.reset()
        self.entries = []
        self.file_bytes = MAX_BYTES - MAX_BYTES % self.entry_bytes

    @rule(clean=st.booleans())
    def reopen(self, clean):
        if clean:
            self.index.close()
        else:
            self.index.trim_to_valid_size()
            self.index.flush()
            self.index.close_handler()
        self.file_bytes = len(self.entries) * self.entry_bytes
        self.index = self.kind(self.path, BASE, MAX_BYTES)
        # Nothing may have made the file yet.
        if not os.path.exists(self.path):
            self.file_bytes = MAX_BYTES - MAX_BYTES % self.entry_bytes

    @rule()
    def look_first_and_keep_the_view(self):
        self.held = self.index._current_view()

    @rule(wanted=st.integers(0, 45))
    def lookup(self, wanted):
        self.check_lookup(wanted)

    @invariant()
    def equals_the_model(self):
        assert len(self.entries) == self.index.entry_count
        assert [list(entry) for entry in self.entries] == self.index.entries().tolist()
        assert self.file_bytes == self.index.file_bytes == os.path.getsize(self.path)
        assert [os.path.basename(self.path)] == os.listdir(self.directory.name)
        if hasattr(self, "held"):
            assert isinstance(bytes(self.held.bytes[: self.held.count * self.entry_bytes]), bytes)

    def teardown(self):
        self.index.close()
        self.directory.cleanup()


class OffsetIndexMachine(IndexMachine):
    kind = OffsetIndex
    entry_bytes = 8

    def offset_of(self, entry):
        return entry[0]

    @precondition(lambda self: self.has_room)
    @rule(step=st.integers(1, 5))
    def append(self, step):
        offset, position = self.entries[-1] if self.entries else (BASE - 1, -7)
        self.index.append(offset + step, position + 7)
        self.entries.append((offset + step, position + 7))

    def check_lookup(self, target):
        slot = bisect_right([offset for offset, _ in self.entries], BASE + target)
        expected = self.entries[slot - 1] if slot else (BASE, 0)
        assert OffsetPosition(*expected) == self.index.lookup(BASE + target)
        above = [entry for entry in self.entries if entry[1] >= target]
        if above and above[0] == self.entries[0] and above[0][1] == target:
            del above[0]  # Kafka's search never compares the first entry for equality.
        found = self.index.fetch_upper_bound_offset(OffsetPosition(BASE, target - 1), 1)
        assert (above[0] if above else None) == found
        assert (self.entries[-1][0] if self.entries else BASE) == self.index.last_offset


class TimeIndexMachine(IndexMachine):
    kind = TimeIndex
    entry_bytes = 12

    def offset_of(self, entry):
        return entry[1]

    @precondition(lambda self: self.has_room)
    @rule(time_step=st.integers(0, 3), step=st.integers(0, 5))
    def maybe_append(self, time_step, step):
        timestamp, offset = self.entries[-1] if self.entries else (-1, BASE)
        self.index.maybe_append(timestamp + time_step, offset + step, skip_full_check=True)
        if time_step > 0:
            self.entries.append((timestamp + time_step, offset + step))

    def check_lookup(self, target):
        slot = bisect_right([timestamp for timestamp, _ in self.entries], target)
        expected = self.entries[slot - 1] if slot else (-1, BASE)
        assert TimestampOffset(*expected) == self.index.lookup(target)
        last = self.entries[-1] if self.entries else (-1, BASE)
        assert TimestampOffset(*last) == self.index.last_entry


OffsetIndexMachine.TestCase.settings = TimeIndexMachine.TestCase.settings = settings(
    stateful_step_count=25
)
TestOffsetIndex = OffsetIndexMachine.TestCase
TestTimeIndex = TimeIndexMachine.TestCase
