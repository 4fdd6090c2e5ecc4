"""Kafka's own log directories as Arrow data: what a read gives, old formats and damage included."""

from __future__ import annotations

import shutil

import golden_set
import pytest

import logstore

pa = pytest.importorskip("pyarrow")

COLUMNS = ("offset", "timestamp", "key", "value", "headers", "timestamp_type", "leader_epoch")
DIRECTORIES_MAX = 8


def as_row(record):
    row = {name: getattr(record, name) for name in COLUMNS}
    headers = [(name.encode("utf-8", "surrogateescape"), value) for name, value in record.headers]
    row["headers"] = [
        {"key": name.decode("utf-8", "replace"), "value": value} for name, value in headers
    ]
    return row


def read(log, isolation):
    """Return the rows up to the first damage, and that."""
    rows = []
    try:
        rows.extend(as_row(record) for record in log.read(isolation=isolation))
    except logstore.LogStoreError as error:
        return rows, (type(error), getattr(error, "offset", None), getattr(error, "position", None))
    return rows, None


def scanned(log, isolation, *, views):
    rows = []
    try:
        for batch in log.scan(columns=COLUMNS, isolation=isolation, views=views).to_arrow():
            batch.validate(full=True)
            at = COLUMNS.index("timestamp")
            times = batch["timestamp"].cast(pa.int64())
            rows += batch.set_column(at, "timestamp", times).to_pylist()
    except logstore.LogStoreError as error:
        return rows, (type(error), getattr(error, "offset", None), getattr(error, "position", None))
    return rows, None


@pytest.mark.parametrize("family", golden_set.families())
def test_scan_is_read(golden, tmp_path, family):
    """Every partition, read-only and, as a copy, by its writer, which maps the segments."""
    directories = sorted({path.parent for path in (golden / family).rglob("*.log")})
    # Some families have a hundred that differ in an index.
    for directory in directories[:: -(-len(directories) // DIRECTORIES_MAX) or 1]:
        copy = tmp_path / directory.name
        shutil.copytree(directory, copy, dirs_exist_ok=True)
        for path, mode in ((directory, "r"), (copy, "a")):
            try:
                log = logstore.open(path, mode)
            except logstore.LogStoreError:
                continue
            with log:
                for isolation, views in (("read_committed", False), ("log_end", True)):
                    expected, error = read(log, isolation)
                    assert (expected, error) == scanned(log, isolation, views=views)
                    if error is None:
                        assert len(expected) == log.scan(isolation=isolation).count()
