/*
 * ls_live.c: live offsets, one page that a writer shares with readers in other processes. Contract:
 * logstore.h; the rules: live_offsets.py.
 *
 * Fields that belong together change under a counter that is odd meanwhile; who reads takes the
 * counter before and after. The log end moves alone, in one store, on every append.
 */
#include "ls_live.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

enum {
    LOAD_TRIES = 1000, /* a change takes well under a microsecond, if its writer runs */
    NANOSECONDS = 1000000000
};

static struct ls_live *live_at(uintptr_t address) {
    assert(address != 0);
    return (struct ls_live *)address;
}

/* ---- changes: one thread at a time, under the log's lock -------------------------------------- */
static void begin(struct ls_live *live) {
    /* Odd already: a writer was killed in a change. */
    atomic_fetch_or(&live->change_count, 1);
}

static void end(struct ls_live *live) {
    atomic_fetch_add(&live->change_count, 1);
    if (atomic_load(&live->has_waiters) != 0) ls_live_wake(live);
}

static void set_marks(struct ls_live *live, const struct ls_live_offsets *offsets) {
    atomic_store(&live->log_start_offset, offsets->log_start_offset);
    atomic_store(&live->high_watermark, offsets->high_watermark);
    atomic_store(&live->first_unstable_offset, offsets->first_unstable_offset);
    atomic_store(&live->recovery_point, offsets->recovery_point);
}

void ls_live_open(uintptr_t address, const uint8_t *header, const struct ls_live_offsets *offsets) {
    struct ls_live *live = live_at(address);
    begin(live);
    memcpy(live->header, header, LS_LIVE_HEADER_BYTES);
    int64_t truncations = atomic_load(&live->truncation_count);
    atomic_store(&live->truncation_count, truncations + (truncations & 1));
    atomic_store(&live->writer_epoch, offsets->writer_epoch);
    atomic_store(&live->writer_pid, offsets->writer_pid);
    atomic_store(&live->pid_namespace, offsets->pid_namespace);
    atomic_store(&live->active_base_offset, offsets->active_base_offset);
    atomic_store(&live->size_bytes, offsets->size_bytes);
    atomic_store(&live->offset_entry_count, offsets->offset_entry_count);
    atomic_store(&live->time_entry_count, offsets->time_entry_count);
    set_marks(live, offsets);
    atomic_store(&live->log_end_offset, offsets->log_end_offset);
    atomic_store(&live->is_open, 1);
    end(live);
}

void ls_live_close(uintptr_t address) {
    struct ls_live *live = live_at(address);
    begin(live);
    atomic_store(&live->is_open, 0);
    end(live);
}

void ls_live_set_marks(uintptr_t address, const struct ls_live_offsets *offsets) {
    struct ls_live *live = live_at(address);
    begin(live);
    set_marks(live, offsets);
    end(live);
}

void ls_live_attach(struct ls_live *live, int64_t base_offset, const _Atomic int64_t *published) {
    begin(live);
    atomic_store(&live->active_base_offset, base_offset);
    atomic_store(&live->size_bytes, atomic_load(&published[1]));
    atomic_store(&live->offset_entry_count, atomic_load(&published[2]));
    atomic_store(&live->time_entry_count, atomic_load(&published[3]));
    atomic_store(&live->log_end_offset, atomic_load(&published[0]));
    end(live);
}

void ls_live_place(uintptr_t address, int64_t active_base_offset, int64_t size_bytes) {
    struct ls_live *live = live_at(address);
    begin(live);
    atomic_store(&live->active_base_offset, active_base_offset);
    atomic_store(&live->size_bytes, size_bytes);
    atomic_store(&live->offset_entry_count, 0);
    atomic_store(&live->time_entry_count, 0);
    end(live);
}

void ls_live_truncating(uintptr_t address, int64_t target_offset) {
    struct ls_live *live = live_at(address);
    int64_t count = atomic_load(&live->truncation_count);
    assert(count % 2 == 0);
    begin(live);
    atomic_store(&live->truncated_to[count / 2 % LS_LIVE_TRUNCATIONS], target_offset);
    atomic_store(&live->truncation_count, count + 1);
    end(live);
}

void ls_live_truncated(uintptr_t address) {
    struct ls_live *live = live_at(address);
    int64_t count = atomic_load(&live->truncation_count);
    assert(count % 2 == 1);
    begin(live);
    atomic_store(&live->truncation_count, count + 1);
    end(live);
}

/* ---- looking: any thread of any process ------------------------------------------------------- */
int64_t ls_live_load(uintptr_t address, struct ls_live_offsets *offsets) {
    struct ls_live *live = live_at(address);
    for (int tries = 0; tries < LOAD_TRIES; tries++) {
        int64_t change_count = atomic_load(&live->change_count);
        if (change_count & 1) {
            if (tries > 100) (void)sched_yield();
            continue;
        }
        /* The end first: what else belongs to it is stored before it. */
        offsets->log_end_offset = atomic_load(&live->log_end_offset);
        offsets->size_bytes = atomic_load(&live->size_bytes);
        offsets->offset_entry_count = atomic_load(&live->offset_entry_count);
        offsets->time_entry_count = atomic_load(&live->time_entry_count);
        offsets->change_count = change_count;
        offsets->writer_epoch = atomic_load(&live->writer_epoch);
        offsets->is_open = atomic_load(&live->is_open);
        offsets->active_base_offset = atomic_load(&live->active_base_offset);
        offsets->log_start_offset = atomic_load(&live->log_start_offset);
        offsets->high_watermark = atomic_load(&live->high_watermark);
        offsets->first_unstable_offset = atomic_load(&live->first_unstable_offset);
        offsets->recovery_point = atomic_load(&live->recovery_point);
        offsets->truncation_count = atomic_load(&live->truncation_count);
        offsets->writer_pid = atomic_load(&live->writer_pid);
        offsets->pid_namespace = atomic_load(&live->pid_namespace);
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load(&live->change_count) == change_count) return 0;
    }
    return -EAGAIN;
}

int64_t ls_live_replaced(uintptr_t address, int64_t since) {
    struct ls_live *live = live_at(address);
    int64_t stop = (atomic_load(&live->truncation_count) + 1) / 2;
    if (stop - since / 2 > LS_LIVE_TRUNCATIONS) return 1;
    for (int64_t index = since / 2; index < stop; index++)
        if (atomic_load(&live->truncated_to[index % LS_LIVE_TRUNCATIONS]) == LS_LIVE_REPLACED)
            return 1;
    return 0;
}

int64_t ls_live_truncated_to(uintptr_t address, int64_t since) {
    struct ls_live *live = live_at(address);
    int64_t count = atomic_load(&live->truncation_count);
    int64_t first = since / 2; /* Odd: that one was under way. */
    int64_t stop = (count + 1) / 2;
    if (stop - first > LS_LIVE_TRUNCATIONS) return -1;
    int64_t lowest = INT64_MAX;
    for (int64_t index = first; index < stop; index++) {
        int64_t target = atomic_load(&live->truncated_to[index % LS_LIVE_TRUNCATIONS]);
        if (target != LS_LIVE_REPLACED && target < lowest) lowest = target;
    }
    return lowest;
}

int64_t ls_live_change(uintptr_t address) {
    /* What was read before stays before. */
    atomic_thread_fence(memory_order_seq_cst);
    return atomic_load(&live_at(address)->change_count);
}

/* ---- sleeping and waking ---------------------------------------------------------------------- */
static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * NANOSECONDS + now.tv_nsec;
}

void ls_live_wake(struct ls_live *live) {
    atomic_store(&live->has_waiters, 0);
    atomic_fetch_add(&live->word, 1);
#if defined(__linux__)
    (void)syscall(SYS_futex, &live->word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
#endif
}

void ls_live_poke(uintptr_t address) {
    ls_live_wake(live_at(address));
}

uint32_t ls_live_prepare(uintptr_t address) {
    struct ls_live *live = live_at(address);
    uint32_t word = atomic_load(&live->word);
    atomic_store(&live->has_waiters, 1);
    return word;
}

int64_t ls_live_spin(uintptr_t address, int64_t end, int64_t change_count, int64_t timeout_ns) {
    struct ls_live *live = live_at(address);
    int64_t deadline = 0;
    for (int64_t turn = 0;; turn++) {
        if (atomic_load_explicit(&live->log_end_offset, memory_order_acquire) != end) return 1;
        if (atomic_load_explicit(&live->change_count, memory_order_acquire) != change_count) {
            return 1;
        }
        if (turn % 256 == 0) {
            if (deadline == 0) deadline = now_ns() + timeout_ns;
            if (now_ns() >= deadline) return 0;
        }
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#endif
    }
}

int64_t ls_live_wait(uintptr_t address, uint32_t word, int64_t timeout_ns) {
#if defined(__linux__)
    struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / NANOSECONDS),
                               .tv_nsec = (long)(timeout_ns % NANOSECONDS)};
    if (syscall(SYS_futex, &live_at(address)->word, FUTEX_WAIT, word, &timeout, NULL, 0) == 0) {
        return 0;
    }
    return -(int64_t)errno;
#else
    (void)address, (void)word, (void)timeout_ns;
    return -ENOSYS;
#endif
}

#if defined(__linux__) && !defined(SYS_futex_waitv) && defined(__x86_64__)
#define SYS_futex_waitv 449
#endif

int64_t ls_live_wait_any(const uintptr_t *addresses, const uint32_t *words, int32_t count,
                         int64_t timeout_ns) {
    if (count < 1 || count > LS_LIVE_WAIT_MAX) return -EINVAL;
#if defined(__linux__) && defined(SYS_futex_waitv)
    /* As the kernel has it; older headers do not. */
    struct {
        uint64_t value;
        uint64_t address;
        uint32_t flags;
        uint32_t reserved;
    } waiters[LS_LIVE_WAIT_MAX];
    for (int32_t i = 0; i < count; i++) {
        waiters[i].value = words[i];
        waiters[i].address = (uint64_t)(uintptr_t)&live_at(addresses[i])->word;
        waiters[i].flags = 2; /* 32 bits, shared */
        waiters[i].reserved = 0;
    }
    int64_t deadline = now_ns() + timeout_ns;
    struct timespec until = {.tv_sec = (time_t)(deadline / NANOSECONDS),
                             .tv_nsec = (long)(deadline % NANOSECONDS)};
    int64_t result =
        syscall(SYS_futex_waitv, waiters, (unsigned int)count, 0U, &until, CLOCK_MONOTONIC);
    return result < 0 ? -(int64_t)errno : result;
#else
    (void)addresses, (void)words, (void)timeout_ns;
    return -ENOSYS;
#endif
}

/* ---- who is there: record locks on single bytes of the file ------------------------------------ */
#ifdef F_OFD_SETLK
enum { SET_LOCK = F_OFD_SETLK, GET_LOCK = F_OFD_GETLK };
#else
enum { SET_LOCK = F_SETLK, GET_LOCK = F_GETLK };
#endif

int64_t ls_live_lock(int32_t fd, int32_t slot) {
    short type = slot == LS_LIVE_WRITER_SLOT ? F_WRLCK : F_RDLCK;
    struct flock one = {.l_type = type, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    if (fcntl(fd, SET_LOCK, &one) == 0) return 0;
    return errno == EACCES ? -EAGAIN : -(int64_t)errno;
}

int64_t ls_live_is_locked(int32_t fd, int32_t slot) {
    struct flock one = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    if (fcntl(fd, GET_LOCK, &one) < 0) return -(int64_t)errno;
    return one.l_type != F_UNLCK;
}
