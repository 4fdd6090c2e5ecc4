/* ls_crc32c.c: CRC-32C (Castagnoli), chosen at run time. Contract: logstore.h. */
#include "ls_crc32c_table.h"
#include "ls_internal.h"

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
    return crc_table(crc, (const uint8_t *)bytes, size);
}

int64_t ls_crc32c_with(int32_t variant, uint32_t crc, uintptr_t bytes, int64_t size) {
    assert(size >= 0);
    if (variant == LS_CRC_TABLE) return crc_table(crc, (const uint8_t *)bytes, size);
    return -1;
}
