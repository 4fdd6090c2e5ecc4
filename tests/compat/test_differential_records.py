"""
Random batches through Kafka's encoder, decoder and validator and through ours: no differences.

Needs Java, the oracle's client (``tests/compat/oracle``, or the directory ``$KAFKA_ORACLE``) and
its jars (``$KAFKA_ORACLE_CACHE``). ``DIFFERENTIAL_SECONDS`` (5) is how long each test draws,
``DIFFERENTIAL_SEED`` where it begins.
"""

from __future__ import annotations

import base64
import collections
import contextlib
import faulthandler
import importlib.util
import itertools
import os
import random
import re
import shutil
import sys
import time
from pathlib import Path

import pytest
from deliberate import Case, as_java, deliberate_cause
from record_draws import NOW, damaged, draw_batch

from logstore.compression import CompressionType
from logstore.errors import CorruptRecordError, InvalidRecordError, LogStoreError
from logstore.record import (
    ControlRecordType,
    EndTransactionMarker,
    RecordBatch,
    TimestampType,
    encode_batch,
    iterate_batches,
    logical_sha256,
)
from logstore.validator import AppendOrigin, LogValidator, analyze

ORACLE = Path(os.environ.get("KAFKA_ORACLE") or Path(__file__).with_name("oracle")) / "oracle.py"
CACHE = os.environ.get("KAFKA_ORACLE_CACHE")
SECONDS = float(os.environ.get("DIFFERENTIAL_SECONDS", "5"))
SEED = int(os.environ.get("DIFFERENTIAL_SEED", "0"))
LIMIT = 60 + 4 * SECONDS

pytestmark = [
    pytest.mark.skipif(not ORACLE.exists(), reason="no Kafka oracle: set KAFKA_ORACLE"),
    pytest.mark.skipif(CACHE is None, reason="no jars of the oracle: set KAFKA_ORACLE_CACHE"),
    pytest.mark.skipif(shutil.which("java") is None, reason="no java"),
    pytest.mark.timeout(LIMIT),
]

LONG_MAX = 2**63 - 1
TRANSACTION_ENDS = (ControlRecordType.ABORT, ControlRecordType.COMMIT)


@pytest.fixture(autouse=True)
def _told_where_it_hangs():
    """Show where every thread is, shortly before the time limit ends the run."""
    with open(os.dup(sys.__stderr__.fileno()), "w") as stderr:
        faulthandler.dump_traceback_later(LIMIT - 10, file=stderr)
        yield
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(name="kafka", scope="module")
def _kafka(tmp_path_factory):
    spec = importlib.util.spec_from_file_location("kafka_oracle", ORACLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    errors = tmp_path_factory.mktemp("java") / "stderr"
    with contextlib.ExitStack() as processes:

        def start():
            with errors.open("w") as stderr, contextlib.redirect_stderr(stderr):
                return processes.enter_context(module.KafkaOracle(CACHE))

        kafka = Oracle(start, errors)
        yield kafka
        print(f"{kafka.differences}; Java ended {kafka.ends} times")


class Oracle:
    """
    Kafka's classes in a Java process.

    Java ends when Kafka allocates what a damaged size asks for (``OutOfMemoryError``), and when
    snappy's library meets a negative one (``SnappyError``): Kafka catches neither. Such a request
    has no answer, None; the caller sees to it that we refuse what it was about. Java is started
    again for the next one. Another end is an error.
    """

    def __init__(self, start, errors):
        self._start = start
        self._errors = errors
        self._kafka = None
        self.ends = 0
        self.differences = collections.Counter()

    def request(self, request):
        """Return the answer to a request with damaged data, None if it ended Java."""
        if self._kafka is None:
            self._kafka = self._start()
            self._kafka.call("set_time", now_ms=NOW)
        try:
            return self._kafka.request(request)
        except (RuntimeError, OSError) as error:
            self._kafka = None
            self.ends += 1
            said = self._errors.read_text()
            if re.search(r"java\.lang\.OutOfMemoryError|SnappyError", said) is None:
                raise AssertionError(f"{error}; Java said: {said}") from error
            return None

    def call(self, op, **arguments):
        """Return the result of a request with sound data."""
        answer = self.request({"op": op, **arguments})
        assert answer is not None, f"Java ended at {op}"
        return answer["result"]


def draws():
    """Yield generators of random numbers, each with its seed, until the time is up."""
    end = time.monotonic() + SECONDS
    for seed in itertools.count(SEED):
        if seed > SEED and time.monotonic() > end:
            return
        yield seed, random.Random(seed)


def draw_data(draw, kafka):
    """The bytes of some batches by Kafka's encoder, or None if it refused them."""
    batches = [draw_batch(draw) for _ in range(draw.choice([1, 1, 1, 1, 2, 3, 0]))]
    answer = encoded_by_kafka(kafka, batches)
    if "error" in answer:
        return None
    result = answer["result"]
    return damaged(draw, base64.b64decode(result["bytes"] if isinstance(result, dict) else result))


def encoded_by_kafka(kafka, batches):
    answer = kafka.request({"op": "encode", "batches": batches})
    assert answer is not None, "Java ended encoding what is sound"
    return answer


def whole_entries(data):
    return data[: sum(batch.size_bytes for batch in iterate_batches(data))]


# ---- the decoder ---------------------------------------------------------------------------------


def decoded_by_us(data):
    batches = []
    error = None
    try:
        batches.extend(fields_of(batch) for batch in iterate_batches(data))
    except LogStoreError as raised:
        error = type(raised).__name__
    return batches, error


def fields_of(batch):
    fields = {
        "position": batch.position,
        "size": batch.size_bytes,
        "magic": batch.magic,
        "valid": batch.is_valid,
        "crc": batch.crc,
        "last_offset": batch.last_offset,
        "codec": batch.compression_type.label if batch.attributes & 7 <= 4 else None,
        "timestamp_type": batch.timestamp_type.label,
        "max_timestamp": batch.max_timestamp,
    }
    if isinstance(batch, RecordBatch):
        fields |= {
            "base_offset": batch.base_offset,
            "count": batch.record_count,
            "partition_leader_epoch": batch.leader_epoch,
            "producer_id": batch.producer_id,
            "producer_epoch": batch.producer_epoch,
            "base_sequence": batch.base_sequence,
            "transactional": batch.is_transactional,
            "control": batch.is_control,
            "base_timestamp": batch.base_timestamp,
        }
        if batch.last_offset >= batch.base_offset and batch.base_sequence >= -1:
            fields["last_sequence"] = batch.last_sequence
        if batch.delete_horizon_ms is not None:
            fields["delete_horizon"] = batch.delete_horizon_ms
    try:
        batch.ensure_valid()
        fields["records"] = [
            {
                "offset": record.offset,
                "timestamp": record.timestamp,
                "key": None if record.key is None else base64.b64encode(record.key).decode(),
                "value": None if record.value is None else base64.b64encode(record.value).decode(),
                "headers": [
                    [as_java(name), None if value is None else base64.b64encode(value).decode()]
                    for name, value in record.headers
                ],
            }
            for record in batch.records()
        ]
        if batch.is_control:
            for record in batch.records():
                if ControlRecordType.parse(record.key) in TRANSACTION_ENDS:
                    EndTransactionMarker.parse(record.key, record.value)
    except LogStoreError:
        fields["error"] = True
        fields.pop("records", None)
    return fields


def decoded_by_kafka(kafka, data):
    answer = kafka.request({"op": "decode", "bytes": data})
    if answer is None:
        return None, None
    result = answer["result"]
    for batch in result["batches"]:
        if "error" in batch:
            batch["error"] = True
            del batch["records"]
        if batch["magic"] == 2 and (
            batch["last_offset"] < batch["base_offset"] or batch["base_sequence"] < -1
        ):
            del batch["last_sequence"]  # Damaged, and then what Java's overflow makes of it.
        for record in batch.get("records", ()):
            record.setdefault("headers", [])
            for name in ("size", "sequence", "control_type", "coordinator_epoch"):
                record.pop(name, None)
    return result["batches"], result.get("error")


def is_stricter(batch, theirs):
    """Offsets inside a batch that go back, or beyond its end, are damage to us only."""
    if "error" not in batch or "error" in theirs or theirs["magic"] < 2:
        return False
    offsets = [record["offset"] for record in theirs["records"]]
    bounds = [theirs["base_offset"], *offsets, theirs["last_offset"]]
    return bounds != sorted(bounds) or len(set(offsets)) < len(offsets)


def test_we_read_what_kafka_reads(kafka):
    """Headers, records and where damage is found."""
    for seed, draw in draws():
        data = draw_data(draw, kafka)
        if data is None:
            continue
        ours, our_error = decoded_by_us(data)
        theirs, their_error = decoded_by_kafka(kafka, data)
        if theirs is None:  # Java ended at something in it.
            assert our_error is not None or any("error" in batch for batch in ours), (
                seed,
                data.hex(),
            )
            continue
        for our, their in zip(ours, theirs, strict=False):
            if not is_stricter(our, their):
                assert their == our, (seed, data.hex())
        assert (len(theirs), their_error is None) == (len(ours), our_error is None), (
            seed,
            their_error,
            our_error,
        )
        answer = kafka.request({"op": "logical_sha256", "bytes": data})
        assert answer is None or logical_sha256(data) == answer["result"], (seed, data.hex())


# ---- the encoder ---------------------------------------------------------------------------------


def test_kafka_reads_what_we_write(kafka):
    """The same bytes where no codec is involved, the same records everywhere."""
    for seed, draw in draws():
        batch = draw_batch(draw)
        if batch.get("magic") != 2 or "timestamp_type" in batch:
            continue
        answer = encoded_by_kafka(kafka, [batch])
        if "error" in answer:
            continue
        result = answer["result"]
        theirs = base64.b64decode(result["bytes"] if isinstance(result, dict) else result)
        codec = CompressionType.of(batch["codec"])
        ours = encode_batch(
            [
                (
                    record.get("offset"),
                    record["timestamp"],
                    record["key"],
                    record["value"],
                    [tuple(header) for header in record.get("headers", ())],
                )
                for record in batch["records"]
            ],
            base_offset=batch.get("base_offset", 0),
            compression=codec,
            producer_id=batch.get("producer_id", -1),
            producer_epoch=batch.get("producer_epoch", -1),
            base_sequence=batch.get("base_sequence", -1),
            is_transactional=batch.get("transactional", False),
            delete_horizon=batch.get("delete_horizon", -1),
            last_offset=batch.get("last_offset"),
        )
        if codec is CompressionType.NONE:
            assert theirs == ours, seed
        assert logical_sha256(theirs) == logical_sha256(ours), seed
        assert logical_sha256(ours) == kafka.call("logical_sha256", bytes=ours), seed
        their_batches, error = decoded_by_kafka(kafka, ours)
        assert error is None
        assert their_batches == decoded_by_us(ours)[0], seed


# ---- the validator -------------------------------------------------------------------------------


def draw_settings(draw, data):
    codec = draw.choice(["none", "none", "gzip", "snappy", "lz4", "zstd"])
    if draw.random() < 0.5 and len(data) > 22 and data[16] == 2 and data[22] & 7 < 5:
        codec = CompressionType(data[22] & 7).label
    return {
        "offset": draw.choice([0, 1, 100, 2**40]),
        "leader_epoch": draw.choice([0, 7]),
        "origin": draw.choice(["client"] * 3 + ["coordinator", "raft_leader", "replication"]),
        "codec": codec,
        "compacted": draw.random() < 0.3,
        "timestamp_type": draw.choice(["CreateTime", "CreateTime", "LogAppendTime"]),
        "before_max_ms": draw.choice([LONG_MAX, LONG_MAX, 5000, 0]),
        "after_max_ms": draw.choice([LONG_MAX, 3_600_000, 5000, 0]),
    }


def outcome(data, **fields):
    """What can be compared: the bytes if no codec made them, and what they mean."""
    is_plain = len(data) > 22 and not data[22] & 7
    return {
        "bytes": data if is_plain else None,
        "logical": logical_sha256(data),
        "data": data,
        **fields,
    }


def is_same(theirs, ours):
    """Whether two outcomes are equal, but for bytes that a codec made."""
    return {**theirs, "data": None} == {**ours, "data": None}


def validated_by_kafka(kafka, settings, data):
    answer = kafka.request({"op": "validate", "bytes": data, **settings})
    if answer is None:
        return None, None
    if "error" in answer:
        error = answer["error"]
        indices = [index for index, _ in error.get("record_errors", ())]
        return {"class": error["class"], "error": error["kafka_error"], "indices": indices}, error
    result = answer["result"]
    names = ("next_offset", "max_timestamp", "log_append_time")
    names += ("size_maybe_changed", "records_converted")
    fields = {name: result[name] for name in names}
    return outcome(whole_entries(base64.b64decode(result["bytes"])), **fields), None


def validated_by_us(settings, data, *, analyzed):
    origin = AppendOrigin(settings["origin"])
    try:
        data = whole_entries(data)
        source = CompressionType.NONE
        for batch in iterate_batches(data):
            source = batch.compression_type or source
        validator = LogValidator(
            now_ms=NOW,
            source_compression=source,
            target_compression=CompressionType.of(settings["codec"]),
            timestamp_type=TimestampType.of(settings["timestamp_type"]),
            timestamp_before_max_ms=settings["before_max_ms"],
            timestamp_after_max_ms=settings["after_max_ms"],
            compacted=settings["compacted"],
            leader_epoch=settings["leader_epoch"],
            origin=origin,
        )
        info = None
        if analyzed:
            # The analysis checks more than Kafka's validator does alone: only its help is wanted.
            try:
                info = analyze(
                    data,
                    origin=origin,
                    leader_epoch=settings["leader_epoch"],
                    max_message_bytes=None,
                    assign_offsets=True,
                )
            except LogStoreError:
                info = None
        result = validator.validate_messages_and_assign_offsets(data, settings["offset"], info)
    except InvalidRecordError as error:
        return {
            "class": "RecordValidationException"
            if error.record_errors
            else "InvalidRecordException",
            "error": error.code,
            "indices": [index for index, _ in error.record_errors],
        }, error
    except LogStoreError as error:
        name = type(error).__name__.replace("Error", "Exception")
        return {"class": name, "error": error.code, "indices": []}, error
    return outcome(
        bytes(result.records),
        next_offset=result.next_offset,
        max_timestamp=result.max_timestamp,
        log_append_time=result.log_append_time,
        size_maybe_changed=result.size_maybe_changed,
        records_converted=result.records_converted,
    ), None


def test_we_validate_as_kafka_does(kafka):
    """Bytes, offsets, timestamps and errors with the indices of rejected records."""
    same = 0
    for seed, draw in draws():
        data = draw_data(draw, kafka)
        if data is None:
            continue
        settings = draw_settings(draw, data)
        theirs, their_error = validated_by_kafka(kafka, settings, data)
        ours, our_error = validated_by_us(settings, data, analyzed=draw.random() < 0.5)
        if theirs is None:  # Java ended at something in it.
            assert isinstance(our_error, CorruptRecordError), (seed, settings, data.hex())
            continue
        if not is_same(theirs, ours):
            cause = deliberate_cause(Case(theirs, their_error, ours, our_error, data))
            kafka.differences[cause] += 1
            assert cause, (seed, settings, their_error, str(our_error), data[:100].hex())
            continue
        same += 1
    assert same > 0
