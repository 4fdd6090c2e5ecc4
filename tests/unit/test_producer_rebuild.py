"""Producer state of a log that ended cleanly and has no snapshots."""

from __future__ import annotations

import pytest

import logstore
from logstore.record import encode_batch

CONFIG = {"segment.bytes": 200}


@pytest.fixture(name="log_path")
def _log_path(tmp_path):
    path = tmp_path / "orders-0"
    with logstore.open(path, config=CONFIG) as log:
        for sequence in range(6):
            batch = encode_batch(
                [(None, 1, None, bytes(50), ())],
                producer_id=7,
                producer_epoch=0,
                base_sequence=sequence,
            )
            log.append_batches(batch, leader_epoch=0)
    return path


def _snapshot_names(path):
    return sorted(file.name for file in path.glob("*.snapshot"))


def test_records_above_the_log_start_count(log_path):
    """As Kafka's rebuild with snapshots; the same ones are left."""
    kept = _snapshot_names(log_path)
    for file in log_path.glob("*.snapshot"):
        file.unlink()
    with logstore.open(log_path, config=CONFIG) as log:
        assert 5 == log.producer_state.active_producers[7].last_sequence
        assert [] == list(log.check())
    assert kept[-1] in _snapshot_names(log_path)


def test_records_below_the_log_start_do_not(log_path):
    """Kafka starts without state there (differential script 823000028)."""
    with logstore.open(log_path, config=CONFIG) as log:
        end = log.log_end_offset
        log.maybe_increment_log_start_offset(end)
    bases = sorted(file.stem for file in log_path.glob("*.log"))
    for file in log_path.glob("*.snapshot"):
        file.unlink()
    with logstore.open(log_path, config=CONFIG) as log:
        assert end == log.log_start_offset
        assert {} == dict(log.producer_state.active_producers)
        assert [] == list(log.check())
    assert [f"{base}.snapshot" for base in bases[-2:]] == _snapshot_names(log_path)[:2]
