/* Reads a one-element CPU tensor where it lies, as transfer/readback.py does, and the versions of tensors that a
 * model is called with. */

#include "parts.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* By dtype one of the codes below, and what reads a tensor that is not read here. */
static PyObject *codes, *otherwise, *tensor_type, *s_data_ptr, *s_dtype, *s_requires_grad, *s_is_nested, *s_version,
    *s_nbytes;

enum { FLOAT32, FLOAT64, INT32, INT64, BOOL, FLOAT16, BFLOAT16 };

static double from_half(uint16_t bits)
{
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double magnitude = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    if (exponent == 31) magnitude = fraction ? NAN : INFINITY;
    return bits & 0x8000 ? -magnitude : magnitude;
}

double read_value(const void *address, long code)
{
    float single;
    double twice;
    int32_t whole;
    int64_t longer;
    uint16_t half;
    unsigned char byte;
    uint32_t bits;
#define READ(into) memcpy(&into, address, sizeof into)
    switch (code) {
    case FLOAT32: READ(single); return single;
    case FLOAT64: READ(twice); return twice;
    case INT32: READ(whole); return whole;
    case INT64: READ(longer); return (double)longer;
    case FLOAT16: READ(half); return from_half(half);
    case BFLOAT16: /* the upper half of a float32 */
        READ(half);
        bits = (uint32_t)half << 16;
        memcpy(&single, &bits, sizeof single);
        return single;
    default: READ(byte); return byte;
    }
}

/* As item() returns it. */
static PyObject *value_at(const void *address, long code)
{
    int64_t longer;
    switch (code) {
    case INT32: return PyLong_FromDouble(read_value(address, code));
    case INT64: READ(longer); return PyLong_FromLongLong(longer);
    case BOOL: return PyBool_FromLong(read_value(address, code) != 0.0);
    default: return PyFloat_FromDouble(read_value(address, code));
    }
}

long code_of(PyObject *dtype)
{
    PyObject *code = PyDict_GetItemWithError(codes, dtype); /* borrowed */
    return code ? PyLong_AsLong(code) : -1;
}

long code_in(PyObject *tensor)
{
    PyObject *dtype = PyObject_GetAttr(tensor, s_dtype);
    long code = dtype ? code_of(dtype) : -1;
    Py_XDECREF(dtype);
    return code;
}

void *address_of(PyObject *tensor)
{
    PyObject *given = PyObject_CallMethodObjArgs(tensor, s_data_ptr, NULL);
    void *address = given ? PyLong_AsVoidPtr(given) : NULL;
    Py_XDECREF(given);
    if (!address && PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_RuntimeError)) PyErr_Clear();
    return address;
}

PyObject *host_scalar(PyObject *module, PyObject *tensor)
{
    long code = code_in(tensor);
    void *address = code < 0 ? NULL : address_of(tensor);
    if (PyErr_Occurred()) return NULL;
    if (address) return value_at(address, code);
    return PyObject_CallFunctionObjArgs(otherwise, tensor, NULL);
}

/* The version of an ordinary tensor that is of no graph and has memory, and its bytes; NULL of another one, also
 * with an error set. */
static PyObject *version_in(PyObject *tensor, long long *nbytes)
{
    if ((PyObject *)Py_TYPE(tensor) != tensor_type || is_same(tensor, s_requires_grad, Py_False) <= 0 ||
        is_same(tensor, s_is_nested, Py_False) <= 0 || !address_of(tensor))
        return NULL;
    PyObject *size = PyObject_GetAttr(tensor, s_nbytes);
    *nbytes += size ? PyLong_AsLongLong(size) : 0;
    Py_XDECREF(size);
    return PyErr_Occurred() ? NULL : PyObject_GetAttr(tensor, s_version); /* one of inference mode has none */
}

PyObject *versions(PyObject *module, PyObject *args)
{
    long long nbytes = 0;
    Py_ssize_t num = PyTuple_Size(args);
    PyObject *found = num < 0 ? NULL : PyTuple_New(num);
    for (Py_ssize_t i = 0; found && i < num; i++) {
        PyObject *version = version_in(PyTuple_GetItem(args, i), &nbytes);
        if (version) PyTuple_SetItem(found, i, version);
        else Py_CLEAR(found);
    }
    if (found) return Py_BuildValue("NL", found, nbytes);
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_RuntimeError)) return NULL;
    PyErr_Clear();
    Py_RETURN_NONE;
}

PyObject *prepare_scalars(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    static const struct {
        PyObject **name;
        const char *text;
    } names[] = {{&s_data_ptr, "data_ptr"},   {&s_dtype, "dtype"},     {&s_requires_grad, "requires_grad"},
                 {&s_is_nested, "is_nested"}, {&s_nbytes, "nbytes"}};
    if (given != 4 || !PyDict_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "expected a dictionary, a function, a class and a name");
        return NULL;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(*names[i].name = PyUnicode_InternFromString(names[i].text))) return NULL;
    PyObject **into[] = {&codes, &otherwise, &tensor_type, &s_version};
    for (int i = 0; i < 4; i++) {
        Py_INCREF(args[i]);
        Py_XDECREF(*into[i]);
        *into[i] = args[i];
    }
    Py_RETURN_NONE;
}
