/*
 * ls_encode_small_loops.h: the encoder's loops for small records with keys or times: part of
 * ls_encode_loops.h, which includes it in its middle.
 *
 * What precedes the key is one word, and what records in a row have in common is made once.
 */
enum {
    SMALL_VALUE_MAX = 8000, /* so that the body's length takes two bytes at most */
    SMALL_KEY_MAX = 63,     /* and the key's one */
    SMALL_TIMESTAMP_BITS = 1 << 14
};

/*
 * What records of one value size, key size and time have in common: [0] those with a null key, [1]
 * those with one. Only the offset delta, `key` and `value` are to be put.
 */
struct small_shape {
    uint64_t value_size;
    uint64_t key_size;
    uint64_t value_length; /* as a varint */
    uint64_t head[2];      /* what precedes the key, without the delta */
    int64_t delta_shift[2];
    int64_t key_at[2];
    int64_t size[2];
    int32_t value_length_bytes;
};

LOOP_TARGET static void make_small_shape(struct small_shape *shape, uint64_t value_size,
                                         uint64_t key_size, uint64_t time_bits,
                                         int32_t delta_bytes) {
    int32_t time_bytes = time_bits < 128 ? 1 : 2;
    int32_t length_bytes = value_size < 64 ? 1 : 2;
    shape->value_size = value_size;
    shape->key_size = key_size;
    shape->value_length_bytes = length_bytes;
    shape->value_length = ls_short_varint_word((uint32_t)value_size << 1, length_bytes);
    for (int has_key = 0; has_key < 2; ++has_key) {
        uint64_t key_bytes = has_key ? key_size : 0;
        uint32_t body = (uint32_t)(3 + time_bytes + delta_bytes + length_bytes) +
                        (uint32_t)(key_bytes + value_size);
        int32_t body_bytes = body < 64 ? 1 : 2;
        int32_t shift = 8 * body_bytes + 8;
        uint64_t head = ls_short_varint_word(body << 1, body_bytes);
        head |= ls_short_varint_word((uint32_t)time_bits, time_bytes) << shift;
        shift += 8 * time_bytes;
        shape->delta_shift[has_key] = shift;
        shift += 8 * delta_bytes;
        shape->head[has_key] = head | (has_key ? key_size << 1 : 1) << shift;
        shape->key_at[has_key] = shift / 8 + 1;
        shape->size[has_key] = (int64_t)body + body_bytes;
    }
}

/*
 * Records of this shape and time, as long as they come. A loop of its own, that what it needs stays
 * in registers.
 */
LOOP_TARGET LS_INLINE void put_alike(struct ls_encoding *encoding, const struct small_shape *shape,
                                     int64_t timestamp, bool wide_values, bool wide_keys,
                                     int32_t delta_bytes, int64_t count_end) {
    const void *value_offsets = encoding->values.offsets;
    const void *key_offsets = encoding->keys.offsets;
    const uint8_t *validity = encoding->keys.validity;
    const int64_t *timestamps = encoding->timestamps;
    const uint8_t *values = encoding->values.bytes;
    const uint8_t *keys = encoding->keys.bytes;
    const int64_t value_size = (int64_t)shape->value_size;
    const uint8_t *end = encoding->end - shape->size[1];
    uint8_t *at = encoding->at;
    int64_t count = encoding->count;
    int64_t value_begin = offset_at(value_offsets, count, wide_values);
    int64_t key_begin = offset_at(key_offsets, count, wide_keys);
    for (; count < count_end && at <= end; ++count) {
        if (timestamps != NULL && timestamps[count] != timestamp) break;
        int64_t value_next = offset_at(value_offsets, count + 1, wide_values);
        int64_t key_next = offset_at(key_offsets, count + 1, wide_keys);
        if (value_next != value_begin + value_size || value_next > encoding->values.wild_end) break;
        if (key_next < key_begin || key_next > encoding->keys.wild_end) break;
        bool has_key = validity == NULL || is_valid(validity, encoding->keys.bit_offset + count);
        int64_t key_size = has_key ? (int64_t)shape->key_size : 0;
        if (has_key && key_next - key_begin != key_size) break;
        uint64_t delta = ls_short_varint_word((uint32_t)count << 1, delta_bytes);
        ls_store_le64(at, shape->head[has_key] | delta << shape->delta_shift[has_key]);
        uint8_t *to = at + shape->key_at[has_key];
        copy_32(to, keys + key_begin);
        if (LS_UNLIKELY(key_size > 32)) copy_32(to + 32, keys + key_begin + 32);
        to += key_size;
        ls_store_le64(to, shape->value_length);
        copy_wild(to + shape->value_length_bytes, values + value_begin, value_size);
        at += shape->size[has_key];
        at[-1] = 0; /* no headers */
        value_begin = value_next;
        key_begin = key_next;
    }
    encoding->at = at;
    encoding->count = count;
}

/*
 * Records without headers, with offset deltas of one or two bytes, up to number `count_end`. What
 * precedes the key is one word. Null or not is no branch: it is as random as data. A record that is
 * not small goes through the general loop. Returns as put_values does.
 */
LOOP_TARGET LS_INLINE int64_t put_small(struct ls_encoding *encoding, bool wide_values,
                                        bool wide_keys, int32_t delta_bytes, int64_t count_end) {
    const struct ls_column values = encoding->values;
    const struct ls_column keys = encoding->keys;
    const int64_t *timestamps = encoding->timestamps;
    int64_t timestamp = encoding->timestamp;
    int64_t max_timestamp = encoding->max_timestamp;
    uint8_t *at = encoding->at;
    int64_t count = encoding->count;
    int64_t value_begin = offset_at(values.offsets, count, wide_values);
    int64_t key_begin = keys.offsets != NULL ? offset_at(keys.offsets, count, wide_keys) : 0;
    int64_t key_next = 0;
    uint64_t last_form = UINT64_MAX; /* of the last record with a key: its sizes and time */
    const bool may_repeat = keys.offsets != NULL && values.validity == NULL;
    if (value_begin < 0 || key_begin < 0) return LS_E_CORRUPT;
    if (count_end > encoding->count_max) count_end = encoding->count_max;

    for (; count < count_end; ++count) {
        int64_t value_next = offset_at(values.offsets, count + 1, wide_values);
        uint64_t value_size = (uint64_t)value_next - (uint64_t)value_begin;
        uint64_t key_size = 0;
        uint32_t key_bits = 1;
        bool small = value_size <= SMALL_VALUE_MAX && value_next <= values.wild_end;
        if (keys.offsets != NULL) {
            key_next = offset_at(keys.offsets, count + 1, wide_keys);
            key_size = (uint64_t)key_next - (uint64_t)key_begin;
            small = small && key_size <= SMALL_KEY_MAX && key_next <= keys.wild_end;
            key_bits = (uint32_t)key_size << 1;
            if (keys.validity != NULL) {
                bool valid = is_valid(keys.validity, keys.bit_offset + count);
                key_bits = valid ? key_bits : 1;
                key_size = valid ? key_size : 0;
            }
        }
        uint32_t value_bits = (uint32_t)value_size << 1;
        if (values.validity != NULL) {
            bool valid = is_valid(values.validity, values.bit_offset + count);
            value_bits = valid ? value_bits : 1;
            value_size = valid ? value_size : 0;
        }
        if (timestamps != NULL) timestamp = timestamps[count];
        uint64_t time_bits = ls_zigzag64(ls_wrapping_sub(timestamp, encoding->base_timestamp));
        if (LS_UNLIKELY(!small || time_bits >= SMALL_TIMESTAMP_BITS)) {
            encoding->at = at;
            encoding->count = count;
            encoding->max_timestamp = max_timestamp;
            int64_t result = put_records(encoding, count + 1);
            if (result < 0 || encoding->count == count) return result;
            at = encoding->at;
            max_timestamp = encoding->max_timestamp;
            value_begin = value_next;
            key_begin = key_next;
            continue;
        }

        int32_t time_bytes = time_bits < 128 ? 1 : 2;
        int32_t value_length_bytes = value_bits < 128 ? 1 : 2;
        uint32_t body = (uint32_t)(3 + time_bytes + delta_bytes + value_length_bytes) +
                        (uint32_t)(key_size + value_size);
        int32_t body_bytes = body < 64 ? 1 : 2;
        if (LS_UNLIKELY((int64_t)body + body_bytes > encoding->end - at)) {
            if (count == 0 && (int64_t)body + body_bytes > encoding->out_end - at)
                return LS_E_NO_ROOM;
            if (count > 0) break;
        }
        uint64_t word = ls_short_varint_word(body << 1, body_bytes);
        int32_t shift = 8 * body_bytes + 8;
        word |= ls_short_varint_word((uint32_t)time_bits, time_bytes) << shift;
        shift += 8 * time_bytes;
        word |= ls_short_varint_word((uint32_t)count << 1, delta_bytes) << shift;
        shift += 8 * delta_bytes;
        word |= (uint64_t)key_bits << shift;
        ls_store_le64(at, word);
        at += shift / 8 + 1;

        const uint8_t *key = keys.bytes + key_begin;
        if (keys.offsets != NULL) {
            copy_32(at, key);
            if (key_size > 32) copy_32(at + 32, key + 32);
            at += key_size;
        }
        ls_store_le64(at, ls_short_varint_word(value_bits, value_length_bytes));
        at += value_length_bytes;
        copy_wild(at, values.bytes + value_begin, (int64_t)value_size);
        at += value_size;
        *at++ = 0; /* no headers */
        max_timestamp = timestamp > max_timestamp ? timestamp : max_timestamp;
        value_begin = value_next;
        key_begin = key_next;
        if (!may_repeat || key_bits == 1) continue;
        uint64_t form = value_size << 32 | key_size << 16 | time_bits;
        if (form == last_form) {
            struct small_shape shape;
            make_small_shape(&shape, value_size, key_size, time_bits, delta_bytes);
            encoding->at = at;
            encoding->count = count + 1;
            put_alike(encoding, &shape, timestamp, wide_values, wide_keys, delta_bytes, count_end);
            at = encoding->at;
            count = encoding->count - 1;
            value_begin = offset_at(values.offsets, count + 1, wide_values);
            key_begin = offset_at(keys.offsets, count + 1, wide_keys);
            form = UINT64_MAX; /* The next one has another. */
        }
        last_form = form;
    }
    encoding->at = at;
    encoding->count = count;
    encoding->max_timestamp = max_timestamp;
    return count >= count_end;
}

LOOP_TARGET LS_INLINE int64_t put_all_small(struct ls_encoding *encoding, bool wide_values,
                                            bool wide_keys) {
    int64_t result = put_small(encoding, wide_values, wide_keys, 1, 1 << 6);
    return result > 0 ? put_small(encoding, wide_values, wide_keys, 2, 1 << 13) : result;
}
