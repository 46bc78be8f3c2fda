"""The op census: every ATen op of an iteration, with the dtypes it ran in and where."""

from __future__ import annotations

import weakref
from collections import Counter
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ampwatch.diagnosis.evidence.ops import LoneForward, OpCensus, OpKey, OpTally
from ampwatch.numerics.units.ops import Fallback, OpKind, Phase
from ampwatch.training.hooks.altered import AlteredCalls
from ampwatch.training.hooks.compiling import ForcedEager, is_traced, listen_to_compile, may_compile
from ampwatch.training.model.module_stack import ModuleStack
from ampwatch.training.ops.call import OpCall, OpCounts, tensors_among
from ampwatch.training.ops.info import OpInfo, op_info
from ampwatch.training.ops.listener import OpPlace
from ampwatch.training.ops.mode import OpMode
from ampwatch.training.sensors.ops.fallbacks import Fallbacks
from ampwatch.wire.records import CensusSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn
    from torch.utils.hooks import RemovableHandle

    from ampwatch.guard import Account, Guard
    from ampwatch.training.hooks.regions import Regions
    from ampwatch.training.hooks.taps import Listener
    from ampwatch.training.model.names import Names
    from ampwatch.training.ops.listener import OpListener

MAX_OPS = 200_000
"""Ops counted in one iteration. One that has more (an evaluation of a whole epoch that no update
of the scaler ends) is cut there."""

HIGHER_ORDER = OpInfo(
    "", OpKind.OTHER, None, (), (), is_ignored=True, is_own=True, has_fp32_policy=bool
)
"""A higher-order op. They are for compiled code; what runs inside one is not seen."""

MAX_CALLS = 10_000
"""Calls of modules in one iteration without an op that is counted, after which nobody waits for
one any more: an evaluation, or a model that only answers."""

ALTERED = frozenset({"_linalg_svd", "_linalg_eigh", "linalg_pinv", "_efficientzerotensor"})
"""Ops that PyTorch computes otherwise while any dispatch mode is on, with other last bits:
singular values or eigenvalues whose vectors nobody needs (``isTensorSubclassLike`` in its C++
code). The pseudoinverse: whether autocast applies inside of it depends on the name it was
called by. And the zeros that forward-mode AD makes without memory: with a mode on, to add a
number to them raises."""

ALTERED_BACKWARD = frozenset({"prod", "linalg_lstsq"})
"""Ops whose backward it computes otherwise."""

REGION_ELSEWHERE = (Fallback.OTHER_THREAD, Fallback.DEVICE_TYPE)
"""Reasons that say by themselves that autocast is used."""


class OpCensusSensor:
    """Counts ops in the iterations it is told to, and tells listeners of them.

    A ``TorchDispatchMode`` sees every op of the thread that trains, backward included, and of
    other threads while they run watched modules. To count, it is on from the first forward of a
    watched module that records gradients to the end of the iteration; for listeners, from its
    beginning. A process that is forked meanwhile inherits it, silent from its first op on.
    PyTorch's global module hooks and its global optimizer hooks say where an op belongs. The hook
    before modules is in place only in counted iterations. The one after them stays, unless
    something is compiled: PyTorch walks over these in place where a module has raised, and one
    that came or went meanwhile, in any thread, would replace the user's exception.

    Nothing is counted as soon as ``torch.compile`` was called in the process: compiled code
    would run otherwise than without; unless the user allows that. Nor once an op was met that
    would (``ALTERED``, where ``altered.py`` has not heard of it before it was called), nor while
    a CUDA graph is captured, nor what ampwatch itself does.

    Args:
        names: Names of the modules.
        regions: Which autocast regions every thread is in.
        account: Says whether ampwatch itself is at work.
        guard: The fail-open boundary, a thread-safe one.
        may_force_eager: Whether compiled code may be run eagerly in a counted iteration, which
            changes its rounding there.

    Attributes:
        altered: Name of the op because of which nothing is seen any more; empty without.
        uncounted: Name of the function because of which iterations are not seen to their end, and
            not counted; empty without.

    Cost:
        25 to 60 us an op in a counted iteration, a third to a half of it PyTorch's own
        (benchmarks/census.py); two flags a step in the others.
    """

    name = "census"

    def __init__(
        self,
        names: Names,
        regions: Regions,
        account: Account,
        guard: Guard,
        *,
        may_force_eager: bool = False,
    ) -> None:
        self._names = names
        self._listeners: Sequence[OpListener] = ()
        self._may_count = True
        self._may_force_eager = may_force_eager
        self._forced: ForcedEager | None = None
        self._account = account
        self._guard = guard
        self._modules: dict[int, tuple[str, weakref.ref[nn.Module]]] = {}
        self._module_handle: RemovableHandle | None = None
        self._step_handles: list[RemovableHandle] = []
        self._staying_handles: list[RemovableHandle | Listener] = []
        self._former: list[OpMode] = []
        self._infos: dict[Any, OpInfo] = {}
        self._stack = ModuleStack()
        self._regions = regions
        self._fallbacks = Fallbacks(regions)
        self._counts = OpCounts(self._fallbacks.why)
        self._altered_calls = AlteredCalls(self._before_altered)
        self._mode: OpMode | None = None
        self._thread = 0
        self.altered = self.uncounted = ""
        self._clear()

    def _clear(self) -> None:
        self._counts.clear()
        self._stack.clear()
        self._num_ops = self._num_calls = 0
        self._is_counting = False
        self._was_forced = False
        self._is_stepping = False
        self._newest: Phase | None = None
        self._lone: Counter[tuple[str, Fallback, str, str]] = Counter()

    def install(self) -> None:
        """Place the hooks that say that an optimizer steps, and that a module has run."""
        # To stay: PyTorch walks over the hooks of optimizers where iterations end, and hooks
        # that come or go meanwhile would break the step.
        self._step_handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        if self._may_force_eager or not may_compile():
            self._staying_handles = [
                register_module_forward_hook(self._after_forward, always_call=True),
                *([] if self._may_force_eager else listen_to_compile(self._on_compile)),
            ]

    def remove(self) -> None:
        """Take everything off."""
        self.stop()
        self._clear()
        for handle in self._step_handles:
            handle.remove()
        self._step_handles.clear()
        self._leave_alone()

    def _leave_alone(self) -> None:
        """See no module any more when it has run."""
        for handle in self._staying_handles:
            handle.remove()
        self._staying_handles.clear()

    def begin(
        self, step: int = 0, *, listeners: Sequence[OpListener] = (), count: bool = True
    ) -> bool:
        """Iteration ``step`` begins, whose ops are to be seen; return whether they will be.

        Args:
            step: Its index.
            listeners: Who is told of them, from here on.
            count: Whether they are counted, from the first forward on.
        """
        self.stop()
        self._clear()
        is_compiled = may_compile()
        count = count and not self.uncounted
        # Compiled code is run eagerly to be counted, and for nothing else.
        if is_compiled and not (count and self._may_force_eager):
            return False
        if self.altered or not (count or listeners):
            return False
        self._forced = ForcedEager() if is_compiled else None
        self._was_forced = is_compiled
        self._altered_calls.install()
        ignored = [func for func, info in self._infos.items() if info.is_ignored]
        self._mode, self._thread = OpMode(self._note, ignored, self._is_altered), get_ident()
        # Each time anew: modules are added and replaced while a training runs.
        self._modules = {id(m): (name, weakref.ref(m)) for name, m in self._names.modules()}
        self._module_handle = register_module_forward_pre_hook(self._before_forward)
        if is_compiled and not _captures():
            # What torch.compile has wrapped leaves the thread's dispatch state as it was before:
            # a mode that is put on inside is forgotten outside.
            self._mode.put_on()
        self._may_count = count
        if listeners and not is_compiled:
            for listener in listeners:
                listener.begin(step)
            self._listeners = listeners
            # Averages of weights, metrics and gradients are updated outside of modules.
            if not _captures():
                self._mode.put_on()
        return True

    def end(self, step: int, duration_s: float) -> OpCensus | None:
        """The iteration has ended; return what was counted, ``None`` if nothing was.

        Args:
            step: Its index.
            duration_s: Its wall time; NaN if unknown. Unit: s.
        """
        self.stop()
        counts, census = self._counts, None
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
        """Return the tallies; where autocast was never seen nothing is a fallback from it."""
        if self._fallbacks.autocast_dtypes:
            return tallies
        judged: dict[OpKey, OpTally] = {}
        for key, tally in tallies.items():
            fallback = key.fallback if key.fallback in REGION_ELSEWHERE else Fallback.NONE
            judged.setdefault(key._replace(fallback=fallback), OpTally()).add(tally)
        return judged

    def stop(self) -> None:
        """See nothing any more until the next iteration that is counted begins."""
        if self._module_handle is not None:
            self._module_handle.remove()
            self._module_handle = None
        self._altered_calls.remove()
        listeners, self._listeners = self._listeners, ()
        for listener in listeners:
            listener.end()
        if self._mode is not None:
            self._mode.silence()
            self._former.append(self._mode)
            self._mode = None
        # Autograd has put those back that were taken off inside of backward.
        for mode in self._former:
            mode.take_off()
        self._former = [mode for mode in self._former if mode.threads]
        if self._forced is not None:
            self._forced.end()
            self._forced = None
        self._modules.clear()

    @property
    def is_stepping(self) -> bool:
        """Whether an optimizer is stepping."""
        return self._is_stepping

    # Hooks. What is traced or compiled must not get our code into its graph.

    def _before_forward(self, module: nn.Module, _args: Any) -> None:
        if not is_traced():
            self._guard.run(self.before_forward, module)

    def _after_forward(self, module: nn.Module, _args: Any, _output: Any) -> None:
        if self._mode is not None and not is_traced():
            self._guard.run(self.after_forward, module)

    def _on_compile(self, *_: Any) -> None:
        # Let it run as if nobody looked.
        self._guard.run(self._stop_for_good)

    def _before_altered(self, name: str) -> None:
        if self._mode is not None and not torch.compiler.is_compiling():
            self._guard.run(self._give_up, name)

    def _give_up(self, name: str) -> None:
        """See no op of this iteration any more, and count none later: ``name`` is to be called."""
        self.uncounted = name
        self.stop()

    def _stop_for_good(self) -> None:
        self.stop()
        self._leave_alone()

    def _before_step(self, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self._is_stepping, self._newest = True, Phase.OPTIMIZER

    def _after_step(self, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self._is_stepping = False

    def _note(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
        if not self._account.is_mine:
            self._guard.run(self.note, func, args, kwargs, out)

    def before_forward(self, module: nn.Module) -> None:
        """``module`` is about to run."""
        known = self._modules.get(id(module))
        if known is None or known[1]() is not module:
            return
        self._num_calls += 1
        is_idle = not self._num_ops and self._num_calls > MAX_CALLS and not self._listeners
        if is_idle or self._num_ops >= MAX_OPS or (self._mode and self._mode.is_inherited):
            self.stop()
            return
        self._is_stepping = False  # one that has raised does not say that it ended
        if self._stack.enter(id(module), known[0]):
            self._regions.look()
            if torch.is_grad_enabled():
                self._newest = Phase.FORWARD
            lone = self._fallbacks.why_lone(module)
            if lone is not None:
                reason, region = lone
                self._lone[known[0], reason, region.dtype, region.device_type] += 1
            self._put_on()

    def after_forward(self, module: nn.Module) -> None:
        """``module`` has run, or has raised."""
        if id(module) not in self._modules or not self._stack.leave(id(module)):
            return
        me, mode = get_ident(), self._mode
        # A thread of autograd has it from the thread that called backward.
        if mode is not None and me != self._thread and me in mode.threads:
            mode.take_off()

    def _put_on(self) -> None:
        """See the ops of this thread, if they may be seen."""
        if self._mode is not None and torch.is_grad_enabled() and not _captures():
            self._is_counting = self._may_count
            self._mode.put_on()

    def note(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
        """``func(*args, **kwargs)`` has returned ``out``."""
        info = self._infos.get(func)
        if info is None:
            info = self._learn(func)
        if info.is_ignored or self._num_ops >= MAX_OPS:
            return
        if _captures():
            # What looks at values would be captured along with the user's own.
            self.stop()
            return
        self._num_ops += 1
        if self._num_ops == MAX_OPS and self._mode is not None:
            self._mode.silence()
        phase = self._phase(info.name, args)
        call, module = OpCall(func, info, args, kwargs, out), self._module(phase)
        # Data is prepared, and other models may be run, before the model itself.
        if self._is_counting:
            device_type = self._counts.count(call, phase, module)
            if device_type and phase is Phase.FORWARD:
                self._fallbacks.see(device_type)
        if self._listeners:
            place = OpPlace(phase, module, self._stack.is_inside())
            for listener in self._listeners:
                listener.note(call, place)

    def _learn(self, func: Any) -> OpInfo:
        is_plain = isinstance(func, torch._ops.OpOverload)  # noqa: SLF001 - no public name for it
        info = self._infos[func] = op_info(func) if is_plain else HIGHER_ORDER
        if info.is_ignored and self._mode is not None:
            self._mode.ignore(func)
        return info

    def _is_altered(self, func: Any, args: Sequence[Any]) -> bool | None:
        name = getattr(func, "_opname", "")
        if name in ALTERED_BACKWARD and not any(t.requires_grad for t in tensors_among(args)):
            return None
        if name in ALTERED or name in ALTERED_BACKWARD:
            self.altered = name
        return bool(self.altered)

    def _phase(self, op: str, args: Sequence[Any]) -> Phase:
        if torch._C._current_graph_task_id() != -1:  # noqa: SLF001 - no public name for it
            self._newest = Phase.BACKWARD
            return Phase.BACKWARD
        if self._stack.is_inside():
            return Phase.FORWARD if self._stack.has_grad() else Phase.EVAL
        # A closure runs modules, and backward, inside the step of its optimizer.
        if op.startswith("_amp_") or (self._is_stepping and self._newest is not Phase.FORWARD):
            return Phase.OPTIMIZER
        # Between backward and the optimizer are clipping, and what the scaler does.
        is_between = self._newest in (Phase.BACKWARD, Phase.OPTIMIZER)
        if not torch.is_grad_enabled():
            return Phase.OPTIMIZER if is_between else Phase.EVAL
        is_loss = not is_between or any(t.requires_grad for t in tensors_among(args))
        return Phase.FORWARD if is_loss else Phase.OPTIMIZER

    def _module(self, phase: Phase) -> str:
        # A forward pass that backward repeats (checkpointing) runs in its modules.
        name = self._stack.name()
        if not name and phase is Phase.BACKWARD:
            return self._stack.name_of_node(self._thread)
        return name


def _captures() -> bool:
    is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call] # PyTorch's is not typed
    return is_used and torch.cuda.is_current_stream_capturing()
