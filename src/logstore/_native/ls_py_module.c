/*
 * ls_py_module.c: the module object that holds the native types and the functions that keep the GIL.
 * cffi cannot make either; it hands the finished module over through a list slot.
 */
#include "ls_py.h"

static int state_traverse(PyObject *module, visitproc visit, void *arg) {
    struct ls_py_state *state = PyModule_GetState(module);
    Py_VISIT(state->record_type);
    Py_VISIT(state->iterator_type);
    Py_VISIT(state->log_type);
    Py_VISIT(state->index_view_type);
    Py_VISIT(state->getter_type);
    Py_VISIT(state->tail_type);
    Py_VISIT(state->mapped_memory_type);
    Py_VISIT(state->empty_tuple);
    Py_VISIT(state->epoch);
    Py_VISIT(state->timedelta);
    return 0;
}

static int state_clear(PyObject *module) {
    struct ls_py_state *state = PyModule_GetState(module);
    Py_CLEAR(state->record_type);
    Py_CLEAR(state->iterator_type);
    Py_CLEAR(state->log_type);
    Py_CLEAR(state->index_view_type);
    Py_CLEAR(state->getter_type);
    Py_CLEAR(state->tail_type);
    Py_CLEAR(state->mapped_memory_type);
    Py_CLEAR(state->empty_tuple);
    Py_CLEAR(state->epoch);
    Py_CLEAR(state->timedelta);
    return 0;
}

static void state_free(void *module) {
    struct ls_py_state *state = PyModule_GetState(module);
    (void)state_clear(module);
    while (state->free_record_count > 0)
        PyObject_Free(state->free_records[--state->free_record_count]);
}

static PyObject *epoch_datetime(PyObject *datetime_module) {
    PyObject *class = PyObject_GetAttrString(datetime_module, "datetime");
    PyObject *zone = class ? PyObject_GetAttrString(datetime_module, "timezone") : NULL;
    PyObject *utc = zone ? PyObject_GetAttrString(zone, "utc") : NULL;
    PyObject *epoch =
        utc ? PyObject_CallFunction(class, "iiiiiiiO", 1970, 1, 1, 0, 0, 0, 0, utc) : NULL;
    Py_XDECREF(utc);
    Py_XDECREF(zone);
    Py_XDECREF(class);
    return epoch;
}

static int state_fill(PyObject *module) {
    struct ls_py_state *state = PyModule_GetState(module);
    PyObject *datetime_module = PyImport_ImportModule("datetime");
    if (datetime_module == NULL) return -1;
    state->epoch = epoch_datetime(datetime_module);
    state->timedelta = PyObject_GetAttrString(datetime_module, "timedelta");
    Py_DECREF(datetime_module);
    state->empty_tuple = PyTuple_New(0);
    state->record_type = ls_py_add_record_type(module);
    state->iterator_type = ls_py_add_iterator_type(module);
    state->log_type = ls_py_add_log_type(module);
    state->index_view_type = ls_py_add_index_view_type(module);
    state->getter_type = ls_py_add_getter_type(module);
    state->tail_type = ls_py_add_tail_type(module);
    state->mapped_memory_type = ls_py_add_mapped_memory_type(module);
    bool complete = state->epoch && state->timedelta && state->empty_tuple && state->record_type &&
                    state->iterator_type && state->log_type && state->index_view_type &&
                    state->getter_type && state->tail_type && state->mapped_memory_type;
    return complete ? 0 : -1;
}

#define FASTCALL(function) ((PyCFunction)(void (*)(void))(function))
static PyMethodDef functions[] = {
    {"fill_records", FASTCALL(ls_py_fill_records), METH_FASTCALL, NULL},
    {"read_block", FASTCALL(ls_py_read_block), METH_FASTCALL, NULL},
    {"load", ls_py_load, METH_O, NULL},
    {"live_is_at", FASTCALL(ls_py_live_is_at), METH_FASTCALL, NULL},
    {"writer_settle", ls_py_writer_settle, METH_O, NULL},
    {"writer_is_forked", ls_py_writer_is_forked, METH_O, NULL},
    {"writer_publish", FASTCALL(ls_py_writer_publish), METH_FASTCALL, NULL},
    {"writer_exclusive", FASTCALL(ls_py_writer_exclusive), METH_FASTCALL, NULL},
    {"writer_flush", FASTCALL(ls_py_writer_flush), METH_FASTCALL, NULL},
    {"writer_detach", ls_py_writer_detach, METH_O, NULL},
    {"writer_roll", FASTCALL(ls_py_writer_roll), METH_FASTCALL, NULL},
    {"writer_state", ls_py_writer_state, METH_O, NULL},
    {"own_writer", ls_py_own_writer, METH_O, NULL},
    {"append_encoded", FASTCALL(ls_py_append_encoded), METH_FASTCALL, NULL},
    {"append_ready", FASTCALL(ls_py_append_ready), METH_FASTCALL, NULL},
    {"append_columns", FASTCALL(ls_py_append_columns), METH_FASTCALL, NULL},
    {"append_list", FASTCALL(ls_py_append_list), METH_FASTCALL, NULL},
    {"partition_list", FASTCALL(ls_py_partition_list), METH_FASTCALL, NULL},
    {"measure_list", FASTCALL(ls_py_measure_list), METH_FASTCALL, NULL},
    {"take_list", FASTCALL(ls_py_take_list), METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "logstore._native._objects",
    .m_size = sizeof(struct ls_py_state),
    .m_methods = functions,
    .m_traverse = state_traverse,
    .m_clear = state_clear,
    .m_free = state_free,
};

int64_t ls_py_module(uintptr_t list) {
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && state_fill(module) < 0) Py_CLEAR(module);
    int failed = module == NULL || PyList_SetItem((PyObject *)list, 0, module) < 0;
    if (failed) {
        PyErr_WriteUnraisable(NULL); /* cffi has no way to pass the exception on */
        PyErr_Clear();
    }
    PyGILState_Release(gil);
    return failed ? LS_E_TYPE : 0;
}
