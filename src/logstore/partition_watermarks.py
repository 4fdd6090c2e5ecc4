"""
How the watermarks of one partition move, and where in the log they are.

``watermarks.py`` keeps the offsets and their order; here they meet the segments, which say where an
offset is, and producer state, which says what is decided.

Source: Kafka ``UnifiedLog``; spec 5.5.
"""

from __future__ import annotations

from logstore.errors import OffsetOutOfRangeError
from logstore.file_records import LogOffsetMetadata
from logstore.partition_flush import FlushedPartition


class WatermarkedPartition(FlushedPartition):
    """
    A partition whose high watermark, last stable offset and log start offset move.

    Source: Kafka ``UnifiedLog``.
    """

    # The last watermark whose place had to be looked up, and what was found.
    _looked_up: tuple[LogOffsetMetadata, LogOffsetMetadata] | None = None

    def _begin(self, topic_id: str | None, high_watermark: int) -> None:
        """Finish what a new object needs: topic id, high watermark, expiry, the C append path."""
        self._begin_flushes()
        self._refresh_first_unstable_offset()
        self._load_topic_id(topic_id)
        if self._watermarks.mode == "replicas" and high_watermark > 0:
            self._set_high_watermark(LogOffsetMetadata(high_watermark))
        elif self._watermarks.mode == "log_end":
            self._on_high_watermark_updated()  # Everything decided is replicated.
        if not self._is_read_only:
            self._schedule_tasks()
            self._bind_writer(self._writer)
        self.refresh_fast_path()

    # -- where an offset is ------------------------------------------------------------------------

    def offset_metadata(self, offset: int) -> LogOffsetMetadata:
        """
        Return where an offset is; with positions -1 if it is not in the log.

        The offset of the answer is the base offset of its batch, as in Kafka 4.1.

        Source: Kafka ``maybeConvertToOffsetMetadata``.
        """
        try:
            self._check_log_start(offset)
            return self._local_log.offset_metadata(offset)
        except OffsetOutOfRangeError:
            return LogOffsetMetadata(offset)

    def _check_log_start(self, offset: int) -> None:
        if offset < self.log_start_offset:
            raise OffsetOutOfRangeError(
                f"offset {offset} is below the log start {self.log_start_offset};"
                " read from 'earliest'",
                offset=offset,
                path=self._directory,
                log_start_offset=self.log_start_offset,
                log_end_offset=self.log_end_offset,
            )

    def _placed(self, watermark: LogOffsetMetadata) -> LogOffsetMetadata:
        """
        Return a watermark with its place, looked up if it is not known.

        What was looked up has the base offset of the batch found, as in Kafka 4.1: the watermark
        itself may lie in a gap before the batch, or inside it.
        """
        if not watermark.message_offset_only:
            return watermark
        looked_up = self._looked_up
        if looked_up is None or looked_up[0] is not watermark:
            looked_up = self._looked_up = (
                watermark,
                self.offset_metadata(watermark.message_offset),
            )
            if watermark is self._watermarks.high_watermark_metadata:
                with self._lock:  # As in Kafka: after a truncation it may still be an old one.
                    self._on_high_watermark_updated()
        return looked_up[1]

    def _if_exact(self, offset: int) -> LogOffsetMetadata:
        """Return an offset with its place if it is the base offset of a batch, or the end."""
        found = self.offset_metadata(offset)
        return found if found.message_offset == offset else LogOffsetMetadata(offset)

    def offset_snapshot(
        self,
    ) -> tuple[int, LogOffsetMetadata, LogOffsetMetadata, LogOffsetMetadata]:
        """
        Return log start, log end, high watermark and last stable offset, with their places.

        Source: Kafka ``fetchOffsetSnapshot``.
        """
        watermarks = self._watermarks
        high_watermark = self._placed(watermarks.high_watermark_metadata)
        last_stable = self._placed(watermarks.last_stable_offset_metadata)
        return self.log_start_offset, self.log_end_offset_metadata, high_watermark, last_stable

    # -- high watermark ----------------------------------------------------------------------------

    def update_high_watermark(self, offset: int) -> int:
        """
        Set the high watermark within [log start, log end]; return what it is then.

        Source: Kafka ``updateHighWatermark``; spec 5.5.
        """
        if offset < 0:
            raise ValueError(f"high watermark {offset} is negative; give an offset")
        with self.changing():
            return self._set_high_watermark(LogOffsetMetadata(offset)).message_offset

    def _set_high_watermark(self, high_watermark: LogOffsetMetadata) -> LogOffsetMetadata:
        high_watermark = self._watermarks.set_high_watermark(high_watermark)
        self._on_high_watermark_updated()
        return high_watermark

    def _on_high_watermark_updated(self) -> None:
        self.producer_state.on_high_watermark_updated(self._watermarks.high_watermark)
        self._refresh_first_unstable_offset()

    def maybe_increment_high_watermark(
        self, offset: int | LogOffsetMetadata
    ) -> LogOffsetMetadata | None:
        """
        Raise the high watermark, as a leader; return what it was, None if it did not move.

        One that lies in a gap between batches is that of the batch behind the gap before.

        Raises:
            ValueError: The offset is beyond the log end.

        Source: Kafka ``maybeIncrementHighWatermark``.
        """
        new = offset if isinstance(offset, LogOffsetMetadata) else self._if_exact(offset)
        with self.changing():
            if new.message_offset > self.log_end_offset:
                raise ValueError(
                    f"high watermark {new.message_offset} is beyond the log end"
                    f" {self.log_end_offset}; append first"
                )
            old = self._placed(self._watermarks.high_watermark_metadata)
            if old.message_offset > self.high_watermark:
                self._set_high_watermark(old)  # Over a gap, in which nothing is.
            elif old.message_offset < self.high_watermark:
                old = old._replace(message_offset=self.high_watermark)
            if old.message_offset < new.message_offset or (
                old.message_offset == new.message_offset
                and not old.message_offset_only
                and not new.message_offset_only
                and old.on_older_segment(new)
            ):
                self._set_high_watermark(new)
                return old
            return None

    def maybe_update_high_watermark(self, offset: int) -> int | None:
        """
        Set the high watermark within bounds, as a follower; None if that is what it was.

        Source: Kafka ``maybeUpdateHighWatermark``.
        """
        if offset < 0:
            raise ValueError(f"high watermark {offset} is negative; give an offset")
        with self.changing():
            old = self._watermarks.high_watermark
            new = self._set_high_watermark(LogOffsetMetadata(offset)).message_offset
            return None if new == old else new

    def _update_high_watermark_with_log_end(self) -> None:
        """Keep the high watermark's place right when it is the end, and lower it to the end."""
        if self._watermarks.high_watermark >= self.log_end_offset:
            self._set_high_watermark(self.log_end_offset_metadata)

    # -- last stable offset ------------------------------------------------------------------------

    def _refresh_first_unstable_offset(self) -> None:
        """
        Learn the first unstable offset from producer state.

        Source: Kafka ``maybeIncrementFirstUnstableOffset``.
        """
        if self._view is not None:
            return  # Its writer knows.
        unstable = self.producer_state.first_unstable_offset
        start = self._watermarks.log_start_offset
        if unstable is not None and (
            unstable.message_offset_only or unstable.message_offset < start
        ):
            offset = max(unstable.message_offset, start)
            found = self.offset_metadata(offset)
            # In a gap it is the batch behind the gap, as in Kafka; but never below the log start.
            unstable = found._replace(message_offset=max(offset, found.message_offset))
        if unstable != self._watermarks.first_unstable_offset_metadata:
            self._watermarks.set_first_unstable_offset(unstable)

    # -- log start offset --------------------------------------------------------------------------

    def maybe_increment_log_start_offset(self, offset: int) -> bool:
        """
        Raise the log start offset; return whether it moved. Segments go later, by retention.

        **Durability**: durable on return.

        Raises:
            OffsetOutOfRangeError: The offset is above the high watermark.

        Source: Kafka ``maybeIncrementLogStartOffset``; spec 5.5.
        """
        with self.changing():
            if offset > self.high_watermark:
                raise OffsetOutOfRangeError(
                    f"log start {offset} is above the high watermark {self.high_watermark};"
                    " wait for replication",
                    offset=offset,
                    path=self._directory,
                    log_start_offset=self.log_start_offset,
                    log_end_offset=self.log_end_offset,
                )
            if offset <= self.log_start_offset:
                return False
            self.sync_producer_state()
            self._watermarks.set_log_start_offset(offset)
            self.leader_epochs.truncate_from_start(offset)
            self.producer_state.on_log_start_offset_incremented(offset)
            self._refresh_first_unstable_offset()
            self._write_checkpoints()
            return True

    def _write_checkpoints(self) -> None:
        if self._checkpoints is not None:
            self._checkpoints.write(self._offsets_to_keep())
