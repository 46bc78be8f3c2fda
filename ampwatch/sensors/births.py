"""Where values that are not finite come up: each op's output is looked at as it is made."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from ampwatch.diagnosis.birth_evidence import Birth, OpTrace, Origin, Values
from ampwatch.precision.ops import Phase
from ampwatch.sensors.dtypes import name_of
from ampwatch.sensors.opcounts import tensors_among, written_by
from ampwatch.sensors.readback import host_scalar, is_plain_scalar
from ampwatch.sensors.sources import user_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from ampwatch.sensors.names import Names
    from ampwatch.sensors.opcounts import OpCall
    from ampwatch.sensors.oplistener import OpPlace

MOST_BIRTHS = 256
"""Births that are remembered of one iteration; what follows the first of them seldom matters."""

HALF = frozenset({torch.float16, torch.bfloat16})
FLOATS = HALF | {torch.float32, torch.float64}
"""The dtypes whose values are looked at. float8 holds codes that mean nothing without a scale."""

MAKES_NONE = frozenset({"_amp_update_scale_", "_amp_foreach_non_finite_check_and_unscale_"})
"""Ops of the scaler. They write what is not finite already, or was not meant to be."""


class BirthListener:
    """Follows non-finite values from the op that made them to where they end.

    The output of each op is added up, which is one pass over it; only what does not add up to a
    finite number is looked at more closely, and only then its inputs. What is not finite is
    known by the storage that it lies in. Nothing is kept but numbers.

    Args:
        names: Names of parameters and buffers.
        deliver: Takes what was seen of an iteration, if anything was.
        is_stepping: Whether an optimizer is stepping.
        scale: Returns the scaler's scale, ``None`` without one: a loss that is not finite only
            because it was multiplied by that is none of an op's doing.

    Cost:
        3 to 4 us an op besides reading its output once. On a device one sync per op: it is to be
        on only where a training is debugged or has failed already.
    """

    def __init__(
        self,
        names: Names,
        deliver: Callable[[OpTrace], None],
        is_stepping: Callable[[], bool],
        scale: Callable[[], Tensor | None],
    ) -> None:
        self._names = names
        self._deliver = deliver
        self._is_stepping = is_stepping
        self._scale = scale
        self._clear(0)

    def _clear(self, step: int) -> None:
        self._trace = OpTrace(step)
        self._births: list[Birth] = []
        self._tainted: dict[int, tuple[int, frozenset[int]]] = {}
        self._own: dict[int, tuple[Origin, str]] | None = None
        self._foreign: dict[int, int] = {}
        self._other: int | None = None
        self._count = 0

    def begin(self, step: int) -> None:
        """Iteration ``step`` begins."""
        self._clear(step)

    def end(self) -> None:
        """The iteration is over: see which gradients are not finite, and deliver."""
        trace = self._trace
        trace.num_ops = self._count
        if self._births:
            scale = self._scale()
            if scale is not None and scale.device.type == "cpu":
                trace.scale = host_scalar(scale)
            trace.births = self._births
            trace.bad_gradients = self._bad_gradients()
        self._deliver(trace)
        self._clear(trace.step)

    def note(self, call: OpCall, place: OpPlace) -> None:
        """An op has returned."""
        self._count += 1
        outputs = tensors_among((call.out,)) or written_by(call)
        bad: list[int] = []
        for index, tensor in enumerate(outputs):
            dtype = tensor.dtype
            if dtype in FLOATS and not _adds_up(tensor):
                bad.append(index)
            elif dtype in HALF:
                self._trace.has_half = True
        if place.phase is Phase.BACKWARD:
            self._trace.has_trained = True
        if bad:
            self._look(call, place, outputs, bad)
        elif self._tainted:
            self._settle(call, place, outputs)

    def _look(
        self, call: OpCall, place: OpPlace, outputs: Sequence[Tensor], bad: Sequence[int]
    ) -> None:
        """Some outputs may not be finite."""
        values = {index: values_of(outputs[index]) for index in bad}
        values = {index: known for index, known in values.items() if not known.is_finite}
        if not values:
            if self._tainted:
                self._settle(call, place, outputs)
            return
        written = {_storage(tensor) for tensor in outputs}
        given, parents, has_nans = self._inputs(call, place, written)
        for index, tensor in enumerate(outputs):
            key = _storage(tensor)
            if index not in values:
                self._tainted.pop(key, None)
                continue
            out = values[index]
            births = parents
            if (out.nans and not has_nans) or not parents:
                births = frozenset({self._born(call, place, out, index, given, parents)})
            else:
                self._spread(births, place)
            self._tainted[key] = self._count, births

    def _inputs(
        self, call: OpCall, place: OpPlace, written: set[int]
    ) -> tuple[list[Values], frozenset[int], bool]:
        """Return the finite inputs, the births that the others are made of, and if any is NaN."""
        given: list[Values] = []
        parents: frozenset[int] = frozenset()
        has_nans = False
        for tensor in _read_by(call):
            key = _storage(tensor)
            known = self._tainted.get(key)
            if key in written:
                # Its values are gone. What is known of them is where they lay.
                if known is not None:
                    parents |= known[1]
                    has_nans = has_nans or any(self._births[b].out.nans for b in known[1])
                else:
                    given.append(Values(name_of(tensor.dtype), tensor.numel()))
                continue
            if tensor.dtype not in FLOATS:
                continue
            values = values_of(tensor)
            if values.is_finite:
                given.append(values)
                continue
            has_nans = has_nans or values.nans
            if known is not None:
                parents |= known[1]
            else:
                parents |= self._found(call, place, tensor, values)
        number = _nonfinite_number(call)
        if number is not None:
            has_nans = has_nans or math.isnan(number)
            parents |= {self._constant(call, place, number)}
        return given, parents, has_nans

    def _born(
        self,
        call: OpCall,
        place: OpPlace,
        out: Values,
        index: int,
        given: Sequence[Values],
        parents: frozenset[int],
    ) -> int:
        if call.info.name in MAKES_NONE or self._is_scaling(call):
            return self._another(call, place, out)
        self._spread(parents, place)
        return self._add(
            Origin.OP, call, place, out, out_index=index, inputs=tuple(given), parents=parents
        )

    def _is_scaling(self, call: OpCall) -> bool:
        scale = self._scale()
        if scale is None:
            return False
        key = _storage(scale)
        return any(_storage(tensor) == key for tensor in _read_by(call))

    def _found(
        self, call: OpCall, place: OpPlace, tensor: Tensor, values: Values
    ) -> frozenset[int]:
        """Return the birth of values that no op was seen to make."""
        key = _storage(tensor)
        known = self._foreign.get(key)
        if known is None:
            origin, name = self._owner(key)
            known = self._foreign[key] = self._add(origin, call, place, values, name=name)
        return frozenset({known})

    def _constant(self, call: OpCall, place: OpPlace, number: float) -> int:
        out = Values("", 1, math.isnan(number), number == math.inf, number == -math.inf)
        return self._add(Origin.CONSTANT, call, place, out)

    def _add(self, origin: Origin, call: OpCall, place: OpPlace, out: Values, **more: Any) -> int:
        if len(self._births) >= MOST_BIRTHS and origin is not Origin.OTHER:
            return self._another(call, place, out)
        birth = Birth(
            index=len(self._births),
            origin=origin,
            name=more.pop("name", ""),
            op=call.info.name,
            overload=str(call.func),
            module=place.module,
            is_inside=place.is_inside,
            phase=place.phase,
            out=out,
            needs_grad=any(t.requires_grad for t in _read_by(call)),
            number=_number(call),
            is_stepping=self._is_stepping(),
            gradient=self._gradient_read_by(call, place),
            is_hook=place.phase is Phase.BACKWARD and not _is_in_node(),
            source=user_source(),
            **more,
        )
        self._births.append(birth)
        return birth.index

    def _gradient_read_by(self, call: OpCall, place: OpPlace) -> str:
        """Return the parameter whose gradient, or a cast of it, an op outside of the model reads."""
        if place.is_inside or place.phase is not Phase.OPTIMIZER:
            return ""
        read = _read_by(call)
        keys, shapes = {_storage(t) for t in read}, {t.shape for t in read if t.ndim}
        with_gradient = [(n, p.grad) for n, p in self._names.parameters() if p.grad is not None]
        for name, gradient in with_gradient:
            if _storage(gradient) in keys:
                return name
        return next((name for name, gradient in with_gradient if gradient.shape in shapes), "")

    def _another(self, call: OpCall, place: OpPlace, out: Values) -> int:
        """Return the birth that stands for all that are not told apart."""
        if self._other is None:
            self._other = self._add(Origin.OTHER, call, place, out)
        return self._other

    def _owner(self, key: int) -> tuple[Origin, str]:
        """Return whose storage it is."""
        if self._own is None:
            self._own = {
                **{_storage(b): (Origin.BUFFER, name) for name, b in self._names.buffers()},
                **{_storage(p): (Origin.PARAMETER, name) for name, p in self._names.parameters()},
            }
        return self._own.get(key, (Origin.INPUT, ""))

    def _settle(self, call: OpCall, place: OpPlace, outputs: Sequence[Tensor]) -> None:
        """All outputs are finite: what was not among the inputs has been absorbed."""
        # What backward reads of them again is no part of the result.
        computed = place.phase is not Phase.BACKWARD and not _only_looks(call)
        computed = computed and any(tensor.dtype in FLOATS for tensor in outputs)
        for tensor in _read_by(call):
            known = self._tainted.get(_storage(tensor))
            if known is None or not computed or tensor.dtype not in FLOATS:
                continue
            if not _adds_up(tensor) and not values_of(tensor).is_finite:
                for birth in known[1]:
                    self._births[birth].absorbed_by[call.info.name] += 1
        for tensor in outputs:
            self._tainted.pop(_storage(tensor), None)

    def _spread(self, births: Iterable[int], place: OpPlace) -> None:
        where = place.module if place.is_inside else "loss"
        for number in births:
            birth = self._births[number]
            if place.phase is Phase.BACKWARD:
                birth.in_backward = True
            else:
                birth.spread_to.add(where)

    def _bad_gradients(self) -> dict[str, frozenset[int]]:
        found: list[tuple[int, str, frozenset[int]]] = []
        for name, parameter in self._names.parameters():
            gradient = parameter.grad
            known = None if gradient is None else self._tainted.get(_storage(gradient))
            if gradient is None or known is None or gradient.dtype not in FLOATS:
                continue
            if not _adds_up(gradient) and not values_of(gradient).is_finite:
                found.append((known[0], name, known[1]))
        return {name: births for _, name, births in sorted(found, key=lambda item: item[0])}


@torch.no_grad()
def values_of(tensor: Tensor) -> Values:
    """Return what there is to know of the values of a tensor. Cost: some passes over it."""
    dtype, numel = name_of(tensor.dtype), tensor.numel()
    if not numel or not _is_plain(tensor):
        return Values(dtype, numel)
    low, high = (_element(x) for x in torch.aminmax(tensor.detach()))
    if math.isfinite(low) and math.isfinite(high):
        amin = _element(tensor.detach().abs().amin())
        return Values(dtype, numel, amax=max(-low, high), amin=amin)
    finite = torch.isfinite(tensor)
    magnitudes = torch.where(finite, tensor.detach().abs(), torch.zeros_like(tensor))
    return Values(
        dtype,
        numel,
        nans=bool(_element(torch.isnan(tensor).any())),
        posinf=bool(_element(torch.isposinf(tensor).any())),
        neginf=bool(_element(torch.isneginf(tensor).any())),
        amax=_element(magnitudes.amax()),
    )


def _adds_up(tensor: Tensor) -> bool:
    """Whether the elements add up to a finite number: then all of them are finite."""
    if not _is_plain(tensor) or not tensor.numel():
        return True
    total = _element(tensor.sum() if tensor.ndim else tensor)
    return total - total == 0.0


def _element(tensor: Tensor) -> float:
    """Return the one element. Cost: a sync on a device; on the CPU not even an op."""
    if tensor.is_cpu and is_plain_scalar(tensor):
        return host_scalar(tensor)
    return float(tensor.item())


def _is_plain(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_meta


def _storage(tensor: Tensor) -> int:
    """Return where a tensor lies, whatever view of it this is; 0 if it has no one place."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return 0
    return tensor.untyped_storage().data_ptr()


def _is_in_node() -> bool:
    """Whether a node of the graph computes, and not a hook beside it, where gradients are sent."""
    node = torch._C._current_autograd_node()  # noqa: SLF001 - no public name for it
    return node is not None and "AccumulateGrad" not in node.name()


def _only_looks(call: OpCall) -> bool:
    """Whether an op reads the shape of its input, and none of its values."""
    return call.info.name.endswith("_like") or call.info.name.startswith("new_")


def _read_by(call: OpCall) -> list[Tensor]:
    given = tensors_among(call.args)
    if call.kwargs:
        given += tensors_among([v for name, v in call.kwargs.items() if name != "out"])
    return given


def _nonfinite_number(call: OpCall) -> float | None:
    for value in (*call.args, *call.kwargs.values()):
        if isinstance(value, float) and not math.isfinite(value):
            return value
    return None


def _number(call: OpCall) -> float:
    """Return the Python number that an op was given as its second argument; NaN without one."""
    number = call.args[1] if len(call.args) > 1 else None
    return float(number) if isinstance(number, (int, float)) else math.nan
