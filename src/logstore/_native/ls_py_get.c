/*
 * ls_py_get.c: one record by its offset without a line of Python, with the GIL kept.
 *
 * It knows some places of the log: a sealed segment, mapped, or a file that is read, each with an
 * offset index. An index answer is a hint (DESIGN.md D5): the batch found is what counts, and its
 * CRC is checked unless it is the batch that was checked last. What is unusual in any way, from a
 * gap to damage, is not answered here: the caller goes the general way, which has all the errors.
 */
#include "ls_py_get.h"

#include <sys/mman.h>
#include <time.h>

enum {
    FILE_BYTES = 128 << 10,    /* of a file read at once, with the GIL kept: 10 us */
    FILE_READS_MAX = 4,        /* before it is better to ask for newer index entries */
    BATCH_BYTES_MAX = 2 << 20, /* checked with the GIL kept: 100 us */
    WALK_BATCHES_MAX = 4096,   /* from the index entry on */
    PAGE = 4096,
    LINE = 64,
    PAGES_MAX = (1 << LS_GET_BLOCK_SHIFT) / PAGE,
    POSITION_AT = 4
};

/* Whether a committed reader may read the offset, as far as is known without asking Python. */
static bool is_readable(const struct ls_finder *finder, int64_t offset) {
    if (finder->marks == NULL || finder->log_end_offset == NULL) return false;
    PyObject *marks = PyObject_GetAttr(finder->watermarks, finder->name_marks);
    if (marks == NULL) {
        PyErr_Clear();
        return false;
    }
    bool same = marks == finder->marks;
    Py_DECREF(marks);
    return same && offset >= finder->start_offset && offset < finder->stop_offset &&
           offset < ls_load((uintptr_t)finder->log_end_offset);
}

/*
 * Whether reading [position, position + size) of a mapping will hardly wait for the disk, which
 * nobody should do with the GIL. Asked once for each block, as asking takes longer than a get. A
 * block that is not in memory is so after the general way, which reads it: it counts as touched.
 */
static bool is_in_memory(struct ls_place *place, int64_t position, int64_t size) {
    bool in_memory = true;
    for (int64_t block = position >> LS_GET_BLOCK_SHIFT;
         block <= (position + size - 1) >> LS_GET_BLOCK_SHIFT; block++) {
        uint8_t bit = (uint8_t)(1 << (block & 7));
        if (LS_LIKELY(place->touched[block >> 3] & bit)) continue;
        place->touched[block >> 3] |= bit;
        int64_t start = block << LS_GET_BLOCK_SHIFT;
        int64_t bytes = place->size - start < (int64_t)1 << LS_GET_BLOCK_SHIFT
                            ? place->size - start
                            : (int64_t)1 << LS_GET_BLOCK_SHIFT;
        unsigned char pages[PAGES_MAX] = {0};
        if (mincore((void *)(uintptr_t)(place->bytes + start), (size_t)bytes, (void *)pages) != 0) {
            continue; /* Pages of another size, or a system that does not tell. */
        }
        for (int64_t page = 0; page < (bytes + PAGE - 1) / PAGE; page++)
            in_memory = in_memory && (pages[page] & 1) != 0;
        if (!in_memory)
            (void)madvise((void *)(uintptr_t)(place->bytes + start), (size_t)bytes, MADV_WILLNEED);
    }
    return in_memory;
}

enum found { FOUND, BEYOND, TORN, UNUSUAL };

/* A walk over batches towards the one that holds an offset. */
struct walk {
    const uint8_t *at;
    const uint8_t *end;
    int64_t base_offset_min; /* of the batch at `at` */
    int64_t base_offset_max;
    struct ls_open_batch batch; /* the one at `at`, once it is FOUND */
};

/* BEYOND: the offset is not before `end`; TORN: the batch at `at` does not end before it. */
static enum found walk_to(struct walk *walk, int64_t offset) {
    struct ls_open_batch *batch = &walk->batch;
    for (int32_t count = 0; count < WALK_BATCHES_MAX; count++) {
        if (walk->at == walk->end) return BEYOND;
        enum ls_block_stop stop = ls_open_batch_at(walk->at, walk->end - walk->at, batch);
        if (stop == LS_BLOCK_TORN) return TORN;
        if (stop != LS_BLOCK_END) return UNUSUAL;
        if (batch->base_offset < walk->base_offset_min ||
            batch->base_offset > walk->base_offset_max) {
            return UNUSUAL;
        }
        if (batch->base_offset > offset) return UNUSUAL; /* a gap */
        if (batch->base_offset + batch->last_offset_delta >= offset) return FOUND;
        walk->base_offset_min = batch->base_offset + batch->last_offset_delta + 1;
        walk->base_offset_max = INT64_MAX;
        walk->at = batch->end;
    }
    return UNUSUAL;
}

/* ---- where the index says that the batch is ------------------------------------------------- */

/* Entry `slot` of a place's index. */
static int64_t entry_offset(const struct ls_place *place, int64_t slot) {
    return place->base_offset + ls_load_be32(place->entries + LS_OFFSET_ENTRY_BYTES * slot);
}

static int64_t entry_position(const struct ls_place *place, int64_t slot) {
    return ls_load_be32(place->entries + LS_OFFSET_ENTRY_BYTES * slot + POSITION_AT);
}

/*
 * Two places to look at. An entry has the last offset of the batch at its position, so the batch of
 * an offset is at the first entry that is not below it, or between that and the one before.
 */
struct hint {
    int64_t position;        /* of the last batch that surely does not begin above the offset */
    int64_t base_offset_min; /* of the batch there */
    int64_t base_offset_max;
    int64_t direct_position; /* of the batch of the first entry not below the offset; -1: none, */
    int64_t direct_min;      /* or batches are so small that it is hardly the one */
    int64_t direct_last;     /* its last offset */
    int64_t direct_size;     /* what it hardly is larger than */
};

/* False: the index cannot be right. */
static bool look_up(const struct ls_place *place, int64_t offset, struct hint *hint) {
    int64_t relative = offset - place->base_offset;
    uint32_t target = relative > UINT32_MAX ? UINT32_MAX : (uint32_t)relative;
    int64_t slot = ls_offset_index_lookup((uintptr_t)place->entries, place->entry_count, target);
    /* The segment's first batch needs no entry. */
    *hint = (struct hint){.base_offset_min = place->base_offset,
                          .base_offset_max = INT64_MAX,
                          .direct_position = -1,
                          .direct_min = place->base_offset};
    int64_t direct = 0;
    if (slot >= 0) {
        hint->base_offset_max = entry_offset(place, slot);
        hint->position = entry_position(place, slot);
        direct = hint->base_offset_max == offset ? slot : slot + 1;
        if (direct > 0) hint->direct_min = entry_offset(place, direct - 1) + 1;
    }
    int64_t position = direct < place->entry_count ? entry_position(place, direct) : -1;
    if (position >= 0 && position - hint->position < 2 * (int64_t)place->batch_bytes) {
        hint->direct_position = position;
        hint->direct_last = entry_offset(place, direct);
        hint->direct_size = place->batch_bytes + place->batch_bytes / 4;
        if (direct + 1 < place->entry_count) {
            int64_t distance = entry_position(place, direct + 1) - position;
            if (distance > 0 && distance < hint->direct_size) hint->direct_size = distance;
        }
    }
    return place->bytes == NULL ||
           (hint->position < place->size && hint->direct_position < place->size);
}

/* Whether the batch at `at` is the one that the index names, and has the offset. */
static bool is_direct(struct walk *walk, const struct hint *hint, int64_t offset) {
    struct ls_open_batch *batch = &walk->batch;
    return ls_open_batch_at(walk->at, walk->end - walk->at, batch) == LS_BLOCK_END &&
           batch->base_offset >= hint->direct_min && batch->base_offset <= offset &&
           batch->base_offset + batch->last_offset_delta == hint->direct_last;
}

/* Let the next get here ask for as much as this batch has. */
static void note_batch(struct ls_place *place, const struct walk *walk) {
    place->batch_bytes = (int32_t)(walk->batch.end - walk->at);
}

/* ---- in a mapping ---------------------------------------------------------------------------- */

/*
 * Waiting for memory is most of a get, and a page's end stops the processor's own read-ahead: ask
 * for all lines, of all pages side by side, into the second level cache, which can wait for more of
 * them at once than the first (CRC of a 16 KiB batch in DRAM: 0.76 of the time with the first line
 * of each KiB asked for; into the first level: 1.0).
 */
static void ask_for(const uint8_t *bytes, int64_t size) {
    for (int64_t in_page = 0; in_page < PAGE && in_page < size; in_page += LINE) {
        for (int64_t page = in_page; page < size; page += PAGE)
            __builtin_prefetch(bytes + page, 0, 2);
    }
}

/* Have [position, position + size) of a mapping come from memory; false: it is not there. */
static bool approach(struct ls_place *place, struct walk *walk, int64_t position, int64_t size) {
    int64_t left = place->size - position;
    if (size > LS_GET_FIRST_BYTES) size = LS_GET_FIRST_BYTES;
    if (size > left) size = left;
    if (!is_in_memory(place, position, size)) return false;
    ask_for(place->bytes + position, size);
    walk->at = place->bytes + position;
    walk->end = place->bytes + place->size;
    return true;
}

static bool find_mapped(struct ls_place *place, const struct hint *hint, int64_t offset,
                        struct walk *walk) {
    if (hint->direct_position >= 0) {
        if (!approach(place, walk, hint->direct_position, hint->direct_size)) return false;
        if (is_direct(walk, hint, offset)) return true;
    }
    if (!approach(place, walk, hint->position, LS_GET_FIRST_BYTES)) return false;
    return walk_to(walk, offset) == FOUND;
}

/* ---- in a file ------------------------------------------------------------------------------- */

/* Read into the buffer; false: nothing was. */
static bool read_file(struct ls_finder *finder, const struct ls_place *place, struct walk *walk,
                      int64_t position, int64_t size) {
    uintptr_t pages = ((uintptr_t)finder->buffer + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
    /* At the same place in a page as in the file: else the copy may take four times as long. */
    uintptr_t target = pages + (uintptr_t)(position % PAGE);
    int64_t read = ls_io_read_all(place->io, place->fd, (void *)target, size, position);
    walk->at = (const uint8_t *)target;
    walk->end = walk->at + (read < 0 ? 0 : read);
    return read > 0;
}

static bool find_in_file(struct ls_finder *finder, struct ls_place *place, const struct hint *hint,
                         int64_t offset, struct walk *walk) {
    if (finder->buffer == NULL) finder->buffer = PyMem_Malloc(FILE_BYTES + 2 * PAGE);
    if (finder->buffer == NULL) return false;
    ls_get_forget_batch(finder); /* It may be in the buffer. */
    int64_t size = hint->direct_size < FILE_BYTES ? hint->direct_size : FILE_BYTES;
    if (hint->direct_position >= 0 && read_file(finder, place, walk, hint->direct_position, size) &&
        is_direct(walk, hint, offset)) {
        return true;
    }
    int64_t position = hint->position;
    size = place->batch_bytes < FILE_BYTES ? place->batch_bytes : FILE_BYTES;
    if (size < LS_GET_FIRST_BYTES) size = LS_GET_FIRST_BYTES;
    for (int32_t count = 0; count < FILE_READS_MAX; count++) {
        if (!read_file(finder, place, walk, position, size)) return false;
        const uint8_t *start = walk->at;
        enum found found = walk_to(walk, offset);
        if (found == FOUND) return true;
        if (found == UNUSUAL) return false;
        position += walk->at - start;
        size = LS_GET_FIRST_BYTES;
        if (walk->end - walk->at >= LS_LOG_OVERHEAD) {
            int64_t needed = LS_LOG_OVERHEAD + (int64_t)ls_load_be32(walk->at + LS_LENGTH_AT);
            if (needed > FILE_BYTES) return false;
            if (needed > size) size = needed;
        }
    }
    return false;
}

/* Whether the batch found may be checked with the GIL kept. */
static bool is_at_hand(struct ls_place *place, const struct walk *walk) {
    int64_t size = walk->batch.end - walk->at;
    if (place->bytes == NULL) return true; /* It was read. */
    return size <= BATCH_BYTES_MAX && is_in_memory(place, walk->at - place->bytes, size);
}

/* Have the batch of the offset as the one that was checked. */
static bool find_batch(struct ls_finder *finder, int64_t offset) {
    struct ls_place *place = ls_get_place(finder, offset);
    if (place == NULL) return false;
    struct hint hint;
    if (!look_up(place, offset, &hint)) return false;
    struct walk walk = {.base_offset_min = hint.base_offset_min,
                        .base_offset_max = hint.base_offset_max};
    bool found = place->bytes != NULL ? find_mapped(place, &hint, offset, &walk)
                                      : find_in_file(finder, place, &hint, offset, &walk);
    if (!found || !is_at_hand(place, &walk)) return false;
    note_batch(place, &walk);
    if (ls_py_refuse_batch(&walk.batch, walk.at, false, true) != LS_BLOCK_END) return false;
    place->used = ++finder->now;
    finder->batch = walk.batch;
    finder->cursor = walk.batch.records;
    finder->cursor_index = 0;
    if (finder->batch_owner != place->owner) {
        PyObject *old = finder->batch_owner;
        finder->batch_owner = Py_NewRef(place->owner);
        Py_XDECREF(old); /* Its place has it, too. */
    }
    return true;
}

/* The record of an offset that the checked batch spans; NULL: it has none, or breaks a rule. */
static const uint8_t *find_record(const struct ls_finder *finder, int64_t offset) {
    const struct ls_open_batch *batch = &finder->batch;
    int32_t delta = (int32_t)(offset - batch->base_offset);
    bool from_cursor = delta >= finder->cursor_index;
    const uint8_t *from = from_cursor ? finder->cursor : batch->records;
    int32_t found_delta;
    int64_t position = ls_find_record_from((uintptr_t)from, batch->end - from,
                                           from_cursor ? finder->cursor_index : 0,
                                           batch->record_count, delta, &found_delta);
    return position >= 0 && found_delta == delta ? from + position : NULL;
}

static PyObject *get(struct ls_finder *finder, int64_t offset) {
    const struct ls_open_batch *batch = &finder->batch;
    if (!is_readable(finder, offset)) return NULL;
    bool is_checked = batch->records != NULL && offset >= batch->base_offset &&
                      offset <= batch->base_offset + batch->last_offset_delta;
    if (!is_checked && !find_batch(finder, offset)) return NULL;
    const uint8_t *at = find_record(finder, offset);
    struct ls_record parsed;
    if (at == NULL || ls_parse_record(at, batch->end, &parsed) == NULL) return NULL;
    if (parsed.offset_delta < batch->record_count) {
        finder->cursor = at;
        finder->cursor_index = parsed.offset_delta; /* its number, or more */
    }
    /* Making headers may collect garbage, and so run code that uses or changes this object. */
    PyObject *owner = Py_NewRef(finder->batch_owner);
    const struct ls_open_batch kept = *batch;
    finder->is_busy = true;
    PyObject *record = ls_py_make_record(finder->state, &kept, &parsed);
    finder->is_busy = false;
    Py_DECREF(owner);
    return record;
}

/* ---- of a log that another process may write --------------------------------------------------- */

int64_t ls_get_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Whether what is known of it still holds, after everything that was read before. */
static bool is_as_known(const struct ls_finder *finder) {
    if (!finder->is_view) return true;
    if (finder->live == NULL) return false;
    atomic_thread_fence(memory_order_seq_cst);
    return atomic_load(&finder->live->change_count) == finder->change_count;
}

static PyObject *get_as_known(struct ls_finder *finder, int64_t offset) {
    if (!is_as_known(finder)) return NULL;
    if (finder->is_view && ls_get_now_ns() >= finder->until_ns) return NULL;
    PyObject *record = get(finder, offset);
    if (!is_as_known(finder)) {
        ls_get_forget_batch(finder); /* Its bytes may be another's. */
        Py_CLEAR(record);
    }
    return record;
}

static PyObject *alone(PyObject *self, int64_t offset,
                       PyObject *(*look)(struct ls_finder *finder, int64_t offset)) {
    struct ls_finder *finder = (struct ls_finder *)self;
    PyObject *record = NULL;
#ifdef Py_GIL_DISABLED
    Py_BEGIN_CRITICAL_SECTION(self);
#endif
    if (!finder->is_busy) record = look(finder, offset);
#ifdef Py_GIL_DISABLED
    Py_END_CRITICAL_SECTION();
#endif
    return record;
}

PyObject *ls_py_getter_get(PyObject *self, int64_t offset) {
    return alone(self, offset, get_as_known);
}

PyObject *ls_py_getter_find(PyObject *self, int64_t offset) {
    return alone(self, offset, get);
}
