/* The classes of the module, each in a file of its own, and what they share. */

#ifndef AMPWATCH_PARTS_H
#define AMPWATCH_PARTS_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>

/* Each returns a class, or NULL with an error set. */
PyObject *make_tapped_call(void);
PyObject *make_channel(void);
PyObject *make_notes(void);
PyObject *make_finalizer(void);
PyObject *make_steps(void);
PyObject *make_timed_backward(void);
PyObject *make_timed_root(void);
PyObject *make_call_notes(void);

/* Functions of the module. The first tell it of what is Python's: hooks/tapped_call.py, hooks/channel.py,
 * transfer/readback.py, iteration/quiet.py, sensors/time/call_notes.py. */
PyObject *prepare_taps(PyObject *module, PyObject *const *args, Py_ssize_t given);
PyObject *prepare_channels(PyObject *module, PyObject *const *args, Py_ssize_t given);
PyObject *prepare_steps(PyObject *module, PyObject *const *args, Py_ssize_t given);
PyObject *prepare_timed(PyObject *module, PyObject *const *args, Py_ssize_t given);

/* call_uncompiled(function, args): call it, with nothing that it calls being compiled. */
PyObject *call_uncompiled(PyObject *module, PyObject *const *args, Py_ssize_t given);

PyObject *prepare_scalars(PyObject *module, PyObject *const *args, Py_ssize_t given);
PyObject *host_scalar(PyObject *module, PyObject *tensor);

/* The code of a dtype, or of that of a tensor, -1 without one or with an error set; where a tensor lies, NULL
 * where that is hidden (of a transform of torch.func, of another layout) or with an error set; the value there. */
long code_of(PyObject *dtype);
long code_in(PyObject *tensor);
void *address_of(PyObject *tensor);
double read_value(const void *address, long code);

/* The tuple of the subscribers of a channel, borrowed. */
PyObject *subscribers_of(PyObject *channel);

/* Whether anything is captured into a graph of an accelerator in this process. */
int captures_any(void);

/* Call a function with an instance before other arguments; with NULL without one. */
PyObject *call_with(PyObject *function, PyObject *instance, PyObject *args, PyObject *kwargs);

/* Whether an attribute of an object is another object; -1 with an error set. */
int is_same(PyObject *owner, PyObject *name, PyObject *expected);

/* Hold the items of a tuple in place of what was held; -1 with an error set if they are not as many. */
int hold(PyObject **into, PyObject *from, Py_ssize_t num);

/* Have something noted by a function like Notes.note; given may be NULL, and the time: now. */
int note_by(PyObject *function, PyObject *kind, PyObject *given, const long long *at);

/* Drop the error that is set, if it is an Exception and a function of it says so, or cannot be asked as the stack
 * is full: 1; 0 with an error set if not. */
int drop_error_if(PyObject *asked);

/* Have none of the Python functions that are called from now on be compiled. Return what compiles them otherwise,
 * to be set again with `set_compiler_to`; NULL if nothing does, or with an error set. */
PyObject *stop_compiler(void);
void set_compiler_to(PyObject *compiler);

/* The clock of time.perf_counter_ns(). */
long long now_ns(void);

/* tp_dealloc of all. */
void free_part(PyObject *self);

#endif
