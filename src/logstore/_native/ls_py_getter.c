/*
 * ls_py_getter.c: RecordGetter, the object that gets one record by its offset (ls_py_get.c) from the
 * places of the log that it was told of.
 */
#include "ls_py_get.h"

enum { FILES_MAX = 4 /* places that are read, as a rule: the active segment */ };

static PyObject *getter_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *watermarks = NULL, *writer = NULL;
    unsigned long long published = 0;
    long long mapped_max = 0, files_max = FILES_MAX;
    if (keywords != NULL && PyDict_Size(keywords) > 0) {
        return PyErr_Format(PyExc_TypeError, "RecordGetter() takes no keyword arguments");
    }
    if (!PyArg_ParseTuple(args, "OOKL|L:RecordGetter", &watermarks, &writer, &published,
                          &mapped_max, &files_max)) {
        return NULL;
    }
    if (published == 0 || mapped_max < 0 || files_max < 0) {
        return PyErr_Format(PyExc_ValueError,
                            "no address of the log end offset, or negative bound");
    }
    struct ls_finder *finder =
        (struct ls_finder *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (finder == NULL) return NULL;
    finder->state = PyType_GetModuleState(type);
    finder->watermarks = Py_NewRef(watermarks);
    finder->writer = Py_NewRef(writer);
    finder->log_end_offset = (const _Atomic int64_t *)(uintptr_t)published;
    finder->mapped_max = mapped_max;
    finder->files_max = files_max;
    finder->name_marks = PyUnicode_InternFromString("_marks");
    if (finder->state == NULL || finder->name_marks == NULL) Py_CLEAR(finder);
    return (PyObject *)finder;
}

static int getter_traverse(PyObject *self, visitproc visit, void *arg) {
    struct ls_finder *finder = (struct ls_finder *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(finder->watermarks);
    Py_VISIT(finder->marks);
    Py_VISIT(finder->writer);
    Py_VISIT(finder->batch_owner);
    Py_VISIT(finder->live_owner);
    for (Py_ssize_t i = 0; i < finder->count; i++)
        Py_VISIT(finder->places[i].owner);
    return 0;
}

/* Take a place out; what it kept is let go of last, as that may run Python code. */
static void remove_place(struct ls_finder *finder, Py_ssize_t at) {
    struct ls_place place = finder->places[at];
    memmove(finder->places + at, finder->places + at + 1,
            (size_t)(finder->count - at - 1) * sizeof place);
    finder->count -= 1;
    if (finder->batch_owner == place.owner) ls_get_forget_batch(finder);
    PyMem_Free(place.touched);
    Py_DECREF(place.owner);
}

static int getter_clear(PyObject *self) {
    struct ls_finder *finder = (struct ls_finder *)self;
    ls_get_forget_batch(finder);
    while (finder->count > 0)
        remove_place(finder, finder->count - 1);
    Py_CLEAR(finder->marks);
    Py_CLEAR(finder->watermarks);
    finder->log_end_offset = NULL;
    finder->live = NULL;
    Py_CLEAR(finder->live_owner);
    Py_CLEAR(finder->writer);
    return 0;
}

static void getter_dealloc(PyObject *self) {
    struct ls_finder *finder = (struct ls_finder *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    (void)getter_clear(self);
    Py_XDECREF(finder->name_marks);
    PyMem_Free(finder->places);
    PyMem_Free(finder->buffer);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* ---- what it knows --------------------------------------------------------------------------- */

static PyObject *set_range(struct ls_finder *finder, PyObject *args) {
    PyObject *marks = NULL;
    long long start_offset = 0, stop_offset = 0;
    if (!PyArg_ParseTuple(args, "LLO:set_range", &start_offset, &stop_offset, &marks)) return NULL;
    PyObject *old = finder->marks;
    finder->start_offset = start_offset;
    finder->stop_offset = stop_offset;
    finder->marks = Py_NewRef(marks);
    Py_XDECREF(old);
    return Py_NewRef(Py_None);
}

static PyObject *set_moment(struct ls_finder *finder, PyObject *args) {
    PyObject *owner = NULL;
    unsigned long long live = 0;
    long long change_count = 0;
    double seconds = 0.0;
    if (!PyArg_ParseTuple(args, "OKLd:set_moment", &owner, &live, &change_count, &seconds)) {
        return NULL;
    }
    PyObject *old = finder->live_owner;
    finder->is_view = true;
    finder->live_owner = Py_NewRef(owner);
    finder->live = (struct ls_live *)(uintptr_t)live;
    finder->change_count = change_count;
    finder->until_ns = ls_get_now_ns() + (int64_t)(seconds * 1e9);
    Py_XDECREF(old);
    return Py_NewRef(Py_None);
}

/* The place of its kind that was used longest ago, or -1 if there are fewer than `most`. */
static Py_ssize_t place_to_leave(const struct ls_finder *finder, bool is_mapped, int64_t most) {
    Py_ssize_t oldest = -1;
    int64_t count = 0;
    for (Py_ssize_t i = 0; i < finder->count; i++) {
        if ((finder->places[i].bytes != NULL) != is_mapped) continue;
        count += 1;
        if (oldest < 0 || finder->places[i].used < finder->places[oldest].used) oldest = i;
    }
    return count < most ? -1 : oldest;
}

static PyObject *add(struct ls_finder *finder, PyObject *args) {
    PyObject *owner = NULL;
    long long base_offset = 0, end_offset = 0, size = 0, entry_count = 0;
    unsigned long long bytes = 0, entries = 0, io = 0;
    int fd = -1;
    if (!PyArg_ParseTuple(args, "OLLKLKLKi:add", &owner, &base_offset, &end_offset, &bytes, &size,
                          &entries, &entry_count, &io, &fd)) {
        return NULL;
    }
    bool is_mapped = bytes != 0;
    if (base_offset < 0 || end_offset < base_offset || size < 0 || entry_count < 0 ||
        (entry_count > 0 && entries == 0) || (is_mapped ? size == 0 : io == 0 || fd < 0)) {
        return PyErr_Format(PyExc_ValueError, "a place without memory, descriptor or extent");
    }
    int64_t most = is_mapped ? finder->mapped_max : finder->files_max;
    if (most == 0) return Py_NewRef(Py_None);
    struct ls_place place = {.owner = owner,
                             .bytes = (const uint8_t *)(uintptr_t)bytes,
                             .size = size,
                             .entries = (const uint8_t *)(uintptr_t)entries,
                             .entry_count = entry_count,
                             .base_offset = base_offset,
                             .end_offset = end_offset,
                             .used = ++finder->now,
                             .io = (ls_io *)(uintptr_t)io,
                             .fd = fd,
                             .batch_bytes = LS_GET_FIRST_BYTES};
    if (is_mapped) place.touched = PyMem_Calloc((size_t)((size >> LS_GET_BLOCK_SHIFT) / 8 + 1), 1);
    if (is_mapped && place.touched == NULL) return PyErr_NoMemory();
    if (ls_py_grow((void **)&finder->places, &finder->room, finder->count + 2, sizeof place) < 0) {
        PyMem_Free(place.touched);
        return NULL;
    }
    Py_ssize_t at = ls_get_places_up_to(finder, base_offset);
    bool is_known = at > 0 && finder->places[at - 1].base_offset == base_offset;
    memmove(finder->places + at + 1, finder->places + at,
            (size_t)(finder->count - at) * sizeof place);
    Py_INCREF(owner);
    finder->places[at] = place;
    finder->count += 1;
    /* Letting go may run Python code: from here on the table is whole at every step. */
    if (is_known) {
        remove_place(finder, at - 1);
    } else {
        Py_ssize_t leaving = place_to_leave(finder, is_mapped, most + 1);
        if (leaving >= 0) remove_place(finder, leaving);
    }
    return Py_NewRef(Py_None);
}

static PyObject *retain(struct ls_finder *finder, PyObject *args) {
    long long first = 0, active = 0;
    if (!PyArg_ParseTuple(args, "LL:retain", &first, &active)) return NULL;
    for (Py_ssize_t i = finder->count; i-- > 0;) {
        if (i >= finder->count) continue; /* Letting go ran code that removed some. */
        const struct ls_place *place = &finder->places[i];
        bool was_active = place->end_offset == INT64_MAX && place->base_offset != active;
        if (place->base_offset < first || was_active) remove_place(finder, i);
    }
    return Py_NewRef(Py_None);
}

static PyObject *covers(struct ls_finder *finder, PyObject *args) {
    long long offset = 0;
    if (!PyArg_ParseTuple(args, "L:covers", &offset)) return NULL;
    return PyBool_FromLong(ls_get_place(finder, offset) != NULL);
}

static PyObject *places(struct ls_finder *finder, PyObject *unused) {
    (void)unused;
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0; list != NULL && i < finder->count; i++) {
        const struct ls_place *place = &finder->places[i];
        PyObject *item =
            Py_BuildValue("(LLO)", (long long)place->base_offset, (long long)place->end_offset,
                          place->bytes != NULL ? Py_True : Py_False);
        if (item == NULL || PyList_Append(list, item) < 0) Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

/* Without the GIL, one at a time. */
static PyObject *alone(PyObject *self, PyObject *args,
                       PyObject *(*method)(struct ls_finder *finder, PyObject *args)) {
    PyObject *result;
#ifdef Py_GIL_DISABLED
    Py_BEGIN_CRITICAL_SECTION(self);
#endif
    result = method((struct ls_finder *)self, args);
#ifdef Py_GIL_DISABLED
    Py_END_CRITICAL_SECTION();
#endif
    return result;
}

static PyObject *getter_set_range(PyObject *self, PyObject *args) {
    return alone(self, args, set_range);
}

static PyObject *getter_set_moment(PyObject *self, PyObject *args) {
    return alone(self, args, set_moment);
}

static PyObject *getter_add(PyObject *self, PyObject *args) {
    return alone(self, args, add);
}

static PyObject *getter_retain(PyObject *self, PyObject *args) {
    return alone(self, args, retain);
}

static PyObject *getter_covers(PyObject *self, PyObject *args) {
    return alone(self, args, covers);
}

static PyObject *getter_places(PyObject *self, PyObject *unused) {
    return alone(self, unused, places);
}

static PyObject *getter_get(PyObject *self, PyObject *argument) {
    long long offset = PyLong_AsLongLong(argument);
    if (offset == -1 && PyErr_Occurred()) return NULL;
    PyObject *record = ls_py_getter_find(self, offset);
    return record != NULL || PyErr_Occurred() ? record : Py_NewRef(Py_None);
}

static PyMethodDef getter_methods[] = {
    {"get", getter_get, METH_O,
     "The record at an offset; None: ask in the general way. Of another process's log the caller\n"
     "looks before and after whether it has changed."},
    {"set_moment", getter_set_moment, METH_VARARGS,
     "set_moment(owner, live, change_count, seconds): the log is another process's, and what is\n"
     "known of it holds while its live offsets have this change count, at most for some seconds."},
    {"set_range", getter_set_range, METH_VARARGS,
     "set_range(start, stop, marks): what may be read while the watermarks' _marks are these."},
    {"add", getter_add, METH_VARARGS,
     "add(owner, base_offset, end_offset, address, size, index_address, entry_count, io, fd): "
     "a mapped segment, or, with address 0, one that is read."},
    {"retain", getter_retain, METH_VARARGS,
     "retain(first, active): forget places before an offset, and those no longer active."},
    {"covers", getter_covers, METH_VARARGS, "Whether a place is known that may hold an offset."},
    {"places", getter_places, METH_NOARGS, "[(base offset, end offset, is mapped)]."},
    {NULL, NULL, 0, NULL},
};

static const char getter_doc[] =
    "RecordGetter(watermarks, writer, published_address, mapped_max, files_max=4): gets records of "
    "a\n"
    "log that may be read by a committed reader, from places that it was told of.";

static PyType_Slot getter_slots[] = {
    {Py_tp_doc, (void *)(uintptr_t)getter_doc},
    {Py_tp_new, getter_new},
    {Py_tp_dealloc, getter_dealloc},
    {Py_tp_traverse, getter_traverse},
    {Py_tp_clear, getter_clear},
    {Py_tp_methods, getter_methods},
    {0, NULL},
};

static PyType_Spec getter_spec = {
    .name = "logstore._native.records.RecordGetter",
    .basicsize = sizeof(struct ls_finder),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = getter_slots,
};

bool ls_py_is_getter(PyObject *object) {
    return PyType_GetSlot(Py_TYPE(object), Py_tp_dealloc) == (void *)(uintptr_t)getter_dealloc;
}

PyTypeObject *ls_py_add_getter_type(PyObject *module) {
    PyObject *type = PyType_FromModuleAndSpec(module, &getter_spec, NULL);
    if (type != NULL && PyModule_AddObjectRef(module, "RecordGetter", type) < 0) Py_CLEAR(type);
    return (PyTypeObject *)type;
}
