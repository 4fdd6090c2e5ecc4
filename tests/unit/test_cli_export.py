"""The command that writes files for other tools: what is in them; that they are whole or absent."""

from __future__ import annotations

import csv
import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time

import pytest

import logstore
from logstore.cli import export, main

pa = pytest.importorskip("pyarrow")
ipc = pytest.importorskip("pyarrow.ipc")
parquet = pytest.importorskip("pyarrow.parquet")

NOW_MS = 1_700_000_000_000


@pytest.fixture(name="log_path")
def _log_path(tmp_path):
    """Twenty records, one minute apart, in small segments; nulls, headers and text in them."""
    path = tmp_path / "orders-3"
    with logstore.open(path, config={"segment.bytes": 500}) as log:
        for number in range(20):
            log.append(
                None if number == 4 else b'say "%d", ok' % number,
                key=b"" if number % 2 else None,
                headers=[("h", b"x"), ("n", None)] if number == 3 else (),
                timestamp=NOW_MS + 60_000 * number,
            )
    return path


@pytest.fixture(name="table")
def _table(log_path):
    with logstore.open(log_path, "r") as log:
        return log.scan().to_table()


def exported(log_path, name, *options):
    """Run the command and return the file."""
    path = log_path.parent / name
    assert 0 == main(["export", str(log_path), str(path), *options])
    assert [] == list(path.parent.glob("*" + export.PART_SUFFIX))
    return path


class TestFormats:
    def test_parquet(self, log_path, table):
        """A Parquet file with the schema of a scan."""
        path = exported(log_path, "out.parquet")
        assert table.equals(parquet.read_table(path))
        assert pa.timestamp("ms", tz="UTC") == parquet.read_schema(path).field("timestamp").type

    def test_row_groups(self, log_path, monkeypatch):
        """Groups end where they are large enough."""
        monkeypatch.setattr(export, "GROUP_BYTES", 1)
        path = exported(log_path, "out.pq")
        assert 20 == sum(
            parquet.ParquetFile(path).metadata.row_group(group).num_rows
            for group in range(parquet.ParquetFile(path).num_row_groups)
        )

    @pytest.mark.parametrize("suffix", ["arrow", "feather", "ipc"])
    def test_arrow(self, log_path, table, suffix):
        """An Arrow IPC file."""
        with ipc.open_file(exported(log_path, f"out.{suffix}")) as file:
            assert table.equals(file.read_all())

    @pytest.mark.parametrize("name", ["out.jsonl", "out.ndjson", "out.json"])
    def test_json_lines(self, log_path, name, capfdbinary):
        """What `read --json` writes, byte for byte."""
        path = exported(log_path, name)
        assert 0 == main(["read", str(log_path), "--json"])
        assert capfdbinary.readouterr().out == path.read_bytes()

    def test_json_lines_with_columns(self, log_path):
        """Selected fields, in the order of the selection."""
        path = exported(
            log_path, "out.jsonl", "--columns", "topic,partition,value,offset", "--to", "1"
        )
        expected = {"topic": "orders", "partition": 3, "value": 'say "0", ok', "offset": 0}
        assert expected == json.loads(path.read_text())
        assert list(expected) == list(json.loads(path.read_text()))

    def test_csv(self, log_path):
        """A header, text quoted as needed, headers as JSON; null is nothing, empty is quoted."""
        path = exported(log_path, "out.csv")
        rows = list(csv.DictReader(path.read_text().splitlines()))
        assert ["offset", "timestamp", "key", "value", "headers"] == list(rows[0])
        assert [f'say "{n}", ok' if n != 4 else "" for n in range(20)] == [r["value"] for r in rows]
        assert '[{"name":"h","value":"x"},{"name":"n","value":null}]' == rows[3]["headers"]
        lines = path.read_text().splitlines()
        assert lines[5].endswith(",,,")
        assert ',"",' in lines[6]

    def test_csv_of_bytes(self, log_path, capsys):
        """Bytes that are no text are refused, with the place and the way out; no file is left."""
        with logstore.open(log_path) as log:
            log.append(b"\xff")
        path = log_path.parent / "out.csv"
        assert 2 == main(["export", str(log_path), str(path)])
        assert "a value at offset 20 is not UTF-8" in capsys.readouterr().err
        assert [] == list(path.parent.glob("out*"))

    def test_format_option(self, log_path, table):
        """--format counts more than the suffix."""
        path = exported(log_path, "out.csv", "--format", "parquet")
        assert table.equals(parquet.read_table(path))

    def test_empty_range(self, log_path, table):
        """A file without rows has its schema."""
        path = exported(log_path, "out.parquet", "--from", "5", "--to", "5")
        assert table.slice(0, 0).equals(parquet.read_table(path))


class TestRange:
    @pytest.mark.parametrize(
        ("options", "offsets"),
        [
            (["--from", "5", "--to", "8"], [5, 6, 7]),
            (["--from", "2023-11-14T22:30:20Z"], [17, 18, 19]),
            (["--from", "18", "--to", "latest"], [18, 19]),
            (["--to", "earliest"], []),
        ],
    )
    def test_positions(self, log_path, options, offsets):
        """The positions of `read`."""
        path = exported(log_path, "out.parquet", *options, "--columns", "offset")
        assert offsets == parquet.read_table(path)["offset"].to_pylist()

    def test_columns(self, log_path):
        """Names in the caller's order."""
        path = exported(log_path, "out.parquet", "--columns", "value, offset")
        assert ["value", "offset"] == parquet.read_schema(path).names


class TestFile:
    def test_not_overwritten(self, log_path, capsys):
        """A file that is there stays, unless --force replaces it."""
        path = log_path.parent / "out.parquet"
        path.write_bytes(b"mine")
        assert 2 == main(["export", str(log_path), str(path)])
        assert "--force" in capsys.readouterr().err
        assert b"mine" == path.read_bytes()
        exported(log_path, "out.parquet", "--force")
        assert 20 == parquet.read_table(path).num_rows

    def test_appears_meanwhile(self, log_path, monkeypatch, capsys):
        """A file that somebody else makes meanwhile stays, too."""
        path = log_path.parent / "out.jsonl"
        write = export._write_jsonl

        def slow(*arguments):
            path.write_bytes(b"theirs")
            return write(*arguments)

        monkeypatch.setattr(export, "_write_jsonl", slow)
        assert 2 == main(["export", str(log_path), str(path)])
        assert "meanwhile" in capsys.readouterr().err
        assert b"theirs" == path.read_bytes()

    def test_damage_leaves_no_file(self, log_path, capsys):
        """Damage is exit status 1."""
        segment = max(log_path.glob("*.log"))
        data = bytearray(segment.read_bytes())
        data[70] ^= 1
        segment.write_bytes(data)
        path = log_path.parent / "out.parquet"
        assert 1 == main(["export", str(log_path), str(path)])
        assert "CRC-32C" in capsys.readouterr().err
        assert [] == list(path.parent.glob("out*"))

    def test_leftover_is_overwritten(self, log_path, table):
        """What a killed export has left is no obstacle."""
        (log_path.parent / ("out.parquet" + export.PART_SUFFIX)).write_bytes(b"x" * 100_000)
        assert table.equals(parquet.read_table(exported(log_path, "out.parquet")))

    def test_two_at_once(self, log_path, capsys):
        """A second export into the same file says that there is a first."""
        path = log_path.parent / "out.parquet"
        with open(path.with_name(path.name + export.PART_SUFFIX), "wb") as part:
            fcntl.flock(part, fcntl.LOCK_EX)
            assert 2 == main(["export", str(log_path), str(path)])
        assert "another export" in capsys.readouterr().err

    def test_killed(self, log_path):
        """A kill in the middle leaves no file of that name."""
        code = (
            "import os, sys, time; from logstore.cli import export, main\n"
            "def stuck(made, file):\n"
            "    file.write(b'half'); file.flush(); print('writing', flush=True); time.sleep(60)\n"
            "export._write_jsonl = stuck\n"
            "main(sys.argv[1:])"
        )
        path = log_path.parent / "out.jsonl"
        command = [sys.executable, "-c", code, "export", str(log_path), str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert b"writing\n" == child.stdout.readline()
            child.send_signal(signal.SIGKILL)
        assert not path.exists()
        assert 20 == len(exported(log_path, "out.jsonl").read_text().splitlines())

    def test_full_disk(self, log_path, monkeypatch, capsys):
        """Without space there is no file, and the reason is said."""

        def full(_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(export.os, "fsync", full)
        path = log_path.parent / "out.jsonl"
        assert 2 == main(["export", str(log_path), str(path)])
        assert "No space left" in capsys.readouterr().err
        assert [] == list(path.parent.glob("out*"))


class TestUsage:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["out.unknown"], "say --format"),
            (["out.parquet", "--columns", "offset,nothing"], "there is no column 'nothing'"),
            (["out.jsonl", "--columns", "offset,offset"], "selected twice"),
            (["out.parquet", "--from", "99"], "is not in the log"),
        ],
    )
    def test_wrong(self, log_path, options, message, capsys):
        """Exit status 2, one line, and no file."""
        name, *rest = options
        path = log_path.parent / name
        assert 2 == main(["export", str(log_path), str(path), *rest])
        assert message in capsys.readouterr().err
        assert not path.exists()

    def test_nothing_is_changed(self, log_path):
        """The directory of the log is as it was, also one that cannot be written."""
        before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in log_path.iterdir()}
        log_path.chmod(0o555)
        time.sleep(0.01)
        exported(log_path, "out.parquet")
        log_path.chmod(0o755)
        after = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in log_path.iterdir()}
        assert before == after


def test_missing_directory(log_path, capsys):
    """It says which directory is missing."""
    missing = log_path.parent / "missing"
    assert 2 == main(["export", str(log_path), str(missing / "out.jsonl")])
    assert f"{missing} is no directory" in capsys.readouterr().err
