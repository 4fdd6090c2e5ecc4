/*
 * ls_columns.c: record batches to the columns of an Arrow record batch: which of them, and how far.
 * Contract: logstore.h. Source: Kafka DefaultRecordBatch; spec 1.3.
 */
#include "ls_columns.h"

/* Look at the batch at `at`; LS_BLOCK_END: `batch` is filled, and all of it is there. */
static enum ls_block_stop open_batch(const uint8_t *at, int64_t size, struct ls_open_batch *batch) {
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
    bool sound = batch->base_offset >= 0 && batch->last_offset_delta >= 0 &&
                 batch->record_count >= 0 &&
                 batch->base_offset < INT64_MAX - batch->last_offset_delta;
    return sound ? LS_BLOCK_END : LS_BLOCK_INVALID;
}

/* Why Python must handle this batch, or LS_BLOCK_END. */
static enum ls_block_stop refuse_batch(int32_t flags, const struct ls_open_batch *batch,
                                       bool counts) {
    if (batch->attributes & LS_CONTROL_BIT) {
        return flags & LS_GATHER_PASS_CONTROL ? LS_BLOCK_END : LS_BLOCK_CONTROL;
    }
    if (batch->attributes & LS_TRANSACTIONAL_BIT && !(flags & LS_GATHER_TRANSACTIONAL)) {
        return LS_BLOCK_TRANSACTIONAL;
    }
    return batch->attributes & LS_CODEC_MASK && !counts ? LS_BLOCK_COMPRESSED : LS_BLOCK_END;
}

static bool has_right_crc(const uint8_t *at, const struct ls_open_batch *batch) {
    int64_t size = batch->end - at - LS_ATTRIBUTES_AT;
    return ls_crc32c(0, (uintptr_t)(at + LS_ATTRIBUTES_AT), size) == ls_load_be32(at + LS_CRC_AT);
}

/* Append the rows of a batch that C decodes, or their number; see put_rows. */
static enum ls_block_stop take_batch(struct ls_gather *gather, const struct ls_open_batch *batch,
                                     const uint8_t *bytes, int64_t size, bool counts) {
    const uint8_t *at = batch->records - LS_BATCH_OVERHEAD;
    if (counts) {
        if (!(batch->attributes & LS_CONTROL_BIT)) gather->rows += batch->record_count;
        return LS_BLOCK_END;
    }
    bool is_begun = gather->record_position > 0;
    if (gather->flags & LS_GATHER_CRC && !is_begun && !has_right_crc(at, batch)) {
        return LS_BLOCK_INVALID;
    }
    if (is_begun && (gather->record_position < batch->records - bytes ||
                     gather->record_position > batch->end - bytes)) {
        return LS_BLOCK_INVALID;
    }
    if (batch->attributes & LS_CONTROL_BIT) return LS_BLOCK_END;
    return ls_put_batch(gather, batch, bytes, bytes + size);
}

int64_t ls_gather_batches(uintptr_t address, int64_t size, struct ls_gather *gather) {
    assert(gather != NULL && gather->position >= 0);
    assert(gather->rows >= 0 && gather->rows <= gather->rows_max);
    const uint8_t *bytes = (const uint8_t *)address;
    while (gather->position < size) {
        struct ls_open_batch batch;
        const uint8_t *at = bytes + gather->position;
        enum ls_block_stop stop = open_batch(at, size - gather->position, &batch);
        if (stop != LS_BLOCK_END) return stop;
        int64_t last_offset = batch.base_offset + batch.last_offset_delta;
        if (last_offset >= gather->start_offset) {
            if (batch.base_offset >= gather->stop_offset) return LS_BLOCK_BOUND;
            if (gather->rows == gather->rows_max) {
                gather->full = LS_GATHER_FULL_ROWS;
                return LS_BLOCK_FULL; /* before its CRC is computed in vain */
            }
            bool counts = gather->flags & LS_GATHER_COUNT &&
                          batch.base_offset >= gather->start_offset &&
                          last_offset < gather->stop_offset;
            stop = refuse_batch(gather->flags, &batch, counts);
            if (stop == LS_BLOCK_END) stop = take_batch(gather, &batch, bytes, size, counts);
            if (stop != LS_BLOCK_END) return stop;
            gather->start_offset = last_offset + 1;
        }
        gather->position = batch.end - bytes;
    }
    return LS_BLOCK_END;
}

int64_t ls_gather_section(uintptr_t address, int64_t size, const struct ls_section *section,
                          struct ls_gather *gather) {
    assert(size >= 0);
    assert(section != NULL && gather != NULL);
    assert(gather->rows >= 0 && gather->rows <= gather->rows_max);
    const uint8_t *bytes = (const uint8_t *)address;
    struct ls_open_batch batch = {
        .records = bytes,
        .end = bytes + size,
        .base_offset = section->base_offset,
        .base_timestamp = section->base_timestamp,
        .max_timestamp = section->max_timestamp,
        .last_offset_delta = section->last_offset_delta,
        .record_count = section->record_count,
        .leader_epoch = section->leader_epoch,
        .attributes = section->timestamp_type == 1 ? LS_LOG_APPEND_TIME_BIT : 0,
    };
    if (batch.base_offset < 0 || batch.last_offset_delta < 0 || batch.record_count < 0 ||
        batch.base_offset >= INT64_MAX - batch.last_offset_delta || gather->record_position < 0 ||
        gather->record_position > size) {
        return LS_BLOCK_INVALID;
    }
    enum ls_block_stop stop = ls_put_batch(gather, &batch, bytes, bytes + size);
    if (stop == LS_BLOCK_END) {
        gather->position = size;
        int64_t next_offset = batch.base_offset + batch.last_offset_delta + 1;
        if (next_offset > gather->start_offset) gather->start_offset = next_offset;
    }
    return stop;
}
