/* Channel: hands one kind of event to its subscribers, each behind its own guard.
 *
 * The same as PythonChannel of hooks/channel.py. No signal's handler runs between two lines of C, so
 * nothing has to be taken back twice; it may run in what is called from here. */

#include "parts.h"

#include <structmember.h>

typedef struct {
    PyObject_HEAD
    PyObject *account;
    PyObject *subscribers; /* a tuple, replaced as a whole */
} Channel;

/* Of ampwatch.guard: depths of guarded calls by thread, and what is asked of an exception. */
static PyObject *depths, *keep;

static PyObject *s_errors, *s_is_dormant, *s_holders, *s_is_thread_safe, *s_missed, *s_counted,
    *s_depth, *s_began_ns, *s_ended_ns, *s_modes, *s_num, *s_step_aside, *s_aside, *s_come_back;

static PyObject *zero;

enum { SENSOR, GUARD, HANDLE, WAKES };

/* What emit marks for its thread; me is NULL before. */
typedef struct {
    PyObject *account, *me;
    long depth;
} Mark;

/* Take a number that may be NULL, and let go of it; -1 with an error set if it is none. */
static long long taken(PyObject *value)
{
    PyObject *whole = value ? PyNumber_Long(value) : NULL;
    long long number = whole ? PyLong_AsLongLong(whole) : -1;
    Py_XDECREF(whole);
    Py_XDECREF(value);
    return number;
}

static long long number_of(PyObject *owner, PyObject *name)
{
    return taken(PyObject_GetAttr(owner, name));
}

static int set_number(PyObject *owner, PyObject *name, long long number)
{
    PyObject *value = PyLong_FromLongLong(number);
    int failed = !value || PyObject_SetAttr(owner, name, value) < 0;
    Py_XDECREF(value);
    return failed ? -1 : 0;
}

static int is_true(PyObject *owner, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(owner, name);
    int is = value ? PyObject_IsTrue(value) : -1;
    Py_XDECREF(value);
    return is;
}

/* Whether what the account counts is a call of this thread; -1 with an error set. */
static int counts(const Mark *mark)
{
    PyObject *counted = PyObject_GetAttr(mark->account, s_counted);
    int is = counted ? PyObject_RichCompareBool(counted, mark->me, Py_EQ) : -1;
    Py_XDECREF(counted);
    return is;
}

/* Begin: as Account.begin. */
static int begin(Mark *mark)
{
    PyObject *me = PyLong_FromUnsignedLong(PyThread_get_thread_ident());
    if (!me) return -1;
    PyObject *depth = PyDict_GetItemWithError(depths, me);
    mark->depth = depth ? PyLong_AsLong(depth) : 0;
    long long began = now_ns();
    PyObject *deeper = PyErr_Occurred() ? NULL : PyLong_FromLong(mark->depth + 1);
    if (!deeper || PyDict_SetItem(depths, me, deeper) < 0) {
        Py_XDECREF(deeper);
        Py_DECREF(me);
        return -1;
    }
    Py_DECREF(deeper);
    mark->me = me; /* from here on there is something to take back */
    int free = is_true(mark->account, s_counted);
    if (free < 0) return -1;
    free = !free || (!mark->depth && counts(mark));
    if (PyErr_Occurred()) return -1;
    if (free && (set_number(mark->account, s_began_ns, began) < 0 ||
                 set_number(mark->account, s_depth, mark->depth) < 0 ||
                 PyObject_SetAttr(mark->account, s_counted, me) < 0))
        return -1;
    if (mark->depth) return 0;
    PyObject *modes = PyObject_GetAttr(mark->account, s_modes);
    PyObject *num = modes ? PyObject_GetAttr(modes, s_num) : NULL;
    PyObject *on = num ? PyObject_CallFunctionObjArgs(num, NULL) : NULL;
    int any = on ? PyObject_IsTrue(on) : -1;
    Py_XDECREF(on);
    Py_XDECREF(num);
    Py_XDECREF(modes);
    if (any <= 0) return any;
    PyObject *done = PyObject_CallMethodObjArgs(mark->account, s_step_aside, me, NULL);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* End what `begin` has begun: as Account.end. Goes on to the end also after what raises. */
static int end(Mark *mark)
{
    PyObject *kind = NULL, *error = NULL, *traceback = NULL, *depth = NULL;
    if (!mark->depth) {
        PyObject *aside = PyObject_GetAttr(mark->account, s_aside);
        if (aside && PyDict_GetItemWithError(aside, mark->me)) {
            PyObject *done =
                PyObject_CallMethodObjArgs(mark->account, s_come_back, mark->me, NULL);
            if (!done) PyErr_Fetch(&kind, &error, &traceback);
            Py_XDECREF(done);
        }
        Py_XDECREF(aside);
        if (PyDict_GetItemWithError(depths, mark->me)) PyDict_DelItem(depths, mark->me);
    } else if ((depth = PyLong_FromLong(mark->depth))) {
        PyDict_SetItem(depths, mark->me, depth);
        Py_DECREF(depth);
    }
    if (!PyErr_Occurred() && counts(mark) > 0 &&
        number_of(mark->account, s_depth) == mark->depth) {
        long long spent = now_ns() - number_of(mark->account, s_began_ns);
        long long ended = number_of(mark->account, s_ended_ns);
        if (!PyErr_Occurred() && set_number(mark->account, s_ended_ns, ended + spent) == 0)
            PyObject_SetAttr(mark->account, s_counted, zero);
    }
    Py_CLEAR(mark->me);
    if (kind) PyErr_Restore(kind, error, traceback);
    return PyErr_Occurred() ? -1 : 0;
}

/* The key under which this thread is at work in a sensor, borrowed; NULL with an error set. */
static PyObject *key_in(PyObject *guard, PyObject *me)
{
    int is_safe = is_true(guard, s_is_thread_safe);
    return is_safe < 0 ? NULL : is_safe ? me : zero;
}

static int miss(PyObject *guard)
{
    long long missed = number_of(guard, s_missed);
    return PyErr_Occurred() ? -1 : set_number(guard, s_missed, missed + 1);
}

/* Mark the thread as at work in a sensor. Return whether it is now; -1 with an error set. */
static int enter(PyObject *guard, const Mark *mark)
{
    PyObject *holders = PyObject_GetAttr(guard, s_holders);
    PyObject *key = holders ? key_in(guard, mark->me) : NULL;
    PyObject *holder = key ? PyDict_GetItemWithError(holders, key) : NULL;
    int entered = PyErr_Occurred() ? -1 : 1;
    if (holder) {
        int mine = PyObject_RichCompareBool(holder, mark->me, Py_EQ);
        /* At depth 0 nothing of ampwatch runs in this thread: what holds it is of an interrupt. */
        entered = mine < 0 ? -1 : mine && !mark->depth;
        if (!mine && miss(guard) < 0) entered = -1;
    } else if (entered > 0 && PyDict_SetItem(holders, key, mark->me) < 0)
        entered = -1;
    Py_XDECREF(holders);
    return entered;
}

/* Have this thread be at work in a sensor no more. An error that is set stays. */
static void leave(PyObject *guard, PyObject *me)
{
    PyObject *kind, *error, *traceback;
    PyErr_Fetch(&kind, &error, &traceback);
    PyObject *holders = PyObject_GetAttr(guard, s_holders);
    PyObject *key = holders ? key_in(guard, me) : NULL;
    PyObject *holder = key ? PyDict_GetItemWithError(holders, key) : NULL;
    if (holder && PyObject_RichCompareBool(holder, me, Py_EQ) > 0) PyDict_DelItem(holders, key);
    Py_XDECREF(holders);
    PyErr_Clear();
    PyErr_Restore(kind, error, traceback);
}

/* Whether the call of one subscriber is to be made: it is neither off nor dormant. */
static int is_wanted(PyObject *subscriber)
{
    int off = is_true(PyTuple_GetItem(subscriber, GUARD), s_errors);
    if (off) return off < 0 ? -1 : 0;
    if (PyTuple_GetItem(subscriber, WAKES) == Py_True) return 1;
    int dormant = is_true(PyTuple_GetItem(subscriber, SENSOR), s_is_dormant);
    return dormant < 0 ? -1 : !dormant;
}

PyObject *subscribers_of(PyObject *channel) { return ((Channel *)channel)->subscribers; }

/* Call one subscriber; keep what it wants to have called at the end. */
static int hand_to(PyObject *subscriber, PyObject *event, Mark *mark, PyObject **ends)
{
    PyObject *guard = PyTuple_GetItem(subscriber, GUARD);
    int wanted = is_wanted(subscriber);
    if (wanted <= 0) return wanted;
    if (!mark->me && begin(mark) < 0) return -1;
    int entered = enter(guard, mark);
    if (entered <= 0) return entered;
    PyObject *last =
        PyObject_CallFunctionObjArgs(PyTuple_GetItem(subscriber, HANDLE), event, NULL);
    if (!last) return -1;
    int failed = 0;
    if (last != Py_None) {
        if (!*ends) *ends = PyList_New(0);
        PyObject *pair = *ends ? PyTuple_Pack(2, guard, last) : NULL;
        failed = !pair || PyList_Append(*ends, pair) < 0;
        Py_XDECREF(pair);
    }
    Py_DECREF(last);
    if (!failed) leave(guard, mark->me);
    return failed ? -1 : 0;
}

/* Have Python say of the error that is set whether it ends here: 1; 0 with the error set if not. */
static int is_kept(PyObject *guard)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return 0;
    PyObject *kind, *error, *traceback;
    PyErr_Fetch(&kind, &error, &traceback);
    PyErr_NormalizeException(&kind, &error, &traceback);
    if (traceback) PyException_SetTraceback(error, traceback);
    PyObject *kept = PyObject_CallFunctionObjArgs(keep, guard, error, NULL);
    int ends = kept == Py_True;
    if (!kept && PyErr_ExceptionMatches(PyExc_RecursionError)) {
        /* The stack is full: that says nothing about the sensor. */
        PyErr_Clear();
        miss(guard);
        PyErr_Clear();
        ends = 1;
    }
    if (kept && !ends)
        PyErr_Restore(kind, error, traceback);
    else {
        Py_XDECREF(kind);
        Py_XDECREF(error);
        Py_XDECREF(traceback);
    }
    Py_XDECREF(kept);
    return ends;
}

/* Take back what was marked for an event in which an interrupt has come; its error stays. */
static void abandon(PyObject *subscribers, Mark *mark)
{
    PyObject *kind, *error, *traceback;
    PyErr_Fetch(&kind, &error, &traceback);
    for (Py_ssize_t i = 0; mark->me && i < PyTuple_Size(subscribers); i++)
        leave(PyTuple_GetItem(PyTuple_GetItem(subscribers, i), GUARD), mark->me);
    if (mark->me) end(mark);
    PyErr_Clear();
    PyErr_Restore(kind, error, traceback);
}

static PyObject *emit(PyObject *self, PyObject *event)
{
    PyObject *subscribers = ((Channel *)self)->subscribers, *ends = NULL, *guard = NULL;
    Mark mark = {((Channel *)self)->account, NULL, 0};
    Py_ssize_t num = PyTuple_Size(subscribers);
    if (num < 0) return NULL;
    Py_INCREF(subscribers);
    for (Py_ssize_t i = 0; i < num; i++) {
        PyObject *subscriber = PyTuple_GetItem(subscribers, i);
        guard = PyTuple_GetItem(subscriber, GUARD);
        if (hand_to(subscriber, event, &mark, &ends) == 0) continue;
        if (mark.me) leave(guard, mark.me);
        if (!is_kept(guard)) goto raised;
    }
    if (mark.me && end(&mark) < 0 && !is_kept(guard)) goto raised;
    Py_DECREF(subscribers);
    return ends ? ends : PyTuple_New(0);
raised:
    abandon(subscribers, &mark);
    Py_DECREF(subscribers);
    Py_XDECREF(ends);
    return NULL;
}

static int traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((Channel *)self)->account);
    Py_VISIT(((Channel *)self)->subscribers);
    return 0;
}

static int clear(PyObject *self)
{
    Py_CLEAR(((Channel *)self)->account);
    Py_CLEAR(((Channel *)self)->subscribers);
    return 0;
}

static int init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    PyObject *account;
    if (!PyArg_ParseTuple(args, "O:Channel", &account)) return -1;
    clear(self);
    Py_INCREF(account);
    ((Channel *)self)->account = account;
    ((Channel *)self)->subscribers = PyTuple_New(0);
    return ((Channel *)self)->subscribers ? 0 : -1;
}

static PyMethodDef methods[] = {{"emit", emit, METH_O, NULL}, {NULL, NULL, 0, NULL}};
static PyMemberDef members[] = {
    {"subscribers", T_OBJECT_EX, offsetof(Channel, subscribers), 0, NULL}, {NULL, 0, 0, 0, NULL}};
static PyType_Slot slots[] = {
    {Py_tp_methods, methods}, {Py_tp_members, members}, {Py_tp_init, init},
    {Py_tp_traverse, traverse}, {Py_tp_clear, clear},   {Py_tp_dealloc, free_part},
    {0, NULL},
};
static PyType_Spec spec = {"ampwatch.training.native._core.Channel", sizeof(Channel), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

PyObject *make_channel(void)
{
    static const struct {
        PyObject **kept;
        const char *name;
    } names[] = {
        {&s_errors, "errors"},       {&s_is_dormant, "is_dormant"}, {&s_holders, "_holders"},
        {&s_is_thread_safe, "_is_thread_safe"},                     {&s_missed, "missed"},
        {&s_counted, "_counted"},    {&s_depth, "_depth"},          {&s_began_ns, "_began_ns"},
        {&s_ended_ns, "_ended_ns"},  {&s_modes, "modes"},           {&s_num, "num"},
        {&s_step_aside, "step_aside"}, {&s_aside, "aside"},         {&s_come_back, "come_back"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(*names[i].kept = PyUnicode_InternFromString(names[i].name))) return NULL;
    if (!(zero = PyLong_FromLong(0))) return NULL;
    return PyType_FromSpec(&spec);
}

PyObject *prepare_channels(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    if (given != 2 || !PyDict_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "expected a dictionary and a function");
        return NULL;
    }
    Py_INCREF(args[0]);
    Py_INCREF(args[1]);
    depths = args[0];
    keep = args[1];
    Py_RETURN_NONE;
}
