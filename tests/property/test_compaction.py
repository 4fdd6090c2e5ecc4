"""A compacted log against a model: last value per key, tombstones, transactions, many rounds."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import examples

from logstore.append_origin import AppendOrigin
from logstore.cleaner_config import CleanerConfig
from logstore.clock import ManualClock
from logstore.compression import CompressionType
from logstore.config import LogConfig
from logstore.control_record import ControlRecordType, EndTransactionMarker
from logstore.opening import open_log
from logstore.record import encode_batch, end_transaction_marker
from logstore.scheduler import ManualScheduler

NOW_MS = 1_700_000_000_000
CONFIG = LogConfig.of(
    {
        "cleanup.policy": "compact",
        "segment.bytes": 400,
        "segment.index.bytes": 240,
        "index.interval.bytes": 100,
        "delete.retention.ms": 1000,
        "file.delete.delay.ms": 10,
        "transaction.partition.verification.enable": False,
        "message.timestamp.after.max.ms": 2**63 - 1,
    }
)
KEYS = st.sampled_from([b"", b"a", b"b", b"c", b"key"])
VALUES = st.sampled_from([None, b"", b"1", b"22", b"x" * 40])
RECORDS = st.lists(st.tuples(KEYS, VALUES, st.integers(0, 3)), min_size=1, max_size=5)
CODECS = st.sampled_from(list(CompressionType))
STEPS = st.one_of(
    st.tuples(st.just("put"), RECORDS, CODECS),
    st.tuples(st.just("data"), st.integers(1, 2), RECORDS, CODECS),
    st.tuples(st.just("end"), st.integers(1, 2), st.booleans()),
    st.tuples(st.just("roll")),
    st.tuples(st.just("clean"), st.sampled_from([48, 72, 24_000])),
    st.tuples(st.just("wait"), st.integers(1, 2000)),
    st.tuples(st.just("reopen"), st.booleans()),
)


class Model:
    """Every record that was written, and how its transaction ended."""

    def __init__(self) -> None:
        self.records = {}  # offset -> (key, value, producer or None)
        self.open = {}  # producer -> offsets
        self.aborted = set()
        self.sequences = {}

    def end(self, producer, *, commit):
        offsets = self.open.pop(producer, [])
        if not commit:
            self.aborted.update(offsets)

    def undecided(self):
        return min((offsets[0] for offsets in self.open.values()), default=2**63)

    def last_values(self, end):
        found = {}
        for offset, (key, value) in self.records.items():
            if offset < end and offset not in self.aborted:
                found[key] = value
        return {key: value for key, value in found.items() if value is not None}


class Run:
    """A log and its model."""

    def __init__(self, path):
        self.path = path
        self.clock = ManualClock(NOW_MS)
        self.scheduler = ManualScheduler(self.clock)
        self.model = Model()
        self.log = self.opened()

    def opened(self):
        return open_log(self.path, config=CONFIG, clock=self.clock, scheduler=self.scheduler)

    def append(self, records, codec, **fields):
        rows = [
            (None, self.clock.milliseconds() + delta, key, value, ())
            for key, value, delta in records
        ]
        data = encode_batch(rows, compression=codec, **fields)
        first = self.log.append_batches(data, leader_epoch=0).first_offset
        offsets = range(first, first + len(records))
        for offset, (key, value, _) in zip(offsets, records, strict=True):
            self.model.records[offset] = (key, value)
        return offsets

    def put(self, records, codec):
        self.append(records, codec)

    def data(self, producer, records, codec):
        sequence = self.model.sequences.get(producer, 0)
        offsets = self.append(
            records,
            codec,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=True,
        )
        self.model.sequences[producer] = sequence + len(records)
        self.model.open.setdefault(producer, []).extend(offsets)

    def end(self, producer, commit):
        kind = ControlRecordType.COMMIT if commit else ControlRecordType.ABORT
        marker = end_transaction_marker(
            EndTransactionMarker(kind, 0),
            timestamp=self.clock.milliseconds(),
            producer_id=producer,
            producer_epoch=0,
        )
        self.log.append_as_leader(marker, 0, AppendOrigin.COORDINATOR)
        self.model.end(producer, commit=commit)

    def roll(self):
        self.log.roll()

    def clean(self, memory):
        before = self.seen()
        self.log.compact(config=CleanerConfig(log_cleaner_dedupe_buffer_size=max(96, memory)))
        after = self.seen()
        assert after.items() <= before.items()

    def wait(self, ms):
        self.scheduler.advance_to(self.clock.milliseconds() + ms)

    def reopen(self, clean):
        if clean:
            self.log.close()
        else:
            self.log.abandon()
        self.log = self.opened()

    def seen(self):
        return {record.offset: (record.key, record.value) for record in self.log.read("earliest")}

    def check(self):
        """What is read was written, is not aborted, and has the last value of every key."""
        log, model = self.log, self.model
        seen = self.seen()
        end = min(model.undecided(), log.log_end_offset)
        assert end >= log.last_stable_offset
        assert seen.items() <= model.records.items()
        assert not model.aborted & seen.keys()
        assert all(offset < end for offset in seen)
        last = dict(seen.values())
        assert model.last_values(end) == {
            key: value for key, value in last.items() if value is not None
        }
        # Of what is above the cleaned part nothing is missing.
        floor = log.cleaner_offset or 0
        assert {
            offset: record
            for offset, record in model.records.items()
            if floor <= offset < end and offset not in model.aborted
        } == {offset: record for offset, record in seen.items() if offset >= floor}
        assert [] == list(log.check())


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_against_a_model(steps):
    """Whatever is written and cleaned in which order."""
    with tempfile.TemporaryDirectory() as directory:
        run = Run(Path(directory) / "log-0")
        try:
            for name, *arguments in steps:
                getattr(run, name)(*arguments)
                if name in ("clean", "reopen"):
                    run.check()
            run.roll()
            run.clean(24_000)
            run.check()
            # With nothing undecided every key is there once at most.
            for producer in list(run.model.open):
                run.end(producer, commit=False)
            run.roll()
            run.clean(24_000)
            run.check()
            keys = [key for key, _ in run.seen().values()]
            assert len(keys) == len(set(keys))
        finally:
            run.log.abandon()
