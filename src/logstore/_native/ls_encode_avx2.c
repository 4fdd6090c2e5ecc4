/* ls_encode_avx2.c: the encoder's loops with 256-bit registers. */
#include "ls_encode_inline.h"

#if LS_X86
#include <immintrin.h>

#define LOOP_TARGET __attribute__((target("avx2,bmi2")))
#define LOOP(name)  name##_avx2

LOOP_TARGET LS_INLINE void copy_32(uint8_t *to, const uint8_t *from) {
    __m256i block = _mm256_loadu_si256((const __m256i *)(const void *)from);
    _mm256_storeu_si256((__m256i *)(void *)to, block);
}

#include "ls_encode_loops.h"
#endif
