/*
 * ls_decode.c: the records section of one batch: take it apart, find a record in it.
 * Contract: logstore.h. Source: Kafka DefaultRecord, DefaultRecordBatch; spec 1.4.
 */
#include "ls_internal.h"
#include "ls_record.h"

int64_t ls_decode_records(uintptr_t section, int64_t size, int64_t base_offset,
                          int64_t base_timestamp, int64_t log_append_time, int32_t record_count,
                          const struct ls_record_columns *columns) {
    assert(size >= 0);
    assert(columns != NULL);
    if (record_count < 0) return LS_E_CORRUPT;

    const uint8_t *begin = (const uint8_t *)section;
    const uint8_t *at = begin;
    const uint8_t *end = at + size;
    int64_t *offsets = (int64_t *)columns->offsets;
    int64_t *timestamps = (int64_t *)columns->timestamps;
    int64_t *key_positions = (int64_t *)columns->key_positions;
    int32_t *key_sizes = (int32_t *)columns->key_sizes;
    int64_t *value_positions = (int64_t *)columns->value_positions;
    int32_t *value_sizes = (int32_t *)columns->value_sizes;
    int64_t *header_positions = (int64_t *)columns->header_positions;
    int32_t *header_sizes = (int32_t *)columns->header_sizes;
    for (int32_t index = 0; index < record_count; ++index) {
        struct ls_record record;
        at = ls_parse_record(at, end, &record);
        if (LS_UNLIKELY(at == NULL)) return LS_E_CORRUPT;

        if (offsets) offsets[index] = ls_wrapping_add(base_offset, record.offset_delta);
        if (timestamps) {
            timestamps[index] = log_append_time >= 0
                                    ? log_append_time
                                    : ls_wrapping_add(base_timestamp, record.timestamp_delta);
        }
        if (key_positions) key_positions[index] = record.key - begin;
        if (key_sizes) key_sizes[index] = record.key_size;
        if (value_positions) value_positions[index] = record.value - begin;
        if (value_sizes) value_sizes[index] = record.value_size;
        if (header_positions) header_positions[index] = record.headers - begin;
        if (header_sizes) header_sizes[index] = (int32_t)(at - record.headers);
    }
    return at == end ? record_count : LS_E_CORRUPT;
}

enum {
    /* A walk by lengths waits for memory at every record: ask for what comes (measured: 1.4x). */
    READ_AHEAD_BYTES = 1024
};

/* Pass one record by its length alone; NULL: it breaks a rule or the bytes end. */
LS_INLINE const uint8_t *pass_record(const uint8_t *at, const uint8_t *end) {
    uint32_t bits;
    at = LS_LIKELY(end - at >= LS_VARINT_BYTES_MAX) ? ls_get_varint_inside(at, &bits)
                                                    : ls_get_varint(at, end, &bits);
    if (LS_UNLIKELY(at == NULL)) return NULL;
    int32_t body_size = ls_unzigzag32(bits);
    if (LS_UNLIKELY(body_size < LS_RECORD_BYTES_MIN - 1 || body_size > end - at)) return NULL;
    return at + body_size;
}

/* The offset delta of the record at `at`; NULL or the byte after the record. */
LS_INLINE const uint8_t *read_offset_delta(const uint8_t *at, const uint8_t *end,
                                           int32_t *offset_delta) {
    const uint8_t *next = pass_record(at, end);
    if (LS_UNLIKELY(next == NULL)) return NULL;
    uint32_t bits;
    uint64_t timestamp_bits;
    at = ls_get_varint(at, next, &bits);
    at = ls_get_varlong(at + 1, next, &timestamp_bits); /* past the attributes */
    if (LS_UNLIKELY(at == NULL)) return NULL;
    at = ls_get_varint(at, next, &bits);
    if (LS_UNLIKELY(at == NULL)) return NULL;
    *offset_delta = ls_unzigzag32(bits);
    return next;
}

int64_t ls_find_record_from(uintptr_t record, int64_t size, int32_t index, int32_t record_count,
                            int32_t offset_delta, int32_t *found_delta) {
    assert(size >= 0);
    assert(index >= 0);
    assert(found_delta != NULL);
    if (record_count < 0) return LS_E_CORRUPT;

    const uint8_t *begin = (const uint8_t *)record;
    const uint8_t *end = begin + size;
    const uint8_t *at = begin;
    /*
     * Deltas strictly increase from 0 or more, so record number n has a delta of n or more. Without
     * holes it is n: go there by the lengths alone. With holes before it, read every delta.
     */
    if (offset_delta > index && offset_delta < record_count) {
        for (int32_t passed = index; passed < offset_delta; ++passed) {
            __builtin_prefetch((const void *)((uintptr_t)at + READ_AHEAD_BYTES));
            at = pass_record(at, end);
            if (LS_UNLIKELY(at == NULL)) return LS_E_CORRUPT;
        }
        if (read_offset_delta(at, end, found_delta) == NULL) return LS_E_CORRUPT;
        if (LS_LIKELY(*found_delta == offset_delta)) return at - begin;
        at = begin;
    }
    for (; index < record_count; ++index) {
        const uint8_t *next = read_offset_delta(at, end, found_delta);
        if (LS_UNLIKELY(next == NULL)) return LS_E_CORRUPT;
        if (*found_delta >= offset_delta) return at - begin;
        at = next;
    }
    return -1;
}

int64_t ls_find_record(uintptr_t section, int64_t size, int32_t record_count, int32_t offset_delta,
                       int32_t *found_delta) {
    return ls_find_record_from(section, size, 0, record_count, offset_delta, found_delta);
}
