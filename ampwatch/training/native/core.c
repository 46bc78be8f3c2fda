/* The extension module: what Python calls of the C part, and what its files share. No function that Python
 * calls of this file keeps a reference, and none leaves an error behind but one about its arguments, which are
 * never a user's.
 *
 * Addresses are those that Tensor.data_ptr() and array.buffer_info() return. Limited API, so that
 * one library serves every Python from 3.10 on. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include <string.h>
#include <time.h>

#include "histogram.h"
#include "parts.h"

typedef struct {
    const char *name;
    const kernels *kernels;
} level;

/* From the fastest to the one that needs least. */
#if defined(__x86_64__)
extern const kernels kernels_avx512, kernels_avx2, kernels_sse4;
static const level levels[] = {
    {"AVX-512", &kernels_avx512}, {"AVX2", &kernels_avx2}, {"SSE4.2", &kernels_sse4}};

/* As tools/native.py lets the compiler use them. */
static int runs_here(size_t i)
{
#define HAS(name) __builtin_cpu_supports(name)
    __builtin_cpu_init();
    int sse4 = HAS("sse4.2") && HAS("popcnt");
    int avx2 = sse4 && HAS("avx2") && HAS("bmi") && HAS("bmi2") && HAS("fma");
    int avx512 = avx2 && HAS("avx512f") && HAS("avx512bw") && HAS("avx512cd") &&
                 HAS("avx512dq") && HAS("avx512vl");
    return i == 0 ? avx512 : i == 1 ? avx2 : sse4;
}
#else
extern const kernels kernels_any;
static const level levels[] = {{"any", &kernels_any}};
static int runs_here(size_t i) { return i == 0; }
#endif
enum { NUM_LEVELS = sizeof levels / sizeof *levels };

/* Written under the GIL; a call that is measuring goes on with what it has read. */
static const level *chosen;

enum { MAX_ARGUMENTS = 8 };

/* Read integers that stand for numbers and addresses. Return 0 with an error set if there are not
 * so many, or if one of them is none. */
static int as_integers(PyObject *const *args, Py_ssize_t given, Py_ssize_t wanted, int64_t *values)
{
    if (given != wanted) {
        PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", wanted, given);
        return 0;
    }
    for (Py_ssize_t i = 0; i < wanted; i++) {
        /* An address may be above INT64_MAX, a number may not. */
        values[i] = (int64_t)PyLong_AsUnsignedLongLongMask(args[i]);
        if (values[i] == -1 && PyErr_Occurred()) return 0;
    }
    return 1;
}

#define AT(value) ((void *)(intptr_t)(value))

/* The GIL is let go of: these take as long as there are elements. */
#define DEFINE_MEASURE(name, wanted, ...)                                                \
    static PyObject *name(PyObject *module, PyObject *const *args, Py_ssize_t given)     \
    {                                                                                    \
        int64_t a[MAX_ARGUMENTS];                                                        \
        if (!as_integers(args, given, wanted, a)) return NULL;                           \
        const kernels *with = chosen->kernels;                                           \
        Py_BEGIN_ALLOW_THREADS;                                                          \
        with->name(__VA_ARGS__);                                                         \
        Py_END_ALLOW_THREADS;                                                            \
        Py_RETURN_NONE;                                                                  \
    }

DEFINE_MEASURE(measure, 8, a[0], AT(a[1]), AT(a[2]), AT(a[3]), AT(a[4]), AT(a[5]), AT(a[6]), AT(a[7]))
DEFINE_MEASURE(measure_blocks, 6, a[0], AT(a[1]), AT(a[2]), AT(a[3]), AT(a[4]), AT(a[5]))
DEFINE_MEASURE(squares, 5, a[0], AT(a[1]), AT(a[2]), AT(a[3]), AT(a[4]))

/* The GIL is held: to let go of it for a microsecond invites another thread to keep it for long. */
#define DEFINE_IS_FINITE(name, dtype)                                                    \
    static PyObject *name(PyObject *module, PyObject *const *args, Py_ssize_t given)     \
    {                                                                                    \
        int64_t a[MAX_ARGUMENTS];                                                        \
        if (!as_integers(args, given, 2, a)) return NULL;                                \
        return PyBool_FromLong(chosen->kernels->is_finite[dtype](AT(a[0]), a[1]));       \
    }

DEFINE_IS_FINITE(is_finite_float64, 0)
DEFINE_IS_FINITE(is_finite_float32, 1)
DEFINE_IS_FINITE(is_finite_float16, 2)
DEFINE_IS_FINITE(is_finite_bfloat16, 3)

static PyObject *instructions(PyObject *module, PyObject *unused)
{
    PyObject *names = PyList_New(0);
    for (size_t i = 0; names && i < NUM_LEVELS; i++) {
        if (!runs_here(i)) continue;
        PyObject *name = PyUnicode_FromString(levels[i].name);
        if (!name || PyList_Append(names, name) < 0) Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

static PyObject *choose(PyObject *module, PyObject *name)
{
    const char *wanted = PyUnicode_AsUTF8AndSize(name, NULL);
    if (!wanted) return NULL;
    for (size_t i = 0; i < NUM_LEVELS; i++)
        if (runs_here(i) && !strcmp(levels[i].name, wanted)) {
            chosen = levels + i;
            Py_RETURN_NONE;
        }
    PyErr_Format(PyExc_ValueError, "expected one of instructions(), got %R", name);
    return NULL;
}

#define FAST(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}
static PyMethodDef functions[] = {
    FAST(measure),
    FAST(measure_blocks),
    FAST(squares),
    FAST(is_finite_float64),
    FAST(is_finite_float32),
    FAST(is_finite_float16),
    FAST(is_finite_bfloat16),
    FAST(prepare_taps),
    FAST(prepare_channels),
    FAST(prepare_scalars),
    FAST(prepare_steps),
    FAST(prepare_timed),
    FAST(call_uncompiled),
    {"host_scalar", host_scalar, METH_O, NULL},
    {"instructions", instructions, METH_NOARGS, NULL},
    {"choose", choose, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_core", NULL, -1, functions, NULL, NULL, NULL, NULL};

long long now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int is_same(PyObject *owner, PyObject *name, PyObject *expected)
{
    PyObject *value = PyObject_GetAttr(owner, name);
    Py_XDECREF(value);
    return value ? value == expected : -1;
}

int hold(PyObject **into, PyObject *from, Py_ssize_t num)
{
    if (PyTuple_Size(from) != num) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_TypeError, "expected %zd objects, got %zd", num, PyTuple_Size(from));
        return -1;
    }
    for (Py_ssize_t i = 0; i < num; i++) {
        PyObject *before = into[i];
        Py_INCREF(into[i] = PyTuple_GetItem(from, i));
        Py_XDECREF(before);
    }
    return 0;
}

int drop_error_if(PyObject *asked)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return 0;
    PyObject *kind, *error, *traceback;
    PyErr_Fetch(&kind, &error, &traceback);
    PyErr_NormalizeException(&kind, &error, &traceback);
    if (traceback) PyException_SetTraceback(error, traceback);
    PyObject *answer = PyObject_CallFunctionObjArgs(asked, error, NULL);
    int ends = answer && PyObject_IsTrue(answer) > 0;
    Py_XDECREF(answer);
    if (answer && !ends) {
        PyErr_Restore(kind, error, traceback);
        return 0;
    }
    Py_XDECREF(kind);
    Py_XDECREF(error);
    Py_XDECREF(traceback);
    if (ends) return 1;
    /* Where the stack is full it cannot be asked; anything else has come from outside meanwhile. */
    if (!PyErr_ExceptionMatches(PyExc_RecursionError)) return 0;
    PyErr_Clear();
    return 1;
}

void free_part(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    ((inquiry)PyType_GetSlot(type, Py_tp_clear))(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* Add a class, which is let go of. */
static int add(PyObject *module, const char *name, PyObject *kind)
{
    int failed = !kind || PyModule_AddObjectRef(module, name, kind) < 0;
    Py_XDECREF(kind);
    return failed ? -1 : 0;
}

PyMODINIT_FUNC PyInit__core(void)
{
    for (size_t i = NUM_LEVELS; i-- > 0;)
        if (runs_here(i)) chosen = levels + i;
    if (!chosen) {
        PyErr_SetString(PyExc_ImportError, "this processor has none of the sets of instructions");
        return NULL;
    }
    PyObject *module = PyModule_Create(&definition);
    if (module && (add(module, "TappedCall", make_tapped_call()) < 0 ||
                   add(module, "Channel", make_channel()) < 0 ||
                   add(module, "Notes", make_notes()) < 0 ||
                   add(module, "Steps", make_steps()) < 0 ||
                   add(module, "TimedBackward", make_timed_backward()) < 0 ||
                   add(module, "TimedRoot", make_timed_root()) < 0 ||
                   add(module, "CallNotes", make_call_notes()) < 0 ||
                   add(module, "Finalizer", make_finalizer()) < 0))
        Py_CLEAR(module);
    return module;
}
