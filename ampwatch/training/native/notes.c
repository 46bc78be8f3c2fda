/* Notes: takes down when something happens, as PythonNotes of sensors/time/call_notes.py does. */

#include "parts.h"

#include <structmember.h>

typedef struct {
    PyObject_HEAD
    PyObject *keep; /* takes the four values of a moment */
} Notes;

static PyObject *nothing; /* 0 */

static PyObject *note(PyObject *self, PyObject *const *given, Py_ssize_t num)
{
    if (num < 1 || num > 3) {
        PyErr_Format(PyExc_TypeError, "expected 1 to 3 arguments, got %zd", num);
        return NULL;
    }
    PyObject *at = num == 3 && given[2] != Py_None ? given[2] : NULL;
    PyObject *thread = PyLong_FromUnsignedLong(PyThread_get_thread_ident()), *moment = NULL;
    if (at)
        Py_INCREF(at);
    else
        at = PyLong_FromLongLong(now_ns());
    if (at && thread)
        moment = PyTuple_Pack(4, at, thread, given[0], num > 1 ? given[1] : nothing);
    Py_XDECREF(at);
    Py_XDECREF(thread);
    PyObject *kept =
        moment ? PyObject_CallFunctionObjArgs(((Notes *)self)->keep, moment, NULL) : NULL;
    Py_XDECREF(moment);
    return kept;
}

static int traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((Notes *)self)->keep);
    return 0;
}

static int clear(PyObject *self)
{
    Py_CLEAR(((Notes *)self)->keep);
    return 0;
}

static int init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    PyObject *keep;
    if (!PyArg_ParseTuple(args, "O:Notes", &keep)) return -1;
    clear(self);
    Py_INCREF(keep);
    ((Notes *)self)->keep = keep;
    return 0;
}

static PyMethodDef methods[] = {
    {"note", (PyCFunction)(void (*)(void))note, METH_FASTCALL, NULL}, {NULL, NULL, 0, NULL}};
static PyType_Slot slots[] = {
    {Py_tp_methods, methods}, {Py_tp_init, init},         {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},     {Py_tp_dealloc, free_part}, {0, NULL},
};
static PyType_Spec spec = {"ampwatch.training.native._core.Notes", sizeof(Notes), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

PyObject *make_notes(void)
{
    return (nothing = PyLong_FromLong(0)) ? PyType_FromSpec(&spec) : NULL;
}
