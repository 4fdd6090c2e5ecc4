"""``logstore compact``: keep the last record of each key of a partition."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from logstore.cleaner_config import CleanerConfig
from logstore.cli.counted import counted
from logstore.cli.json_lines import print_json
from logstore.cli.progress import progress
from logstore.opening import open as open_log

EXAMPLE = """\
examples:
  logstore compact data/aircraft-0
  logstore compact --memory 1073741824 --json data/aircraft-0 | jq .bytes_written

Of each key the record with the highest offset stays, at its offset; earlier ones go, tombstones
later. The open segment is closed first, so that all of the log is looked at; records of undecided
transactions stay. Memory bounds how many keys a round takes, at 24 bytes each: more keys take more
rounds. Records without a key stop it before anything is changed, unless --drop-null-keys is given.
The writer's lock is taken: stop the broker or program first.
Exit status: 0 done, 1 damage (run logstore verify), 2 could not be read or written, 3 locked.
"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this subcommand."""
    parser = commands.add_parser(
        "compact",
        help="keep the last record of each key of a partition",
        epilog=EXAMPLE,
    )
    parser.add_argument("path", type=Path, help="a partition")
    parser.add_argument(
        "--memory",
        type=int,
        default=CleanerConfig().log_cleaner_dedupe_buffer_size,
        metavar="BYTES",
        help="memory for keys, 24 bytes each (default: %(default)s)",
    )
    parser.add_argument(
        "--max-rate",
        type=float,
        default=float("inf"),
        metavar="BYTES",
        help="read and write so many bytes per second at most",
    )
    parser.add_argument(
        "--drop-null-keys", action="store_true", help="remove records that have no key"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object with all figures")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    path: Path = arguments.path
    if not any(path.glob("*.log")):
        raise FileNotFoundError(f"{path} holds no partition: no .log file in it")
    settings = CleanerConfig(
        log_cleaner_dedupe_buffer_size=arguments.memory,
        log_cleaner_io_max_bytes_per_second=arguments.max_rate,
    )
    with open_log(path, config={"cleanup.policy": "compact"}) as log:
        before = log.size_bytes
        if log.active_segment.size_bytes > 0:
            log.roll()
        done = 0
        with progress("compacting", before) as bar:

            def on_progress(read: int, _total: int) -> None:
                nonlocal done
                bar.advance(max(0, read - done))
                done = max(done, read) if read >= done else read

            stats = log.compact(
                config=settings,
                on_progress=on_progress,
                refuse_null_keys=not arguments.drop_null_keys,
            )
        after = log.size_bytes
    if arguments.json:
        print_json(
            {"path": str(path), "bytes_before": before, "bytes_after": after} | asdict(stats)
        )
        return 0
    dropped = stats.messages_read - stats.messages_written
    print(
        f"{path}: {counted(stats.messages_read, 'record')} read, {dropped:,} dropped;"
        f" {before:,} bytes before, {after:,} after; clean up to offset"
        f" {stats.next_first_dirty_offset}"
    )
    return 0
