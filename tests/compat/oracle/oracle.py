"""
Client for the Kafka oracle: Kafka's own storage classes in a Java process.

    with KafkaOracle() as kafka:
        kafka.call("open", dir="data", topic="t", partition=0, config={"segment.bytes": 1000})
        kafka.call("append_as_leader", batches=[batch([record(value=b"v")])], leader_epoch=1)
        kafka.call("read", start_offset=0)["bytes"]
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent

# Small heap, no JIT beyond C1: the process lives for seconds, and its neighbours need the cores.
JVM_OPTIONS = [
    "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-enableassertions",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=off",
]  # fmt: skip


class OracleError(Exception):
    """
    An exception that Kafka raised.

    Attributes:
        kafka_class: Simple name of the Java exception class.
        kafka_error: Name of the wire error code it maps to, e.g. ``OFFSET_OUT_OF_RANGE``.
        fields: All that the oracle reported, e.g. ``record_errors``.
    """

    def __init__(self, fields: dict[str, Any]) -> None:
        super().__init__(f"{fields.get('class')}: {fields.get('message')}")
        self.fields = fields
        self.kafka_class = fields.get("class")
        self.kafka_error = fields.get("kafka_error")


class KafkaOracle:
    """
    One Java process and the logs it has open. Not thread-safe.

    Args:
        cache_dir: Where ``make-oracle.sh`` keeps jars and classes; its own default if None.
    """

    def __init__(self, cache_dir: str | os.PathLike[str] | None = None) -> None:
        self._cache_dir = cache_dir
        self._process: subprocess.Popen[bytes] | None = None
        self.last_answer: dict[str, Any] = {}

    def __enter__(self) -> KafkaOracle:
        make = [str(HERE / "make-oracle.sh")]
        if self._cache_dir is not None:
            make.append(os.fspath(self._cache_dir))
        class_path = subprocess.run(
            make, check=True, stdout=subprocess.PIPE, text=True
        ).stdout.strip()
        self._process = subprocess.Popen(
            ["java", *JVM_OPTIONS, "-cp", class_path, "Oracle"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=sys.stderr,
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()  # the oracle ends at end of input
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def request(self, request: dict[str, Any]) -> dict[str, Any]:
        """
        The whole answer to one request: ``result`` or ``error``, perhaps ``state`` and ``tasks``.

        Values of type ``bytes`` are sent as base64.
        """
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = json.dumps(request, default=_to_json)
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            message = f"the oracle ended with status {self._process.wait()} at {request.get('op')}"
            raise RuntimeError(message)
        self.last_answer = json.loads(answer)
        return self.last_answer

    def call(self, op: str, **args: Any) -> Any:
        """
        The ``result`` of one operation; the rest of the answer stays in :attr:`last_answer`.

        Raises:
            OracleError: Kafka raised an exception.
        """
        answer = self.request({"op": op, **args})
        if "error" in answer:
            raise OracleError(answer["error"])
        return answer["result"]

    @property
    def state(self) -> dict[str, Any] | None:
        """Offsets and segments of the log after the last call."""
        return self.last_answer.get("state")


def _to_json(value: object) -> str:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode()
    if isinstance(value, os.PathLike):
        return os.fspath(value)  # type: ignore[return-value]
    message = f"not JSON: {value!r}"
    raise TypeError(message)


def record(
    value: bytes | None = b"",
    key: bytes | None = None,
    timestamp: int = -1,
    headers: list[tuple[str, bytes | None]] | None = None,
    offset: int | None = None,
) -> dict[str, Any]:
    """One record of :func:`batch`."""
    fields: dict[str, Any] = {"key": key, "value": value, "timestamp": timestamp}
    if headers:
        fields["headers"] = [list(header) for header in headers]
    if offset is not None:
        fields["offset"] = offset
    return fields


def batch(records: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """A record batch for ``encode`` and the append operations; see README.md for the fields."""
    return {"records": records, **fields}


def marker(
    kind: str,
    producer_id: int,
    producer_epoch: int,
    timestamp: int,
    coordinator_epoch: int = 0,
    **fields: Any,
) -> dict[str, Any]:
    """A control batch that ends a transaction; ``kind`` is ABORT or COMMIT."""
    return {
        "transactional": True,
        "control": True,
        "producer_id": producer_id,
        "producer_epoch": producer_epoch,
        "marker": {"type": kind, "coordinator_epoch": coordinator_epoch, "timestamp": timestamp},
        **fields,
    }
