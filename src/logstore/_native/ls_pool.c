/*
 * ls_pool.c: the bounds of all writers of a store together. Contract: logstore.h.
 */
#include "ls_pool.h"

#include <assert.h>
#include <stdlib.h>

ls_pool *ls_pool_new(int64_t staging_bytes_max, int64_t preallocated_bytes_max) {
    assert(staging_bytes_max >= 0 && preallocated_bytes_max >= 0);
    ls_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) return NULL;
    atomic_init(&pool->holders, 1);
    pool->staging.bytes_max = staging_bytes_max;
    pool->room.bytes_max = preallocated_bytes_max;
    return pool;
}

ls_pool *ls_pool_hold(ls_pool *pool) {
    atomic_fetch_add_explicit(&pool->holders, 1, memory_order_relaxed);
    return pool;
}

void ls_pool_free(ls_pool *pool) {
    if (pool == NULL) return;
    if (atomic_fetch_sub_explicit(&pool->holders, 1, memory_order_acq_rel) == 1) free(pool);
}

int64_t ls_pool_staging_bytes(const ls_pool *pool) {
    return atomic_load_explicit(&pool->staging.bytes, memory_order_relaxed);
}

int64_t ls_pool_preallocated_bytes(const ls_pool *pool) {
    return atomic_load_explicit(&pool->room.bytes, memory_order_relaxed);
}

/* Counters alone: nothing is read because of them, so that no order is needed. */
int64_t ls_share_hold(struct ls_share *share, int64_t *held, int64_t wanted) {
    int64_t bytes = atomic_load_explicit(&share->bytes, memory_order_relaxed);
    int64_t granted;
    do {
        int64_t free_bytes = share->bytes_max - (bytes - *held);
        granted = wanted < free_bytes ? wanted : free_bytes;
        assert(granted >= 0);
    } while (!atomic_compare_exchange_weak_explicit(&share->bytes, &bytes, bytes - *held + granted,
                                                    memory_order_relaxed, memory_order_relaxed));
    *held = granted;
    return granted;
}
