/*
 * ls_pool.h: what many writers share, each part within its bound (DESIGN.md D12).
 */
#ifndef LS_POOL_H
#define LS_POOL_H

#include <stdatomic.h>

#include "logstore.h"

/* Bytes that holders have together. Each knows what of it is its own. */
struct ls_share {
    int64_t bytes_max;
    _Atomic int64_t bytes;
};

struct ls_pool {
    atomic_int holders;
    struct ls_share staging; /* memory that is kept between appends */
    struct ls_share room;    /* on the device, allocated ahead of the writers */
};

/*
 * Have `wanted` bytes instead of the `held` ones, or as many as there are; returns how many, which is
 * `held` from then on. Fewer than before can always be had.
 */
int64_t ls_share_hold(struct ls_share *share, int64_t *held, int64_t wanted);

#endif
