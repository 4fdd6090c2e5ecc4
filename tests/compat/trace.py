"""
Recorded traces: requests, Kafka's answers, and the rules for comparing another engine's answers
with them.

A trace is gzipped JSON Lines. The first line describes the script, each other line is one step
``[request, answer]``. ``$DIR`` stands for the directory that holds the partition's directory. An
answer without ``state`` has the state of the step before.

Steps whose op is ``damage`` are done by the harness, to files, while no log is open: see
:func:`damage`.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

DIR = "$DIR"

# Answers that are told for information, or that depend on Java's choices.
IGNORED_KEYS = {"message", "cause", "record_errors", "tasks", "ran", "temporary_memory_bytes"}

# What the output of a compressor decides. Compared only when the trace holds nothing that Kafka
# itself compressed.
CODEC_DEPENDENT_KEYS = {
    "size", "sha256", "valid_bytes", "valid_sha256", "index_entries", "time_index_entries",
    "clean_bytes", "cleanable_bytes", "bytes_read", "bytes_written",
}  # fmt: skip

# What a read moves in Kafka 4.1 and leaves alone in an engine that keeps watermarks: free at such a
# step (``watermark_moved_by_read`` in the header). Then the engine is told the new watermark.
WATERMARK_KEYS = {"high_watermark", "last_stable_offset"}

# Rows whose last column is a byte position or a size.
POSITIONAL_KEYS = {"offset_metadata", "log_end_offset_metadata", "previous", "segments"}

Json = Any


class Engine(Protocol):
    """What is compared with Kafka: answers requests in the form of the oracle's protocol."""

    def request(self, request: dict[str, Json]) -> dict[str, Json]: ...


@dataclass
class Trace:
    header: dict[str, Json]
    steps: list[tuple[dict[str, Json], dict[str, Json]]] = field(default_factory=list)


@dataclass(frozen=True)
class Difference:
    step: int
    op: str
    where: str
    expected: Json
    actual: Json

    def __str__(self) -> str:
        difference = f"expected {self.expected!r}, got {self.actual!r}"
        return f"step {self.step} {self.op}: {self.where}: {difference}"


def write(path: Path, trace: Trace) -> None:
    """Write a trace; the same trace always gives the same bytes."""
    lines = [json.dumps(trace.header)]
    state: Json = None
    for request, answer in trace.steps:
        answer = dict(answer)
        new_state = answer.pop("state", None)
        if new_state != state:
            answer["state"] = new_state
            state = new_state
        lines.append(json.dumps([request, answer], separators=(",", ":")))
    data = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(data, compresslevel=9, mtime=0))


def read(path: Path) -> Trace:
    """Read a trace, with the state filled in at every step."""
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    trace = Trace(json.loads(lines[0]))
    state: Json = None
    for line in lines[1:]:
        request, answer = json.loads(line)
        state = answer.setdefault("state", state)
        trace.steps.append((request, answer))
    return trace


def replay(trace: Trace, engine: Engine, directory: Path) -> Iterator[Difference]:
    """
    Apply the requests of a trace to an engine and yield where its answers differ from Kafka's.

    Args:
        directory: An empty directory for the engine's files.
    """
    codec_dependent = trace.header.get("codec_dependent", False)
    moved_by_read = set(trace.header.get("watermark_moved_by_read", ()))
    for number, (request, expected) in enumerate(trace.steps):
        actual = step(engine, request, directory)
        is_moved = number in moved_by_read
        for where, want, got in compare(expected, actual, codec_dependent):
            if not (is_moved and where.rpartition(".")[2] in WATERMARK_KEYS):
                yield Difference(number, request["op"], where, want, got)
        if is_moved:
            offset = expected["state"]["high_watermark"]
            step(engine, {"op": "update_high_watermark", "offset": offset}, directory)


def step(engine: Engine, request: dict[str, Json], directory: Path) -> dict[str, Json]:
    """Apply one request and return the engine's answer, with ``$DIR`` in place of the directory."""
    if request["op"] == "damage":
        damage(directory, request)
        return {"result": None}
    answer = engine.request(
        {**request, "dir": str(directory) + request["dir"][len(DIR) :]}
        if "dir" in request
        else request
    )
    answer.pop("id", None)
    text = json.dumps(answer).replace(json.dumps(str(directory))[1:-1], DIR)
    return json.loads(re.sub(r"lastModifiedTime=\d+", "lastModifiedTime=?", text))


def damage(directory: Path, request: dict[str, Json]) -> None:
    """
    Change one file: ``truncate_to``, ``append`` (base64), ``xor`` the byte ``at``, ``delete``,
    ``copy_to`` or ``rename_to``.

    ``file`` and the two targets are relative to the directory. A file that does not exist is left
    alone.
    """
    path = directory / request["file"]
    if not path.exists():
        return
    if "truncate_to" in request:
        with path.open("r+b") as file:
            file.truncate(request["truncate_to"])
    if "append" in request:
        with path.open("ab") as file:
            file.write(base64.b64decode(request["append"]))
    if "xor" in request:
        data = bytearray(path.read_bytes())
        if request["at"] < len(data):
            data[request["at"]] ^= request["xor"]
            path.write_bytes(data)
    if "copy_to" in request:
        shutil.copyfile(path, directory / request["copy_to"])
    if "rename_to" in request:
        path.rename(directory / request["rename_to"])
    if "delete" in request:
        path.unlink()


def compare(
    expected: Json, actual: Json, codec_dependent: bool, where: str = ""
) -> Iterator[tuple[str, Json, Json]]:
    """Yield (where, expected, actual) for all that must be equal and is not; see README.md."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in sorted(expected.keys() | actual.keys()):
            if key in IGNORED_KEYS or (key == "sha256" and "producers" in expected):
                continue
            want, got = expected.get(key), actual.get(key)
            if codec_dependent:
                if key in CODEC_DEPENDENT_KEYS:
                    continue
                if key in POSITIONAL_KEYS:
                    want, got = _without_positions(want), _without_positions(got)
            yield from compare(want, got, codec_dependent, f"{where}.{key}")
    elif isinstance(expected, list) and isinstance(actual, list):
        if any(isinstance(item, dict) and "name" in item for item in expected):
            yield from _compare_files(expected, actual, codec_dependent, where)
        elif len(expected) != len(actual):
            yield where, expected, actual
        else:
            for number, (want, got) in enumerate(zip(expected, actual, strict=True)):
                yield from compare(want, got, codec_dependent, f"{where}[{number}]")
    elif expected != actual:
        yield where, expected, actual


def _without_positions(rows: Json) -> Json:
    if isinstance(rows, list) and rows and isinstance(rows[0], int):
        return rows[:-1]
    if isinstance(rows, list):
        return [row[:-1] if isinstance(row, list) else row for row in rows]
    return rows


def _compare_files(
    expected: list[Json], actual: list[Json], codec_dependent: bool, where: str
) -> Iterator[tuple[str, Json, Json]]:
    want = {file["name"]: file for file in expected if not file["name"].endswith(".deleted")}
    got = {file["name"]: file for file in actual if not file["name"].endswith(".deleted")}
    for name in sorted(want.keys() | got.keys()):
        yield from compare(want.get(name), got.get(name), codec_dependent, f"{where}.{name}")
