/*
 * ls_columns_rows.c: the records of one batch as rows of columns, decoded and copied in one pass.
 * Source: Kafka DefaultRecord; spec 1.4.
 *
 * One pass is 1.6x faster than decoding first and copying then, and small values are copied in whole
 * blocks: a branch by size class costs less than an exact copy. Records that are alike are known by
 * one comparison, which takes 0.8 of the time where nothing is copied. The loops are compiled for two
 * widths of registers and chosen at run time.
 */
#include "ls_columns_items.h"
#include "ls_record_shape.h"

#if LS_X86
#define WIDE_TARGET __attribute__((target("avx2,bmi2")))
#endif

/* Without a copy every record's first bytes are waited for: ask for what comes. */
enum { READ_AHEAD_BYTES = 1024 };

/* ---- whole batches -------------------------------------------------------------------------- */
/* The two columns that a batch gives one value. */
LS_INLINE void fill_constants(const struct ls_gather *gather, const struct ls_open_batch *batch) {
    int32_t *types = (int32_t *)gather->timestamp_types;
    int32_t *epochs = (int32_t *)gather->leader_epochs;
    int32_t type = batch->timestamp_type == 1;
    int64_t end = gather->rows + batch->record_count;
    for (int64_t row = gather->rows; types && row < end; ++row)
        types[row] = type;
    for (int64_t row = gather->rows; epochs && row < end; ++row)
        epochs[row] = batch->leader_epoch;
}

/*
 * Append all records of a batch. Offsets that do not increase would let a reader skip a record:
 * damage, and `to` is as it was; so it is after LS_BLOCK_FULL, if a key or headers do not fit.
 * values_only: there are neither keys nor headers.
 */
LS_INLINE enum ls_block_stop put_whole(struct ls_gather *to, const struct ls_open_batch *batch,
                                       bool exact, bool views, bool values_only) {
    const uint8_t *at = batch->records;
    const bool stamped = batch->timestamp_type == 1;
    const int64_t base_timestamp = stamped ? batch->max_timestamp : batch->base_timestamp;
    const int64_t delta_mask = stamped ? 0 : -1;
    int64_t *offsets = (int64_t *)to->offsets;
    int64_t *timestamps = (int64_t *)to->timestamps;
    const uintptr_t base = to->view_base;
    const int32_t buffer = to->view_buffer;
    /* Copies: what is stored through pointers might alias `to`. */
    struct ls_gather_bytes values = to->values;
    struct ls_gather_bytes keys = to->keys;
    struct ls_gather_headers headers = to->headers;
    int64_t last_delta = -1;
    int64_t size_before = 0;
    int64_t row = to->rows;
    const int64_t row_end = row + batch->record_count;
    if (values.offsets) set_bits(values.validity, row, batch->record_count);
    if (!values_only && keys.offsets) set_bits(keys.validity, row, batch->record_count);
    for (; row < row_end; ++row) {
        struct ls_record record;
        if (views) __builtin_prefetch((const void *)((uintptr_t)at + READ_AHEAD_BYTES));
        const uint8_t *begin = at;
        at = ls_parse_record(at, batch->end, &record);
        if (LS_UNLIKELY(at == NULL || record.offset_delta <= last_delta)) return LS_BLOCK_INVALID;
        last_delta = record.offset_delta;
        if (offsets) offsets[row] = batch->base_offset + record.offset_delta;
        if (timestamps) {
            timestamps[row] = ls_wrapping_add(base_timestamp, record.timestamp_delta & delta_mask);
        }
        if (values_only || values.offsets) {
            if (views) {
                put_next_view(&values, row, record.value, record.value_size, base, buffer);
            } else {
                put_next(&values, row, record.value, record.value_size, exact);
            }
        }
        if (values_only) {
            /* Then those that follow and are like it, if it is like the one before. */
            struct record_shape shape;
            bool is_as_large = at - begin == size_before;
            size_before = at - begin;
            if (!is_as_large || !learn_shape(begin, at, batch->end, &record, &shape)) continue;
            int64_t delta;
            while (row + 1 < row_end && batch->end - at >= shape.record_size + SHAPE_BYTES &&
                   has_shape(&shape, at, &delta)) {
                if (views) __builtin_prefetch((const void *)((uintptr_t)at + READ_AHEAD_BYTES));
                const uint8_t *value = at + shape.value_at;
                row += 1;
                at += shape.record_size;
                last_delta += 1;
                if (offsets) offsets[row] = batch->base_offset + last_delta;
                if (timestamps) {
                    timestamps[row] = ls_wrapping_add(base_timestamp, delta & delta_mask);
                }
                if (views) {
                    put_next_view(&values, row, value, shape.value_size, base, buffer);
                } else {
                    put_next(&values, row, value, shape.value_size, exact);
                }
            }
            continue;
        }
        if (keys.offsets) {
            if (views) {
                put_next_view(&keys, row, record.key, record.key_size, base, buffer);
            } else {
                if (LS_UNLIKELY(record.key_size > keys.capacity - keys.size)) return LS_BLOCK_FULL;
                put_next(&keys, row, record.key, record.key_size, exact);
            }
        }
        if (headers.offsets) {
            if (LS_LIKELY(record.header_count == 0)) {
                ((int32_t *)headers.offsets)[row + 1] = (int32_t)headers.count;
            } else if (!ls_put_headers(&headers, row, record.headers, at)) {
                return LS_BLOCK_FULL;
            }
        }
    }
    if (at != batch->end || last_delta > batch->last_offset_delta) return LS_BLOCK_INVALID;
    fill_constants(to, batch);
    to->rows = row;
    to->values = values;
    if (!values_only) {
        to->keys = keys;
        to->headers = headers;
    }
    to->start_offset = batch->base_offset + batch->last_offset_delta + 1;
    return LS_BLOCK_END;
}

/* Whether all of the batch is wanted, and has room if its keys and headers do. */
static bool takes_whole(const struct ls_gather *gather, const struct ls_open_batch *batch) {
    return gather->record_position == 0 && batch->base_offset >= gather->start_offset &&
           batch->base_offset + batch->last_offset_delta < gather->stop_offset &&
           batch->record_count <= gather->rows_max - gather->rows &&
           (gather->view_base || !gather->values.offsets ||
            batch->end - batch->records <= gather->values.capacity - gather->values.size);
}

bool ls_header_says_all(const struct ls_gather *gather, const struct ls_open_batch *batch) {
    return gather->flags & LS_GATHER_CRC && !gather->values.offsets && !gather->keys.offsets &&
           !gather->headers.offsets && (!gather->timestamps || batch->timestamp_type == 1) &&
           batch->record_count - 1 == batch->last_offset_delta && takes_whole(gather, batch);
}

/* Append the rows of a batch whose header says all that is wanted of them. */
LS_INLINE void put_header(struct ls_gather *gather, const struct ls_open_batch *batch) {
    int64_t *offsets = (int64_t *)gather->offsets;
    int64_t *timestamps = (int64_t *)gather->timestamps;
    int64_t row = gather->rows;
    int64_t count = batch->record_count;
    for (int64_t index = 0; offsets && index < count; ++index)
        offsets[row + index] = batch->base_offset + index;
    for (int64_t index = 0; timestamps && index < count; ++index)
        timestamps[row + index] = batch->max_timestamp;
    fill_constants(gather, batch);
    gather->rows = row + count;
    gather->start_offset = batch->base_offset + batch->last_offset_delta + 1;
}

/* ---- any rows ------------------------------------------------------------------------------- */
/* Item `row` of a column; the room was looked at. */
LS_INLINE void put_bytes(const struct ls_gather *gather, struct ls_gather_bytes *column,
                         int64_t row, const uint8_t *bytes, int32_t size, bool exact) {
    uint8_t *byte = (uint8_t *)column->validity + row / 8;
    uint8_t bit = (uint8_t)(1 << row % 8);
    if (row % 8 == 0) *byte = 0;
    *byte = (uint8_t)(size < 0 ? *byte & ~bit : *byte | bit); /* put_whole may have set it */
    column->null_count += size < 0;
    if (gather->view_base) {
        uint8_t *view = (uint8_t *)column->offsets + LS_GATHER_VIEW_BYTES * row;
        put_view(view, bytes, size < 0 ? 0 : size,
                 (uint32_t)gather->view_buffer | (uint64_t)((uintptr_t)bytes - gather->view_base)
                                                     << 32);
        return;
    }
    if (size > 0) {
        copy_bytes((uint8_t *)column->bytes + column->size, bytes, size, exact);
        column->size += size;
    }
    ((int32_t *)column->offsets)[row + 1] = (int32_t)column->size;
}

/* Whether a record fits; if not, `full` and `wanted` say what it does not fit. */
LS_INLINE bool has_room(struct ls_gather *gather, const struct ls_record *record) {
    if (LS_UNLIKELY(gather->rows == gather->rows_max)) {
        gather->full = LS_GATHER_FULL_ROWS;
        return false;
    }
    if (gather->view_base) return true;
    if (gather->values.offsets &&
        LS_UNLIKELY(record->value_size > gather->values.capacity - gather->values.size)) {
        gather->full = LS_GATHER_FULL_VALUES;
        gather->wanted = record->value_size;
        return false;
    }
    if (gather->keys.offsets &&
        LS_UNLIKELY(record->key_size > gather->keys.capacity - gather->keys.size)) {
        gather->full = LS_GATHER_FULL_KEYS;
        gather->wanted = record->key_size;
        return false;
    }
    return true;
}

LS_INLINE void put_row(struct ls_gather *gather, const struct ls_open_batch *batch,
                       const struct ls_record *record, bool exact) {
    int64_t row = gather->rows;
    bool stamped = batch->timestamp_type == 1;
    if (gather->offsets) {
        ((int64_t *)gather->offsets)[row] = batch->base_offset + record->offset_delta;
    }
    if (gather->timestamps) {
        ((int64_t *)gather->timestamps)[row] =
            stamped ? batch->max_timestamp
                    : ls_wrapping_add(batch->base_timestamp, record->timestamp_delta);
    }
    if (gather->values.offsets) {
        put_bytes(gather, &gather->values, row, record->value, record->value_size, exact);
    }
    if (gather->keys.offsets) {
        put_bytes(gather, &gather->keys, row, record->key, record->key_size, exact);
    }
    if (gather->timestamp_types) ((int32_t *)gather->timestamp_types)[row] = stamped;
    if (gather->leader_epochs) ((int32_t *)gather->leader_epochs)[row] = batch->leader_epoch;
    gather->rows = row + 1;
}

/*
 * Append a batch's records from gather->record_position on, as far as they are wanted and there is
 * room. LS_BLOCK_END: the batch is done.
 */
LS_INLINE enum ls_block_stop put_rows(struct ls_gather *to, const struct ls_open_batch *batch,
                                      const uint8_t *bytes, bool exact) {
    /* Copies: what is stored through pointers might alias `to`. */
    struct ls_gather gather = *to;
    struct ls_gather_headers headers = to->headers;
    const uint8_t *at =
        gather.record_position > 0 ? bytes + gather.record_position : batch->records;
    int32_t index = gather.record_index;
    int64_t last_delta = -1;
    enum ls_block_stop stop = LS_BLOCK_END;
    while (index < batch->record_count) {
        struct ls_record record;
        const uint8_t *next = ls_parse_record(at, batch->end, &record);
        if (LS_UNLIKELY(next == NULL || record.offset_delta <= last_delta ||
                        record.offset_delta > batch->last_offset_delta)) {
            return LS_BLOCK_INVALID; /* `to` is as it was */
        }
        last_delta = record.offset_delta;
        int64_t offset = batch->base_offset + record.offset_delta;
        if (LS_UNLIKELY(offset >= gather.stop_offset)) {
            stop = LS_BLOCK_BOUND;
            break;
        }
        if (LS_LIKELY(offset >= gather.start_offset)) {
            if (LS_UNLIKELY(!has_room(&gather, &record))) {
                stop = LS_BLOCK_FULL;
                break;
            }
            if (headers.offsets) {
                if (LS_LIKELY(record.header_count == 0)) {
                    ((int32_t *)headers.offsets)[gather.rows + 1] = (int32_t)headers.count;
                } else if (!ls_put_headers(&headers, gather.rows, record.headers, next)) {
                    gather.full = LS_GATHER_FULL_HEADERS;
                    stop = LS_BLOCK_FULL;
                    break;
                }
            }
            put_row(&gather, batch, &record, exact);
            gather.start_offset = offset + 1;
        }
        at = next;
        index += 1;
    }
    if (stop == LS_BLOCK_END && at != batch->end) return LS_BLOCK_INVALID;
    gather.record_position = stop == LS_BLOCK_FULL ? at - bytes : 0;
    gather.record_index = stop == LS_BLOCK_FULL ? index : 0;
    gather.headers = headers;
    *to = gather;
    return stop;
}

LS_INLINE enum ls_block_stop put_batch_in(struct ls_gather *gather,
                                          const struct ls_open_batch *batch, const uint8_t *bytes,
                                          bool exact) {
    enum ls_block_stop stop = LS_BLOCK_FULL;
    if (ls_header_says_all(gather, batch)) {
        put_header(gather, batch);
        return LS_BLOCK_END;
    }
    if (LS_LIKELY(takes_whole(gather, batch))) {
        bool values_only =
            gather->values.offsets && !gather->keys.offsets && !gather->headers.offsets;
        if (gather->view_base) {
            stop = values_only ? put_whole(gather, batch, exact, true, true)
                               : put_whole(gather, batch, exact, true, false);
        } else {
            stop = values_only ? put_whole(gather, batch, exact, false, true)
                               : put_whole(gather, batch, exact, false, false);
        }
    }
    return stop == LS_BLOCK_FULL ? put_rows(gather, batch, bytes, exact) : stop;
}

static enum ls_block_stop put_batch_portable(struct ls_gather *gather,
                                             const struct ls_open_batch *batch,
                                             const uint8_t *bytes, bool exact) {
    return put_batch_in(gather, batch, bytes, exact);
}

#if LS_X86
WIDE_TARGET static enum ls_block_stop put_batch_wide(struct ls_gather *gather,
                                                     const struct ls_open_batch *batch,
                                                     const uint8_t *bytes, bool exact) {
    return put_batch_in(gather, batch, bytes, exact);
}
#endif

enum ls_block_stop ls_put_batch(struct ls_gather *gather, const struct ls_open_batch *batch,
                                const uint8_t *bytes, const uint8_t *readable) {
    /* Arrow's lists of positions begin with one that no row writes. */
    if (gather->rows == 0) {
        if (gather->values.offsets && !gather->view_base) *(int32_t *)gather->values.offsets = 0;
        if (gather->keys.offsets && !gather->view_base) *(int32_t *)gather->keys.offsets = 0;
        if (gather->headers.offsets) *(int32_t *)gather->headers.offsets = 0;
    }
    bool exact = readable - batch->end < WILD_BYTES;
#if LS_X86
    if (LS_LIKELY(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2"))) {
        return put_batch_wide(gather, batch, bytes, exact);
    }
#endif
    return put_batch_portable(gather, batch, bytes, exact);
}
