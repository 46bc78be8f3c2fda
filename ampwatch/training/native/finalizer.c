/* Finalizer: calls a function with an argument when it is let go of, as that of ops/storage.py does. No line of
 * Python runs for it, in which a handler of a signal could: what is raised there is lost. */

#include "parts.h"

typedef struct {
    PyObject_HEAD
    PyObject *function, *argument;
} Finalizer;

static int init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    Finalizer *self = (Finalizer *)object;
    if (self->function) {
        PyErr_SetString(PyExc_TypeError, "expected one call of __init__");
        return -1;
    }
    if (!PyArg_ParseTuple(args, "OO:Finalizer", &self->function, &self->argument)) return -1;
    Py_INCREF(self->function);
    Py_INCREF(self->argument);
    return 0;
}

static void dealloc(PyObject *object)
{
    Finalizer *self = (Finalizer *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->function) {
        PyObject *kind, *error, *traceback;
        PyErr_Fetch(&kind, &error, &traceback);
        PyObject *done = PyObject_CallFunctionObjArgs(self->function, self->argument, NULL);
        if (!done) PyErr_WriteUnraisable(self->function);
        Py_XDECREF(done);
        PyErr_Restore(kind, error, traceback);
        Py_DECREF(self->function);
        Py_DECREF(self->argument);
    }
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyType_Slot slots[] = {{Py_tp_init, init}, {Py_tp_dealloc, dealloc}, {0, NULL}};
static PyType_Spec spec = {"ampwatch.training.native._core.Finalizer", sizeof(Finalizer), 0,
                           Py_TPFLAGS_DEFAULT, slots};

PyObject *make_finalizer(void) { return PyType_FromSpec(&spec); }
