/*
 * ls_scan.c: walk the entries of a segment: where does the valid prefix end, where is an offset.
 * Contract: logstore.h. Source: Kafka LogSegment.recover, DefaultRecordBatch.ensureValid; spec 1.1 to
 * 1.3.
 */
#include "ls_check.h"
#include "ls_internal.h"

/* Read the fixed fields of a v2 header whose 61 bytes are there. */
static void parse_header(const uint8_t *bytes, int64_t size_bytes, int64_t position,
                         struct ls_batch *batch) {
    int64_t base_offset = (int64_t)ls_load_be64(bytes + LS_BASE_OFFSET_AT);
    int32_t last_delta = (int32_t)ls_load_be32(bytes + LS_LAST_OFFSET_DELTA_AT);
    *batch = (struct ls_batch){
        .position = position,
        .base_offset = base_offset,
        .last_offset = ls_wrapping_add(base_offset, last_delta),
        .base_timestamp = (int64_t)ls_load_be64(bytes + LS_BASE_TIMESTAMP_AT),
        .max_timestamp = (int64_t)ls_load_be64(bytes + LS_MAX_TIMESTAMP_AT),
        .producer_id = (int64_t)ls_load_be64(bytes + LS_PRODUCER_ID_AT),
        .size_bytes = size_bytes,
        .leader_epoch = (int32_t)ls_load_be32(bytes + LS_LEADER_EPOCH_AT),
        .base_sequence = (int32_t)ls_load_be32(bytes + LS_BASE_SEQUENCE_AT),
        .record_count = (int32_t)ls_load_be32(bytes + LS_RECORD_COUNT_AT),
        .crc = ls_load_be32(bytes + LS_CRC_AT),
        .attributes = (int16_t)ls_load_be16(bytes + LS_ATTRIBUTES_AT),
        .producer_epoch = (int16_t)ls_load_be16(bytes + LS_PRODUCER_EPOCH_AT),
        .magic = 2,
        .crc_ok = -1,
    };
}

/* Judge an entry by its header. On LS_STOP_END it is complete, and *size_bytes its size. */
static enum ls_stop check_entry(const uint8_t *bytes, int64_t remaining, int64_t *size_bytes) {
    if (remaining < LS_LOG_OVERHEAD) return LS_STOP_TORN;
    /* Bound the length before any read that depends on it. */
    int64_t length = (int32_t)ls_load_be32(bytes + LS_LENGTH_AT);
    if (length < LS_LEGACY_LENGTH_MIN) return LS_STOP_INVALID;
    if (remaining < LS_HEADER_UP_TO_MAGIC) return LS_STOP_TORN;

    uint8_t magic = bytes[LS_MAGIC_AT];
    *size_bytes = LS_LOG_OVERHEAD + length;
    if (magic < 2) return *size_bytes > remaining ? LS_STOP_TORN : LS_STOP_LEGACY;
    if (magic > 2) return LS_STOP_INVALID;
    if (*size_bytes < LS_BATCH_OVERHEAD) return LS_STOP_INVALID;
    return *size_bytes > remaining ? LS_STOP_TORN : LS_STOP_END;
}

enum {
    CHECK_BYTES = 65536 /* of a batch at once; together with what else is used, in an L2 cache */
};

struct checking {
    struct ls_record_check *check; /* 0: the structure alone */
    int64_t lowest_timestamp;
    int64_t highest_timestamp;
};

/*
 * The CRC and the records in one pass: piece by piece, so that the records are looked at while
 * their bytes are in the cache. What is walked may be damaged, for the CRC is known at the end.
 */
static bool check_crc_and_records(const uint8_t *bytes, const struct ls_batch *batch,
                                  struct ls_record_walk *walk, bool *is_crc_right) {
    const uint8_t *at = bytes + LS_ATTRIBUTES_AT;
    const uint8_t *end = bytes + batch->size_bytes;
    uint32_t crc = 0;
    bool is_walking = true;
    while (at < end) {
        int64_t piece = end - at < CHECK_BYTES ? end - at : CHECK_BYTES;
        crc = ls_crc32c(crc, (uintptr_t)at, piece);
        at += piece;
        is_walking = is_walking && ls_walk_to(walk, at);
    }
    *is_crc_right = crc == batch->crc;
    return is_walking && ls_walk_is_whole(walk);
}

static bool is_crc_right(const uint8_t *bytes, const struct ls_batch *batch) {
    return batch->crc == ls_crc32c(0, (uintptr_t)(bytes + LS_ATTRIBUTES_AT),
                                   batch->size_bytes - LS_ATTRIBUTES_AT);
}

static enum ls_stop check_records(const uint8_t *bytes, int32_t flags, struct ls_batch *batch,
                                  const struct checking *checking) {
    struct ls_record_walk walk;
    ls_walk_begin(&walk, bytes + LS_BATCH_OVERHEAD, batch->size_bytes - LS_BATCH_OVERHEAD,
                  batch->record_count, batch->base_timestamp, checking->lowest_timestamp,
                  checking->highest_timestamp);
    bool is_right;
    if (flags & LS_SCAN_CRC) {
        bool crc_ok;
        is_right = check_crc_and_records(bytes, batch, &walk, &crc_ok);
        batch->crc_ok = crc_ok;
        is_right = is_right && crc_ok;
    } else {
        is_right = ls_walk_to(&walk, walk.end) && ls_walk_is_whole(&walk);
    }
    if (checking->check != NULL) *checking->check = walk.check;
    return is_right ? LS_STOP_END : LS_STOP_INVALID;
}

static enum ls_stop check_batch(const uint8_t *bytes, int64_t next_offset, int32_t flags,
                                struct ls_batch *batch, const struct checking *checking) {
    /* Neither is covered by the CRC in a way that helps: bound them before the addition is used. */
    int64_t last_delta = (int32_t)ls_load_be32(bytes + LS_LAST_OFFSET_DELTA_AT);
    if (last_delta < 0 || batch->base_offset < 0) return LS_STOP_INVALID;
    if (batch->base_offset >= INT64_MAX - last_delta) return LS_STOP_INVALID;
    /* Gaps are legal (compaction leaves them), going back is not. */
    if ((flags & LS_SCAN_ORDER) && batch->base_offset < next_offset) return LS_STOP_INVALID;

    bool is_plain = (batch->attributes & LS_CODEC_MASK) == 0;
    if (flags & LS_SCAN_RECORDS && is_plain) return check_records(bytes, flags, batch, checking);
    if (flags & LS_SCAN_CRC) {
        batch->crc_ok = is_crc_right(bytes, batch);
        if (!batch->crc_ok) return LS_STOP_INVALID;
    }
    if (checking->check != NULL) {
        *checking->check = (struct ls_record_check){.max_timestamp = -1,
                                                    .min_timestamp = INT64_MAX,
                                                    .last_offset_delta = -1,
                                                    .flags = LS_CHECK_SKIPPED};
    }
    return LS_STOP_END;
}

static int64_t scan_batches(const uint8_t *bytes, int64_t size, int64_t position,
                            int64_t next_offset, int32_t flags, struct ls_batch *batches,
                            int64_t cap, struct checking *checking, struct ls_scan *scan) {
    *scan = (struct ls_scan){.next_offset = next_offset, .stop = LS_STOP_END};
    int64_t valid_count = 0;
    while (scan->valid_bytes < size) {
        if (batches != NULL && valid_count == cap) {
            scan->stop = LS_STOP_FULL;
            break;
        }
        const uint8_t *at = bytes + scan->valid_bytes;
        int64_t size_bytes = 0;
        scan->stop = (int32_t)check_entry(at, size - scan->valid_bytes, &size_bytes);
        if (scan->stop != LS_STOP_END) break;

        struct ls_batch batch;
        parse_header(at, size_bytes, position + scan->valid_bytes, &batch);
        scan->stop = (int32_t)check_batch(at, scan->next_offset, flags, &batch, checking);
        if (scan->stop != LS_STOP_END) break;

        if (batches != NULL) batches[valid_count] = batch;
        if (checking->check != NULL) checking->check += 1;
        valid_count += 1;
        scan->valid_bytes += size_bytes;
        if (batch.last_offset >= scan->next_offset) scan->next_offset = batch.last_offset + 1;
    }
    scan->batch_count = batches != NULL ? valid_count : 0;

    assert(scan->valid_bytes <= size);
    assert((scan->stop == LS_STOP_END) == (scan->valid_bytes == size));
    return valid_count;
}

int64_t ls_scan_batches(uintptr_t bytes, int64_t size, int64_t position, int64_t next_offset,
                        int32_t flags, uintptr_t batches, int64_t cap, struct ls_scan *scan) {
    assert(bytes != 0 || size == 0);
    assert(size >= 0);
    assert(cap >= 0);
    assert(scan != NULL);

    struct checking checking = {.lowest_timestamp = INT64_MIN, .highest_timestamp = INT64_MAX};
    return scan_batches((const uint8_t *)bytes, size, position, next_offset, flags,
                        (struct ls_batch *)batches, cap, &checking, scan);
}

int64_t ls_scan_checked(uintptr_t bytes, int64_t size, int64_t position, int64_t next_offset,
                        int32_t flags, uintptr_t batches, uintptr_t checks, int64_t cap,
                        int64_t lowest_timestamp, int64_t highest_timestamp, struct ls_scan *scan) {
    assert(bytes != 0 || size == 0);
    assert(size >= 0);
    assert(batches != 0);
    assert(checks != 0);
    assert(cap > 0);
    assert(scan != NULL);

    struct checking checking = {(struct ls_record_check *)checks, lowest_timestamp,
                                highest_timestamp};
    return scan_batches((const uint8_t *)bytes, size, position, next_offset,
                        flags | LS_SCAN_RECORDS, (struct ls_batch *)batches, cap, &checking, scan);
}

int64_t ls_find_batch(uintptr_t bytes, int64_t size, int64_t offset) {
    assert(bytes != 0 || size == 0);
    assert(size >= 0);

    const uint8_t *begin = (const uint8_t *)bytes;
    for (int64_t position = 0; size - position >= LS_HEADER_UP_TO_MAGIC;) {
        const uint8_t *at = begin + position;
        int64_t length = (int32_t)ls_load_be32(at + LS_LENGTH_AT);
        uint8_t magic = at[LS_MAGIC_AT];
        if (length < LS_LEGACY_LENGTH_MIN || magic > 2) return LS_E_CORRUPT;

        /* A legacy entry's offset is that of its last record. */
        int64_t last_offset = (int64_t)ls_load_be64(at);
        if (magic == 2) {
            if (length < LS_BATCH_OVERHEAD - LS_LOG_OVERHEAD) return LS_E_CORRUPT;
            if (size - position < LS_BATCH_OVERHEAD) return -1;
            last_offset =
                ls_wrapping_add(last_offset, (int32_t)ls_load_be32(at + LS_LAST_OFFSET_DELTA_AT));
        }
        if (last_offset >= offset) return position;
        position += LS_LOG_OVERHEAD + length;
    }
    return -1;
}
