/* Reads a one-element CPU tensor where it lies, as transfer/readback.py does. */

#include "parts.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* By dtype one of the codes below, and what reads a tensor that is not read here. */
static PyObject *codes, *otherwise, *s_data_ptr, *s_dtype;

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

PyObject *prepare_scalars(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    if (given != 2 || !PyDict_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "expected a dictionary and a function");
        return NULL;
    }
    if (!(s_data_ptr = PyUnicode_InternFromString("data_ptr"))) return NULL;
    if (!(s_dtype = PyUnicode_InternFromString("dtype"))) return NULL;
    Py_INCREF(args[0]);
    Py_INCREF(args[1]);
    codes = args[0];
    otherwise = args[1];
    Py_RETURN_NONE;
}
