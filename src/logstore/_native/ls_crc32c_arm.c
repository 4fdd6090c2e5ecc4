/*
 * ls_crc32c_arm.c: CRC-32C with the ARMv8 crc instructions, which 64-bit ARM before 8.1 may lack.
 *
 * The instructions are written as assembly because compilers declare their intrinsics under
 * different conditions. Three streams side by side hide the instruction's latency; a stream's
 * remainder is moved over the next by a multiplication mod P, once per 12 KiB.
 */
#include "ls_crc32c_variants.h"

#if LS_ARM64
#if defined(__linux__)
#include <sys/auxv.h>
#endif

enum {
    STREAM = 4096,
    HWCAP_CRC32_BIT = 1 << 7 /* asm/hwcap.h */
};

static const uint32_t polynomial = 0x82f63b78;
/* x^(8 n) mod P, bit-reflected: moves a remainder over one, or two, streams. */
static const uint32_t over_1 = 0x35d73a62;
static const uint32_t over_2 = 0x28461564;

bool ls_has_armv8_crc(void) {
#if defined(__ARM_FEATURE_CRC32) || defined(__APPLE__)
    return true;
#elif defined(__linux__)
    return (getauxval(AT_HWCAP) & HWCAP_CRC32_BIT) != 0;
#else
    return false;
#endif
}

LS_INLINE uint32_t crc_u64(uint32_t state, uint64_t word) {
    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(state) : "r"(word));
    return state;
}

LS_INLINE uint32_t crc_u8(uint32_t state, uint32_t byte) {
    __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(state) : "r"(byte));
    return state;
}

/* a * b mod P; bit 31 is x^0. */
static uint32_t times(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (uint32_t bit = UINT32_C(1) << 31; bit != 0; bit >>= 1) {
        if (a & bit) product ^= b;
        b = (b >> 1) ^ ((b & 1) ? polynomial : 0);
    }
    return product;
}

uint32_t ls_crc32c_armv8(uint32_t crc, const uint8_t *bytes, int64_t size) {
    uint32_t state = ~crc;
    for (; size >= 3 * STREAM; bytes += 3 * STREAM, size -= 3 * STREAM) {
        uint32_t second = 0;
        uint32_t third = 0;
        for (int64_t at = 0; at < STREAM; at += 8) {
            state = crc_u64(state, ls_load_le64(bytes + at));
            second = crc_u64(second, ls_load_le64(bytes + STREAM + at));
            third = crc_u64(third, ls_load_le64(bytes + 2 * STREAM + at));
        }
        state = times(state, over_2) ^ times(second, over_1) ^ third;
    }
    for (; size >= 8; bytes += 8, size -= 8)
        state = crc_u64(state, ls_load_le64(bytes));
    for (; size > 0; ++bytes, --size)
        state = crc_u8(state, *bytes);
    return ~state;
}
#else
/* A file without a declaration is not C. */
typedef int ls_crc32c_arm_is_empty;
#endif
