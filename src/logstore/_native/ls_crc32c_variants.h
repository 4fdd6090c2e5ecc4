/*
 * ls_crc32c_variants.h: the variants of CRC-32C that need a processor's own instructions. Each has
 * the contract of ls_crc32c and may be called only where its ls_has_... says so.
 */
#ifndef LS_CRC32C_VARIANTS_H
#define LS_CRC32C_VARIANTS_H

#include "ls_internal.h"

#if LS_X86
LS_INLINE bool ls_has_sse42(void) {
    return __builtin_cpu_supports("sse4.2");
}
LS_INLINE bool ls_has_pclmul(void) {
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}
LS_INLINE bool ls_has_vpclmul(void) {
    return ls_has_pclmul() && __builtin_cpu_supports("avx2") &&
           __builtin_cpu_supports("vpclmulqdq");
}

uint32_t ls_crc32c_sse42(uint32_t crc, const uint8_t *bytes, int64_t size);
uint32_t ls_crc32c_sse42_3way(uint32_t crc, const uint8_t *bytes, int64_t size);
uint32_t ls_crc32c_vpclmul(uint32_t crc, const uint8_t *bytes, int64_t size);
uint32_t ls_crc32c_fused(uint32_t crc, const uint8_t *bytes, int64_t size);
#endif

#if LS_ARM64
bool ls_has_armv8_crc(void);
uint32_t ls_crc32c_armv8(uint32_t crc, const uint8_t *bytes, int64_t size);
#endif

#endif
