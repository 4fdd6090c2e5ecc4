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

enum {
    FILE_BYTES = 128 << 10,    /* of a file read at once, with the GIL kept: 10 us */
    FILE_READS_MAX = 4,        /* before it is better to ask for newer index entries */
    BATCH_BYTES_MAX = 2 << 20, /* checked with the GIL kept: 100 us */
    WALK_BATCHES_MAX = 4096,   /* from the index entry on */
    PAGE = 4096,
    PAGES_MAX = (1 << LS_GET_BLOCK_SHIFT) / PAGE,
    INDEX_ENTRY_BYTES = 8,
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

/* Where to look first; false: the index cannot be right. */
static bool look_up(const struct ls_place *place, int64_t offset, int64_t *position,
                    struct walk *walk) {
    int64_t relative = offset - place->base_offset;
    uint32_t target = relative > UINT32_MAX ? UINT32_MAX : (uint32_t)relative;
    int64_t slot = ls_offset_index_lookup((uintptr_t)place->entries, place->entry_count, target);
    *position = 0;
    walk->base_offset_min = place->base_offset;
    walk->base_offset_max = INT64_MAX; /* The segment's first batch needs no entry. */
    if (slot >= 0) {
        const uint8_t *entry = place->entries + INDEX_ENTRY_BYTES * slot;
        walk->base_offset_max = place->base_offset + ls_load_be32(entry);
        *position = ls_load_be32(entry + POSITION_AT);
    }
    return place->bytes == NULL || *position < place->size;
}

static bool find_mapped(struct ls_place *place, int64_t offset, struct walk *walk) {
    int64_t position;
    if (!look_up(place, offset, &position, walk)) return false;
    int64_t left = place->size - position;
    if (!is_in_memory(place, position, left < LS_GET_FIRST_BYTES ? left : LS_GET_FIRST_BYTES)) {
        return false;
    }
    /* Waiting for memory is most of a get: let the pages come side by side (measured: 1.06x). */
    for (int64_t ahead = 0; ahead < LS_GET_FIRST_BYTES && ahead < left; ahead += 1024)
        __builtin_prefetch(place->bytes + position + ahead);
    walk->at = place->bytes + position;
    walk->end = place->bytes + place->size;
    if (walk_to(walk, offset) != FOUND) return false;
    int64_t size = walk->batch.end - walk->at;
    return size <= BATCH_BYTES_MAX && is_in_memory(place, walk->at - place->bytes, size);
}

/* The same, by reading the file into the buffer. */
static bool find_in_file(struct ls_finder *finder, struct ls_place *place, int64_t offset,
                         struct walk *walk) {
    if (finder->buffer == NULL) finder->buffer = PyMem_Malloc(FILE_BYTES + 2 * PAGE);
    int64_t position;
    if (finder->buffer == NULL || !look_up(place, offset, &position, walk)) return false;
    ls_get_forget_batch(finder); /* It may be in the buffer. */
    uintptr_t pages = ((uintptr_t)finder->buffer + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
    int64_t size = place->read_bytes;
    for (int32_t count = 0; count < FILE_READS_MAX; count++) {
        /* At the same place in a page as in the file: else the copy may take four times as long. */
        const uint8_t *target = (const uint8_t *)pages + position % PAGE;
        int64_t read =
            ls_io_read_all(place->io, place->fd, (void *)(uintptr_t)target, size, position);
        if (read <= 0) return false;
        walk->at = target;
        walk->end = target + read;
        enum found found = walk_to(walk, offset);
        if (found == FOUND) {
            size = walk->batch.end - walk->at;
            place->read_bytes = (int32_t)(size < LS_GET_FIRST_BYTES ? LS_GET_FIRST_BYTES : size);
            return true;
        }
        if (found == UNUSUAL) return false;
        position += walk->at - target;
        size = LS_GET_FIRST_BYTES;
        if (walk->end - walk->at >= LS_LOG_OVERHEAD) {
            int64_t needed = LS_LOG_OVERHEAD + (int64_t)ls_load_be32(walk->at + LS_LENGTH_AT);
            if (needed > FILE_BYTES) return false;
            if (needed > size) size = needed;
        }
    }
    return false;
}

/* Have the batch of the offset as the one that was checked. */
static bool find_batch(struct ls_finder *finder, int64_t offset) {
    struct ls_place *place = ls_get_place(finder, offset);
    if (place == NULL) return false;
    struct walk walk;
    bool found = place->bytes != NULL ? find_mapped(place, offset, &walk)
                                      : find_in_file(finder, place, offset, &walk);
    if (!found || ls_py_refuse_batch(&walk.batch, walk.at, false, true) != LS_BLOCK_END) {
        return false;
    }
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
    bool is_at_hand = batch->records != NULL && offset >= batch->base_offset &&
                      offset <= batch->base_offset + batch->last_offset_delta;
    if (!is_at_hand && !find_batch(finder, offset)) return NULL;
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

PyObject *ls_py_getter_get(PyObject *self, int64_t offset) {
    struct ls_finder *finder = (struct ls_finder *)self;
    PyObject *record = NULL;
#ifdef Py_GIL_DISABLED
    Py_BEGIN_CRITICAL_SECTION(self);
#endif
    if (!finder->is_busy) record = get(finder, offset);
#ifdef Py_GIL_DISABLED
    Py_END_CRITICAL_SECTION();
#endif
    return record;
}
