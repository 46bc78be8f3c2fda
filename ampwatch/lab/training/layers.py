"""Operands of the products of linear and convolutional layers, as they were measured over a training."""

from __future__ import annotations

import math
import weakref
from bisect import bisect_right
from dataclasses import dataclass, field
from time import time_ns
from typing import TYPE_CHECKING, Any

import torch
from msgspec.structs import replace
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from ampwatch.guard import is_of_a_signal
from ampwatch.lab.precision.plan_left import OperandsMeasured, plan_made
from ampwatch.numerics.blocks import BLOCK_SIZES, merged_blocks
from ampwatch.numerics.exponents import merged
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.kernels.dtypes import name_of
from ampwatch.training.memory import HeldBytes
from ampwatch.training.model.names import own_parameters
from ampwatch.training.private import ConvNd, version_of
from ampwatch.wire.blackbox import Box
from ampwatch.wire.blackbox.document import to_json
from ampwatch.wire.records import (
    CONVOLUTION,
    LINEAR,
    MAX_PLANNED,
    PHASE_BEGINS,
    LayerRecord,
    Operand,
    OperandRecord,
    Topic,
)
from ampwatch.wire.ring.requests import FOLLOW, LAYERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.diagnosis.evidence.iteration import Iteration, TensorRange
    from ampwatch.lab.precision.plan_left import PlanMade
    from ampwatch.numerics.blocks import BlockHistogram
    from ampwatch.training.hooks.events import IterationArrived, Requested
    from ampwatch.training.iteration.context import Context
    from ampwatch.wire.records import PlanRecord, RunIdentity

_TOPICS = frozenset((Topic.ACTIVATION, Topic.ACTIVATION_GRADIENT, Topic.WEIGHT))
"""Topics of operands."""

_Key = tuple[Topic, str, bool]
"""A measured tensor: its topic, its module or the name of the parameter, whether it is an input."""

OPERAND_BYTES = 6000
"""Memory of one measurement with its blocks. Unit: bytes."""


@dataclass(slots=True)
class _Layer:
    """A module without children that was called."""

    record: LayerRecord  # what is known of it
    # qualified name of the parameter that is its weight; empty if that is not measured
    weight: str = ""
    # the measurements by operand and phase
    measured: dict[tuple[Operand, int], OperandRecord] = field(default_factory=dict)


class LayerSensor(Sensor):
    """Keeps what was measured of inputs, weights and gradients of outputs of layers.

    It measures nothing itself: the sensor of activations tells it of calls and measures inputs that
    are the output of no other module.
    """

    name = "layers"

    def __init__(self, context: Context, identity: RunIdentity) -> None:
        self._identity = identity
        self._names = context.names
        self._observe = context.observe
        self._out = context.out
        self.plan: PlanMade | None = (
            None  # the newest that was asked for, here or by another process
        )
        self._layers: dict[str, _Layer] = {}
        # Whose operands tensors are; found anew after a layer or the source of an input is another.
        self._places: dict[_Key, list[tuple[_Layer, Operand]]] | None = None
        self._calls = 0
        self._outputs: dict[int, tuple[weakref.ref[torch.Tensor], int, str]] = {}
        context.memory.add("report", self.held_bytes)

    def installed(self) -> None:
        """Find the layers: weights are measured before any is called."""
        names = {id(parameter): name for name, parameter in self._names.parameters()}
        for name, module in self._names.leaf_modules():
            if len(self._layers) < MAX_PLANNED:
                self._layers[name] = self._new(module, name, names)

    def _new(self, module: nn.Module, name: str, names: dict[int, str]) -> _Layer:
        layer = self._names.read(name, _new, module, name, names)
        return _Layer(_record(module, name)) if layer is None else layer

    def held_bytes(self) -> HeldBytes:
        """Return the bytes of what is kept, as an estimate."""
        kept = sum(len(layer.measured) for layer in self._layers.values())
        return HeldBytes(OPERAND_BYTES * kept)

    def follow(self, records: Sequence[PlanRecord]) -> None:
        """Hand over a plan that somebody has asked for, layer by layer, and from now on what is measured.

        Raises:
            ValueError: If a format is unknown.
        """
        self.plan = made = plan_made(records)
        self._observe(made)
        self._out.put(*records)

    def requested(self, event: Requested) -> None:
        """Write the layers to a file, or follow a plan, for another process."""
        request, why_not = event.request, ""
        try:
            if request.what == LAYERS:
                box = Box(self._identity, written_ns=time_ns(), layers=self.records())
                request.path.write_text(to_json([box]))
            elif request.what == FOLLOW:
                self.follow(request.plan)
            else:
                return
        except OSError as error:
            if is_of_a_signal(error):
                raise
            why_not = f"it could not be written: {error}"
        except ValueError as error:
            why_not = str(error)
        event.answer(why_not)

    def begin(self) -> None:
        """Forget whose outputs the tensors of the iteration before were."""
        self._outputs.clear()

    def called(self, module: nn.Module, name: str, args: Any, output: Any) -> torch.Tensor | None:
        """Take in the call of a module without children.

        Returns:
            Its input, if that is to be measured; ``None`` if it is none of a linear or convolutional
            layer, or is the output of a module, which is measured as such.
        """
        layer = self._layers.get(name)
        # Lazy modules become others when they are called first; some are added or replaced later.
        if layer is None or layer.record.kind != type(module).__name__:
            if layer is None and len(self._layers) >= MAX_PLANNED:
                return None
            names = {id(parameter): known for known, parameter in self._names.parameters()}
            layer = self._layers[name] = self._new(module, name, names)
            self._places = None
        record = layer.record
        self._calls += 1
        record.order = self._calls
        if not isinstance(output, torch.Tensor):
            return None
        given = args[0] if record.has_products and args else None
        needed = None
        if isinstance(given, torch.Tensor):
            record.input_elements = given.numel()
            # A transposed convolution spreads each position of its input.
            is_spread = record.layer == CONVOLUTION and module.transposed
            channels: Any = module.in_channels if is_spread else record.columns * record.groups
            record.rows = (given if is_spread else output).numel() // max(channels, 1)
            source = self._source_of(given)
            if source != record.source:
                record.source = source
                self._places = None
            record.has_grad_input = given.requires_grad
            needed = None if record.source else given
        record.dtype = name_of(output.dtype)
        # Which in-place ops have changed it since is known by the version: it is then no output any more.
        if not output.is_inference():  # which has no version
            self._outputs[id(output)] = (weakref.ref(output), version_of(output), name)
        return needed

    def _source_of(self, tensor: torch.Tensor) -> str:
        found = self._outputs.get(id(tensor))
        if found is None or found[0]() is not tensor or found[1] != version_of(tensor):
            return ""
        return found[2]

    def iteration_arrived(self, event: IterationArrived) -> None:
        """Keep what has been measured of operands."""
        iteration = event.iteration
        measured: dict[_Key, list[TensorRange]] = {}
        for r in (*iteration.ranges, *iteration.inputs):
            if (
                r.topic in _TOPICS
            ):  # most samples are of gradients of parameters, which are no operands
                name = r.name if r.topic is Topic.WEIGHT else r.module
                measured.setdefault((r.topic, name, r.is_input), []).append(r)
        if not measured:
            return
        if self._places is None:
            self._places = self._find_places()
        kept: list[tuple[str, OperandRecord]] = []
        # By what was measured, not by layer: a sample is mostly of a part of the modules.
        for key, ranges in measured.items():
            for layer, operand in self._places.get(key, ()):
                operand_record = self._keep(layer, operand, ranges, iteration)
                if operand_record is not None:
                    kept.append((layer.record.module, operand_record))
        if kept and self.plan is not None:
            self._observe(OperandsMeasured(iteration.step, kept))

    def _find_places(self) -> dict[_Key, list[tuple[_Layer, Operand]]]:
        """Return whose operands the measured tensors are."""
        places: dict[_Key, list[tuple[_Layer, Operand]]] = {}
        for layer in self._layers.values():
            record = layer.record
            if not record.has_products:
                continue
            source = record.source
            for operand, key in (
                (Operand.INPUT, (Topic.ACTIVATION, source or record.module, not source)),
                (Operand.WEIGHT, (Topic.WEIGHT, layer.weight, False)),
                (Operand.GRAD_OUTPUT, (Topic.ACTIVATION_GRADIENT, record.module, False)),
            ):
                places.setdefault(key, []).append((layer, operand))
        return places

    def _keep(
        self,
        layer: _Layer,
        operand: Operand,
        ranges: Sequence[TensorRange],
        iteration: Iteration,
    ) -> OperandRecord | None:
        """Keep the measurement of an operand, in the place of an older one of its phase, and return it."""
        if any(r.histogram.nonfinite for r in ranges):
            return None  # of a step that is skipped
        key = operand, bisect_right(PHASE_BEGINS, iteration.step)
        known = layer.measured.get(key)
        every = ranges[0].blocks if len(ranges) == 1 else [b for r in ranges for b in r.blocks]
        # Blocks are measured in some of the samples.
        is_poorer = known is not None and bool(known.blocks) and not every
        if is_poorer and self.plan is None:
            return None
        scale = iteration.scale_before if ranges[0].scaled else 1.0
        measured = OperandRecord(
            step=iteration.step,
            operand=operand,
            loss_scale=scale if 0.0 < scale < math.inf else 1.0,
            blocks=_of_each_size(every),
            histogram=ranges[0].histogram
            if len(ranges) == 1
            else merged(r.histogram for r in ranges),
        )
        if not is_poorer:
            layer.measured[key] = measured
        return measured

    def records(self) -> list[LayerRecord]:
        """Return the layers that were called, in the order of their calls, and what was measured of them."""
        called = [layer for layer in self._layers.values() if layer.record.order]
        layers = sorted(called, key=lambda layer: layer.record.order)
        return [
            replace(
                layer.record,
                order=order,
                operands=[layer.measured[key] for key in sorted(layer.measured)],
            )
            for order, layer in enumerate(layers)
        ]

    def removed(self) -> None:
        """Let go of tensors."""
        self._outputs.clear()


def _of_each_size(blocks: Sequence[BlockHistogram]) -> tuple[BlockHistogram, ...]:
    """Return the blocks of some tensors together; nothing where none were measured."""
    if tuple(b.size for b in blocks) == BLOCK_SIZES:  # of one tensor, as mostly
        return tuple(blocks)
    return tuple(merged_blocks(blocks, size) for size in BLOCK_SIZES) if blocks else ()


def _record(module: nn.Module, name: str) -> LayerRecord:
    return LayerRecord(
        module=name,
        kind=type(module).__name__,
        layer="",
        order=0,
        rows=0,
        input_elements=0,
        inner=0,
        columns=0,
        groups=1,
        has_grad_input=False,
        dtype="",
        source="",
    )


def _new(module: nn.Module, name: str, names: dict[int, str]) -> _Layer:
    record = _record(module, name)
    weight = own_parameters(module).get("weight")
    if not isinstance(module, (nn.Linear, ConvNd)) or weight is None:
        return _Layer(record)
    if isinstance(module, nn.Linear):
        record.layer = LINEAR
        record.inner, record.columns = module.in_features, module.out_features
    else:
        record.layer, record.groups = CONVOLUTION, module.groups
        record.inner = module.in_channels // module.groups * math.prod(module.kernel_size)
        record.columns = module.out_channels // module.groups
    if is_parametrized(module, "weight"):
        return _Layer(record)  # what is multiplied is computed from what is measured
    return _Layer(record, names.get(id(weight), ""))
