/*
 * ls_writer_bulk.c: appends of many records, which are made of columns, and the rules that they are
 * held to. Called without the GIL. Contract: logstore.h.
 */
#include "ls_encode_inline.h"
#include "ls_writer.h"

enum { BOUND_EXCESS = 22 }; /* what a bound has beyond a usual record */

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
        if (!ls_is_valid(validity, columns->bit_offset + index)) {
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
