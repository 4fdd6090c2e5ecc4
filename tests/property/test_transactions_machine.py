"""
Transactions and positions against a model: lists of writes, each with the fate of its transaction.

Two transactional ids begin, write, commit, abort, are fenced and time out, beside plain appends and
plain commits of positions, over clean ends and kills. After every step each partition shows what
the model says, and so do the positions.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from plain_store import PlainStore
from sampling import examples

from logstore.clock import ManualClock
from logstore.errors import ProducerFencedError

PLACES = (("a", 0), ("a", 1), ("b", 0))
IDS = ("t", "u")
GROUPS = ("g", "h")

ids = st.sampled_from(IDS)
places = st.sampled_from(PLACES)
groups = st.sampled_from(GROUPS)


class Fate:
    """A transaction as the model has it."""

    def __init__(self, handle):
        self.handle = handle
        self.state = "open"
        self.waiting = []  # Writes that were not flushed: (where, what).
        self.has_written = False


class TransactionsMachine(RuleBasedStateMachine):
    """The machine; its rules are what a program may do, and what may happen to it."""

    @initialize()
    def begin_empty(self):
        memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self.directory = tempfile.TemporaryDirectory(dir=memory, prefix="logstore-transactions-")
        self.store = PlainStore(self.directory.name, clock=ManualClock(), partitions=1)
        self.store.create_topic("a", 2)
        self.store.create_topic("b")
        self.count = 0
        self.written = {place: [] for place in PLACES}
        self.positions = []
        self.open = {}
        self.zombies = []

    def teardown(self):
        if hasattr(self, "store"):
            self.store.close()
            self.directory.cleanup()

    # -- the model ---------------------------------------------------------------------------------

    def write_waiting(self, fate):
        for where, what in fate.waiting:
            fate.has_written = True
            if where is None:
                self.positions.append((*what, fate))
            else:
                self.written[where].append((what, fate))
        fate.waiting.clear()

    def end(self, fate, state):
        fate.state = state
        fate.waiting.clear()

    def visible(self, place):
        values = []
        for value, fate in self.written[place]:
            if fate is not None and fate.state == "open":
                break
            if fate is None or fate.state == "committed":
                values.append(value)
        return values

    def committed_positions(self, group):
        return {
            place: offset
            for name, place, offset, fate in self.positions
            if name == group and (fate is None or fate.state == "committed")
        }

    # -- transactions ------------------------------------------------------------------------------

    @rule(name=ids)
    def begin(self, name):
        """Whoever has the id is fenced."""
        old = self.open.pop(name, None)
        if old is not None:
            self.end(old, "aborted")
            self.zombies.append(old)
        self.open[name] = Fate(self.store.transaction(name))

    @precondition(lambda self: self.open)
    @rule(name=ids, place=places, flushes=st.booleans())
    def append(self, name, place, flushes):
        fate = self.open.get(name)
        if fate is None:
            return
        self.count += 1
        value = b"%d" % self.count
        fate.handle.append(place, value)
        fate.waiting.append((place, value))
        if flushes:
            fate.handle.flush()
            self.write_waiting(fate)

    @precondition(lambda self: self.open)
    @rule(name=ids, group=groups, place=places, offset=st.integers(0, 3), flushes=st.booleans())
    def move(self, name, group, place, offset, flushes):
        fate = self.open.get(name)
        if fate is None:
            return
        fate.handle.commit_positions(group, {place: offset})
        fate.waiting.append((None, (group, place, offset)))
        if flushes:
            fate.handle.flush()
            self.write_waiting(fate)

    @precondition(lambda self: self.open)
    @rule(name=ids)
    def commit(self, name):
        fate = self.open.pop(name, None)
        if fate is None:
            return
        fate.handle.commit()
        self.write_waiting(fate)
        self.end(fate, "committed")

    @precondition(lambda self: self.open)
    @rule(name=ids)
    def abort(self, name):
        fate = self.open.pop(name, None)
        if fate is None:
            return
        fate.handle.abort()
        self.end(fate, "aborted")

    @precondition(lambda self: self.zombies)
    @rule(place=places, commits=st.booleans())
    def zombie(self, place, commits):
        """What was fenced stays so, whatever it tries."""
        fate = self.zombies[-1]

        def write():
            fate.handle.append(place, b"late")
            fate.handle.flush()

        with pytest.raises(ProducerFencedError):
            (fate.handle.commit if commits else write)()
        assert "fenced" == fate.handle.outcome

    @rule()
    def time_out(self):
        """Whoever has written is too late; whoever has not can still begin."""
        self.store.clock.advance(100_000)
        self.store.scheduler.run_due()
        for name, fate in list(self.open.items()):
            if fate.has_written:
                del self.open[name]
                self.end(fate, "aborted")
                self.zombies.append(fate)

    # -- beside them -------------------------------------------------------------------------------

    @rule(place=places)
    def append_plainly(self, place):
        self.count += 1
        value = b"%d" % self.count
        self.store[place].append(value)
        self.written[place].append((value, None))

    @rule(group=groups, place=places, offset=st.integers(0, 3))
    def move_plainly(self, group, place, offset):
        self.store.positions(group).commit({place: offset})
        self.positions.append((group, place, offset, None))

    @rule(killed=st.booleans())
    def open_again(self, killed):
        """What was open is aborted."""
        self.store = self.store.reopened(killed=killed)
        for fate in self.open.values():
            self.end(fate, "aborted")
        self.open.clear()
        self.zombies.clear()

    # -- what has to hold --------------------------------------------------------------------------

    @invariant()
    def partitions_show_what_is_committed(self):
        if hasattr(self, "store"):
            for place in PLACES:
                assert self.visible(place) == self.store.values(*place)

    @invariant()
    def positions_are_what_is_committed(self):
        if hasattr(self, "store"):
            for group in GROUPS:
                expected = self.committed_positions(group)
                assert expected == dict(self.store.positions(group).items())

    @invariant()
    def nothing_was_reported(self):
        if hasattr(self, "store"):
            assert [] == self.store.errors


TestTransactions = TransactionsMachine.TestCase
TestTransactions.settings = settings(
    max_examples=examples(60), stateful_step_count=30, deadline=None
)
