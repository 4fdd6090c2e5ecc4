"""
A real Kafka broker in a process of its own, for tests and benchmarks.

    with kafka_broker(tmp_path) as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})

One node that is broker and controller (KRaft), on free ports of the loopback interface, with a heap
of 256 MiB. It needs Java 17 or later, and Kafka's jars: fetched once through Maven into
``.cache/kafka-oracle``, or found in the directory that ``KAFKA_ORACLE_CACHE`` names. ``missing()``
says what of this is not there.

``tests/compat/broker.py`` is the same as a program.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FETCH = ROOT / "tests/compat/oracle/fetch-kafka.sh"

NODE_ID = 1
START_SECONDS_MAX = 180.0
STOP_SECONDS_MAX = 120.0
POLL_SECONDS = 0.05
PORTS = range(20_000, 32_000)  # Below those that Linux gives to connections.

# Small, and without the optimising compiler: it lives for seconds, and its neighbours need cores.
JVM_OPTIONS = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    # The line that says that it serves.
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",
)
STARTED = "Kafka Server started"

# What a single node needs, what makes it start and stop quickly, and what a small heap allows.
CONFIG: Mapping[str, object] = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": 3,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.num.partitions": 3,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
    # The controller takes one that was killed for alive that long, and refuses the next.
    "broker.session.timeout.ms": 3000,
    "broker.heartbeat.interval.ms": 500,
    "log.cleaner.dedupe.buffer.size": 4 << 20,
    "num.network.threads": 2,
    "num.io.threads": 2,
}


class BrokerError(Exception):
    """A broker that could not be started, or did not end as it should; with the end of its log."""


@dataclass(slots=True)
class Broker:
    """
    A running broker; made by :func:`kafka_broker`.

    Attributes:
        bootstrap_servers: Host and port, as a client's ``bootstrap.servers`` wants them.
        log_dirs: Where its partitions are.
        cluster_id: As in the ``meta.properties`` of its log directories.
        log_path: What it said.
    """

    bootstrap_servers: str
    log_dirs: Sequence[Path]
    cluster_id: str
    log_path: Path
    _process: subprocess.Popen[bytes] = field(repr=False)
    _watcher: subprocess.Popen[bytes] = field(repr=False)

    def stop(self) -> None:
        """
        Shut it down in order: it flushes its logs and marks its log directories clean.

        Raises:
            BrokerError: It had ended before, or had to be killed.
        """
        if self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerError(f"the broker did not stop\n{_tail(self.log_path)}") from None
        self._end_watch()
        if status not in (0, 128 + signal.SIGTERM):
            raise BrokerError(f"the broker ended with status {status}\n{_tail(self.log_path)}")

    def kill(self) -> None:
        """End it at once, as a crash would: nothing is flushed, nothing marked clean."""
        self._process.kill()
        self._process.wait()
        self._end_watch()

    def _end_watch(self) -> None:
        self._watcher.kill()
        self._watcher.wait()
        assert self._watcher.stdin is not None
        self._watcher.stdin.close()


def missing() -> str | None:
    """What is not here that a broker needs, as the reason of a skip; None when one can start."""
    if shutil.which("java") is None:
        return "needs Java 17 or later on PATH"
    if not _has_jars() and shutil.which("mvn") is None:
        return f"needs Kafka's jars in {cache_directory()}, or Maven to fetch them"
    return None


def cache_directory() -> Path:
    """Where Kafka's jars are kept."""
    return Path(os.environ.get("KAFKA_ORACLE_CACHE") or ROOT / ".cache" / "kafka-oracle")


def _has_jars() -> bool:
    libs = os.environ.get("KAFKA_ORACLE_LIBS") or cache_directory() / "libs"
    return any(Path(libs).glob("kafka_2.13-*.jar"))


@functools.cache
def libs() -> Path:
    """
    The directory of Kafka's jars, fetched if they are not there.

    Raises:
        BrokerError: They cannot be had.
    """
    fetched = subprocess.run(
        ["sh", str(FETCH), str(cache_directory())], capture_output=True, text=True, check=False
    )
    if fetched.returncode != 0:
        raise BrokerError(f"Kafka's jars cannot be fetched: {fetched.stderr.strip()}")
    return Path(fetched.stdout.strip())


def _java(*arguments: object) -> list[str]:
    return ["java", *JVM_OPTIONS, "-cp", f"{libs()}/*", *map(str, arguments)]


def run_kafka(main_class: str, *arguments: object) -> str:
    """
    Run one of Kafka's own programs to its end, and return what it printed.

    Args:
        main_class: Such as ``kafka.tools.DumpLogSegments``.
        arguments: Its command line.

    Raises:
        BrokerError: It ended with another status than 0.
    """
    finished = subprocess.run(
        _java(main_class, *arguments),
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode != 0:
        said = finished.stdout + finished.stderr
        raise BrokerError(f"{main_class} ended with status {finished.returncode}\n{said}")
    return finished.stdout


@contextlib.contextmanager
def kafka_broker(
    directory: str | os.PathLike[str],
    config: Mapping[str, object] | None = None,
    *,
    log_dirs: Sequence[str | os.PathLike[str]] | None = None,
    cluster_id: str | None = None,
) -> Iterator[Broker]:
    """
    Start a broker, wait until it serves, and shut it down in order at the end of the block.

    What it keeps outlives the block: the same directories give the same broker again.

    Args:
        directory: Where its settings and its log go, and what it keeps if nothing else is said.
        config: Settings by Kafka's names, over :data:`CONFIG`.
        log_dirs: Its log directories; the first has the cluster's metadata, too, unless
            ``metadata.log.dir`` is set. ``directory/data`` by default.
        cluster_id: The cluster's id where directories are formatted: that of a
            ``meta.properties`` that is there, or else a new one by default.

    Raises:
        BrokerError: It did not start; with the end of its log.
    """
    directory = Path(directory)
    logs = [Path(path) for path in log_dirs or [directory / "data"]]
    properties, cluster_id, port = _prepare(directory, config or {}, logs, cluster_id)
    log_path = directory / "broker.log"
    with log_path.open("wb") as said:
        process = subprocess.Popen(
            _java("kafka.Kafka", properties),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # An interrupt at the keyboard is for who started it.
        )
    # A test that is killed must not leave it: then the pipe ends.
    watcher = subprocess.Popen(
        ["sh", "-c", 'cat >/dev/null; kill -9 "$1"', "sh", str(process.pid)],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    broker = Broker(f"127.0.0.1:{port}", logs, cluster_id, log_path, process, watcher)
    try:
        _wait_until_started(broker)
        yield broker
    except BaseException:
        broker.kill()
        raise
    broker.stop()


def format_directories(
    directory: str | os.PathLike[str],
    config: Mapping[str, object] | None = None,
    *,
    log_dirs: Sequence[str | os.PathLike[str]] | None = None,
    cluster_id: str | None = None,
) -> None:
    """Make the directories of a broker ready, as its first start does; arguments as there."""
    directory = Path(directory)
    logs = [Path(path) for path in log_dirs or [directory / "data"]]
    _prepare(directory, config or {}, logs, cluster_id)


def _prepare(
    directory: Path, config: Mapping[str, object], logs: Sequence[Path], cluster_id: str | None
) -> tuple[Path, str, int]:
    """Write the settings, format what is not; return the settings' file, the cluster, the port."""
    directory.mkdir(parents=True, exist_ok=True)
    port, controller_port = _free_ports(2)
    settings = {
        **CONFIG,
        "node.id": NODE_ID,
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "controller.quorum.voters": f"{NODE_ID}@127.0.0.1:{controller_port}",
        "log.dirs": ",".join(str(path.absolute()) for path in logs),
        **config,
    }
    directories = {*logs, Path(str(settings.get("metadata.log.dir", logs[0])))}
    properties = directory / "server.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    formatted = [cluster for path in directories if (cluster := cluster_id_of(path))]
    cluster_id = cluster_id or next(iter(formatted), None) or new_cluster_id()
    if len(formatted) < len(directories):
        run_kafka(
            "kafka.tools.StorageTool",
            *("format", "--ignore-formatted", "-t", cluster_id, "-c", properties),
        )
    return properties, cluster_id, port


def cluster_id_of(log_dir: Path) -> str | None:
    """The cluster that a log directory belongs to; None when it is not formatted."""
    with contextlib.suppress(FileNotFoundError):
        found = re.search(r"(?m)^cluster\.id=(\S+)$", (log_dir / "meta.properties").read_text())
        return found[1] if found else None
    return None


def new_cluster_id() -> str:
    """A cluster's id as Kafka makes them: a random UUID in 22 letters."""
    while True:
        made = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not made.startswith("-"):  # Which a command line takes for an option.
            return made


def _free_ports(count: int) -> list[int]:
    """Ports nobody listens on, nor gets for a connection before the broker has bound them."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.SystemRandom().choice(PORTS)
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", port))
            ports += [port] if port not in ports else []
    return ports


def _wait_until_started(broker: Broker) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while STARTED not in broker.log_path.read_text(errors="replace"):
        if broker._process.poll() is not None:
            raise BrokerError(f"the broker did not start\n{_tail(broker.log_path)}")
        if time.monotonic() > deadline:
            raise BrokerError(f"the broker takes too long\n{_tail(broker.log_path)}")
        time.sleep(POLL_SECONDS)


def _tail(path: Path) -> str:
    return path.read_text(errors="replace")[-4000:]
