/*
 * ls_py_get.h: what a RecordGetter knows of its log, for ls_py_get.c, which looks into it, and
 * ls_py_getter.c, which is told of it.
 */
#ifndef LS_PY_GET_H
#define LS_PY_GET_H

#include "ls_live.h"
#include "ls_py_batch.h"

enum {
    LS_GET_FIRST_BYTES = 16 << 10, /* asked of memory, or read of a file, at first */
    LS_GET_BLOCK_SHIFT = 16        /* of the map of what was touched: 64 KiB */
};

/* A part of the log that may be looked into. */
struct ls_place {
    PyObject *owner;      /* keeps memory and descriptor */
    const uint8_t *bytes; /* the segment, mapped; NULL: read it through io and fd */
    int64_t size;
    const uint8_t *entries;
    int64_t entry_count;
    int64_t base_offset;
    int64_t end_offset; /* exclusive */
    int64_t used;       /* when, in gets */
    uint8_t *touched;   /* a bit per 64 KiB of a mapping: it was in memory, or was read since */
    ls_io *io;
    int32_t fd;
    int32_t batch_bytes; /* of the batch that was found last */
};

struct ls_finder {
    PyObject ob_base;
    PyObject *watermarks;
    PyObject *name_marks;
    PyObject *marks; /* what start_offset and stop_offset follow from, while watermarks has it */
    PyObject *writer;
    const _Atomic int64_t *log_end_offset; /* the writer's */
    int64_t start_offset;
    int64_t stop_offset;
    struct ls_place *places; /* ascending */
    Py_ssize_t count;
    Py_ssize_t room;
    int64_t mapped_max;
    int64_t files_max;
    int64_t now; /* in gets */
    /* Of a log that another process may write: all of this holds while its page says so, */
    bool is_view;
    PyObject *live_owner;
    struct ls_live *live;
    int64_t change_count;
    int64_t until_ns; /* and not longer: then who writes is to be looked at */
    struct ls_py_state *state;
    /* The batch that was checked last, if records is not NULL; in `batch_owner`'s memory, or ours. */
    struct ls_open_batch batch;
    PyObject *batch_owner;
    const uint8_t *cursor; /* a record of it, */
    int32_t cursor_index;  /* its number, which is its offset delta, too */
    bool is_busy;          /* making a record, in this thread */
    uint8_t *buffer;       /* see ls_py_get.c */
};

/* As ls_py_getter_get, by a caller that looks for changes before and after. */
PyObject *ls_py_getter_find(PyObject *self, int64_t offset);
int64_t ls_get_now_ns(void);

static inline void ls_get_forget_batch(struct ls_finder *finder) {
    finder->batch.records = NULL;
    Py_CLEAR(finder->batch_owner);
}

/* The number of places at or below the offset. */
static inline Py_ssize_t ls_get_places_up_to(const struct ls_finder *finder, int64_t offset) {
    Py_ssize_t low = 0, high = finder->count;
    while (low < high) {
        Py_ssize_t middle = low + (high - low) / 2;
        if (finder->places[middle].base_offset <= offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static inline struct ls_place *ls_get_place(const struct ls_finder *finder, int64_t offset) {
    Py_ssize_t count = ls_get_places_up_to(finder, offset);
    if (count == 0 || offset >= finder->places[count - 1].end_offset) return NULL;
    return &finder->places[count - 1];
}

#endif
