"""What the readers log, in processes that only the environment reaches."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from logstore.spark.errors import SparkSourceError
from logstore.spark.log_lines import VARIABLE, show_log_lines

PROGRAM = """
import logging
from logstore.spark.log_lines import show_log_lines
for _ in range(2):
    show_log_lines()
logging.getLogger("logstore.spark").info("micro-batch: orders-0 [0, 5)")
logging.getLogger("another").info("no")
"""


@pytest.mark.parametrize(("level", "count"), [("", 0), ("warning", 0), ("info", 1)])
def test_level(monkeypatch, level, count):
    """Each line once; other loggers are not ours to set up."""
    monkeypatch.setenv(VARIABLE, level)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=30, check=True
    )
    lines = done.stderr.splitlines()
    assert count == len(lines)
    assert all(each.endswith("INFO logstore.spark: micro-batch: orders-0 [0, 5)") for each in lines)


def test_no_level(monkeypatch):
    monkeypatch.setenv(VARIABLE, "loud")
    before = logging.getLogger("logstore.spark").level
    with pytest.raises(SparkSourceError, match="LOGSTORE_LOG_LEVEL is 'LOUD'; give DEBUG"):
        show_log_lines()
    assert before == logging.getLogger("logstore.spark").level
