"""What the commands that are about a store have in common: its directories, its settings."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import logstore
from logstore.cli.json_lines import print_json
from logstore.opening import Mode


def add_store_arguments(
    parser: argparse.ArgumentParser, *, writes: bool, prints_each: str = "topic"
) -> None:
    """Add the arguments that say which store, and ``--json``."""
    parser.add_argument("store", type=Path, help="the store's directory, such as data")
    parser.add_argument(
        "--log-dir",
        type=Path,
        action="append",
        default=[],
        metavar="DIRECTORY",
        help="another directory of the same store; may be given several times",
    )
    if writes:
        parser.add_argument(
            "--lock-timeout",
            type=float,
            default=0.0,
            metavar="SECONDS",
            help="how long to wait for another writer to finish (default: not at all)",
        )
    parser.add_argument(
        "--json", action="store_true", help=f"one JSON object for each {prints_each}"
    )


def add_config_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--config NAME=VALUE``."""
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting by Kafka's name, such as retention.ms=86400000; may be given several times",
    )


def open_store(arguments: argparse.Namespace, mode: Mode) -> logstore.LogStore:
    """Open the store that the arguments name; its logs are opened when they are used."""
    return logstore.open_store(
        arguments.store,
        *arguments.log_dir,
        mode=mode,
        lazy=True,
        lock_timeout=getattr(arguments, "lock_timeout", 0.0),
    )


def check_is_store(arguments: argparse.Namespace) -> None:
    """Raise FileNotFoundError unless the directories are there: these commands make no store."""
    for path in (arguments.store, *arguments.log_dir):
        if not path.is_dir():
            message = f"there is no directory {path}; check the path"
            raise FileNotFoundError(message)


def settings_of(texts: list[str]) -> dict[str, str]:
    """Return what ``NAME=VALUE`` arguments say."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            message = f"{text!r} is no setting; write NAME=VALUE"
            raise ValueError(message)
        if name.strip() in found:
            message = f"{name.strip()} is given twice; give it once"
            raise ValueError(message)
        found[name.strip()] = value.strip()
    return found


def describe(store: logstore.LogStore, name: str) -> dict[str, Any]:
    """Return what is known of a topic without opening its logs."""
    topic = store.topic(name)
    entry = store.configs.get(name)
    paths = [store.path_of(name, number) for number in topic.partitions]
    size_bytes = sum(
        file.stat().st_size
        for path in paths
        if path is not None
        for file in Path(path).glob("*.log")
    )
    return {
        "topic": name,
        "topic_id": topic.topic_id,
        "partitions": len(topic),
        "missing": [n for n, path in zip(topic.partitions, paths, strict=True) if path is None],
        "size_bytes": size_bytes,
        "held": topic.is_held,
        "internal": topic.is_internal,
        "config": {} if entry is None else dict(entry.config),
    }


def print_topic(fields: dict[str, Any], *, as_json: bool) -> None:
    """Print a topic on a line."""
    if as_json:
        print_json(fields)
        return
    count = fields["partitions"]
    parts = [fields["topic"], "1 partition" if count == 1 else f"{count} partitions"]
    parts.append(f"{fields['size_bytes']:,} bytes")
    if fields["missing"]:
        parts.append("missing: " + ", ".join(map(str, fields["missing"])))
    if fields["held"]:
        parts.append("held (nothing is deleted until retention is stated)")
    parts += [f"{name}={value}" for name, value in sorted(fields["config"].items())]
    print("  ".join(parts))
