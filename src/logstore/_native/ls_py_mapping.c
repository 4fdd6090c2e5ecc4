/*
 * ls_py_mapping.c: MappedMemory, a mapped range of a file that is unmapped when nobody has it any more.
 * The garbage collector does not track it: in a cycle of garbage it goes after every __del__ has run,
 * while what cffi.gc() makes may go before, under a __del__ that still stores there.
 */
#include "ls_py.h"

struct mapped_memory {
    PyObject ob_base;
    PyObject *weak_references;
    ls_io *io; /* held: its Python object may go first */
    void *address;
    Py_ssize_t size;
};

static PyObject *memory_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    long long io = 0, address = 0, size = 0;
    if (keywords != NULL && PyDict_Size(keywords) > 0) {
        return PyErr_Format(PyExc_TypeError, "MappedMemory() takes no keyword arguments");
    }
    if (!PyArg_ParseTuple(args, "LLL:MappedMemory", &io, &address, &size)) return NULL;
    if (io == 0 || address == 0 || size <= 0 || size > PY_SSIZE_T_MAX) {
        return PyErr_Format(PyExc_ValueError, "no io, no address or no size");
    }
    struct mapped_memory *memory =
        (struct mapped_memory *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (memory == NULL) return NULL;
    memory->io = ls_io_hold((ls_io *)(uintptr_t)io);
    memory->address = (void *)(uintptr_t)address;
    memory->size = (Py_ssize_t)size;
    return (PyObject *)memory;
}

static void memory_dealloc(PyObject *self) {
    struct mapped_memory *memory = (struct mapped_memory *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_ClearWeakRefs(self);
    /* An io may have a lock, and unmapping much takes time. */
    Py_BEGIN_ALLOW_THREADS;
    (void)ls_io_unmap(memory->io, (uintptr_t)memory->address, memory->size);
    ls_io_free(memory->io);
    Py_END_ALLOW_THREADS;
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static int memory_get_buffer(PyObject *self, Py_buffer *view, int flags) {
    struct mapped_memory *memory = (struct mapped_memory *)self;
    return PyBuffer_FillInfo(view, self, memory->address, memory->size, 0, flags);
}

static PyMemberDef memory_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(struct mapped_memory, weak_references), READONLY,
     NULL},
    {NULL, 0, 0, 0, NULL},
};

static const char memory_doc[] =
    "MappedMemory(io, address, size): owns a mapping of ``io``; a buffer.";

static PyType_Slot memory_slots[] = {
    {Py_tp_doc, (void *)(uintptr_t)memory_doc},
    {Py_tp_new, memory_new},
    {Py_tp_dealloc, memory_dealloc},
    {Py_tp_members, memory_members},
    {Py_bf_getbuffer, (void *)(uintptr_t)memory_get_buffer},
    {0, NULL},
};

static PyType_Spec memory_spec = {
    .name = "logstore._native.io.MappedMemory",
    .basicsize = sizeof(struct mapped_memory),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = memory_slots,
};

PyTypeObject *ls_py_add_mapped_memory_type(PyObject *module) {
    PyObject *type = PyType_FromModuleAndSpec(module, &memory_spec, NULL);
    if (type != NULL && PyModule_AddObjectRef(module, "MappedMemory", type) < 0) Py_CLEAR(type);
    return (PyTypeObject *)type;
}
