"""The op census: every ATen op of an iteration, with the dtypes it ran in and where."""

from __future__ import annotations

import math
import weakref
from collections import Counter
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.diagnosis.evidence.iteration import Attention
from ampwatch.diagnosis.evidence.ops import LoneForward, OpCensus, OpKey, OpTally
from ampwatch.guard import is_of_a_signal
from ampwatch.numerics.units.ops import Fallback, OpKind, Phase
from ampwatch.training.devices import is_capturing
from ampwatch.training.hooks import events as on
from ampwatch.training.hooks.channel import Channel, Subscriber
from ampwatch.training.hooks.compiling import ForcedEager, may_compile
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.iteration.governor import Observation
from ampwatch.training.model.module_stack import FOREIGN, ModuleStack
from ampwatch.training.ops.call import OpCall, OpCounts, is_view_of, tensors_among
from ampwatch.training.ops.events import HostRead, Op, OpPlace, OpsBegan, OpsEnded, OpSensor
from ampwatch.training.ops.frames import FramePlaces, runs_elsewhere
from ampwatch.training.ops.info import OpInfo, flop_formulas, op_info
from ampwatch.training.ops.mode import OpMode
from ampwatch.training.private import (
    MAX_NODES_SEEN,
    NAME_OF_OP,
    SEES_COMPILED,
    OpOverload,
    graph_task,
)
from ampwatch.training.sensors.ops.fallbacks import Fallbacks
from ampwatch.wire.records import CensusSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn

    from ampwatch.guard import Guard
    from ampwatch.training.iteration.context import Context

MAX_OPS = 200_000
"""Ops counted in one iteration. A longer one (an evaluation of a whole epoch that no update of the
scaler ends) is cut there, and one with a very long backward at ``MAX_NODES_SEEN`` ops of that."""

HIGHER_ORDER = OpInfo(
    "", OpKind.OTHER, None, (), (), is_ignored=True, is_own=True, has_fp32_policy=bool
)
"""Info of a higher-order op. Compiled code is made of them; ops inside are not seen."""

MAX_CALLS = 10_000
"""Calls of modules in one iteration without an op that is counted, after which observing ends: it
is an evaluation, or a model that only answers."""

ALTERED = frozenset({"_linalg_svd", "_linalg_eigh", "linalg_pinv", "_efficientzerotensor"})
"""Ops that PyTorch computes otherwise while any dispatch mode is on, with other last bits:
singular values or eigenvalues whose vectors nobody needs (``isTensorSubclassLike`` in its C++
code). The pseudoinverse: whether autocast applies inside of it depends on the name it was
called by. And the zeros that forward-mode AD makes without memory: with a mode on, to add a
number to them raises."""

ALTERED_BACKWARD = frozenset({"prod", "linalg_lstsq"})
"""Ops whose backward PyTorch computes otherwise while any dispatch mode is on."""

READ = "_local_scalar_dense"
"""Name of the op by which the host reads a number of a tensor."""

REGION_ELSEWHERE = (Fallback.OTHER_THREAD, Fallback.DEVICE_TYPE)
"""Reasons that prove by themselves that autocast is used."""


class _Route(NamedTuple):
    """The way of the calls of one op."""

    info: OpInfo  # the op
    channel: Channel  # hands them to the sensors that they concern
    with_followers: Channel  # hands them also to those that follow all ops for the time being
    # what these take a call in with that concerns them no further; ``None`` if each call has to be
    # handed on
    prefilters: tuple[Callable[[OpCall], bool], ...] | None


class OpCensusSensor(Sensor):
    """Counts ops in the iterations that are planned, and emits them to other sensors.

    A ``TorchDispatchMode`` sees every op of the thread that trains, backward included, and of
    other threads while they run watched modules. To count, it is on from the first forward of a
    watched module that records gradients to the end of the iteration; for listeners, from its
    beginning. A process that is forked meanwhile inherits it, silent from its first op on.
    PyTorch's global hooks on modules and optimizers show where an op belongs. They are in place
    only in iterations that are observed: with any of them each call of each module takes the slow
    way through PyTorch. The one after modules comes and goes while no other thread is in a module:
    PyTorch walks over these in place where a module has raised, and one that came or went meanwhile
    would replace the user's exception. What runs in several threads at once is followed without hooks.

    Nothing is counted as soon as compiled code runs, unless the user allows that it runs eagerly:
    its ops are a part of what it computes. They are followed anyway, without hooks, and the
    frames they are called from say where they belong; before PyTorch 2.10 not even that, since
    compiled code would run otherwise than without a mode. Nothing is counted once an
    op of ``ALTERED`` was met that ``places/functions.py`` has not noticed before the call. Nothing
    is counted while a CUDA graph is captured, and no op of ampwatch itself ever is.

    Attributes:
        altered: Name of the op because of which nothing is seen any more; empty without.
        uncounted: Name of the function because of which iterations are not seen to their end, and
            not counted; empty without.
        closed: Names of the tensor subclasses whose ops are not seen.

    Cost:
        25 to 60 us an op in a counted iteration, a third to a half of it PyTorch's own. In one that is
        followed and not counted PyTorch's part, and 3 to 8 us where a prefilter is enough for all
        sensors that want the op. Two flags a step in the others.
    """

    name = "census"
    is_thread_safe = True
    # Dormant while no ops are observed: then the ends of modules and steps are of no interest.
    waking = frozenset({"iteration_planned", "compiled_entering", "graph_captured"})
    is_dormant = True

    def __init__(self, context: Context) -> None:
        flop_formulas()  # PyTorch imports much for them: at set-up, not in a step
        settings = context.settings
        self._context = context
        self._bus = bus = context.bus
        self._account = bus.account
        self.guard: Guard = bus.guard(self.name, is_thread_safe=True, sweep=self.failed)
        self._iteration = context.iteration
        self._names = context.names
        self._governor = context.governor
        self._has_peers = context.peers.world_size > 1
        self._traces_all = settings.level == "deep"
        self._may_force_eager = settings.compiled_census == "force_eager"
        # Not `guard.run`: this runs for each op.
        self._calls = Channel(bus.account)
        self._calls.subscribers = (
            Subscriber(self, self.guard, lambda call: self.note(*call), wakes=True),
        )
        self._op = bus.channel(Op)
        self._subscribers: tuple[Subscriber, ...] = ()
        self._routes: tuple[dict[Any, _Route], dict[Any, _Route]] = {}, {}
        self._followers: tuple[OpSensor, ...] = ()
        self._ops_ended = bus.channel(OpsEnded)
        self._host_read = bus.channel(HostRead)
        self._notifies = self._is_quick = False
        self._may_count = True
        self._is_observing = False
        self._forced: ForcedEager | None = None
        self._modules: dict[int, tuple[str, weakref.ref[nn.Module]]] = {}
        self._foreign: set[int] = set()
        self._former: list[OpMode] = []
        self._infos: dict[Any, OpInfo] = {}
        self._stack = ModuleStack()
        self._frames = FramePlaces(context.names)
        self._by_frames = False
        self._regions = context.regions
        self._fallbacks = Fallbacks(context.regions)
        self._counts = OpCounts(self._fallbacks.why)
        self._mode: OpMode | None = None
        self._thread = 0
        self.altered = ""
        self.uncounted = ""
        self.closed: set[str] = set()
        self._clear()

    def _clear(self) -> None:
        self._counts.clear()
        self._stack.clear()
        self._frames.clear()
        self._num_ops = 0
        self._most_in_backward = MAX_OPS
        self._num_calls = 0
        self._is_counting = False
        self._was_forced = False
        self._newest: Phase | None = None
        self._lone: Counter[tuple[str, Fallback, str, str]] = Counter()

    def installed(self) -> None:
        """Begin with the open iteration."""
        self.guard.run(self._begin_planned, self._iteration.step, Attention())

    def failed(self) -> None:
        """Take off the mode and the hooks of the iteration in which it has failed."""
        self.stop()

    def removed(self) -> None:
        """Take off everything, and forget the counts."""
        self.stop()
        self._clear()
        self._frames.forget()
        self._bus.ignore(self, on.ForwardEnded)

    def iteration_planned(self, event: on.IterationPlanned) -> None:
        """Begin to observe the ops of the iteration, if that is planned or asked for."""
        self._begin_planned(event.step, event.attention)

    def _begin_planned(self, step: int, attention: Attention) -> None:
        governor = self._governor
        one_by_one = governor.counts_one_by_one
        counts = one_by_one and Observation.OPS in governor.wanted
        # A failure that no scaler sees leaves nothing to be replayed for, and what other ranks take part
        # in cannot be replayed; so there, and where it costs nobody anything, the opening is followed.
        free = one_by_one and (governor.is_short or (self._has_peers and governor.is_opening))
        follows = self._traces_all or attention.trace or counts or free
        probes = attention.ops or Observation.OPERANDS in governor.wanted
        if follows or (one_by_one and probes):
            self._is_observing = self.begin(step, count=counts, follow=follows)
            self.is_dormant = not self._is_observing
        elif not runs_elsewhere():
            self._bus.ignore(self, on.ForwardEnded)

    def iteration_closed(self, event: on.IterationClosed) -> None:
        """Add the counts to the iteration that has ended."""
        if self._is_observing:
            self._is_observing = False
            iteration = event.iteration
            iteration.census = self.end(iteration.step, iteration.duration_s)

    def not_seen(self) -> Iterator[str]:
        """Yield, in sentences, which ops are not counted."""
        if self._context.counts_around_compiled:
            yield (
                "ops are not counted one by one: compiled code runs, and computes a part of what it"
                " does without ops; profiler windows count them, and"
                ' compiled_census="force_eager" runs counted iterations uncompiled'
            )
        if self.closed:
            classes = ", ".join(sorted(self.closed))
            yield (
                f"ops on tensors of {classes} are not seen: the class does not say which tensors it is"
                " made of (__tensor_flatten__)"
            )
        if name := self._governor.uncountable:
            yield (
                f"ops are not counted one by one any more: {name} was met, which PyTorch computes"
                " otherwise while anybody looks; profiler windows count ops: on a GPU, elsewhere with"
                " window_seconds=600"
            )

    def unfinished(self, step: int) -> OpCensus | None:
        """Return the counts of the open iteration, which will not end."""
        if not self._is_observing:
            return None
        self._is_observing = False
        return self.end(step, math.nan)

    def begin(self, step: int = 0, *, count: bool = True, follow: bool | None = None) -> bool:
        """Begin to observe the ops of iteration ``step``; return whether they will be seen.

        Args:
            step: Index of the iteration.
            count: Whether ops are counted, from the first forward on.
            follow: Whether sensors that get each op are to follow non-finite values; with
                ``None`` they get none.
        """
        self.stop()
        self._clear()
        count = count and not self.uncounted
        # Compiled code is run eagerly to be counted, and for nothing else.
        is_forced = count and self._may_force_eager and may_compile()
        self._by_frames = (self._bus.runs_compiled and not is_forced) or not self._receives_ends()
        if self._by_frames and not runs_elsewhere():
            # Left by an iteration that ran eagerly: what is compiled now would be compiled again without it.
            self._bus.ignore(self, on.ForwardEnded)
        count = count and not self._by_frames
        notifies = follow is not None and bool(self._op.subscribers) and not is_forced
        if self._by_frames and not SEES_COMPILED:
            return False
        if self.altered or not (count or notifies):
            return False
        self._forced = ForcedEager() if is_forced else None
        self._was_forced = is_forced
        self._bus.listen(self, on.AlteredCalled)
        self.is_dormant = False
        ignored = [func for func, info in self._infos.items() if _is_of_nobody(info)]
        self._mode = OpMode(self._note, ignored, self._is_altered, self.closed)
        if self._by_frames:
            self._mode.do_without_hooks()
        self._thread = get_ident()
        # Collected each time: modules are added and replaced while a training runs.
        self._modules = {id(m): (name, weakref.ref(m)) for name, m in self._names.modules()}
        self._foreign = self._bus.ownership.modules_of_others()
        if self._by_frames:
            self._frames.begin()
        else:
            self._bus.listen(self, on.ForwardBegan)
        if is_forced and not is_capturing():
            # Functions that torch.compile has wrapped restore the thread's dispatch state: a mode
            # that is put on inside is forgotten outside.
            self._mode.put_on()
        self._may_count = count
        self._is_quick = notifies and not count and not self._by_frames
        if notifies:
            self._notifies = True
            self._bus.emit(OpsBegan(step, bool(follow)))
            # Averages of weights, metrics and gradients are updated outside of modules.
            if not is_capturing():
                self._mode.put_on()
        return True

    def _receives_ends(self) -> bool:
        """Place the hook after modules, unless another thread may be at the hooks; return whether it is."""
        receives = self._bus.receives(self, on.ForwardEnded)
        if not receives and not runs_elsewhere():
            self._bus.listen(self, on.ForwardEnded)
            receives = True
        return receives

    def end(self, step: int, duration_s: float) -> OpCensus | None:
        """End the iteration; return the counts, ``None`` if there are none.

        Args:
            step: Index of the iteration.
            duration_s: Wall time of the iteration; NaN if unknown. Unit: s.
        """
        self.stop()
        counts = self._counts
        census = None
        tallies = counts.tallies
        if (tallies or self._lone) and not (self.altered or self.uncounted):
            census = OpCensus(
                step=step,
                source=CensusSource.FORCED_EAGER if self._was_forced else CensusSource.DISPATCH,
                tallies=self._judged(tallies),
                autocast_dtypes=tuple(self._fallbacks.autocast_dtypes),
                device_types=frozenset(counts.device_types),
                lone_forwards=[LoneForward(*key, calls) for key, calls in self._lone.items()],
                weight_cast_bytes=counts.weight_cast_bytes,
                activation_bytes=counts.activation_bytes,
                duration_s=duration_s,
            )
        self._clear()
        return census

    def _judged(self, tallies: dict[OpKey, OpTally]) -> dict[OpKey, OpTally]:
        """Return the tallies, without fallbacks where autocast was never seen."""
        if self._fallbacks.autocast_dtypes:
            return tallies
        judged: dict[OpKey, OpTally] = {}
        for key, tally in tallies.items():
            fallback = key.fallback if key.fallback in REGION_ELSEWHERE else Fallback.NONE
            judged.setdefault(key._replace(fallback=fallback), OpTally()).add(tally)
        return judged

    def stop(self) -> None:
        """Observe nothing until the next planned iteration begins."""
        self.is_dormant = not self._is_observing
        self._bus.ignore(self, on.ForwardBegan)
        self._bus.ignore(self, on.AlteredCalled)
        if self._notifies:
            self._notifies = self._is_quick = False
            self._ops_ended.emit(OpsEnded())
        if self._mode is not None:
            self._mode.silence()
            self._former.append(self._mode)
            self._mode = None
        # A mode that is taken off inside of backward comes back: autograd restores the state that
        # its thread had when backward began. So it is silenced, and taken off again later.
        for mode in self._former:
            mode.take_off()
        self._former = [mode for mode in self._former if mode.threads]
        if self._forced is not None:
            self._forced.end()
            self._forced = None
        self._modules.clear()
        self._foreign.clear()

    def compiled_entering(self, _event: on.CompiledEntering) -> None:
        """Do without hooks from now on: what is compiled must not be compiled with them."""
        if self._forced is not None:  # it runs eagerly in this iteration
            return
        self._bus.ignore(self, on.ForwardEnded)
        for mode in (*self._former, *([self._mode] if self._mode is not None else ())):
            mode.do_without_hooks()
        self._may_count = self._is_counting = False
        self._counts.clear()
        if not (SEES_COMPILED and self._notifies):
            self.stop()
            return
        self._bus.ignore(self, on.ForwardBegan)
        self._stack.clear()
        self._is_quick = False
        self._by_frames = True
        self._frames.begin()

    def graph_captured(self, event: on.GraphCaptured) -> None:
        """Note which modules the nodes of a graph belong to."""
        if SEES_COMPILED:
            self._frames.learn(event.graph)

    def altered_called(self, event: on.AlteredCalled) -> None:
        """Stop observing this iteration, and count none later."""
        if self._mode is not None:
            self.uncounted = self._governor.uncountable = event.name
            self.stop()

    def optimizer_stepping(self, _event: on.OptimizerStepping) -> None:
        """Take note that what follows belongs to an optimizer."""
        self._newest = Phase.OPTIMIZER

    def _note(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
        if self._account.is_mine:
            return
        if not (self._is_quick and self._prefilter(func, args, kwargs, out)):
            self._calls.emit((func, args, kwargs, out))

    def _prefilter(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> bool:
        """Whether no sensor wants more of a call than the prefilter."""
        in_backward = graph_task() != -1
        route = self._routes[in_backward].get(func)
        if (
            route is None
            or self._op.subscribers is not self._subscribers
            or self._num_ops + 1 >= (self._most_in_backward if in_backward else MAX_OPS)
            or (in_backward and self._newest is not Phase.BACKWARD)  # its first op begins a phase
            or is_capturing()  # nothing is observed from here on
        ):
            return False
        if not self._is_prefiltered(route, OpCall(func, route.info, args, kwargs, out)):
            return False
        self._num_ops += 1
        return True

    def _is_prefiltered(self, route: _Route, call: OpCall) -> bool:
        """Whether no sensor that wants an op wants more of this call of it than the prefilter."""
        if route.prefilters is None:
            return False
        try:
            for sensor in self._followers:
                if sensor.follows_all:
                    return False
            for prefilter in route.prefilters:
                if not prefilter(call):
                    return False
        except Exception as error:  # the fail-open boundary: the sensor's own guard meets it again
            if is_of_a_signal(error):
                raise
            return False
        return True

    def forward_began(self, event: on.ForwardBegan) -> None:
        """Have the ops of a watched module observed."""
        module = event.module
        known = self._modules.get(id(module))
        if known is None or known[1]() is not module:
            if id(module) in self._foreign:
                self._stack.enter(id(module), FOREIGN)
            return
        self._num_calls += 1
        is_idle = not self._num_ops and self._num_calls > MAX_CALLS and not self._notifies
        if is_idle or self._num_ops >= MAX_OPS or (self._mode and self._mode.is_inherited):
            self.stop()
            return
        self._bus.is_optimizer_stepping = False  # a step that has raised did not end
        is_outermost = self._stack.enter(id(module), known[0])
        if is_outermost:
            self._regions.update()
        if graph_task() == -1:
            self._fallbacks.called(known[0])
        if is_outermost:
            if torch.is_grad_enabled():
                self._newest = Phase.FORWARD
            lone = self._fallbacks.why_lone(module, known[0])
            if lone is not None:
                reason, region = lone
                self._lone[known[0], reason, region.dtype, region.device_type] += 1
            self._put_on()

    def forward_ended(self, event: on.ForwardEnded) -> None:
        """Leave a module that has run, or has raised."""
        module = event.module
        if (
            self._mode is None
            or (id(module) not in self._modules and id(module) not in self._foreign)
            or not self._stack.leave(id(module))
        ):
            return
        me = get_ident()
        mode = self._mode
        # In other threads than the one that trains the mode is on for modules only. Threads of
        # autograd inherit it from the thread that called backward, and are not in ``threads``.
        if mode is not None and me != self._thread and me in mode.threads:
            mode.take_off()

    def _put_on(self) -> None:
        """Put the mode on in this thread, if its ops may be seen."""
        if self._mode is not None and torch.is_grad_enabled() and not is_capturing():
            self._is_counting = self._may_count
            self._mode.put_on()

    def note(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
        """Take in an op: ``func(*args, **kwargs)`` has returned ``out``."""
        info = self._infos.get(func)
        if info is None:
            info = self._learn(func)
        is_view = info.is_ignored or (info.may_copy and is_view_of(out, args[0]))
        most = self._most()
        if is_view or self._num_ops >= most:
            self._note_read(OpCall(func, info, args, kwargs, out))
            return
        if is_capturing():
            # Ops that read values would be captured along with the user's own.
            self.stop()
            return
        self._num_ops += 1
        if self._num_ops == most and self._mode is not None:
            self._num_ops = MAX_OPS
            self._mode.silence()
        call = OpCall(func, info, args, kwargs, out)
        if self._by_frames:
            self._note_by_frames(call)
            return
        phase = self._phase(info.name, args, self._stack.is_inside(), self._stack.has_grad())
        module = self._module(phase)
        if module == FOREIGN:
            return
        # Not before the first forward: until then data is prepared, and other models may run.
        if self._is_counting:
            device_type = self._counts.count(call, phase, module)
            if device_type and phase is Phase.FORWARD:
                self._fallbacks.see(device_type)
        if self._notifies:
            self._notify(call, phase, module)

    def _notify(self, call: OpCall, phase: Phase, module: str) -> None:
        """Tell those whom the op concerns, unless a prefilter is enough; where nothing is counted they had theirs."""
        route = self._route(call.func, call.info, in_backward=phase is Phase.BACKWARD)
        if not (self._is_counting and self._is_prefiltered(route, call)):
            self._emit(Op(call, OpPlace(phase, module, self._stack.is_inside())), route)

    def _most(self) -> int:
        """Return the number of ops at which the iteration is cut."""
        if not _is_backward():
            return MAX_OPS
        if self._newest is not Phase.BACKWARD:
            self._most_in_backward = min(MAX_OPS, self._num_ops + MAX_NODES_SEEN)
        return self._most_in_backward

    def _note_read(self, call: OpCall) -> None:
        if call.info.name == READ and self._notifies and not is_capturing():
            self._host_read.emit(HostRead(call))

    def _note_by_frames(self, call: OpCall) -> None:
        place = self._frames.place(call, is_backward=_is_backward())
        phase = self._phase(call.info.name, call.args, place.is_inside, place.has_grad)
        if place.is_inside and phase is not Phase.BACKWARD and torch.is_grad_enabled():
            self._newest = Phase.FORWARD
        where = OpPlace(
            phase,
            place.module,
            place.is_inside,
            place.source,
            self._frames.is_fused,
            place.unseen,
            place.is_compiled,
        )
        route = self._route(call.func, call.info, in_backward=phase is Phase.BACKWARD)
        self._emit(Op(call, where), route)

    def _route(self, func: Any, info: OpInfo, *, in_backward: bool) -> _Route:
        """Return where the calls of one op go: to the sensors that it concerns."""
        subscribers = self._op.subscribers
        if subscribers is not self._subscribers:
            self._subscribers = subscribers
            self._routes = {}, {}
            # Few ever do, and asking the others at each call would cost more than it saves.
            self._followers = tuple(
                sensor
                for sensor, *_ in subscribers
                if isinstance(sensor, OpSensor)
                and type(sensor).follows_all is not OpSensor.follows_all
            )
        routes = self._routes[in_backward]
        route = routes.get(func)
        if route is None:
            route = routes[func] = self._new_route(info, in_backward=in_backward)
        return route

    def _new_route(self, info: OpInfo, *, in_backward: bool) -> _Route:
        concerned, all_of_them = Channel(self._account), Channel(self._account)
        prefilters: list[Callable[[OpCall], bool]] = []
        is_plain = not info.is_collective
        for subscriber in self._subscribers:
            sensor = subscriber.sensor
            wants = True
            if not isinstance(sensor, OpSensor):
                is_plain = False
            elif wants := sensor.wants_op(info, in_backward=in_backward):
                # The last comes first: what follows values is the dearest, and stands before others.
                prefilters.insert(0, sensor.prefilter)
            if wants:
                concerned.subscribers = (*concerned.subscribers, subscriber)
            if wants or sensor in self._followers:
                all_of_them.subscribers = (*all_of_them.subscribers, subscriber)
        return _Route(info, concerned, all_of_them, tuple(prefilters) if is_plain else None)

    def _emit(self, op: Op, route: _Route) -> None:
        follows = any(sensor.follows_all for sensor in self._followers)
        (route.with_followers if follows else route.channel).emit(op)

    def _learn(self, func: Any) -> OpInfo:
        is_plain = isinstance(func, OpOverload)
        info = self._infos[func] = op_info(func) if is_plain else HIGHER_ORDER
        if _is_of_nobody(info) and self._mode is not None:
            self._mode.ignore(func)
        return info

    def _is_altered(self, func: Any, args: Sequence[Any]) -> bool | None:
        name = getattr(func, NAME_OF_OP, "")
        if name in ALTERED_BACKWARD and not any(t.requires_grad for t in tensors_among(args)):
            return None
        if name in ALTERED or name in ALTERED_BACKWARD:
            self.altered = self._governor.uncountable = name
        return bool(self.altered)

    def _phase(self, op: str, args: Sequence[Any], is_inside: bool, has_grad: bool) -> Phase:  # noqa: FBT001 - private
        if _is_backward():
            self._newest = Phase.BACKWARD
            return Phase.BACKWARD
        if is_inside:
            return Phase.FORWARD if has_grad else Phase.EVAL
        # A closure runs modules, and backward, inside the step of its optimizer.
        if op.startswith("_amp_") or (
            self._bus.is_optimizer_stepping and self._newest is not Phase.FORWARD
        ):
            return Phase.OPTIMIZER
        # Between backward and the optimizer are clipping, and what the scaler does.
        is_between = self._newest in (Phase.BACKWARD, Phase.OPTIMIZER)
        if not has_grad:
            return Phase.OPTIMIZER if is_between else Phase.EVAL
        is_loss = not is_between or any(t.requires_grad for t in tensors_among(args))
        return Phase.FORWARD if is_loss else Phase.OPTIMIZER

    def _module(self, phase: Phase) -> str:
        # A forward pass that backward repeats (checkpointing) runs in its modules.
        if self._stack.is_inside():
            return self._stack.name()
        if phase is Phase.BACKWARD:
            return self._stack.name_of_node(self._thread)
        # An optimizer that is said to step is this training's, whatever has run before.
        is_foreign = self._stack.is_foreign() and not self._bus.is_optimizer_stepping
        return FOREIGN if is_foreign else ""


def _is_of_nobody(info: OpInfo) -> bool:
    """Whether the calls of an op are neither counted nor events."""
    return info.is_ignored and info.name != READ


def _is_backward() -> bool:
    # The id of the running backward, in whichever thread it runs this node; -1 outside of one.
    return graph_task() != -1
