"""``logstore pipeline``, as far as it goes without Spark."""

from __future__ import annotations

import argparse
import logging
import zipfile

import pytest

from logstore.cli import main
from logstore.cli.pipeline import _cause, _driver_of, _run


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["ingest", "data", "rows", ".", "--value", "avro"], "--avro-schema go together"),
        (["ingest", "data", "rows", ".", "--option", "header"], "write NAME=VALUE"),
        (["ingest", "data", "rows", "nowhere"], "there is no directory nowhere"),
        (["export", ".", "rows", "lake"], "say --schema"),
        (["export", ".", "rows", "lake", "--schema", "x long", "--mode", "quarantine"], "together"),
        (
            [
                "export",
                ".",
                "rows",
                "jdbc:x:",
                "--table",
                "t",
                "--value",
                "raw",
                "--driver-jar",
                "x",
            ],
            "there is no file x",
        ),
    ],
)
def test_what_is_refused_at_once(more, text, tmp_path, monkeypatch, capsys):
    """Spark takes its time to start: what needs none is said before."""
    monkeypatch.chdir(tmp_path)
    assert 2 == main(["pipeline", *more, "--checkpoint", "state"])
    assert text in capsys.readouterr().err
    assert [] == list(tmp_path.iterdir())


def test_interrupted(capsys):
    """One line says what is next; py4j, which logs its own as the root, is not heard."""

    def pipeline(_arguments):
        logging.getLogger().handle(logging.makeLogRecord({"pathname": "/x/py4j/y.py", "msg": "z"}))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _run(argparse.Namespace(verbose=False, pipeline=pipeline))
    assert "logstore: interrupted; the next run goes on from here\n" == capsys.readouterr().err


def test_driver_of_a_jar(tmp_path):
    """Its first service; one that names none needs an option."""
    jar = tmp_path / "driver.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr("META-INF/services/java.sql.Driver", "# It.\norg.x.Driver  # The one.\n")
    assert "org.x.Driver" == _driver_of(jar)
    jar.write_bytes(b"no jar")
    with pytest.raises(ValueError, match="--option driver=CLASS"):
        _driver_of(jar)


def test_partitions(capsys):
    """At least one."""
    with pytest.raises(SystemExit) as caught:
        main(["pipeline", "ingest", "data", "rows", ".", "--checkpoint", "x", "--partitions", "0"])
    assert 2 == caught.value.code
    assert "give 1 or more" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("[UNABLE_TO_INFER_SCHEMA] Say it. SQLSTATE: 42KD9", "[UNABLE_TO_INFER_SCHEMA] Say it."),
        (
            (
                "[STREAM_FAILED] Query [id = 1] terminated with exception: [CAST] 'x' is no time."
                " SQLSTATE: 22018\n== DataFrame ==\n"
            ),
            "[CAST] 'x' is no time.",
        ),
        (
            (
                "An error occurred while calling o57.save.\n: java.sql.SQLException: No driver\n"
                "\tat java.sql.DriverManager"
            ),
            "java.sql.SQLException: No driver",
        ),
        (
            (
                "[FAILED_READ_FILE] Could not read footer.\n\nJVM stacktrace:\n\tat a.b(C.java:1)\n"
                "Caused by: java.lang.RuntimeException: a.parquet is no Parquet file\n\t... 7 more"
            ),
            "java.lang.RuntimeException: a.parquet is no Parquet file",
        ),
        (
            (
                "[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted:\n"
                "Traceback (most recent call last):\n  File x\n"
                "logstore.spark.errors.SparkSourceError: LOGSTORE_DATA_LOSS: orders-0: gone\n\tat x"
            ),
            "LOGSTORE_DATA_LOSS: orders-0: gone",
        ),
    ],
)
def test_cause(text, cause):
    """Of what Spark says, the line that says why."""
    assert cause == _cause(text)
