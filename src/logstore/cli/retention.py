"""``logstore retention``: what retention removes next, and remove it."""

from __future__ import annotations

import argparse

import logstore
from logstore.checkpoint import TopicPartition
from logstore.cli import plans, stores
from logstore.cli.json_lines import print_json
from logstore.topic_names import INTERNAL_TOPICS

EXAMPLE = """\
examples:
  logstore retention data                       # what would go, and what goes when
  logstore retention data orders --json | jq 'select(.segments > 0)'
  logstore retention data orders --run          # delete it now
  logstore retention data --config log.retention.hours=168

Without --run nothing is written and no lock is taken. --config gives the defaults of topics that
state nothing, as open_store() of a program does. Held topics were a broker's: see
`logstore takeover`, or state what they keep with `logstore alter`.
"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this subcommand."""
    parser = commands.add_parser(
        "retention",
        help="show what retention removes next, or remove it",
        epilog=EXAMPLE,
    )
    stores.add_store_arguments(parser, writes=True, prints_each="partition")
    parser.add_argument("topic", nargs="*", help="the topics (default: all but internal ones)")
    stores.add_config_argument(parser)
    parser.add_argument("--run", dest="is_run", action="store_true", help="delete what would go")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    stores.check_is_store(arguments)
    with logstore.open_store(
        arguments.store,
        *arguments.log_dir,
        mode="a" if arguments.is_run else "r",
        config=stores.settings_of(arguments.config),
        lazy=True,
        lock_timeout=arguments.lock_timeout,
    ) as store:
        for name in arguments.topic or (each for each in store if each not in INTERNAL_TOPICS):
            topic = store.topic(name)
            for number in topic.partitions:
                place = TopicPartition(name, number)
                if topic.is_held:
                    _print(place, None, arguments)
                    continue
                log = topic[number]
                plan = log.apply_retention() if arguments.is_run else log.retention_plan()
                _print(place, plans.fields_of(log, plan), arguments)
    return 0


def _print(
    place: TopicPartition, fields: dict[str, object] | None, arguments: argparse.Namespace
) -> None:
    if arguments.json:
        start = {"topic": place.topic, "partition": place.partition, "held": fields is None}
        print_json({**start, **(fields or {})})
    elif fields is None:
        print(f"{place}  {plans.HELD}")
    else:
        print(f"{place}  {plans.sentence_of(fields, is_done=arguments.is_run)}")
