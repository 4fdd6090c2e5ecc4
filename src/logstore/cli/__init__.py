"""
The ``logstore`` command: use, look at and mend logs; topics of a store come, change and go.

Exit status: 0 success, 1 damage was found, 2 wrong usage or unreadable input, 3 the log is locked
by a writer, 130 interrupted. A closed pipe is success: ``logstore read … | head`` ends quietly.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from logstore.cli import (
    alter,
    append,
    compact,
    completion,
    copy,
    create,
    delete,
    diff,
    dump,
    export,
    follow,
    fork,
    handover,
    import_kafka,
    info,
    pipeline,
    positions,
    read,
    repair,
    restore,
    retention,
    sinks,
    snapshot,
    takeover,
    topics,
    verify,
)
from logstore.errors import (
    CorruptCheckpointError,
    CorruptIndexError,
    CorruptRecordError,
    CorruptSnapshotError,
    LockedError,
    LogStoreError,
)

__all__ = ["build_parser", "main"]

EXIT_DAMAGE = 1
EXIT_USAGE = 2
EXIT_LOCKED = 3
EXIT_INTERRUPTED = 130

DAMAGE = (CorruptRecordError, CorruptIndexError, CorruptSnapshotError, CorruptCheckpointError)

COMMANDS = (
    append,
    read,
    follow,
    export,
    copy,
    diff,
    topics,
    create,
    alter,
    delete,
    positions,
    takeover,
    handover,
    sinks,
    import_kafka,
    snapshot,
    restore,
    fork,
    pipeline,
    compact,
    info,
    dump,
    verify,
    repair,
    retention,
    completion,
)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command, each subcommand added by its own module."""
    parser = argparse.ArgumentParser(
        prog="logstore",
        description="Inspect and use logs in Apache Kafka's on-disk format, without a broker.",
        epilog="Exit status: 0 success, 1 damage found, 2 usage, 3 locked, 130 interrupted. "
        "Each command has its own --help with an example.",
    )
    parser.add_argument("--version", action=_VersionAction, nargs=0, help="print the version")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=_CommandParser
    )
    for command in COMMANDS:
        command.add_command(commands)
    return parser


class _CommandParser(argparse.ArgumentParser):
    """The parser of a command, or of one of its own, whose examples keep their lines."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **settings)


class _VersionAction(argparse.Action):
    """Prints the version; looked up only when it is asked for, which takes a while."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        del namespace, values, option_string
        print(f"logstore {_version()}")
        parser.exit()


def _version() -> str:
    distributions = metadata.packages_distributions().get("logstore", [])
    return metadata.version(distributions[0]) if distributions else "(from a checkout)"


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run the command and return its exit status.

    Args:
        argv: Arguments without the program's name; ``sys.argv[1:]`` if None.
    """
    arguments = build_parser().parse_args(argv)
    # Warnings of the engine, such as those of a recovery, in the form of this command's own.
    logging.basicConfig(format="logstore: %(message)s", level=logging.WARNING)
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
    except LockedError as error:
        # The rest of the message speaks of the argument of open().
        who = str(error).partition(";")[0]
        wait = ", or wait with --lock-timeout" if hasattr(arguments, "lock_timeout") else ""
        print(f"logstore: {who}; close it there{wait}", file=sys.stderr)
        return EXIT_LOCKED
    except BrokenPipeError:
        # The reader of the pipe has gone: nothing is left to say, and Python's own flush at exit
        # must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except DAMAGE as error:
        print(f"logstore: {error}", file=sys.stderr)
        return EXIT_DAMAGE
    except (LogStoreError, OSError, ValueError, LookupError) as error:
        print(f"logstore: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return status
