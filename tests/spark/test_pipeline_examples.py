"""The programs in examples/pipelines print what docs/spark-pipelines.md shows, and run again."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest

import logstore

pytestmark = pytest.mark.repository
pytest.importorskip("orjson", reason="needs the extra [formats]")
ROOT = Path(__file__).resolve().parents[2]
DIRECTORY = ROOT / "examples/pipelines"
PAGE = (ROOT / "docs/spark-pipelines.md").read_text("utf-8")
SHOWN = {
    name: (arguments, output)
    for name, arguments, output in re.findall(
        r"^```bash\npython examples/pipelines/(\w+)\.py ([^\n]*)\n```\n\n```text\n(.*?)^```",
        PAGE,
        re.MULTILINE | re.DOTALL,
    )
}


@pytest.fixture(name="program")
def _program(monkeypatch, request):
    """Return the module of an example; modules beside it can be imported meanwhile."""
    monkeypatch.syspath_prepend(DIRECTORY)
    names = [path.stem for path in DIRECTORY.glob("*.py")]
    yield importlib.import_module(request.param)
    for name in names:
        sys.modules.pop(name, None)


def program(name):
    return pytest.mark.parametrize("program", [name], indirect=True)


def run(program, capsys, directory):
    """Run as the page does; return what is printed."""
    arguments = shlex.split(SHOWN[program.__name__][0].replace("shop", str(directory), 1))
    program.main(arguments)
    return capsys.readouterr().out


def records(store):
    """Return the offsets and records of all topics but the store's own."""
    with logstore.open_store(store) as opened:
        assert [] == list(opened.check())
        return {
            (name, number): [(record.offset, record.key, record.value) for record in log]
            for name in opened
            if not name.startswith("__")
            for number, log in enumerate(opened[name].logs())
        }


def test_every_program_is_shown():
    programs = {path.stem for path in DIRECTORY.glob("*.py")} - {"shop"}
    assert programs == SHOWN.keys()


@pytest.mark.parametrize("program", SHOWN, indirect=True)
def test_help(spark, program, capsys):
    """It says what the program does, and how to start it."""
    with pytest.raises(SystemExit) as caught:
        program.main(["--help"])
    assert 0 == caught.value.code
    assert f"python examples/pipelines/{program.__name__}.py" in capsys.readouterr().out


@program("ingest")
def test_ingest(spark, program, tmp_path, capsys):
    """A file that comes later is taken by the next run, and nothing else."""
    assert SHOWN["ingest"][1] == run(program, capsys, tmp_path)
    (tmp_path / "incoming/later.csv").write_text(
        "id,customer,cents,time\n200,c01,5,2026-01-02T00:00:00Z\n"
    )
    again = run(program, capsys, tmp_path)
    assert "orders: 211 records\ncustomers: 15 records\nrows of files in this run: 1\n" == again


@program("streams")
def test_streams(spark, program, tmp_path, capsys):
    """What Spark repeats, as it did not note that it was done, is there once."""
    assert SHOWN["streams"][1] == run(program, capsys, tmp_path)
    before = records(tmp_path / "store")
    for name in ("0", ".0.crc"):
        (tmp_path / "state/unique-orders/commits" / name).unlink()
    program.deduplicate(spark, tmp_path)
    assert before == records(tmp_path / "store")


@program("export")
def test_export(spark, program, tmp_path, capsys):
    assert SHOWN["export"][1] == run(program, capsys, tmp_path)


@program("replay")
def test_replay(spark, program, tmp_path, capsys):
    """The records of the range, with their own times; the second run changes nothing."""
    assert SHOWN["replay"][1] == run(program, capsys, tmp_path)
    before = records(tmp_path / "store")
    assert SHOWN["replay"][1] == run(program, capsys, tmp_path)
    assert before == records(tmp_path / "store")
    shop = sys.modules["shop"]
    nine, twelve = (shop.DAY_MS + hour * 60 * shop.MINUTE_MS for hour in (9, 12))
    expected = [row.timestamp for row in shop.orders() if nine <= row.timestamp < twelve]
    replayed = [row[2] for row in shop.records_of(tmp_path / "store", "orders-v2")]
    assert sorted(expected) == sorted(replayed)


@program("compacted_table")
def test_compacted_table(spark, program, tmp_path, capsys):
    """Also after compaction, with the micro-batches done, the same."""
    printed = run(program, capsys, tmp_path)
    assert SHOWN["compacted_table"][1] == printed
    again = run(program, capsys, tmp_path)
    assert printed.splitlines()[1:] == again.splitlines()[1:]
