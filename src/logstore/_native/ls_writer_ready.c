/*
 * ls_writer_ready.c: ready batches appended in one go, as leader or follower, if there is nothing to
 * decide: no producer, no other epoch, nothing to compress or to stamp but offsets and epoch.
 * Whatever is not plain, errors too, is left to the general path. Contract: logstore.h.
 *
 * Source: Kafka UnifiedLog.append; spec 5.3, 5.4.
 */
#include "ls_writer.h"

enum {
    BATCHES_MAX = 128, /* of a follower's append; their headers are on the stack */
    CODEC_MAX = 4
};

/* What was found in the bytes. */
struct found {
    int64_t count;
    struct ls_batch batches[BATCHES_MAX];
    struct ls_record_check check; /* a leader's: of the only batch */
};

/* Whether an append of this size may go this way as things are; the lock is held. */
static bool is_open(const ls_writer *writer, int64_t size, int64_t leader_epoch, bool as_follower) {
    const struct ls_writer_config *config = &writer->config;
    if (!ls_writer_is_fast(writer)) return false;
    if (size > config->segment_bytes - writer->committed.size_bytes) return false;
    if (as_follower) return config->leader_epoch <= leader_epoch;
    return config->leader_epoch == leader_epoch && size <= config->max_message_bytes &&
           (config->flags & LS_WRITER_LOG_APPEND_TIME) == 0;
}

/* Before the bytes are read: a batch with these fields is not plain. */
static bool is_plain(const uint8_t *bytes, int64_t size, bool as_follower) {
    if (size < LS_BATCH_OVERHEAD || bytes[LS_MAGIC_AT] != 2) return false;
    if (ls_load_be64(bytes + LS_PRODUCER_ID_AT) != UINT64_MAX) return false;
    if (as_follower) return true;
    return ls_load_be16(bytes + LS_ATTRIBUTES_AT) == 0 &&
           ls_load_be64(bytes + LS_BASE_OFFSET_AT) == 0;
}

/* One pass over the bytes; false: they are not whole batches without fault. */
static bool look(const uint8_t *bytes, int64_t size, bool as_follower, struct found *found) {
    struct ls_scan scan;
    uintptr_t at = (uintptr_t)bytes;
    uintptr_t batches = (uintptr_t)found->batches;
    if (as_follower) {
        ls_scan_batches(at, size, 0, 0, LS_SCAN_CRC, batches, BATCHES_MAX, &scan);
    } else {
        ls_scan_checked(at, size, 0, 0, LS_SCAN_CRC, batches, (uintptr_t)&found->check, 1,
                        INT64_MIN, INT64_MAX, &scan);
    }
    found->count = scan.batch_count;
    return found->count > 0 && scan.valid_bytes == size;
}

/* What a leader asks of its only batch; the lock is held. See LogValidator._assign_at_once. */
static bool leader_takes(const ls_writer *writer, const struct found *found, int64_t now) {
    const struct ls_writer_config *config = &writer->config;
    const struct ls_batch *batch = &found->batches[0];
    const struct ls_record_check *check = &found->check;
    int64_t count = batch->record_count;
    if (writer->committed.next_offset > INT64_MAX - count) return false;
    return found->count == 1 && (check->flags & LS_CHECK_SEQUENTIAL) != 0 && count > 0 &&
           count == (int64_t)check->last_offset_delta + 1 &&
           count == batch->last_offset - batch->base_offset + 1 &&
           check->max_timestamp == batch->max_timestamp &&
           check->min_timestamp >= now - config->timestamp_before_max_ms &&
           check->max_timestamp - now <= config->timestamp_after_max_ms &&
           ((config->flags & LS_WRITER_KEY_REQUIRED) == 0 || check->null_keys == 0);
}

/* What a follower asks; the lock is held. The offsets' order is asked by all who append. */
static bool follower_takes(const ls_writer *writer, const struct found *found) {
    if (found->batches[0].base_offset < writer->committed.next_offset) return false;
    for (int64_t index = 0; index < found->count; ++index) {
        const struct ls_batch *batch = &found->batches[index];
        if (batch->producer_id != -1 || (batch->attributes & LS_CODEC_MASK) > CODEC_MAX ||
            batch->leader_epoch != writer->config.leader_epoch) {
            return false;
        }
    }
    return true;
}

/* What the batches are before a leader gives them their offsets. */
static struct ls_ready ready_of(const struct found *found) {
    const struct ls_batch *last = &found->batches[found->count - 1];
    struct ls_ready ready = {
        .first_offset = found->batches[0].base_offset,
        .last_offset = last->last_offset,
        .last_offset_of_first_batch = found->batches[0].last_offset,
        .max_timestamp = -1,
        .offset_of_max_timestamp = -1,
        .last_leader_epoch = last->leader_epoch,
    };
    for (int64_t index = 0; index < found->count; ++index) {
        const struct ls_batch *batch = &found->batches[index];
        if (batch->max_timestamp > ready.max_timestamp) {
            ready.max_timestamp = batch->max_timestamp;
            ready.offset_of_max_timestamp = batch->last_offset;
        }
        int32_t codec = batch->attributes & LS_CODEC_MASK;
        if (codec != 0) ready.last_codec = codec;
    }
    return ready;
}

static int64_t append(ls_writer *writer, const uint8_t *bytes, int64_t size, bool as_follower,
                      struct found *found, struct ls_ready *ready) {
    int64_t now = ls_writer_now(writer);
    bool takes = as_follower ? follower_takes(writer, found) : leader_takes(writer, found, now);
    if (!takes) return LS_E_REFUSED;
    *ready = ready_of(found);

    uint8_t head[LS_BATCH_OVERHEAD];
    int64_t head_size = 0;
    if (!as_follower) {
        struct ls_batch *batch = &found->batches[0];
        ready->first_offset = batch->base_offset = writer->committed.next_offset;
        ready->last_offset = batch->last_offset = batch->base_offset + batch->record_count - 1;
        if (batch->max_timestamp >= 0) ready->offset_of_max_timestamp = batch->last_offset;
        head_size = LS_BATCH_OVERHEAD;
        memcpy(head, bytes, LS_BATCH_OVERHEAD);
        ls_store_be64(head + LS_BASE_OFFSET_AT, (uint64_t)batch->base_offset);
        ls_store_be32(head + LS_LEADER_EPOCH_AT, (uint32_t)writer->config.leader_epoch);
    }
    if (ls_writer_must_roll(writer, &writer->committed, size, ready->last_offset,
                            ready->max_timestamp, now)) {
        return LS_E_REFUSED;
    }
    return ls_writer_put_encoded(writer, head, head_size, bytes, size, found->batches,
                                 found->count);
}

static void end(ls_writer *writer) {
    ls_writer_end(writer);
    pthread_mutex_unlock(&writer->lock);
}

int64_t ls_writer_append_ready(ls_writer *writer, uintptr_t bytes, int64_t size,
                               int64_t leader_epoch, bool as_follower, bool may_wait,
                               struct ls_ready *ready) {
    assert(size >= 0);
    assert(ready != NULL);
    const uint8_t *at = (const uint8_t *)bytes;
    if (!is_plain(at, size, as_follower)) return LS_E_REFUSED;
    int64_t result = ls_writer_begin(writer, may_wait);
    if (result < 0) return result;
    bool may_go = is_open(writer, size, leader_epoch, as_follower);
    end(writer);
    struct found found;
    if (!may_go || !look(at, size, as_follower, &found)) return LS_E_REFUSED;

    result = ls_writer_begin(writer, may_wait);
    if (result < 0) return result;
    /* Asked again: without the lock, settings, an exclusive section or a roll may have come. */
    result = is_open(writer, size, leader_epoch, as_follower)
                 ? append(writer, at, size, as_follower, &found, ready)
                 : LS_E_REFUSED;
    if (result < 0) {
        ls_writer_abort(writer);
    } else {
        int64_t committed = ls_writer_commit(writer, true);
        if (committed < 0) result = committed;
    }
    end(writer);
    return result;
}
