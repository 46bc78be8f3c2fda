/* Notes: takes down when something happens, as PythonNotes of sensors/time/call_notes.py does.
 *
 * Each moment in the place of one that was dropped: in the middle of a step the caches have forgotten whatever
 * is elsewhere. */

#include "parts.h"

#include <structmember.h>
#include <string.h>

typedef struct {
    long long at;
    unsigned long thread;
    PyObject *kind, *given; /* given is NULL for 0 */
} Moment;

typedef struct {
    PyObject_HEAD
    Moment *moments;
    Py_ssize_t num, room, limit;
} Notes;

static PyObject *nothing; /* 0 */

static void forget(Notes *self, Py_ssize_t num)
{
    Moment *dropped = num ? PyMem_Malloc(num * sizeof *dropped) : NULL;
    if (!dropped) return; /* they are dropped with the next ones */
    memcpy(dropped, self->moments, num * sizeof *dropped);
    memmove(self->moments, self->moments + num, (self->num - num) * sizeof *dropped);
    self->num -= num;
    /* Whatever runs as an object is freed finds the others in order. */
    for (Py_ssize_t i = 0; i < num; i++) {
        Py_DECREF(dropped[i].kind);
        Py_XDECREF(dropped[i].given);
    }
    PyMem_Free(dropped);
}

/* Have room for one more: of more than the limit the oldest are lost. */
static int make_room(Notes *self)
{
    if (self->num && self->num == self->limit) forget(self, self->limit / 4 + 1);
    if (self->num < self->room) return 0;
    Py_ssize_t room = self->room ? 2 * self->room : 64;
    if (room > self->limit) room = self->limit;
    Moment *moments = room > self->num ? PyMem_Realloc(self->moments, room * sizeof *moments) : NULL;
    if (!moments) return -1;
    self->moments = moments;
    self->room = room;
    return 0;
}

static int keep(Notes *self, PyObject *kind, PyObject *given, long long at)
{
    if (self->num == self->room && make_room(self) < 0) {
        PyErr_NoMemory();
        return -1;
    }
    Py_INCREF(kind);
    Py_XINCREF(given);
    self->moments[self->num++] = (Moment){at, PyThread_get_thread_ident(), kind, given};
    return 0;
}

static PyObject *note(PyObject *self, PyObject *const *given, Py_ssize_t num)
{
    if (num < 1 || num > 3) {
        PyErr_Format(PyExc_TypeError, "expected 1 to 3 arguments, got %zd", num);
        return NULL;
    }
    long long at = num == 3 && given[2] != Py_None ? PyLong_AsLongLong(given[2]) : now_ns();
    if (PyErr_Occurred() || keep((Notes *)self, given[0], num > 1 ? given[1] : NULL, at) < 0) return NULL;
    Py_RETURN_NONE;
}

int note_by(PyObject *function, PyObject *kind, PyObject *given, const long long *at)
{
    if (PyCFunction_Check(function) && PyCFunction_GetFunction(function) == (PyCFunction)(void (*)(void))note)
        return keep((Notes *)PyCFunction_GetSelf(function), kind, given, at ? *at : now_ns());
    /* Of another clock: what happens now is at its time. */
    PyObject *time = at ? PyLong_FromLongLong(*at) : NULL, *done = NULL;
    if (!PyErr_Occurred())
        done = PyObject_CallFunctionObjArgs(function, kind, given ? given : nothing, time, NULL);
    Py_XDECREF(time);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* columns(): return when, on which thread, what, and what came with it: of each moment. */
static PyObject *columns(PyObject *object, PyObject *unused)
{
    Notes *self = (Notes *)object;
    Py_ssize_t num = self->num;
    PyObject *at = PyTuple_New(num), *thread = PyTuple_New(num), *kind = PyTuple_New(num),
             *given = PyTuple_New(num), *all = PyTuple_New(4);
    /* The garbage that is collected as a tuple is made may take some away; as a number is made, none is. */
    int is = at && thread && kind && given && all && num <= self->num;
    for (Py_ssize_t i = 0; is && i < num; i++) {
        const Moment *of = self->moments + i;
        PyObject *what = of->given ? of->given : nothing;
        Py_INCREF(of->kind);
        Py_INCREF(what);
        PyTuple_SetItem(kind, i, of->kind);
        PyTuple_SetItem(given, i, what);
        PyTuple_SetItem(thread, i, PyLong_FromUnsignedLong(of->thread));
        PyTuple_SetItem(at, i, PyLong_FromLongLong(of->at));
    }
    PyObject *parts[] = {at, thread, kind, given};
    for (int i = 0; i < 4; i++) {
        if (is) PyTuple_SetItem(all, i, parts[i]);
        else Py_XDECREF(parts[i]);
    }
    if (is && !PyErr_Occurred()) return all;
    Py_XDECREF(all);
    return PyErr_Occurred() ? NULL : columns(object, NULL);
}

/* drop(num): forget the first. */
static PyObject *drop(PyObject *object, PyObject *value)
{
    Notes *self = (Notes *)object;
    Py_ssize_t num = PyLong_AsSsize_t(value);
    if (PyErr_Occurred()) return NULL;
    forget(self, num < 0 ? 0 : num < self->num ? num : self->num);
    Py_RETURN_NONE;
}

static Py_ssize_t length(PyObject *self) { return ((Notes *)self)->num; }

static int traverse(PyObject *object, visitproc visit, void *arg)
{
    Notes *self = (Notes *)object;
    Py_VISIT(Py_TYPE(object));
    for (Py_ssize_t i = 0; i < self->num; i++) {
        Py_VISIT(self->moments[i].kind);
        Py_VISIT(self->moments[i].given);
    }
    return 0;
}

static int clear(PyObject *self)
{
    forget((Notes *)self, ((Notes *)self)->num);
    return 0;
}

static void dealloc(PyObject *object)
{
    Notes *self = (Notes *)object;
    PyObject_GC_UnTrack(object);
    clear(object);
    PyMem_Free(self->moments);
    self->moments = NULL;
    free_part(object);
}

static int init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    Notes *self = (Notes *)object;
    if (!PyArg_ParseTuple(args, "n:Notes", &self->limit)) return -1;
    if (self->limit >= 1 && self->limit >= self->num) return 0;
    PyErr_Format(PyExc_ValueError, "expected room for a moment at least, got %zd", self->limit);
    return -1;
}

static PyMethodDef methods[] = {
    {"note", (PyCFunction)(void (*)(void))note, METH_FASTCALL, NULL},
    {"columns", columns, METH_NOARGS, NULL},
    {"drop", drop, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_methods, methods}, {Py_tp_init, init},       {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},     {Py_tp_dealloc, dealloc}, {Py_sq_length, length},
    {0, NULL},
};
static PyType_Spec spec = {"ampwatch.training.native._core.Notes", sizeof(Notes), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

PyObject *make_notes(void)
{
    return (nothing = PyLong_FromLong(0)) ? PyType_FromSpec(&spec) : NULL;
}
