/* ls_encode_portable.c: the encoder's loops with what every processor has. */
#include "ls_encode_inline.h"

#define LOOP_TARGET
#define LOOP(name) name##_portable

LS_INLINE void copy_32(uint8_t *to, const uint8_t *from) {
    ls_copy_16(to, from);
    ls_copy_16(to + 16, from + 16);
}

#include "ls_encode_loops.h"
