/*
 * ls_encode_loops.h: the encoder's loops. Included once for each width of registers by a file that
 * defines LOOP_TARGET (function attribute), LOOP(name) and copy_32(to, from) before.
 *
 * What makes them fast, in this order: the varint length of the offset delta splits the loop, so it
 * is a constant; what precedes a value is kept while the value's size repeats (struct
 * ls_value_shape); small values are copied in whole blocks, beyond their end where the column
 * allows it. Branches that are the same for every record cost less than arithmetic without them.
 */
#include "ls_encode_internal.h"

enum {
    /* copy_wild touches fewer than this many bytes beyond either end. */
    WILD_BYTES = 128,
    /* Records that are picked one by one come from memory that no processor guesses. */
    AHEAD = 8
};

LOOP_TARGET LS_INLINE void copy_64(uint8_t *to, const uint8_t *from) {
    copy_32(to, from);
    copy_32(to + 32, from + 32);
}

/* More than 128 bytes, exactly; the last block overlaps the one before. */
LOOP_TARGET LS_INLINE void copy_blocks(uint8_t *to, const uint8_t *from, int64_t size) {
    uint8_t *last = to + size - 128;
    const uint8_t *from_last = from + size - 128;
    for (; to < last; to += 128, from += 128) {
        copy_64(to, from);
        copy_64(to + 64, from + 64);
    }
    copy_64(last, from_last);
    copy_64(last + 64, from_last + 64);
}

/* Copy by size class, up to WILD_BYTES beyond the end. */
LOOP_TARGET LS_INLINE void copy_wild(uint8_t *to, const uint8_t *from, int64_t size) {
    if (LS_UNLIKELY(size > 256)) {
        copy_blocks(to, from, size);
        return;
    }
    copy_64(to, from);
    if (size > 64) {
        copy_64(to + 64, from + 64);
        if (size > 128) {
            copy_64(to + 128, from + 128);
            copy_64(to + 192, from + 192);
        }
    }
}

LOOP_TARGET LS_INLINE int64_t offset_at(const void *offsets, int64_t index, bool wide) {
    return wide ? ((const int64_t *)offsets)[index] : ((const int32_t *)offsets)[index];
}

/*
 * Records of a value alone with offset deltas of `delta_bytes` bytes, up to number `count_end`.
 * Returns 1 to go on with the next length, 0 when a record did not fit or needs the general loop,
 * or an enum ls_error.
 */
LOOP_TARGET LS_INLINE int64_t put_values(struct ls_encoding *encoding, bool wide,
                                         int32_t delta_bytes, int64_t count_end) {
    const uint8_t *bytes = encoding->values.bytes;
    const void *offsets = encoding->values.offsets;
    const int64_t wild_end = encoding->values.wild_end;
    const uint8_t *end = encoding->end;
    uint8_t *at = encoding->at;
    int64_t count = encoding->count;
    int64_t begin = offset_at(offsets, count, wide);
    struct ls_value_shape shape; /* A valid one: no size that descending offsets give is its. */
    int64_t result = 1;
    if (count_end > encoding->count_max) count_end = encoding->count_max;
    ls_make_value_shape(&shape, delta_bytes, 0);

    for (; count < count_end; ++count) {
        int64_t next = offset_at(offsets, count + 1, wide);
        int64_t size = ls_wrapping_sub(next, begin);
        if (LS_UNLIKELY(size != shape.value_size)) {
            if (!ls_fits_value_shape(count, size)) {
                result = 0; /* large, or descending: the general loop judges */
                break;
            }
            ls_make_value_shape(&shape, delta_bytes, size);
        }
        if (LS_UNLIKELY(shape.record_size > end - at)) {
            result = 0;
            break;
        }
        uint8_t *value_at = ls_put_around_value(&shape, at, count, delta_bytes);
        if (LS_LIKELY(next <= wild_end)) {
            copy_wild(value_at, bytes + begin, size);
        } else {
            if (next > encoding->values.size) return LS_E_CORRUPT;
            ls_copy(value_at, bytes + begin, size);
        }
        value_at[size] = 0; /* no headers */
        at += shape.record_size;
        begin = next;
    }
    encoding->at = at;
    encoding->count = count;
    return result;
}

LOOP_TARGET LS_INLINE int64_t put_all_values(struct ls_encoding *encoding, bool wide) {
    int64_t result = put_values(encoding, wide, 1, 1 << 6);
    if (result > 0) result = put_values(encoding, wide, 2, 1 << 13);
    return result > 0 ? put_values(encoding, wide, 3, 1 << 20) : result;
}

struct item {
    const uint8_t *bytes;
    int64_t size; /* -1 null */
    bool wild;
};

/* False: the offsets of this item descend, or exceed the column or 2^31 - 1 bytes. */
LOOP_TARGET LS_INLINE bool item_at(const struct ls_column *column, int64_t index,
                                   struct item *item) {
    *item = (struct item){.size = -1};
    if (column->offsets == NULL) return true;
    if (column->validity != NULL) {
        int64_t bit = column->bit_offset + index;
        if (!(column->validity[bit >> 3] >> (bit & 7) & 1)) return true;
    }
    int64_t begin = offset_at(column->offsets, index, column->wide);
    int64_t end = offset_at(column->offsets, index + 1, column->wide);
    if (LS_UNLIKELY(begin < 0 || end < begin || end > column->size || end - begin > INT32_MAX))
        return false;
    item->bytes = column->bytes + begin;
    item->size = end - begin;
    item->wild = end <= column->wild_end;
    return true;
}

LOOP_TARGET LS_INLINE uint8_t *put_item(uint8_t *at, const struct item *item) {
    if (item->size < 0) {
        *at = 1;
        return at + 1;
    }
    at = ls_put_varint(at, (uint32_t)item->size << 1);
    if (LS_LIKELY(item->wild)) {
        if (item->size <= 32) {
            copy_32(at, item->bytes);
        } else {
            copy_wild(at, item->bytes, item->size);
        }
    } else {
        ls_copy(at, item->bytes, item->size);
    }
    return at + item->size;
}

/* Records of any kind, up to number `count_end`; stops, without an error, when one does not fit. */
LOOP_TARGET LS_INLINE int64_t put_rows(struct ls_encoding *encoding, const int64_t *rows,
                                       int64_t count_end) {
    const struct ls_column values = encoding->values;
    const struct ls_column keys = encoding->keys;
    const struct ls_column headers = encoding->headers;
    const int64_t *timestamps = encoding->timestamps;
    const int64_t base_timestamp = encoding->base_timestamp;
    int64_t max_timestamp = encoding->max_timestamp;
    uint8_t *at = encoding->at;
    int64_t count = encoding->count;

    for (; count < count_end; ++count) {
        struct item key;
        struct item value;
        struct item header;
        int64_t row = rows != NULL ? rows[count] : count;
        if (rows != NULL && count + AHEAD < count_end && values.offsets != NULL) {
            /* Not yet judged: no pointer, only a hint. */
            int64_t ahead = offset_at(values.offsets, rows[count + AHEAD], values.wide);
            uintptr_t hint = (uintptr_t)values.bytes + (uintptr_t)ahead;
            __builtin_prefetch((const void *)hint);
            __builtin_prefetch((const void *)(hint + 64));
        }
        if (LS_UNLIKELY(!item_at(&keys, row, &key))) return LS_E_CORRUPT;
        if (LS_UNLIKELY(!item_at(&values, row, &value))) return LS_E_CORRUPT;
        if (LS_UNLIKELY(!item_at(&headers, row, &header))) return LS_E_CORRUPT;

        int64_t timestamp = timestamps != NULL ? timestamps[row] : encoding->timestamp;
        int64_t delta = ls_wrapping_sub(timestamp, base_timestamp);
        int64_t body =
            ls_record_body_size((int32_t)count, delta, key.size, value.size, header.size);
        int64_t size = ls_record_size_of(body);
        if (LS_UNLIKELY(size > encoding->end - at)) {
            if (count > 0) break;
            if (body > INT32_MAX) return LS_E_TOO_LARGE;
            if (size > encoding->out_end - at) return LS_E_NO_ROOM;
        }
        at = ls_put_varint(at, (uint32_t)body << 1);
        *at++ = 0;
        at = ls_put_varlong(at, ls_zigzag64(delta));
        at = ls_put_varint(at, (uint32_t)count << 1);
        at = put_item(at, &key);
        at = put_item(at, &value);
        if (LS_LIKELY(header.size <= 0)) {
            *at++ = 0;
        } else {
            ls_copy(at, header.bytes, header.size);
            at += header.size;
        }
        if (timestamp > max_timestamp) max_timestamp = timestamp;
    }
    encoding->at = at;
    encoding->count = count;
    encoding->max_timestamp = max_timestamp;
    return 0;
}

LOOP_TARGET static int64_t put_records(struct ls_encoding *encoding, int64_t count_end) {
    return put_rows(encoding, NULL, count_end);
}

LOOP_TARGET LS_INLINE bool is_valid(const uint8_t *validity, int64_t bit) {
    return validity[bit >> 3] >> (bit & 7) & 1;
}

#include "ls_encode_small_loops.h"

LOOP_TARGET int64_t LOOP(ls_encode_loop)(struct ls_encoding *encoding) {
    const struct ls_column *values = &encoding->values;
    const struct ls_column *keys = &encoding->keys;
    int64_t result = 1;
    if (encoding->rows != NULL) return put_rows(encoding, encoding->rows, encoding->count_max);
    if (values->offsets != NULL && encoding->headers.offsets == NULL) {
        bool values_alone = keys->offsets == NULL && values->validity == NULL &&
                            encoding->timestamps == NULL &&
                            encoding->timestamp == encoding->base_timestamp;
        if (values_alone) {
            if (offset_at(values->offsets, encoding->count, values->wide) < 0) return LS_E_CORRUPT;
            if (encoding->timestamp > encoding->max_timestamp)
                encoding->max_timestamp = encoding->timestamp;
            result =
                values->wide ? put_all_values(encoding, true) : put_all_values(encoding, false);
        } else if (values->wide) {
            result = keys->wide ? put_all_small(encoding, true, true)
                                : put_all_small(encoding, true, false);
        } else {
            result = keys->wide ? put_all_small(encoding, false, true)
                                : put_all_small(encoding, false, false);
        }
    }
    /* Zero: a record did not fit, or is for the general loop: it tells. */
    return result < 0 ? result : put_records(encoding, encoding->count_max);
}

LOOP_TARGET void LOOP(ls_copy_large)(uint8_t *to, const uint8_t *from, int64_t size) {
    copy_blocks(to, from, size);
}
