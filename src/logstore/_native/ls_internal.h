/*
 * ls_internal.h: what several kernels share: big-endian loads and stores, varints, and where the
 * fields of a v2 batch header are. Everything is static inline; nothing here is visible to Python.
 */
#ifndef LS_INTERNAL_H
#define LS_INTERNAL_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "logstore.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "logstore's native core supports little-endian machines only"
#endif

/* Spec 1.1 and 1.3: positions inside an entry. */
enum {
    LS_BASE_OFFSET_AT = 0,
    LS_LENGTH_AT = 8,
    LS_LEADER_EPOCH_AT = 12,
    LS_MAGIC_AT = 16,
    LS_CRC_AT = 17,
    LS_ATTRIBUTES_AT = 21,
    LS_LAST_OFFSET_DELTA_AT = 23,
    LS_BASE_TIMESTAMP_AT = 27,
    LS_MAX_TIMESTAMP_AT = 35,
    LS_PRODUCER_ID_AT = 43,
    LS_PRODUCER_EPOCH_AT = 51,
    LS_BASE_SEQUENCE_AT = 53,
    LS_RECORD_COUNT_AT = 57,
    LS_BATCH_OVERHEAD = 61,
    LS_LOG_OVERHEAD = 12,
    LS_HEADER_UP_TO_MAGIC = 17,
    LS_LEGACY_LENGTH_MIN = 14,
    LS_VARINT_BYTES_MAX = 5,
    LS_VARLONG_BYTES_MAX = 10,
    LS_RECORD_BYTES_MIN = 7 /* length, attributes, two deltas, two sizes, header count */
};

/* Index entries, spec 3: u32 relative offset, u32 position; i64 timestamp, u32 relative offset. */
enum { LS_OFFSET_ENTRY_BYTES = 8, LS_TIME_ENTRY_BYTES = 12 };

/* Of a file that is made; the umask takes from it. */
enum { LS_FILE_MODE = 0666 };

/* Attribute bits. */
enum {
    LS_CODEC_MASK = 0x07,
    LS_LOG_APPEND_TIME_BIT = 0x08,
    LS_TRANSACTIONAL_BIT = 0x10,
    LS_CONTROL_BIT = 0x20,
    LS_DELETE_HORIZON_BIT = 0x40
};

/* Instructions beyond the baseline are chosen at run time; LS_PORTABLE builds without them. */
#if defined(__x86_64__) && !defined(LS_PORTABLE)
#define LS_X86 1
#else
#define LS_X86 0
#endif
#if defined(__aarch64__) && !defined(LS_PORTABLE)
#define LS_ARM64 1
#else
#define LS_ARM64 0
#endif

#define LS_LIKELY(condition)   __builtin_expect(!!(condition), 1)
#define LS_UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#define LS_INLINE              static inline __attribute__((always_inline, unused))

LS_INLINE int64_t ls_min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* ---- columns -------------------------------------------------------------------------------- */
/* One of a column's offsets, int64 or int32. */
LS_INLINE int64_t ls_offset_at(const void *offsets, int64_t index, bool is_wide) {
    return is_wide ? ((const int64_t *)offsets)[index] : ((const int32_t *)offsets)[index];
}

/* Whether an item is not null; no bitmap: none is. */
LS_INLINE bool ls_is_valid(const uint8_t *validity, int64_t bit) {
    return validity == NULL || (validity[bit >> 3] >> (bit & 7) & 1) != 0;
}

/* ---- loads and stores ----------------------------------------------------------------------- */
LS_INLINE uint64_t ls_load_le64(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

LS_INLINE void ls_store_le64(uint8_t *at, uint64_t value) {
    memcpy(at, &value, sizeof value);
}

LS_INLINE uint16_t ls_load_be16(const uint8_t *at) {
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return __builtin_bswap16(value);
}

LS_INLINE uint32_t ls_load_be32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return __builtin_bswap32(value);
}

LS_INLINE uint64_t ls_load_be64(const uint8_t *at) {
    return __builtin_bswap64(ls_load_le64(at));
}

LS_INLINE void ls_store_be16(uint8_t *at, uint16_t value) {
    value = __builtin_bswap16(value);
    memcpy(at, &value, sizeof value);
}

LS_INLINE void ls_store_be32(uint8_t *at, uint32_t value) {
    value = __builtin_bswap32(value);
    memcpy(at, &value, sizeof value);
}

LS_INLINE void ls_store_be64(uint8_t *at, uint64_t value) {
    ls_store_le64(at, __builtin_bswap64(value));
}

/* ---- signed arithmetic that wraps, as Java's does ------------------------------------------- */
LS_INLINE int64_t ls_wrapping_add(int64_t a, int64_t b) {
    return (int64_t)((uint64_t)a + (uint64_t)b);
}
LS_INLINE int64_t ls_wrapping_sub(int64_t a, int64_t b) {
    return (int64_t)((uint64_t)a - (uint64_t)b);
}

/* ---- varints: zig-zag, then 7 bits a byte, least significant first -------------------------- */
LS_INLINE uint32_t ls_zigzag32(int32_t value) {
    return ((uint32_t)value << 1) ^ (uint32_t)(value >> 31);
}
LS_INLINE uint64_t ls_zigzag64(int64_t value) {
    return ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
}
LS_INLINE int32_t ls_unzigzag32(uint32_t bits) {
    return (int32_t)((bits >> 1) ^ (0u - (bits & 1)));
}
LS_INLINE int64_t ls_unzigzag64(uint64_t bits) {
    return (int64_t)((bits >> 1) ^ (0u - (bits & 1)));
}

/* Bytes that the unsigned varint of `bits` takes: 1..5 and 1..10. */
LS_INLINE int32_t ls_varint_bytes(uint32_t bits) {
    if (LS_LIKELY(bits < 1u << 7)) return 1;
    if (LS_LIKELY(bits < 1u << 14)) return 2;
    if (bits < 1u << 21) return 3;
    return bits < 1u << 28 ? 4 : 5;
}

LS_INLINE int32_t ls_varlong_bytes(uint64_t bits) {
    return (int32_t)((70u - (unsigned)__builtin_clzll(bits | 1)) * 37u >> 8);
}

/*
 * Read an unsigned varint of at most 5 bytes from [at, end). Returns the byte after it, or NULL if
 * it is longer or cut off. Bits beyond the 32nd are dropped, as in Kafka's ByteUtils.
 */
LS_INLINE const uint8_t *ls_get_varint(const uint8_t *at, const uint8_t *end, uint32_t *bits) {
    if (LS_UNLIKELY(at >= end)) return NULL;
    uint32_t value = at[0];
    if (LS_LIKELY(value < 128)) {
        *bits = value;
        return at + 1;
    }
    value &= 127;
    for (int32_t index = 1; index < LS_VARINT_BYTES_MAX; ++index) {
        if (at + index >= end) return NULL;
        uint32_t byte = at[index];
        value |= (byte & 127) << (7 * index);
        if (byte < 128) {
            *bits = value;
            return at + index + 1;
        }
    }
    return NULL;
}

/* ls_get_varint where 5 bytes are known to be readable. */
LS_INLINE const uint8_t *ls_get_varint_inside(const uint8_t *at, uint32_t *bits) {
    uint32_t value = at[0];
    if (LS_LIKELY(value < 128)) {
        *bits = value;
        return at + 1;
    }
    uint32_t second = at[1];
    value &= 127;
    if (LS_LIKELY(second < 128)) {
        *bits = value | second << 7;
        return at + 2;
    }
    value |= (second & 127) << 7 | (uint32_t)(at[2] & 127) << 14;
    if (LS_LIKELY(at[2] < 128)) {
        *bits = value;
        return at + 3;
    }
    value |= (uint32_t)(at[3] & 127) << 21;
    if (at[3] < 128) {
        *bits = value;
        return at + 4;
    }
    *bits = value | (uint32_t)at[4] << 28;
    return at[4] < 128 ? at + 5 : NULL;
}

/* The same for at most 10 bytes and 64 bits. */
LS_INLINE const uint8_t *ls_get_varlong(const uint8_t *at, const uint8_t *end, uint64_t *bits) {
    if (LS_UNLIKELY(at >= end)) return NULL;
    uint64_t value = at[0];
    if (LS_LIKELY(value < 128)) {
        *bits = value;
        return at + 1;
    }
    value &= 127;
    for (int32_t index = 1; index < LS_VARLONG_BYTES_MAX; ++index) {
        if (at + index >= end) return NULL;
        uint64_t byte = at[index];
        value |= (byte & 127) << (7 * index);
        if (byte < 128) {
            *bits = value;
            return at + index + 1;
        }
    }
    return NULL;
}

#endif
