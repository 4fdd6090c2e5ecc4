"""
Start a real Kafka broker on directories of your choice, until interrupted.

    python tests/compat/broker.py DIRECTORY                          # keeps logs in DIRECTORY/data
    python tests/compat/broker.py DIRECTORY --log-dir D --log-dir E  # in these
    python tests/compat/broker.py DIRECTORY --config log.segment.bytes=1048576

Prints one line, the bootstrap servers, once it serves. Ends in order at ctrl-C or SIGTERM. Needs
Java 17 or later, and Kafka's jars, which Maven fetches once.

Exit status: 0 ended in order, 1 did not start or end so, 2 usage.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "support")]

from kafka_broker import BrokerError, kafka_broker, missing  # noqa: E402 - found by the line above


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def main(arguments: list[str] | None = None) -> int:
    """Run the program; its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, help="for its settings and its own log")
    parser.add_argument(
        "--log-dir", action="append", type=Path, metavar="D", help="a log directory; repeatable"
    )
    parser.add_argument(
        "--config", action="append", type=_setting, default=[], metavar="NAME=VALUE",
        help="a setting of the broker; repeatable",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    if reason := missing():
        print(f"broker: {reason}", file=sys.stderr)
        return 1
    ended = threading.Event()
    for end in (signal.SIGINT, signal.SIGTERM):
        signal.signal(end, lambda *_: ended.set())
    try:
        with kafka_broker(given.directory, dict(given.config), log_dirs=given.log_dir) as broker:
            print(broker.bootstrap_servers, flush=True)
            ended.wait()
    except BrokerError as error:
        print(f"broker: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
