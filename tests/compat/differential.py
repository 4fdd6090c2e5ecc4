"""
Draw random operations, apply them to Kafka's own classes and to logstore, and compare.

    python tests/compat/differential.py                      # for half a minute, from a random seed
    python tests/compat/differential.py --seeds 7000-7999    # these, however long it takes
    python tests/compat/differential.py --kinds recovery everything --seconds 600

Every second mixed seed is of the kind ``everything``: retention, compaction, transactions, epochs,
crashes and changes of the cleanup policy in one script.

Needs a JDK 17 or later, and Kafka's jars: fetched once into ``.cache/kafka-oracle``, or found in
the directory that ``KAFKA_ORACLE_CACHE`` names.

Exit status: 0 no difference, 1 a difference, 2 usage.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE / "oracle")]

from trace import Json, Trace  # noqa: E402

import record_traces  # noqa: E402 - found by the lines above
import replay  # noqa: E402
from oracle import KafkaOracle  # noqa: E402
from oracle_engine import LogstoreEngine  # noqa: E402
from record_traces import OPERATIONS, VISIBLE_PROFILE, Script  # noqa: E402

EVERYTHING = "everything"
KINDS = [*record_traces.KINDS, EVERYTHING]
OPERATIONS[EVERYTHING] = {
    "append": 8, "append_idempotent": 3, "append_transactional": 5, "end_transaction": 4,
    "bad_append": 1, "follow": 2, "epoch": 1, "epoch_query": 1, "watermark": 5, "read": 4,
    "timestamp": 2, "lookup": 1, "roll": 2, "flush": 1, "clean": 3, "delete_old": 3,
    "log_start": 2, "update_config": 1, "alter_policy": 1, "producers": 1, "tick": 4,
    "advance_far": 1, "truncate": 1, "truncate_fully": 1, "describe": 2, "reopen": 2,
    "crash_and_damage": 1,
}  # fmt: skip

SEEDS_END = 10**9

# What a read that moves Kafka's watermark out of an offset gap returns nothing of, or something.
OF_A_MOVED_WATERMARK = (".result.first_entry_incomplete", ".result.aborted_transactions")

# Beside the recorded scripts' own profile: small records in large numbers, tiny segments, large
# gaps; each replaces some of what a script draws from.
PROFILES = [
    VISIBLE_PROFILE,
    VISIBLE_PROFILE | {"segment.bytes": [300, 400], "records_per_batch": [1, 1, 2]},
    VISIBLE_PROFILE
    | {"offset_gap": [0, 1, 1000, 2**20], "first_offset": [0, 5, 2**33], "epoch_step": [0, 1, 7]},
    VISIBLE_PROFILE | {"value_bytes": [0, 300, 3000], "segment.bytes": [10_000, 50_000]},
    VISIBLE_PROFILE | {"clock_step_ms": [0, 1, 60_000], "producer_id_expiration_ms": [300]},
]


def cache_directory() -> Path:
    """Where jars and classes are kept."""
    return Path(os.environ.get("KAFKA_ORACLE_CACHE") or ROOT / ".cache" / "kafka-oracle")


def kind_of(seed: int) -> str:
    """Return the kind of a seed's script."""
    count = len(record_traces.KINDS)
    kind = record_traces.KINDS[seed % count]
    return EVERYTHING if kind == "mixed" and seed // count % 2 else kind


def seeds_of(kinds: Iterable[str], first: int) -> Iterator[int]:
    """Yield seeds from ``first`` on whose scripts are of these kinds, without end."""
    kinds = set(kinds)
    return (seed for seed in itertools.count(first) if kind_of(seed) in kinds)


class EverythingScript(Script):
    """One log with all that may happen to it."""

    def draw_config(self) -> dict[str, Json]:
        """Return settings of a log that may be compacted, and may lose its oldest segments."""
        self.kind = EVERYTHING
        config = super().draw_config()
        for name in ("retention.bytes", "retention.ms"):
            config[name] = self.draw(name)
        for name in ("delete.retention.ms", "min.compaction.lag.ms"):
            config[name] = self.draw(name)
        config["cleanup.policy"] = self.rng.choice(["delete", "compact", "compact,delete"])
        return config

    def codec(self) -> str:
        """Return none: the cleaner would have to compress again, and sizes would differ."""
        return "none"

    def records(self, first_offset: int | None = None, gaps: bool = False) -> list[Json]:
        """Return records that a compacted log takes, most of the time."""
        self.kind = "compact" if self.rng.random() < 0.9 else EVERYTHING
        try:
            return super().records(first_offset, gaps)
        finally:
            self.kind = EVERYTHING

    def op_alter_policy(self) -> None:
        """Have the log compacted from now on, or no longer."""
        self.config["cleanup.policy"] = self.rng.choice(["delete", "compact", "compact,delete"])
        self.do("update_config", config=self.config)

    def op_clean(self) -> None:
        """Clean a log that may be cleaned, as the cleaner only takes those."""
        if "compact" in str(self.config["cleanup.policy"]):
            super().op_clean()


def recorded_by(kafka: KafkaOracle, seed: int) -> Trace:
    """Draw the script of a seed, and run it."""
    profile = PROFILES[seed // len(record_traces.KINDS) % len(PROFILES)]
    if kind_of(seed) != EVERYTHING:
        return record_traces.record_script(kafka, seed, profile)
    with tempfile.TemporaryDirectory(prefix="oracle-trace-") as directory:
        script = EverythingScript(kafka, seed, profile, Path(directory))
        try:
            return script.run()
        finally:
            kafka.request({"op": "crash"})  # Drops the log if the script failed half-way.


def differing(kafka: KafkaOracle, seed: int) -> list[str]:
    """Return the differences of one script."""
    recorded = recorded_by(kafka, seed)
    engine = ForgetfulEngine if kind_of(seed) in ("compact", EVERYTHING) else LogstoreEngine
    moved_by_read = set(recorded.header.get("watermark_moved_by_read", ()))
    return [
        str(difference)
        for difference in replay.differences_of(recorded, engine)
        if not (difference.step in moved_by_read and difference.where in OF_A_MOVED_WATERMARK)
    ]


class ForgetfulEngine(LogstoreEngine):
    """
    Does not find again what a transaction index has lost, as Kafka does not.

    There it is lost when a segment is cleaned below the log start, which a crash sets back; what
    is found again is decision 0022.
    """

    def open(self, request, *arguments, **options):
        """Open a log, and believe its transaction indexes."""
        result = super().open(request, *arguments, **options)
        for segment in self.log(request).segments:
            segment._aborted = None
        return result


def main() -> int:
    """Compare until time or seeds are used up."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[1])
    parser.add_argument("--seeds", help="FIRST-LAST; without it from a random one on")
    parser.add_argument("--seconds", type=float, help="stop after these; 30 without --seeds")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    options = parser.parse_args()

    first, last = random.randrange(SEEDS_END), None
    if options.seeds:
        first, last = (int(part) for part in options.seeds.split("-"))
    seconds = options.seconds or (None if options.seeds else 30.0)
    deadline = None if seconds is None else time.monotonic() + seconds
    count = differing_count = 0
    with KafkaOracle(cache_directory()) as kafka:
        for seed in seeds_of(options.kinds, first):
            if (last is not None and seed > last) or (
                deadline is not None and time.monotonic() > deadline
            ):
                break
            differences = differing(kafka, seed)
            count += 1
            if differences:
                differing_count += 1
                print(f"seed {seed} ({kind_of(seed)}): {len(differences)} differences")
                for difference in differences[:5]:
                    print(f"    {difference}", flush=True)
    print(f"{count} scripts from seed {first}, {differing_count} with differences")
    return 1 if differing_count else 0


if __name__ == "__main__":
    sys.exit(main())
