/*
 * ls_open_batch.h: one batch in memory, judged, inline: for the loops that deliver its records, as
 * objects or as columns. Nothing here is visible to Python.
 */
#ifndef LS_OPEN_BATCH_H
#define LS_OPEN_BATCH_H

#include "ls_internal.h"

/* Where one batch stands and what its records share. */
struct ls_open_batch {
    const uint8_t *records; /* the first one */
    const uint8_t *end;     /* behind the last */
    int64_t base_offset;
    int64_t base_timestamp;
    int64_t max_timestamp; /* replaces every record's timestamp if timestamp_type is 1 */
    int32_t last_offset_delta;
    int32_t record_count;
    int32_t leader_epoch;
    int16_t attributes;
    int8_t timestamp_type; /* -1 none, 0 create time, 1 log append time */
};

/* Whether offsets and count can be those of a batch: no sum of them overflows. */
static inline bool ls_has_sound_offsets(const struct ls_open_batch *batch) {
    return batch->base_offset >= 0 && batch->last_offset_delta >= 0 && batch->record_count >= 0 &&
           batch->base_offset < INT64_MAX - batch->last_offset_delta;
}

/* Look at the batch at `at`; LS_BLOCK_END: `batch` is filled, and all of it is there. */
static inline enum ls_block_stop ls_open_batch_at(const uint8_t *at, int64_t size,
                                                  struct ls_open_batch *batch) {
    if (size < LS_HEADER_UP_TO_MAGIC) return LS_BLOCK_TORN;
    int64_t batch_size = LS_LOG_OVERHEAD + (int64_t)(int32_t)ls_load_be32(at + LS_LENGTH_AT);
    int8_t magic = (int8_t)at[LS_MAGIC_AT];
    if (magic == 0 || magic == 1) return LS_BLOCK_LEGACY;
    if (magic != 2 || batch_size < LS_BATCH_OVERHEAD) return LS_BLOCK_INVALID;
    if (batch_size > size) return LS_BLOCK_TORN;
    *batch = (struct ls_open_batch){
        .records = at + LS_BATCH_OVERHEAD,
        .end = at + batch_size,
        .base_offset = (int64_t)ls_load_be64(at + LS_BASE_OFFSET_AT),
        .base_timestamp = (int64_t)ls_load_be64(at + LS_BASE_TIMESTAMP_AT),
        .max_timestamp = (int64_t)ls_load_be64(at + LS_MAX_TIMESTAMP_AT),
        .last_offset_delta = (int32_t)ls_load_be32(at + LS_LAST_OFFSET_DELTA_AT),
        .record_count = (int32_t)ls_load_be32(at + LS_RECORD_COUNT_AT),
        .leader_epoch = (int32_t)ls_load_be32(at + LS_LEADER_EPOCH_AT),
        .attributes = (int16_t)ls_load_be16(at + LS_ATTRIBUTES_AT),
    };
    batch->timestamp_type = (batch->attributes & LS_LOG_APPEND_TIME_BIT) != 0;
    return ls_has_sound_offsets(batch) ? LS_BLOCK_END : LS_BLOCK_INVALID;
}

/* Whether the CRC of the whole batch at `at` is right. */
static inline bool ls_has_right_crc(const uint8_t *at, const struct ls_open_batch *batch) {
    int64_t size = batch->end - at - LS_ATTRIBUTES_AT;
    return ls_crc32c(0, (uintptr_t)(at + LS_ATTRIBUTES_AT), size) == ls_load_be32(at + LS_CRC_AT);
}

#endif
