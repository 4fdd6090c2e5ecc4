/*
 * ls_murmur2.c: the hash by which Kafka's producers choose the partition of a key, over one key and
 * over columns of them.
 * Contract: logstore.h.
 */
#include "logstore.h"
#include "ls_internal.h"

#define MURMUR2_SEED 0x9747b28cU
#define MURMUR2_M    0x5bd1e995U

static uint32_t load_le32(const uint8_t *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

uint32_t ls_murmur2(uintptr_t bytes, int64_t size) {
    assert(size >= 0);
    const uint8_t *at = (const uint8_t *)bytes;
    uint32_t hash = MURMUR2_SEED ^ (uint32_t)size;
    for (; size >= 4; at += 4, size -= 4) {
        uint32_t word = load_le32(at) * MURMUR2_M;
        hash = hash * MURMUR2_M ^ (word ^ word >> 24) * MURMUR2_M;
    }
    if (size > 0) {
        uint32_t rest = at[0];
        if (size > 1) rest |= (uint32_t)at[1] << 8;
        if (size > 2) rest |= (uint32_t)at[2] << 16;
        hash = (hash ^ rest) * MURMUR2_M;
    }
    hash = (hash ^ hash >> 13) * MURMUR2_M;
    return hash ^ hash >> 15;
}

static int32_t partition_of(const uint8_t *key, int64_t size, int32_t partitions) {
    return (int32_t)(ls_murmur2((uintptr_t)key, size) & INT32_MAX) % partitions;
}

int64_t ls_partition_keys(const struct ls_columns *columns, int32_t partitions, uintptr_t out) {
    assert(columns != NULL && partitions > 0);
    const uint8_t *keys = (const uint8_t *)columns->keys;
    const void *offsets = (const void *)columns->key_offsets;
    const uint8_t *validity = (const uint8_t *)columns->key_validity;
    const bool is_wide = columns->key_offset_width == 8;
    int32_t *to = (int32_t *)out;
    for (int64_t index = 0; offsets == NULL && index < columns->count; ++index)
        to[index] = -1;
    if (offsets == NULL || columns->count == 0) return 0;
    int64_t begin = ls_offset_at(offsets, 0, is_wide);
    if (begin < 0) return LS_E_CORRUPT;
    for (int64_t index = 0; index < columns->count; ++index) {
        int64_t end = ls_offset_at(offsets, index + 1, is_wide);
        if (LS_UNLIKELY(end < begin || end > columns->keys_size)) return LS_E_CORRUPT;
        bool has_key = ls_is_valid(validity, columns->bit_offset + index);
        to[index] = has_key ? partition_of(keys + begin, end - begin, partitions) : -1;
        begin = end;
    }
    return 0;
}

int64_t ls_group_partitions(uintptr_t partition_numbers, int64_t count, int32_t partitions,
                            uintptr_t starts, uintptr_t order) {
    assert(count >= 0 && partitions > 0);
    const int32_t *of = (const int32_t *)partition_numbers;
    int64_t *start = (int64_t *)starts;
    int64_t *indices = (int64_t *)order;
    for (int32_t partition = 0; partition <= partitions; ++partition)
        start[partition] = 0;
    for (int64_t index = 0; index < count; ++index) {
        if (of[index] < 0 || of[index] >= partitions) return LS_E_CORRUPT;
        start[of[index]] += 1;
    }
    /* Sizes become ends, and walking backwards turns ends into starts: no other memory is needed. */
    for (int32_t partition = 1; partition <= partitions; ++partition) {
        start[partition] += start[partition - 1];
    }
    for (int64_t index = count - 1; index >= 0; --index)
        indices[--start[of[index]]] = index;
    assert(start[0] == 0 && start[partitions] == count);
    return 0;
}
