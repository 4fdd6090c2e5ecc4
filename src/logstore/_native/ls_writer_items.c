/*
 * ls_writer_items.c: records from arrays of pointers, as a walk over a Python list collects them.
 * Called without the GIL, slice after slice; the writer is ours from open to close, its lock is
 * held only within a call.
 */
#include "ls_encode_inline.h"
#include "ls_writer.h"

/* The batch being filled. */
struct filling {
    uint8_t *start;
    uint8_t *at;
    uint8_t *end;  /* of the usual size */
    int64_t index; /* of its first record */
    int64_t base_timestamp;
    int64_t max_timestamp;
    int32_t count;
};

static int64_t refuse(struct ls_items_append *append, enum ls_problem problem, int64_t index) {
    append->appended.problem = (int32_t)problem;
    append->appended.problem_index = index;
    return LS_E_REFUSED;
}

/* Check the rules of one record. */
static int64_t judge(const ls_writer *writer, struct ls_items_append *append,
                     const struct ls_items *items, int64_t index) {
    if (writer->config.flags & LS_WRITER_KEY_REQUIRED &&
        (items->keys == NULL || items->keys[index].size < 0)) {
        return refuse(append, LS_PROBLEM_KEY_MISSING, items->first + index);
    }
    int64_t timestamp = items->timestamps ? items->timestamps[index] : items->timestamp;
    enum ls_problem problem = ls_judge_timestamp(writer, timestamp, append->now, append->flags);
    if (problem != LS_PROBLEM_NONE) return refuse(append, problem, items->first + index);
    return 0;
}

static int64_t judge_all(const ls_writer *writer, struct ls_items_append *append,
                         const struct ls_items *items) {
    bool is_simple = items->timestamps == NULL && !(writer->config.flags & LS_WRITER_KEY_REQUIRED);
    int64_t count = is_simple && items->count > 1 ? 1 : items->count;
    for (int64_t index = 0; index < count; ++index) {
        int64_t result = judge(writer, append, items, index);
        if (result < 0) return result;
    }
    return 0;
}

/* Seal what was filled and let it join the append. */
static int64_t seal(ls_writer *writer, struct ls_items_append *append, struct filling *filling,
                    int64_t first, int64_t bytes_to_come) {
    struct ls_batch_fields fields = ls_writer_fields(writer, append->now);
    fields.base_offset = writer->pending.next_offset;
    int64_t size = ls_seal_batch((uintptr_t)filling->start, filling->at - filling->start, &fields,
                                 filling->base_timestamp, filling->max_timestamp,
                                 filling->count - 1, filling->count);
    struct ls_batch batch = {
        .position = writer->pending.size_bytes,
        .base_offset = fields.base_offset,
        .last_offset = fields.base_offset + filling->count - 1,
        .max_timestamp = fields.log_append_time >= 0 ? append->now : filling->max_timestamp,
        .size_bytes = size,
        .record_count = filling->count,
    };
    return ls_append_batch(writer, &append->appended, &batch, first + filling->index, append->now,
                           bytes_to_come);
}

/* Begin a batch with record `index`, of `size` bytes. */
static int64_t start(ls_writer *writer, struct filling *filling, const struct ls_items *items,
                     int64_t index, int64_t size) {
    int64_t limit = ls_writer_batch_limit(writer);
    int64_t room = limit > LS_BATCH_OVERHEAD + size ? limit : LS_BATCH_OVERHEAD + size;
    int64_t result = ls_writer_reserve(writer, room);
    if (result < 0) return result;
    uint8_t *stage = ls_writer_stage(writer);
    int64_t timestamp = items->timestamps ? items->timestamps[index] : items->timestamp;
    *filling = (struct filling){
        .start = stage,
        .at = stage + LS_BATCH_OVERHEAD,
        .end = stage + limit,
        .index = index,
        .base_timestamp = timestamp,
        .max_timestamp = timestamp,
    };
    return 0;
}

/* The loop over records; `is_plain`, known where it is inlined, is for values alone. */
LS_INLINE int64_t fill(ls_writer *writer, struct ls_items_append *append,
                       const struct ls_items *items, int64_t bytes_to_come, const bool is_plain) {
    struct filling filling = {0};
    const struct ls_item none = {NULL, -1};
    for (int64_t index = 0; index < items->count; ++index) {
        struct ls_item value = items->values[index];
        struct ls_item key = !is_plain && items->keys ? items->keys[index] : none;
        struct ls_item header = !is_plain && items->headers ? items->headers[index] : none;
        int64_t timestamp =
            !is_plain && items->timestamps ? items->timestamps[index] : items->timestamp;
        int64_t delta = is_plain ? 0 : ls_wrapping_sub(timestamp, filling.base_timestamp);
        int64_t size = ls_record_size(filling.count, delta, key.size, value.size, header.size);
        if (filling.count == 0 || LS_UNLIKELY(size > filling.end - filling.at)) {
            if (filling.count > 0) {
                int64_t result = seal(writer, append, &filling, items->first, bytes_to_come);
                if (result < 0) return result;
            }
            delta = 0;
            size = ls_record_size(0, 0, key.size, value.size, header.size);
            /* Before any memory is taken for it. */
            if (LS_BATCH_OVERHEAD + size > writer->config.max_message_bytes) {
                return refuse(append, LS_PROBLEM_RECORD_TOO_LARGE, items->first + index);
            }
            int64_t result = start(writer, &filling, items, index, size);
            if (result < 0) return result;
        }
        filling.at = ls_put_record(filling.at, filling.count, delta, key.bytes, key.size,
                                   value.bytes, value.size, header.bytes, header.size);
        filling.count += 1;
        if (!is_plain && timestamp > filling.max_timestamp) filling.max_timestamp = timestamp;
    }
    return filling.count == 0 ? 0 : seal(writer, append, &filling, items->first, bytes_to_come);
}

static int64_t add(ls_writer *writer, struct ls_items_append *append, const struct ls_items *items,
                   int64_t bytes_to_come) {
    if (append->must_roll) return 0;
    struct ls_items slice = *items;
    if (slice.timestamp < 0) slice.timestamp = append->now;
    int64_t result = judge_all(writer, append, &slice);
    if (result < 0) return result;
    bool is_plain = slice.keys == NULL && slice.headers == NULL && slice.timestamps == NULL;
    result = is_plain ? fill(writer, append, &slice, bytes_to_come, true)
                      : fill(writer, append, &slice, bytes_to_come, false);
    if (result != LS_E_ROLL) return result;
    append->must_roll = true;
    return 0;
}

/* ---- the steps -------------------------------------------------------------------------------------- */
/* On success the lock is held. */
static int64_t open_append(ls_writer *writer, struct ls_items_append *append, bool may_wait) {
    append->appended = (struct ls_appended){.problem_index = -1};
    append->must_roll = false;
    int64_t result = ls_writer_begin(writer, may_wait);
    if (result < 0) return result;
    append->appended = ls_writer_nothing(writer);
    if (append->now < 0) append->now = ls_writer_now(writer);
    return 0;
}

static int64_t close_append(ls_writer *writer, struct ls_items_append *append, int64_t result) {
    if (result >= 0 && append->must_roll) result = LS_E_ROLL;
    return ls_writer_finish(writer, &append->appended, result, append->flags);
}

int64_t ls_items_append_all(ls_writer *writer, struct ls_items_append *append,
                            const struct ls_items *items, bool may_wait) {
    int64_t result = open_append(writer, append, may_wait);
    if (result < 0) return result;
    result = close_append(writer, append, add(writer, append, items, 0));
    pthread_mutex_unlock(&writer->lock);
    return result;
}

int64_t ls_items_open(ls_writer *writer, struct ls_items_append *append) {
    int64_t result = open_append(writer, append, true);
    if (result >= 0) pthread_mutex_unlock(&writer->lock);
    return result;
}

int64_t ls_items_add(ls_writer *writer, struct ls_items_append *append,
                     const struct ls_items *items, int64_t bytes_to_come) {
    pthread_mutex_lock(&writer->lock);
    int64_t result = add(writer, append, items, bytes_to_come);
    pthread_mutex_unlock(&writer->lock);
    return result;
}

int64_t ls_items_close(ls_writer *writer, struct ls_items_append *append, int64_t result) {
    pthread_mutex_lock(&writer->lock);
    result = close_append(writer, append, result);
    pthread_mutex_unlock(&writer->lock);
    return result;
}
