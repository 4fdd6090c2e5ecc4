/*
 * ls_writer_one.c: one record, one batch, one pwrite, while the caller keeps the GIL. It never
 * waits for a lock (DESIGN.md D2): whatever is not plain is left to the general path.
 */
#include <time.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "ls_encode_inline.h"
#include "ls_writer.h"

enum {
    RECORD_BYTES_MAX = 65536, /* more is worth dropping the GIL for */
    ROOM = LS_PAGE + LS_BATCH_OVERHEAD + LS_RECORD_OVERHEAD_MAX + RECORD_BYTES_MAX
};

#if defined(__x86_64__)
/*
 * The millisecond stays the same until the next one begins. The time stamp counter makes at least
 * one tick a nanosecond, so for as many ticks as there are nanoseconds left nobody needs to ask the
 * clock: 8 ns instead of 25. A counter that was set back leaves the window, too.
 */
static int64_t quick_now(ls_writer *writer) {
    if (writer->clock != 0 || !writer->has_steady_ticks) return ls_writer_now(writer);
    uint64_t ticks = __rdtsc();
    if (LS_LIKELY(ticks - writer->tick_from < writer->tick_count)) return writer->tick_now;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    writer->tick_from = ticks;
    writer->tick_count = (uint64_t)(1000000 - now.tv_nsec % 1000000);
    writer->tick_now = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    return writer->tick_now;
}
#else
static int64_t quick_now(ls_writer *writer) {
    return ls_writer_now(writer);
}
#endif

/* One record that is encoded at the stage as a batch. */
struct one {
    const uint8_t *stage;
    int64_t size_bytes;
    int64_t max_timestamp;
};

static void publish(ls_writer *writer) {
    const struct ls_progress *progress = &writer->committed;
    const memory_order order = memory_order_release;
    atomic_store_explicit(&writer->published[LS_PUBLISHED_SIZE], progress->size_bytes, order);
    atomic_store_explicit(&writer->published[LS_PUBLISHED_END], progress->next_offset, order);
    if (writer->live != NULL) {
        ls_live_advance(writer->live, progress->size_bytes, progress->next_offset);
    }
}

/* The bytes are written and no index entry is due: the state follows without one more call. */
static inline void advance(ls_writer *writer, const struct one *one) {
    struct ls_progress *progress = &writer->committed;
    if (one->max_timestamp > progress->index.max_timestamp) {
        progress->index.max_timestamp = one->max_timestamp;
        progress->index.offset_of_max_timestamp = progress->next_offset;
    }
    if (progress->rolling_based_timestamp == INT64_MIN) {
        progress->rolling_based_timestamp = one->max_timestamp;
    }
    progress->index.bytes_since_last_index_entry += one->size_bytes;
    progress->size_bytes += one->size_bytes;
    progress->next_offset += 1;
    writer->is_dirty = false;
    publish(writer);
}

static struct ls_batch batch_of(const ls_writer *writer, const struct one *one) {
    return (struct ls_batch){
        .position = writer->committed.size_bytes,
        .base_offset = writer->committed.next_offset,
        .last_offset = writer->committed.next_offset,
        .max_timestamp = one->max_timestamp,
        .size_bytes = one->size_bytes,
        .record_count = 1,
    };
}

/* With all index entries, or room to allocate first, or after a write that failed or was short. */
static int64_t write_with_all(ls_writer *writer, const struct one *one) {
    struct ls_batch batch = batch_of(writer, one);
    int64_t result = ls_writer_settle(writer);
    if (result < 0) return result;
    ls_writer_reset(writer);
    writer->staged_bytes = one->size_bytes; /* One write, also over a piece boundary. */
    result = ls_writer_count(writer, &batch);
    if (result >= 0) return ls_writer_commit(writer, true);
    ls_writer_abort(writer);
    return result;
}

static int64_t write_record(ls_writer *writer, const struct one *one) {
    writer->is_dirty = true;
    return ls_io_pwrite(writer->io, writer->segment.log_fd, one->stage, one->size_bytes,
                        writer->committed.size_bytes);
}

/* An index entry is due: write the record, and hold the entry until there are some. */
static int64_t write_and_hold(ls_writer *writer, const struct one *one) {
    const struct ls_index_made made = writer->made;
    if (made.offset_entries + made.time_entries == 0) writer->held_from = writer->committed;
    struct ls_batch batch = batch_of(writer, one);
    writer->pending = writer->committed;
    if (ls_writer_count(writer, &batch) < 0 || write_record(writer, one) != one->size_bytes) {
        writer->made = made;
        return write_with_all(writer, one);
    }
    writer->committed = writer->pending;
    writer->is_dirty = false;
    publish(writer);
    return 0;
}

/* Write the record and make it the state; on failure everything is as before. */
static int64_t write_one(ls_writer *writer, const struct one *one) {
    const struct ls_index_state *index = &writer->committed.index;
    int64_t position = writer->committed.size_bytes;
    bool is_entry_due = index->bytes_since_last_index_entry > index->index_interval_bytes;
    bool is_room_asked_for = position + one->size_bytes <= writer->asked_end ||
                             position < LS_PIECE || !writer->may_preallocate;
    if (LS_UNLIKELY(!is_room_asked_for)) return write_with_all(writer, one);
    if (LS_UNLIKELY(is_entry_due)) {
        bool is_room_held = writer->made.offset_entries < LS_HELD_MAX - 1 &&
                            writer->made.time_entries < LS_HELD_MAX - 1;
        return is_room_held ? write_and_hold(writer, one) : write_with_all(writer, one);
    }
    if (LS_UNLIKELY(write_record(writer, one) != one->size_bytes))
        return write_with_all(writer, one);
    advance(writer, one);
    return 0;
}

static int64_t append_one(ls_writer *writer, struct ls_item key, struct ls_item value,
                          int64_t timestamp) {
    const struct ls_writer_config *config = &writer->config;
    const struct ls_progress *progress = &writer->committed;
    if (key.size < 0 && config->flags & LS_WRITER_KEY_REQUIRED) return LS_E_SLOW;
    int64_t now = quick_now(writer);
    if (timestamp < 0) {
        timestamp = now;
    } else if (ls_judge_timestamp(writer, timestamp, now, LS_APPEND_CHECK_UNITS) !=
               LS_PROBLEM_NONE) {
        return LS_E_SLOW;
    }
    if (LS_UNLIKELY(writer->staging_size < ROOM)) {
        if (ls_writer_settle(writer) < 0) return LS_E_SLOW;
        ls_writer_reset(writer);
        if (ls_writer_reserve(writer, ROOM) < 0) return LS_E_SLOW;
    }
    uint8_t *stage = writer->staging + (progress->size_bytes & (LS_PAGE - 1));
    const uint8_t *end = ls_put_record(stage + LS_BATCH_OVERHEAD, 0, 0, key.bytes, key.size,
                                       value.bytes, value.size, NULL, 0);
    struct one one = {
        .stage = stage,
        .size_bytes = end - stage,
        .max_timestamp = config->flags & LS_WRITER_LOG_APPEND_TIME ? now : timestamp,
    };
    int64_t offset = progress->next_offset;
    if (one.size_bytes > config->max_message_bytes ||
        ls_writer_must_roll(writer, progress, one.size_bytes, offset, one.max_timestamp, now)) {
        return LS_E_SLOW;
    }
    memcpy(stage, writer->header, LS_BATCH_OVERHEAD);
    ls_store_be64(stage + LS_BASE_OFFSET_AT, (uint64_t)offset);
    ls_store_be32(stage + LS_LENGTH_AT, (uint32_t)(one.size_bytes - LS_LOG_OVERHEAD));
    ls_store_be64(stage + LS_BASE_TIMESTAMP_AT, (uint64_t)timestamp);
    ls_store_be64(stage + LS_MAX_TIMESTAMP_AT, (uint64_t)one.max_timestamp);
    uint32_t crc =
        ls_crc32c(0, (uintptr_t)(stage + LS_ATTRIBUTES_AT), end - stage - LS_ATTRIBUTES_AT);
    ls_store_be32(stage + LS_CRC_AT, crc);
    int64_t result = write_one(writer, &one);
    return result < 0 ? result : offset;
}

int64_t ls_writer_append_one(ls_writer *writer, struct ls_item key, struct ls_item value,
                             int64_t timestamp) {
    if (ls_writer_is_forked(writer)) return LS_E_SLOW;
    int64_t bytes = (key.size < 0 ? 0 : key.size) + (value.size < 0 ? 0 : value.size);
    if (bytes >= RECORD_BYTES_MAX) return LS_E_SLOW;
    if (pthread_mutex_trylock(&writer->lock) != 0) return LS_E_SLOW;
    int64_t result = LS_E_SLOW;
    if (writer->is_attached && !writer->is_busy && !writer->is_dirty && ls_writer_is_fast(writer)) {
        result = append_one(writer, key, value, timestamp);
    }
    pthread_mutex_unlock(&writer->lock);
    return result;
}
