/*
 * ls_encode.c: columns to v2 record batches. Contract: logstore.h.
 * Source: Kafka MemoryRecordsBuilder, DefaultRecord.writeTo; spec 1.3 to 1.5.
 */
#include "ls_encode_internal.h"

/* Room that a column needs behind an item so that it may be copied in whole blocks. */
enum { WILD_BYTES = 128 };

static struct ls_column column_of(uintptr_t bytes, uintptr_t offsets, uintptr_t validity,
                                  int64_t size, int64_t slack, int64_t bit_offset, int64_t first,
                                  int32_t width) {
    assert(offsets == 0 || width == 4 || width == 8);
    return (struct ls_column){
        .bytes = (const uint8_t *)bytes,
        .offsets = offsets ? (const void *)(offsets + (uintptr_t)first * (uintptr_t)width) : NULL,
        .validity = (const uint8_t *)validity,
        .size = size,
        .wild_end = slack < WILD_BYTES ? size - WILD_BYTES + slack : size,
        .bit_offset = bit_offset + first,
        .wide = width == 8,
    };
}

static struct ls_column value_column(const struct ls_columns *columns, int64_t first) {
    return column_of(columns->values, columns->value_offsets, columns->value_validity,
                     columns->values_size, columns->values_slack, columns->bit_offset, first,
                     columns->value_offset_width);
}

static struct ls_column key_column(const struct ls_columns *columns, int64_t first) {
    return column_of(columns->keys, columns->key_offsets, columns->key_validity, columns->keys_size,
                     columns->keys_slack, columns->bit_offset, first, columns->key_offset_width);
}

static struct ls_column header_column(const struct ls_columns *columns, int64_t first) {
    return column_of(columns->headers, columns->header_offsets, 0, columns->headers_size, 0, 0,
                     first, 8);
}

static int64_t encode_loop(int32_t variant, struct ls_encoding *encoding) {
#if LS_X86
    if (variant != LS_ENCODE_PORTABLE && __builtin_cpu_supports("avx2") &&
        __builtin_cpu_supports("bmi2")) {
        return ls_encode_loop_avx2(encoding);
    }
#endif
    if (variant == LS_ENCODE_AVX2) return LS_E_SLOW;
    return ls_encode_loop_portable(encoding);
}

void ls_copy_large(uint8_t *to, const uint8_t *from, int64_t size) {
    assert(size > LS_COPY_INLINE_MAX);
#if LS_X86
    if (LS_LIKELY(__builtin_cpu_supports("avx2"))) {
        ls_copy_large_avx2(to, from, size);
        return;
    }
#endif
    ls_copy_large_portable(to, from, size);
}

int64_t ls_encode_records_with(int32_t variant, const struct ls_columns *columns, int64_t first,
                               const struct ls_batch_fields *fields, uintptr_t out, int64_t out_cap,
                               struct ls_encoded *encoded) {
    assert(columns != NULL && fields != NULL && encoded != NULL);
    assert(first >= 0 && first < columns->count);
    *encoded = (struct ls_encoded){0};
    int64_t room = out_cap - LS_ENCODE_SLACK;
    int64_t limit = (int64_t)fields->batch_bytes - LS_BATCH_OVERHEAD;
    if (limit > room) limit = room;

    uint8_t *begin = (uint8_t *)out;
    struct ls_encoding encoding = {
        .values = value_column(columns, first),
        .keys = key_column(columns, first),
        .headers = header_column(columns, first),
        .timestamps = columns->timestamps ? (const int64_t *)columns->timestamps + first : NULL,
        .timestamp = columns->timestamp,
        .count_max = columns->count - first < INT32_MAX ? columns->count - first : INT32_MAX,
        .out_end = begin + (room > 0 ? room : 0),
        .end = begin + (limit > 0 ? limit : 0),
        .at = begin,
        .max_timestamp = -1,
    };
    encoding.base_timestamp =
        encoding.timestamps != NULL ? encoding.timestamps[0] : encoding.timestamp;
    if (fields->delete_horizon >= 0) encoding.base_timestamp = fields->delete_horizon;

    int64_t result = encode_loop(variant, &encoding);
    if (result < 0) return result;
    assert(encoding.count > 0);
    encoded->size_bytes = encoding.at - begin;
    encoded->record_count = encoding.count;
    encoded->base_timestamp = encoding.base_timestamp;
    encoded->max_timestamp =
        fields->log_append_time >= 0 ? fields->log_append_time : encoding.max_timestamp;
    return encoded->size_bytes;
}

int64_t ls_encode_records(const struct ls_columns *columns, int64_t first,
                          const struct ls_batch_fields *fields, uintptr_t out, int64_t out_cap,
                          struct ls_encoded *encoded) {
    return ls_encode_records_with(LS_ENCODE_BEST, columns, first, fields, out, out_cap, encoded);
}

int64_t ls_encode_batch(const struct ls_columns *columns, int64_t first,
                        const struct ls_batch_fields *fields, uintptr_t out, int64_t out_cap,
                        struct ls_encoded *encoded) {
    if (out_cap < LS_BATCH_OVERHEAD) return LS_E_NO_ROOM;
    int64_t size = ls_encode_records(columns, first, fields, out + LS_BATCH_OVERHEAD,
                                     out_cap - LS_BATCH_OVERHEAD, encoded);
    if (size < 0) return size;
    size = ls_seal_batch(out, LS_BATCH_OVERHEAD + size, fields, encoded->base_timestamp,
                         encoded->max_timestamp, (int32_t)(encoded->record_count - 1),
                         (int32_t)encoded->record_count);
    encoded->size_bytes = size;
    return size;
}

int64_t ls_grow_batch(const struct ls_columns *columns, uintptr_t rows, int64_t first,
                      int64_t count, int32_t batch_bytes, struct ls_growing *growing) {
    assert(columns != NULL && growing != NULL);
    assert(first >= 0 && count > 0 && (rows != 0 || count <= columns->count - first));
    int64_t before = growing->record_count;
    int64_t size = before > 0 ? growing->size_bytes - LS_BATCH_OVERHEAD : 0;
    int64_t room = growing->batch_cap - LS_BATCH_OVERHEAD - LS_ENCODE_SLACK;
    if (room < 0) return LS_E_NO_ROOM;
    int64_t limit = (int64_t)batch_bytes - LS_BATCH_OVERHEAD;
    if (limit > room) limit = room;
    if (limit < size) limit = size;
    if (count > INT32_MAX - before) count = INT32_MAX - before;

    /* The loops count records from the batch's first on: row i is record number before + i. */
    uint8_t *begin = (uint8_t *)growing->batch + LS_BATCH_OVERHEAD;
    int64_t skip = rows != 0 ? 0 : first - before;
    uintptr_t row_bytes = sizeof(int64_t);
    uintptr_t numbers = rows + (uintptr_t)(first - before) * row_bytes;
    uintptr_t times = columns->timestamps + (uintptr_t)skip * row_bytes;
    struct ls_encoding encoding = {
        .values = value_column(columns, skip),
        .keys = key_column(columns, skip),
        .headers = header_column(columns, skip),
        .timestamps = columns->timestamps != 0 ? (const int64_t *)times : NULL,
        .timestamp = columns->timestamp,
        .rows = rows != 0 ? (const int64_t *)numbers : NULL,
        .count_max = before + count,
        .out_end = begin + room,
        .end = begin + limit,
        .at = begin + size,
        .count = before,
        .base_timestamp = growing->base_timestamp,
        .max_timestamp = before > 0 ? growing->max_timestamp : -1,
    };
    if (before == 0) {
        int64_t row = encoding.rows != NULL ? encoding.rows[0] : 0;
        encoding.base_timestamp =
            encoding.timestamps != NULL ? encoding.timestamps[row] : encoding.timestamp;
    }
    int64_t result = encode_loop(LS_ENCODE_BEST, &encoding);
    if (result < 0) return result;
    growing->size_bytes = LS_BATCH_OVERHEAD + (encoding.at - begin);
    growing->record_count = encoding.count;
    growing->base_timestamp = encoding.base_timestamp;
    growing->max_timestamp = encoding.max_timestamp;
    return encoding.count - before;
}

/* Bytes of the first `count` items, or LS_E_CORRUPT. */
static int64_t column_bytes(const struct ls_column *column, int64_t count) {
    if (column->offsets == NULL) return 0;
    int64_t begin = ls_offset_at(column->offsets, 0, column->wide);
    int64_t end = ls_offset_at(column->offsets, count, column->wide);
    return begin >= 0 && end >= begin && end <= column->size ? end - begin : LS_E_CORRUPT;
}

int64_t ls_record_bound(const struct ls_columns *columns, int64_t first, int64_t count) {
    assert(columns != NULL);
    assert(first >= 0 && count >= 0 && count <= columns->count - first);
    const struct ls_column all[3] = {value_column(columns, first), key_column(columns, first),
                                     header_column(columns, first)};
    int64_t bound = count * LS_RECORD_OVERHEAD_MAX;
    for (int32_t index = 0; index < 3; ++index) {
        int64_t bytes = column_bytes(&all[index], count);
        if (bytes < 0) return LS_E_CORRUPT;
        bound += bytes;
    }
    return bound;
}

int64_t ls_seal_batch(uintptr_t batch, int64_t size, const struct ls_batch_fields *fields,
                      int64_t base_timestamp, int64_t max_timestamp, int32_t last_offset_delta,
                      int32_t record_count) {
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
    ls_store_be32(at + LS_CRC_AT,
                  ls_crc32c(0, (uintptr_t)(at + LS_ATTRIBUTES_AT), size - LS_ATTRIBUTES_AT));
    return size;
}
