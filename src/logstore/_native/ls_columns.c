/*
 * ls_columns.c: record batches to the columns of an Arrow record batch: which of them, and how far.
 * Contract: logstore.h. Source: Kafka DefaultRecordBatch; spec 1.3.
 */
#include "ls_columns.h"

/* Why Python must handle this batch, or LS_BLOCK_END. */
static enum ls_block_stop refuse_batch(const struct ls_gather *gather,
                                       const struct ls_open_batch *batch, bool counts) {
    int32_t flags = gather->flags;
    if (batch->attributes & LS_CONTROL_BIT) {
        return flags & LS_GATHER_PASS_CONTROL ? LS_BLOCK_END : LS_BLOCK_CONTROL;
    }
    if (batch->attributes & LS_TRANSACTIONAL_BIT && !(flags & LS_GATHER_TRANSACTIONAL)) {
        return LS_BLOCK_TRANSACTIONAL;
    }
    bool is_opened = batch->attributes & LS_CODEC_MASK && !counts;
    return is_opened && !ls_header_says_all(gather, batch) ? LS_BLOCK_COMPRESSED : LS_BLOCK_END;
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
    if (gather->flags & LS_GATHER_CRC && !is_begun && !ls_has_right_crc(at, batch)) {
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
        enum ls_block_stop stop = ls_open_batch_at(at, size - gather->position, &batch);
        if (stop != LS_BLOCK_END) return stop;
        bool is_begun = gather->record_position > 0;
        if (batch.base_offset < gather->base_offset_min && !is_begun) return LS_BLOCK_DISORDER;
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
            stop = refuse_batch(gather, &batch, counts);
            if (stop == LS_BLOCK_END) stop = take_batch(gather, &batch, bytes, size, counts);
            if (stop != LS_BLOCK_END) return stop;
            gather->start_offset = last_offset + 1;
        }
        gather->position = batch.end - bytes;
        if (gather->base_offset_min >= 0) gather->base_offset_min = last_offset + 1;
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
        .timestamp_type = (int8_t)section->timestamp_type,
    };
    if (!ls_has_sound_offsets(&batch) || gather->record_position < 0 ||
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
