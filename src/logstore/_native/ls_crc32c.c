/*
 * ls_crc32c.c: CRC-32C (Castagnoli): the portable variant, and the choice among all at run time.
 * Contract: logstore.h. Each call asks the processor anew (one load): there is no state to set up.
 */
#include "ls_crc32c_table.h"
#include "ls_crc32c_variants.h"

enum {
    /* Below this the serial instruction wins: folding and three streams first have to be filled. */
    SERIAL_BYTES_MAX = 256
};

static uint32_t crc_table(uint32_t crc, const uint8_t *bytes, int64_t size) {
    uint32_t state = ~crc;
    for (; size >= 8; bytes += 8, size -= 8) {
        uint64_t word = ls_load_le64(bytes) ^ state;
        state = ls_crc32c_table[7][word & 255] ^ ls_crc32c_table[6][(word >> 8) & 255] ^
                ls_crc32c_table[5][(word >> 16) & 255] ^ ls_crc32c_table[4][(word >> 24) & 255] ^
                ls_crc32c_table[3][(word >> 32) & 255] ^ ls_crc32c_table[2][(word >> 40) & 255] ^
                ls_crc32c_table[1][(word >> 48) & 255] ^ ls_crc32c_table[0][word >> 56];
    }
    for (; size > 0; ++bytes, --size) {
        state = (state >> 8) ^ ls_crc32c_table[0][(state ^ *bytes) & 255];
    }
    return ~state;
}

uint32_t ls_crc32c(uint32_t crc, uintptr_t bytes, int64_t size) {
    assert(size >= 0);
    const uint8_t *at = (const uint8_t *)bytes;
#if LS_X86
    if (LS_LIKELY(ls_has_sse42())) {
        if (size < SERIAL_BYTES_MAX) return ls_crc32c_sse42(crc, at, size);
        if (ls_has_vpclmul()) return ls_crc32c_fused(crc, at, size);
        if (ls_has_pclmul()) return ls_crc32c_sse42_3way(crc, at, size);
        return ls_crc32c_sse42(crc, at, size);
    }
#elif LS_ARM64
    if (LS_LIKELY(ls_has_armv8_crc())) return ls_crc32c_armv8(crc, at, size);
#endif
    return crc_table(crc, at, size);
}

int64_t ls_crc32c_with(int32_t variant, uint32_t crc, uintptr_t bytes, int64_t size) {
    assert(size >= 0);
    const uint8_t *at = (const uint8_t *)bytes;
    switch (variant) {
        case LS_CRC_TABLE:
            return crc_table(crc, at, size);
#if LS_X86
        case LS_CRC_SSE42:
            return ls_has_sse42() ? (int64_t)ls_crc32c_sse42(crc, at, size) : -1;
        case LS_CRC_SSE42_3WAY:
            return ls_has_pclmul() ? (int64_t)ls_crc32c_sse42_3way(crc, at, size) : -1;
        case LS_CRC_VPCLMUL:
            return ls_has_vpclmul() ? (int64_t)ls_crc32c_vpclmul(crc, at, size) : -1;
        case LS_CRC_FUSED:
            return ls_has_vpclmul() ? (int64_t)ls_crc32c_fused(crc, at, size) : -1;
#elif LS_ARM64
        case LS_CRC_ARMV8:
            return ls_has_armv8_crc() ? (int64_t)ls_crc32c_armv8(crc, at, size) : -1;
#endif
        default:
            return -1;
    }
}
