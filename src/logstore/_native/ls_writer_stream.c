/*
 * ls_writer_stream.c: a bulk append whose records come one by one, as from a Python list. Contract:
 * ls_writer.h. Nothing here knows of Python, but everything except open, write and close is quick
 * enough to be called with the GIL.
 */
#include "ls_writer.h"

int64_t ls_stream_open(ls_writer *writer, struct ls_stream *stream, bool may_wait) {
    *stream = (struct ls_stream){
        .writer = writer,
        .appended = {.problem_index = -1},
        .now = stream->now,
        .flags = stream->flags,
        .shape = LS_VALUE_SHAPE_NONE,
    };
    int64_t result = ls_writer_begin(writer, may_wait);
    if (result < 0) return result;
    if (stream->flags & LS_APPEND_IF_FAST && !ls_writer_is_fast(writer)) {
        ls_writer_end(writer);
        pthread_mutex_unlock(&writer->lock);
        return LS_E_REFUSED;
    }
    stream->appended = ls_writer_nothing(writer);
    if (stream->now < 0) stream->now = ls_writer_now(writer);
    pthread_mutex_unlock(&writer->lock);
    return 0;
}

static int64_t refuse(struct ls_stream *stream, enum ls_problem problem, int64_t index) {
    stream->appended.problem = (int32_t)problem;
    stream->appended.problem_index = index;
    return LS_E_REFUSED;
}

int64_t ls_stream_judge(struct ls_stream *stream, int64_t index, struct ls_item key,
                        int64_t timestamp) {
    if (stream->writer->config.flags & LS_WRITER_KEY_REQUIRED && key.size < 0) {
        return refuse(stream, LS_PROBLEM_KEY_MISSING, index);
    }
    enum ls_problem problem =
        ls_judge_timestamp(stream->writer, timestamp, stream->now, stream->flags);
    if (problem == LS_PROBLEM_NONE) return 0;
    stream->appended.problem_timestamp = timestamp;
    return refuse(stream, problem, index);
}

int64_t ls_stream_put(struct ls_stream *stream, struct ls_item key, struct ls_item value,
                      struct ls_item header, int64_t timestamp) {
    int64_t delta = ls_wrapping_sub(timestamp, stream->base_timestamp);
    int64_t size = ls_record_size(stream->count, delta, key.size, value.size, header.size);
    if (stream->start == NULL || size > stream->end - stream->at) return LS_STREAM_NEXT;
    stream->at = ls_put_record(stream->at, stream->count, delta, key.bytes, key.size, value.bytes,
                               value.size, header.bytes, header.size);
    stream->count += 1;
    if (timestamp > stream->max_timestamp) stream->max_timestamp = timestamp;
    return 0;
}

int64_t ls_stream_seal(struct ls_stream *stream) {
    if (stream->count == 0) return 0;
    ls_writer *writer = stream->writer;
    struct ls_batch_fields fields = ls_writer_fields(writer, stream->now);
    fields.base_offset = writer->pending.next_offset;
    int64_t size = ls_seal_batch((uintptr_t)stream->start, stream->at - stream->start, &fields,
                                 stream->base_timestamp, stream->max_timestamp, stream->count - 1,
                                 stream->count);
    struct ls_batch batch = {
        .position = writer->pending.size_bytes,
        .base_offset = fields.base_offset,
        .last_offset = fields.base_offset + stream->count - 1,
        .max_timestamp = fields.log_append_time >= 0 ? stream->now : stream->max_timestamp,
        .size_bytes = size,
        .record_count = stream->count,
    };
    stream->count = 0;
    stream->start = NULL;
    return ls_append_batch(writer, &stream->appended, &batch, stream->first, stream->now);
}

bool ls_stream_is_due(const struct ls_stream *stream) {
    return ls_writer_is_due(stream->writer);
}

int64_t ls_stream_room(const struct ls_stream *stream) {
    return stream->writer->config.segment_bytes - stream->writer->pending.size_bytes;
}

int64_t ls_stream_write(struct ls_stream *stream, int64_t bytes_to_come) {
    return ls_writer_write_due(stream->writer, bytes_to_come);
}

int64_t ls_stream_start(struct ls_stream *stream, int64_t index, int64_t record_size,
                        int64_t timestamp) {
    ls_writer *writer = stream->writer;
    assert(stream->count == 0);
    int64_t size = LS_BATCH_OVERHEAD + record_size;
    /* Before any memory is taken for it. */
    if (size > writer->config.max_message_bytes) {
        return refuse(stream, LS_PROBLEM_RECORD_TOO_LARGE, index);
    }
    /* The first record fits in any case: it alone may make the batch larger than usual. */
    int64_t limit = ls_writer_batch_limit(writer);
    if (limit < size) limit = size;
    int64_t result = ls_writer_reserve(writer, limit);
    if (result < 0) return result;
    stream->start = ls_writer_stage(writer);
    stream->at = stream->start + LS_BATCH_OVERHEAD;
    stream->end = stream->start + limit;
    stream->first = index;
    stream->base_timestamp = timestamp;
    stream->max_timestamp = timestamp;
    return 0;
}

int64_t ls_stream_close(struct ls_stream *stream, int64_t result, bool may_wait) {
    ls_writer *writer = stream->writer;
    if (may_wait)
        pthread_mutex_lock(&writer->lock);
    else if (pthread_mutex_trylock(&writer->lock) != 0)
        return LS_E_SLOW;
    result = ls_writer_finish(writer, &stream->appended, result, stream->flags);
    pthread_mutex_unlock(&writer->lock);
    return result;
}
