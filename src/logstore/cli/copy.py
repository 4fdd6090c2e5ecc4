"""``logstore copy``: a partition or a whole store, at the same offsets elsewhere."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import logstore
from logstore.cli import record_arguments
from logstore.cli.copied_logs import add_range, is_internal, is_partition, print_left_out
from logstore.cli.counted import counted
from logstore.cli.json_lines import print_json
from logstore.cli.progress import progress
from logstore.log_copy import copy_log
from logstore.log_directory import META_PROPERTIES
from logstore.readable_log import start_offset, stop_offset
from logstore.topic_names import INTERNAL_TOPICS

EXAMPLE = """\
examples:
  logstore copy data/orders-0 backup/orders-0            # again: goes on where the copy ends
  logstore copy data/orders-0 recent/orders-0 --from 2h --reencode zstd
  logstore copy /mnt/kafka-logs data                     # every topic, with its settings
  logstore copy /mnt/kafka-logs data --topic orders --topic users

Offsets, timestamps, keys, headers, producers and transactions are kept: batches are copied as they
are, but for those that the range cuts, and with --reencode. What belongs to an open transaction is
left for the next time, unless --isolation read_uncommitted is given. SRC may be in use, by a broker
too; nothing is changed there. `logstore diff SRC DST` compares.
"""

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this subcommand."""
    parser = commands.add_parser(
        "copy",
        help="copy a partition, or the topics of a store, with their offsets",
        epilog=EXAMPLE,
    )
    parser.add_argument("source", type=Path, metavar="SRC", help="a partition, or a store")
    parser.add_argument(
        "target", type=Path, metavar="DST", help="where to: made if it is not there"
    )
    add_range(parser)
    parser.add_argument(
        "--reencode", choices=CODECS, metavar="CODEC",
        help="compress data batches with none, gzip, snappy, lz4 or zstd (default: as they are)",
    )  # fmt: skip
    parser.add_argument(
        "--lock-timeout", type=float, default=0.0, metavar="SECONDS",
        help="how long to wait for another writer of DST to finish (default: not at all)",
    )  # fmt: skip
    parser.set_defaults(run=_run)


class _Work(NamedTuple):
    """One partition to copy."""

    name: str
    source: logstore.Log
    target: logstore.Log


def _run(arguments: argparse.Namespace) -> int:
    source: Path = arguments.source
    target: Path = arguments.target
    is_one = is_partition(source)
    if target.resolve() == source.resolve():
        raise ValueError(f"{target} is what is to be copied; give another place")
    if is_one and (target / META_PROPERTIES).exists():
        raise ValueError(
            f"{target} is a log directory; name the partition in it, such as"
            f" {target / source.resolve().name}"
        )
    with _partition(arguments) if is_one else _store(arguments) as works:
        left_out = sum(not _copy(work, arguments) for work in works)
        print_left_out(left_out)
    return 0


@contextlib.contextmanager
def _partition(arguments: argparse.Namespace) -> Iterator[list[_Work]]:
    with (
        logstore.open(arguments.source, mode="r") as source,
        logstore.open(arguments.target, lock_timeout=arguments.lock_timeout) as target,
    ):
        yield [_Work(str(arguments.target), source, target)]


@contextlib.contextmanager
def _store(arguments: argparse.Namespace) -> Iterator[list[_Work]]:
    with (
        logstore.open_store(arguments.source, mode="r", lazy=True) as source,
        logstore.open_store(
            arguments.target, lazy=True, lock_timeout=arguments.lock_timeout
        ) as target,
    ):
        topics = [source[name] for name in arguments.topic or source]
        works = []
        for topic in topics:
            if topic.name not in target:
                entry = source.configs.get(topic.name)
                config = {} if entry is None else dict(entry.config)
                target.create_topic(topic.name, partitions=topic.partition_count, config=config)
            count = target[topic.name].partition_count
            # The number decides where a group or a transactional id is.
            must_match = topic.name in INTERNAL_TOPICS
            if count < topic.partition_count or (must_match and count != topic.partition_count):
                raise ValueError(
                    f"{topic.name} has {counted(topic.partition_count, 'partition')} in"
                    f" {arguments.source} and {count} in {arguments.target}; they must be as many"
                )
            works += [
                _Work(f"{topic.name}-{number}", topic[number], target[topic.name, number])
                for number in topic.partitions
            ]
        yield works


def _copy(work: _Work, arguments: argparse.Namespace) -> bool:
    """Copy a partition and print what was done; False: it is an empty one of an internal topic."""
    stop = record_arguments.stop_of(work.source, arguments)
    first = start_offset(work.source, arguments.start, arguments.isolation)
    end = stop_offset(work.source, stop, arguments.isolation)
    first = max(first, work.target.log_end_offset)
    with progress(f"copy {work.name}", max(0, end - first)) as bar:
        copied = copy_log(
            work.source,
            work.target,
            arguments.start,
            stop,
            isolation=arguments.isolation,
            compression=arguments.reencode,
            advance=bar.advance,
        )
        work.target.flush()
    offsets = copied.offsets
    left = work.source.log_end_offset - end if stop is None else 0
    if arguments.json:
        fields = {
            "partition": work.name,
            "first_offset": offsets.start,
            "end_offset": offsets.stop,
            "size_bytes": copied.size_bytes,
            "left_offsets": left,
        }
        print_json(fields)
        return True
    if not offsets and not work.source.log_end_offset and is_internal(work.name):
        return False
    if not offsets:
        print(f"{work.name}: nothing new, it ends at {offsets.stop}")
    else:
        print(
            f"{work.name}: offsets {offsets.start} to {offsets.stop - 1},"
            f" {counted(copied.size_bytes, 'byte')}"
        )
    if left:
        print(
            f"logstore: {work.name}: {counted(left, 'offset')} from an open transaction on are"
            " left for the next time",
            file=sys.stderr,
        )
    return True
