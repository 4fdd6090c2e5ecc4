"""
What a reader sees of a log that another process writes, or may begin to write.

===========  ==================================  ==============================================
state        who writes                          the log ends
===========  ==================================  ==============================================
live         a logstore on this machine          where its live offsets say
flushed      somebody who shows no live offsets  at what is surely flushed or, of a broker,
                                                 replicated: what the checkpoints say
closed       nobody                              behind the last valid batch
===========  ==================================  ==============================================

A look costs two loads from memory while nothing changes. Whether the writer lives, or a new one has
come, is looked at every 100 ms. A writer that was killed leaves what recovery would find.

Source: DESIGN.md D3, D6.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Final

from logstore._native import live_is_at
from logstore.checkpoint import LEADER_EPOCH_CHECKPOINT
from logstore.errors import LogStoreError, StorageError
from logstore.file_records import LogOffsetMetadata
from logstore.flushed_transactions import FlushedTransactions
from logstore.leftovers import offset_of_file
from logstore.live_listing import LiveListing, Seen, State
from logstore.live_offsets import (
    LiveFile,
    is_foreign_writer,
    open_live_file,
)
from logstore.live_segment import LiveSegment
from logstore.loader import LoadedLog
from logstore.partition_state import PartitionState, state_path_of
from logstore.process_watch import ProcessWatch, pid_namespace, watch_process
from logstore.record_places import Moment
from logstore.segment import LOG_SUFFIX, segment_file_name
from logstore.truncations import NOTHING_GONE
from logstore.view_loader import ViewLoader
from logstore.writer_lock import LOCK_FILE, LOCK_FILE_BYTES_MAX, has_writer, is_signed

if TYPE_CHECKING:
    from logstore._native import LivePage, PageOffsets
    from logstore.clock import Clock
    from logstore.config import LogConfig
    from logstore.files import Files
    from logstore.partition import Partition
    from logstore.scheduler import Scheduler
    from logstore.segment import LogSegment

LOOK_SECONDS: Final = 0.1  # How long a writer may be gone before that is noticed.
POLL_SECONDS: Final = 0.02  # Of a page that cannot be written, through which nobody is woken.
WATCHED_SECONDS: Final = 60.0  # Of a writer whose end is told.
NEXT_SECONDS: Final = 1.0  # Of a page that the next writer, too, will use, if it is not deleted.
RETRY_SECONDS: Final = 0.001
SETTLE_SECONDS: Final = 5.0  # A directory that changes all that time under a reader is no log's.


class LiveView:
    """
    One log's view of another process's work.

    Args:
        directory: The log's.
        config: The log's.

    **Thread rule**: any thread may refresh; changes are made under the log's lock.
    """

    def __init__(
        self,
        directory: str,
        config: LogConfig,
        *,
        files: Files,
        clock: Clock,
        scheduler: Scheduler,
    ) -> None:
        self._directory = directory
        self._config = config
        self._listing: Final = LiveListing(directory, config, files=files, clock=clock)
        self._transactions: Final = FlushedTransactions(directory, config, files=files, clock=clock)
        self._scheduler = scheduler
        self._files = files
        self._clock = clock
        self._log: Partition | None = None
        self._loader: ViewLoader | None = None  # Of a first look at a closed log.
        self._guard = threading.RLock()
        self._file: LiveFile | None = None
        self._page_truncations: int | None = None  # None: of a page not looked at yet.
        self._seen: Seen | None = None
        self._shown_segments: list[LogSegment] | None = None  # The list that the log has.
        self._change_count = -1
        self._log_end_offset = -1
        self._live_page: LivePage | None = None  # Of a writer that lives.
        self._watch: ProcessWatch | None = None  # Of the writer,
        self._watched_epoch = -1  # with this number.
        self._look_at = 0.0
        self._patient_until = 0.0  # Of a look: so long what is about to change is waited for.
        # Page, change count, end, truncations: replaced as a whole, so that any thread may look.
        self._moment: tuple[LivePage, int, float, int] | None = None
        self._lock_mark = b""
        self._is_closed = False

    # -- the first look ----------------------------------------------------------------------------

    def load(self) -> tuple[ViewLoader, LoadedLog]:
        """
        Return the log as it can be seen now, and who has looked.

        Raises:
            StorageError: It cannot be read.
        """
        deadline = self._clock.monotonic() + SETTLE_SECONDS
        self._patient_until = self._clock.monotonic() + LOOK_SECONDS
        while True:
            seen = self._see()
            if seen is not None:
                self._seen = seen
                loader = self._loader or self._new_loader()
                self._loader = None
                return loader, LoadedLog(
                    seen.segments, seen.log_start_offset, seen.recovery_point, seen.log_end
                )
            if self._clock.monotonic() >= deadline:
                raise StorageError(
                    f"{self._directory} keeps changing; try again", path=self._directory
                )
            self._clock.sleep(RETRY_SECONDS)

    def _new_loader(self) -> ViewLoader:
        state = PartitionState.for_reading(self._directory, files=self._files)
        return ViewLoader(
            self._directory,
            self._config,
            log_start_offset=state.log_start_offset,
            recovery_point=state.recovery_point,
            had_clean_shutdown=state.had_clean_shutdown,
            files=self._files,
            clock=self._clock,
            scheduler=self._scheduler,
            epochs_path=os.path.join(self._directory, LEADER_EPOCH_CHECKPOINT),
        )

    def attach(self, log: Partition) -> None:
        """Begin to bring this log, which was made of what :meth:`load` returned, up to date."""
        self._log = log
        if self._seen is not None:
            self._show(self._seen)

    def _see(self) -> Seen | None:
        """Return what there is to see, None while it changes."""
        state_path = self._state_path()
        if self._is_written(state_path):
            if self._open_file():
                return self._see_live(None)
            is_patient = self._clock.monotonic() < self._patient_until
            if is_patient and is_signed(state_path, self._files):
                return None  # It has just begun, as a rule.
            return self._see_flushed(0)
        return self._see_closed()

    def _state_path(self) -> str:
        return state_path_of(self._directory, self._files)

    def _is_written(self, state_path: str) -> bool:
        return has_writer(state_path, self._files) or is_foreign_writer(
            self._directory, self._files
        )

    def _open_file(self) -> bool:
        """Have the live offsets of a writer that is alive."""
        file = self._file
        if file is not None and file.is_writer_alive:
            return True
        if file is None or not file.is_current:
            new = open_live_file(self._directory, self._files)
            if new is None:
                return False
            if file is not None:
                file.close()
            self._file = file = new
            self._page_truncations = self._truncations_at_opening(new)
        return file.is_writer_alive

    def _truncations_at_opening(self, file: LiveFile) -> int | None:
        """Return the count of a new page whose truncations are known, None: of none is."""
        seen, shown = self._seen, file.page.load()
        if seen is None:  # Nothing was seen that they could have removed.
            return None if shown is None else shown.truncation_count
        if seen.shown is None or shown is None or seen.shown.writer_epoch != shown.writer_epoch:
            return None
        return self._page_truncations  # Its writer made the file again, and goes on counting.

    # -- live --------------------------------------------------------------------------------------

    def _see_live(self, before: Seen | None) -> Seen | None:
        """Return what the writer shows, None while it changes; ``before`` may be gone on with."""
        file = self._file
        assert file is not None
        shown = file.page.load()
        if shown is None or not (shown.is_open or file.is_writer_alive):
            return None
        if (
            before is not None
            and before.shown is not None
            and before.shown.place == shown.place
            and shown.truncation_count % 2 == 0
            and not before.is_cut
            and isinstance(before.segments[-1], LiveSegment)
        ):
            segments = before.segments
            active = before.segments[-1]
            active.grow(shown.size_bytes, shown.offset_entry_count, shown.time_entry_count)
            cut = None
        else:
            listed, cut = self._listing.below_truncations(file, shown, before)
            later = file.page.load()
            if listed == [] and self._clock.monotonic() >= self._patient_until:
                # Everything goes, and goes on going: until it comes back the log is empty.
                assert cut is not None
                cut = shown.log_start_offset
                listed = [self._listing.new_segment(cut, 0, is_active=True)]
            if (
                not listed
                or later is None
                or later.writer_epoch != shown.writer_epoch
                or later.log_start_offset > shown.log_end_offset
            ):
                return None
            segments = listed
            # What was deleted while the directory was listed is below the log start of now.
            shown = shown._replace(log_start_offset=later.log_start_offset)
        end = LogOffsetMetadata(shown.log_end_offset, shown.active_base_offset, shown.size_bytes)
        if cut is not None:
            last = segments[-1]
            end = LogOffsetMetadata(cut, last.base_offset, last.size_bytes)
            if cut < shown.log_start_offset:
                return None
        self._note_truncations(shown.truncation_count)
        high_watermark = shown.high_watermark
        unstable = shown.first_unstable_offset
        return Seen(
            State.LIVE,
            segments,
            end,
            shown.log_start_offset,
            end.message_offset if high_watermark < 0 else min(high_watermark, end.message_offset),
            None if unstable < 0 or unstable >= end.message_offset else unstable,
            min(shown.recovery_point, end.message_offset),
            shown,
            cut is not None,
        )

    def _note_truncations(self, count: int) -> None:
        """Let readers know of truncations since the last look."""
        assert self._file is not None
        since = self._page_truncations
        self._page_truncations = count
        if self._log is None or since == count:
            return
        since = since or 0
        lowest = self._file.page.truncated_to(since)
        if lowest is not None:
            self._log._truncations.note(max(lowest, 0))
        elif self._file.page.replaced_since(since):
            self._log._truncations.note(NOTHING_GONE)

    # -- flushed -----------------------------------------------------------------------------------

    def _see_flushed(self, end_min: int) -> Seen | None:
        """Return what is safe beside a writer that shows nothing; ``end_min`` was seen already."""
        state = PartitionState.for_reading(self._directory, files=self._files)
        end = max(state.recovery_point, end_min)
        if not is_signed(state.path, self._files):
            end = max(end, state.high_watermark)  # A broker's: it flushes at its leisure.
        bases = sorted(
            base
            for name in self._files.listdir(self._directory)
            if name.endswith(LOG_SUFFIX) and (base := offset_of_file(name)) is not None
        )
        below = [base for base in bases if base < end] or bases[:1]
        if not below:
            return None
        segments: list[LogSegment] = []
        try:
            for base, following in zip(below, [*below[1:], None], strict=True):
                path = os.path.join(self._directory, segment_file_name(base, LOG_SUFFIX))
                segment = self._listing.new_segment(
                    base, self._files.file_size(path), is_active=following is None
                )
                segments.append(segment)
            active = segments[-1]
            assert isinstance(active, LiveSegment)
            end = max(min(end, active.find_end(end)), active.base_offset)
            log_start_offset = min(max(state.log_start_offset, below[0]), end)
            unstable = self._transactions.first_undecided(segments, log_start_offset, end)
        except LogStoreError:
            return None
        return Seen(
            State.FLUSHED,
            segments,
            LogOffsetMetadata(end, active.base_offset, active.size_bytes),
            log_start_offset,
            end,
            unstable,
            min(state.recovery_point, end),
            None,
        )

    # -- closed ------------------------------------------------------------------------------------

    def _see_closed(self) -> Seen | None:
        """Return what a load finds; None if somebody began to write meanwhile."""
        state_path = self._state_path()
        # Everything that tells of a writer is looked at before the files are, and after.
        mark = _lock_mark(state_path, self._files)
        if self._file is None:
            with contextlib.suppress(LogStoreError):
                self._file = open_live_file(self._directory, self._files)
                self._page_truncations = None
        file = self._file
        change_count = -1 if file is None else file.page.change_count
        shown = None if file is None else file.page.load()

        def has_been_written() -> bool:
            return (
                self._is_written(state_path)
                or mark != _lock_mark(state_path, self._files)
                or (file is not None and file.page.change_count != change_count)
            )

        if has_been_written():
            return None
        loader = self._new_loader()
        try:
            loaded = loader.load()
        except (LogStoreError, OSError):
            # A writer that came meanwhile, and is perhaps gone again, has changed files.
            if has_been_written():
                return None
            raise
        if has_been_written():
            for segment in loaded.segments:
                segment.close_handlers()
            return None
        self._lock_mark = mark
        self._change_count = change_count
        self._loader = loader if self._log is None else None
        if shown is not None:
            count = shown.truncation_count
            self._note_truncations(count + count % 2)
        loader.producer_state.on_high_watermark_updated(loaded.log_end_offset)
        unstable = loader.producer_state.first_unstable_offset
        return Seen(
            State.CLOSED,
            loaded.segments,
            loaded.log_end_offset_metadata,
            loaded.log_start_offset,
            loaded.log_end_offset,
            None if unstable is None else unstable.message_offset,
            loaded.recovery_point,
            None,
        )

    # -- later looks -------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """Who writes the log."""
        return State.CLOSED if self._seen is None else self._seen.state

    @property
    def page(self) -> LivePage | None:
        """What a writer shows, or the next one will; None: nobody can be woken through it."""
        file = self._file
        if file is None or not file.is_writable or self.state is State.FLUSHED:
            return None
        return file.page

    @property
    def wait_seconds(self) -> float:
        """How long who waits may sleep: what has to be looked at happens no more often."""
        file, seen = self._file, self._seen
        if file is None or seen is None or seen.state is State.FLUSHED:
            return LOOK_SECONDS
        if not file.is_writable:
            return POLL_SECONDS
        if seen.state is State.CLOSED or seen.shown is None:
            return NEXT_SECONDS
        with self._guard:
            return WATCHED_SECONDS if self._watch_writer(file, seen.shown) else LOOK_SECONDS

    def _watch_writer(self, file: LiveFile, shown: PageOffsets) -> bool:
        """Have the end of the writer's process wake who waits; False: it cannot be told."""
        epoch = shown.writer_epoch
        if self._watched_epoch == epoch and self._watch is not None:
            return not self._watch.is_over
        self._unwatch()
        namespace = pid_namespace()
        if self._is_closed or namespace == 0 or shown.pid_namespace != namespace:
            return False
        watch = watch_process(shown.writer_pid, file.page.poke)
        if watch is None:
            return False
        # The number is the writer's if that still lives.
        later = file.page.load()
        is_writers = shown.writer_pid == os.getpid() or file.is_writer_alive
        if later is None or later.writer_epoch != epoch or not is_writers:
            watch.cancel()
            return False
        self._watch, self._watched_epoch = watch, epoch
        return True

    def _unwatch(self) -> None:
        watch, self._watch = self._watch, None
        self._watched_epoch = -1
        if watch is not None:
            watch.cancel()

    def moment(self) -> Moment | None:
        """Return until when the last look holds; None: nobody can tell."""
        shown = self._moment
        if shown is None:
            return None
        page, change_count, look_at, truncations = shown
        return Moment(page, change_count, look_at - self._clock.monotonic(), truncations)

    def refresh(self) -> None:
        """
        Bring the log to what can be read now.

        Raises:
            StorageError: The directory cannot be read.
        """
        page = self._live_page
        file = self._file
        if page is not None:
            if (
                live_is_at(page.address, self._change_count, self._log_end_offset)
                and self._clock.monotonic() < self._look_at
            ):
                return
        elif self._clock.monotonic() < self._look_at and (
            file is None or file.page.change_count == self._change_count
        ):
            return
        if self._log is None or self._is_closed:
            return
        with self._guard:
            self._look()

    def _look(self) -> None:
        deadline = self._clock.monotonic() + SETTLE_SECONDS
        self._patient_until = self._clock.monotonic() + LOOK_SECONDS
        while True:
            seen = self._look_once()
            if seen is not None:
                self._show(seen)
                return
            if self._clock.monotonic() >= deadline:
                raise StorageError(
                    f"{self._directory} keeps changing; try again", path=self._directory
                )
            self._clock.sleep(RETRY_SECONDS)

    def _look_once(self) -> Seen | None:
        before = self._seen
        now = self._clock.monotonic()
        if self.state is State.LIVE and now < self._look_at:
            seen = self._see_live(before)
            if seen is not None:
                return seen
        if self._is_written(self._state_path()):
            if self._open_file():
                return self._see_live(before)
            if before is not None and before.state is not State.FLUSHED:
                # The next writer has the lock, and shows nothing yet: what was there still is.
                return before._replace(state=State.CLOSED, shown=None)
            return self._see_flushed(0 if before is None else before.log_end.message_offset)
        if before is not None and before.state is State.CLOSED and not self._has_changed():
            return before
        return self._see_closed()

    def _has_changed(self) -> bool:
        """Whether somebody has written since the log was found closed."""
        file = self._file
        if file is not None and file.is_current:
            return file.page.change_count != self._change_count
        if file is not None:
            file.close()
            self._file = None
        return self._lock_mark != _lock_mark(self._state_path(), self._files)

    def _show(self, seen: Seen) -> None:
        """Let the log be what was seen."""
        log = self._log
        assert log is not None
        self._seen = seen
        if seen.state is not State.FLUSHED:
            self._transactions.forget()
        self._look_at = self._clock.monotonic() + LOOK_SECONDS
        if seen.shown is not None:
            self._change_count = seen.shown.change_count
        self._log_end_offset = seen.log_end.message_offset
        file = self._file
        is_live = seen.state is State.LIVE
        self._moment = None
        self._live_page = file.page if is_live and file is not None else None
        local_log = log._local_log
        if self._shown_segments is not seen.segments:
            self._shown_segments = seen.segments
            local_log.show_segments(seen.segments)
        local_log.hold(seen.log_end)
        log._watermarks.take_over(
            log_start_offset=min(seen.log_start_offset, seen.log_end.message_offset),
            high_watermark=seen.high_watermark,
            first_unstable_offset=seen.first_unstable_offset,
            recovery_point=seen.recovery_point,
        )
        if file is not None and seen.state is not State.FLUSHED and not seen.is_cut:
            self._moment = (file.page, self._change_count, self._look_at, log._truncations.count)

    def close(self) -> None:
        """Give up the file; a second call does nothing."""
        self._is_closed = True
        self._moment = None
        self._live_page = None
        self._unwatch()
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def after_fork(self) -> None:
        """Begin anew in a forked child: another thread may have held the lock."""
        self._guard = threading.RLock()
        self._seen = self._file = self._live_page = self._shown_segments = self._moment = None
        self._watch = None  # Its thread and its descriptor are the parent's.
        self._watched_epoch = -1
        self._look_at = 0.0
        self._change_count = -1


def _lock_mark(state_path: str, files: Files) -> bytes:
    """Return what changes with each writer that takes the lock."""
    try:
        return files.read_file(os.path.join(state_path, LOCK_FILE))[:LOCK_FILE_BYTES_MAX]
    except StorageError:
        return b""
