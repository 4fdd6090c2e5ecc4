"""
logstore behind the protocol of the Kafka oracle.

``LogstoreEngine().request(request)`` answers as the oracle's ``Oracle.java`` does: ``result`` or
``error``, and the ``state`` of the log after the request. One thread, one clock, no hidden work:
tasks that are due run between two requests, in the order (due time, order of scheduling).
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import directory_dump as dump

from logstore.cleaner import Cleaner
from logstore.clock import ManualClock
from logstore.compression import CompressionType
from logstore.config import LogConfig
from logstore.errors import InvalidRecordError, LogStoreError
from logstore.log import Log
from logstore.log_to_clean import LogToClean, cleanable_offsets
from logstore.offset_map import LOAD_FACTOR, OffsetMap
from logstore.scheduler import ManualScheduler
from logstore.throttler import Throttler
from logstore.validator import AppendOrigin

DEFAULT_LOG = "log"
DEFAULT_NOW_MS = 1_700_000_000_000
INT_MAX = 2**31 - 1
DEFAULT_CLEANER_IO_BYTES = 64 * 1024
DEFAULT_OFFSET_MAP_BYTES = 24 * 1024

ISOLATIONS = {
    "log_end": "log_end",
    "high_watermark": "read_uncommitted",
    "txn_committed": "read_committed",
}

# Kafka's class for each of ours, where it is not the same name with another ending.
KAFKA_CLASSES = {
    "CorruptRecordError": "CorruptRecordException",
    "InvalidTimestampError": "RecordValidationException",
    "LogConfigError": "ConfigException",
    "OutOfOrderSequenceError": "OutOfOrderSequenceException",
    "StorageError": "KafkaStorageException",
}

Json = Any
Request = dict[str, Json]


@dataclass
class OpenLog:
    """A log and what is needed to open it again."""

    open_request: Request
    scheduler: ManualScheduler
    log: Log
    guards: dict[int, Any] = field(default_factory=dict)
    first_dirty_offset: int | None = None  # Where the last cleaning ended.


class LogstoreEngine:
    """Answers the oracle's requests with logstore."""

    def __init__(self) -> None:
        self.clock = ManualClock(DEFAULT_NOW_MS)
        self.scheduler = ManualScheduler(self.clock)
        self.logs: dict[str, OpenLog] = {}
        self.tasks_held = False

    def request(self, request: Request) -> dict[str, Json]:
        """Answer one request."""
        answer: dict[str, Json] = {"id": request["id"]} if "id" in request else {}
        operation: Callable[[Request], Json] | None = getattr(self, f"op_{request.get('op')}", None)
        try:
            if operation is None:
                raise NotImplementedError(f"unknown op: {request.get('op')}")
            answer["result"] = operation(request)
        except Exception as error:  # noqa: BLE001 - each becomes an answer
            answer["error"] = error_fields(error)
        if not self.tasks_held:
            ran = self.scheduler.run_due()
            if ran:
                answer["tasks"] = ran
        open_log = self.logs.get(log_name(request))
        if open_log is not None and request.get("state", True):
            answer["state"] = state(open_log.log)
        return answer

    def close(self) -> None:
        """Drop what a script left open."""
        for name in list(self.logs):
            self.request({"op": "crash", "log": name})

    def open_log(self, request: Request) -> OpenLog:
        """The log that a request is about."""
        open_log = self.logs.get(log_name(request))
        if open_log is None:
            raise RuntimeError(f"log is not open: {log_name(request)}")
        return open_log

    def log(self, request: Request) -> Log:
        return self.open_log(request).log

    def segment(self, request: Request) -> Any:
        """The segment with the given base offset, or the active one."""
        log = self.log(request)
        base_offset = request.get("base_offset")
        if base_offset is None:
            return log.active_segment
        for segment in log.segments:
            if segment.base_offset == base_offset:
                segment.take_index_entries()
                return segment
        raise ValueError(f"no segment with base offset {base_offset}")

    # -- clock -------------------------------------------------------------------------------------

    def op_advance(self, request: Request) -> Json:
        ran = self.scheduler.advance_to(self.clock.milliseconds() + request["ms"])
        return {"now_ms": self.clock.milliseconds(), "ran": ran}

    def op_set_time(self, request: Request) -> Json:
        self.clock.set(request["now_ms"])
        return {"now_ms": self.clock.milliseconds()}

    def op_hold_tasks(self, request: Request) -> Json:
        self.tasks_held = request.get("held", True)
        return {"held": self.tasks_held}

    def op_pending_tasks(self, request: Request) -> Json:
        return self.open_log(request).scheduler.pending()

    # -- lifecycle ---------------------------------------------------------------------------------

    def op_open(self, request: Request) -> Json:
        if log_name(request) in self.logs:
            raise RuntimeError(f"log is already open: {log_name(request)}")
        if "now_ms" in request:
            self.clock.set(request["now_ms"])
        return self.open(
            request,
            request.get("log_start_offset") or 0,
            request.get("recovery_point") or 0,
            clean=request.get("had_clean_shutdown", True),
        )

    def open(
        self, request: Request, log_start_offset: int, recovery_point: int, *, clean: bool
    ) -> Json:
        name = f"{request.get('topic', 't')}-{request.get('partition', 0)}"
        scheduler = self.scheduler.for_log()
        config = self.config(request.get("config") or {}).replace(
            producer_id_expiration_ms=request.get("producer_id_expiration_ms", 86_400_000),
            producer_id_expiration_check_interval_ms=request.get(
                "producer_id_expiration_check_interval_ms", INT_MAX
            ),
            transaction_max_timeout_ms=request.get("max_transaction_timeout_ms", 15 * 60 * 1000),
            transaction_partition_verification_enable=request.get(
                "transaction_verification", False
            ),
        )
        try:
            log = Log.create(
                Path(request["dir"]) / name,
                config,
                log_start_offset=log_start_offset,
                recovery_point=recovery_point,
                had_clean_shutdown=clean,
                clock=self.clock,
                scheduler=scheduler,
                topic_id=request.get("topic_id"),
                high_watermark="replicas",
            )
        except BaseException:
            scheduler.shutdown()
            raise
        self.logs[log_name(request)] = OpenLog(request, scheduler, log)
        return checkpoints(log)

    def config(self, properties: dict[str, Json]) -> LogConfig:
        return LogConfig.kafka_defaults().replace(**properties)

    def forget(self, request: Request) -> None:
        self.open_log(request).scheduler.shutdown()
        del self.logs[log_name(request)]

    def op_close(self, request: Request) -> Json:
        log = self.log(request)
        if request.get("flush", True):
            log.flush(force=True)
        last = checkpoints(log)
        log.close()
        self.forget(request)
        return last

    def op_crash(self, request: Request) -> Json:
        log = self.log(request)
        last = checkpoints(log)
        log.abandon()
        self.forget(request)
        return last

    def op_reopen(self, request: Request) -> Json:
        open_log = self.open_log(request)
        log = open_log.log
        clean = request.get("clean", True)
        if clean:
            log.flush(force=True)
            log.close()
        else:
            log.abandon()
        log_start_offset = request.get("log_start_offset", log.log_start_offset)
        recovery_point = request.get("recovery_point", log.recovery_point)
        self.forget(request)
        return self.open(open_log.open_request, log_start_offset, recovery_point, clean=clean)

    def op_delete(self, request: Request) -> Json:
        log = self.log(request)
        directory = Path(log.directory)
        log.delete()
        self.forget(request)
        return {"dir_exists": directory.exists()}

    def op_rename(self, request: Request) -> Json:
        log = self.log(request)
        log.rename(request["name"])
        return {"dir": Path(log.directory).name}

    def op_update_config(self, request: Request) -> Json:
        log = self.log(request)
        new = self.config(request["config"])
        log.update_config(
            new.replace(
                **{
                    name: getattr(log.config, name)
                    for name in (
                        "producer_id_expiration_ms",
                        "producer_id_expiration_check_interval_ms",
                        "transaction_max_timeout_ms",
                        "transaction_partition_verification_enable",
                    )
                }
            )
        )

    def op_assign_topic_id(self, request: Request) -> Json:
        self.log(request).assign_topic_id(request["topic_id"])

    # -- append ------------------------------------------------------------------------------------

    def op_append_as_leader(self, request: Request) -> Json:
        open_log = self.open_log(request)
        guard = None
        if request.get("verify_producer_id") is not None:
            guard = open_log.guards.get(request["verify_producer_id"])
        info = open_log.log.append_as_leader(
            batches(request), request.get("leader_epoch", 0), origin(request), guard
        )
        return append_info(info)

    def op_append_as_follower(self, request: Request) -> Json:
        info = self.log(request).append_as_follower(
            batches(request), request.get("leader_epoch", INT_MAX)
        )
        return append_info(info)

    def op_begin_verification(self, request: Request) -> Json:
        open_log = self.open_log(request)
        guard = open_log.log.maybe_start_transaction_verification(
            request["producer_id"],
            request.get("sequence", 0),
            request.get("producer_epoch", 0),
            supports_epoch_bump=request.get("supports_epoch_bump", False),
        )
        open_log.guards[request["producer_id"]] = guard
        return {"sentinel": guard.is_sentinel}

    # -- read --------------------------------------------------------------------------------------

    def op_read(self, request: Request) -> Json:
        info = self.log(request).fetch(
            request["start_offset"],
            max_bytes=request.get("max_length", INT_MAX),
            isolation=ISOLATIONS[request.get("isolation", "log_end")],
            min_one_message=request.get("min_one_message", True),
        )
        data = info.records.to_bytes()
        result: dict[str, Json] = {
            "offset_metadata": list(info.fetch_offset_metadata),
            "size": len(data),
        }
        if request.get("digest"):
            result["sha256"] = dump.sha256(data)
        else:
            result["bytes"] = dump.base64_of(data)
        if request.get("logical"):
            result["logical_sha256"] = dump.logical_sha256(data)
        result["first_entry_incomplete"] = info.first_entry_incomplete
        aborted = info.aborted_transactions
        result["aborted_transactions"] = (
            None if aborted is None else [[txn.producer_id, txn.first_offset] for txn in aborted]
        )
        return result

    def op_fetch_offset_by_timestamp(self, request: Request) -> Json:
        found = self.log(request).fetch_offset_by_timestamp(request["timestamp"])
        if found is None:
            return None
        return {
            "timestamp": found.timestamp,
            "offset": found.offset,
            "leader_epoch": found.leader_epoch,
        }

    def op_collect_aborted_transactions(self, request: Request) -> Json:
        found = self.log(request).collect_aborted_transactions(
            request["start_offset"], request["upper_bound_offset"]
        )
        return [list(txn) for txn in found]

    def op_offset_metadata(self, request: Request) -> Json:
        return list(self.log(request).offset_metadata(request["offset"]))

    # -- watermarks, log start, retention ----------------------------------------------------------

    def op_update_high_watermark(self, request: Request) -> Json:
        return {"high_watermark": self.log(request).update_high_watermark(request["offset"])}

    def op_maybe_increment_high_watermark(self, request: Request) -> Json:
        log = self.log(request)
        previous = log.maybe_increment_high_watermark(request["offset"])
        return {"previous": None if previous is None else list(previous)}

    def op_maybe_update_high_watermark(self, request: Request) -> Json:
        return {"changed_to": self.log(request).maybe_update_high_watermark(request["offset"])}

    def op_offset_snapshot(self, request: Request) -> Json:
        start, end, high_watermark, last_stable = self.log(request).offset_snapshot()
        return {
            "log_start_offset": start,
            "log_end_offset": list(end),
            "high_watermark": list(high_watermark),
            "last_stable_offset": list(last_stable),
        }

    def op_maybe_increment_log_start_offset(self, request: Request) -> Json:
        return {"changed": self.log(request).maybe_increment_log_start_offset(request["offset"])}

    def op_delete_old_segments(self, request: Request) -> Json:
        return {"deleted": self.log(request).delete_old_segments()}

    # -- segments ----------------------------------------------------------------------------------

    def op_roll(self, request: Request) -> Json:
        segment = self.log(request).roll(request.get("expected_next_offset"))
        return {"base_offset": segment.base_offset}

    def op_flush(self, request: Request) -> Json:
        log = self.log(request)
        if request.get("offset") is not None:
            log.flush(request["offset"])
        else:
            log.flush(force=request.get("force", False))
        return {"recovery_point": log.recovery_point}

    def op_truncate_to(self, request: Request) -> Json:
        return {"truncated": self.log(request).truncate_to(request["offset"])}

    def op_truncate_fully_and_start_at(self, request: Request) -> Json:
        self.log(request).truncate_fully_and_start_at(
            request["offset"], request.get("log_start_offset")
        )

    def op_index_entries(self, request: Request) -> Json:
        return self.segment(request).offset_index.entries().tolist()

    def op_time_index_entries(self, request: Request) -> Json:
        return self.segment(request).time_index.entries().tolist()

    def op_txn_index_entries(self, request: Request) -> Json:
        return [list(txn) for txn in self.segment(request).txn_index.all_aborted_txns()]

    def op_index_lookup(self, request: Request) -> Json:
        return list(self.segment(request).offset_index.lookup(request["offset"]))

    def op_time_index_lookup(self, request: Request) -> Json:
        return list(self.segment(request).time_index.lookup(request["timestamp"]))

    def op_translate_offset(self, request: Request) -> Json:
        found = self.segment(request).translate_offset(request["offset"])
        return None if found is None else list(found)

    def op_set_mtime(self, request: Request) -> Json:
        self.segment(request).set_modified_ms(request["ms"])

    def op_clean(self, request: Request) -> Json:
        open_log = self.open_log(request)
        log = open_log.log
        now_ms = request.get("now_ms", self.clock.milliseconds())
        bounds = cleanable_offsets(log, open_log.first_dirty_offset, now_ms)
        first_dirty = request.get("first_dirty_offset", bounds.first_dirty_offset)
        cleanable = LogToClean.of(
            log,
            first_dirty,
            request.get("first_uncleanable_offset", bounds.first_uncleanable_dirty_offset),
        )
        if cleanable.cleanable_bytes == 0 and not request.get("force", False):
            return {
                "skipped": True,
                "first_dirty_offset": first_dirty,
                "first_uncleanable_offset": cleanable.first_uncleanable_offset,
            }
        cleaner = Cleaner(
            OffsetMap(
                request.get("offset_map_memory", DEFAULT_OFFSET_MAP_BYTES),
                request.get("load_factor", LOAD_FACTOR),
            ),
            io_buffer_bytes=request.get("io_buffer_size", DEFAULT_CLEANER_IO_BYTES),
            throttler=Throttler(float("inf"), self.clock),
            check_done=lambda _: None,
        )
        stats = cleaner.clean(cleanable, now_ms)
        open_log.first_dirty_offset = stats.next_first_dirty_offset
        return {
            "first_dirty_offset": first_dirty,
            "first_uncleanable_offset": cleanable.first_uncleanable_offset,
            "clean_bytes": cleanable.clean_bytes,
            "cleanable_bytes": cleanable.cleanable_bytes,
            "next_first_dirty_offset": stats.next_first_dirty_offset,
            "offset_map_size": stats.offset_map_size,
            "map_messages_read": stats.map_messages_read,
            "messages_read": stats.messages_read,
            "messages_written": stats.messages_written,
            "invalid_messages_read": stats.invalid_messages_read,
            "bytes_read": stats.bytes_read,
            "bytes_written": stats.bytes_written,
        }

    def op_split_overflowed_segment(self, request: Request) -> Json:
        return self.log(request).split_overflowed_segment(self.segment(request))

    # -- leader epochs -----------------------------------------------------------------------------

    def op_assign_epoch_start_offset(self, request: Request) -> Json:
        self.log(request).assign_epoch_start_offset(request["epoch"], request["offset"])
        return self.op_leader_epochs(request)

    def op_leader_epochs(self, request: Request) -> Json:
        return leader_epochs(self.log(request))

    def op_end_offset_for_epoch(self, request: Request) -> Json:
        found = self.log(request).end_offset_for_epoch(request["epoch"])
        return None if found is None else {"epoch": found[0], "offset": found[1]}

    def op_epoch_for_offset(self, request: Request) -> Json:
        return self.log(request).leader_epochs.epoch_for_offset(request["offset"])

    def op_truncate_epochs_from_end(self, request: Request) -> Json:
        self.log(request).leader_epochs.truncate_from_end(request["offset"])
        return self.op_leader_epochs(request)

    def op_truncate_epochs_from_start(self, request: Request) -> Json:
        self.log(request).leader_epochs.truncate_from_start(request["offset"])
        return self.op_leader_epochs(request)

    # -- producers ---------------------------------------------------------------------------------

    def op_active_producers(self, request: Request) -> Json:
        return active_producers(self.log(request))

    def op_take_producer_snapshot(self, request: Request) -> Json:
        self.log(request).take_producer_snapshot()
        return producer_snapshots(self.log(request))

    def op_producer_snapshots(self, request: Request) -> Json:
        return producer_snapshots(self.log(request))

    def op_delete_producer_snapshots_before(self, request: Request) -> Json:
        self.log(request).producer_state.delete_snapshots_before(request["offset"])
        return producer_snapshots(self.log(request))

    def op_remove_expired_producers(self, request: Request) -> Json:
        self.log(request).remove_expired_producers(request.get("now_ms"))
        return active_producers(self.log(request))

    def op_has_late_transaction(self, request: Request) -> Json:
        return self.log(request).has_late_transaction()

    # -- inspection --------------------------------------------------------------------------------

    def op_state(self, request: Request) -> Json:
        self.log(request)

    def op_describe(self, request: Request) -> Json:
        log = self.log(request)
        result = state(log)
        result["dir"] = Path(log.directory).name
        result["topic_id"] = log.topic_id
        result["log_end_offset_metadata"] = list(log.log_end_offset_metadata)
        segments = []
        for segment in log.segments:
            segment.take_index_entries()
            largest = segment.max_timestamp_and_offset_so_far()
            segments.append(
                {
                    "base_offset": segment.base_offset,
                    "size": segment.size_bytes,
                    "next_offset": segment.read_next_offset(),
                    "max_timestamp": largest.timestamp,
                    "offset_of_max_timestamp": largest.offset,
                    "index_entries": segment.offset_index.entry_count,
                    "time_index_entries": segment.time_index.entry_count,
                    "txn_index_entries": len(segment.txn_index.all_aborted_txns()),
                }
            )
        result["segments"] = segments
        result["leader_epochs"] = leader_epochs(log)
        result["active_producers"] = active_producers(log)
        result["producer_snapshots"] = producer_snapshots(log)
        result["files"] = dump.listing(Path(log.directory), log.segments)
        return result

    def op_list_files(self, request: Request) -> Json:
        log = self.log(request)
        return dump.listing(Path(log.directory), log.segments)

    def op_list_dir(self, request: Request) -> Json:
        return dump.listing(Path(request["dir"]))

    def op_logical_sha256(self, request: Request) -> Json:
        return dump.logical_sha256(base64.b64decode(request["bytes"]))


# ---- answers as maps -----------------------------------------------------------------------------


def log_name(request: Request) -> str:
    return str(request.get("log", DEFAULT_LOG))


def batches(request: Request) -> bytes:
    if "bytes" not in request:
        raise NotImplementedError("append needs encoded batches: bytes")
    return base64.b64decode(request["bytes"])


def origin(request: Request) -> AppendOrigin:
    return AppendOrigin[request.get("origin", "client").upper()]


def checkpoints(log: Log) -> dict[str, Json]:
    return {
        "log_start_offset": log.log_start_offset,
        "recovery_point": log.recovery_point,
        "high_watermark": log.high_watermark,
        "log_end_offset": log.log_end_offset,
    }


def state(log: Log) -> dict[str, Json]:
    return {
        "log_start_offset": log.log_start_offset,
        "log_end_offset": log.log_end_offset,
        "high_watermark": log.high_watermark,
        "last_stable_offset": log.last_stable_offset,
        "first_unstable_offset": log.first_unstable_offset,
        "recovery_point": log.recovery_point,
        "segments": [[segment.base_offset, segment.size_bytes] for segment in log.segments],
    }


def append_info(info: Any) -> dict[str, Json]:
    return {
        "first_offset": info.first_offset,
        "last_offset": info.last_offset,
        "last_leader_epoch": info.last_leader_epoch,
        "max_timestamp": info.max_timestamp,
        "log_append_time": info.log_append_time,
        "log_start_offset": info.log_start_offset,
        "source_codec": CompressionType(info.source_compression).label,
        "valid_bytes": info.valid_bytes,
        "messages": info.message_count,
        "records_converted": info.records_converted,
    }


def leader_epochs(log: Log) -> Json:
    return [[entry.epoch, entry.start_offset] for entry in log.leader_epochs.epoch_entries]


def active_producers(log: Log) -> Json:
    producers = log.producer_state.active_producers
    return [dump.producer(producers[producer_id]) for producer_id in sorted(producers)]


def producer_snapshots(log: Log) -> Json:
    log.sync_producer_state()
    snapshots = log.producer_state
    return {
        "offsets": sorted(
            int(path.name.partition(".")[0])
            for path in Path(log.directory).iterdir()
            if path.name.endswith(".snapshot")
        ),
        "latest": snapshots.latest_snapshot_offset,
        "map_end_offset": snapshots.map_end_offset,
    }


def error_fields(error: Exception) -> dict[str, Json]:
    """An exception as Kafka's class and wire error would be told."""
    name = type(error).__name__
    fields = {"message": str(error), "kafka_error": "UNKNOWN_SERVER_ERROR"}
    if isinstance(error, LogStoreError):
        fields["kafka_error"] = error.code
        fields["class"] = KAFKA_CLASSES.get(name, name.removesuffix("Error") + "Exception")
        if isinstance(error, InvalidRecordError) and error.record_errors:
            fields["class"] = "RecordValidationException"
            fields["record_errors"] = [list(item) for item in error.record_errors]
    elif isinstance(error, ValueError):
        fields["class"] = "IllegalArgumentException"
    elif isinstance(error, RuntimeError) and not isinstance(error, NotImplementedError):
        fields["class"] = "IllegalStateException"
    else:
        fields["class"] = name
    return fields
