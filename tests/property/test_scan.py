"""A scan gives what a read gives, whatever is in the log and however it is asked for."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sampling import examples

import logstore
from logstore.control_record import ControlRecordType, EndTransactionMarker
from logstore.record import encode_batch, end_transaction_marker

pa = pytest.importorskip("pyarrow")

BYTES = st.sampled_from([None, b"", b"v", b"twelve bytes", b"x" * 13, b"y" * 150])
HEADERS = st.sampled_from([(), (), (("h", None),), (("a", b"1"), ("ü", b"z" * 40), ("a", b""))])
RECORDS = st.lists(st.tuples(BYTES, BYTES, HEADERS, st.integers(0, 3)), min_size=1, max_size=6)
# Producer -1 appends outside transactions.
APPENDS = st.tuples(
    st.just("append"), RECORDS, st.sampled_from([-1, -1, 1, 2]), st.sampled_from([0, 0, 1, 3, 4])
)
MARKERS = st.tuples(
    st.just("end"), st.sampled_from([1, 2]), st.sampled_from(["COMMIT", "ABORT", "ABORT"])
)
GAPS = st.tuples(st.just("gap"), st.integers(1, 5))
ROLLS = st.tuples(st.just("roll"))
STEPS = st.lists(st.one_of(APPENDS, APPENDS, MARKERS, GAPS, ROLLS), max_size=14)


def write(log, steps):
    """Append as a follower, which takes offsets as they are."""
    offset, sequences = 0, {}
    for step, *rest in steps:
        if step == "append":
            records, producer_id, codec = rest
            is_transactional = producer_id >= 0
            sequence = sequences.get(producer_id, 0)
            batch = encode_batch(
                [
                    (offset + delta, 1000 + time, key, value, headers)
                    for delta, (key, value, headers, time) in enumerate(records)
                ],
                base_offset=offset,
                leader_epoch=0,
                compression=logstore.CompressionType(codec),
                producer_id=producer_id,
                producer_epoch=0 if is_transactional else -1,
                base_sequence=sequence if is_transactional else -1,
                is_transactional=is_transactional,
            )
            sequences[producer_id] = sequence + len(records)
            log.append_batches(batch, leader_epoch=0, origin="replication")
            offset += len(records)
        elif step == "end":
            marker = end_transaction_marker(
                EndTransactionMarker(ControlRecordType[rest[1]], 0),
                timestamp=1000,
                producer_id=rest[0],
                producer_epoch=0,
                base_offset=offset,
                leader_epoch=0,
            )
            log.append_batches(marker, leader_epoch=0, origin="replication")
            offset += 1
        elif step == "gap":
            offset += rest[0]
        else:
            log.roll()


def as_row(record):
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": record.key,
        "value": record.value,
        "headers": [{"key": key, "value": value} for key, value in record.headers],
        "timestamp_type": record.timestamp_type,
        "leader_epoch": record.leader_epoch,
    }


COLUMNS = tuple(as_row(logstore.Record(0, 0, None, None)))


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=STEPS,
    start=st.integers(0, 40),
    stop=st.none() | st.integers(0, 60),
    isolation=st.sampled_from(["read_committed", "read_uncommitted", "log_end"]),
    batch_rows=st.sampled_from([None, 1, 3]),
    columns=st.permutations(COLUMNS).flatmap(
        lambda names: st.integers(1, len(names)).map(lambda count: names[:count])
    ),
    views=st.booleans(),
    mode=st.sampled_from(["a", "r"]),
)
def test_scan_is_read(steps, start, stop, isolation, batch_rows, columns, views, mode):
    """Over any batches, bounds, isolation and selection; the same when it is done again."""
    with contextlib.ExitStack() as stack:
        path = Path(stack.enter_context(tempfile.TemporaryDirectory()), "t-0")
        log = stack.enter_context(logstore.open(path, config={"segment.bytes": 4000}))
        write(log, steps)
        if mode == "r":
            log.close()
            log = stack.enter_context(logstore.open(path, mode))
        start = min(start, log.offsets.log_end_offset)
        expected = [as_row(each) for each in log.read(start, stop, isolation=isolation)]
        scan = log.scan(
            start, stop, isolation=isolation, batch_rows=batch_rows, columns=columns, views=views
        )
        for _ in range(2):
            table = scan.to_table()
            table.validate(full=True)
            assert list(columns) == table.column_names
            if "timestamp" in columns:
                at = table.column_names.index("timestamp")
                table = table.set_column(at, "timestamp", table["timestamp"].cast(pa.int64()))
            assert [{name: row[name] for name in columns} for row in expected] == table.to_pylist()
        assert len(expected) == scan.count()
