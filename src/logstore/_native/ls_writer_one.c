/*
 * ls_writer_one.c: one record, one batch, one pwrite, while the caller keeps the GIL. It never
 * waits for a lock (DESIGN.md D2): whatever is not plain is left to the general path.
 */
#include "ls_encode_inline.h"
#include "ls_writer.h"

enum { RECORD_BYTES_MAX = 65536 }; /* more is worth dropping the GIL for */

/* Encode the batch at the stage, judge it, write it. */
static int64_t append_one(ls_writer *writer, struct ls_item key, struct ls_item value,
                          int64_t timestamp) {
    const struct ls_writer_config *config = &writer->config;
    if (key.size < 0 && config->flags & LS_WRITER_KEY_REQUIRED) return LS_E_SLOW;
    int64_t now = ls_writer_now(writer);
    if (timestamp < 0) {
        timestamp = now;
    } else if (ls_judge_timestamp(writer, timestamp, now, LS_APPEND_CHECK_UNITS) !=
               LS_PROBLEM_NONE) {
        return LS_E_SLOW;
    }
    ls_writer_reset(writer);
    if (ls_writer_reserve(writer, LS_BATCH_OVERHEAD + RECORD_BYTES_MAX + LS_RECORD_OVERHEAD_MAX) <
        0) {
        return LS_E_SLOW;
    }
    uint8_t *stage = ls_writer_stage(writer);
    uint8_t *end = ls_put_record(stage + LS_BATCH_OVERHEAD, 0, 0, key.bytes, key.size, value.bytes,
                                 value.size, NULL, 0);
    struct ls_batch_fields fields = ls_writer_fields(writer, now);
    struct ls_batch batch = {
        .position = writer->pending.size_bytes,
        .base_offset = writer->pending.next_offset,
        .last_offset = writer->pending.next_offset,
        .max_timestamp = fields.log_append_time >= 0 ? now : timestamp,
        .size_bytes = end - stage,
        .record_count = 1,
    };
    if (batch.size_bytes > config->max_message_bytes ||
        ls_writer_must_roll(writer, batch.size_bytes, batch.last_offset, batch.max_timestamp,
                            now)) {
        return LS_E_SLOW;
    }
    fields.base_offset = batch.base_offset;
    ls_seal_batch((uintptr_t)stage, batch.size_bytes, &fields, timestamp, batch.max_timestamp, 0,
                  1);
    writer->staged_bytes = batch.size_bytes; /* One write, also over a piece boundary. */
    int64_t result = ls_writer_count(writer, &batch);
    if (result >= 0)
        result = ls_writer_commit(writer, true);
    else
        ls_writer_abort(writer);
    return result < 0 ? result : batch.base_offset;
}

int64_t ls_writer_append_one(ls_writer *writer, struct ls_item key, struct ls_item value,
                             int64_t timestamp) {
    if (ls_writer_is_forked(writer)) return LS_E_SLOW;
    int64_t bytes = (key.size < 0 ? 0 : key.size) + (value.size < 0 ? 0 : value.size);
    if (bytes >= RECORD_BYTES_MAX) return LS_E_SLOW;
    if (pthread_mutex_trylock(&writer->lock) != 0) return LS_E_SLOW;
    int64_t result = LS_E_SLOW;
    if (writer->is_attached && !writer->is_busy && !writer->is_dirty && writer->exclusive == 0 &&
        writer->config.flags & LS_WRITER_FAST) {
        result = append_one(writer, key, value, timestamp);
    }
    pthread_mutex_unlock(&writer->lock);
    return result;
}
