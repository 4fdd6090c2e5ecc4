/*
 * ls_writer_flush.c: whoever waits for the device shares a flush with the others. Contract: logstore.h.
 *
 * Most flushes take one fdatasync, of the active segment's log file. Those are made here, without a
 * line of Python: after the device was waited for its caches are cold, and each line costs a
 * microsecond.
 */
#include "ls_writer.h"

enum { GENERAL_EVERY_MS = 1000 };

void ls_flusher_init(struct ls_flusher *flusher, int64_t now) {
    pthread_mutex_init(&flusher->lock, NULL);
    pthread_cond_init(&flusher->ended, NULL);
    flusher->log_fd = -1;
    flusher->wanted = -1;
    flusher->flushed_ms = now;
}

void ls_flusher_destroy(struct ls_flusher *flusher) {
    assert(!flusher->is_taken);
    pthread_cond_destroy(&flusher->ended);
    pthread_mutex_destroy(&flusher->lock);
}

static int64_t recovery_point_of(const struct ls_flusher *flusher) {
    return atomic_load_explicit(&flusher->recovery_point, memory_order_acquire);
}

/* ---- the turn, with the lock held ----------------------------------------------------------------- */
static void wait_for_end(struct ls_flusher *flusher) {
    flusher->waiting_count += 1;
    pthread_cond_wait(&flusher->ended, &flusher->lock);
    flusher->waiting_count -= 1;
}

/* 0: it is the caller's turn to flush. 1: everything below `offset` is durable. LS_E_POISONED. */
static int64_t await_turn(struct ls_flusher *flusher, int64_t offset) {
    for (;;) {
        if (flusher->has_failed) return LS_E_POISONED;
        if (recovery_point_of(flusher) >= offset) return 1;
        if (!flusher->is_taken) return 0;
        if (flusher->wanted < offset && offset != INT64_MAX) flusher->wanted = offset;
        wait_for_end(flusher);
    }
}

static void end_turn(struct ls_flusher *flusher, bool failed) {
    flusher->is_taken = false;
    if (failed) flusher->has_failed = true;
    if (flusher->waiting_count > 0) pthread_cond_broadcast(&flusher->ended);
}

/* ---- the recovery point ------------------------------------------------------------------------------ */
uintptr_t ls_writer_flushed(ls_writer *writer) {
    return (uintptr_t)&writer->flusher.recovery_point;
}

void ls_writer_set_recovery_point(ls_writer *writer, int64_t offset) {
    atomic_store_explicit(&writer->flusher.recovery_point, offset, memory_order_release);
}

static bool raise_to(struct ls_flusher *flusher, int64_t offset, int64_t now) {
    int64_t old = recovery_point_of(flusher);
    do {
        if (old >= offset) return false;
    } while (!atomic_compare_exchange_weak(&flusher->recovery_point, &old, offset));
    if (now >= 0) atomic_store_explicit(&flusher->flushed_ms, now, memory_order_release);
    return true;
}

void ls_writer_raise_recovery_point(ls_writer *writer, int64_t offset, int64_t now) {
    (void)raise_to(&writer->flusher, offset, now);
}

void ls_flusher_set_live(struct ls_flusher *flusher, struct ls_live *live) {
    pthread_mutex_lock(&flusher->lock);
    flusher->live = live;
    pthread_mutex_unlock(&flusher->lock);
}

/* ---- a general flush, which Python makes ----------------------------------------------------------------- */
int64_t ls_writer_begin_flush(ls_writer *writer, int64_t offset) {
    if (ls_writer_is_forked(writer)) return LS_E_FORKED;
    struct ls_flusher *flusher = &writer->flusher;
    pthread_mutex_lock(&flusher->lock);
    int64_t result = await_turn(flusher, offset);
    if (result == 0) {
        flusher->is_taken = true;
        result = flusher->wanted > offset ? flusher->wanted : offset;
        flusher->wanted = -1;
    } else if (result > 0) {
        result = -1;
    }
    pthread_mutex_unlock(&flusher->lock);
    return result;
}

int64_t ls_writer_try_begin_flush(ls_writer *writer) {
    if (ls_writer_is_forked(writer)) return LS_E_FORKED;
    struct ls_flusher *flusher = &writer->flusher;
    pthread_mutex_lock(&flusher->lock);
    int64_t result = flusher->has_failed ? LS_E_POISONED : flusher->is_taken ? LS_E_SLOW : 0;
    if (result == 0) flusher->is_taken = true;
    pthread_mutex_unlock(&flusher->lock);
    return result;
}

void ls_writer_end_flush(ls_writer *writer, bool failed) {
    if (ls_writer_is_forked(writer)) return;
    struct ls_flusher *flusher = &writer->flusher;
    pthread_mutex_lock(&flusher->lock);
    end_turn(flusher, failed);
    pthread_mutex_unlock(&flusher->lock);
}

int64_t ls_writer_flush_waiters(ls_writer *writer) {
    struct ls_flusher *flusher = &writer->flusher;
    pthread_mutex_lock(&flusher->lock);
    int64_t count = flusher->waiting_count;
    pthread_mutex_unlock(&flusher->lock);
    return count;
}

/* ---- a flush of one file, made here -------------------------------------------------------------------------- */
int64_t ls_writer_allow_flush(ls_writer *writer) {
    if (ls_writer_is_forked(writer)) return LS_E_FORKED;
    struct ls_flusher *flusher = &writer->flusher;
    int64_t now = ls_writer_now(writer);
    pthread_mutex_lock(&writer->lock);
    pthread_mutex_lock(&flusher->lock);
    flusher->log_fd = writer->is_attached ? writer->segment.log_fd : -1;
    flusher->general_ms = now;
    pthread_mutex_unlock(&flusher->lock);
    pthread_mutex_unlock(&writer->lock);
    return 0;
}

void ls_flusher_unbind(struct ls_flusher *flusher) {
    pthread_mutex_lock(&flusher->lock);
    flusher->log_fd = -1;
    while (flusher->is_alone)
        wait_for_end(flusher);
    pthread_mutex_unlock(&flusher->lock);
}

static bool may_flush_alone(const struct ls_flusher *flusher, int64_t now) {
    if (flusher->log_fd < 0) return false;
    int64_t since = ls_wrapping_sub(now, flusher->general_ms); /* < 0: the clock was set back */
    return since >= 0 && since < GENERAL_EVERY_MS;
}

int64_t ls_writer_flush(ls_writer *writer, int64_t offset) {
    if (ls_writer_is_forked(writer)) return LS_E_FORKED;
    struct ls_flusher *flusher = &writer->flusher;
    pthread_mutex_lock(&flusher->lock);
    int64_t result = await_turn(flusher, offset);
    if (result == 0 && !may_flush_alone(flusher, ls_writer_now(writer))) result = LS_E_SLOW;
    if (result != 0) {
        pthread_mutex_unlock(&flusher->lock);
        return result < 0 ? result : 0;
    }
    /* Its bytes are written, and stay below the end: a truncation detaches the segment first. */
    int64_t end = ls_load(ls_writer_published(writer) + LS_PUBLISHED_END * sizeof(int64_t));
    int32_t log_fd = flusher->log_fd;
    flusher->is_taken = flusher->is_alone = true;
    pthread_mutex_unlock(&flusher->lock);

    result = ls_io_fdatasync(writer->io, log_fd);

    int64_t now = ls_writer_now(writer);
    pthread_mutex_lock(&flusher->lock);
    flusher->is_alone = false;
    end_turn(flusher, result < 0);
    if (result >= 0 && raise_to(flusher, end, now) && flusher->live != NULL) {
        ls_live_flushed(flusher->live, end);
    }
    pthread_mutex_unlock(&flusher->lock);
    return result < 0 ? result : 0;
}
