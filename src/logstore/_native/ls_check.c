/*
 * ls_check.c: the structure of every record of a section, and what a leader's validator asks of
 * them. Contract: logstore.h. Source: Kafka DefaultRecord, LogValidator; spec 1.4, 5.4.
 */
#include "ls_check.h"

#include "ls_record.h"

/* What changes from record to record, in registers. */
struct seen {
    int64_t max_timestamp;
    int64_t min_timestamp;
    uint64_t timestamp_bits; /* of the last record, zig-zag: most repeat */
    int32_t outside;         /* 1 if its timestamp counts as outside, else 0 */
    int32_t timestamps_outside;
    int32_t null_keys;
};

LS_INLINE void see_timestamp(struct seen *seen, const struct ls_record_walk *walk, uint64_t bits) {
    if (LS_UNLIKELY(bits != seen->timestamp_bits)) {
        uint64_t span = (uint64_t)walk->highest_timestamp - (uint64_t)walk->lowest_timestamp;
        int64_t timestamp = ls_wrapping_add(walk->base_timestamp, ls_unzigzag64(bits));
        if (timestamp > seen->max_timestamp) seen->max_timestamp = timestamp;
        if (timestamp < seen->min_timestamp) seen->min_timestamp = timestamp;
        seen->outside =
            (uint64_t)timestamp - (uint64_t)walk->lowest_timestamp > span && timestamp != -1;
        seen->timestamp_bits = bits;
    }
    seen->timestamps_outside += seen->outside;
}

/* A varint of at most three bytes from a loaded word: its size, or 0 if it is longer. */
LS_INLINE int32_t short_varint(uint64_t word, uint32_t *bits) {
    uint32_t low = (uint32_t)word;
    if (LS_LIKELY((low & 0x80) == 0)) {
        *bits = low & 0x7f;
        return 1;
    }
    if (LS_LIKELY((low & 0x8000) == 0)) {
        *bits = (low & 0x7f) | (low >> 1 & 0x3f80);
        return 2;
    }
    if ((low & 0x800000) != 0) return 0;
    *bits = (low & 0x7f) | (low >> 1 & 0x3f80) | (low >> 2 & 0x1fc000);
    return 3;
}

/*
 * Pass a body as nearly every producer makes it: varints of at most three bytes, the offset delta
 * `index`, no headers. NULL: it is another one, which may be right all the same. LS_INSIDE_BYTES
 * are readable behind the body; what is skipped is bounded by it.
 */
LS_INLINE const uint8_t *pass_usual(const uint8_t *at, const uint8_t *next, uint32_t delta_bits,
                                    struct seen *seen, const struct ls_record_walk *walk) {
    uint64_t head = ls_load_le64(at) >> 8; /* past the attributes, in which no bit is defined */
    uint32_t bits;
    int32_t size = short_varint(head, &bits);
    if (LS_UNLIKELY(size == 0)) return NULL;
    uint64_t timestamp_bits = bits;
    at += 1 + size;
    size = short_varint(head >> (8 * size), &bits);
    if (LS_UNLIKELY(bits != delta_bits || size == 0)) return NULL;
    at += size;

    uint64_t tail = ls_load_le64(at);
    bool has_key = (tail & 1) == 0;
    if (LS_UNLIKELY((tail & 0x80) != 0)) return NULL;
    at += 1;
    tail >>= 8;
    if (has_key) {
        int64_t key_size = at[-1] >> 1;
        if (LS_UNLIKELY(key_size > next - at)) return NULL;
        at += key_size;
        tail = ls_load_le64(at);
    }
    size = short_varint(tail, &bits);
    if (LS_UNLIKELY(size == 0 || (bits & 1) != 0)) return NULL;
    at += size;
    /* All that is left is the value and headersCount 0. */
    if (LS_UNLIKELY(next - at != (int64_t)(bits >> 1) + 1 || next[-1] != 0)) return NULL;
    see_timestamp(seen, walk, timestamp_bits);
    seen->null_keys += !has_key;
    return next;
}

LS_INLINE int32_t varint_size_at(const uint8_t *at) {
    if (at[0] < 128) return 1;
    return at[1] < 128 ? 2 : 3;
}

LS_INLINE uint64_t mask_of(int32_t bytes) {
    return bytes >= 8 ? UINT64_MAX : (UINT64_C(1) << (8 * bytes)) - 1;
}

/*
 * Pass the records behind `record` that differ from it in nothing but key, value and offset: same
 * sizes, same time, deltas that go on. `record`, of `record_size` bytes, is the one that pass_usual
 * has passed, with offset delta `index`; its body begins `size_bytes` in. Returns how many: of
 * those that begin before `limit`, up to where the low digit of the delta overflows.
 */
static int64_t count_alike(const uint8_t *record, int64_t record_size, int32_t size_bytes,
                           int64_t index, int64_t count_max, const uint8_t *limit,
                           const uint8_t *end) {
    int32_t delta_at = size_bytes + 2; /* behind attributes and a time of one byte */
    if (record[delta_at - 1] >= 128) return 0;
    int32_t head_size = delta_at + varint_size_at(record + delta_at) + 1; /* with the key's size */
    if (head_size > 8) return 0;
    uint8_t key_bits = record[head_size - 1];
    int64_t tail_at = head_size + ((key_bits & 1) == 0 ? key_bits >> 1 : 0);
    const uint64_t head_mask = mask_of(head_size);
    const uint64_t tail_mask = mask_of(varint_size_at(record + tail_at));
    const uint64_t tail = ls_load_le64(record + tail_at);
    const uint64_t step = UINT64_C(2) << (8 * delta_at);
    uint64_t head = ls_load_le64(record);

    int64_t most = 63 - (index & 63);
    if (most > count_max) most = count_max;
    const uint8_t *at = record + record_size;
    int64_t count = 0;
    while (count < most && at < limit && end - at >= record_size + LS_INSIDE_BYTES) {
        head += step;
        if (((ls_load_le64(at) ^ head) & head_mask) != 0) break;
        if (((ls_load_le64(at + tail_at) ^ tail) & tail_mask) != 0) break;
        at += record_size;
        if (at[-1] != 0) break;
        count += 1;
    }
    return count;
}

/* The body that begins at the returned byte and ends before *next; NULL: its size is wrong. */
LS_INLINE const uint8_t *body_at(const uint8_t *at, const uint8_t *end, const uint8_t **next) {
    uint32_t bits;
    at = LS_LIKELY(end - at >= LS_VARINT_BYTES_MAX) ? ls_get_varint_inside(at, &bits)
                                                    : ls_get_varint(at, end, &bits);
    if (LS_UNLIKELY(at == NULL)) return NULL;
    int32_t size = ls_unzigzag32(bits);
    if (LS_UNLIKELY(size < LS_RECORD_BYTES_MIN - 1 || size > end - at)) return NULL;
    *next = at + size;
    return at;
}

void ls_walk_begin(struct ls_record_walk *walk, const uint8_t *section, int64_t size,
                   int32_t record_count, int64_t base_timestamp, int64_t lowest_timestamp,
                   int64_t highest_timestamp) {
    assert(size >= 0);
    assert(lowest_timestamp <= highest_timestamp);
    *walk = (struct ls_record_walk){
        .at = section,
        .end = section + size,
        .base_timestamp = base_timestamp,
        .lowest_timestamp = lowest_timestamp,
        .highest_timestamp = highest_timestamp,
        .record_count = record_count,
        .check = {.max_timestamp = -1,
                  .min_timestamp = INT64_MAX,
                  .last_offset_delta = -1,
                  .flags = LS_CHECK_SEQUENTIAL | LS_CHECK_INCREASING},
    };
}

bool ls_walk_to(struct ls_record_walk *walk, const uint8_t *limit) {
    struct ls_record_check *check = &walk->check;
    struct seen seen = {
        .max_timestamp = check->max_timestamp,
        .min_timestamp = check->min_timestamp,
        .timestamps_outside = check->timestamps_outside,
        .null_keys = check->null_keys,
    };
    const uint8_t *at = walk->at;
    const uint8_t *const end = walk->end;
    const int32_t record_count = walk->record_count;
    int32_t index = walk->index;
    int32_t last_offset_delta = check->last_offset_delta;
    int64_t last_size = 0;
    bool sequential = (check->flags & LS_CHECK_SEQUENTIAL) != 0;
    bool increasing = (check->flags & LS_CHECK_INCREASING) != 0;
    seen.timestamp_bits = UINT64_MAX; /* None yet: no usual record's. */
    while (index < record_count && at < limit) {
        const uint8_t *next;
        const uint8_t *body = body_at(at, end, &next);
        if (LS_UNLIKELY(body == NULL)) return false;
        const uint8_t *record_at = at;
        int32_t null_keys = seen.null_keys;
        at = NULL;
        if (LS_LIKELY(sequential && end - next >= LS_INSIDE_BYTES)) {
            at = pass_usual(body, next, (uint32_t)index << 1, &seen, walk);
        }
        if (LS_LIKELY(at != NULL)) {
            int64_t size = at - record_at;
            if (size == last_size) { /* The next ones, too, perhaps. */
                int64_t count = count_alike(record_at, size, (int32_t)(body - record_at), index,
                                            record_count - index - 1, limit, end);
                at += count * size;
                index += (int32_t)count;
                seen.timestamps_outside += (int32_t)count * seen.outside;
                seen.null_keys += (int32_t)count * (seen.null_keys - null_keys);
            }
            last_size = size;
            last_offset_delta = index;
        } else {
            struct ls_record record;
            at = end - next >= LS_INSIDE_BYTES ? ls_parse_inside(body, next, &record)
                                               : ls_parse_last(body, next, &record);
            if (LS_UNLIKELY(at == NULL)) return false;
            uint64_t bits = ls_zigzag64(record.timestamp_delta);
            seen.timestamp_bits = ~bits; /* It may be the one that stands for none. */
            see_timestamp(&seen, walk, bits);
            seen.null_keys += record.key_size < 0;
            sequential &= record.offset_delta == index;
            increasing &= record.offset_delta > last_offset_delta;
            last_offset_delta = record.offset_delta;
        }
        index += 1;
    }
    walk->at = at;
    walk->index = index;
    *check = (struct ls_record_check){
        .max_timestamp = seen.max_timestamp,
        .min_timestamp = seen.min_timestamp,
        .timestamps_outside = seen.timestamps_outside,
        .null_keys = seen.null_keys,
        .last_offset_delta = last_offset_delta,
        .flags = (sequential ? LS_CHECK_SEQUENTIAL : 0) | (increasing ? LS_CHECK_INCREASING : 0),
    };
    return true;
}

bool ls_walk_is_whole(const struct ls_record_walk *walk) {
    return walk->index == walk->record_count && walk->at == walk->end;
}

int64_t ls_check_records(uintptr_t section, int64_t size, int32_t record_count,
                         int64_t base_timestamp, int64_t lowest_timestamp,
                         int64_t highest_timestamp, struct ls_record_check *check) {
    assert(check != NULL);
    struct ls_record_walk walk;
    ls_walk_begin(&walk, (const uint8_t *)section, size, record_count, base_timestamp,
                  lowest_timestamp, highest_timestamp);
    bool is_right = ls_walk_to(&walk, walk.end) && ls_walk_is_whole(&walk);
    *check = walk.check;
    return is_right ? 0 : LS_E_CORRUPT;
}
