/*
 * ls_murmur2.c: the hash by which Kafka's producers choose the partition of a key.
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
