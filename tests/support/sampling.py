"""
How much of what could be tried a run tries: ``LOGSTORE_HYPOTHESIS``, as tests/conftest.py has it.

``nightly`` tries everything, ``commit`` a sample, and ``small`` a smaller one: for runs that try
the same code once more, under sanitizers or on another Python.
"""

from __future__ import annotations

import os

PROFILE = os.environ.get("LOGSTORE_HYPOTHESIS", "commit")
IS_NIGHTLY = PROFILE == "nightly"
# CI draws the same each time: whether a change lands is no game of chance. Others draw anew.
IS_CI = os.environ.get("CI") == "true"


def stride(*, commit, small):
    """Return how far the next try is from the last one: 1 tries everything."""
    return {"commit": commit, "small": small}.get(PROFILE, 1)


def examples(commit):
    """Return how many examples hypothesis draws for a test that draws ``commit`` by default."""
    return {"small": max(commit // 4, 5), "nightly": commit * 100}.get(PROFILE, commit)
