/*
 * ls_writer.h: the writer's insides. Only ls_writer*.c include this; all others call ls_writer_*.
 *
 * An append works on a copy of the segment's state (`pending`) and commits it when every byte and
 * index entry is written; until then nothing of it can be seen. Bulk appends stage batches and
 * write them in pieces that end on 1 MiB boundaries of the file: half the time of unaligned 64 KiB
 * writes (PERFORMANCE.md, section A).
 */
#ifndef LS_WRITER_H
#define LS_WRITER_H

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "ls_encode_inline.h"
#include "ls_internal.h"
#include "ls_live.h"
#include "ls_pool.h"

enum {
    LS_PAGE = 4096,
    LS_PIECE = 1 << 20,    /* staged bytes are written in pieces of this size */
    LS_ENTRIES_MAX = 4096, /* index entries kept until the bytes they point to are written */
    LS_HELD_MAX = 8        /* offset index entries that single appends hold back */
};

/* What an append changes. */
struct ls_progress {
    int64_t size_bytes;
    int64_t next_offset;
    int64_t offset_entry_count;
    int64_t time_entry_count;
    int64_t rolling_based_timestamp; /* INT64_MIN before the first batch */
    struct ls_index_state index;
};

/* The four that readers load without the lock, in the order that ls_writer_published states. */
enum {
    LS_PUBLISHED_END,
    LS_PUBLISHED_SIZE,
    LS_PUBLISHED_OFFSET_ENTRIES,
    LS_PUBLISHED_TIME_ENTRIES,
    LS_PUBLISHED_COUNT
};

/*
 * Flushes of the log, one at a time: who comes meanwhile waits for the end, then looks again. Its lock
 * is taken after the writer's, and is never held while the device is waited for.
 */
struct ls_flusher {
    _Atomic int64_t recovery_point; /* below it everything is on the device */
    _Atomic int64_t flushed_ms;     /* when it last rose */
    pthread_mutex_t lock;
    pthread_cond_t ended;  /* signalled when a flush ends, if somebody waits */
    int32_t waiting_count; /* threads that wait for that */
    bool is_taken;         /* a flush is under way */
    bool is_alone;         /* it is one of log_fd alone, which must stay open until it ends */
    bool has_failed;       /* what reached the device is not known; no flush will tell */
    int32_t log_fd;        /* if its fdatasync is all that a flush takes; else -1 */
    int64_t wanted;        /* the highest offset that somebody waits for */
    int64_t general_ms;    /* when log_fd was set: now and then Python is to look after its own */
    struct ls_live *live;  /* as the writer's */
};

struct ls_writer {
    _Atomic int64_t published[LS_PUBLISHED_COUNT];
    struct ls_flusher flusher;
    struct ls_live *live; /* the same for other processes, or NULL */
    ls_io *io;
    uintptr_t clock;
    int64_t process_id;
    const volatile uint8_t *kept; /* 1; a page that fork wipes, or NULL where it cannot */

    bool has_steady_ticks; /* the processor's tick counter never changes its pace */
    uint64_t tick_from; /* for tick_count ticks from here on it is tick_now: see ls_writer_one.c */
    uint64_t tick_count;
    int64_t tick_now;

    pthread_mutex_t lock;
    pthread_cond_t idle; /* signalled when `is_busy` becomes false */
    bool is_busy; /* a bulk append has `pending` and the staging buffer, perhaps without the lock */
    pthread_t owner;   /* the thread that made it busy */
    bool is_in_pieces; /* by ls_writer_open_pieces */
    bool is_attached;
    bool is_dirty; /* bytes of a failed append lie behind the end */
    bool may_preallocate;
    int32_t exclusive; /* sections entered */

    struct ls_writer_config config;
    uint8_t header
        [LS_BATCH_OVERHEAD]; /* of a batch with one record: offset, length, times, CRC are to be set */
    struct ls_segment segment; /* as attached: descriptors, limits; what moves is in the progress */
    struct ls_progress committed;
    struct ls_progress pending;

    uint8_t *staging; /* page-aligned; byte i belongs to file position i mod 4096 */
    int64_t staging_size;
    int64_t staging_touched; /* bytes of it that have memory, at most */
    int64_t staging_kept;    /* of these, what the pool has counted */
    int64_t staged_position; /* of the first staged byte in the file */
    int64_t staged_bytes;
    int64_t asked_end;       /* up to here room was asked for: it is there, or was not to be had */
    uint8_t *offset_entries; /* made by `pending`, not written yet */
    uint8_t *time_entries;
    struct ls_index_made made;
    /*
     * Between appends: the entries of single appends that are held until there are some, since a
     * call for each is as dear as the record's own; committed has them, what is published has not.
     */
    struct ls_progress held_from; /* what was committed before the first of them */

    int64_t preallocated_end;
    int64_t room_held; /* behind the last write, when it was made: what the pool has counted */
    ls_pool *pool;     /* its bounds, and the other writers' */

    void *region; /* one mapping: the page that fork wipes, the entries */
};

/* A child of the process that made the writer: its lock may be held by a thread that is not there. */
LS_INLINE bool ls_writer_is_forked(const ls_writer *writer) {
    if (LS_LIKELY(writer->kept != NULL)) return *writer->kept == 0;
    return (int64_t)getpid() != writer->process_id;
}

/* Whether appends may bypass Python now; the lock is held. */
LS_INLINE bool ls_writer_is_fast(const ls_writer *writer) {
    return writer->exclusive == 0 && (writer->config.flags & LS_WRITER_FAST) != 0;
}

/* Size that a batch made here aims at. A single record may make it larger. */
LS_INLINE int64_t ls_writer_batch_limit(const ls_writer *writer) {
    const struct ls_writer_config *config = &writer->config;
    int64_t limit = config->batch_bytes;
    if (limit > config->max_message_bytes) limit = config->max_message_bytes;
    if (limit > config->segment_bytes) limit = config->segment_bytes;
    return limit < LS_BATCH_OVERHEAD + LS_RECORD_BYTES_MIN ? LS_BATCH_OVERHEAD + LS_RECORD_BYTES_MIN
                                                           : limit;
}

/* Whether a batch must go to the next segment (spec 4.3). */
LS_INLINE bool ls_writer_must_roll(const ls_writer *writer, const struct ls_progress *progress,
                                   int64_t size_bytes, int64_t last_offset, int64_t max_timestamp,
                                   int64_t now) {
    const struct ls_segment *segment = &writer->segment;
    if (progress->size_bytes > writer->config.segment_bytes - size_bytes) return true;
    if (progress->size_bytes > 0) {
        /* Messages' time if there is one, the wall clock otherwise. */
        int64_t waited = progress->rolling_based_timestamp >= 0
                             ? ls_wrapping_sub(max_timestamp, progress->rolling_based_timestamp)
                             : ls_wrapping_sub(now, segment->created_ms);
        if (waited > segment->segment_ms) return true;
    }
    if (progress->offset_entry_count >= segment->offset_entries_max) return true;
    if (progress->time_entry_count >= segment->time_entries_max - 1) return true;
    return last_offset - segment->base_offset > INT32_MAX;
}

/* ---- ls_writer.c ---------------------------------------------------------------------------------- */
/* Milliseconds since the epoch, of the writer's clock. */
int64_t ls_writer_now(const ls_writer *writer);
/* Take the lock and begin a bulk append: `pending` is ours until ls_writer_end, also while the lock is not held. */
int64_t ls_writer_begin(ls_writer *writer, bool may_wait);
/* The bulk append is over; the lock is held, and stays so. */
void ls_writer_end(ls_writer *writer);
/* Show readers the committed state; the log end offset only with `publish`. */
void ls_writer_show(ls_writer *writer, bool publish);

/* ---- ls_writer_stage.c: all with the lock held ------------------------------------------------------ */
/* Make room for `size` bytes at ls_writer_stage. 0 or -ENOMEM. */
int64_t ls_writer_reserve(ls_writer *writer, int64_t size);
/* Free the staging buffer; the next append takes a new one. */
void ls_writer_shrink(ls_writer *writer);
/* At the end of a bulk append: keep the staging buffer, or free it if others keep enough. */
void ls_writer_keep_staging(ls_writer *writer);
/* Write the index entries that single appends hold, and publish them. They stay if that fails. */
int64_t ls_writer_settle(ls_writer *writer);
/* Start from the committed state with nothing staged and no entry; they are settled. */
void ls_writer_reset(ls_writer *writer);
/* Cut back what a failed append has left behind the end. */
int64_t ls_writer_clean(ls_writer *writer);
/* Nothing is allocated behind `size_bytes`, where the file ends. */
void ls_writer_forget_room(ls_writer *writer, int64_t size_bytes);
/* Free what was allocated ahead. */
void ls_writer_give_back(ls_writer *writer);
/* Where the next batch is encoded. */
uint8_t *ls_writer_stage(ls_writer *writer);
/* Whether staged bytes complete a piece, or index entries fill their memory. */
bool ls_writer_is_due(const ls_writer *writer);
/* Write what completes a piece. About `bytes_to_come` will follow what is staged. */
int64_t ls_writer_write_due(ls_writer *writer, int64_t bytes_to_come);
/* Write bytes from elsewhere; `position` is where the file ends by now. */
int64_t ls_writer_write(ls_writer *writer, const uint8_t *bytes, int64_t size, int64_t position,
                        int64_t bytes_to_come);
/* The same for bytes in several places. */
int64_t ls_writer_write_spans(ls_writer *writer, const struct ls_io_span *spans, int32_t count,
                              int64_t position, int64_t bytes_to_come);
/* Count a batch into `pending` and make its index entries. LS_E_ROLL: its offset does not fit. */
int64_t ls_writer_count(ls_writer *writer, const struct ls_batch *batch);
/* Write all, make it the state, show it. If that fails, everything is as before. */
int64_t ls_writer_commit(ls_writer *writer, bool publish);
/* Drop the pending append and cut back what it has written. */
void ls_writer_abort(ls_writer *writer);

/* ---- ls_writer_encoded.c, with the lock held ------------------------------------------------------------ */
/*
 * Write whole batches and count them into `pending`: what ls_writer_append_encoded does between
 * begin and commit. The position, or an error.
 */
int64_t ls_writer_put_encoded(ls_writer *writer, const uint8_t *head, int64_t head_size,
                              const uint8_t *bytes, int64_t size, const struct ls_batch *batches,
                              int64_t count);

/* ---- ls_writer_bulk.c: what appends of many share, with the lock held ---------------------------------- */
/* 1e8 ms is 1970-01-02 and 1e14 ms the year 5138: seconds, or micro- or nanoseconds, are meant. */
LS_INLINE bool ls_timestamp_is_other_unit(int64_t timestamp) {
    return (timestamp >= 100000000 && timestamp < 10000000000) || timestamp >= 100000000000000;
}

/* LS_PROBLEM_NONE, or the rule that this timestamp breaks. */
enum ls_problem ls_judge_timestamp(const ls_writer *writer, int64_t timestamp, int64_t now,
                                   int32_t flags);
/* The fields of every batch made here, but the base offset. */
struct ls_batch_fields ls_writer_fields(const ls_writer *writer, int64_t now);
/* A result to add batches to. */
struct ls_appended ls_writer_nothing(const ls_writer *writer);
/*
 * The batch that is encoded at the stage joins the append; `index` is its first record's. It is
 * staged, not written: see ls_writer_is_due. LS_E_ROLL: it must not join.
 */
int64_t ls_append_batch(ls_writer *writer, struct ls_appended *appended,
                        const struct ls_batch *batch, int64_t index, int64_t now);
/* Commit or abort by the result so far, and end the bulk append: record count, or an error. */
int64_t ls_writer_finish(ls_writer *writer, struct ls_appended *appended, int64_t result,
                         int32_t flags);

/* ---- ls_writer_stream.c: records one by one, for lists -------------------------------------------- */
struct ls_item {
    const uint8_t *bytes;
    int64_t size; /* -1 null */
};

/*
 * A bulk append whose records come one by one. From open to close the writer is its own, and the lock
 * is not held: the caller may keep the GIL while it fills, and drop it for what writes.
 *
 *     open; per record: while put says LS_STREAM_NEXT: seal, write if is_due, start; at the end: close
 */
struct ls_stream {
    ls_writer *writer;
    struct ls_appended appended;
    int64_t now;
    int32_t flags; /* enum ls_append_flag */
    int32_t count; /* records in the batch being filled */
    uint8_t *start;
    uint8_t *at;
    uint8_t *end;  /* of the usual size */
    int64_t first; /* index of the batch's first record */
    int64_t base_timestamp;
    int64_t max_timestamp;
    struct ls_value_shape shape;
};

enum { LS_STREAM_NEXT = 1 };

/* `now` (-1: ask the clock) and `flags` are the caller's. LS_E_SLOW: it would have to wait, and may not. */
int64_t ls_stream_open(ls_writer *writer, struct ls_stream *stream, bool may_wait);
/* 0, or LS_E_REFUSED: the record at `index` breaks a rule. */
int64_t ls_stream_judge(struct ls_stream *stream, int64_t index, struct ls_item key,
                        int64_t timestamp);
/* Put a record; LS_STREAM_NEXT: it does not fit this batch. `header`: headersCount and headers, or size 0. */
int64_t ls_stream_put(struct ls_stream *stream, struct ls_item key, struct ls_item value,
                      struct ls_item header, int64_t timestamp);
/* Let the batch join the append. LS_E_ROLL: it must not, the segment is full. */
int64_t ls_stream_seal(struct ls_stream *stream);
/* Whether enough is staged to be written. */
bool ls_stream_is_due(const struct ls_stream *stream);
/* Bytes that the segment still takes. */
int64_t ls_stream_room(const struct ls_stream *stream);
/* Write it. About `bytes_to_come` will follow. */
int64_t ls_stream_write(struct ls_stream *stream, int64_t bytes_to_come);
/* Begin a batch with the record at `index`, of this size with deltas of 0. */
int64_t ls_stream_start(struct ls_stream *stream, int64_t index, int64_t record_size,
                        int64_t timestamp);
/* Commit, or if `result` is an error other than LS_E_ROLL abort: record count, or an error. LS_E_SLOW as above. */
int64_t ls_stream_close(struct ls_stream *stream, int64_t result, bool may_wait);

/* ---- ls_writer_flush.c --------------------------------------------------------------------------- */
void ls_flusher_init(struct ls_flusher *flusher, int64_t now);
void ls_flusher_destroy(struct ls_flusher *flusher);
/* A flush takes more than log_fd from now on. Waits for one that is under way; the writer's lock is held. */
void ls_flusher_unbind(struct ls_flusher *flusher);
/* Show the recovery point on this page, too, from now on. */
void ls_flusher_set_live(struct ls_flusher *flusher, struct ls_live *live);

/* ---- ls_writer_one.c ----------------------------------------------------------------------------- */
/* Append one record and return its offset; never waits. LS_E_SLOW, or an error: nothing was done. */
int64_t ls_writer_append_one(ls_writer *writer, struct ls_item key, struct ls_item value,
                             int64_t timestamp);

#endif
