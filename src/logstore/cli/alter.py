"""``logstore alter``: change the settings of topics."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from logstore.cli import stores

EXAMPLE = """\
examples:
  logstore alter data orders --config retention.ms=604800000 --config segment.bytes=104857600
  logstore alter data orders --unset retention.ms

A setting that is unset is the store's default from then on. If any is wrong nothing is changed, and
every reason is given. Stating retention.ms, retention.bytes or cleanup.policy ends the hold of a
topic that was a broker's.
"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this subcommand."""
    parser = commands.add_parser(
        "alter",
        help="change the settings of topics",
        epilog=EXAMPLE,
    )
    stores.add_store_arguments(parser, writes=True)
    parser.add_argument("topic", nargs="+", help="the topics")
    stores.add_config_argument(parser)
    parser.add_argument(
        "--unset",
        action="append",
        default=[],
        metavar="NAME",
        help="a setting that becomes the store's default; may be given several times",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    stores.check_is_store(arguments)
    stated: Mapping[str, str] = stores.settings_of(arguments.config)
    both = stated.keys() & set(arguments.unset)
    if both:
        message = f"{', '.join(sorted(both))} is both set and unset; say one"
        raise ValueError(message)
    changes: dict[str, str | None] = {**stated, **dict.fromkeys(arguments.unset)}
    if not changes:
        message = "nothing to change; give --config NAME=VALUE or --unset NAME"
        raise ValueError(message)
    with stores.open_store(arguments, "a") as store:
        for name in arguments.topic:
            store.topic(name)
        for name in arguments.topic:
            store.configs.changed(name, changes)
        for name in arguments.topic:
            store.alter_topic(name, changes)
            stores.print_topic(stores.describe(store, name), as_json=arguments.json)
    return 0
