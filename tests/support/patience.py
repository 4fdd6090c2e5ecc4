"""
Waiting for what comes at once, as a rule, on machines that now and then stand still for seconds.

A bound on time tells what is wrong from what is right, never what is slow from what is fast.
"""

from __future__ import annotations

import time

PATIENCE_SECONDS = 60.0  # Then it is not slow, but wrong.


def until(condition):
    """Return as soon as the condition holds; fail if it does not within reason."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it has not come"
        time.sleep(0.005)
