"""Arrow data as columns: whatever its layout, the records are those that Arrow shows."""

from __future__ import annotations

import pytest

from logstore.clock import ManualClock
from logstore.errors import InvalidRecordError
from logstore.testing import open_log

pa = pytest.importorskip("pyarrow")

NOW = 1_700_000_000_000
COUNT = 50
VALUES = [None if i % 7 == 3 else b"v%d" % i for i in range(COUNT)]
KEYS = [None if i % 5 == 4 else b"k" * (i % 4) for i in range(COUNT)]
TIMES = [NOW + i % 3 for i in range(COUNT)]


def table(start=0, stop=COUNT, values=None, keys=None):
    columns = {
        "value": pa.array(VALUES, pa.binary()).cast(values or pa.binary()),
        "key": pa.array(KEYS, pa.binary()).cast(keys or pa.binary()),
        "timestamp": pa.array(TIMES, pa.int64()),
    }
    return pa.table(columns).slice(start, stop - start)


@pytest.fixture(name="log")
def _log(tmp_path, request):
    config = getattr(request, "param", {})
    with open_log(tmp_path / "log-0", "x", config=config, clock=ManualClock(NOW)) as log:
        yield log


def appended(log, data, **arguments):
    log.extend_arrow(data, value="value", key="key", timestamp="timestamp", **arguments)
    return [(record.timestamp, record.key, record.value) for record in log]


class TestRows:
    @pytest.mark.parametrize("compression", [None, "gzip"])
    @pytest.mark.parametrize(
        ("start", "stop"), [(0, COUNT), (8, 30), (3, COUNT), (15, 17), (4, 5), (5, 9)]
    )
    def test_slices(self, log, start, stop, compression):
        """A slice begins anywhere in its bitmaps."""
        rows = list(zip(TIMES, KEYS, VALUES, strict=True))[start:stop]
        assert rows == appended(log, table(start, stop), compression=compression)

    @pytest.mark.parametrize("kind", [pa.large_binary(), pa.string(), pa.large_string()])
    def test_layouts(self, log, kind):
        """Wide offsets, and text."""
        rows = list(zip(TIMES, KEYS, VALUES, strict=True))[3:]
        assert rows == appended(log, table(3, values=kind, keys=kind))

    def test_several_record_batches(self, log):
        """They follow one another, sliced or not."""
        data = pa.concat_tables([table(3, 20), table(0, 0), table(20, 21), table(2, 9)])
        rows = list(zip(TIMES, KEYS, VALUES, strict=True))
        assert rows[3:21] + rows[2:9] == appended(log, data)


class TestRefused:
    @pytest.mark.parametrize("compression", [None, "gzip"])
    @pytest.mark.parametrize("wrong", [NOW // 1000, NOW * 1000, NOW * 1_000_000, -5])
    @pytest.mark.parametrize("parts", [1, 2])
    def test_units_of_times(self, log, wrong, parts, compression):
        """A time that is no milliseconds is found before anything is written."""
        bad = table().set_column(2, "timestamp", pa.array([*TIMES[1:], wrong], pa.int64()))
        data = bad if parts == 1 else pa.concat_tables([table(), bad])
        with pytest.raises(ValueError, match="timestamp"):
            appended(log, data, compression=compression)
        assert 0 == log.log_end_offset

    @pytest.mark.parametrize("log", [{"cleanup.policy": "compact"}], indirect=True)
    @pytest.mark.parametrize("compression", [None, "gzip"])
    @pytest.mark.parametrize(("start", "first"), [(0, 4), (1, 3), (4, 0), (5, 4)])
    def test_missing_key(self, log, start, first, compression):
        """The error says which record has none."""
        with pytest.raises(InvalidRecordError) as caught:
            appended(log, table(start), compression=compression)
        assert first == caught.value.record_errors[0][0]
        assert 0 == log.log_end_offset
