/*
 * ls_py.h: what the files that make Python objects share. They hold the GIL throughout, use the
 * limited API (abi3, CPython 3.11), and compile without it for free-threaded builds.
 *
 * The types and functions live in a module object that ls_py_module makes; its state is
 * `struct ls_py_state`, so that nothing here is a global.
 */
#ifndef LS_PY_H
#define LS_PY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
/* Needs Python.h before it. */
#include <structmember.h>

#include "logstore.h"

enum { LS_PY_FREE_RECORDS_MAX = 2560 };

struct ls_py_state {
    PyObject *free_records[LS_PY_FREE_RECORDS_MAX]; /* memory of records, to be used again */
    Py_ssize_t free_record_count;
    PyTypeObject *record_type;
    PyTypeObject *iterator_type;
    PyTypeObject *log_type;
    PyTypeObject *index_view_type;
    PyTypeObject *getter_type;
    PyTypeObject *tail_type;
    PyTypeObject *mapped_memory_type;
    PyObject *empty_tuple;
    PyObject *epoch;     /* 1970-01-01, UTC-aware */
    PyObject *timedelta; /* the class */
};

/* No GC header: it holds ints, bytes, strings and tuples of those, so it cannot be in a cycle. */
struct ls_py_record {
    PyObject ob_base;    /* PyObject_HEAD, in a form that formatters know */
    long long offset;    /* the int objects of these two are made when somebody asks: */
    long long timestamp; /* few do, and each would take a fifth of the time of the record */
    PyObject *key;
    PyObject *value;
    PyObject *headers;
    int32_t leader_epoch;
    int8_t timestamp_type;
};

/* Bytes that grow; start from zeros, free with PyMem_Free. */
struct ls_py_bytes {
    uint8_t *bytes;
    int64_t size;
    Py_ssize_t room;
};

/* Where a read goes on. */
struct ls_py_place {
    int64_t position;        /* in the file, of a batch */
    int64_t next_offset;     /* of the next record */
    int64_t base_offset_min; /* of the batch */
};

/*
 * Have an item of a list or a tuple brought into the cache, with `size` bytes behind its head. Items
 * that were picked from a longer list are not side by side in memory: waiting for each would take
 * longer than what is done with it. `index` is within the list, or was, before another thread cut it.
 */
static inline void ls_py_prefetch(PyObject *source, bool is_list, int64_t index, int64_t size) {
    (void)source, (void)is_list, (void)index, (void)size;
#if !defined(Py_GIL_DISABLED) && defined(__GNUC__)
    Py_ssize_t count = is_list ? PyList_Size(source) : PyTuple_Size(source);
    if (index >= count) return;
    const char *item = (const char *)(is_list ? PyList_GetItem(source, (Py_ssize_t)index)
                                              : PyTuple_GetItem(source, (Py_ssize_t)index));
    __builtin_prefetch(item, 1);
    for (int64_t at = 64; at <= size; at += 64)
        __builtin_prefetch(item + at);
#endif
}

/* Integers to int64; -1 with an error set. */
int ls_py_int64s(PyObject *const *args, Py_ssize_t count, int64_t *values);
/* Make room for `needed` elements; -1 with MemoryError. */
int ls_py_grow(void **memory, Py_ssize_t *room, Py_ssize_t needed, size_t element);
/* Add one record's headers (a sequence of pairs, or a dict): nothing if there are none. */
int ls_py_put_headers(struct ls_py_bytes *out, PyObject *headers);
/* (result, *appended) for Python. */
PyObject *ls_py_appended(int64_t result, const struct ls_appended *appended);
/*
 * Append a list or tuple of values, all or nothing, as append_list does, if single appends bypass
 * Python; every item is of type bytes or bytearray, or None, so that no Python code runs. The count,
 * or an error: nothing stays. LS_E_TYPE: with an error set.
 */
int64_t ls_py_append_plain(ls_writer *writer, PyObject *values, int64_t *first_offset);
/* What a RecordGetter finds, or NULL: without an error it is for the general way. */
PyObject *ls_py_getter_get(PyObject *self, int64_t offset);
bool ls_py_is_getter(PyObject *object);

/*
 * The records below stop_offset of the plain batches in [bytes, bytes + size), which begin at the
 * place, as a list; the place goes on with them. An empty list: the batch there is torn, or damaged,
 * or not plain, or not to be read yet; the place stays.
 */
PyObject *ls_py_plain_records(struct ls_py_state *state, const uint8_t *bytes, int64_t size,
                              bool transactional, int64_t stop_offset, struct ls_py_place *place);

/* One entry of the module's method table each; `self` is the module. */
PyObject *ls_py_fill_records(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ls_py_read_block(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ls_py_load(PyObject *self, PyObject *address);
PyObject *ls_py_live_is_at(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ls_py_writer_publish(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ls_py_writer_exclusive(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ls_py_writer_is_forked(PyObject *self, PyObject *address);
PyObject *ls_py_writer_settle(PyObject *self, PyObject *address);
PyObject *ls_py_writer_detach(PyObject *self, PyObject *address);
PyObject *ls_py_writer_roll(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ls_py_writer_state(PyObject *self, PyObject *address);
PyObject *ls_py_writer_flush(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ls_py_own_writer(PyObject *self, PyObject *address);
PyObject *ls_py_append_encoded(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ls_py_append_ready(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ls_py_append_columns(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ls_py_append_list(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ls_py_partition_list(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ls_py_measure_list(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ls_py_take_list(PyObject *self, PyObject *const *args, Py_ssize_t count);

/* Make a type and add it to the module; NULL with an error set. */
PyTypeObject *ls_py_add_record_type(PyObject *module);
PyTypeObject *ls_py_add_iterator_type(PyObject *module);
PyTypeObject *ls_py_add_log_type(PyObject *module);
PyTypeObject *ls_py_add_index_view_type(PyObject *module);
PyTypeObject *ls_py_add_getter_type(PyObject *module);
PyTypeObject *ls_py_add_tail_type(PyObject *module);
PyTypeObject *ls_py_add_mapped_memory_type(PyObject *module);

#endif
