"""``logstore diff``: how the records of two partitions, or of two stores, differ."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import logstore
from logstore.cli import record_arguments
from logstore.cli.copied_logs import add_range, is_internal, is_partition, print_left_out
from logstore.cli.counted import counted
from logstore.cli.json_lines import print_json
from logstore.cli.progress import progress
from logstore.cli.record_text import bytes_text, record_line
from logstore.log_comparison import Difference, LogComparison, compare_logs
from logstore.record import Record

EXAMPLE = """\
examples:
  logstore diff data/orders-0 backup/orders-0
  logstore diff data backup --topic orders
  logstore diff data/orders-0 backup/orders-0 --from 2h --json | jq .counts

Records are matched by their offset; timestamp, key, value and headers are compared, and which
records there are. How they are batched and compressed is not.
Neither is changed, and both may be in use. Exit status: 0 the same, 1 different.
"""

SHOWN_BYTES = 60


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this subcommand."""
    parser = commands.add_parser(
        "diff",
        help="compare the records of two partitions, or of two stores",
        epilog=EXAMPLE,
    )
    parser.add_argument("a", type=Path, metavar="A", help="a partition, or a store")
    parser.add_argument("b", type=Path, metavar="B", help="what it is compared with")
    add_range(parser)
    parser.add_argument(
        "-n", dest="differences", metavar="N", type=record_arguments.count, default=10,
        help="how many differing ranges of a partition are shown (default: 10)",
    )  # fmt: skip
    parser.set_defaults(run=_run)


class _Pair(NamedTuple):
    """A partition, and what it is in each; None: it is not there."""

    name: str
    a: logstore.Log | None
    b: logstore.Log | None


def _run(arguments: argparse.Namespace) -> int:
    is_one = is_partition(arguments.a)
    if is_one != is_partition(arguments.b):
        kinds = ("a partition", "a store") if is_one else ("a store", "a partition")
        raise ValueError(f"{arguments.a} is {kinds[0]} and {arguments.b} {kinds[1]}; give a pair")
    status = 0
    left_out: Counter[str] = Counter()
    with _partitions(arguments) if is_one else _stores(arguments) as pairs:
        for pair in pairs:
            said_once = None if arguments.json else _said_once(pair, arguments)
            if said_once is not None:
                left_out[said_once] += 1
                is_same = pair.a is not None and pair.b is not None
            else:
                is_same = _compare(pair, arguments)
            if not is_same:
                status = 1
    for what, count in left_out.items():
        print_left_out(count, what)
    return status


def _said_once(pair: _Pair, arguments: argparse.Namespace) -> str | None:
    """Return what one line says of all empty partitions of internal topics; None: not of this."""
    logs = [each for each in (pair.a, pair.b) if each is not None]
    if not is_internal(pair.name) or any(each.log_end_offset for each in logs):
        return None
    if len(logs) > 1:
        return "empty"
    return f"empty, and only in {arguments.a if pair.b is None else arguments.b}"


@contextlib.contextmanager
def _partitions(arguments: argparse.Namespace) -> Iterator[list[_Pair]]:
    with logstore.open(arguments.a, mode="r") as a, logstore.open(arguments.b, mode="r") as b:
        yield [_Pair(str(arguments.a), a, b)]


@contextlib.contextmanager
def _stores(arguments: argparse.Namespace) -> Iterator[list[_Pair]]:
    with (
        logstore.open_store(arguments.a, mode="r", lazy=True) as a,
        logstore.open_store(arguments.b, mode="r", lazy=True) as b,
    ):
        pairs = []
        for name in arguments.topic or sorted({*a, *b}):
            if name not in a and name not in b:
                a.topic(name)  # Whose error says so.
            numbers = [set(store[name]) if name in store else set() for store in (a, b)]
            pairs += [
                _Pair(
                    f"{name}-{number}",
                    a[name, number] if number in numbers[0] else None,
                    b[name, number] if number in numbers[1] else None,
                )
                for number in sorted(numbers[0] | numbers[1])
            ]
        yield pairs


def _compare(pair: _Pair, arguments: argparse.Namespace) -> bool:
    """Compare a partition and print what was found; whether it is the same."""
    if pair.a is None or pair.b is None:
        place = "a" if pair.b is None else "b"
        if arguments.json:
            print_json({"partition": pair.name, "same": False, "only_in": place})
        else:
            print(f"{pair.name}: only in {getattr(arguments, place)}")
        return False
    stop = arguments.stop
    if isinstance(stop, str):
        stop = 0 if stop == "earliest" else None
    total = max(log.log_end_offset - log.log_start_offset for log in (pair.a, pair.b))
    with progress(f"diff {pair.name}", total) as bar:
        found = compare_logs(
            pair.a,
            pair.b,
            arguments.start,
            stop,
            isolation=arguments.isolation,
            differences_max=max(1, arguments.differences),
            advance=bar.advance,
        )
    if arguments.json:
        print(json.dumps(_json(pair.name, found), ensure_ascii=False, separators=(",", ":")))
    else:
        _print(pair.name, found, arguments)
    return found.is_same


def _json(name: str, found: LogComparison) -> dict[str, Any]:
    return {
        "partition": name,
        "same": found.is_same,
        "counts": {"same": found.same, **{_key(kind): n for kind, n in found.counts.items()}},
        "differences": [
            {
                "kind": _key(each.kind),
                "fields": list(each.fields),
                "first_offset": each.first,
                "last_offset": each.last,
                "count": each.count,
                "a": None if each.a is None else record_line(each.a),
                "b": None if each.b is None else record_line(each.b),
            }
            for each in found.differences
        ],
        "omitted": found.omitted,
    }


def _key(kind: str) -> str:
    return kind.replace(" ", "_")


def _print(name: str, found: LogComparison, arguments: argparse.Namespace) -> None:
    if found.is_same:
        print(f"{name}: the same, {counted(found.same, 'record')}")
        return
    counts = ", ".join(f"{count:,} {kind}" for kind, count in found.counts.items() if count)
    print(f"{name}: {counted(found.same, 'record')} the same, {counts}")
    for each in found.differences[: arguments.differences]:
        print(f"  {_line(each)}")
    omitted = found.omitted + len(found.differences[arguments.differences :])
    if omitted:
        print(f"  and {counted(omitted, 'range')} more; -n shows more of them")


def _line(each: Difference) -> str:
    where = f"offset {each.first}"
    if each.count > 1:
        where = f"offsets {each.first} to {each.last} ({counted(each.count, 'record')})"
    if each.a is None or each.b is None:
        record = each.b if each.a is None else each.a
        assert record is not None
        return f"{where}: {each.kind}: {_shown(record, 'key')} {_shown(record, 'value')}"
    sides = [" ".join(_shown(record, name) for name in each.fields) for record in (each.a, each.b)]
    return f"{where}: different {', '.join(each.fields)}: {sides[0]} | {sides[1]}"


def _shown(record: Record, name: str) -> str:
    found = getattr(record, name)
    text = bytes_text(found) if found is None or isinstance(found, bytes) else str(found)
    if len(text) > SHOWN_BYTES:
        text = f"{text[:SHOWN_BYTES]}…"
    return f"{name}={text}"
