"""
Replay recorded traces of Kafka's log against logstore and print every difference.

    python tests/compat/replay.py tests/compat/traces/*.jsonl.gz
    python tests/compat/replay.py --verbose TRACE

Exit status: 0 no difference, 1 a difference or a step that was not answered, 2 usage.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import trace
from collections.abc import Callable
from pathlib import Path

from oracle_engine import LogstoreEngine

DIFFERENCES_SHOWN = 10


def differences_of(
    recorded: trace.Trace, new_engine: Callable[[], LogstoreEngine] = LogstoreEngine
) -> list[trace.Difference]:
    """All differences between recorded answers and those of a new engine, in a new directory."""
    with tempfile.TemporaryDirectory(prefix="logstore-replay-") as directory:
        engine = new_engine()
        try:
            return list(trace.replay(recorded, engine, Path(directory)))
        finally:
            engine.close()


def main() -> int:
    """Replay the traces named on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[1])
    parser.add_argument("traces", type=Path, nargs="+", metavar="TRACE")
    parser.add_argument("--verbose", action="store_true", help="show every difference")
    options = parser.parse_args()

    differing = 0
    for path in options.traces:
        recorded = trace.read(path)
        differences = differences_of(recorded)
        differing += bool(differences)
        print(f"{path.name}: {len(recorded.steps)} steps, {len(differences)} differences")
        for difference in differences if options.verbose else differences[:DIFFERENCES_SHOWN]:
            print(f"    {difference}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
