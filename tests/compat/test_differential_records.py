"""
Random batches through Kafka's encoder, decoder and validator and through ours: no differences.

Needs Java, the oracle's client (``tests/compat/oracle``, or the directory ``$KAFKA_ORACLE``) and
its jars (``$KAFKA_ORACLE_CACHE``). ``DIFFERENTIAL_SECONDS`` (5) is how long each test draws,
``DIFFERENTIAL_SEED`` where it begins.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import itertools
import os
import random
import shutil
import struct
import time
import zlib
from pathlib import Path

import pytest

from logstore._native import crc32c
from logstore.compression import CompressionType
from logstore.errors import InvalidRecordError, LogStoreError
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

pytestmark = [
    pytest.mark.skipif(not ORACLE.exists(), reason="no Kafka oracle: set KAFKA_ORACLE"),
    pytest.mark.skipif(CACHE is None, reason="no jars of the oracle: set KAFKA_ORACLE_CACHE"),
    pytest.mark.skipif(shutil.which("java") is None, reason="no java"),
    pytest.mark.timeout(60 + 4 * SECONDS),
]

NOW = 1_700_000_000_000
LONG_MAX = 2**63 - 1
TRANSACTION_ENDS = (ControlRecordType.ABORT, ControlRecordType.COMMIT)


@pytest.fixture(name="kafka", scope="module")
def _kafka():
    spec = importlib.util.spec_from_file_location("kafka_oracle", ORACLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with contextlib.ExitStack() as processes:

        def start():
            kafka = processes.enter_context(module.KafkaOracle(CACHE))
            processes.callback(kafka._process.stdout.close)
            return kafka

        yield Oracle(start)


class Oracle:
    """
    Kafka, started again when a damaged size made it allocate more than it had.

    Such a request has no answer: ``None``.
    """

    def __init__(self, start):
        self._start = start
        self._kafka = None

    def request(self, request):
        if self._kafka is None:
            self._kafka = self._start()
            self._kafka.call("set_time", now_ms=NOW)
        try:
            return self._kafka.request(request)
        except RuntimeError:
            self._kafka = None
            return None

    def call(self, op, **arguments):
        return self.request({"op": op, **arguments})["result"]


def draws():
    """Yield generators of random numbers, each with its seed, until the time is up."""
    end = time.monotonic() + SECONDS
    for seed in itertools.count(SEED):
        if seed > SEED and time.monotonic() > end:
            return
        yield seed, random.Random(seed)


def draw_timestamp(draw):
    return draw.choice(
        [NOW, NOW - draw.randrange(100), NOW - 1000, NOW + 1000, NOW - 10**7, NOW + 10**7, 0, -1, 1]
    )


def draw_record(draw, magic, *, is_plain):
    record = {
        "key": b"k" if is_plain else draw.choice([None, b"", b"k", b"key" * 10]),
        "value": draw.choice([None, b"", b"v" * draw.choice([1, 100, 3000, 70_000])]),
        "timestamp": -1,
    }
    if magic > 0:
        record["timestamp"] = NOW - draw.randrange(50) if is_plain else draw_timestamp(draw)
    if magic == 2 and draw.random() < 0.2:
        record["headers"] = [
            [draw.choice(["", "h", "ä"]), draw.choice([None, b"", b"x"])]
            for _ in range(draw.randrange(4))
        ]
    return record


def draw_batch(draw):
    magic = draw.choice([2, 2, 2, 2, 2, 1, 1, 0])
    codecs = ["none", "none", "gzip", "snappy", "lz4", "zstd"][: 6 if magic == 2 else 5]
    is_plain = draw.random() < 0.5
    count = draw.choice([1, 1, 2, 3, 10, 40])
    batch = {
        "magic": magic,
        "codec": draw.choice(codecs),
        "records": [draw_record(draw, magic, is_plain=is_plain) for _ in range(count)],
    }
    if magic > 0 and draw.random() < 0.1:
        batch["timestamp_type"] = "LogAppendTime"
        batch["log_append_time"] = draw.choice([NOW, NOW - 5, NOW - 10**7, -1])
    if draw.random() < 0.1:
        batch["base_offset"] = draw.choice([1, 5])
    return draw_v2_fields(draw, batch) if magic == 2 else batch


def draw_v2_fields(draw, batch):
    base_offset = batch.get("base_offset", 0)
    if draw.random() < 0.3:
        batch |= {
            "producer_id": draw.choice([1, 1000]),
            "producer_epoch": draw.choice([0, 3]),
            "base_sequence": draw.choice([0, 5, 2**31 - 1]),
            "transactional": draw.random() < 0.5,
        }
    kind = draw.random()
    if kind < 0.05:
        batch["last_offset"] = base_offset + len(batch["records"]) + draw.randrange(3)
    elif kind < 0.1:
        return {
            "codec": draw.choice(["none", "none", "none", "gzip"]),
            "transactional": True,
            "control": True,
            "producer_id": 5,
            "producer_epoch": 1,
            "records": [],
            "marker": {
                "type": draw.choice(["COMMIT", "ABORT"]),
                "coordinator_epoch": 2,
                "timestamp": draw.choice([NOW, NOW - 10**7]),
            },
        }
    elif kind < 0.13:
        return {
            "empty": True,
            "last_offset": draw.randrange(3),
            "max_timestamp": draw_timestamp(draw),
            "records": [],
        }
    elif kind < 0.18:
        batch["delete_horizon"] = NOW + 5
    elif kind < 0.23:
        offset = base_offset
        for record in batch["records"]:
            record["offset"] = offset
            offset += draw.choice([1, 1, 2])
    return batch


HEADER_FIELDS = {21: ">h", 23: ">i", 27: ">q", 35: ">q", 43: ">q", 51: ">h", 53: ">i", 57: ">i"}


def damaged(draw, data):
    """The bytes as they are, or with one change; mostly with a CRC that hides it."""
    data = bytearray(data)
    kind = draw.random()
    if kind < 0.7 or len(data) < 26:
        return bytes(data)
    magic = data[16]
    is_compressed = bool(data[22 if magic == 2 else 17] & 7)
    if kind < 0.8 and magic == 2:
        at = draw.choice(list(HEADER_FIELDS))
        value = draw.choice([0, 1, -1, 2, 3, 4, 8, 16, 32, 100])
        struct.pack_into(HEADER_FIELDS[at], data, at, value)
    elif kind < 0.95 and len(data) > 61 and not (magic < 2 and is_compressed):
        # Not in old wrappers: Kafka allocates what a damaged size inside asks for.
        at = draw.randrange(61, len(data))
        data[at] = draw.choice([0, 1, 2, 255, data[at] ^ 1, data[at] ^ 128])
    else:
        del data[draw.randrange(1, len(data)) :]
        return bytes(data)
    if draw.random() < 0.9 and struct.unpack_from(">i", data, 8)[0] + 12 == len(data):
        at, crc = (17, crc32c(data[21:])) if magic == 2 else (12, zlib.crc32(data[16:]))
        struct.pack_into(">I", data, at, crc)
    return bytes(data)


def draw_data(draw, kafka):
    """The bytes of some batches by Kafka's encoder, or None if it refused them."""
    batches = [draw_batch(draw) for _ in range(draw.choice([1, 1, 1, 1, 2, 3, 0]))]
    answer = kafka.request({"op": "encode", "batches": batches})
    if "error" in answer:
        return None
    result = answer["result"]
    return damaged(draw, base64.b64decode(result["bytes"] if isinstance(result, dict) else result))


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


def as_java(name):
    """A header key whose bytes are not UTF-8: we keep them, Java replaces them."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


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
        if theirs is None:
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
        answer = kafka.request({"op": "encode", "batches": [batch]})
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
    return {"bytes": data if is_plain else None, "logical": logical_sha256(data), **fields}


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


BROKEN = ("well-formed", "break the format", "damaged", "offsets inside a batch")


def has_odd_header(data):
    return any(
        as_java(name) != name
        for batch in iterate_batches(data)
        for record in batch.records()
        for name, _ in record.headers
    )


def is_deliberate(theirs, their_error, our_error, data):
    """
    Whether a difference is one that is wanted.

    * Kafka has no error for damage inside compressed data or for what its builder refuses: it
      raises what Java does (UNKNOWN_SERVER_ERROR), or finds the record that is broken by it first.
    * In a compressed batch that stays as it is, Kafka does not check that a record ends where its
      size says. Such a batch breaks its readers; we refuse it.
    * The same for offsets inside a batch that go back, and for a negative base offset.
    * A damaged message of an old format is told as such before its records are judged.
    * A header key that is not UTF-8 keeps its bytes with us when it is encoded again.
    * Kafka cannot encode again a compressed batch with offsets as producers should not send them
      (it has skipped the values), an empty batch, which it loses, or a control batch; we can, or
      keep it.
    """
    message = str(our_error)
    if theirs.get("logical") == logical_sha256(b""):
        return True
    if their_error is not None and their_error["kafka_error"] == "UNKNOWN_SERVER_ERROR":
        return True
    is_compressed = len(data) > 22 and bool(data[22 if data[16] == 2 else 17] & 7)
    if data[16:17] < b"\2" and their_error is not None and our_error is not None:
        return True
    if is_compressed and their_error is not None and our_error is not None:
        return theirs["indices"] == [] or any(text in message for text in BROKEN)
    if is_compressed and any(text in message for text in BROKEN):
        return True
    if our_error is None and their_error is None and theirs["size_maybe_changed"]:
        return has_odd_header(data) or next(iterate_batches(data)).is_control
    return "offsets inside a batch" in message or "does not fit log end offset" in message


def test_we_validate_as_kafka_does(kafka):
    """Bytes, offsets, timestamps and errors with the indices of rejected records."""
    same = 0
    for seed, draw in draws():
        data = draw_data(draw, kafka)
        if data is None:
            continue
        settings = draw_settings(draw, data)
        theirs, their_error = validated_by_kafka(kafka, settings, data)
        if theirs is None:
            continue
        ours, our_error = validated_by_us(settings, data, analyzed=draw.random() < 0.5)
        if theirs != ours and is_deliberate(theirs, their_error, our_error, data):
            continue
        assert theirs == ours, (seed, settings, their_error, str(our_error), data[:100].hex())
        same += 1
    assert same > 0
