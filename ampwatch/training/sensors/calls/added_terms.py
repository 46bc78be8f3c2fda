"""Terms made of weights that a program adds to gradients while these are multiplied by the loss scale."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ampwatch.diagnosis.evidence.calls import AddedTerm
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.hooks.sources import user_source
from ampwatch.training.model.names import parameters_of
from ampwatch.training.model.scaler import scale_on_host
from ampwatch.training.ops.call import tensors_among
from ampwatch.training.ops.operands import is_in_node
from ampwatch.training.ops.storage import Memory
from ampwatch.training.ops.values import is_plain
from ampwatch.training.sensors.calls.scaled_ops import MAX_KEPT, ScaledGradientOps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from torch.optim import Optimizer

    from ampwatch.training.hooks.events import Scaled
    from ampwatch.training.iteration.context import Context
    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.ops.events import Op, OpPlace
    from ampwatch.training.ops.info import OpInfo

MAKES = frozenset(
    {"sign", "sgn", "abs", "neg", "mul", "div", "add", "sub", "pow", "square", "clone", "_to_copy"}
    | {f"_foreach_{name}" for name in ("sign", "abs", "neg", "mul", "div", "add", "sub", "pow")}
)
"""Ops that make terms of weights."""

ADDS = frozenset({"add_", "sub_", "_foreach_add_", "_foreach_sub_"})
"""Ops that add terms to gradients."""

COPIES = frozenset({"clone", "_to_copy"})
"""Ops whose result is a gradient if they are given one."""

SUMS = frozenset({"add", "sub", "_foreach_add", "_foreach_sub"})
"""Ops that make another gradient of a gradient and a term."""

MAX_COUNT = 64
"""Largest integer that is taken for an exponent or a count of something, and not for a loss scale."""

MAX_FACTORS = 8
"""Constants in one term, beyond which it is let go."""

Factors = frozenset[float]


class _Term(NamedTuple):
    """A tensor that was made by the program.

    Attributes:
        memory: Where it lies.
        factors: The constants in it, where it is made of weights and constants alone; ``None`` where
            anything else is in it, as a gradient is.
    """

    memory: Memory
    factors: Factors | None


class _Added(NamedTuple):
    """A gradient that a term was added to.

    Attributes:
        memory: Where it lies.
        factors: The constants in the term.
        source: ``file:line`` of the addition.
    """

    memory: Memory
    factors: Factors
    source: str


class AddedTerms(ScaledGradientOps):
    """Finds what a program adds to scaled gradients that has nothing of the scaled loss in it.

    It does so between backward and ``unscale_``, or in hooks of backward. What a hook returns is taken over by
    autograd where there is no gradient yet, and then the gradient lies where it lies.

    A term counts if it was made of weights and of constants alone, op by op: the derivative of a penalty, or weight
    decay by hand. Where anything else was in it, as the scaler's own tensor, a buffer of gradients, or a gradient,
    it is let go. A constant may have the scale in it: the diagnosis judges that. A gradient that the program has
    also multiplied or replaced is let go, for it may have been unscaled by that.

    Args:
        context: Shared parts of the training, with an enabled scaler.

    Cost:
        Nothing in iterations whose ops are not observed. Less than 1 us for an op that is none of these, as those of
        the backward pass; some 10 us for one that makes or adds a term, between backward and the step or in a hook.
    """

    name = "added_terms"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._terms: dict[int, _Term] = {}
        self._added: dict[int, _Added] = {}
        self._replaced: set[int] = set()
        self._weights: dict[int, Memory] | None = None
        self._is_scaled = False

    def forget(self) -> None:
        """Refer to no tensor."""
        super().forget()
        self._terms.clear()
        self._added.clear()
        self._replaced.clear()
        self._weights = None
        self._is_scaled = False

    def scaled(self, event: Scaled) -> None:
        """Take note that a loss was scaled: without one no gradient carries the scale."""
        self._is_scaled |= event.scaler is self._scaler

    def wants_op(self, info: OpInfo, *, in_backward: bool) -> bool:
        """Whether an op shows that backward runs, makes a term, or changes a tensor in place."""
        is_change = info.name in MAKES or info.name.endswith("_")
        return is_change or (in_backward and info.kind.has_flops)

    def see_backward(self) -> None:
        """Have terms followed from now on, if the loss was scaled."""
        super().see_backward()
        self._is_after_backward = self._is_scaled

    def glance(self, call: OpCall) -> bool:
        """Whether an op changes no gradient; what the nodes of the graph compute is the backward pass itself."""
        return super().glance(call) or is_in_node()

    def op(self, event: Op) -> None:
        """Follow an op, unless a node of the graph computes it."""
        # Before the stack is walked: another sensor may have had the event made.
        if event.call.info.kind.has_flops or not is_in_node():
            super().op(event)

    def change(self, call: OpCall, place: OpPlace) -> None:
        """Follow terms from the weights into gradients."""
        # What a module computes goes into a loss.
        if place.is_inside or not self._is_after_backward:
            return
        is_hook = place.phase is Phase.BACKWARD
        if call.info.name in MAKES:
            self._make(call, is_hook=is_hook)
        else:
            self._change_in_place(call, is_hook=is_hook)

    def _is_weight(self, tensor: Tensor) -> bool:
        """Whether a tensor lies where a parameter lies, and has lain since a tensor was first asked for."""
        if self._weights is None:
            weights = [p for _, p in self._names.parameters() if is_plain(p)]
            self._weights = {p.data_ptr(): Memory(p) for p in weights}
        # A program may put other tensors into its parameters: gradients are given the memory that it frees.
        memory = self._weights.get(tensor.data_ptr())
        return memory is not None and memory.is_of(tensor)

    def _factors_of(self, tensor: Tensor) -> Factors | None:
        """Return the constants in a term, none for a weight, and ``None`` where a tensor is neither."""
        if not is_plain(tensor):
            return None
        if self._is_weight(tensor):
            return frozenset()
        term = self._term_of(tensor)
        return None if term is None else term.factors

    def _term_of(self, tensor: Tensor) -> _Term | None:
        """Return what is known of a tensor that the program has made."""
        term = self._terms.get(tensor.data_ptr())
        return term if term is not None and term.memory.is_of(tensor) else None

    def _is_untouched(self, tensor: Tensor, *, is_hook: bool) -> bool:
        """Whether a tensor is a gradient that the program has only added to, or may be one in a hook."""
        if is_hook:
            is_new = is_plain(tensor) and self._term_of(tensor) is None
            return is_new and not self._is_weight(tensor)
        return self.is_gradient(tensor) and tensor.data_ptr() not in self._replaced

    def _factors_of_call(self, given: Sequence[Tensor], call: OpCall) -> Factors | None:
        """Return the constants in what a call makes of tensors; ``None`` where one of them is no term."""
        factors = {float(n) for n in (*call.args, *call.kwargs.values()) if _is_factor(n)}
        for tensor in given:
            of_one = self._factors_of(tensor)
            if of_one is None:
                return None
            factors |= of_one
        return frozenset(factors) if given and len(factors) <= MAX_FACTORS else None

    def _make(self, call: OpCall, *, is_hook: bool) -> None:
        results = tensors_among((call.out,))
        for number, result in enumerate(results):
            given = _inputs_of(call, number, len(results))
            factors = self._factors_of_call(given, call)
            if factors is None and call.info.name in SUMS and len(given) == 2:
                # ``p.grad + term`` may become the gradient.
                for gradient, other in (given, given[::-1]):
                    if self._is_untouched(gradient, is_hook=is_hook):
                        self._enter(result, [other], call)
            if factors is not None or call.info.name not in COPIES:
                self._put(result, factors, is_hook=is_hook)

    def _put(self, result: Tensor, factors: Factors | None, *, is_hook: bool) -> None:
        if not is_plain(result):
            return
        # In a hook nothing else tells a gradient from what the program has made of one.
        if factors is None and not is_hook:
            self._terms.pop(result.data_ptr(), None)
        elif len(self._terms) < MAX_KEPT:
            self._terms[result.data_ptr()] = _Term(Memory(result), factors)

    def _change_in_place(self, call: OpCall, *, is_hook: bool) -> None:
        """Follow what is changed in place: a gradient, in a hook one on its way, or a term."""
        name = call.info.name
        targets = tensors_among(call.args[:1])
        for number, target in enumerate(targets):
            given = _inputs_of(call, number, len(targets))
            if name in ADDS and self._is_untouched(target, is_hook=is_hook):
                self._enter(target, given[1:], call)
            elif not is_hook and self.is_gradient(target):
                self._replaced.add(target.data_ptr())
            elif is_plain(target):
                is_term = name.removesuffix("_") in MAKES
                factors = self._factors_of_call(given, call) if is_term else None
                self._put(target, factors, is_hook=is_hook)
                if name not in ADDS:
                    self._added.pop(target.data_ptr(), None)

    def _enter(self, gradient: Tensor, given: Sequence[Tensor], call: OpCall) -> None:
        factors = self._factors_of_call(given, call)
        # What is spread over the gradient from a smaller shape is no penalty of each weight.
        if factors is None or not is_plain(gradient) or given[0].shape != gradient.shape:
            return
        if len(self._added) < MAX_KEPT:
            entry = _Added(Memory(gradient), factors, user_source())
            self._added.setdefault(gradient.data_ptr(), entry)

    # What they are used for.

    def check(self, optimizer: Optimizer) -> None:
        """Look for terms in the gradients that are about to be unscaled."""
        if self._added:
            self._report(optimizer)

    def _report(self, optimizer: Optimizer) -> None:
        found = []
        for parameter in parameters_of(optimizer):
            gradient = parameter.grad
            if not is_plain(gradient) or gradient.data_ptr() in self._replaced:
                continue
            added = self._added.pop(gradient.data_ptr(), None)
            # Memory that was freed is given to other tensors.
            if added is not None and added.memory.is_of(gradient):
                found.append((parameter, added))
        if not found:
            return
        parameter, added = found[0]
        index = self._registry.admit(optimizer)
        names = {id(p): name for name, p in self._names.of_optimizer(optimizer, index)}
        self._observe(
            AddedTerm(
                step=self._step,
                optimizer=index,
                scale=scale_on_host(self._scaler),
                parameter=names.get(id(parameter), ""),
                parameters=len(found),
                factors=tuple(sorted(frozenset[float]().union(*(one.factors for _, one in found)))),
                source=added.source,
            )
        )


def _is_factor(value: object) -> bool:
    """Whether an argument is a number that may have the scale in it: small integers are exponents and counts."""
    if isinstance(value, bool):
        return False
    return isinstance(value, float) or (isinstance(value, int) and abs(value) > MAX_COUNT)


def _inputs_of(call: OpCall, number: int, count: int) -> list[Tensor]:
    """Return the tensors that one of several results was made of."""
    found: list[Tensor] = []
    for value in (*call.args, *call.kwargs.values()):
        if isinstance(value, (list, tuple)) and len(value) == count:
            found += tensors_among((value[number],))
        else:
            found += tensors_among((value,))
    return found
