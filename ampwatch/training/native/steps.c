/* Steps: takes down the iterations in which nothing happens but what has happened in the one before.
 *
 * The ledger (iteration/ledger.py) hands it the form of an iteration: one optimizer, stepped through one
 * GradScaler, all on the host. While iterations are of that form, no event of Python's is made of them,
 * and nothing of the ledger runs: in the middle of a step the caches have forgotten it. Whatever is
 * otherwise goes back to the ledger, with what was noted of the open iteration, and from there on its way
 * as ever. No reference to an optimizer is held. */

#include "parts.h"

#include <math.h>
#include <string.h>
#include <structmember.h>

/* What is listened to, as in LISTENED of iteration/quiet.py, and in CHANNELS the events that it stands for. */
enum {
    SCALED,
    STEP_BEFORE,
    STEP_AFTER,
    OPTIMIZER_BEFORE,
    OPTIMIZER_AFTER,
    UPDATE_BEFORE,
    UPDATE_AFTER,
    NUM_LISTENED
};
enum { CLOSING = NUM_LISTENED, CLOSED, OPENED, NUM_CHANNELS };
enum { MAX_STEPS = 256 };
#define MAX_COUNT 0x1p53 /* above it a double leaves out some whole numbers */

/* Objects that are given when it is made, and those of a form. The storages are held, so that nothing else is
 * put where the scale and the tracker lie. */
enum { RESUME, TURN, BUS, ITERATION, HAS_MOVED, SEEN, IS_OURS, NOTES, NUM_GIVEN };
enum { SCALER, OPTIMIZER, NUMBER, DTYPE, STAGE, SCALE, TRACKER, SETTINGS, STORAGES, NUM_OF_FORM };

/* What has happened to the optimizer in the open iteration, in that order. */
enum { NOT_YET, BEGAN, WITHIN, CALLED, ENDED, UPDATING };

typedef struct {
    long long time_ns;
    double duration_s, loss;
    long long tracker;
} Step;

typedef struct {
    PyObject_HEAD
    PyObject *given[NUM_GIVEN];
    PyObject *fallback[NUM_LISTENED]; /* what is notified of what is not taken down */
    PyObject *channels[NUM_CHANNELS];
    /* The form; with the subscribers of each channel and those of them that are dormant. */
    PyObject *form[NUM_OF_FORM];
    PyObject *subscribers[NUM_CHANNELS], *dormant[NUM_CHANNELS];
    PyObject *seen; /* the rates and the counts of a schedule that has not moved since, or NULL */
    PyObject *verdict; /* that was found to be an ordinary tensor in the open iteration, or NULL */
    double scale;
    void *address[2]; /* of the scale and of the tracker, and the codes of their dtypes */
    long code[2], loss_code, verdict_code;
    int num_losses, is_moved;
    unsigned long thread;
    long long batch_ns;
    /* The open iteration. */
    struct {
        double loss;
        int num_losses, is_moved, stage;
    } open;
    /* What has ended and was not taken. */
    long long ended_ns, delivered_ns, spent_ns, step, next_turn;
    int num;
    char is_on, is_due;
    int num_taking; /* calls that go by the form just now, of several threads or within one another */
    Step steps[MAX_STEPS];
} Steps;

static const char *const listened_names[NUM_LISTENED] = {
    "scaled",          "step_before",   "step_after",   "optimizer_before",
    "optimizer_after", "update_before", "update_after",
};

static PyObject *s_numel, *s_is_cpu, *s_note, *s_step, *s_stage, *s_found_inf,
    *s_param_groups, *s_lr, *s_last_epoch, *s_is_dormant, *s_is_stepping, *s_is_optimizer_stepping, *s_scaler, *s_at_boundary, *s_settle;
static PyObject *s_enabled, *s_scale, *s_tracker, *s_states, *settings_names[3];
static PyObject *tensor_type, *tracing_state;

/* Call a function and let go of what it returns. */
static int run(PyObject *function, PyObject *argument)
{
    PyObject *done = PyObject_CallFunctionObjArgs(function, argument, NULL);
    Py_XDECREF(done);
    return done ? 1 : -1;
}

/* Read any object, if it is an ordinary tensor of one element in host memory: 1 with the code of its dtype, else
 * 0. One of another layout or of a transform has no address. */
static int read_plain(PyObject *tensor, double *value, long *code)
{
    if ((PyObject *)Py_TYPE(tensor) != tensor_type) return 0;
    int is = is_same(tensor, s_is_cpu, Py_True);
    if (is <= 0) return is;
    PyObject *numel = PyObject_CallMethodObjArgs(tensor, s_numel, NULL);
    long count = numel ? PyLong_AsLong(numel) : -1;
    Py_XDECREF(numel);
    void *address = count == 1 && (*code = code_in(tensor)) >= 0 ? address_of(tensor) : NULL;
    if (address) *value = read_value(address, *code);
    return PyErr_Occurred() ? -1 : address != NULL;
}

/* Read the scale or the tracker of the form, if it is where it was: `.data` of a tensor may be set. */
static int read_known(Steps *self, int which, double *value)
{
    void *address = address_of(self->form[which]);
    if (!address || address != self->address[which - SCALE]) return PyErr_Occurred() ? -1 : 0;
    *value = read_value(address, self->code[which - SCALE]);
    return 1;
}

/* Whether nobody else is to be notified of an event who was not when the form was given. */
static int is_quiet(Steps *self, int channel)
{
    if (subscribers_of(self->channels[channel]) != self->subscribers[channel]) return 0;
    PyObject *dormant = self->dormant[channel];
    int is = 1;
    for (Py_ssize_t i = 0; is > 0 && i < PyTuple_Size(dormant); i++)
        is = is_same(PyTuple_GetItem(dormant, i), s_is_dormant, Py_True);
    return is;
}

/* Have something noted that is event. */
static int note(Steps *self, int event, PyObject *given, const long long *at)
{
    PyObject *function = PyObject_GetAttr(self->given[BUS], s_note);
    PyObject *kind = PyTuple_GetItem(self->given[NOTES], event);
    int noted = function && kind ? note_by(function, kind, given, at) : -1;
    Py_XDECREF(function);
    return noted;
}

/* Note what happens, and that a step of the scaler or of the optimizer has begun or ended. */
static int note_and_set(Steps *self, int event, PyObject *flag, PyObject *value)
{
    if (note(self, event, NULL, NULL) < 0) return -1;
    return PyObject_SetAttr(self->given[BUS], flag, value) < 0 ? -1 : 1;
}

static int has_nothing(PyObject *args, PyObject *kwargs, Py_ssize_t given)
{
    return PyTuple_Size(args) == given && (kwargs == Py_None || PyDict_Size(kwargs) == 0);
}

/* Take a loss, as LossSum.add does: scaled(scaler, result, args, kwargs). */
static int take_scaled(Steps *self, PyObject *const *args)
{
    double value;
    long code;
    if (!has_nothing(args[2], args[3], 1) || self->open.num_losses == self->num_losses) return 0;
    PyObject *tracing = PyObject_CallFunctionObjArgs(tracing_state, NULL);
    Py_XDECREF(tracing);
    if (tracing != Py_None) return tracing ? 0 : -1;
    int is = read_plain(PyTuple_GetItem(args[2], 0), &value, &code);
    if (is <= 0 || code != self->loss_code || !isfinite(value)) return is < 0 ? -1 : 0;
    self->open.loss += value;
    self->open.num_losses++;
    return 1;
}

/* Whether an object is the optimizer of the form, which may be gone. */
static int is_known(Steps *self, PyObject *optimizer)
{
    PyObject *known = PyObject_CallFunctionObjArgs(self->form[OPTIMIZER], NULL);
    Py_XDECREF(known);
    return known ? known == optimizer : -1;
}

/* Whether each learning rate of an optimizer is the very object that it was. */
static int has_rates(PyObject *optimizer, PyObject *rates)
{
    PyObject *groups = PyObject_GetAttr(optimizer, s_param_groups);
    Py_ssize_t num = PyTuple_Size(rates);
    int is = groups && PyList_Check(groups) && PyList_Size(groups) == num;
    for (Py_ssize_t i = 0; is && i < num; i++) {
        PyObject *group = PyList_GetItem(groups, i);
        PyObject *rate = PyDict_CheckExact(group) ? PyDict_GetItemWithError(group, s_lr) : NULL;
        is = rate == PyTuple_GetItem(rates, i);
    }
    Py_XDECREF(groups);
    return PyErr_Occurred() ? -1 : is;
}

/* Whether each scheduler has the very count that it had: weak references, and the counts. */
static int has_counts(PyObject *counts)
{
    int is = 1;
    for (Py_ssize_t i = 0; is > 0 && i < PyTuple_Size(counts); i++) {
        PyObject *pair = PyTuple_GetItem(counts, i);
        PyObject *scheduler = PyObject_CallFunctionObjArgs(PyTuple_GetItem(pair, 0), NULL);
        if (!scheduler) return -1;
        is = scheduler == Py_None ? 0 : is_same(scheduler, s_last_epoch, PyTuple_GetItem(pair, 1));
        Py_XDECREF(scheduler);
    }
    return is;
}

/* Whether its schedule has moved since the optimizer stepped last; -1 with an error set. */
static int has_moved(Steps *self, PyObject *optimizer)
{
    PyObject *seen = self->seen;
    if (seen) {
        Py_INCREF(seen); /* a property of the user's may let another thread come here */
        int is = has_rates(optimizer, PyTuple_GetItem(seen, 0));
        if (is > 0) is = has_counts(PyTuple_GetItem(seen, 1));
        Py_DECREF(seen);
        if (is) return is < 0 ? -1 : 0;
    }
    PyObject *moved = PyObject_CallFunctionObjArgs(self->given[HAS_MOVED], optimizer, NULL);
    Py_XDECREF(moved);
    if (!moved) return -1;
    int is_moved = moved == Py_True;
    seen = is_moved ? NULL : PyObject_CallFunctionObjArgs(self->given[SEEN], optimizer, NULL);
    PyObject *before = self->seen;
    self->seen = seen;
    Py_XDECREF(before);
    return seen || is_moved ? is_moved : -1;
}

static int take_step_before(Steps *self, PyObject *const *args)
{
    if (!has_nothing(args[1], args[2], 1) || self->open.stage != NOT_YET) return 0;
    PyObject *optimizer = PyTuple_GetItem(args[1], 0);
    int is = is_known(self, optimizer);
    if (is > 0) is = is_same(args[0], s_enabled, Py_True);
    if (is <= 0) return is;
    int moved = has_moved(self, optimizer);
    if (moved < 0 || note_and_set(self, STEP_BEFORE, s_is_stepping, Py_True) < 0) return -1;
    self->open.is_moved = moved;
    self->open.stage = BEGAN;
    return 1;
}

static int take_optimizer_before(Steps *self, PyObject *const *args)
{
    if (self->open.stage != BEGAN) return 0;
    self->open.stage = WITHIN;
    return note_and_set(self, OPTIMIZER_BEFORE, s_is_optimizer_stepping, Py_True);
}

static int take_optimizer_after(Steps *self, PyObject *const *args)
{
    if (self->open.stage != WITHIN) return 0;
    self->open.stage = CALLED;
    return note_and_set(self, OPTIMIZER_AFTER, s_is_optimizer_stepping, Py_False);
}

static int is_finite_verdict(Steps *self, PyObject *states)
{
    if (!PyDict_Check(states) || PyDict_Size(states) != 1) return 0;
    PyObject *state = PyDict_GetItemWithError(states, self->form[NUMBER]);
    if (!state || !PyDict_Check(state)) return 0;
    PyObject *stage = PyDict_GetItemWithError(state, s_stage);
    PyObject *found = PyDict_GetItemWithError(state, s_found_inf);
    if (stage != self->form[STAGE] || !found || !PyDict_Check(found)) return 0;
    PyObject *device, *verdict;
    Py_ssize_t place = 0;
    double value = 1.0;
    if (PyDict_Size(found) != 1 || !PyDict_Next(found, &place, &device, &verdict)) return 0;
    Py_INCREF(verdict); /* where a mode of the user's hears of the reads below, it may end the iteration */
    if (verdict == self->verdict) {
        void *address = address_of(verdict);
        int is = address ? read_value(address, self->verdict_code) == 0.0 : PyErr_Occurred() ? -1 : 0;
        Py_DECREF(verdict);
        return is;
    }
    int is = read_plain(verdict, &value, &self->verdict_code);
    PyObject *before = self->verdict;
    self->verdict = is > 0 ? verdict : NULL;
    Py_XDECREF(before);
    if (is <= 0) Py_DECREF(verdict);
    return is > 0 ? value == 0.0 : is;
}

/* Whether the scaler has the one state of the form, with a verdict that all is finite. */
static int has_finite_verdict(Steps *self, PyObject *scaler)
{
    PyObject *states = PyObject_GetAttr(scaler, s_states);
    int is = states ? is_finite_verdict(self, states) : -1;
    Py_XDECREF(states);
    return PyErr_Occurred() ? -1 : is;
}

static int take_step_after(Steps *self, PyObject *const *args)
{
    if (self->open.stage != CALLED) return 0;
    /* A fused optimizer is called in skipped steps as well, whose gradients are looked at now. */
    int is = has_finite_verdict(self, args[0]);
    if (is <= 0) return is;
    self->open.stage = ENDED;
    return note_and_set(self, STEP_AFTER, s_is_stepping, Py_False);
}

/* Whether the loss scale is what it was, and where it was: `.data` of a tensor may be set. */
static int has_scale(Steps *self)
{
    double scale;
    int is = is_same(self->form[SCALER], s_scale, self->form[SCALE]);
    if (is > 0) is = read_known(self, SCALE, &scale);
    return is > 0 ? scale == self->scale : is;
}

static int take_update_before(Steps *self, PyObject *const *args)
{
    if (!has_nothing(args[1], args[2], 0) || self->open.stage != ENDED) return 0;
    int is = is_same(args[0], s_enabled, Py_True);
    if (is > 0) is = has_scale(self);
    if (is > 0) is = has_finite_verdict(self, args[0]);
    if (is > 0) self->open.stage = UPDATING;
    return is;
}

static long long unix_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Have it noted that the iteration has ended, as the ledger does. */
static int note_end(Steps *self, double duration_s, const long long *now)
{
    PyObject *values = Py_BuildValue("Ld", self->step, duration_s);
    int noted = values ? note(self, UPDATE_AFTER, values, now) : -1;
    Py_XDECREF(values);
    return noted;
}

static int set_step(Steps *self)
{
    PyObject *next = PyLong_FromLongLong(self->step);
    int failed = !next || PyObject_SetAttr(self->given[ITERATION], s_step, next) < 0;
    Py_XDECREF(next);
    return failed ? -1 : 1;
}

/* Call who wants to be called between two iterations: what they raise is the user's. */
static int settle(Steps *self)
{
    PyObject *bus = self->given[BUS], *calls = PyObject_GetAttr(bus, s_at_boundary);
    int wanted = calls ? PyObject_IsTrue(calls) : -1;
    Py_XDECREF(calls);
    if (wanted <= 0) return wanted < 0 ? -1 : 1;
    PyObject *done = PyObject_CallMethodObjArgs(bus, s_settle, NULL);
    Py_XDECREF(done);
    return done ? 1 : -1;
}

static int take_update_after(Steps *self, PyObject *const *args)
{
    double tracker;
    if (self->open.stage != UPDATING || self->open.num_losses != self->num_losses) return 0;
    if (self->open.is_moved != self->is_moved || self->num == MAX_STEPS) return 0;
    if (self->thread != PyThread_get_thread_ident()) return 0;
    int is = 1;
    for (int i = NUM_LISTENED; is > 0 && i < NUM_CHANNELS; i++) is = is_quiet(self, i);
    if (is > 0) is = has_scale(self);
    if (is > 0) is = is_same(args[0], s_tracker, self->form[TRACKER]);
    for (int i = 0; is > 0 && i < 3; i++) {
        PyObject *setting = PyObject_GetAttr(args[0], settings_names[i]);
        PyObject *expected = PyTuple_GetItem(self->form[SETTINGS], i);
        is = setting && expected ? PyObject_RichCompareBool(setting, expected, Py_EQ) : -1;
        Py_XDECREF(setting);
    }
    if (is > 0) is = read_known(self, TRACKER, &tracker);
    if (is <= 0 || !(fabs(tracker) < MAX_COUNT)) return is < 0 ? -1 : 0;
    long long now = now_ns();
    Step step = {unix_ns(), (now - self->ended_ns) / 1e9, self->open.loss / self->num_losses,
                 (long long)tracker};
    if (note_end(self, step.duration_s, &now) < 0) return -1;
    if (!self->is_on) return 0; /* what took the note has ended this */
    self->steps[self->num++] = step;
    self->ended_ns = now;
    self->step++;
    memset(&self->open, 0, sizeof self->open);
    Py_CLEAR(self->verdict);
    return set_step(self);
}

static int (*const takes[NUM_LISTENED])(Steps *, PyObject *const *) = {
    take_scaled,          take_step_before,   take_step_after,  take_optimizer_before,
    take_optimizer_after, take_update_before, take_update_after,
};

/* What becomes of something that is event: the ledger takes over and is notified; it is taken down; it is emitted as
 * ever, without the ledger taking over. */
enum { REFUSED, TAKEN, NOT_OURS };

/* Return TAKEN of what is about the scaler or the optimizer of the form, else one of the others. */
static int whose(Steps *self, int event, PyObject *owner)
{
    if (event == OPTIMIZER_BEFORE || event == OPTIMIZER_AFTER)
        return captures_any() ? REFUSED : is_known(self, owner);
    if (owner == self->form[SCALER]) return TAKEN;
    /* Another training's, or the one that is watched from now on. */
    int is = is_same(self->given[BUS], s_scaler, owner);
    return is > 0 ? REFUSED : is < 0 ? is : NOT_OURS;
}

/* Take it down if it can be; -1 with an error set. */
static int take(Steps *self, int event, PyObject *const *args)
{
    long long step = self->step;
    int is = whose(self, event, args[0]);
    if (is == TAKEN) is = is_quiet(self, event);
    if (is == TAKEN) is = takes[event](self, args);
    /* What was called may have ended this: the ledger has taken over, and has not event of it. */
    return is == TAKEN && !self->is_on && step == self->step ? NOT_OURS : is;
}

/* Be off, and let go of the form once nobody goes by it: whatever Python runs in a call may end this. */
static void forget(Steps *self)
{
    self->is_on = 0;
    if (self->num_taking) return;
    for (int i = 0; i < NUM_OF_FORM; i++) Py_CLEAR(self->form[i]);
    Py_CLEAR(self->seen);
    Py_CLEAR(self->verdict);
    for (int i = 0; i < NUM_CHANNELS; i++) {
        Py_CLEAR(self->subscribers[i]);
        Py_CLEAR(self->dormant[i]);
    }
}

/* Drop the error that is set, unless it is the program's: an interrupt, or what its handler of a signal has
 * raised. Whether it was dropped. */
static int drop_error(Steps *self)
{
    return drop_error_if(self->given[IS_OURS]);
}

/* Call the ledger; what it raises of itself ends behind its guard, and what is raised before ends here. */
static int call_ledger(Steps *self, int which)
{
    if (run(self->given[which], NULL) > 0 || drop_error(self)) return 1;
    return -1;
}

/* Take an event down, or notify those who are notified as ever. */
static PyObject *receive(Steps *self, int event, PyObject *const *args, Py_ssize_t given)
{
    if (given != (event == SCALED ? 4 : 3)) {
        PyErr_Format(PyExc_TypeError, "expected other than %zd arguments", given);
        return NULL;
    }
    if (self->is_on) {
        long long began = now_ns(), step = self->step;
        self->num_taking++;
        int taken = take(self, event, args);
        self->num_taking--;
        self->spent_ns += now_ns() - began;
        if (!self->is_on) forget(self);
        if (taken == TAKEN) {
            if (step == self->step) Py_RETURN_NONE;
            self->is_due = self->num == MAX_STEPS ||
                           self->ended_ns - self->delivered_ns >= self->batch_ns;
            int turns = self->is_due || self->step >= self->next_turn;
            if ((turns && call_ledger(self, TURN) < 0) || settle(self) < 0) return NULL;
            Py_RETURN_NONE;
        }
        /* What was asked is asked again by those who are notified, behind their guards. */
        if (taken < 0 && !drop_error(self)) return NULL;
        if (taken != NOT_OURS && self->is_on && call_ledger(self, RESUME) < 0) return NULL;
    }
    PyObject *listener = self->fallback[event];
    if (!listener) Py_RETURN_NONE; /* tp_clear has been called */
    Py_INCREF(listener); /* another one may be put in its place */
    PyObject *result =
        given == 4 ? PyObject_CallFunctionObjArgs(listener, args[0], args[1], args[2], args[3], NULL)
                   : PyObject_CallFunctionObjArgs(listener, args[0], args[1], args[2], NULL);
    Py_DECREF(listener);
    return result;
}

#define DEFINE_LISTENER(name, event)                                                     \
    static PyObject *name(PyObject *self, PyObject *const *args, Py_ssize_t given)       \
    {                                                                                    \
        return receive((Steps *)self, event, args, given);                                  \
    }

DEFINE_LISTENER(scaled, SCALED)
DEFINE_LISTENER(step_before, STEP_BEFORE)
DEFINE_LISTENER(step_after, STEP_AFTER)
DEFINE_LISTENER(optimizer_before, OPTIMIZER_BEFORE)
DEFINE_LISTENER(optimizer_after, OPTIMIZER_AFTER)
DEFINE_LISTENER(update_before, UPDATE_BEFORE)
DEFINE_LISTENER(update_after, UPDATE_AFTER)

/* listener(name, fallback): return what listens in place of a listener, which is notified where this is not on. */
static PyObject *listener(PyObject *object, PyObject *args)
{
    Steps *self = (Steps *)object;
    const char *name;
    PyObject *fallback;
    if (!PyArg_ParseTuple(args, "sO:listener", &name, &fallback)) return NULL;
    for (int i = 0; i < NUM_LISTENED; i++) {
        if (strcmp(listened_names[i], name)) continue;
        PyObject *before = self->fallback[i];
        Py_INCREF(fallback);
        self->fallback[i] = fallback;
        Py_XDECREF(before);
        return PyObject_GetAttrString(object, name);
    }
    PyErr_Format(PyExc_ValueError, "expected one of what is event, got %s", name);
    return NULL;
}

/* begin(form, dormant, scale, num_losses, is_moved, step, ended_ns): take down iterations like one. */
static PyObject *begin(PyObject *object, PyObject *args)
{
    Steps *self = (Steps *)object;
    PyObject *form, *dormant;
    double scale;
    int num_losses, is_moved;
    long long step, ended_ns;
    if (!PyArg_ParseTuple(args, "OOdipLL:begin", &form, &dormant, &scale, &num_losses, &is_moved,
                          &step, &ended_ns))
        return NULL;
    self->is_on = 0;
    if (self->num_taking) Py_RETURN_NONE; /* somebody goes by the last one yet */
    if (hold(self->form, form, NUM_OF_FORM) < 0 || hold(self->dormant, dormant, NUM_CHANNELS) < 0)
        return NULL;
    for (int i = 0; i < NUM_CHANNELS; i++) {
        PyObject *before = self->subscribers[i];
        Py_INCREF(self->subscribers[i] = subscribers_of(self->channels[i]));
        Py_XDECREF(before);
    }
    self->loss_code = code_of(self->form[DTYPE]);
    for (int i = 0; i < 2; i++) {
        self->address[i] = address_of(self->form[SCALE + i]);
        self->code[i] = code_in(self->form[SCALE + i]);
    }
    if (PyErr_Occurred()) return NULL;
    self->scale = scale;
    self->num_losses = num_losses;
    self->is_moved = is_moved;
    self->step = step;
    self->ended_ns = self->delivered_ns = ended_ns;
    self->thread = PyThread_get_thread_ident();
    self->num = 0;
    memset(&self->open, 0, sizeof self->open);
    self->is_on = 1;
    Py_RETURN_NONE;
}

/* end(): take nothing down any more. Returns what was noted of the open iteration. */
static PyObject *end(PyObject *object, PyObject *unused)
{
    Steps *self = (Steps *)object;
    forget(self);
    return Py_BuildValue("diNi", self->open.loss, self->open.num_losses,
                         PyBool_FromLong(self->open.is_moved), self->open.stage);
}

/* ended(): return what has ended, each with time_ns, duration_s, loss and growth tracker, and how long it
 * took to take it down, in ns. */
static PyObject *ended(PyObject *object, PyObject *unused)
{
    Steps *self = (Steps *)object;
    PyObject *all = PyList_New(self->num);
    for (int i = 0; all && i < self->num; i++) {
        const Step *step = self->steps + i;
        PyObject *row =
            Py_BuildValue("LddL", step->time_ns, step->duration_s, step->loss, step->tracker);
        if (!row || PyList_SetItem(all, i, row) < 0) Py_CLEAR(all);
    }
    return all ? Py_BuildValue("NL", all, self->spent_ns) : NULL;
}

/* drop(num): forget the first of what has ended. */
static PyObject *drop(PyObject *object, PyObject *value)
{
    Steps *self = (Steps *)object;
    long num = PyLong_AsLong(value);
    if (PyErr_Occurred()) return NULL;
    if (num < 0 || num > self->num) {
        PyErr_Format(PyExc_ValueError, "expected 0 to %d, got %ld", self->num, num);
        return NULL;
    }
    self->num -= (int)num;
    memmove(self->steps, self->steps + num, self->num * sizeof *self->steps);
    self->spent_ns = 0;
    self->delivered_ns = self->ended_ns;
    Py_RETURN_NONE;
}

static int traverse(PyObject *object, visitproc visit, void *arg)
{
    Steps *self = (Steps *)object;
    Py_VISIT(Py_TYPE(object));
    for (int i = 0; i < NUM_GIVEN; i++) Py_VISIT(self->given[i]);
    Py_VISIT(self->seen);
    Py_VISIT(self->verdict);
    for (int i = 0; i < NUM_LISTENED; i++) Py_VISIT(self->fallback[i]);
    for (int i = 0; i < NUM_OF_FORM; i++) Py_VISIT(self->form[i]);
    for (int i = 0; i < NUM_CHANNELS; i++) {
        Py_VISIT(self->channels[i]);
        Py_VISIT(self->subscribers[i]);
        Py_VISIT(self->dormant[i]);
    }
    return 0;
}

static int clear(PyObject *object)
{
    Steps *self = (Steps *)object;
    forget(self);
    for (int i = 0; i < NUM_GIVEN; i++) Py_CLEAR(self->given[i]);
    for (int i = 0; i < NUM_LISTENED; i++) Py_CLEAR(self->fallback[i]);
    for (int i = 0; i < NUM_CHANNELS; i++) Py_CLEAR(self->channels[i]);
    return 0;
}

static int init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    Steps *self = (Steps *)object;
    PyObject *given, *channels;
    if (!PyArg_ParseTuple(args, "OOL:Steps", &given, &channels, &self->batch_ns)) return -1;
    return hold(self->given, given, NUM_GIVEN) < 0 ? -1
                                                   : hold(self->channels, channels, NUM_CHANNELS);
}

#define LISTENER(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}
static PyMethodDef methods[] = {
    LISTENER(scaled),
    LISTENER(step_before),
    LISTENER(step_after),
    LISTENER(optimizer_before),
    LISTENER(optimizer_after),
    LISTENER(update_before),
    LISTENER(update_after),
    {"listener", listener, METH_VARARGS, NULL},
    {"begin", begin, METH_VARARGS, NULL},
    {"end", end, METH_NOARGS, NULL},
    {"ended", ended, METH_NOARGS, NULL},
    {"drop", drop, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef members[] = {
    {"is_on", T_BOOL, offsetof(Steps, is_on), READONLY, NULL},
    {"is_due", T_BOOL, offsetof(Steps, is_due), READONLY, NULL},
    {"step", T_LONGLONG, offsetof(Steps, step), READONLY, NULL},
    {"num", T_INT, offsetof(Steps, num), READONLY, NULL},
    {"ended_ns", T_LONGLONG, offsetof(Steps, ended_ns), READONLY, NULL},
    {"next_turn", T_LONGLONG, offsetof(Steps, next_turn), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_methods, methods},   {Py_tp_members, members}, {Py_tp_init, init},
    {Py_tp_traverse, traverse}, {Py_tp_clear, clear},     {Py_tp_dealloc, free_part},
    {0, NULL},
};
static PyType_Spec spec = {"ampwatch.training.native._core.Steps", sizeof(Steps), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

PyObject *make_steps(void)
{
    const struct {
        PyObject **name;
        const char *text;
    } names[] = {
        {&s_numel, "numel"},
        {&s_is_cpu, "is_cpu"},
        {&s_note, "note"},
        {&s_step, "step"},
        {&s_stage, "stage"},
        {&s_found_inf, "found_inf_per_device"},
        {&s_is_dormant, "is_dormant"},
        {&s_param_groups, "param_groups"},
        {&s_lr, "lr"},
        {&s_last_epoch, "last_epoch"},
        {&s_is_stepping, "is_stepping"},
        {&s_is_optimizer_stepping, "is_optimizer_stepping"},
        {&s_scaler, "scaler"},
        {&s_at_boundary, "at_boundary"},
        {&s_settle, "settle"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(*names[i].name = PyUnicode_InternFromString(names[i].text))) return NULL;
    return PyType_FromSpec(&spec);
}

/* prepare_steps(names, of_torch): what is PyTorch's. The names are those of a scaler's attributes: enabled,
 * scale, growth tracker, states of optimizers, and three settings; then Tensor, and what is traced. */
PyObject *prepare_steps(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    PyObject *names[7] = {NULL}, *others[2] = {NULL};
    if (given != 2) {
        PyErr_Format(PyExc_TypeError, "expected 2 arguments, got %zd", given);
        return NULL;
    }
    if (hold(names, args[0], 7) < 0 || hold(others, args[1], 2) < 0) return NULL;
    PyObject **into[] = {&s_enabled,         &s_scale,           &s_tracker,
                         &s_states,          &settings_names[0], &settings_names[1],
                         &settings_names[2], &tensor_type,       &tracing_state};
    for (int i = 0; i < 9; i++) {
        PyObject *before = *into[i];
        *into[i] = i < 7 ? names[i] : others[i - 7];
        Py_XDECREF(before);
    }
    Py_RETURN_NONE;
}
