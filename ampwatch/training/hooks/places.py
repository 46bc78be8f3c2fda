"""Every place where ampwatch replaces or hooks something of torch while it watches: one list.

A place is put on when a sensor wants one of its events, and taken off with the last of them.
``docs/what-is-patched.md`` is printed from this list (`training/patched.py`).
"""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.modules import module as module_state
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.utils import clip_grad
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ampwatch.training.devices import (
    capture_began,
    capture_ended,
    captures,
    graph_classes,
    is_unheard,
)
from ampwatch.training.hooks.compiling import is_traced, keep_from_compiler, uncompiled
from ampwatch.training.hooks.ends import Ends
from ampwatch.training.hooks.entering import Entrance
from ampwatch.training.hooks.events import (
    AlteredCalled,
    AutocastEntering,
    AutocastLeft,
    BackwardBegan,
    BackwardEnded,
    BatchArrived,
    BatchAwaited,
    ClipBegan,
    ClipEnded,
    ClippingByNorm,
    ClippingByValue,
    CollectiveBegan,
    CollectiveWaited,
    CommunicationArrived,
    CommunicationAwaited,
    CommunicationAwaitedWithin,
    CompileCalled,
    CompiledEntering,
    EndCalled,
    EndReturned,
    ForwardBegan,
    ForwardEnded,
    ForwardReturned,
    GraphCaptured,
    IterationClosed,
    OptimizerLoaded,
    OptimizerStepped,
    OptimizerStepping,
    RootCalled,
    RootReturned,
    SavedTensorsHooked,
    Scaled,
    ScaleRead,
    ScalerLoaded,
    StepBegan,
    StepEnded,
    TensorsSwapping,
    Unscaled,
    Unscaling,
    Updated,
    Updating,
    Zeroed,
)
from ampwatch.training.hooks.roots import RootCalls
from ampwatch.training.hooks.taps import NOT_TAKEN, listen, listen_to_function
from ampwatch.training.private import (
    BACKENDS,
    BEGINS_GROUP,
    CLIP,
    CLIP_BY_VALUE,
    CLIP_NORM,
    ENDS_GROUP,
    FORWARD_HOOKS,
    IS_ENABLED,
    LOADER_ITERATOR,
    LOADER_WORKERS,
    graph_task,
    tracing_state,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ampwatch.guard import Guard
    from ampwatch.training.hooks.bus import Bus

GradScaler = torch.amp.GradScaler

is_compiling = torch.compiler.is_compiling

ON_DEMAND = frozenset(
    {ForwardBegan, ForwardReturned, ForwardEnded, RootCalled, RootReturned, AlteredCalled}
)
"""Events whose place is not free while it is on: sensors ask for them when they need them."""

EACH_STEP = (
    AutocastEntering,
    AutocastLeft,
    BackwardBegan,
    IterationClosed,
    OptimizerStepped,
    Scaled,
    StepBegan,
    StepEnded,
    Unscaled,
    Unscaling,
    Updated,
    Updating,
    Zeroed,
)
"""Events of each step of a plain training, which sensors that rest go without."""

REPLACED = "replaced method"
FUNCTION = "replaced function"
HOOK = "PyTorch's hook"


class Handle(Protocol):
    """Takes something off."""

    def remove(self) -> None:
        """Take it off. Idempotent."""


@dataclass(frozen=True)
class Place:
    """Something of torch that is replaced or hooked while a sensor wants to know of it.

    Attributes:
        what: The callable, as users know it.
        how: ``REPLACED``, ``FUNCTION`` or ``HOOK``.
        events: What sensors are told.
        put_on: Puts it on for a bus, and adds what takes it off to a list.
        when: When it is there, in words for the documentation.
    """

    what: str
    how: str
    events: tuple[type, ...]
    put_on: Callable[[Bus, list[Any]], None]
    when: str = "always"


# What is placed outside of the bus, by those who plant faults or have an end of their own.


def before_any_forward(call: Callable[..., None]) -> Handle:
    """Have ``call(module, args)`` called before every forward of every module."""
    return register_module_forward_pre_hook(call)


def after_any_forward_first(call: Callable[..., Any]) -> Handle:
    """Have ``call(module, args, output)`` called after every forward, ahead of all other hooks.

    What it returns, unless ``None``, is the output from there on.
    """
    handle = register_module_forward_hook(call)
    hooks: Any = getattr(module_state, FORWARD_HOOKS, {})
    if handle.id in hooks:
        hooks.move_to_end(handle.id, last=False)
    return handle


def before_any_step(call: Callable[..., None]) -> Handle:
    """Have ``call(optimizer, args, kwargs)`` called before every step of every optimizer."""
    return register_optimizer_step_pre_hook(call)


def before_node(node: Any, call: Callable[..., Any]) -> Handle:
    """Have ``call(gradients)`` called before a node of a graph runs in backward."""
    handle: Handle = node.register_prehook(call)
    return handle


def _optimizer(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the optimizer that a method of a scaler is called with; ``None`` is the user's error."""
    return args[0] if args else kwargs.get("optimizer")


def _definer(kind: type, name: str) -> type:
    return next(c for c in kind.__mro__ if name in c.__dict__)


def _on_scaler(
    bus: Bus,
    handles: list[Any],
    name: str,
    *,
    before: Callable[..., None] | None = None,
    after: Callable[..., None] | None = None,
    returned: Callable[..., None] | None = None,
    failed: Callable[..., None] | None = None,
) -> None:
    """Replace a method for all scalers: another one may take over from the watched one.

    A class of the user's that has a method of its own, which may call that of GradScaler or may
    not, is heard once: at its own.
    """
    base = _definer(GradScaler, name)
    own = base if bus.scaler is None else _definer(type(bus.scaler), name)
    if own is base:
        handles.append(
            listen(base, name, before=before, after=after, returned=returned, failed=failed)
        )
        return
    watched = bus.scaler
    handles.append(
        listen(
            own,
            name,
            instance=watched,
            before=before,
            after=after,
            returned=returned,
            failed=failed,
        )
    )

    def others(advice: Callable[..., None] | None) -> Callable[..., None] | None:
        if advice is None:
            return None
        return lambda scaler, *rest: None if scaler is watched else advice(scaler, *rest)

    handles.append(
        listen(base, name, before=others(before), after=others(after), returned=others(returned))
    )


def _scale(bus: Bus, handles: list[Any]) -> None:
    scaled, others = bus.channel(Scaled), bus.of_other_scalers(Scaled)

    def returned(scaler: GradScaler, result: object, args: Any, kwargs: Any) -> None:
        # The tap has seen that nothing is compiled.
        if tracing_state() is None:
            outputs = args[0] if args else kwargs.get("outputs")
            event = Scaled(scaler, outputs, result)
            if scaler is bus.scaler:
                scaled.emit(event)
                return
            # As a rule that of another training, watched or not; or the one that nobody handed in.
            bus.ownership.has_company = True
            if not bus.is_graph_of_another(_listed(outputs)):
                others.emit(event)

    _on_scaler(bus, handles, "scale", returned=returned)


def _get_scale(bus: Bus, handles: list[Any]) -> None:
    channel = bus.channel(ScaleRead)

    def before(scaler: GradScaler, _args: Any, _kwargs: Any) -> None:
        if scaler is bus.scaler:
            channel.emit(ScaleRead(scaler))

    _on_scaler(bus, handles, "get_scale", before=before)


def _unscale(bus: Bus, handles: list[Any]) -> None:
    unscaling, unscaled = bus.channel(Unscaling), bus.channel(Unscaled)

    # scaler.step unscales as well; then the step is what sensors are told of.
    def before(scaler: GradScaler, args: Any, kwargs: Any) -> None:
        if scaler is bus.scaler and not bus.is_stepping:
            optimizer = _optimizer(args, kwargs)
            if optimizer is not None:
                bus.note((bus.now(), get_ident(), Unscaling, 0))
                unscaling.emit(Unscaling(scaler, optimizer))

    def after(scaler: GradScaler, args: Any, kwargs: Any) -> None:
        if scaler is bus.scaler and not bus.is_stepping:
            bus.note((bus.now(), get_ident(), Unscaled, 0))
            unscaled.emit(Unscaled(scaler, _optimizer(args, kwargs)))

    _on_scaler(bus, handles, "unscale_", before=before, after=after)


def _step(bus: Bus, handles: list[Any]) -> None:
    began, ended = bus.channel(StepBegan), bus.channel(StepEnded)
    others_began, others_ended = bus.of_other_scalers(StepBegan), bus.of_other_scalers(StepEnded)

    def before(scaler: GradScaler, args: Any, kwargs: Any) -> None:
        optimizer = _optimizer(args, kwargs)
        if optimizer is None:
            return  # the call is about to raise
        event = StepBegan(scaler, optimizer)
        if scaler is not bus.scaler:
            others_began.emit(event)
            # It may have taken over with this very step.
            if scaler is not bus.scaler:
                return
        bus.note((bus.now(), get_ident(), StepBegan, 0))
        began.emit(event)
        # What step() itself reads: a method of the user's may raise, and not because of the user.
        bus.is_stepping = getattr(scaler, IS_ENABLED, True)

    def after(scaler: GradScaler, args: Any, kwargs: Any) -> None:
        channel = others_ended
        if scaler is bus.scaler:
            bus.note((bus.now(), get_ident(), StepEnded, 0))
            bus.is_stepping = False
            channel = ended
        if channel.subscribers:
            channel.emit(StepEnded(scaler, _optimizer(args, kwargs)))

    def failed(scaler: GradScaler) -> None:
        if scaler is bus.scaler:
            bus.is_stepping = False

    _on_scaler(bus, handles, "step", before=before, after=after, failed=failed)


def _update(bus: Bus, handles: list[Any]) -> None:
    updating, updated = bus.channel(Updating), bus.channel(Updated)
    others = bus.of_other_scalers(Updating)

    def before(scaler: GradScaler, _args: Any, _kwargs: Any) -> None:
        if scaler is bus.scaler:
            updating.emit(Updating(scaler))
        else:
            others.emit(Updating(scaler))

    def after(scaler: GradScaler, args: Any, kwargs: Any) -> None:
        if scaler is bus.scaler:
            updated.emit(
                Updated(scaler, (args[0] if args else kwargs.get("new_scale")) is not None)
            )
            if bus.at_boundary:
                bus.settle()

    _on_scaler(bus, handles, "update", before=before, after=after)


def _ends(bus: Bus, handles: list[Any]) -> None:
    if bus.loss_scaler is not None:
        Ends(bus, bus.loss_scaler, handles)


def _load_scaler(bus: Bus, handles: list[Any]) -> None:
    loaded, others = bus.channel(ScalerLoaded), bus.of_other_scalers(ScalerLoaded)

    def after(scaler: GradScaler, _args: Any, _kwargs: Any) -> None:
        (loaded if scaler is bus.scaler else others).emit(ScalerLoaded(scaler))

    _on_scaler(bus, handles, "load_state_dict", after=after)


def _load_optimizer(bus: Bus, handles: list[Any]) -> None:
    channel = bus.channel(OptimizerLoaded)

    def after(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        channel.emit(OptimizerLoaded(optimizer))

    handles.append(listen(Optimizer, "load_state_dict", after=after))


def _optimizer_step(bus: Bus, handles: list[Any]) -> None:
    # PyTorch's global hooks, not those of an instance: they find optimizers made after
    # ``monitor()`` as well and leave no trace in an optimizer that is copied. They do not tell
    # skipped steps from applied ones (fused optimizers are called for both).
    stepping, stepped = bus.channel(OptimizerStepping), bus.channel(OptimizerStepped)
    outermost: int | None = None
    begun: set[int] = set()

    @uncompiled
    def before(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        nonlocal outermost
        # A step that is being captured must not get our code into its graph.
        if (captures and is_unheard()) or bus.is_of_another(optimizer):
            return
        if outermost is None or id(optimizer) in begun:
            # A step that raised never returned: what begins again is not inside of it.
            outermost = id(optimizer)
            begun.clear()
        begun.add(id(optimizer))
        bus.is_optimizer_stepping = True
        bus.note((bus.now(), get_ident(), OptimizerStepping, 0))
        if stepping.subscribers:
            stepping.emit(OptimizerStepping(optimizer))

    @uncompiled
    def after(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        nonlocal outermost
        if (captures and is_unheard()) or bus.is_of_another(optimizer):
            return
        is_outermost = outermost == id(optimizer)
        if is_outermost:
            outermost = None
            begun.clear()
            bus.note((bus.now(), get_ident(), OptimizerStepped, 0))
        bus.is_optimizer_stepping = False
        stepped.emit(OptimizerStepped(optimizer, bus.is_stepping, is_outermost))
        if bus.at_boundary:
            bus.settle()

    handles.append(register_optimizer_step_pre_hook(before))
    handles.append(register_optimizer_step_post_hook(after))


def _zero_grad(bus: Bus, handles: list[Any]) -> None:
    channel = bus.channel(Zeroed)

    def after(owner: Optimizer | nn.Module, _args: Any, _kwargs: Any) -> None:
        if not bus.is_of_another(owner):
            channel.emit(Zeroed(owner))

    handles.append(listen(Optimizer, "zero_grad", after=after))
    handles.append(listen(nn.Module, "zero_grad", after=after))


BY_VALUE = "clip_grad_value_"


def _clip(bus: Bus, handles: list[Any]) -> None:
    # What is replaced is what the public functions look up when they are called: so they are
    # heard also where a user has imported them by name.
    by_norm, by_value = bus.channel(ClippingByNorm), bus.channel(ClippingByValue)

    def before_norm(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if tracing_state() is not None:
            return
        limit = args[1] if len(args) > 1 else kwargs.get("max_norm")
        norm = args[2] if len(args) > 2 else kwargs.get("total_norm")
        by_norm.emit(ClippingByNorm(args[0] if args else kwargs.get("parameters"), limit, norm))

    def before_grouping(args: tuple[Any, ...], _kwargs: Any) -> None:
        # All of them group gradients; clipping by value has no function of its own to call.
        caller = sys._getframe(2)  # noqa: SLF001 - behind the tap; the only way
        if args and caller.f_code.co_name == BY_VALUE and tracing_state() is None:
            by_value.emit(ClippingByValue(args[0][0], caller.f_locals.get("clip_value")))

    if hasattr(clip_grad, CLIP):
        names = [(clip_grad, CLIP), (nn.utils, "clip_grads_with_norm_")]
    else:  # a version in which the function is in one piece
        names = [(clip_grad, "clip_grad_norm_"), (nn.utils, "clip_grad_norm_")]
    for module, name in names:
        if hasattr(module, name):
            handles.append(listen_to_function(module, name, before=before_norm))
    if hasattr(clip_grad, CLIP_BY_VALUE):
        handles.append(listen_to_function(clip_grad, CLIP_BY_VALUE, before=before_grouping))


def _batches(bus: Bus, handles: list[Any]) -> None:
    # Where the first DataLoader is made its module has been imported: by torch itself.
    if LOADER_ITERATOR is None:
        return

    def before(loader: Any, _args: Any, _kwargs: Any) -> None:
        # From where PyTorch has put it: a class of the user's may have a property of the name.
        workers = vars(loader).get(LOADER_WORKERS, -1)
        bus.note((bus.now(), get_ident(), BatchAwaited, workers))

    def after(_loader: Any, _args: Any, _kwargs: Any) -> None:
        bus.note((bus.now(), get_ident(), BatchArrived, 0))

    def failed(_loader: Any) -> None:
        bus.note((bus.now(), get_ident(), BatchArrived, 0))

    handles.append(listen(LOADER_ITERATOR, "__next__", before=before, after=after, failed=failed))


def _communication(bus: Bus, handles: list[Any]) -> None:
    if not torch.distributed.is_available():
        return

    def before(_work: Any, _args: Any, _kwargs: Any) -> None:
        is_within = graph_task() != -1
        kind = CommunicationAwaitedWithin if is_within else CommunicationAwaited
        bus.note((bus.now(), get_ident(), kind, 0))

    def after(_work: Any, _args: Any, _kwargs: Any) -> None:
        bus.note((bus.now(), get_ident(), CommunicationArrived, 0))

    def failed(_work: Any) -> None:
        bus.note((bus.now(), get_ident(), CommunicationArrived, 0))

    work = torch.distributed.Work
    handles.append(listen(work, "wait", before=before, after=after, failed=failed))


TIMED_CLIPS = (CLIP_NORM, CLIP, "clip_grad_value_")
"""Functions of ``torch.nn.utils.clip_grad`` whose time is that of clipping: the first two are what
``clip_grad_norm_`` consists of, and looks up when it is called."""


def _clip_times(bus: Bus, handles: list[Any]) -> None:
    def before(_args: Any, _kwargs: Any) -> None:
        if tracing_state() is None:
            bus.note((bus.now(), get_ident(), ClipBegan, 0))

    def after(_args: Any, _kwargs: Any) -> None:
        bus.note((bus.now(), get_ident(), ClipEnded, 0))

    def failed() -> None:
        bus.note((bus.now(), get_ident(), ClipEnded, 0))

    places = [(clip_grad, name) for name in TIMED_CLIPS]
    places += [(nn.utils, "get_total_norm"), (nn.utils, "clip_grads_with_norm_")]
    places += [(nn.utils, "clip_grad_value_")]
    for module, name in places:
        if hasattr(module, name):
            handles.append(
                listen_to_function(module, name, before=before, after=after, failed=failed)
            )


def _timed_backward(bus: Bus) -> Callable[..., Any]:
    """Return what makes a call of ``backward`` of which only the moments are wanted, in few lines.

    In the middle of a step the caches have forgotten our code: it is what is run that costs.
    """
    channel, ownership = bus.channel(BackwardBegan), bus.ownership

    def around(original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        # As a rule all sensors rest.
        if channel.subscribers or ownership.has_company or ownership.has_others:
            return NOT_TAKEN
        if bus.may_compile or graph_task() != -1:
            return NOT_TAKEN
        bus.note((bus.now(), get_ident(), BackwardBegan, 0))
        result = original(*args, **kwargs)
        bus.note((bus.now(), get_ident(), BackwardEnded, 0))
        return result

    return around


def _backward(bus: Bus, handles: list[Any]) -> None:
    # Every Tensor.backward goes through torch.autograd.backward. One within another one is part
    # of that: activation checkpointing computes its piece of the forward pass again there.
    channel = bus.channel(BackwardBegan)
    # By thread what is to be called at the end of the backward that is running; of another training's
    # nothing is told.
    running: dict[int, Sequence[tuple[Guard, Callable[[], object]]] | None] = {}

    def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if graph_task() != -1 or tracing_state() is not None:
            return
        me = get_ident()
        running.pop(me, None)
        is_alone = not running
        running[me] = None
        roots = _listed(args[0] if args else kwargs.get("tensors"))
        if bus.is_graph_of_another(roots):
            return
        bus.note((bus.now(), me, BackwardBegan, 0))
        given = _listed(args[1] if len(args) > 1 else kwargs.get("grad_tensors"))
        running[me] = channel.emit(BackwardBegan(roots, given, is_alone))

    def after(_args: Any, _kwargs: Any) -> None:
        if graph_task() != -1:
            return
        me = get_ident()
        ends = running.pop(me, None)
        if ends is not None:
            bus.note((bus.now(), me, BackwardEnded, 0))
            for guard, end in ends:
                guard.run(end)

    def failed() -> None:
        if graph_task() == -1:
            running.pop(get_ident(), None)

    handles.append(
        listen_to_function(
            torch.autograd,
            "backward",
            before=before,
            after=after,
            failed=failed,
            around=_timed_backward(bus),
        )
    )


def _listed(given: object) -> tuple[Any, ...]:
    if given is None:
        return ()
    return tuple(given) if isinstance(given, (list, tuple)) else (given,)


def _autocast(bus: Bus, handles: list[Any]) -> None:
    entering, left = bus.channel(AutocastEntering), bus.channel(AutocastLeft)

    def before(region: torch.autocast, _args: Any, _kwargs: Any) -> None:
        entering.emit(AutocastEntering(region))

    def after(_region: torch.autocast, _args: Any, _kwargs: Any) -> None:
        left.emit(AutocastLeft())

    handles.append(listen(torch.autocast, "__enter__", before=before))
    handles.append(listen(torch.autocast, "__exit__", after=after))


def _backends() -> list[type]:
    # torch.compile itself may have been imported by name; and PyTorch warns whoever has hooks on
    # all modules when something compiled runs.
    return [getattr(torch, name) for name in BACKENDS if hasattr(torch, name)]


def _compile(bus: Bus, handles: list[Any]) -> None:
    called = bus.channel(CompileCalled)
    entrance = Entrance(bus, handles)

    def before(backend: Any, args: Any, kwargs: Any) -> None:
        bus.compile_called()
        called.emit(CompileCalled())
        entrance.compile_called(backend, args, kwargs)

    handles += [listen(backend, "__init__", before=before) for backend in _backends()]


def _capture(bus: Bus, handles: list[Any]) -> None:
    captured = bus.channel(GraphCaptured)

    def before(_backend: Any, args: Any, _kwargs: Any) -> None:
        if len(args) > 1:  # PyTorch passes both by position
            captured.emit(GraphCaptured(*args[:2]))

    handles += [
        listen(backend, "__call__", before=before, always_heard=True) for backend in _backends()
    ]


def _keep_from_compiler(_bus: Bus, handles: list[Any]) -> None:
    # Now, if the compiler is there already; else whoever calls torch.compile has just imported it.
    keep_from_compiler()

    def before(_backend: object, _args: Any, _kwargs: Any) -> None:
        keep_from_compiler()

    handles += [listen(backend, "__init__", before=before) for backend in _backends()]


class _ForgetCaptures:
    """Forgets the captures when no monitor listens any more: their ends would go unheard."""

    num_listening: ClassVar[int] = 0

    def __init__(self) -> None:
        _ForgetCaptures.num_listening += 1

    def remove(self) -> None:
        _ForgetCaptures.num_listening -= 1
        if not self.num_listening:
            captures.clear()


def _swap(bus: Bus, handles: list[Any]) -> None:
    channel = bus.channel(TensorsSwapping)

    def before(_args: Any, _kwargs: Any) -> None:
        channel.emit(TensorsSwapping())

    handles.append(listen_to_function(torch.utils, "swap_tensors", before=before))


def _graph(_bus: Bus, handles: list[Any]) -> None:
    def before(graph: object, _args: Any, _kwargs: Any) -> None:
        capture_began(graph)

    def after(graph: object, _args: Any, _kwargs: Any) -> None:
        capture_ended(graph)

    handles.append(_ForgetCaptures())
    for kind in graph_classes():
        handles.append(
            listen(kind, "capture_begin", before=before, failed=capture_ended, always_heard=True)
        )
        handles.append(
            listen(kind, "capture_end", after=after, failed=capture_ended, always_heard=True)
        )


def _before_forward(bus: Bus, handles: list[Any]) -> None:
    channel = bus.channel(ForwardBegan)

    def began(module: nn.Module, args: Any) -> None:
        # What is traced or compiled must not get our code into its graph.
        if not is_traced():
            channel.emit(ForwardBegan(module, args))

    handles.append(register_module_forward_pre_hook(began))


def _after_forward(bus: Bus, handles: list[Any]) -> None:
    channel = bus.channel(ForwardReturned)
    # Once: the place comes and goes with the iterations whose outputs are measured.
    of_others = bus.ownership.modules_of_others()

    def returned(module: nn.Module, args: Any, output: Any) -> None:
        if id(module) not in of_others and not is_traced():
            channel.emit(ForwardReturned(module, args, output))

    handles.append(register_module_forward_hook(returned))


def _end_of_forward(bus: Bus, handles: list[Any]) -> None:
    channel = bus.channel(ForwardEnded)

    def ended(module: nn.Module, _args: Any, _output: Any) -> None:
        if not is_traced():
            channel.emit(ForwardEnded(module))

    handles.append(register_module_forward_hook(ended, always_call=True))


def _saved_tensors(bus: Bus, handles: list[Any]) -> None:
    channel = bus.channel(SavedTensorsHooked)

    def before(_hooks: Any, _args: Any, _kwargs: Any) -> None:
        channel.emit(SavedTensorsHooked())

    handles.append(listen(torch.autograd.graph.saved_tensors_hooks, "__enter__", before=before))


def _roots(bus: Bus, handles: list[Any]) -> None:
    handles.append(RootCalls(bus, bus.models(), settled=bus.is_compiling_settled))


# PyTorch computes these otherwise while any dispatch mode is on. They decide above the dispatcher
# whether anybody needs the vectors, and isTensorSubclassLike (ATen/TensorSubclassLikeUtils.h), which
# they ask, is true of every tensor then.
ALTERED_FUNCTIONS: tuple[tuple[Any, str], ...] = (
    (torch.linalg, "svdvals"),
    (torch.linalg, "eigvalsh"),
    (torch.linalg, "pinv"),
    (torch.linalg, "cond"),
    (torch.linalg, "matrix_rank"),
    (torch, "pinverse"),
    # Forward-mode AD, also that of torch.func.jvp, jacfwd and hessian: its zeros have no memory, and to
    # add a number to them raises while a mode is on. A mode cannot leave at the op that makes them: the
    # transform restores the dispatcher's state of before, and runs into a stack without modes.
    (forward_ad, "enter_dual_level"),
)
"""Modules and names of functions that are altered by any dispatch mode at every call."""

ALTERED_NORMS: tuple[tuple[Any, str], ...] = ((torch.linalg, "norm"), (torch.linalg, "matrix_norm"))
"""Modules and names of norms that are altered for orders in ``OF_SINGULAR_VALUES``."""

OF_SINGULAR_VALUES = ("nuc", 2, -2)


def _is_altered_norm(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a call of one of ``ALTERED_NORMS`` asks for a norm of singular values."""
    given = args[1] if len(args) > 1 else kwargs.get("ord")
    return isinstance(given, (str, int, float)) and given in OF_SINGULAR_VALUES


def _altered(bus: Bus, handles: list[Any]) -> None:
    channel = bus.channel(AlteredCalled)

    def before(name: str) -> Callable[..., None]:
        def before_call(_args: Any, _kwargs: Any) -> None:
            if not is_compiling():
                channel.emit(AlteredCalled(name))

        return before_call

    def before_norm(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not is_compiling() and _is_altered_norm(args, kwargs):
            channel.emit(AlteredCalled("norm"))

    for module, name in ALTERED_FUNCTIONS:
        if hasattr(module, name):
            handles.append(listen_to_function(module, name, before=before(name)))
    for module, name in ALTERED_NORMS:
        if hasattr(module, name):
            handles.append(listen_to_function(module, name, before=before_norm))


def _targets(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that a collective writes: the first of its arguments that has any.

    No schema says so. What is sent comes second, or is written itself.
    """
    for value in (*args, *kwargs.values()):
        found = _tensors_in(value)
        if found:
            return found
    return []


def _tensors_in(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for part in value for tensor in _tensors_in(part)]
    return []


READS_ONLY = frozenset({"send", "barrier"})
"""Methods of a process group that return a handle, and write nothing."""


def _begins_collective(name: str, method: Any) -> bool:
    """Whether a method of ``ProcessGroup`` returns a handle to wait for, as its signature says."""
    signature = str(getattr(method, "__doc__", None) or "")
    is_public = not name.startswith("__") and name not in READS_ONLY
    return is_public and "-> c10d::Work" in signature.replace(
        "torch._C._distributed_c10d.", "c10d::"
    )


class _Collectives:
    """Hears of the collectives that Python begins.

    Args:
        bus: Where events go.
    """

    def __init__(self, bus: Bus) -> None:
        self._began = bus.channel(CollectiveBegan)
        self._waited = bus.channel(CollectiveWaited)
        # What is begun between the two calls of a coalescing group has one handle, that of the last.
        self._coalescing: dict[int, list[weakref.ref[torch.Tensor]]] = {}

    def put_on(self, handles: list[Any]) -> None:
        """Listen to all methods that return a handle, and to its own."""
        group, work = torch.distributed.ProcessGroup, torch.distributed.Work
        for name, method in list(vars(group).items()):
            if name == BEGINS_GROUP:
                handles.append(listen(group, name, after=self._opened))
            elif name == ENDS_GROUP:
                handles.append(listen(group, name, returned=self._closed))
            elif _begins_collective(name, method):
                handles.append(listen(group, name, returned=self._returned))
        handles.append(listen(work, "wait", after=self._after_wait))

    def _returned(self, group: Any, result: object, args: Any, kwargs: Any) -> None:
        targets = _targets(args, kwargs)
        together = self._coalescing.get(id(group))
        if together is not None:
            # Weakly: an exception of the user's may have kept the end from coming.
            together += map(weakref.ref, targets)
        else:
            self._begin(targets, result)

    def _opened(self, group: Any, _args: Any, _kwargs: Any) -> None:
        self._coalescing[id(group)] = []

    def _closed(self, group: Any, result: object, _args: Any, _kwargs: Any) -> None:
        together = self._coalescing.pop(id(group), ())
        self._begin([t for reference in together if (t := reference()) is not None], result)

    def _begin(self, targets: list[torch.Tensor], handle: object) -> None:
        if targets and isinstance(handle, torch.distributed.Work):
            self._began.emit(CollectiveBegan(targets, handle))

    def _after_wait(self, handle: Any, _args: Any, _kwargs: Any) -> None:
        self._waited.emit(CollectiveWaited(handle))


def _collectives(bus: Bus, handles: list[Any]) -> None:
    # The methods of the group and not the functions of torch.distributed: FSDP, and whoever has
    # imported those by name, come through here as well. C++ does not; DDP waits inside of backward.
    if torch.distributed.is_available():
        _Collectives(bus).put_on(handles)


COUNTED = "in iterations whose ops are observed one by one"

SCALER_PLACES: tuple[Place, ...] = (
    Place("torch.amp.GradScaler.scale", REPLACED, (Scaled,), _scale),
    Place("torch.amp.GradScaler.get_scale", REPLACED, (ScaleRead,), _get_scale),
    Place("torch.amp.GradScaler.unscale_", REPLACED, (Unscaling, Unscaled), _unscale),
    Place("torch.amp.GradScaler.step", REPLACED, (StepBegan, StepEnded), _step),
    Place("torch.amp.GradScaler.update", REPLACED, (Updating, Updated), _update),
    Place("torch.amp.GradScaler.load_state_dict", REPLACED, (ScalerLoaded,), _load_scaler),
)
"""Those that depend on which scaler is watched."""

PLACES: tuple[Place, ...] = (
    *SCALER_PLACES,
    Place(
        "the methods that an ampwatch.LossScaler, or the row of a framework, says end an iteration",
        REPLACED,
        (EndCalled, EndReturned),
        _ends,
        when="with a scaler that is not torch's",
    ),
    Place("torch.optim.Optimizer.load_state_dict", REPLACED, (OptimizerLoaded,), _load_optimizer),
    Place(
        "torch.optim.optimizer.register_optimizer_step_pre_hook, ..._post_hook",
        HOOK,
        (OptimizerStepping, OptimizerStepped),
        _optimizer_step,
    ),
    Place(
        "torch.optim.Optimizer.zero_grad, torch.nn.Module.zero_grad",
        REPLACED,
        (Zeroed,),
        _zero_grad,
    ),
    # Before the next one, which calls sensors: what these take is no clipping.
    Place(
        "torch.nn.utils.clip_grad._get_total_norm, ..._clip_grads_with_norm_, ...clip_grad_value_;"
        " torch.nn.utils.get_total_norm, torch.nn.utils.clip_grads_with_norm_,"
        " torch.nn.utils.clip_grad_value_",
        FUNCTION,
        (ClipBegan, ClipEnded),
        _clip_times,
    ),
    Place(
        "torch.nn.utils.clip_grad._clip_grads_with_norm_, ..._group_tensors_by_device_and_dtype,"
        " torch.nn.utils.clip_grads_with_norm_",
        FUNCTION,
        (ClippingByNorm, ClippingByValue),
        _clip,
    ),
    Place("torch.autograd.backward", FUNCTION, (BackwardBegan, BackwardEnded), _backward),
    Place(
        "torch.utils.data.dataloader._BaseDataLoaderIter.__next__",
        REPLACED,
        (BatchAwaited, BatchArrived),
        _batches,
    ),
    Place(
        "torch.distributed.Work.wait",
        REPLACED,
        (CommunicationAwaited, CommunicationAwaitedWithin, CommunicationArrived),
        _communication,
        when="in trainings of several ranks",
    ),
    Place("torch.utils.swap_tensors", FUNCTION, (TensorsSwapping,), _swap),
    # For no sensor, and so at every level: what is captured goes by all of them unheard.
    Place(
        "capture_begin and capture_end of torch.cuda.CUDAGraph, torch.xpu.XPUGraph,"
        " torch.accelerator.Graph and the like of another backend",
        REPLACED,
        (),
        _graph,
    ),
    Place(
        "torch.autocast.__enter__, torch.autocast.__exit__",
        REPLACED,
        (AutocastEntering, AutocastLeft),
        _autocast,
    ),
    Place(
        "__init__ of the backends of torch.compile; where it was called,"
        " torch.nn.modules.module._has_any_global_hook and"
        " torch._dynamo.eval_frame._callback_from_stance",
        REPLACED,
        (CompileCalled, CompiledEntering),
        _compile,
    ),
    Place("__call__ of the backends of torch.compile", REPLACED, (GraphCaptured,), _capture),
    # For no sensor: what is replaced here is not to be compiled.
    Place("__init__ of the backends of torch.compile", REPLACED, (), _keep_from_compiler),
    Place(
        "torch.nn.modules.module.register_module_forward_pre_hook",
        HOOK,
        (ForwardBegan,),
        _before_forward,
        when="in iterations whose inputs or ops are observed",
    ),
    Place(
        "torch.nn.modules.module.register_module_forward_hook",
        HOOK,
        (ForwardReturned,),
        _after_forward,
        when="in iterations whose outputs are measured",
    ),
    Place(
        "torch.nn.modules.module.register_module_forward_hook(always_call=True)",
        HOOK,
        (ForwardEnded,),
        _end_of_forward,
        when="in iterations whose ops are observed",
    ),
    Place(
        "torch.autograd.graph.saved_tensors_hooks.__enter__",
        REPLACED,
        (SavedTensorsHooked,),
        _saved_tensors,
        when="at standard and deep",
    ),
    Place(
        "__call__ of the classes of the watched models; what model.compile() has compiled;"
        " torch._dynamo.eval_frame.OptimizedModule.__call__",
        REPLACED,
        (RootCalled, RootReturned),
        _roots,
        when="always, where a model is watched",
    ),
    Place(
        "all methods of torch.distributed.ProcessGroup that return a handle (Work), and"
        " _start_coalescing; torch.distributed.Work.wait",
        REPLACED,
        (CollectiveBegan, CollectiveWaited),
        _collectives,
        when="at standard and deep",
    ),
    Place(
        "torch.linalg.svdvals, eigvalsh, pinv, cond, matrix_rank, norm, matrix_norm;"
        " torch.pinverse; torch.autograd.forward_ad.enter_dual_level",
        FUNCTION,
        (AlteredCalled,),
        _altered,
        when=COUNTED,
    ),
)
"""The places, in the order in which they are put on."""
