/*
 * ls_writer_stage.c: how bytes get from the staging buffer into the file: in aligned pieces, with
 * room allocated ahead, and back out of it when an append fails.
 */
#include <errno.h>
#include <sys/mman.h>

#include "ls_writer.h"

enum {
    ALLOCATE_BYTES_MIN = 65536, /* less is not worth the call */
    WRITES_AHEAD = 32,
    RECORD_BYTES_KEPT = 4 << 20 /* room for a record of this size stays in the staging buffer */
};

static int64_t max64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t page_up(int64_t size) {
    return (size + LS_PAGE - 1) / LS_PAGE * LS_PAGE;
}

/* ---- memory ------------------------------------------------------------------------------------- */
static int64_t usual_size(const ls_writer *writer) {
    int64_t record = ls_min64(writer->config.max_message_bytes, RECORD_BYTES_KEPT);
    int64_t batch = max64(ls_writer_batch_limit(writer), record);
    return page_up(LS_PIECE + batch + LS_PAGE + LS_BATCH_OVERHEAD + LS_ENCODE_SLACK);
}

int64_t ls_writer_reserve(ls_writer *writer, int64_t size) {
    int64_t used = (writer->staged_position & (LS_PAGE - 1)) + writer->staged_bytes;
    int64_t needed = used + size + LS_ENCODE_SLACK;
    writer->staging_touched = max64(writer->staging_touched, needed);
    if (LS_LIKELY(needed <= writer->staging_size)) return 0;

    /* Untouched pages cost nothing, so the usual size is taken even for a small append. */
    int64_t staging_size = max64(page_up(needed), usual_size(writer));
    uint8_t *staging = mmap(NULL, (size_t)staging_size, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (staging == MAP_FAILED) return -errno;
    if (writer->staged_bytes > 0) memcpy(staging, writer->staging, (size_t)used);
    if (writer->staging != NULL) munmap(writer->staging, (size_t)writer->staging_size);
    writer->staging = staging;
    writer->staging_size = staging_size;
    return 0;
}

void ls_writer_shrink(ls_writer *writer) {
    if (writer->staging == NULL || writer->staged_bytes > 0) return;
    munmap(writer->staging, (size_t)writer->staging_size);
    writer->staging = NULL;
    writer->staging_size = writer->staging_touched = 0;
    (void)ls_share_hold(&writer->pool->staging, &writer->staging_kept, 0);
}

/*
 * Writers of one pool share what they may keep: new pages take an append of 1 MiB a third of its time
 * again, but for each of many logs memory would have no bound. Who finds too little left in the pool
 * gives its buffer back.
 */
void ls_writer_keep_staging(ls_writer *writer) {
    int64_t wanted = writer->staging_touched;
    if (LS_LIKELY(wanted <= writer->staging_kept) || writer->staging == NULL) return;
    int64_t kept = ls_share_hold(&writer->pool->staging, &writer->staging_kept, wanted);
    if (kept < wanted) ls_writer_shrink(writer);
}

void ls_writer_reset(ls_writer *writer) {
    writer->pending = writer->committed;
    writer->staged_position = writer->committed.size_bytes;
    writer->staged_bytes = 0;
    writer->made = (struct ls_index_made){0};
}

/* ---- room ahead ------------------------------------------------------------------------------------ */
static void hold_no_room(ls_writer *writer) {
    (void)ls_share_hold(&writer->pool->room, &writer->room_held, 0);
}

void ls_writer_forget_room(ls_writer *writer, int64_t size_bytes) {
    writer->preallocated_end = writer->asked_end = size_bytes;
    hold_no_room(writer);
}

/*
 * Allocate before writing: half again as fast, one extent instead of many, and an fdatasync has
 * less to write besides the bytes. As much as the segment has, from 1 MiB on, or some more writes
 * like this one if it is a large one, or what the append itself is about to write, within the two
 * limits. In few large steps: with more extents than the four that an inode of ext4 holds, each
 * fdatasync has a block more to put into the journal, which takes it a fifth longer.
 *
 * What lies behind this write is counted in the pool, and not again until the next call: it shrinks
 * with each write, so that all writers together never have more than is counted. Who gets less than
 * it wants asks again a piece later, and until then the file grows as it is written.
 */
static void preallocate(ls_writer *writer, int64_t position, int64_t size, int64_t bytes_to_come) {
    int64_t end = position + size;
    if (!writer->may_preallocate || end <= writer->asked_end) return;
    int64_t ahead = position < LS_PIECE ? 0 : position;
    if (size >= ALLOCATE_BYTES_MIN) ahead = max64(ahead, WRITES_AHEAD * size);
    ahead = ls_min64(max64(ahead, size + bytes_to_come), writer->config.preallocate_bytes);
    ahead = max64(ahead, size); /* The limit is one of what may turn out not to be needed. */
    int64_t target = ls_min64(position + ahead, max64(writer->config.segment_bytes, end));
    int64_t from = max64(position, writer->preallocated_end) / LS_PAGE * LS_PAGE;
    if (target - from < ALLOCATE_BYTES_MIN) return;
    target = page_up(target);
    int64_t ahead_max = ls_share_hold(&writer->pool->room, &writer->room_held, target - end);
    if (LS_UNLIKELY(ahead_max < target - end)) {
        target = (end + ahead_max) / LS_PAGE * LS_PAGE;
        writer->asked_end = end + LS_PIECE;
        if (ahead_max < ALLOCATE_BYTES_MIN) {
            hold_no_room(writer);
            return;
        }
    }
    if (ls_io_fallocate(writer->io, writer->segment.log_fd, from, target - from) < 0) {
        writer->may_preallocate =
            false; /* Not supported, or no space: the write itself will tell. */
        hold_no_room(writer);
    } else {
        writer->preallocated_end = target;
        writer->asked_end = max64(writer->asked_end, target);
    }
}

void ls_writer_give_back(ls_writer *writer) {
    int64_t size = writer->committed.size_bytes;
    if (writer->preallocated_end > page_up(size)) {
        /* Truncating to the same size frees what lies behind it. A failure costs space, no record. */
        (void)ls_io_ftruncate(writer->io, writer->segment.log_fd, size);
    }
    ls_writer_forget_room(writer, size);
}

/* ---- writing ----------------------------------------------------------------------------------------- */
static bool is_full(int64_t result) {
    return result == -ENOSPC || result == -EDQUOT;
}

static int64_t size_of(const struct ls_io_span *spans, int32_t count) {
    int64_t size = 0;
    for (int32_t index = 0; index < count; ++index)
        size += spans[index].size;
    return size;
}

static int64_t write_at(ls_writer *writer, const struct ls_io_span *spans, int32_t count,
                        int64_t position) {
    int32_t fd = writer->segment.log_fd;
    if (count > 1) return ls_io_write_all_spans(writer->io, fd, spans, count, position);
    return ls_io_write_all(writer->io, fd, (const void *)spans->bytes, spans->size, position);
}

int64_t ls_writer_write_spans(ls_writer *writer, const struct ls_io_span *spans, int32_t count,
                              int64_t position, int64_t bytes_to_come) {
    preallocate(writer, position, size_of(spans, count), bytes_to_come);
    writer->is_dirty = true;
    int64_t result = write_at(writer, spans, count, position);
    if (is_full(result) && writer->preallocated_end > page_up(position)) {
        /* Our own room ahead may be what is missing: give it back, and try once more without. */
        writer->may_preallocate = false;
        if (ls_io_ftruncate(writer->io, writer->segment.log_fd, position) < 0) return result;
        ls_writer_forget_room(writer, position);
        result = write_at(writer, spans, count, position);
    }
    return result < 0 ? result : 0;
}

int64_t ls_writer_write(ls_writer *writer, const uint8_t *bytes, int64_t size, int64_t position,
                        int64_t bytes_to_come) {
    struct ls_io_span span = {(uintptr_t)bytes, size};
    return ls_writer_write_spans(writer, &span, 1, position, bytes_to_come);
}

int64_t ls_writer_clean(ls_writer *writer) {
    if (LS_LIKELY(!writer->is_dirty)) return 0;
    int64_t size = writer->committed.size_bytes;
    int64_t result = ls_io_ftruncate(writer->io, writer->segment.log_fd, size);
    if (result < 0) return result;
    writer->is_dirty = false;
    ls_writer_forget_room(writer, size);
    return 0;
}

static int64_t write_staged(ls_writer *writer, int64_t size, int64_t bytes_to_come) {
    int64_t position = writer->staged_position;
    const uint8_t *bytes = writer->staging + (position & (LS_PAGE - 1));
    int64_t result = ls_writer_write(writer, bytes, size, position, bytes_to_come);
    if (result < 0) return result;
    writer->staged_position += size;
    writer->staged_bytes -= size;
    if (writer->staged_bytes > 0) {
        uint8_t *to = writer->staging + (writer->staged_position & (LS_PAGE - 1));
        memmove(to, bytes + size, (size_t)writer->staged_bytes);
    }
    return 0;
}

uint8_t *ls_writer_stage(ls_writer *writer) {
    return writer->staging + (writer->staged_position & (LS_PAGE - 1)) + writer->staged_bytes;
}

static int64_t piece_boundary(const ls_writer *writer) {
    return (writer->staged_position + writer->staged_bytes) / LS_PIECE * LS_PIECE;
}

bool ls_writer_is_due(const ls_writer *writer) {
    return piece_boundary(writer) > writer->staged_position ||
           writer->made.offset_entries == LS_ENTRIES_MAX ||
           writer->made.time_entries == LS_ENTRIES_MAX;
}

static int64_t write_entries(ls_writer *writer) {
    struct ls_index_made *made = &writer->made;
    if (made->offset_entries > 0) {
        int64_t position =
            (writer->pending.offset_entry_count - made->offset_entries) * LS_OFFSET_ENTRY_BYTES;
        int64_t result =
            ls_io_write_all(writer->io, writer->segment.index_fd, writer->offset_entries,
                            made->offset_entries * LS_OFFSET_ENTRY_BYTES, position);
        if (result < 0) return result;
    }
    if (made->time_entries > 0) {
        int64_t position =
            (writer->pending.time_entry_count - made->time_entries) * LS_TIME_ENTRY_BYTES;
        int64_t result =
            ls_io_write_all(writer->io, writer->segment.timeindex_fd, writer->time_entries,
                            made->time_entries * LS_TIME_ENTRY_BYTES, position);
        if (result < 0) return result;
    }
    *made = (struct ls_index_made){0};
    return 0;
}

int64_t ls_writer_settle(ls_writer *writer) {
    assert(!writer->is_busy);
    if (LS_LIKELY(writer->made.offset_entries + writer->made.time_entries == 0)) return 0;
    writer->pending = writer->committed;
    int64_t result = write_entries(writer);
    if (result >= 0) ls_writer_show(writer, false);
    return result;
}

/* Bytes first: an entry never points to what is not there. */
static int64_t write_all(ls_writer *writer) {
    if (writer->staged_bytes > 0) {
        int64_t result = write_staged(writer, writer->staged_bytes, 0);
        if (result < 0) return result;
    }
    return write_entries(writer);
}

int64_t ls_writer_write_due(ls_writer *writer, int64_t bytes_to_come) {
    int64_t boundary = piece_boundary(writer);
    if (boundary > writer->staged_position) {
        int64_t size = boundary - writer->staged_position;
        int64_t result = write_staged(writer, size, writer->staged_bytes - size + bytes_to_come);
        if (result < 0) return result;
    }
    bool has_room =
        writer->made.offset_entries < LS_ENTRIES_MAX && writer->made.time_entries < LS_ENTRIES_MAX;
    return has_room ? 0 : write_all(writer);
}

/* ---- counting and deciding ----------------------------------------------------------------------------- */
int64_t ls_writer_count(ls_writer *writer, const struct ls_batch *batch) {
    struct ls_progress *progress = &writer->pending;
    struct ls_index_made *made = &writer->made;
    assert(made->offset_entries < LS_ENTRIES_MAX && made->time_entries < LS_ENTRIES_MAX);
    struct ls_index_made step;
    int64_t result = ls_index_batches(
        (uintptr_t)batch, 1, &progress->index,
        (uintptr_t)(writer->offset_entries + made->offset_entries * LS_OFFSET_ENTRY_BYTES), 1,
        (uintptr_t)(writer->time_entries + made->time_entries * LS_TIME_ENTRY_BYTES), 1, &step);
    if (result < 0) return LS_E_ROLL; /* An offset beyond the segment's 31 bits. */
    made->offset_entries += step.offset_entries;
    made->time_entries += step.time_entries;
    progress->offset_entry_count += step.offset_entries;
    progress->time_entry_count += step.time_entries;
    progress->size_bytes += batch->size_bytes;
    progress->next_offset = batch->last_offset + 1;
    if (progress->rolling_based_timestamp == INT64_MIN) {
        progress->rolling_based_timestamp = batch->max_timestamp;
    }
    return 0;
}

/* ---- the end of an append ------------------------------------------------------------------------------- */
int64_t ls_writer_commit(ls_writer *writer, bool publish) {
    int64_t result = write_all(writer);
    if (result < 0) {
        ls_writer_abort(writer);
        return result;
    }
    assert(writer->staged_position == writer->pending.size_bytes);
    writer->committed = writer->pending;
    writer->is_dirty = false;
    ls_writer_show(writer, publish);
    if (writer->staging_size > usual_size(writer)) ls_writer_shrink(writer);
    return 0;
}

void ls_writer_abort(ls_writer *writer) {
    (void)ls_writer_clean(writer); /* If it fails, the next append begins with it. */
    ls_writer_reset(writer);
    if (writer->staging_size > usual_size(writer)) ls_writer_shrink(writer);
}
