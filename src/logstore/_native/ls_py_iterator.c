/*
 * ls_py_iterator.c: BlockIterator, the base of iterators that serve records from blocks. One item
 * costs what a list iterator costs; Python runs once per block.
 */
#include "ls_py.h"

struct iterator {
    PyObject ob_base;
    PyObject *block; /* a list, or NULL before the first and after the last block */
    PyObject *name_next_block;
    Py_ssize_t index;
    Py_ssize_t count;
};

static PyMemberDef iterator_members[] = {
    {"_index", T_PYSSIZET, offsetof(struct iterator, index), READONLY,
     "Items served of the current block."},
    {"_block", T_OBJECT, offsetof(struct iterator, block), READONLY,
     "The current block, a list, or None."},
    {NULL, 0, 0, 0, NULL},
};

static int iterator_traverse(PyObject *self, visitproc visit, void *arg) {
    struct iterator *iterator = (struct iterator *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(iterator->block);
    return 0;
}

static int iterator_clear(PyObject *self) {
    struct iterator *iterator = (struct iterator *)self;
    iterator->count = 0;
    Py_CLEAR(iterator->block);
    return 0;
}

static void iterator_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    (void)iterator_clear(self);
    Py_XDECREF(((struct iterator *)self)->name_next_block);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyObject *iterator_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    (void)args;
    (void)keywords;
    struct iterator *iterator =
        (struct iterator *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (iterator == NULL) return NULL;
    iterator->name_next_block = PyUnicode_InternFromString("_next_block");
    if (iterator->name_next_block == NULL) Py_CLEAR(iterator);
    return (PyObject *)iterator;
}

/* Ask the subclass for blocks until one has an item; false: it has no more, or an error is set. */
static bool next_block(struct iterator *iterator) {
    do {
        Py_CLEAR(iterator->block);
        iterator->index = iterator->count = 0;
        PyObject *block =
            PyObject_CallMethodObjArgs((PyObject *)iterator, iterator->name_next_block, NULL);
        if (block == NULL) return false;
        if (block == Py_None) {
            Py_DECREF(block);
            return false;
        }
        if (!PyList_Check(block)) {
            PyErr_Format(PyExc_TypeError, "_next_block() returns a list or None, not %R",
                         (PyObject *)Py_TYPE(block));
            Py_DECREF(block);
            return false;
        }
        PyObject *old = iterator->block; /* The call may have come back into this iterator. */
        iterator->block = block;
        Py_XDECREF(old);
        iterator->index = 0;
        iterator->count = PyList_Size(block);
    } while (iterator->count == 0);
    return true;
}

static PyObject *iterator_next(PyObject *self) {
    struct iterator *iterator = (struct iterator *)self;
    PyObject *item = NULL;
#ifdef Py_GIL_DISABLED
    Py_BEGIN_CRITICAL_SECTION(self);
#endif
    if (iterator->index < iterator->count || next_block(iterator)) {
        item = PyList_GetItem(iterator->block, iterator->index);
        if (item != NULL) {
            Py_INCREF(item);
            iterator->index += 1;
        }
    }
#ifdef Py_GIL_DISABLED
    Py_END_CRITICAL_SECTION();
#endif
    return item;
}

/* Forget the items not served yet: the next step asks for a new block. */
static PyObject *iterator_discard(PyObject *self, PyObject *unused) {
    (void)unused;
    struct iterator *iterator = (struct iterator *)self;
#ifdef Py_GIL_DISABLED
    Py_BEGIN_CRITICAL_SECTION(self);
#endif
    iterator->index = iterator->count = 0;
    Py_CLEAR(iterator->block);
#ifdef Py_GIL_DISABLED
    Py_END_CRITICAL_SECTION();
#endif
    return Py_NewRef(Py_None);
}

static PyMethodDef iterator_methods[] = {
    {"_discard", iterator_discard, METH_NOARGS,
     "Forget the items of the current block that were not served."},
    {"__class_getitem__", Py_GenericAlias, METH_CLASS | METH_O,
     "For annotations: BlockIterator[Record]."},
    {NULL, NULL, 0, NULL},
};

static const char iterator_doc[] =
    "Serves items from lists; a subclass defines ``_next_block() -> list | None``.\n\n"
    "``_next_block`` is called when the current block is used up; None ends the iteration.\n"
    "``_index`` is how many items of the current block were served.";

static PyType_Slot iterator_slots[] = {
    {Py_tp_doc, (void *)(uintptr_t)iterator_doc},
    {Py_tp_new, iterator_new},
    {Py_tp_dealloc, iterator_dealloc},
    {Py_tp_traverse, iterator_traverse},
    {Py_tp_clear, iterator_clear},
    {Py_tp_members, iterator_members},
    {Py_tp_methods, iterator_methods},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, iterator_next},
    {0, NULL},
};

static PyType_Spec iterator_spec = {
    .name = "logstore._native.records.BlockIterator",
    .basicsize = sizeof(struct iterator),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = iterator_slots,
};

PyTypeObject *ls_py_add_iterator_type(PyObject *module) {
    PyObject *type = PyType_FromModuleAndSpec(module, &iterator_spec, NULL);
    if (type != NULL && PyModule_AddObjectRef(module, "BlockIterator", type) < 0) Py_CLEAR(type);
    return (PyTypeObject *)type;
}
