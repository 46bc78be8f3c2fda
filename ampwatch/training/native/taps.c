/* TappedCall: makes the call of what ampwatch has replaced, and tells those who listen to it.
 *
 * The same as PythonTappedCall of hooks/tapped_call.py, in a tenth of the time: in the middle of a
 * step the caches have forgotten our code, and it is what is run that costs. An error is never made
 * here and never ends here: it is what the original or a listener has raised. */

#include "parts.h"

#include <structmember.h>

typedef struct {
    PyObject_HEAD
    PyObject *plan;   /* (begins, afters, fails) */
    PyObject *around; /* NULL or None without */
    char also_in_capture;
} TappedCall;

/* As given to prepare_taps; set_compiler is NULL where it has no effect. */
static PyObject *captures, *is_ignored, *set_compiler, *not_taken, *of_compiler, *flag;

/* What a call is made with; instance is NULL for a function. */
typedef struct {
    PyObject *original, *instance, *args, *kwargs;
} Call;

enum { BEGINS, AFTERS, FAILS };

int captures_any(void) { return PyDict_Size(captures) > 0; }

PyObject *call_with(PyObject *function, PyObject *instance, PyObject *args, PyObject *kwargs)
{
    if (!instance) return PyObject_Call(function, args, kwargs);
    Py_ssize_t given = PyTuple_Size(args);
    PyObject *all = PyTuple_New(given + 1);
    if (!all) return NULL;
    Py_INCREF(instance);
    PyTuple_SetItem(all, 0, instance);
    for (Py_ssize_t i = 0; i < given; i++) {
        PyObject *value = PyTuple_GetItem(args, i);
        Py_INCREF(value);
        PyTuple_SetItem(all, i + 1, value);
    }
    PyObject *result = PyObject_Call(function, all, kwargs);
    Py_DECREF(all);
    return result;
}

static PyObject *call_original(const Call *call)
{
    return call_with(call->original, call->instance, call->args, call->kwargs);
}

/* Call a listener with the instance, if there is one, and with what follows until a NULL. */
static int tell(PyObject *listener, const Call *call, PyObject *first, PyObject *second,
                PyObject *third)
{
    PyObject *result =
        call->instance
            ? PyObject_CallFunctionObjArgs(listener, call->instance, first, second, third, NULL)
            : PyObject_CallFunctionObjArgs(listener, first, second, third, NULL);
    Py_XDECREF(result);
    return result ? 0 : -1;
}

/* Tell those of one kind, in order; an item ends with the channel that they wait for and the instance that
 * they listen to alone. */
static int tell_all(PyObject *plan, int kind, const Call *call, PyObject *result)
{
    PyObject *listeners = PyTuple_GetItem(plan, kind);
    Py_ssize_t num = listeners ? PyTuple_Size(listeners) : -1;
    for (Py_ssize_t i = 0; i < num; i++) {
        PyObject *item = PyTuple_GetItem(listeners, i);
        Py_ssize_t last = PyTuple_Size(item) - 1;
        PyObject *only = PyTuple_GetItem(item, last), *channel = PyTuple_GetItem(item, last - 1);
        if (only != Py_None && only != call->instance) continue;
        if (channel != Py_None && !PyTuple_Size(subscribers_of(channel))) continue;
        PyObject *listener = PyTuple_GetItem(item, 0);
        if (kind == FAILS) {
            if (tell(listener, call, NULL, NULL, NULL) < 0) return -1;
            continue;
        }
        if (listener != Py_None && tell(listener, call, call->args, call->kwargs, NULL) < 0)
            return -1;
        PyObject *returned = kind == AFTERS ? PyTuple_GetItem(item, 1) : Py_None;
        if (returned != Py_None && tell(returned, call, result, call->args, call->kwargs) < 0)
            return -1;
    }
    return num < 0 ? -1 : 0;
}

/* Have Python functions be compiled as they were before, or none; an error that is set stays. */
void set_compiler_to(PyObject *compiler)
{
    PyObject *kind, *error, *traceback;
    PyErr_Fetch(&kind, &error, &traceback);
    PyObject *before = PyObject_CallFunctionObjArgs(set_compiler, compiler, NULL);
    if (!before) PyErr_Clear(); /* it takes what it has returned */
    Py_XDECREF(before);
    PyErr_Restore(kind, error, traceback);
}

static PyObject *call_between(PyObject *plan, const Call *call, PyObject *compiler)
{
    if (tell_all(plan, BEGINS, call, NULL) < 0) return NULL;
    if (compiler) set_compiler_to(compiler);
    PyObject *result = call_original(call);
    if (compiler) set_compiler_to(Py_None);
    if (result) {
        if (tell_all(plan, AFTERS, call, result) < 0) Py_CLEAR(result);
        return result;
    }
    /* Of an interrupt as well: who counts depth would stay inside. Handled while they are notified, as
     * where `except` has caught it: they look at sys.exc_info(). */
    PyObject *raised[3], *handled[3];
    PyErr_Fetch(&raised[0], &raised[1], &raised[2]);
    PyErr_NormalizeException(&raised[0], &raised[1], &raised[2]);
    PyErr_GetExcInfo(&handled[0], &handled[1], &handled[2]);
    for (int i = 0; i < 3; i++) Py_XINCREF(raised[i]);
    PyErr_SetExcInfo(raised[0], raised[1], raised[2]);
    int status = tell_all(plan, FAILS, call, NULL);
    PyErr_SetExcInfo(handled[0], handled[1], handled[2]);
    if (status == 0) PyErr_Restore(raised[0], raised[1], raised[2]);
    else
        for (int i = 0; i < 3; i++) Py_XDECREF(raised[i]);
    return NULL;
}

/* Whether a compiler is at work in this process: PyTorch's flag. */
static int is_compiling(void)
{
    return PyDict_GetItemWithError(of_compiler, flag) == Py_True;
}

PyObject *stop_compiler(void)
{
    PyObject *compiler =
        set_compiler ? PyObject_CallFunctionObjArgs(set_compiler, Py_None, NULL) : NULL;
    if (compiler == Py_None) Py_CLEAR(compiler);
    return compiler;
}

PyObject *call_uncompiled(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    if (given != 2) {
        PyErr_Format(PyExc_TypeError, "expected 2 arguments, got %zd", given);
        return NULL;
    }
    if (is_compiling()) Py_RETURN_NONE;
    PyObject *compiler = stop_compiler();
    if (PyErr_Occurred()) return NULL;
    PyObject *result = PyObject_Call(args[0], args[1], NULL);
    if (compiler) set_compiler_to(compiler);
    Py_XDECREF(compiler);
    return result;
}

static PyObject *make_call(PyObject *self, PyObject *const *given, Py_ssize_t num)
{
    TappedCall *tapped = (TappedCall *)self;
    if (num != 3 && num != 4) {
        PyErr_Format(PyExc_TypeError, "expected 3 or 4 arguments, got %zd", num);
        return NULL;
    }
    Call call = {given[0], num == 4 ? given[1] : NULL, given[num - 2], given[num - 1]};
    if (!tapped->also_in_capture && is_compiling()) return call_original(&call);
    if (!tapped->also_in_capture && captures_any()) {
        PyObject *asked = PyObject_CallFunctionObjArgs(is_ignored, NULL);
        if (!asked) return NULL;
        Py_DECREF(asked);
        if (asked == Py_True) return call_original(&call);
    }
    PyObject *around = tapped->around;
    if (around && around != Py_None) {
        Py_INCREF(around);
        PyObject *result =
            call.instance ? PyObject_CallFunctionObjArgs(around, call.original, call.instance,
                                                         call.args, call.kwargs, NULL)
                          : PyObject_CallFunctionObjArgs(around, call.original, call.args,
                                                         call.kwargs, NULL);
        Py_DECREF(around);
        if (result != not_taken) return result;
        Py_DECREF(result);
    }
    /* Held: who comes during the call must not get an `after` without its `before`. */
    PyObject *plan = tapped->plan;
    if (!plan) return call_original(&call);
    /* Between two graphs of compiled code whatever is called is compiled, listeners as well. */
    PyObject *compiler = stop_compiler();
    if (PyErr_Occurred()) return NULL;
    Py_INCREF(plan);
    PyObject *result = call_between(plan, &call, compiler);
    Py_DECREF(plan);
    if (compiler) set_compiler_to(compiler);
    Py_XDECREF(compiler);
    return result;
}

static int traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((TappedCall *)self)->plan);
    Py_VISIT(((TappedCall *)self)->around);
    return 0;
}

static int clear(PyObject *self)
{
    Py_CLEAR(((TappedCall *)self)->plan);
    Py_CLEAR(((TappedCall *)self)->around);
    return 0;
}

static PyMethodDef methods[] = {
    {"call", (PyCFunction)(void (*)(void))make_call, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef members[] = {
    {"plan", T_OBJECT, offsetof(TappedCall, plan), 0, NULL},
    {"around", T_OBJECT, offsetof(TappedCall, around), 0, NULL},
    {"also_in_capture", T_BOOL, offsetof(TappedCall, also_in_capture), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_methods, methods}, {Py_tp_members, members}, {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},     {Py_tp_dealloc, free_part}, {0, NULL},
};
static PyType_Spec spec = {"ampwatch.training.native._core.TappedCall", sizeof(TappedCall), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

PyObject *make_tapped_call(void) { return PyType_FromSpec(&spec); }

PyObject *prepare_taps(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    if (given != 6 || !PyDict_Check(args[0]) || !PyDict_Check(args[4])) {
        PyErr_SetString(PyExc_TypeError, "expected two dictionaries and four more arguments");
        return NULL;
    }
    PyObject **kept[] = {&captures, &is_ignored, &set_compiler, &not_taken, &of_compiler, &flag};
    for (int i = 0; i < 6; i++) {
        Py_INCREF(args[i]);
        Py_XDECREF(*kept[i]);
        *kept[i] = args[i];
    }
    if (set_compiler == Py_None) Py_CLEAR(set_compiler);
    Py_RETURN_NONE;
}
