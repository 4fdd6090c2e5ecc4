"""
Random operations on Kafka's own log classes and on logstore: no answer, error or file may differ.

Runs where there are a JDK and Kafka's jars, for LOGSTORE_DIFFERENTIAL_SECONDS (20) seconds from the
seed LOGSTORE_DIFFERENTIAL_SEED (always the same). ``differential.py`` is the same as a program.
"""

from __future__ import annotations

import os
import time

import pytest

SECONDS = float(os.environ.get("LOGSTORE_DIFFERENTIAL_SECONDS") or 20)
FIRST_SEED = 1


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
