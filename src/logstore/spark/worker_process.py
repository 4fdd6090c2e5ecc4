"""
Processes that Spark keeps for many tasks: what is loaded in them is loaded for good.

After every task Spark's daemon runs a full collection of garbage in the process that did it, and
the next task waits for that: 20 to 40 ms to look through the objects of pyspark, pyarrow, numpy and
logstore, of which none will ever be garbage. What small tasks do takes a tenth of it.
"""

from __future__ import annotations

import gc
import os
import sys

# How many modules there were when the collector last let go of what was there.
_settled_modules = 0


def settle() -> None:
    """
    Take what is loaded by now out of the collections of garbage, if Spark keeps this process.

    To be called when a piece of work is done. It costs a collection the first time, and nothing
    later unless modules have come since. Objects are still freed when nobody refers to them; only
    a cycle that is alive now and dropped later would stay.
    """
    global _settled_modules  # noqa: PLW0603 - The collector is the process's too.
    if "SPARK_REUSE_WORKER" not in os.environ or len(sys.modules) == _settled_modules:
        return
    _settled_modules = len(sys.modules)
    gc.collect()
    gc.freeze()
