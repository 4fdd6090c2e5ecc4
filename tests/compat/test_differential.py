"""
Random operations on Kafka's own log classes and on logstore: no answer, error or file may differ.

Runs where there are a JDK and Kafka's jars, for LOGSTORE_DIFFERENTIAL_SECONDS (20) seconds from the
seed LOGSTORE_DIFFERENTIAL_SEED (always the same). ``differential.py`` is the same as a program.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time

import pytest

SECONDS = float(os.environ.get("LOGSTORE_DIFFERENTIAL_SECONDS") or 20)
FIRST_SEED = 1
JARS = "libs"


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


@pytest.mark.timeout(SECONDS * 2 + 300)
def test_random_scripts_give_kafkas_answers(kafka):
    """Every script that fits the time replays without a difference; the seed is in the message."""
    import differential

    given = os.environ.get("LOGSTORE_DIFFERENTIAL_SEED")
    first = int(given) if given else FIRST_SEED
    deadline = time.monotonic() + SECONDS
    for seed in differential.seeds_of(differential.KINDS, first):
        differences = differential.differing(kafka, seed)
        assert [] == differences, f"seed {seed}: python tests/compat/differential.py --seeds …"
        if time.monotonic() > deadline:
            break
