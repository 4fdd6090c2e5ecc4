/*
 * ls_writer_encoded.c: appends of batches that are encoded already, in one go or in pieces. Called
 * without the GIL. Contract: logstore.h.
 */
#include "ls_writer.h"

enum {
    /* On Zen 3 and 4 a `rep movsb` copy whose target is 1..31 bytes ahead of its source modulo the
     * page runs at a quarter of its speed; the kernel's copy from our memory is one. */
    SLOW_DISTANCE_MAX = 31,
    COPY_BYTES = 1024,         /* memcpy does not use `rep movsb` for so few */
    READY_BYTES = LS_PIECE / 2 /* ready batches are written in pieces of this size */
};

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
        memcpy(to + done, bytes + done, (size_t)ls_min64(COPY_BYTES, size - done));
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
 * in pieces. These are smaller than those of staged bytes: the kernel takes memory in blocks as large
 * as a piece, and on a machine that is a guest large blocks are often not there yet, and cost 5 times
 * as much (decision 0087).
 */
static int64_t write_ready(ls_writer *writer, const uint8_t *head, int64_t head_size,
                           const uint8_t *bytes, int64_t size) {
    int64_t position = writer->staged_position;
    int64_t end = position + size;
    int64_t distance = (position - (int64_t)(uintptr_t)bytes) & (LS_PAGE - 1);
    bool is_slow = distance >= 1 && distance <= SLOW_DISTANCE_MAX && size > 2 * COPY_BYTES;
    if (is_slow && ls_writer_reserve(writer, LS_PIECE) < 0) is_slow = false;
    while (position < end) {
        int64_t piece = ls_min64(end - position, READY_BYTES - position % READY_BYTES);
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
