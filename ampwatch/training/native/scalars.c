/* host_scalar: reads a one-element CPU tensor where it lies, as that of transfer/readback.py does. */

#include "parts.h"

#include <stdint.h>
#include <string.h>

/* By dtype one of the codes below, and what reads a tensor that is not read here. */
static PyObject *codes, *otherwise, *s_data_ptr, *s_dtype;

enum { FLOAT32, FLOAT64, INT32, INT64, BOOL };

static PyObject *value_at(const void *address, long code)
{
    float single;
    double twice;
    int32_t whole;
    int64_t longer;
    unsigned char byte;
#define READ(into, from_value) (memcpy(&into, address, sizeof into), from_value(into))
    switch (code) {
    case FLOAT32: return READ(single, PyFloat_FromDouble);
    case FLOAT64: return READ(twice, PyFloat_FromDouble);
    case INT32: return READ(whole, PyLong_FromLong);
    case INT64: return READ(longer, PyLong_FromLongLong);
    default: return READ(byte, PyBool_FromLong);
    }
}

PyObject *host_scalar(PyObject *module, PyObject *tensor)
{
    PyObject *dtype = PyObject_GetAttr(tensor, s_dtype), *result = NULL;
    PyObject *code = dtype ? PyDict_GetItemWithError(codes, dtype) : NULL; /* borrowed */
    Py_XDECREF(dtype);
    if (PyErr_Occurred()) return NULL;
    if (code) {
        PyObject *given = PyObject_CallMethodObjArgs(tensor, s_data_ptr, NULL);
        void *address = given ? PyLong_AsVoidPtr(given) : NULL;
        Py_XDECREF(given);
        if (address) result = value_at(address, PyLong_AsLong(code));
        /* Within torch.func the memory is hidden. */
        if (!address && PyErr_Occurred()) {
            if (!PyErr_ExceptionMatches(PyExc_RuntimeError)) return NULL;
            PyErr_Clear();
        }
        if (address) return result;
    }
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
