"""The op of a loss that failed, found in the graph that backward is about to free.

A loss is computed by the user's code, outside of every module: no replay of a model shows it. But its
graph holds what backward needs, and so most of what was computed. Each op of it is asked again, with
the inputs that it has saved.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.diagnosis.evidence.origins import OpTrace, Origin, OriginKind, Values
from ampwatch.diagnosis.forward.faults import DIVISIONS
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.kernels.admission import is_of_floats
from ampwatch.training.model.graph import nodes_behind, nodes_of
from ampwatch.training.model.module_stack import ACCUMULATES
from ampwatch.training.ops.operands import op_of
from ampwatch.training.private import schema_of, sequence_number
from ampwatch.training.sensors.origins.reading import values_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

MAX_NODES = 512
"""Nodes of a loss that are gone through. One with more is left alone."""

MAX_NUMEL = 2**24
"""Elements of a tensor that an op is asked with again."""

BOUNDED = frozenset({"log_softmax", "sigmoid", "softmax", "tanh"})
"""Ops that have saved their result alone, which is finite for all finite inputs."""

_SAVED = "_saved_"
_RESULT = "result"


class _Seen(NamedTuple):
    """Facts about one op of a loss."""

    op: str  # base name of the op
    out: Values | None  # what is known of its result; ``None`` if nothing is
    inputs: Sequence[Values]  # what is known of the inputs that it has saved
    number: float  # the Python number that it was given; NaN without one
    given: Sequence[Values] = ()  # what is known of those of its inputs that have no graph


def loss_trace(roots: Sequence[Any], begins_at: int, step: int) -> OpTrace | None:
    """Return the origin in a loss that is not finite: an op, or what one was given besides what the model has made.

    ``None`` if it is elsewhere, or unknown.

    Args:
        roots: Where backward will begin.
        begins_at: Sequence number of autograd when the model had returned: nodes from there on are
            the loss's.
        step: The open iteration.

    Cost: as much as the loss itself. Only for a loss in host memory that is known not to be finite.
    """
    nodes = _nodes_of(roots, begins_at)
    if len(nodes) > MAX_NODES:
        return None
    for node in nodes:
        seen = _seen(node)
        bad, given = ([v for v in each if not v.is_finite] for each in (seen.inputs, seen.given))
        if given and len(given) == len(bad):
            return _trace_of(seen, step, given[0])
        is_of_others = seen.op in BOUNDED and not (seen.out is None or seen.out.is_finite)
        if is_of_others or bad:
            return None  # it came from the model, or from an op that nothing is known of
        if seen.out is not None and not seen.out.is_finite:
            return _trace_of(seen, step)
    return None


def _nodes_of(roots: Sequence[Any], begins_at: int) -> list[Any]:
    """Return the nodes of a loss in the order in which its ops ran."""
    behind = nodes_behind(
        nodes_of(roots), lambda node: bool(begins_at <= sequence_number(node) < ACCUMULATES)
    )
    return sorted((node for node, _ in islice(behind, MAX_NODES + 1)), key=sequence_number)


def _seen(node: Any) -> _Seen:
    saved = dict(_saved_by(node))
    op = op_of(node)
    result = saved.pop(_RESULT, None)
    inputs = [value for value in saved.values() if _is_readable(value)]
    if result is None and inputs:
        result = _asked_again(op, saved)
        divisor: Any = saved.get("other")
        if result is None and op in DIVISIONS and _is_readable(divisor) and not divisor.all():
            # Without a gradient of its own it alone is saved. Nothing divided by zero is finite.
            result = torch.zeros_like(divisor) / divisor
    numbers = [float(v) for v in saved.values() if isinstance(v, (int, float)) and v is not True]
    return _Seen(
        op,
        values_of(result) if _is_readable(result) else None,
        [values_of(value) for value in inputs],
        numbers[0] if len(numbers) == 1 else float("nan"),
        [values_of(value) for value in inputs if not value.requires_grad],
    )


def _saved_by(node: Any) -> Iterator[tuple[str, Any]]:
    for attribute in dir(node):
        if attribute.startswith(_SAVED):
            try:
                yield attribute.removeprefix(_SAVED), getattr(node, attribute)
            except RuntimeError:
                continue  # freed, or changed in place since


def _is_readable(value: Any) -> bool:
    return bool(is_of_floats(value) and value.is_cpu and value.numel() <= MAX_NUMEL)


def _asked_again(op: str, saved: dict[str, Any]) -> Tensor | None:
    """Return what an op makes of the inputs that it has saved; ``None`` if some are missing."""
    packet = getattr(torch.ops.aten, op, None)
    for name in packet.overloads() if packet is not None else ():
        overload = getattr(packet, name)
        schema = schema_of(overload)
        if schema.is_mutable or torch.Tag.nondeterministic_seeded in overload.tags:
            continue
        needed = [a.name for a in schema.arguments if not a.has_default_value()]
        if not all(saved.get(argument) is not None for argument in needed):
            continue
        known = {a.name: saved[a.name] for a in schema.arguments if a.name in saved}
        try:
            with torch.no_grad():
                made = overload(**known)
        except (RuntimeError, TypeError):
            continue  # another overload of that name
        first = made[0] if isinstance(made, (tuple, list)) and made else made
        return first if isinstance(first, torch.Tensor) else None
    return None


def _trace_of(seen: _Seen, step: int, given: Values | None = None) -> OpTrace:
    """Return the trace of an op that has made the values, or was ``given`` them in a tensor without a graph."""
    origin = Origin(
        index=0,
        kind=OriginKind.OP if given is None else OriginKind.INPUT,
        name="",
        op=seen.op,
        overload=f"aten.{seen.op}",
        module="",
        is_inside=False,
        phase=Phase.FORWARD,
        out=given or seen.out or Values("", 0),
        inputs=seen.inputs if given is None else (),
        needs_grad=given is None,
        is_unseen=given is not None,
        number=seen.number,
        spread_to={"loss"},
    )
    return OpTrace(step, [origin], loss_nonfinite=True, has_trained=True, is_replay=True, num_ops=1)
