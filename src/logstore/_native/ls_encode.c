/*
 * ls_encode.c: columns to v2 record batches. Contract: logstore.h.
 * Source: Kafka MemoryRecordsBuilder, DefaultRecord.writeTo; spec 1.3 to 1.5.
 */
#include "ls_encode_inline.h"

/* A column of bytes: record i is bytes[offset(i), offset(i + 1)). */
struct column {
    const uint8_t *bytes;
    const void *offsets;     /* NULL: every item is null */
    const uint8_t *validity; /* NULL: no item is null    */
    int64_t size;
    int64_t bit_offset;
    bool wide; /* int64 offsets */
};

struct item {
    const uint8_t *bytes;
    int64_t size; /* -1 null */
};

static int64_t offset_at(const struct column *column, int64_t index) {
    if (column->wide) return ((const int64_t *)column->offsets)[index];
    return ((const int32_t *)column->offsets)[index];
}

/* False: the offsets of this item descend, exceed the column or 2^31 - 1 bytes. */
static bool item_at(const struct column *column, int64_t index, struct item *item) {
    *item = (struct item){NULL, -1};
    if (column->offsets == NULL) return true;
    if (column->validity != NULL) {
        int64_t bit = column->bit_offset + index;
        if (!(column->validity[bit >> 3] >> (bit & 7) & 1)) return true;
    }
    int64_t begin = offset_at(column, index);
    int64_t end = offset_at(column, index + 1);
    if (begin < 0 || end < begin || end > column->size || end - begin > INT32_MAX) return false;
    *item = (struct item){column->bytes + begin, end - begin};
    return true;
}

static struct column value_column(const struct ls_columns *columns) {
    return (struct column){(const uint8_t *)columns->values, (const void *)columns->value_offsets,
                           (const uint8_t *)columns->value_validity, columns->values_size, columns->bit_offset,
                           columns->value_offset_width == 8};
}

static struct column key_column(const struct ls_columns *columns) {
    return (struct column){(const uint8_t *)columns->keys, (const void *)columns->key_offsets,
                           (const uint8_t *)columns->key_validity, columns->keys_size, columns->bit_offset,
                           columns->key_offset_width == 8};
}

static struct column header_column(const struct ls_columns *columns) {
    return (struct column){
        (const uint8_t *)columns->headers, (const void *)columns->header_offsets, NULL, columns->headers_size, 0, true};
}

static int64_t timestamp_at(const struct ls_columns *columns, int64_t index) {
    return columns->timestamps ? ((const int64_t *)columns->timestamps)[index] : columns->timestamp;
}

/* Encode into [out, out + limit); at least one record unless that exceeds `out_cap`. */
static int64_t encode_section(const struct ls_columns *columns, int64_t first, const struct ls_batch_fields *fields,
                              uint8_t *out, int64_t limit, int64_t out_cap, struct ls_encoded *encoded) {
    const struct column values = value_column(columns);
    const struct column keys = key_column(columns);
    const struct column headers = header_column(columns);
    int64_t base_timestamp = fields->delete_horizon >= 0 ? fields->delete_horizon : timestamp_at(columns, first);
    int64_t max_timestamp = -1;
    uint8_t *at = out;
    int64_t count_max = columns->count - first;
    if (count_max > INT32_MAX) count_max = INT32_MAX;

    int64_t count = 0;
    for (; count < count_max; ++count) {
        struct item key, value, header;
        bool sound = item_at(&keys, first + count, &key) && item_at(&values, first + count, &value) &&
                     item_at(&headers, first + count, &header);
        if (!sound) return LS_E_CORRUPT;
        int64_t timestamp = timestamp_at(columns, first + count);
        int64_t delta = ls_wrapping_sub(timestamp, base_timestamp);
        int64_t size = ls_record_size((int32_t)count, delta, key.size, value.size, header.size);
        if (count > 0 && size > limit - (at - out)) break;
        if (size > INT32_MAX) return LS_E_TOO_LARGE;
        if (size > out_cap - LS_ENCODE_SLACK - (at - out)) return LS_E_NO_ROOM;

        at = ls_put_record(at, (int32_t)count, delta, key.bytes, key.size, value.bytes, value.size, header.bytes,
                           header.size);
        if (timestamp > max_timestamp) max_timestamp = timestamp;
    }
    *encoded = (struct ls_encoded){
        .size_bytes = at - out,
        .record_count = count,
        .base_timestamp = base_timestamp,
        .max_timestamp = fields->log_append_time >= 0 ? fields->log_append_time : max_timestamp,
    };
    return at - out;
}

int64_t ls_encode_records(const struct ls_columns *columns, int64_t first, const struct ls_batch_fields *fields,
                          uintptr_t out, int64_t out_cap, struct ls_encoded *encoded) {
    assert(columns != NULL && fields != NULL && encoded != NULL);
    assert(first >= 0 && first < columns->count);
    int64_t limit = (int64_t)fields->batch_bytes - LS_BATCH_OVERHEAD;
    return encode_section(columns, first, fields, (uint8_t *)out, limit, out_cap, encoded);
}

int64_t ls_encode_batch(const struct ls_columns *columns, int64_t first, const struct ls_batch_fields *fields,
                        uintptr_t out, int64_t out_cap, struct ls_encoded *encoded) {
    if (out_cap < LS_BATCH_OVERHEAD) return LS_E_NO_ROOM;
    int64_t size = ls_encode_records(columns, first, fields, out + LS_BATCH_OVERHEAD, out_cap - LS_BATCH_OVERHEAD,
                                     encoded);
    if (size < 0) return size;
    size = ls_seal_batch(out, LS_BATCH_OVERHEAD + size, fields, encoded->base_timestamp, encoded->max_timestamp,
                         (int32_t)(encoded->record_count - 1), (int32_t)encoded->record_count);
    encoded->size_bytes = size;
    return size;
}

/* Bytes between the first and the last of `count` offsets, or LS_E_CORRUPT. */
static int64_t column_bytes(const struct column *column, int64_t first, int64_t count) {
    if (column->offsets == NULL) return 0;
    int64_t begin = offset_at(column, first);
    int64_t end = offset_at(column, first + count);
    return begin >= 0 && end >= begin && end <= column->size ? end - begin : LS_E_CORRUPT;
}

int64_t ls_record_bound(const struct ls_columns *columns, int64_t first, int64_t count) {
    assert(columns != NULL);
    assert(first >= 0 && count >= 0 && count <= columns->count - first);
    struct column all[3] = {value_column(columns), key_column(columns), header_column(columns)};
    int64_t bound = count * LS_RECORD_OVERHEAD_MAX;
    for (int32_t index = 0; index < 3; ++index) {
        int64_t bytes = column_bytes(&all[index], first, count);
        if (bytes < 0) return LS_E_CORRUPT;
        bound += bytes;
    }
    return bound;
}

int64_t ls_seal_batch(uintptr_t batch, int64_t size, const struct ls_batch_fields *fields, int64_t base_timestamp,
                      int64_t max_timestamp, int32_t last_offset_delta, int32_t record_count) {
    assert(batch != 0);
    assert(size >= LS_BATCH_OVERHEAD);
    assert(fields != NULL);
    if (size > (int64_t)INT32_MAX + LS_LOG_OVERHEAD) return LS_E_TOO_LARGE;

    uint8_t *at = (uint8_t *)batch;
    int32_t attributes = fields->attributes & ~(LS_LOG_APPEND_TIME_BIT | LS_DELETE_HORIZON_BIT);
    if (fields->log_append_time >= 0) {
        attributes |= LS_LOG_APPEND_TIME_BIT;
        max_timestamp = fields->log_append_time;
    }
    if (fields->delete_horizon >= 0) {
        attributes |= LS_DELETE_HORIZON_BIT;
        base_timestamp = fields->delete_horizon;
    }
    ls_store_be64(at + LS_BASE_OFFSET_AT, (uint64_t)fields->base_offset);
    ls_store_be32(at + LS_LENGTH_AT, (uint32_t)(size - LS_LOG_OVERHEAD));
    ls_store_be32(at + LS_LEADER_EPOCH_AT, (uint32_t)fields->leader_epoch);
    at[LS_MAGIC_AT] = 2;
    ls_store_be16(at + LS_ATTRIBUTES_AT, (uint16_t)attributes);
    ls_store_be32(at + LS_LAST_OFFSET_DELTA_AT, (uint32_t)last_offset_delta);
    ls_store_be64(at + LS_BASE_TIMESTAMP_AT, (uint64_t)base_timestamp);
    ls_store_be64(at + LS_MAX_TIMESTAMP_AT, (uint64_t)max_timestamp);
    ls_store_be64(at + LS_PRODUCER_ID_AT, (uint64_t)fields->producer_id);
    ls_store_be16(at + LS_PRODUCER_EPOCH_AT, (uint16_t)fields->producer_epoch);
    ls_store_be32(at + LS_BASE_SEQUENCE_AT, (uint32_t)fields->base_sequence);
    ls_store_be32(at + LS_RECORD_COUNT_AT, (uint32_t)record_count);
    ls_store_be32(at + LS_CRC_AT, ls_crc32c(0, (uintptr_t)(at + LS_ATTRIBUTES_AT), size - LS_ATTRIBUTES_AT));
    return size;
}
