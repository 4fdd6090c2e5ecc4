"""What the comparisons with Kafka share: module path and the golden set."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
JARS = "libs"

# The files here are a program as well (replay.py): they import each other by their plain names.
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))


@pytest.fixture(scope="session", name="golden")
def _golden(pytestconfig):
    """The directory of the golden set, unpacked once; LOGSTORE_GOLDEN names one that is there."""
    import golden_set

    return golden_set.directory(Path(pytestconfig.cache.mkdir("golden")))


@pytest.fixture(scope="module", name="kafka")
def _kafka():
    """Kafka's classes in a Java process; skipped with the reason where they cannot be had."""
    import differential

    cache = differential.cache_directory()
    if shutil.which("java") is None or shutil.which("javac") is None:
        pytest.skip("needs a JDK 17 or later on PATH")
    if not list((cache / JARS).glob("kafka-storage-*.jar")) and shutil.which("mvn") is None:
        pytest.skip(f"needs Kafka's jars in {cache / JARS}, or Maven to fetch them")
    oracle = differential.KafkaOracle(cache)
    try:
        oracle.__enter__()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"Kafka's jars cannot be had: {error}")
    yield oracle
    oracle.__exit__(None, None, None)
