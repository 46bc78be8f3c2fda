"""Replay of a call on a replica of the model: eagerly, op by op, without effect on the training."""

from __future__ import annotations

import random
import sys
import warnings
from functools import cache, partial
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ampwatch.guard import is_of_a_signal, unbroken
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.devices import HOST, Replaying, autocast_types
from ampwatch.training.hooks.compiling import ForcedEager, has_compiled
from ampwatch.training.hooks.place import before_any_forward
from ampwatch.training.hooks.roots import unwrapped
from ampwatch.training.kernels.admission import is_dense
from ampwatch.training.model.module_stack import ModuleStack
from ampwatch.training.model.tensors import all_tensors_in, tensors_in
from ampwatch.training.ops.call import OpCall
from ampwatch.training.ops.events import OpPlace
from ampwatch.training.ops.info import op_info
from ampwatch.training.ops.mode import OpMode, has_modes_of_user
from ampwatch.training.ops.operands import overwritten_by
from ampwatch.training.ops.storage import WeakStorage
from ampwatch.training.private import (
    MAX_NODES_SEEN,
    OpOverload,
    graph_task,
    schema_of,
    storage_key,
)
from ampwatch.training.replay.kept_calls import Autocast, Draws, ReplayRefusedError
from ampwatch.training.replay.replica import ReplicaModel
from ampwatch.wire.blackbox.exception import text_of
from ampwatch.wire.records import Measure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn

    from ampwatch.training.hooks.place import Handle
    from ampwatch.training.iteration.context import Context
    from ampwatch.training.model.names import Names
    from ampwatch.training.ops.info import OpInfo
    from ampwatch.training.replay.kept_calls import KeptCall
    from ampwatch.wire.records import Remedy

    Execute = Callable[[Sequence[Any]], Any]
    """Runs an op with these arguments."""
    Note = Callable[[OpCall, OpPlace], None]
    Undo = Callable[[], object]
    """Puts back what is about to be changed. It is there before the change is made, does no harm
    where that was not made after all, and may be called again where it was interrupted."""


class Beside(Protocol):
    """Whoever computes beside a replay."""

    def run(self, call: OpCall, place: OpPlace, execute: Execute) -> Any:
        """Have an op run by ``execute(call.args)``, and return what that returns; also of views."""

    def entered(self, module: str, args: Any) -> None:
        """Take in what a module is called with."""

    def left(self, module: str, output: Any) -> None:
        """Take in what it has returned."""

    def complete(self, output: Any) -> Any:
        """Return what takes the place of what the model has returned. Ops are still seen."""

    def returned(self, output: Any) -> None:
        """Take that in, before backward. No mode is on."""


COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem")
"""Namespaces of ops that other processes take part in."""


class _ReplayMode(OpMode):  # type: ignore[no-untyped-call] # of TorchDispatchMode
    """Reports every op of a replay, and refuses one that others would notice, before it runs.

    Args:
        note: As of ``OpMode``.
        replica: Whose tensors may be written to.
        remedy: What is done otherwise than in the call.
        infos: Returns the facts about an op.
        beside: Runs each op, and something beside it; called with the call, before it has run, and
            with a function that runs it with arguments. ``None`` for the op alone.
    """

    def __init__(
        self,
        note: Callable[..., None],
        replica: ReplicaModel,
        remedy: Remedy | None,
        infos: Callable[[Any], OpInfo],
        beside: Callable[[OpCall, Execute], Any] | None = None,
    ) -> None:
        super().__init__(note)
        self._infos = infos
        self._beside = beside
        self._writes: dict[Any, tuple[tuple[int, str], ...]] = {}
        self._widens = remedy is not None and remedy.measure is Measure.SUMS_IN_FLOAT32
        self.has_widened = False
        # By identity, with a weak reference to keep it from being given away: no memory is held.
        self._own: dict[int, WeakStorage] = {}
        for tensor in replica.own_tensors():
            self._owns(tensor)

    def run(
        self, func: Any, args: Any, kwargs: dict[str, Any], keys: tuple[Any, ...], compiler: Any
    ) -> Any:
        """Run an op of the replica.

        Raises:
            ReplayRefusedError: If it would be noticed outside.
        """
        if not isinstance(func, OpOverload):
            return super().run(func, args, kwargs, keys, compiler)
        if func.namespace in COLLECTIVES:
            why = "its forward communicates with other processes"
            raise ReplayRefusedError(why)
        if isinstance(kwargs.get("generator"), torch.Generator):
            why = "its forward draws random numbers from a generator of its own"
            raise ReplayRefusedError(why)
        for tensor in self._written(func, args, kwargs):
            if self._key(tensor) not in self._own:
                why = "its forward writes to tensors that are not its own"
                raise ReplayRefusedError(why)
        # Of two tensors: a number that is added is no sum of branches.
        if self._widens and func is torch.ops.aten.add.Tensor and isinstance(args[1], torch.Tensor):
            wide = [_widened(arg) for arg in args]
            self.has_widened = self.has_widened or any(
                w is not a for w, a in zip(wide, args, strict=True)
            )
            args = wide
        if self._beside is None:
            out = super().run(func, args, kwargs, keys, compiler)
        else:
            run = super().run
            out = self._beside(
                OpCall(func, self._infos(func), args, kwargs, None),
                lambda given: run(func, given, kwargs, keys, compiler),
            )
        given = {self._key(t) for t in all_tensors_in((*args, *kwargs.values()))}
        for tensor in all_tensors_in((out,)):
            if self._key(tensor) not in given:
                self._owns(tensor)
        return out

    def _written(self, func: Any, args: Any, kwargs: dict[str, Any]) -> list[Tensor]:
        """Return the tensors that an op is about to write to, returned or not."""
        writes = self._writes.get(func)
        if writes is None:
            arguments = enumerate(schema_of(func).arguments)
            writes = self._writes[func] = tuple(
                (place, argument.name)
                for place, argument in arguments
                if argument.alias_info is not None and argument.alias_info.is_write
            )
        written = [args[i] if i < len(args) else kwargs.get(name) for i, name in writes]
        # The schemas of batch norms do not say that they write averages.
        averages = overwritten_by(OpCall(func, self._infos(func), args, kwargs, None))
        return [*all_tensors_in(written), *averages]

    def _owns(self, tensor: Tensor) -> None:
        key = self._key(tensor)
        if key and key not in self._own:
            self._own[key] = WeakStorage(tensor.untyped_storage())

    @unbroken
    def forget(self) -> None:
        """Forget which tensors are the replica's: no op comes any more. Idempotent."""
        # Now and here: these references have a __del__ in Python, which swallows an interrupt.
        self._own.clear()

    @staticmethod
    def _key(tensor: Tensor) -> int:
        if not is_dense(tensor):
            return 0
        key: int = storage_key(tensor.untyped_storage())
        return key


def _widened(value: Any) -> Any:
    is_half = isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if is_half else value


class Replay:
    """Makes a kept call again, on a replica.

    Args:
        call: The call.
        prefix: Of the model's name among the watched ones.
        max_bytes: What the replica's own tensors may take. Unit: B.
        remedy: What is done otherwise than in the call; ``None`` for the call as it was.
        returned: Called with the name of each module without children and what it has returned.
        goes_back: Whether backward runs from whatever the model returns, with gradients of one.
        beside: Computes something beside it.
        dtype: What autocast casts to instead; where it was off in the call it is on then.

    Attributes:
        replica: The replica. After a backward its parameters have gradients.

    Raises:
        ReplayRefusedError: If there can be no replica, or its inputs have changed.

    Cost:
        One copy of the buffers; then the forward pass, with 5 to 60 us more for each op, and its
        backward where the model returns its loss.
    """

    def __init__(
        self,
        call: KeptCall,
        prefix: str,
        max_bytes: int,
        remedy: Remedy | None = None,
        returned: Callable[[str, Any], None] | None = None,
        *,
        goes_back: bool = False,
        beside: Beside | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._call = call
        self._regions = call.autocast if dtype is None else _regions_in(call, dtype)
        self._beside = beside
        self._remedy = remedy
        self._returned = returned
        self._goes_back = goes_back
        self._arguments = call.arguments()
        # What a copy of the user's classes does is neither seen nor leaves a trace, random numbers
        # that it draws least of all.
        undo: list[Undo] = []
        try:
            _apart(call.draws, undo)
            self.replica = ReplicaModel(call.model, max_bytes)
            _put_back(undo)
        except BaseException:
            _put_back(undo)
            raise
        self.prefix = prefix
        names = {} if call.outside is not None else self.replica.names
        self._names = {key: f"{prefix}{name}".rstrip(".") for key, name in names.items()}
        self._stack = ModuleStack()
        self._mode: _ReplayMode | None = None
        self._forced: ForcedEager | None = None
        self._check: Handle | None = None

    def run(self, note: Note, scale: float) -> list[Tensor]:
        """Run forward, and backward where the model returned its loss; return its outputs.

        Args:
            note: Called with each op that has returned, and its place.
            scale: What the loss is multiplied by before backward.

        Raises:
            ReplayRefusedError: If it would have had an effect, or its forward has raised.
            torch.OutOfMemoryError: If there is no memory for it.
        """
        call = self._call
        if has_modes_of_user():
            why = "a mode of the user's was on"
            raise ReplayRefusedError(why, is_lasting=False)
        infos = cache(op_info)
        beside = None if self._beside is None else self._run_beside(self._beside)
        mode = _ReplayMode(self._noting(note, infos), self.replica, self._remedy, infos, beside)
        self._follow_modules()
        self._mode = mode
        undo: list[Undo] = []
        try:
            _apart(call.draws, undo)
            undo += (mode.forget, self._leave)
            self._enter()
            output = self._call_and_go_back(mode, scale, undo)
            _put_back(undo)
        except BaseException:
            # Also where an interrupt has come in the middle of putting back.
            _put_back(undo)
            raise
        return [t for t in tensors_in(output) if t.is_floating_point()]

    def _call_and_go_back(self, mode: OpMode, scale: float, undo: list[Undo]) -> Any:
        args, kwargs = self._arguments
        before = len(undo)
        try:
            undo.append(partial(torch.set_grad_enabled, torch.is_grad_enabled()))
            records = self._call.returns_loss or self._goes_back or self._beside is not None
            torch.set_grad_enabled(records)
            undo.append(_autocast_of_now())
            self._set_autocast()
            undo.append(mode.take_off)
            mode.put_on()
            output = self.replica.model(*args, **kwargs)
            if self._beside is not None:
                output = self._beside.complete(output)
            _put_back(undo, before)
            if self._beside is not None:
                self._beside.returned(output)
            undo.append(mode.take_off)
            mode.put_on()
            self._backward(output, scale)
        except (ReplayRefusedError, torch.OutOfMemoryError):
            raise
        except (Exception, SystemExit) as error:
            if is_of_a_signal(error):
                raise
            words = f"{type(error).__name__}: {text_of(error)}".partition("\n")[0]
            why = f"it raised {words[:160]}"
            raise ReplayRefusedError(why) from error
        return output

    @property
    def applies(self) -> bool:
        """Whether the remedy has changed anything: a model without sums of halves has no such stream."""
        is_of_sums = self._remedy is not None and self._remedy.measure is Measure.SUMS_IN_FLOAT32
        return not is_of_sums or (self._mode is not None and self._mode.has_widened)

    def _noting(self, note: Note, infos: Callable[[Any], OpInfo]) -> Callable[..., None]:
        thread = get_ident()
        num_backward = 0

        def noted(func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
            nonlocal num_backward
            if not isinstance(func, OpOverload):
                return
            info = infos(func)
            if info.is_ignored:
                return
            num_backward += graph_task() != -1
            if num_backward > MAX_NODES_SEEN:
                why = f"its backward has more than {MAX_NODES_SEEN} ops"
                raise ReplayRefusedError(why)
            note(OpCall(func, info, args, kwargs, out), self._place(thread))

        return noted

    def _run_beside(self, beside: Beside) -> Callable[[OpCall, Execute], Any]:
        thread = get_ident()
        return lambda call, execute: beside.run(call, self._place(thread), execute)

    def _unseen(self, work: Callable[[str, Any], None], name: str, value: Any) -> None:
        """Call something whose ops are not those of the replay."""
        mode = self._mode
        if mode is not None:
            mode.take_off()
            work(name, value)
            mode.put_on()

    def _place(self, thread: int) -> OpPlace:
        """Return where the op that runs now belongs; ``thread`` has run forward."""
        is_backward = graph_task() != -1
        phase = Phase.BACKWARD if is_backward else Phase.FORWARD
        name = self._stack.name()
        is_outside = self._call.outside is not None
        is_inside = bool(name) or not (is_backward or is_outside)
        if not name and is_backward:
            name = self._stack.name_of_node(thread)
        return OpPlace(phase, name, is_inside, hides_autocast=is_outside)

    def _follow_modules(self) -> None:
        """Note which module runs, and have the one that the remedy is for run in float32."""
        beside = self._beside

        def enter(module: nn.Module, args: Any) -> None:
            name = self._names.get(id(module), "")
            self._stack.enter(id(module), name)
            if beside is not None and graph_task() == -1:
                self._unseen(beside.entered, name, args)

        def leave(module: nn.Module, _args: Any, output: Any) -> None:
            self._stack.leave(id(module))
            if beside is not None and graph_task() == -1:
                self._unseen(beside.left, self._names.get(id(module), ""), output)
            if self._returned is not None and not any(True for _ in module.children()):
                self._returned(self._names.get(id(module), ""), output)

        remedy = self._remedy
        for module in self.replica.model.modules():
            module.register_forward_pre_hook(enter, prepend=True)
            module.register_forward_hook(leave, always_call=True)
            is_place = remedy is not None and self._names.get(id(module)) == remedy.module
            if is_place and remedy is not None and remedy.measure is Measure.MODULE_IN_FLOAT32:
                _run_in_float32(module)

    @unbroken
    def _enter(self) -> None:
        """Have what was compiled run eagerly, and calls of modules refused that are not the replica's.

        Of those that have a state. A function that the model keeps may refer to the model itself,
        or to another one.
        """
        me, own = get_ident(), {id(module) for module in self.replica.model.modules()}

        def check(module: nn.Module, _args: Any) -> None:
            if get_ident() != me or id(module) in own:
                return
            if any(True for _ in module.parameters()) or any(True for _ in module.buffers()):
                why = f"its forward calls a {type(module).__name__} that is not part of it"
                raise ReplayRefusedError(why)

        self._forced = ForcedEager() if has_compiled() else None
        self._check = before_any_forward(check)

    def _leave(self) -> None:
        if self._check is not None:
            self._check.remove()
        if self._forced is not None:
            self._forced.end()

    def _set_autocast(self) -> None:
        """Have autocast as it was in the call."""
        remedy = self._remedy
        # Not by torch.autocast: leaving its outermost region would clear the casts of the training.
        torch.set_autocast_cache_enabled(False)
        for kind in autocast_types():
            torch.set_autocast_enabled(kind, False)  # noqa: FBT003 - PyTorch's
        for kind, dtype in self._regions:
            wide = remedy is not None and remedy.measure is Measure.BFLOAT16
            torch.set_autocast_enabled(kind, True)  # noqa: FBT003 - PyTorch's
            torch.set_autocast_dtype(kind, torch.bfloat16 if wide else dtype)

    def _backward(self, output: Any, scale: float) -> None:
        is_loss = self._call.returns_loss or self._beside is not None
        loss = loss_in(output) if is_loss else None
        roots = [] if loss is None else [loss]
        if self._goes_back:
            roots = [t for t in tensors_in(output) if t.is_floating_point() and t.requires_grad]
        starts = [torch.full_like(root, scale) for root in roots]
        parameters = [p for p in self.replica.parameters.values() if p.requires_grad]
        if not starts or not parameters:
            return
        # grad, and not backward: whoever calls backward is seen by others, and by their hooks.
        gradients = torch.autograd.grad(roots, parameters, starts, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient


def replay_of(
    call: KeptCall,
    context: Context,
    remedy: Remedy | None = None,
    returned: Callable[[str, Any], None] | None = None,
    *,
    goes_back: bool = False,
) -> Replay:
    """Return the replay of a call, on a replica for which memory is left where the model is; see ``Replay``."""
    left = context.memory.left()
    device = context.home.device
    room = left.host if device is None or device.type == HOST else left.device
    prefix = prefix_of(call.model, context.names)
    return Replay(call, prefix, room, remedy, returned, goes_back=goes_back)


def prefix_of(model: nn.Module, names: Names) -> str:
    """Return what the names of a model's modules begin with; wrappers are not part of a name."""
    name = next((name for name, module in names.modules() if unwrapped(module) is model), "")
    return f"{name}." if name else ""


def _put_back(undo: list[Undo], down_to: int = 0) -> None:
    """Put back what was changed, the newest first."""
    while len(undo) > down_to:
        undo[-1]()
        undo.pop()


def _apart(draws: Draws, undo: list[Undo]) -> None:
    """Have nobody hear what follows, and have it draw the random numbers of the call."""
    replaying = Replaying()
    undo.append(replaying.end)
    replaying.begin()
    undo.append(_random_numbers_of_now(draws))
    draws.restore()
    _without_warnings(undo)


def _without_warnings(undo: list[Undo]) -> None:
    """Have the calling thread not warn: the training has been warned, and what runs here is not its own.

    Neither by a filter nor by what shows a warning: the one has Python show once more what it shows
    once, and the other has it take for shown what was not.
    """
    me = get_ident()
    with _silencing:
        if not _silent:
            _spoken.append(warnings.warn)
            warnings.warn = _warn
        _silent.add(me)

    def restore() -> None:
        with _silencing:
            _silent.discard(me)
            if not _silent and _spoken:
                before = _spoken.pop()
                if warnings.warn is _warn:
                    warnings.warn = before

    undo.append(restore)


def _warn(
    message: Any, category: Any = None, stacklevel: int = 1, *args: Any, **kwargs: Any
) -> None:
    """Warn as ``warnings.warn`` does, but for threads that replay."""
    if get_ident() not in _silent:
        # A module that was imported meanwhile may keep this one for good.
        before = next(iter(_spoken), _of_python)
        before(message, category, stacklevel + 1, *args, **kwargs)


_of_python = warnings.warn
_silencing = Lock()
_silent: set[int] = set()
_spoken: list[Any] = []


def _random_numbers_of_now(draws: Draws) -> Undo:
    now = Draws.now([device for device, _ in draws.devices])
    python = random.getstate()
    numpy = getattr(sys.modules.get("numpy"), "random", None)
    others = numpy.get_state() if numpy is not None else None

    def restore() -> None:
        now.restore()
        random.setstate(python)
        if numpy is not None:
            numpy.set_state(others)

    return restore


def _autocast_of_now() -> Undo:
    before = [
        (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        for kind in autocast_types()
    ]
    caches = torch.is_autocast_cache_enabled()

    def restore() -> None:
        for kind, enabled, dtype in before:
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)
        torch.set_autocast_cache_enabled(caches)

    return restore


def _regions_in(call: KeptCall, dtype: torch.dtype) -> tuple[Autocast, ...]:
    """Return the regions of autocast of a call with another dtype; where it has none, one."""
    types = {region.device_type for region in call.autocast}
    types = types or {parameter.device.type for parameter in call.model.parameters()}
    return tuple(Autocast(device_type, dtype) for device_type in sorted(types))


def _run_in_float32(module: nn.Module) -> None:
    """Have a module of a replica run without autocast, on inputs in float32."""
    forward = module.forward

    def widened(*args: Any, **kwargs: Any) -> Any:
        kinds = [kind for kind in autocast_types() if torch.is_autocast_enabled(kind)]
        for kind in kinds:
            torch.set_autocast_enabled(kind, False)  # noqa: FBT003 - PyTorch's
        try:
            return forward(*map(_widened, args), **{k: _widened(v) for k, v in kwargs.items()})
        finally:
            for kind in kinds:
                torch.set_autocast_enabled(kind, True)  # noqa: FBT003 - PyTorch's

    module.forward = widened


def loss_in(output: Any) -> Tensor | None:
    """Return the scalar among what a model has returned that backward can begin with, if there is one."""
    named = getattr(output, "loss", None)
    given = [named] if isinstance(named, torch.Tensor) else tensors_in(output)[:1]
    for tensor in given:
        if tensor.numel() == 1 and tensor.requires_grad and tensor.is_floating_point():
            return tensor
    return None
