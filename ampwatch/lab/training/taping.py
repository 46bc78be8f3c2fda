"""Records chosen steps on a tape."""

from __future__ import annotations

import math
import weakref
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ampwatch.errors import SettingsError
from ampwatch.guard import Log, is_of_a_signal
from ampwatch.lab.tape.files import MAX_FILE, TapeWriter, tape_path
from ampwatch.lab.tape.rows import VERSION, RowKind, TapeHead, TapeModule, TapeOutcome, TapeStep
from ampwatch.lab.training.sketch import Sketcher
from ampwatch.lab.training.step_rows import RowName, StepRows
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.hooks import events as on
from ampwatch.training.hooks.place import before_node
from ampwatch.training.kernels.admission import whole_part
from ampwatch.training.kernels.choice import kernel_for
from ampwatch.training.model.facts import run_facts
from ampwatch.training.model.names import module_of
from ampwatch.training.model.scaler import READY, stage_of
from ampwatch.training.model.tensors import is_in_flat, tensors_in
from ampwatch.training.ops.call import tensors_among, written_by
from ampwatch.training.ops.events import OpSensor
from ampwatch.training.private import graph_task, scale_tensor

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from ampwatch.guard import Guard
    from ampwatch.training.iteration.context import Context
    from ampwatch.training.ops.events import Op
    from ampwatch.training.ops.info import OpInfo
    from ampwatch.wire.records import RunIdentity


logger = Log()

COMPILED = "outputs of modules: compiled code runs"
"""What is not recorded of compiled code."""

MAX_WAITING = 4096
"""Recorded steps whose outcome is still on its way."""


class TapeSensor(OpSensor):
    """Records what chosen steps compute: weights, inputs, ops, outputs, gradients, weights again.

    Steps are chosen by their index alone, never by what they cost, so that two runs record the same. Nothing
    is left out because a device is behind: at its end a recorded step waits for what was measured.

    Cost:
        In a recorded step five passes over each tensor that an op makes, and 60 us a tensor; in others
        a comparison. Without ``record_dir`` there is no such sensor.
    """

    name = "tape"
    is_thread_safe = True

    def __init__(self, context: Context, identity: RunIdentity) -> None:
        self._context = context
        self._identity = identity
        context.governor.record(self._is_recorded)
        self.guard: Guard = context.bus.guard(self.name, is_thread_safe=True, sweep=self.failed)
        self._kernel_for = cache(kernel_for)
        self._sketcher = Sketcher()
        self._writer: TapeWriter | None = None
        self._rows: StepRows | None = None
        self._modules: dict[int, tuple[str, weakref.ref[nn.Module]]] = {}
        self._stepped: set[int] = set()
        self._waiting: set[int] = set()
        self._has_weights = self._has_head = False
        self._step = -1
        self._trouble = ""

    def not_seen(self) -> list[str]:
        """Return, in a sentence, what is not on the tape."""
        return [self._trouble] if self._trouble else []

    def _is_recorded(self, step: int) -> bool:
        first, every = self._context.settings.record_first, self._context.settings.record_every
        return step < first or (every > 0 and step % every == 0)

    # The history of iterations.

    def installed(self) -> None:
        """Make the file, and begin with the open iteration.

        Raises:
            SettingsError: If the file cannot be made.
        """
        identity, directory = self._identity, Path(self._context.settings.record_dir)
        path = tape_path(directory, identity.run, identity.rank, identity.started_ns)
        try:
            self._writer = TapeWriter(path)
        except OSError as error:
            msg = f"`record_dir`: expected a directory to write a tape in, got {str(directory)!r}: {error.strerror}"
            raise SettingsError(msg) from error
        self._begin(self._context.iteration.step)

    def iteration_opened(self, event: on.IterationOpened) -> None:
        """Record the iteration that begins, if it is one of those."""
        self._begin(event.step)

    def _begin(self, step: int) -> None:
        self._end_listening()
        if self._writer is None or not self._is_recorded(step):
            return
        self._step = step
        self._rows = StepRows(self._kernel_for, self._sketcher)
        self._stepped.clear()
        self._has_weights = False
        bus = self._context.bus
        if bus.runs_compiled:
            self._rows.missing[COMPILED] = None
            return
        if not self._context.governor.counts_one_by_one:
            self._rows.missing["ops: op_census is window"] = None
        names = self._context.names
        self._modules = {id(m): (name, weakref.ref(m)) for name, m in names.modules()}
        bus.listen(self, on.RootCalled)
        bus.listen(self, on.ForwardReturned)

    def _end_listening(self) -> None:
        if self._rows is not None:
            self._rows = None
            self._ignore_calls()
        self._modules.clear()

    def _ignore_calls(self) -> None:
        self._context.bus.ignore(self, on.RootCalled)
        self._context.bus.ignore(self, on.ForwardReturned)

    def failed(self) -> None:
        """Record no more."""
        self.removed()

    def removed(self) -> None:
        """Let go of the file and of what was not written."""
        self._end_listening()
        self._sketcher.clear()
        self._waiting.clear()
        writer = self._let_go()
        # Without a recorded step there is nothing to hold against anything.
        if writer is not None and not self._has_head:
            writer.path.unlink(missing_ok=True)

    def compiled_entering(self, _event: on.CompiledEntering) -> None:
        """Have the hooks taken out: code that is compiled must not be compiled with them."""
        if self._rows is not None:
            self._rows.missing[COMPILED] = None
            self._ignore_calls()

    # What a step computes, in the order of its coming.

    def root_called(self, event: on.RootCalled) -> None:
        """Record the weights before the first call, and what the model is called with."""
        rows = self._rows
        if rows is None or not torch.is_grad_enabled() or graph_task() != -1:
            return
        self._record_weights(rows)
        known = self._known(event.module)
        for tensor in tensors_in([event.args, event.kwargs]):
            rows.add(RowName(RowKind.INPUT, known or "", ""), tensor, read=(tensor,), sources=[])

    def _record_weights(self, rows: StepRows) -> None:
        if self._has_weights:
            return
        self._has_weights = True
        names = self._context.names
        for name, parameter in names.parameters():
            rows.add(RowName(RowKind.WEIGHT, name, module_of(name)), parameter)
        for name, buffer in names.buffers():
            rows.add(RowName(RowKind.BUFFER, name, module_of(name)), buffer)

    def wants_op(self, info: OpInfo, *, in_backward: bool) -> bool:  # noqa: ARG002 - of all
        """Whether an op makes values: each one does."""
        return True

    def prefilter(self, _call: object) -> bool:
        """Whether nothing is recorded now."""
        return self._rows is None

    def op(self, event: Op) -> None:
        """Record what an op has returned, or written."""
        rows = self._rows
        call, place = event
        if rows is None or place.phase not in (Phase.FORWARD, Phase.BACKWARD):
            return
        if call.info.is_collective:
            rows.exchange(list(tensors_in([call.out, call.args, call.kwargs])))
            return
        self._record_weights(rows)
        made = tensors_among((call.out,)) or written_by(call)
        read = tensors_among([*call.args, *call.kwargs.values()])
        written = call.info.written or call.info.name.endswith("_")
        if place.phase is Phase.FORWARD:
            # Targets, masks, states: nobody has made them here. Nor what has come from other ranks.
            changed = written_by(call) if written else []
            unknown = rows.received(read) if written else rows.strangers(read)
            for tensor in unknown:
                if any(tensor is each for each in changed):
                    continue  # too late: what it was has been written over
                given = RowName(RowKind.INPUT, call.info.name, place.module)
                rows.add(given, tensor, read=(tensor,), sources=[])
        sources = rows.sources_of(read)
        name = RowName(RowKind.OP, call.info.name, place.module, int(place.phase))
        for tensor in made:
            rows.add(name, tensor, read=read, sources=sources)

    def forward_returned(self, event: on.ForwardReturned) -> None:
        """Record the output of a module, and have its gradient recorded."""
        rows, name = self._rows, self._known(event.module)
        if rows is None or name is None or not torch.is_grad_enabled() or graph_task() != -1:
            return
        self._record_weights(rows)
        for tensor in tensors_in(event.output):
            if not tensor.is_floating_point():
                continue
            rows.add(RowName(RowKind.OUTPUT, name, name), tensor, read=(tensor,))
            self._listen(name, tensor)

    def _known(self, module: nn.Module) -> str | None:
        known = self._modules.get(id(module))
        return known[0] if known is not None and known[1]() is module else None

    def _listen(self, name: str, tensor: torch.Tensor) -> None:
        node, number = tensor.grad_fn, tensor.output_nr
        if node is None:
            return
        step, sensor = self._step, weakref.ref(self)

        def prehook(gradients: Any) -> None:
            # Weak, and by number: the user may keep the graph, and with it this function.
            me = sensor()
            gradient = gradients[number] if number < len(gradients) else None
            if me is not None and gradient is not None and me._step == step:  # noqa: SLF001 - itself
                me.guard.run(me._gradient_came, name, gradient)  # noqa: SLF001 - itself

        before_node(node, prehook)

    def _gradient_came(self, name: str, gradient: torch.Tensor) -> None:
        if self._rows is not None:
            row = RowName(RowKind.OUTPUT_GRADIENT, name, name)
            self._rows.add(row, gradient, scale=self._scale(), read=(gradient,))

    def _scale(self) -> torch.Tensor | None:
        """Return a copy of the loss scale: the scaler changes its own in place."""
        scaler = self._context.bus.scaler
        if scaler is None or not scaler.is_enabled():
            return None
        scale = scale_tensor(scaler)
        return None if scale is None else scale.detach().clone()

    def step_began(self, event: on.StepBegan) -> None:
        """Record the gradients that the scaler is about to unscale, or has unscaled."""
        scaler, optimizer = event
        if self._rows is not None and scaler.is_enabled():
            is_scaled = stage_of(scaler, optimizer) == READY
            self._record_gradients(optimizer, self._scale() if is_scaled else None)

    def optimizer_stepping(self, event: on.OptimizerStepping) -> None:
        """Record the gradients that an optimizer is about to step with."""
        if self._rows is not None:
            self._record_gradients(event.optimizer, None)

    def _record_gradients(self, optimizer: Optimizer, scale: torch.Tensor | None) -> None:
        index = self._context.registry.index_of(optimizer)
        if self._rows is None or index is None or id(optimizer) in self._stepped:
            return
        self._stepped.add(id(optimizer))
        for name, parameter in self._context.names.of_optimizer(optimizer, index):
            if parameter.grad is not None:
                row = RowName(RowKind.GRADIENT, name, module_of(name))
                self._rows.add(row, parameter.grad, scale=scale, read=(parameter.grad,))

    def iteration_closing(self, _event: on.IterationClosing) -> None:
        """Record the weights that the step has left, and write what there is of it."""
        rows = self._rows
        if rows is None:
            return
        for name, parameter in self._context.names.parameters():
            if parameter.requires_grad:
                rows.add(RowName(RowKind.NEW_WEIGHT, name, module_of(name)), parameter)
        self._write(rows)
        self._end_listening()

    def iteration_arrived(self, event: on.IterationArrived) -> None:
        """Write what became of a recorded step, once its loss has reached the host."""
        iteration = event.iteration
        if iteration.step not in self._waiting:
            return
        self._waiting.discard(iteration.step)
        loss = iteration.loss if iteration.num_losses else math.nan
        skipped = any(iteration.found_inf.values())
        self._put(TapeOutcome(iteration.step, loss, iteration.scale_before, skipped))

    # The way to the disk.

    def _write(self, rows: StepRows) -> None:
        names, context = self._context.names, self._context
        if not self._has_head:
            self._put(head_of(context, self._identity))
            self._has_head = True
        evaluating = [name for name, module in names.modules() if not module.training]
        recorded = rows.read()
        autocast = list(context.autocast_dtypes)
        self._put(TapeStep(self._step, recorded, autocast, evaluating, list(rows.missing)))
        if len(self._waiting) < MAX_WAITING:
            self._waiting.add(self._step)

    def _put(self, record: Any) -> None:
        if self._writer is None:
            return
        try:
            if not self._writer.put(record):
                self._stop(f"the tape has come to its limit of {MAX_FILE // 2**20} MiB")
        except OSError as error:
            if is_of_a_signal(error):
                raise
            self._stop(f"the tape {str(self._writer.path)!r} cannot be written: {error.strerror}")

    def _stop(self, why: str) -> None:
        """Record no more, and say why once."""
        self._trouble = f"steps are not recorded any more: {why}"
        logger.warning("%s; training is not affected", self._trouble)
        self._let_go()

    def _let_go(self) -> TapeWriter | None:
        """Close the file, and return what wrote it; ``None`` if it is closed already."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        return writer


MAX_OPTIONS = 32
MAX_TEXT = 80
_PLAIN = (bool, int, float, str, tuple)


def head_of(context: Context, identity: RunIdentity) -> TapeHead:
    """Return the head of a tape. Runs no code of the user's: attributes are read where they lie."""
    settings = context.settings
    found = run_facts(context.scaler, context.autocast_dtypes, context.home.device)
    facts = {name: str(value) for name, value in found.items()}  # a version is a class of its own
    facts["threads"] = str(torch.get_num_threads())
    facts["deterministic"] = str(torch.are_deterministic_algorithms_enabled())
    modules = [
        TapeModule(name, type(module).__qualname__[:MAX_TEXT], _options(module))
        for name, module in context.names.modules()
    ]
    divided = [n for n, p in context.names.parameters() if whole_part(p) is None or is_in_flat(p)]
    optimizers = [_of_optimizer(optimizer) for optimizer in context.trained.met.values()]
    return TapeHead(
        version=VERSION,
        run=identity.run,
        rank=identity.rank,
        world_size=identity.world_size,
        started_ns=identity.started_ns,
        ampwatch=identity.version,
        first=settings.record_first,
        every=settings.record_every,
        facts=facts,
        modules=modules,
        optimizers=[known for known in optimizers if known],
        divided=divided,
    )


def _options(module: nn.Module) -> dict[str, str]:
    named = {name: value for name, value in vars(module).items() if _is_option(name, value)}
    return {
        name[:MAX_TEXT]: repr(value)[:MAX_TEXT] for name, value in list(named.items())[:MAX_OPTIONS]
    }


def _is_option(name: str, value: object) -> bool:
    """Whether an attribute is a number, a flag, a word, or a tuple of them; no object of the user's."""
    if name.startswith("_") or name == "training" or type(value) not in _PLAIN:
        return False
    return not isinstance(value, tuple) or all(type(part) in _PLAIN[:-1] for part in value)


def _of_optimizer(reference: Any) -> dict[str, str]:
    optimizer = reference() if callable(reference) else reference
    if optimizer is None:
        return {}
    known = {"class": type(optimizer).__qualname__[:MAX_TEXT]}
    for number, group in enumerate(optimizer.param_groups[:MAX_OPTIONS]):
        for name, value in group.items():
            if name != "params" and _is_option(str(name), value):
                known[f"group{number}.{name}"] = repr(value)[:MAX_TEXT]
    return known
