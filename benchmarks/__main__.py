"""
Measure every contest, print the table of targets, write the figures as JSON.

    python -m benchmarks [--smoke] [--spark] [--only TEXT] [--rounds N] [--directory DIR]
                         [--json PATH]

``--smoke`` runs small sizes to see that everything works: its figures mean nothing and nothing is
judged. ``--spark`` runs the contests in Apache Spark instead of the others. At real size the exit
status is 1 if a median is below its floor. The directory has to be on a real disk: a memory file
system takes writes more slowly than the page cache does.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import tempfile
import time
from pathlib import Path

from benchmarks import spark_connector, spark_source
from benchmarks.contests import CONTESTS, LEFT_OUT
from benchmarks.harness import Line, judge, run_contest, table
from benchmarks.sizes import REAL, SMOKE

ROOT = Path(__file__).resolve().parent.parent


def machine() -> dict[str, object]:
    """Return what the figures depend on."""
    names = [line for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "processor": names[0].partition(":")[2].strip() if names else platform.processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def as_json(lines: list[Line]) -> str:
    """Return the figures with the machine that they were measured on."""
    figures = [{**dataclasses.asdict(line), "verdict": line.verdict} for line in lines]
    return json.dumps({"machine": machine(), "lines": figures}, indent=1) + "\n"


def main() -> int:
    """Run the contests that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure speed.")
    parser.add_argument("--smoke", action="store_true", help="small sizes, nothing is judged")
    parser.add_argument("--only", default="", help="contests whose name contains this")
    parser.add_argument(
        "--rounds", type=int, help="rounds that count (default: each contest's own)"
    )
    parser.add_argument(
        "--directory", type=Path, help="where to write (default: .cache/benchmarks)"
    )
    parser.add_argument("--json", type=Path, help="figures (default: benchmarks.json in there)")
    parser.add_argument("--spark", action="store_true", help="the contests in Apache Spark")
    arguments = parser.parse_args()

    size = SMOKE if arguments.smoke else REAL
    directory = arguments.directory or ROOT / ".cache" / "benchmarks"
    directory.mkdir(parents=True, exist_ok=True)
    lines: list[Line] = []
    contests, left_out = CONTESTS, LEFT_OUT
    if arguments.spark:
        contests = spark_source.CONTESTS | spark_connector.CONTESTS
        left_out = spark_connector.LEFT_OUT
    for name, make in contests.items():
        if arguments.only not in name:
            continue
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory(dir=directory) as work:
            contest = make(Path(work), size)
            rounds = arguments.rounds or (1 if arguments.smoke else None)
            lines += judge(run_contest(contest, rounds=rounds))
        os.sync()  # Else the next contest pays for this one's dirty pages.
        print(f"{name}: {time.perf_counter() - begin:.1f} s", flush=True)

    for name, why in left_out.items():
        print(f"{name}: left out: {why}")
    print(f"\n{table(lines)}\n")
    path = arguments.json or directory / ("smoke.json" if arguments.smoke else "benchmarks.json")
    path.write_text(as_json(lines), encoding="utf-8")
    print(f"figures: {path}")
    below = [line for line in lines if line.verdict == "below floor"]
    return 1 if below and not arguments.smoke else 0


if __name__ == "__main__":
    raise SystemExit(main())
