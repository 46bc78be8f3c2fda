/* What is done in most steps at the calls of watched models and of backward.
 *
 * In the middle of a step the caches have forgotten our code: it is what is run that costs. TimedBackward and
 * TimedRoot make such a call in place of a tap, CallNotes takes one down. Each looks whether all is as in most
 * steps; where it is not, it has done nothing, and leaves it to the tap or to Python. */

#include "parts.h"

#include <structmember.h>

enum { MAX_GIVEN = 8 };

typedef struct {
    PyObject_HEAD
    PyObject *given[MAX_GIVEN];
    Py_ssize_t limit;
} Timed;

/* As given to prepare_timed. */
static PyObject *graph_task, *tracing_state, *num_modes, *tensor_type, *not_taken;

static PyObject *s_note, *s_note_call, *s_may_compile, *s_has_company, *s_has_others, *s_thread,
    *s_training, *s_numel, *s_call, *s_emit;

/* Call a function; return the whole number that it returns, -2 with an error set. */
static long number_from(PyObject *function)
{
    PyObject *result = PyObject_CallFunctionObjArgs(function, NULL);
    long number = result ? PyLong_AsLong(result) : -2;
    Py_XDECREF(result);
    return PyErr_Occurred() ? -2 : number;
}

static int note(PyObject *bus, PyObject *kind, PyObject *given)
{
    PyObject *function = PyObject_GetAttr(bus, s_note);
    int noted = function ? note_by(function, kind, given, NULL) : -1;
    Py_XDECREF(function);
    return noted;
}

static PyObject *leave_it(void)
{
    Py_INCREF(not_taken);
    return not_taken;
}

/* TimedBackward((bus, ownership, channel, kind at the beginning, kind at the end)) */
enum { BUS, OWNERSHIP, BEGUN, BEGAN, ENDED, NUM_OF_BACKWARD };

static int is_outermost_and_alone(Timed *self)
{
    if (PyTuple_Size(subscribers_of(self->given[BEGUN]))) return 0;
    int is = is_same(self->given[OWNERSHIP], s_has_company, Py_False);
    if (is > 0) is = is_same(self->given[OWNERSHIP], s_has_others, Py_False);
    if (is > 0) is = is_same(self->given[BUS], s_may_compile, Py_False);
    return is > 0 ? number_from(graph_task) == -1 : is;
}

/* call(backward, args, kwargs) */
static PyObject *call_backward(PyObject *object, PyObject *const *args, Py_ssize_t given)
{
    Timed *self = (Timed *)object;
    int is = given == 3 && self->given[BUS] ? is_outermost_and_alone(self) : 0;
    if (PyErr_Occurred()) return NULL;
    if (!is) return leave_it();
    if (note(self->given[BUS], self->given[BEGAN], NULL) < 0) return NULL;
    PyObject *result = PyObject_Call(args[0], args[1], args[2]);
    if (result && note(self->given[BUS], self->given[ENDED], NULL) < 0) Py_CLEAR(result);
    return result;
}

/* TimedRoot((bus, two channels and their events, weak references to roots by identity, class that inherits the
 * call or None, what is notified of a failed note)) */
enum { CALLED = 1, RETURNED, CALL_EVENT, RETURN_EVENT, ROOTS, INHERITS, FAILED, NUM_OF_ROOT };

static int is_root(Timed *self, PyObject *called)
{
    /* Between two graphs of compiled code whatever is called is compiled: the tap knows what to do. */
    PyObject *compiler = stop_compiler();
    if (compiler) set_compiler_to(compiler);
    Py_XDECREF(compiler);
    if (compiler || PyErr_Occurred()) return compiler ? 0 : -1;
    PyObject *key = PyLong_FromVoidPtr(called);
    PyObject *known = key ? PyDict_GetItemWithError(self->given[ROOTS], key) : NULL;
    Py_XDECREF(key);
    if (!known) return PyErr_Occurred() ? -1 : 0;
    PyObject *root = PyObject_CallFunctionObjArgs(known, NULL);
    Py_XDECREF(root);
    if (root != called) return root ? 0 : -1;
    int is = is_same(self->given[BUS], s_may_compile, Py_False);
    if (is <= 0) return is;
    PyObject *traced = PyObject_CallFunctionObjArgs(tracing_state, NULL);
    Py_XDECREF(traced);
    return traced ? traced == Py_None : -1;
}

/* Have a call noted; what is raised by that goes to Python, which says whether it ends there. */
static int note_call(Timed *self, PyObject *const *args)
{
    PyObject *function = PyObject_GetAttr(self->given[BUS], s_note_call);
    PyObject *done =
        function ? PyObject_CallFunctionObjArgs(function, args[1], args[2], args[3], NULL) : NULL;
    Py_XDECREF(function);
    Py_XDECREF(done);
    if (done) return 0;
    return drop_error_if(self->given[FAILED]) ? 0 : -1;
}

/* Tell the subscribers of a channel, if there are any, of an event made with up to three values. */
static int emit(PyObject *channel, PyObject *kind, PyObject *a, PyObject *b, PyObject *c)
{
    if (!PyTuple_Size(subscribers_of(channel))) return 0;
    PyObject *event = PyObject_CallFunctionObjArgs(kind, a, b, c, NULL);
    PyObject *result = event ? PyObject_CallMethodObjArgs(channel, s_emit, event, NULL) : NULL;
    Py_XDECREF(event);
    Py_XDECREF(result);
    return result ? 0 : -1;
}

static PyObject *call_as_ever(Timed *self, PyObject *const *args)
{
    if (self->given[INHERITS] == Py_None) return call_with(args[0], args[1], args[2], args[3]);
    PyObject *of = PyObject_CallFunctionObjArgs((PyObject *)&PySuper_Type, self->given[INHERITS],
                                                args[1], NULL);
    PyObject *method = of ? PyObject_GetAttr(of, s_call) : NULL;
    PyObject *result = method ? PyObject_Call(method, args[2], args[3]) : NULL;
    Py_XDECREF(of);
    Py_XDECREF(method);
    return result;
}

/* call(original, module, args, kwargs) */
static PyObject *call_root(PyObject *object, PyObject *const *args, Py_ssize_t given)
{
    Timed *self = (Timed *)object;
    PyObject *const *parts = self->given;
    int is = given == 4 && parts[BUS] ? is_root(self, args[1]) : 0;
    if (is < 0) return NULL;
    if (!is) return leave_it();
    if (note_call(self, args) < 0) return NULL;
    if (emit(parts[CALLED], parts[CALL_EVENT], args[1], args[2], args[3]) < 0) return NULL;
    PyObject *result = call_as_ever(self, args);
    if (result && emit(parts[RETURNED], parts[RETURN_EVENT], args[1], result, NULL) < 0)
        Py_CLEAR(result);
    return result;
}

/* CallNotes((bus, iteration, where moments are kept, kind, what notes other calls), limit) */
enum { ITERATION = 1, KEPT, KIND, OTHERWISE, NUM_OF_NOTES };

/* The elements of what a model that trains is called with; NULL if it is to be noted otherwise. */
static PyObject *elements(Timed *self, PyObject *const *args)
{
    PyObject *first = PyTuple_Size(args[1]) > 0 ? PyTuple_GetItem(args[1], 0) : NULL;
    if (!first || (PyObject *)Py_TYPE(first) != tensor_type) return NULL;
    if (PyObject_Size(self->given[KEPT]) >= self->limit) return NULL;
    int is = is_same(self->given[BUS], s_may_compile, Py_False);
    if (is > 0) is = is_same(args[0], s_training, Py_True);
    if (is <= 0) return NULL;
    PyObject *thread = PyObject_GetAttr(self->given[ITERATION], s_thread);
    is = thread && PyLong_AsUnsignedLong(thread) == PyThread_get_thread_ident();
    Py_XDECREF(thread);
    if (PyErr_Occurred() || !is || number_from(graph_task) != -1 || number_from(num_modes) != 0)
        return NULL;
    return PyObject_CallMethodObjArgs(first, s_numel, NULL);
}

/* note(model, args, kwargs) */
static PyObject *note_ordinary(PyObject *object, PyObject *const *args, Py_ssize_t given)
{
    Timed *self = (Timed *)object;
    if (given != 3) {
        PyErr_Format(PyExc_TypeError, "expected 3 arguments, got %zd", given);
        return NULL;
    }
    if (!self->given[BUS]) Py_RETURN_NONE; /* tp_clear has been called */
    PyObject *numel = elements(self, args);
    if (PyErr_Occurred()) return NULL;
    if (!numel || !PyObject_IsTrue(numel)) {
        Py_XDECREF(numel);
        return PyObject_CallFunctionObjArgs(self->given[OTHERWISE], args[0], args[1], args[2], NULL);
    }
    int failed = note(self->given[BUS], self->given[KIND], numel);
    Py_DECREF(numel);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

static int traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    for (int i = 0; i < MAX_GIVEN; i++) Py_VISIT(((Timed *)self)->given[i]);
    return 0;
}

static int clear(PyObject *self)
{
    for (int i = 0; i < MAX_GIVEN; i++) Py_CLEAR(((Timed *)self)->given[i]);
    return 0;
}

static int init(PyObject *object, PyObject *args, PyObject *kwargs, Py_ssize_t num)
{
    Timed *self = (Timed *)object;
    PyObject *given;
    if (!PyArg_ParseTuple(args, "O|n", &given, &self->limit)) return -1;
    return hold(self->given, given, num);
}

#define DEFINE_KIND(function, class_name, method, called, num)                           \
    static int init_##function(PyObject *self, PyObject *args, PyObject *kwargs)         \
    {                                                                                    \
        return init(self, args, kwargs, num);                                            \
    }                                                                                    \
    PyObject *function(void)                                                             \
    {                                                                                    \
        static PyMethodDef methods[] = {                                                 \
            {method, (PyCFunction)(void (*)(void))called, METH_FASTCALL, NULL},          \
            {NULL, NULL, 0, NULL}};                                                      \
        static PyType_Slot slots[] = {                                                   \
            {Py_tp_methods, methods}, {Py_tp_init, init_##function},                     \
            {Py_tp_traverse, traverse}, {Py_tp_clear, clear},                            \
            {Py_tp_dealloc, free_part}, {0, NULL}};                                      \
        static PyType_Spec spec = {"ampwatch.training.native._core." class_name,         \
                                   sizeof(Timed), 0,                                     \
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};      \
        return PyType_FromSpec(&spec);                                                   \
    }

DEFINE_KIND(make_timed_backward, "TimedBackward", "call", call_backward, NUM_OF_BACKWARD)
DEFINE_KIND(make_timed_root, "TimedRoot", "call", call_root, NUM_OF_ROOT)
DEFINE_KIND(make_call_notes, "CallNotes", "note", note_ordinary, NUM_OF_NOTES)

/* prepare_timed(graph_task, tracing_state, num_function_modes, Tensor, NOT_TAKEN) */
PyObject *prepare_timed(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    static const struct {
        PyObject **kept;
        const char *name;
    } names[] = {{&s_note, "note"},
                 {&s_note_call, "note_call"},
                 {&s_may_compile, "may_compile"},
                 {&s_has_company, "has_company"},
                 {&s_has_others, "has_others"},
                 {&s_thread, "thread"},
                 {&s_training, "training"},
                 {&s_numel, "numel"},
                 {&s_call, "__call__"},
                 {&s_emit, "emit"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(*names[i].kept = PyUnicode_InternFromString(names[i].name))) return NULL;
    PyObject **into[] = {&graph_task, &tracing_state, &num_modes, &tensor_type, &not_taken};
    if (given != 5) {
        PyErr_Format(PyExc_TypeError, "expected 5 arguments, got %zd", given);
        return NULL;
    }
    for (int i = 0; i < 5; i++) {
        Py_INCREF(args[i]);
        Py_XDECREF(*into[i]);
        *into[i] = args[i];
    }
    Py_RETURN_NONE;
}
