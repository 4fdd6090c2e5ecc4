/*
 * ls_writer_bulk.c: appends of many batches: ready ones, and those made of columns. Called without
 * the GIL. Contract: logstore.h.
 */
#include "ls_encode_inline.h"
#include "ls_writer.h"

enum {
    BOUND_EXCESS = 22, /* what a bound has beyond a usual record */
    /* On Zen 3 and 4 a `rep movsb` copy whose target is 1..31 bytes ahead of its source modulo the
     * page runs at a quarter of its speed; the kernel's copy from our memory is one. */
    SLOW_DISTANCE_MAX = 31,
    COPY_BYTES = 1024 /* memcpy does not use `rep movsb` for so few */
};

static int64_t min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* ---- ready batches -------------------------------------------------------------------------------- */
/* Whether the headers tile the bytes, and every offset and position fits the segment. */
static int64_t check_batches(const ls_writer *writer, const struct ls_batch *batches, int64_t count,
                             int64_t size) {
    int64_t end = 0;
    int64_t last_offset = -1;
    int64_t base_offset = writer->segment.base_offset;
    for (int64_t index = 0; index < count; ++index) {
        const struct ls_batch *batch = &batches[index];
        if (batch->position != end || batch->size_bytes <= 0 || batch->size_bytes > size - end) {
            return LS_E_CORRUPT;
        }
        if (batch->last_offset < batch->base_offset || batch->last_offset <= last_offset) {
            return LS_E_CORRUPT;
        }
        if (batch->last_offset < base_offset) return LS_E_ROLL;
        if ((uint64_t)batch->last_offset - (uint64_t)base_offset > INT32_MAX) return LS_E_ROLL;
        last_offset = batch->last_offset;
        end += batch->size_bytes;
    }
    if (end != size) return LS_E_CORRUPT;
    return writer->pending.size_bytes > INT32_MAX - size ? LS_E_ROLL : 0;
}

/* Copy to where the distance to the file position is harmless. */
static void copy_congruent(uint8_t *to, const uint8_t *bytes, int64_t size) {
    for (int64_t done = 0; done < size; done += COPY_BYTES) {
        memcpy(to + done, bytes + done, (size_t)min64(COPY_BYTES, size - done));
    }
}

/* Write a piece that is no larger than the staging buffer by way of it. */
static int64_t write_copied(ls_writer *writer, const uint8_t *head, int64_t head_size,
                            const uint8_t *bytes, int64_t size, int64_t position,
                            int64_t bytes_to_come) {
    uint8_t *to = writer->staging + (position & (LS_PAGE - 1));
    copy_congruent(to + head_size, bytes + head_size, size - head_size);
    if (head_size > 0) memcpy(to, head, (size_t)head_size);
    return ls_writer_write(writer, to, size, position, bytes_to_come);
}

/*
 * Write the caller's bytes, `head` in place of the first of them: in one call, or if they are many
 * in pieces that end on piece boundaries of the file.
 */
static int64_t write_ready(ls_writer *writer, const uint8_t *head, int64_t head_size,
                           const uint8_t *bytes, int64_t size) {
    int64_t position = writer->staged_position;
    int64_t end = position + size;
    int64_t distance = (position - (int64_t)(uintptr_t)bytes) & (LS_PAGE - 1);
    bool is_slow = distance >= 1 && distance <= SLOW_DISTANCE_MAX && size > 2 * COPY_BYTES;
    if (is_slow && ls_writer_reserve(writer, LS_PIECE) < 0) is_slow = false;
    bool is_one = size <= LS_PIECE && !is_slow;
    while (position < end) {
        int64_t to_boundary = (position / LS_PIECE + 1) * LS_PIECE - position;
        int64_t piece = is_one ? size : min64(end - position, to_boundary);
        if (piece < head_size) piece = head_size; /* The first one takes the head, and is bytes. */
        int64_t to_come = end - position - piece;
        int64_t result;
        if (is_slow) {
            result = write_copied(writer, head, head_size, bytes, piece, position, to_come);
        } else {
            struct ls_io_span spans[2] = {
                {(uintptr_t)head, head_size},
                {(uintptr_t)(bytes + head_size), piece - head_size},
            };
            int32_t first = head_size == 0;
            result = ls_writer_write_spans(writer, spans + first, 2 - first, position, to_come);
        }
        if (result < 0) return result;
        position += piece;
        bytes += piece;
        head_size = 0;
    }
    writer->staged_position = end;
    return 0;
}

int64_t ls_writer_put_encoded(ls_writer *writer, const uint8_t *head, int64_t head_size,
                              const uint8_t *bytes, int64_t size, const struct ls_batch *batches,
                              int64_t count) {
    int64_t result = check_batches(writer, batches, count, size);
    if (result < 0) return result;
    int64_t position = writer->pending.size_bytes;
    result = write_ready(writer, head, head_size, bytes, size);
    for (int64_t index = 0; result >= 0 && index < count; ++index) {
        struct ls_batch batch = batches[index];
        batch.position += position;
        result = ls_writer_count(writer, &batch);
        if (result >= 0 && ls_writer_is_due(writer)) result = ls_writer_write_due(writer, 0);
    }
    return result < 0 ? result : position;
}

int64_t ls_writer_append_encoded(ls_writer *writer, uintptr_t head, int64_t head_size,
                                 uintptr_t bytes, int64_t size, uintptr_t batches, int64_t count,
                                 bool publish, bool may_wait) {
    assert(size >= 0 && count >= 0);
    assert(head_size >= 0 && head_size <= size);
    int64_t result = ls_writer_begin(writer, may_wait);
    if (result < 0) return result;
    int64_t position =
        ls_writer_put_encoded(writer, (const uint8_t *)head, head_size, (const uint8_t *)bytes,
                              size, (const struct ls_batch *)batches, count);
    if (position < 0) {
        ls_writer_abort(writer);
    } else {
        result = ls_writer_commit(writer, publish);
        if (result < 0) position = result;
    }
    ls_writer_end(writer);
    pthread_mutex_unlock(&writer->lock);
    return position;
}

/* ---- ready batches in pieces ------------------------------------------------------------------------ */
static bool is_open_here(const ls_writer *writer) {
    return writer->is_in_pieces && pthread_equal(writer->owner, pthread_self());
}

int64_t ls_writer_open_pieces(ls_writer *writer) {
    int64_t result = ls_writer_begin(writer, true);
    if (result < 0) return result;
    writer->is_in_pieces = true;
    pthread_mutex_unlock(&writer->lock);
    return 0;
}

int64_t ls_writer_put_piece(ls_writer *writer, uintptr_t bytes, int64_t size, uintptr_t batches,
                            int64_t count) {
    assert(size >= 0 && count >= 0);
    if (ls_writer_is_forked(writer)) return LS_E_FORKED;
    pthread_mutex_lock(&writer->lock);
    assert(is_open_here(writer));
    int64_t result = ls_writer_put_encoded(writer, NULL, 0, (const uint8_t *)bytes, size,
                                           (const struct ls_batch *)batches, count);
    pthread_mutex_unlock(&writer->lock);
    return result;
}

int64_t ls_writer_close_pieces(ls_writer *writer, bool keep) {
    if (ls_writer_is_forked(writer)) return LS_E_FORKED;
    int64_t result = 0;
    pthread_mutex_lock(&writer->lock);
    if (is_open_here(writer)) {
        if (keep) {
            result = ls_writer_commit(writer, false);
        } else {
            ls_writer_abort(writer);
        }
        writer->is_in_pieces = false;
        ls_writer_end(writer);
    }
    pthread_mutex_unlock(&writer->lock);
    return result;
}

/* ---- rules of records ------------------------------------------------------------------------------- */
static int64_t refuse(struct ls_appended *appended, enum ls_problem problem, int64_t index) {
    appended->problem = (int32_t)problem;
    appended->problem_index = index;
    return LS_E_REFUSED;
}

enum ls_problem ls_judge_timestamp(const ls_writer *writer, int64_t timestamp, int64_t now,
                                   int32_t flags) {
    if (timestamp == -1) return LS_PROBLEM_NONE;
    if (timestamp < 0) return LS_PROBLEM_TIMESTAMP_NEGATIVE;
    if (flags & LS_APPEND_CHECK_UNITS && ls_timestamp_is_other_unit(timestamp)) {
        return LS_PROBLEM_TIMESTAMP_UNIT;
    }
    if (writer->config.flags & LS_WRITER_LOG_APPEND_TIME) return LS_PROBLEM_NONE;
    if (ls_wrapping_sub(now, timestamp) > writer->config.timestamp_before_max_ms ||
        ls_wrapping_sub(timestamp, now) > writer->config.timestamp_after_max_ms) {
        return LS_PROBLEM_TIMESTAMP_BOUNDS;
    }
    return LS_PROBLEM_NONE;
}

static int64_t refuse_timestamp(struct ls_appended *appended, enum ls_problem problem,
                                int64_t index, int64_t timestamp) {
    appended->problem_timestamp = timestamp;
    return refuse(appended, problem, index);
}

static int64_t check_timestamps(const ls_writer *writer, const struct ls_columns *columns,
                                int64_t first, int64_t end, int64_t now, int32_t flags,
                                struct ls_appended *appended) {
    const int64_t *timestamps = (const int64_t *)columns->timestamps;
    if (timestamps == NULL) {
        enum ls_problem problem = ls_judge_timestamp(writer, columns->timestamp, now, flags);
        if (problem == LS_PROBLEM_NONE) return 0;
        return refuse_timestamp(appended, problem, first, columns->timestamp);
    }
    for (int64_t index = first; index < end; ++index) {
        /* The same as its neighbour's is the usual case. */
        if (index > first && timestamps[index] == timestamps[index - 1]) continue;
        enum ls_problem problem = ls_judge_timestamp(writer, timestamps[index], now, flags);
        if (problem != LS_PROBLEM_NONE) {
            return refuse_timestamp(appended, problem, index, timestamps[index]);
        }
    }
    return 0;
}

static int64_t check_keys(const struct ls_columns *columns, int64_t first, int64_t end,
                          struct ls_appended *appended) {
    if (columns->key_offsets == 0) return refuse(appended, LS_PROBLEM_KEY_MISSING, first);
    const uint8_t *validity = (const uint8_t *)columns->key_validity;
    for (int64_t index = first; validity != NULL && index < end; ++index) {
        int64_t bit = columns->bit_offset + index;
        if (!(validity[bit >> 3] >> (bit & 7) & 1)) {
            return refuse(appended, LS_PROBLEM_KEY_MISSING, index);
        }
    }
    return 0;
}

/* ---- columns ------------------------------------------------------------------------------------------ */
/* Encode one batch at the stage; its size, or an error. */
static int64_t encode(ls_writer *writer, const struct ls_columns *columns, int64_t index,
                      const struct ls_batch_fields *fields, struct ls_encoded *encoded,
                      struct ls_appended *appended) {
    int64_t room = (int64_t)fields->batch_bytes + LS_ENCODE_SLACK;
    int64_t result = ls_writer_reserve(writer, room);
    if (result < 0) return result;
    result =
        ls_encode_batch(columns, index, fields, (uintptr_t)ls_writer_stage(writer), room, encoded);
    if (result == LS_E_NO_ROOM) { /* One record alone is larger than a batch aims to be. */
        int64_t bound = ls_record_bound(columns, index, 1);
        if (bound < 0) return refuse(appended, LS_PROBLEM_COLUMN, index);
        if (bound - LS_RECORD_OVERHEAD_MAX > writer->config.max_message_bytes) {
            return refuse(appended, LS_PROBLEM_RECORD_TOO_LARGE, index);
        }
        room = LS_BATCH_OVERHEAD + bound + LS_ENCODE_SLACK;
        result = ls_writer_reserve(writer, room);
        if (result < 0) return result;
        uintptr_t stage = (uintptr_t)ls_writer_stage(writer);
        result = ls_encode_batch(columns, index, fields, stage, room, encoded);
    }
    if (result == LS_E_CORRUPT) return refuse(appended, LS_PROBLEM_COLUMN, index);
    if (result == LS_E_TOO_LARGE) return refuse(appended, LS_PROBLEM_RECORD_TOO_LARGE, index);
    return result;
}

int64_t ls_append_batch(ls_writer *writer, struct ls_appended *appended,
                        const struct ls_batch *batch, int64_t index, int64_t now) {
    if (batch->size_bytes > writer->config.max_message_bytes) {
        return refuse(appended, LS_PROBLEM_RECORD_TOO_LARGE, index);
    }
    if (batch->size_bytes > writer->config.segment_bytes) {
        return refuse(appended, LS_PROBLEM_BATCH_TOO_LARGE, index);
    }
    if (ls_writer_must_roll(writer, &writer->pending, batch->size_bytes, batch->last_offset,
                            batch->max_timestamp, now)) {
        return LS_E_ROLL;
    }
    int64_t result = ls_writer_count(writer, batch);
    if (result < 0) return result;
    writer->staged_bytes += batch->size_bytes;
    appended->record_count += batch->record_count;
    appended->size_bytes += batch->size_bytes;
    if (batch->max_timestamp > appended->max_timestamp) {
        appended->max_timestamp = batch->max_timestamp;
        appended->offset_of_max_timestamp = batch->last_offset;
    }
    return 0;
}

/* Whether the next batch is too large for the rest of the segment, which saves encoding it. */
static bool is_full_for(const ls_writer *writer, const struct ls_columns *columns, int64_t index) {
    int64_t room = writer->config.segment_bytes - writer->pending.size_bytes;
    int64_t limit = ls_writer_batch_limit(writer) - LS_BATCH_OVERHEAD;
    if (LS_LIKELY(room >= LS_BATCH_OVERHEAD + limit)) return false;
    int64_t certain = 0; /* Records that it holds whatever their overhead turns out to be. */
    int64_t size = 0;
    int64_t possible = columns->count - index;
    while (certain < possible) {
        int64_t count = possible - (possible - certain) / 2;
        int64_t bound = ls_record_bound(columns, index, count);
        if (bound < 0) return false;
        if (bound <= limit) {
            certain = count;
            size = bound;
        } else {
            possible = count - 1;
        }
    }
    int64_t least = size - (LS_RECORD_OVERHEAD_MAX - LS_RECORD_BYTES_MIN) * certain;
    return certain > 0 && LS_BATCH_OVERHEAD + least > room; /* 0: perhaps too large for any. */
}

static int64_t append_columns(ls_writer *writer, const struct ls_columns *columns, int64_t first,
                              int64_t now, struct ls_appended *appended) {
    struct ls_batch_fields fields = ls_writer_fields(writer, now);
    for (int64_t index = first; index < columns->count;) {
        if (is_full_for(writer, columns, index)) return LS_E_ROLL;
        struct ls_encoded encoded;
        fields.base_offset = writer->pending.next_offset;
        int64_t size = encode(writer, columns, index, &fields, &encoded, appended);
        if (size < 0) return size;
        struct ls_batch batch = {
            .position = writer->pending.size_bytes,
            .base_offset = fields.base_offset,
            .last_offset = fields.base_offset + encoded.record_count - 1,
            .max_timestamp = encoded.max_timestamp,
            .size_bytes = size,
            .record_count = (int32_t)encoded.record_count,
        };
        int64_t next = index + encoded.record_count;
        int64_t result = ls_append_batch(writer, appended, &batch, index, now);
        if (result >= 0 && ls_writer_is_due(writer)) {
            /* An estimate is enough: it only says how much room to allocate ahead. */
            int64_t rest = columns->count - next;
            int64_t to_come =
                rest == 0 ? 0 : ls_record_bound(columns, next, rest) - BOUND_EXCESS * rest;
            result = ls_writer_write_due(writer, to_come);
        }
        if (result < 0) return result;
        index = next;
    }
    return 0;
}

static int64_t check_columns(const ls_writer *writer, const struct ls_columns *columns,
                             int64_t first, int64_t now, int32_t flags,
                             struct ls_appended *appended) {
    int64_t end = columns->count;
    int64_t result = check_timestamps(writer, columns, first, end, now, flags, appended);
    if (result < 0 || !(writer->config.flags & LS_WRITER_KEY_REQUIRED)) return result;
    return check_keys(columns, first, end, appended);
}

/* False: not even without any overhead do the records fit the segment. Saves writing half of them. */
static bool may_fit(const ls_writer *writer, const struct ls_columns *columns, int64_t first) {
    int64_t count = columns->count - first;
    int64_t bound = count == 0 ? 0 : ls_record_bound(columns, first, count);
    int64_t least = bound - (LS_RECORD_OVERHEAD_MAX - LS_RECORD_BYTES_MIN) * count;
    return least <= writer->config.segment_bytes - writer->committed.size_bytes;
}

struct ls_batch_fields ls_writer_fields(const ls_writer *writer, int64_t now) {
    bool is_append_time = writer->config.flags & LS_WRITER_LOG_APPEND_TIME;
    return (struct ls_batch_fields){
        .producer_id = -1,
        .log_append_time = is_append_time ? now : -1,
        .delete_horizon = -1,
        .leader_epoch = writer->config.leader_epoch,
        .base_sequence = -1,
        .producer_epoch = -1,
        .batch_bytes = (int32_t)ls_writer_batch_limit(writer),
    };
}

struct ls_appended ls_writer_nothing(const ls_writer *writer) {
    return (struct ls_appended){
        .first_offset = writer->pending.next_offset,
        .position = writer->pending.size_bytes,
        .max_timestamp = -1,
        .offset_of_max_timestamp = -1,
        .problem_index = -1,
    };
}

int64_t ls_writer_finish(ls_writer *writer, struct ls_appended *appended, int64_t result,
                         int32_t flags) {
    bool is_cut = result == LS_E_ROLL;
    if (is_cut) result = 0;
    bool is_nothing = appended->record_count == 0 || (is_cut && flags & LS_APPEND_ALL_OR_NOTHING);
    if (result >= 0 && !is_nothing)
        result = ls_writer_commit(writer, true);
    else
        ls_writer_abort(writer);
    if (result < 0 || is_nothing) {
        appended->record_count = 0;
        appended->size_bytes = 0;
        appended->max_timestamp = appended->offset_of_max_timestamp = -1;
    }
    ls_writer_end(writer);
    return result < 0 ? result : appended->record_count;
}

int64_t ls_writer_append_columns(ls_writer *writer, const struct ls_columns *columns, int64_t first,
                                 int64_t count, int64_t now, int32_t flags, bool may_wait,
                                 struct ls_appended *appended) {
    assert(columns != NULL && appended != NULL);
    assert(first >= 0 && count >= 0 && count <= columns->count - first);
    *appended = (struct ls_appended){.problem_index = -1};
    int64_t result = ls_writer_begin(writer, may_wait);
    if (result < 0) return result;
    *appended = ls_writer_nothing(writer);
    if (now < 0) now = ls_writer_now(writer);
    struct ls_columns part = *columns;
    part.count = first + count;
    if (count > 0 && !(flags & LS_APPEND_CHECKED)) {
        result = check_columns(writer, &part, first, now, flags, appended);
    }
    if (result >= 0 && flags & LS_APPEND_ALL_OR_NOTHING && !may_fit(writer, &part, first)) {
        result = LS_E_ROLL;
    }
    if (result >= 0) result = append_columns(writer, &part, first, now, appended);
    result = ls_writer_finish(writer, appended, result, flags);
    pthread_mutex_unlock(&writer->lock);
    return result;
}
