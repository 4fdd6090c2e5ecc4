/*
 * ls_writer.c: a writer's life: memory, configuration, the attached segment, its state. Contract:
 * logstore.h. Source of the rules: Kafka LogSegment; spec 4.
 */
#include "ls_writer.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

enum {
    OFFSET_ENTRIES_AT = LS_PAGE, /* the region: a page that fork wipes, then the entries */
    TIME_ENTRIES_AT = OFFSET_ENTRIES_AT + LS_ENTRIES_MAX * LS_OFFSET_ENTRY_BYTES,
    REGION_BYTES = TIME_ENTRIES_AT + LS_ENTRIES_MAX * LS_TIME_ENTRY_BYTES
};

int64_t ls_load(uintptr_t address) {
    return atomic_load_explicit((const _Atomic int64_t *)address, memory_order_acquire);
}

int64_t ls_writer_now(const ls_writer *writer) {
    if (writer->clock != 0) return ls_load(writer->clock);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static bool has_steady_ticks(void) {
#if defined(__x86_64__)
    unsigned int a, b, c, d;
    return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d >> 8 & 1) != 0;
#else
    return false;
#endif
}

ls_writer *ls_writer_new(ls_io *io, ls_pool *pool, uintptr_t clock) {
    assert(io != NULL && pool != NULL);
    ls_writer *writer = calloc(1, sizeof *writer);
    if (writer == NULL) return NULL;
    void *region =
        mmap(NULL, REGION_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (region == MAP_FAILED) {
        free(writer);
        return NULL;
    }
    writer->io = ls_io_hold(io);
    writer->pool = ls_pool_hold(pool);
    writer->clock = clock;
    writer->region = region;
    writer->has_steady_ticks = has_steady_ticks();
    writer->offset_entries = (uint8_t *)region + OFFSET_ENTRIES_AT;
    writer->time_entries = (uint8_t *)region + TIME_ENTRIES_AT;
    writer->process_id = getpid();
#ifdef MADV_WIPEONFORK
    *(uint8_t *)region = 1;
    if (madvise(region, LS_PAGE, MADV_WIPEONFORK) == 0) writer->kept = region;
#endif
    pthread_mutex_init(&writer->lock, NULL);
    pthread_cond_init(&writer->idle, NULL);
    ls_flusher_init(&writer->flusher, ls_writer_now(writer));
    return writer;
}

void ls_writer_free(ls_writer *writer) {
    if (writer == NULL) return;
    if (!ls_writer_is_forked(writer)) { /* In a child the lock may be held by nobody. */
        assert(!writer->is_busy);
        ls_flusher_destroy(&writer->flusher);
        pthread_cond_destroy(&writer->idle);
        pthread_mutex_destroy(&writer->lock);
    }
    writer->staged_bytes = 0;
    ls_writer_shrink(writer);
    ls_writer_forget_room(writer, 0);
    ls_pool_free(writer->pool);
    munmap(writer->region, REGION_BYTES);
    ls_io_free(writer->io);
    free(writer);
}

/* ---- what readers see without the lock ------------------------------------------------------------ */
uintptr_t ls_writer_published(ls_writer *writer) {
    return (uintptr_t)writer->published;
}

void ls_writer_show(ls_writer *writer, bool publish) {
    const struct ls_progress *progress = &writer->committed;
    _Atomic int64_t *published = writer->published;
    const memory_order order = memory_order_release;
    atomic_store_explicit(&published[LS_PUBLISHED_SIZE], progress->size_bytes, order);
    atomic_store_explicit(&published[LS_PUBLISHED_OFFSET_ENTRIES], progress->offset_entry_count,
                          order);
    atomic_store_explicit(&published[LS_PUBLISHED_TIME_ENTRIES], progress->time_entry_count, order);
    /* Last: who sees the new end sees the rest. */
    if (publish) {
        atomic_store_explicit(&published[LS_PUBLISHED_END], progress->next_offset, order);
    }
    struct ls_live *live = writer->live;
    if (live == NULL) return;
    atomic_store_explicit(&live->size_bytes, progress->size_bytes, order);
    atomic_store_explicit(&live->offset_entry_count, progress->offset_entry_count, order);
    atomic_store_explicit(&live->time_entry_count, progress->time_entry_count, order);
    if (publish) ls_live_end(live, progress->next_offset);
}

int64_t ls_writer_publish(ls_writer *writer, int64_t next_offset) {
    if (ls_writer_is_forked(writer)) return LS_E_FORKED;
    atomic_store_explicit(&writer->published[LS_PUBLISHED_END], next_offset, memory_order_release);
    if (writer->live != NULL) ls_live_end(writer->live, next_offset);
    return 0;
}

/* ---- the lock --------------------------------------------------------------------------------------- */
/* The lock, when no bulk append is under way. */
static int64_t lock_idle(ls_writer *writer) {
    if (ls_writer_is_forked(writer)) return LS_E_FORKED;
    pthread_mutex_lock(&writer->lock);
    if (writer->is_busy && pthread_equal(writer->owner, pthread_self())) {
        /* An item's own Python code, run by an append, appends to the same log. */
        pthread_mutex_unlock(&writer->lock);
        return -EDEADLK;
    }
    while (writer->is_busy)
        pthread_cond_wait(&writer->idle, &writer->lock);
    return 0;
}

/* The same without waiting: LS_E_SLOW. */
static int64_t try_lock_idle(ls_writer *writer) {
    if (ls_writer_is_forked(writer)) return LS_E_FORKED;
    if (pthread_mutex_trylock(&writer->lock) != 0) return LS_E_SLOW;
    if (!writer->is_busy) return 0;
    pthread_mutex_unlock(&writer->lock);
    return LS_E_SLOW;
}

int64_t ls_writer_begin(ls_writer *writer, bool may_wait) {
    int64_t result = may_wait ? lock_idle(writer) : try_lock_idle(writer);
    if (result < 0) return result;
    result = writer->is_attached ? ls_writer_clean(writer) : LS_E_CLOSED;
    if (result >= 0) result = ls_writer_settle(writer);
    if (result < 0) {
        pthread_mutex_unlock(&writer->lock);
        return result;
    }
    writer->is_busy = true;
    writer->owner = pthread_self();
    ls_writer_reset(writer);
    return 0;
}

void ls_writer_end(ls_writer *writer) {
    ls_writer_keep_staging(writer);
    writer->is_busy = false;
    pthread_cond_broadcast(&writer->idle);
}

/* The lock, whatever a bulk append does. */
static int64_t lock_now(ls_writer *writer, bool may_wait) {
    if (ls_writer_is_forked(writer)) return LS_E_FORKED;
    if (may_wait)
        pthread_mutex_lock(&writer->lock);
    else if (pthread_mutex_trylock(&writer->lock) != 0)
        return LS_E_SLOW;
    return 0;
}

int64_t ls_writer_exclusive(ls_writer *writer, int32_t change, bool may_wait) {
    /* Entering ends when a bulk append does that came without asking Python. */
    int64_t result = change < 0 ? lock_now(writer, may_wait)
                     : may_wait ? lock_idle(writer)
                                : try_lock_idle(writer);
    if (result < 0) return result;
    writer->exclusive += change;
    assert(writer->exclusive >= 0);
    pthread_mutex_unlock(&writer->lock);
    return 0;
}

int64_t ls_writer_set_live(ls_writer *writer, uintptr_t live) {
    /* Also beside a bulk append: else the page would be unmapped before that publishes to it. */
    int64_t result = lock_now(writer, true);
    if (result < 0) return result;
    writer->live = (struct ls_live *)live;
    ls_flusher_set_live(&writer->flusher, writer->live);
    pthread_mutex_unlock(&writer->lock);
    return 0;
}

/* ---- configuration and segment ------------------------------------------------------------------------ */
int64_t ls_writer_configure(ls_writer *writer, const struct ls_writer_config *config) {
    assert(config != NULL);
    assert(config->segment_bytes > 0 && config->segment_bytes <= INT32_MAX);
    assert(config->max_message_bytes >= 0);
    assert(config->index_interval_bytes >= 0);
    assert(config->batch_bytes > 0);
    int64_t result = lock_idle(writer);
    if (result < 0) return result;
    writer->config = *config;
    writer->may_preallocate = config->preallocate_bytes > 0;
    writer->committed.index.index_interval_bytes = config->index_interval_bytes;
    struct ls_batch_fields fields = ls_writer_fields(writer, 0);
    ls_seal_batch((uintptr_t)writer->header, LS_BATCH_OVERHEAD, &fields, 0, 0, 0, 1);
    pthread_mutex_unlock(&writer->lock);
    return 0;
}

static struct ls_progress progress_of(const struct ls_segment *segment, int32_t interval_bytes) {
    return (struct ls_progress){
        .size_bytes = segment->size_bytes,
        .next_offset = segment->next_offset,
        .offset_entry_count = segment->offset_entry_count,
        .time_entry_count = segment->time_entry_count,
        .rolling_based_timestamp = segment->rolling_based_timestamp,
        .index =
            {
                .base_offset = segment->base_offset,
                .bytes_since_last_index_entry = segment->bytes_since_last_index_entry,
                .max_timestamp = segment->max_timestamp,
                .offset_of_max_timestamp = segment->offset_of_max_timestamp,
                .last_time_entry_timestamp = segment->last_time_entry_timestamp,
                .last_time_entry_offset = segment->last_time_entry_offset,
                .offset_entries_room = segment->offset_entries_max - segment->offset_entry_count,
                /* One slot is for the entry that a roll or close adds. */
                .time_entries_room = segment->time_entries_max - 1 - segment->time_entry_count,
                .index_interval_bytes = interval_bytes,
            },
    };
}

/* Entries that are held count as not made: nobody finds them in the files. */
static void segment_of(const ls_writer *writer, struct ls_segment *segment) {
    const struct ls_progress *progress = &writer->committed;
    const struct ls_progress *written = progress;
    if (!writer->is_busy && writer->made.offset_entries + writer->made.time_entries > 0) {
        written = &writer->held_from;
    }
    *segment = writer->segment;
    segment->next_offset = progress->next_offset;
    segment->size_bytes = progress->size_bytes;
    segment->offset_entry_count = written->offset_entry_count;
    segment->time_entry_count = written->time_entry_count;
    segment->rolling_based_timestamp = progress->rolling_based_timestamp;
    segment->bytes_since_last_index_entry = progress->index.bytes_since_last_index_entry;
    segment->max_timestamp = progress->index.max_timestamp;
    segment->offset_of_max_timestamp = progress->index.offset_of_max_timestamp;
    segment->last_time_entry_timestamp = written->index.last_time_entry_timestamp;
    segment->last_time_entry_offset = written->index.last_time_entry_offset;
}

/* Cut a failed tail and give room ahead back: the file then is as long as its contents. */
static int64_t leave_segment(ls_writer *writer) {
    ls_flusher_unbind(&writer->flusher);
    int64_t result = ls_writer_clean(writer);
    ls_writer_give_back(writer);
    writer->made =
        (struct ls_index_made){0}; /* Held ones that could not be written are lost: hints. */
    writer->is_attached = false;
    writer->is_dirty = false;
    return result;
}

int64_t ls_writer_attach(ls_writer *writer, const struct ls_segment *segment) {
    assert(segment != NULL);
    assert(segment->base_offset >= 0 && segment->next_offset >= segment->base_offset);
    assert(segment->size_bytes >= 0 && segment->size_bytes <= INT32_MAX);
    assert(segment->size_bytes == 0 || segment->rolling_based_timestamp != INT64_MIN);
    assert(segment->offset_entry_count >= 0 && segment->time_entry_count >= 0);
    int64_t result = lock_idle(writer);
    if (result < 0) return result;
    if (writer->is_attached) {
        (void)ls_writer_settle(writer);
        (void)leave_segment(writer);
    }
    writer->segment = *segment;
    writer->committed = progress_of(segment, writer->config.index_interval_bytes);
    ls_writer_forget_room(writer, segment->size_bytes);
    writer->may_preallocate = writer->config.preallocate_bytes > 0;
    writer->is_attached = true;
    struct ls_live *live = writer->live;
    writer->live = NULL; /* Other processes have to see all of it at once. */
    ls_writer_show(writer, true);
    writer->live = live;
    if (live != NULL) ls_live_attach(live, segment->base_offset, writer->published);
    pthread_mutex_unlock(&writer->lock);
    return 0;
}

int64_t ls_writer_detach(ls_writer *writer, struct ls_segment *state) {
    assert(state != NULL);
    int64_t result = lock_idle(writer);
    if (result < 0) return result;
    if (!writer->is_attached) {
        result = LS_E_CLOSED;
    } else {
        (void)ls_writer_settle(writer);
        segment_of(writer, state);
        result = leave_segment(writer);
    }
    pthread_mutex_unlock(&writer->lock);
    return result;
}

int64_t ls_writer_state(ls_writer *writer, struct ls_segment *state, bool may_wait) {
    assert(state != NULL);
    int64_t result = lock_now(writer, may_wait);
    if (result < 0) return result;
    result = writer->is_attached ? 0 : LS_E_CLOSED;
    if (result == 0 && !writer->is_busy) (void)ls_writer_settle(writer);
    if (result == 0) segment_of(writer, state);
    pthread_mutex_unlock(&writer->lock);
    return result;
}

int64_t ls_writer_try_settle(ls_writer *writer) {
    int64_t result = try_lock_idle(writer);
    if (result < 0) return result;
    if (writer->is_attached) result = ls_writer_settle(writer);
    pthread_mutex_unlock(&writer->lock);
    return result;
}

int64_t ls_writer_trim(ls_writer *writer) {
    int64_t result = lock_idle(writer);
    if (result < 0) return result;
    if (writer->is_attached) {
        result = ls_writer_clean(writer);
        if (result >= 0) result = ls_writer_settle(writer);
        ls_writer_give_back(writer);
    }
    ls_writer_shrink(writer);
    pthread_mutex_unlock(&writer->lock);
    return result;
}
