"""``logstore positions``: where groups go on reading, shown and moved."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable

import logstore
from logstore.checkpoint import TopicPartition
from logstore.cli import stores
from logstore.cli.json_lines import print_json
from logstore.cli.times import Position, format_timestamp, parse_position

EXAMPLE = """\
examples:
  logstore positions list data                          # every group
  logstore positions list data billing --json | jq .lag
  logstore positions set data billing orders:0=42 orders:1=17
  logstore positions reset data billing --to earliest
  logstore positions reset data billing --to 2026-01-31T08:00:00Z --topic orders
  logstore positions reset data billing --to 2h --topic orders:0 --dry-run
  logstore positions reset data billing --to -100      # a hundred offsets back
  logstore positions forget data billing --topic orders

A position is the offset of the next record to read. The lag is how far that is behind what a
read_committed reader may read. `reset` without --topic moves what the group has; with it, every
partition of the topic, or the one that is named.
"""

_PLACE_OFFSET = re.compile(r"(?P<topic>[^:=]+):(?P<partition>\d+)=(?P<offset>\d+)", re.ASCII)
_PLACE = re.compile(r"(?P<topic>[^:=]+)(?::(?P<partition>\d+))?", re.ASCII)
_SHIFT = re.compile(r"[+-]\d+", re.ASCII)


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this subcommand."""
    parser = commands.add_parser(
        "positions",
        help="show and move where groups go on reading",
        epilog=EXAMPLE,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    lists = actions.add_parser("list", help="print positions and lag; changes nothing")
    stores.add_store_arguments(lists, writes=False, prints_each="position")
    lists.add_argument("group", nargs="*", help="groups (default: all)")
    lists.set_defaults(run=_list)

    sets = actions.add_parser("set", help="set positions")
    stores.add_store_arguments(sets, writes=True, prints_each="position")
    sets.add_argument("group", help="the group")
    sets.add_argument(
        "position", nargs="+", type=_place_offset, metavar="TOPIC:PARTITION=OFFSET",
        help="such as orders:0=42",
    )  # fmt: skip
    sets.set_defaults(run=_set)

    resets = actions.add_parser("reset", help="move positions by a rule")
    stores.add_store_arguments(resets, writes=True, prints_each="position")
    resets.add_argument("group", help="the group")
    resets.add_argument(
        "--to", required=True, type=_rule, metavar="earliest|latest|TIME|OFFSET|+N|-N",
        help="where to: a time is the first record at or after it, +N and -N are distances",
    )  # fmt: skip
    _add_topic(resets)
    resets.add_argument("--dry-run", action="store_true", help="say what would be, change nothing")
    resets.set_defaults(run=_reset)

    forgets = actions.add_parser("forget", help="remove positions: the group begins anew there")
    stores.add_store_arguments(forgets, writes=True, prints_each="position")
    forgets.add_argument("group", help="the group")
    _add_topic(forgets)
    forgets.set_defaults(run=_forget)


def _add_topic(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--topic", action="append", default=[], type=_place, metavar="TOPIC[:PARTITION]",
        help="these only; may be given several times",
    )  # fmt: skip


def _place_offset(text: str) -> tuple[TopicPartition, int]:
    found = _PLACE_OFFSET.fullmatch(text)
    if found is None:
        message = f"{text!r} is not TOPIC:PARTITION=OFFSET, such as orders:0=42"
        raise argparse.ArgumentTypeError(message)
    return TopicPartition(found["topic"], int(found["partition"])), int(found["offset"])


def _place(text: str) -> tuple[str, int | None]:
    found = _PLACE.fullmatch(text)
    if found is None:
        message = f"{text!r} is not TOPIC or TOPIC:PARTITION, such as orders:0"
        raise argparse.ArgumentTypeError(message)
    return found["topic"], None if found["partition"] is None else int(found["partition"])


def _rule(text: str) -> tuple[Position, bool]:
    """Return where to, and whether that is a distance."""
    if _SHIFT.fullmatch(text):
        return int(text), True
    return parse_position(text), False


# ---- actions -------------------------------------------------------------------------------------


def _list(arguments: argparse.Namespace) -> int:
    with stores.open_store(arguments, "r") as store:
        groups = arguments.group or store.groups()
        for group in groups:
            positions = store.positions(group)
            if group not in store.groups():
                message = f"there is no group {group}; `logstore positions list` shows all"
                raise ValueError(message)
            lag = positions.lag()
            for place, value in sorted(positions.describe().items()):
                _print(
                    group,
                    place,
                    value.offset,
                    as_json=arguments.json,
                    lag=lag.get(place),
                    metadata=value.metadata,
                    committed=value.commit_timestamp,
                )
    return 0


def _set(arguments: argparse.Namespace) -> int:
    stores.check_is_store(arguments)
    wanted = dict(arguments.position)
    with stores.open_store(arguments, "a") as store:
        store.positions(arguments.group).commit(wanted, sync=True)
        _print_all(arguments, wanted)
    return 0


def _reset(arguments: argparse.Namespace) -> int:
    stores.check_is_store(arguments)
    to, is_relative = arguments.to
    with stores.open_store(arguments, "r" if arguments.dry_run else "a") as store:
        positions = store.positions(arguments.group)
        places = _chosen(store, positions, arguments.topic)
        moved = positions.planned(to, places, relative=is_relative)
        if not arguments.dry_run:
            positions.commit(moved, sync=True)
        _print_all(arguments, moved)
    return 0


def _forget(arguments: argparse.Namespace) -> int:
    stores.check_is_store(arguments)
    with stores.open_store(arguments, "a") as store:
        positions = store.positions(arguments.group)
        known = dict(positions.items())
        gone = [place for place in _chosen(store, positions, arguments.topic) if place in known]
        positions.forget(gone, sync=True)
        _print_all(arguments, {place: known[place] for place in gone})
    return 0


def _chosen(
    store: logstore.LogStore,
    positions: logstore.Positions,
    topics: Iterable[tuple[str, int | None]],
) -> list[TopicPartition]:
    """Return the partitions that ``--topic`` names; all that the group has without it."""
    if not topics:
        if not len(positions):
            message = f"the group {positions.group} has no position; name topics with --topic"
            raise ValueError(message)
        return list(positions)
    chosen = []
    for topic, partition in topics:
        numbers = store.topic(topic).partitions if partition is None else (partition,)
        chosen += [TopicPartition(topic, number) for number in numbers]
    return chosen


# ---- print ---------------------------------------------------------------------------------------


def _print_all(arguments: argparse.Namespace, positions: dict[TopicPartition, int]) -> None:
    for place, offset in sorted(positions.items()):
        _print(arguments.group, place, offset, as_json=arguments.json)


def _print(
    group: str, place: TopicPartition, offset: int, *, as_json: bool, **more: object
) -> None:
    if as_json:
        fields = {
            "group": group,
            "topic": place.topic,
            "partition": place.partition,
            "offset": offset,
            **more,
        }
        print_json(fields)
        return
    parts = [group, f"{place.topic}:{place.partition}={offset}"]
    if more:
        lag, committed = more["lag"], more["committed"]
        parts.append("topic deleted" if lag is None else f"lag {lag:,}")
        assert isinstance(committed, int)
        parts.append(format_timestamp(committed))
        if more["metadata"]:
            parts.append(str(more["metadata"]))
    print("  ".join(parts))
