/*
 * ls_assign.c: what a leader writes into the headers of batches whose records stay as they are.
 * Contract: logstore.h. Source: Kafka LogValidator.assignOffsetsNonCompressed,
 * DefaultRecordBatch.incrementSequence; spec 1.1, 5.4.
 */
#include "ls_internal.h"

/* ---- a CRC whose first bytes change ------------------------------------------------------------- */
/* As all numbers here: a polynomial over GF(2) whose highest bit is x^0. */
static const uint32_t CASTAGNOLI = 0x82f63b78u;
static const uint32_t ONE = 1u << 31;

/* a times b, modulo Castagnoli's polynomial. */
static uint32_t multiply(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (uint32_t bit = ONE; bit != 0; bit >>= 1) {
        if ((a & bit) != 0) product ^= b;
        b = (b >> 1) ^ ((b & 1) != 0 ? CASTAGNOLI : 0);
    }
    return product;
}

/* What a CRC is multiplied with by `count` bytes that follow. */
static uint32_t shift_by(int64_t count) {
    uint32_t shift = ONE;
    uint32_t square = ONE >> 8 /* bits of a byte */;
    for (; count > 0; count >>= 1) {
        if ((count & 1) != 0) shift = multiply(shift, square);
        square = multiply(square, square);
    }
    return shift;
}

/*
 * Write the fields under the CRC that `batch` may have changed, and the CRC: those of as many bytes
 * differ by that of the bytes' difference, begun with nothing. A microsecond, whatever the size.
 */
static void store_fields(uint8_t *bytes, struct ls_batch *batch) {
    uint8_t before[LS_BATCH_OVERHEAD];
    memcpy(before, bytes, LS_BATCH_OVERHEAD);
    ls_store_be16(bytes + LS_ATTRIBUTES_AT, (uint16_t)batch->attributes);
    ls_store_be64(bytes + LS_MAX_TIMESTAMP_AT, (uint64_t)batch->max_timestamp);
    ls_store_be64(bytes + LS_PRODUCER_ID_AT, (uint64_t)batch->producer_id);
    ls_store_be16(bytes + LS_PRODUCER_EPOCH_AT, (uint16_t)batch->producer_epoch);
    ls_store_be32(bytes + LS_BASE_SEQUENCE_AT, (uint32_t)batch->base_sequence);

    for (int at = LS_ATTRIBUTES_AT; at < LS_BATCH_OVERHEAD; ++at)
        before[at] ^= bytes[at];
    int64_t size = LS_BATCH_OVERHEAD - LS_ATTRIBUTES_AT;
    uint32_t changed = ~ls_crc32c(UINT32_MAX, (uintptr_t)(before + LS_ATTRIBUTES_AT), size);
    batch->crc ^= multiply(changed, shift_by(batch->size_bytes - LS_BATCH_OVERHEAD));
    ls_store_be32(bytes + LS_CRC_AT, batch->crc);
}

/* ---- scanned batches ------------------------------------------------------------------------------- */
/* Where a batch is, or NULL if that is not within the bytes, or not of format 2. */
static uint8_t *find(uintptr_t bytes, int64_t size, const struct ls_batch *batch) {
    bool inside = batch->position >= 0 && batch->size_bytes >= LS_BATCH_OVERHEAD &&
                  batch->size_bytes <= size && batch->position <= size - batch->size_bytes;
    return inside && batch->magic == 2 ? (uint8_t *)bytes + batch->position : NULL;
}

int64_t ls_assign_batches(uintptr_t bytes, int64_t size, uintptr_t batches, uintptr_t checks,
                          int64_t count, int64_t next_offset, int32_t leader_epoch,
                          int64_t log_append_time) {
    assert(count >= 0);
    assert(next_offset >= 0);

    struct ls_batch *batch = (struct ls_batch *)batches;
    const struct ls_record_check *check = (const struct ls_record_check *)checks;
    for (int64_t index = 0; index < count; ++index, ++batch) {
        uint8_t *at = find(bytes, size, batch);
        if (at == NULL) return LS_E_CORRUPT;
        int64_t last_delta = (int32_t)ls_load_be32(at + LS_LAST_OFFSET_DELTA_AT);
        if (last_delta < 0 || next_offset >= INT64_MAX - last_delta) return LS_E_CORRUPT;

        int16_t attributes = (int16_t)(batch->attributes & ~LS_LOG_APPEND_TIME_BIT);
        int64_t max_timestamp = batch->max_timestamp;
        if (log_append_time >= 0) {
            attributes = (int16_t)(attributes | LS_LOG_APPEND_TIME_BIT);
            max_timestamp = log_append_time;
        } else if (check != NULL && !(check[index].flags & LS_CHECK_SKIPPED)) {
            max_timestamp = check[index].max_timestamp;
        }
        ls_store_be64(at + LS_BASE_OFFSET_AT, (uint64_t)next_offset);
        ls_store_be32(at + LS_LEADER_EPOCH_AT, (uint32_t)leader_epoch);
        if (attributes != batch->attributes || max_timestamp != batch->max_timestamp) {
            batch->attributes = attributes;
            batch->max_timestamp = max_timestamp;
            store_fields(at, batch);
        }
        batch->base_offset = next_offset;
        batch->last_offset = next_offset + last_delta;
        batch->leader_epoch = leader_epoch;
        next_offset += last_delta + 1;
    }
    return next_offset;
}

int64_t ls_number_batches(uintptr_t bytes, int64_t size, uintptr_t batches, int64_t count,
                          int64_t producer_id, int16_t producer_epoch, int32_t base_sequence) {
    assert(count >= 0);
    assert(base_sequence >= 0);

    struct ls_batch *batch = (struct ls_batch *)batches;
    uint32_t sequence = (uint32_t)base_sequence;
    for (int64_t index = 0; index < count; ++index, ++batch) {
        uint8_t *at = find(bytes, size, batch);
        if (at == NULL || batch->record_count < 0) return LS_E_CORRUPT;
        batch->attributes = (int16_t)(batch->attributes | LS_TRANSACTIONAL_BIT);
        batch->producer_id = producer_id;
        batch->producer_epoch = producer_epoch;
        batch->base_sequence = (int32_t)sequence;
        store_fields(at, batch);
        sequence = (sequence + (uint32_t)batch->record_count) & INT32_MAX;
    }
    return sequence;
}
