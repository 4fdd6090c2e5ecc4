"""``logstore import-kafka``: copy topics of a running cluster into a store, with their offsets."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import logstore
from logstore.cli import stores
from logstore.cli.counted import counted
from logstore.cli.json_lines import print_json
from logstore.cli.progress import progress
from logstore.kafka_import import KafkaImporter, TopicImport

EXAMPLE = """\
examples:
  logstore import-kafka localhost:9092 orders users --to data
  logstore import-kafka broker:9093 --all --to data --client security.protocol=SSL
  logstore import-kafka localhost:9092 orders --to data --group billing --json

Each record keeps its offset, timestamp, key and headers; a topic that the store does not have gets
the settings that were stated for it in the cluster. Run it again to go on: what is there is not
copied twice, and what was copied is read back and compared. Positions and checkpoints hold on.
Only what is committed is copied. What the cluster has deleted in between is told.
"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this subcommand."""
    parser = commands.add_parser(
        "import-kafka",
        help="copy topics of a running Kafka cluster into a store, with their offsets",
        epilog=EXAMPLE,
    )
    parser.add_argument("broker", help="host:port, several joined by commas")
    parser.add_argument("topic", nargs="*", help="what to copy")
    parser.add_argument("--all", action="store_true", help="all topics but internal ones")
    parser.add_argument(
        "--to", type=Path, required=True, metavar="STORE", help="the store's directory"
    )
    parser.add_argument(
        "--group",
        action="append",
        default=[],
        metavar="NAME",
        help="a consumer group whose positions in these topics come along; may be given several"
        " times",
    )
    parser.add_argument(
        "--client",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the client (librdkafka), such as security.protocol=SSL",
    )
    parser.add_argument(
        "--compression",
        choices=["none", "gzip", "snappy", "lz4", "zstd"],
        help="of what is written (default: the topic's compression.type, if it is a codec)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object for each topic")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if bool(arguments.topic) == arguments.all:
        message = "name the topics, or say --all"
        raise ValueError(message)
    with logstore.open_store(arguments.to, lazy=True) as store:
        importer = KafkaImporter(
            store,
            arguments.broker,
            settings=stores.settings_of(arguments.client),
            compression=arguments.compression,
        )
        topics = importer.topics() if arguments.all else arguments.topic
        for topic in topics:
            with progress(f"import {topic}", importer.offset_count(topic)) as bar:
                _print(importer.import_topic(topic, bar.advance), as_json=arguments.json)
        for group in arguments.group:
            offsets = importer.import_group(group)
            if arguments.json:
                places = {f"{topic}-{number}": at for (topic, number), at in offsets.items()}
                print_json({"group": group, "positions": places})
            else:
                print(f"{group}: {counted(len(offsets), 'position')}")
    return 0


def _print(found: TopicImport, *, as_json: bool) -> None:
    if as_json:
        partitions = [
            {
                "partition": each.partition,
                "start_offset": each.start_offset,
                "end_offset": each.end_offset,
                "records": each.record_count,
                "missing": [each.missing.start, each.missing.stop] if each.missing else None,
            }
            for each in found.partitions
        ]
        fields: dict[str, Any] = {
            "topic": found.topic,
            "partitions": partitions,
            "config": found.config,
            "refused_config": found.refused,
        }
        print_json(fields)
        return
    records = sum(each.record_count for each in found.partitions)
    partitions_text = counted(len(found.partitions), "partition")
    print(f"{found.topic}: {counted(records, 'record')} into {partitions_text}")
    for each in found.partitions:
        if each.missing:
            print(
                f"  partition {each.partition}: offsets {each.missing.start} to"
                f" {each.missing.stop - 1} were deleted in the cluster before they were copied"
            )
    for name, why in sorted(found.refused.items()):
        print(f"  not taken over: {name}: {why}")
