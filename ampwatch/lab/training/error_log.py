"""The errors of the ops of a replay: what each of them adds, what comes in, and what it does to the loss."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.diagnosis.performance.op_shares import is_within
from ampwatch.guard import is_of_a_signal
from ampwatch.lab.budget import ErrorRow
from ampwatch.lab.training.exact_ops import (
    EXACT,
    Apart,
    ExactRun,
    ExactValues,
    as_exact,
    float_tensors,
    is_random,
    with_strides_of,
    writes,
)
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.kernels.admission import is_dense
from ampwatch.training.kernels.dtypes import name_of
from ampwatch.training.model.tensors import all_tensors_in, tensors_in
from ampwatch.training.replay.replay import loss_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.ops.events import OpPlace
    from ampwatch.training.replay.replay import Execute

NOISE = 2.0**-49
"""Relative error below which float64 itself may have made it: as if there were none."""


class _Key(NamedTuple):
    module: str
    op: str
    phase: str
    dtype: str


class _Tally:
    """Errors of one op of one module: sums of squares over all elements of all calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.exact = self.total = self.born = self.propagated = 0.0
        self.amplification: float | None = None
        self.is_born_known = True
        self.is_weighed = False
        self.contribution = self.squares = 0.0

    def amplifies(self, out: float, given: float) -> None:
        """Take in the relative errors of what a call has returned and of what it was given."""
        if given > NOISE and math.isfinite(given):
            self.amplification = max(self.amplification or 0.0, out / given)

    def row(self, key: _Key) -> ErrorRow:
        weight = None
        if self.is_weighed:
            weight = max(abs(self.contribution), math.sqrt(self.squares))
            weight = math.inf if math.isnan(weight + self.squares) else weight
        return ErrorRow(
            **key._asdict(),
            calls=self.calls,
            total=_relative(self.total, self.exact),
            born=_relative(self.born, self.exact) if self.is_born_known else None,
            propagated=_relative(self.propagated, self.exact) if self.is_born_known else None,
            amplification=self.amplification,
            contribution=self.contribution if self.is_weighed else None,
            weight=weight,
        )


class Target(NamedTuple):
    """What origins contribute to, as an ``ErrorBudget`` has it; unknown before the model has returned."""

    target: str = "output"  # ``loss`` or ``output``
    value: float | None = None  # the loss, or the norm of the output
    exact: float | None = None  # the same in float64
    error: float | None = None  # that of the loss, with its sign, or its norm, of the output


class ErrorLog:
    """Runs beside each op of a replay the same op in float64, twice, and adds up how they differ.

    On the very inputs that it had: what differs originates in the op. And on exact inputs, of which
    autograd records a graph: what differs is its whole error, and the gradient of the exact loss to
    its result, times what originates, is what that adds to the error of the loss, to first order.

    Cost:
        Each op three times in forward, of which twice in float64, and its gradient once; in backward
        three times. Memory of a batch's activations some seven times over.
    """

    def __init__(self, loss: Callable[[Any], Any] | None = None) -> None:
        self._apart = Apart()
        self._loss = loss
        self.target = Target()  # what origins contribute to, once the model has returned
        self._values = ExactValues()
        self._tallies: dict[_Key, _Tally] = {}
        self._modules: dict[str, _Tally] = {}
        self._dtypes: dict[str, str] = {}
        self._given: list[tuple[str, float]] = []
        # Of a graph: what is added to a result that has none, so that its gradient is known.
        self._root = torch.zeros((), dtype=EXACT, requires_grad=True)
        self._is_weighed = False
        self.notes: dict[str, None] = {}  # in words, why ops were not measured

    def run(self, call: OpCall, place: OpPlace, execute: Execute) -> Any:
        """Run an op of the replay, and the same op in float64 beside it; return what it returns."""
        in_forward = place.phase is Phase.FORWARD
        written = writes(call)
        is_source = is_random(call) or not all_tensors_in([*call.args, *call.kwargs.values()])
        is_measured = not (call.info.is_ignored or is_source)
        with self._apart():
            read = (
                [] if call.info.is_ignored else float_tensors([*call.args, *call.kwargs.values()])
            )
            given = max(map(self._values.error_of, read), default=0.0)
            exactly = ExactRun(call, self._values.of)
            # Before it runs: it may write to what it was given.
            beside = ExactRun(call, as_exact) if is_measured else None
        out = execute(call.args)
        made = all_tensors_in([out]) or list(written)
        born: list[Tensor] | None = None
        if beside is not None:
            with self._apart():
                born = self._tried(call, beside)
        with self._apart(records=in_forward):
            if is_source:
                exact = self._sources(call, made, written)
            elif call.info.name == "detach":
                # The error goes through, whatever gradients do.
                exact = [self._values.of(call.args[0])]
            else:
                exact = self._tried(call, exactly) or [as_exact(tensor) for tensor in made]
            tally = self._tally(call, place, made) if is_measured else None
            self._take(tally, made, exact, born, given)
            self._follow(written, made)
        return out

    def _tally(self, call: OpCall, place: OpPlace, made: Sequence[Tensor]) -> _Tally:
        dtype = next((t.dtype for t in made if t.is_floating_point()), None)
        name = "" if dtype is None else name_of(dtype)
        key = _Key(place.module, call.info.name, place.phase.label, name)
        tally = self._tallies.setdefault(key, _Tally())
        tally.calls += 1
        return tally

    def _tried(self, call: OpCall, exactly: ExactRun) -> list[Tensor] | None:
        """Return the results in float64; ``None`` where the op does not know it, which is noted."""
        try:
            return exactly.run()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever an op says that does not know float64
            if is_of_a_signal(error):
                raise
            words = f"{call.info.name} does not run in float64, and is taken for exact"
            self.notes[words] = None
            return None

    def _sources(
        self, call: OpCall, made: Sequence[Tensor], written: Sequence[Tensor]
    ) -> list[Tensor]:
        """Return what is exact as it is: random numbers, and what is made of numbers alone."""
        if call.info.name == "native_dropout" and len(made) > 1:
            return self._dropped_out(call, made)
        exact = []
        for tensor in made:
            is_written = any(tensor is one for one in written)
            now = as_exact(tensor)
            exact.append(self._values.of(tensor).copy_(now) if is_written else now)
        return exact

    def _dropped_out(self, call: OpCall, made: Sequence[Tensor]) -> list[Tensor]:
        given = dict(zip(call.info.arguments, call.args, strict=False)) | call.kwargs
        kept = as_exact(made[1])
        scale = 1.0 / (1.0 - given["p"]) if given.get("train") and given["p"] < 1.0 else 1.0
        return [self._values.of(given["input"]) * kept * scale, kept]

    def _take(
        self,
        tally: _Tally | None,
        made: Sequence[Tensor],
        exact: Sequence[Tensor],
        born: Sequence[Tensor] | None,
        given: float,
    ) -> None:
        """Take in what an op has made, what is exact, and what is exact for the inputs it had."""
        came = size = 0.0
        # Some return for backward what is no result, as the mean of a LayerNorm: nothing flows there.
        flows = any(truth.requires_grad for truth in exact)
        for place, tensor in enumerate(made):
            truth = exact[place] if place < len(exact) else as_exact(tensor)
            error = 0.0
            if tensor.is_floating_point() and is_dense(tensor):
                is_result = tally is not None and (truth.requires_grad or not flows)
                truth = with_strides_of(truth.to(EXACT), tensor) if is_result else truth
                now, there = tensor.detach().to(EXACT), truth.detach()
                total, whole = _squares(_difference(now, there)), _size(there)
                error = _relative(total, whole)
                if tally is not None and is_result:
                    tally.total, tally.exact = tally.total + total, tally.exact + whole
                    beside = born[place] if born is not None and place < len(born) else None
                    came, size = came + self._note_origin(tally, now, truth, beside), size + whole
            self._values.put(tensor, truth, error)
        if tally is not None and not math.isnan(came):
            tally.amplifies(_relative(came, size), given)

    def _follow(self, written: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        """Take in anew how exact those tensors are that an op has written to and not returned."""
        for tensor in written:
            if any(tensor is one for one in made) or not float_tensors(tensor):
                continue
            exact = self._values.of(tensor)
            error = _squares(_difference(tensor.detach().to(EXACT), exact.detach()))
            self._values.put(tensor, exact, _relative(error, _size(exact)))

    def _note_origin(
        self, tally: _Tally, now: Tensor, truth: Tensor, beside: Tensor | None
    ) -> float:
        """Add up what originated in a result; return the square of what came in with the inputs."""
        if beside is None:
            tally.is_born_known = False
            return math.nan
        added = _difference(now, beside)
        came = _squares(_difference(beside, truth.detach()))
        tally.born += _squares(added)
        tally.propagated += came
        if torch.is_grad_enabled() and bool(added.any()):
            if not truth.requires_grad:
                truth.add_(self._root)
            # In float32: of an error its own error does not matter.
            truth.register_hook(partial(self._weigh, tally, added.float()))  # type: ignore[no-untyped-call]
        return came

    def _weigh(self, tally: _Tally, added: Tensor, gradient: Tensor) -> None:
        """Take in the gradient of the target to a result: times what originates it is what that adds."""
        with self._apart():
            gradient = gradient.detach()
            # Where nothing depends on it an infinite error does no harm: of a masked score, say.
            parts = torch.where(gradient == 0.0, 0.0, gradient * added)
            tally.contribution += float(parts.sum())
            tally.squares += _squares(parts)

    def entered(self, module: str, args: Any) -> None:
        """Take in what a module is called with."""
        errors = [self._values.error_of(tensor) for tensor in float_tensors(tensors_in(args))]
        self._given.append((module, max(errors, default=0.0)))

    def left(self, module: str, output: Any) -> None:
        """Take in what a module has returned, in forward."""
        given = 0.0
        while self._given:
            name, given = self._given.pop()
            if name == module:
                break
        outputs = float_tensors(tensors_in(output))
        if not outputs:
            return
        tally = self._modules.setdefault(module, _Tally())
        self._dtypes[module] = name_of(outputs[0].dtype)
        tally.calls += 1
        total = size = 0.0
        with self._apart():
            for tensor in outputs:
                exact = self._values.of(tensor)
                total += _squares(_difference(tensor.detach().to(EXACT), exact.detach()))
                size += _size(exact)
        tally.exact += size
        tally.total += total
        tally.amplifies(_relative(total, size), given)

    def complete(self, output: Any) -> Any:
        """Return the loss, where it is computed outside of the model; else what is given."""
        return output if self._loss is None else self._loss(output)

    def returned(self, output: Any) -> None:
        """Weigh what originates by the gradient of the target: of the loss, or else of all of the output."""
        loss = loss_in(output)
        tensors = [loss] if loss is not None else float_tensors(tensors_in(output))
        with self._apart(records=True):
            exact = [self._values.of(tensor) for tensor in tensors]
            now = [tensor.detach().to(EXACT) for tensor in tensors]
            errors = [_difference(a, b.detach()) for a, b in zip(now, exact, strict=True)]
            norm = _norm(errors)
            if loss is not None:
                starts = [torch.ones_like(truth) for truth in exact]
                self.target = Target(
                    "loss", float(now[0]), float(exact[0].detach()), float(errors[0])
                )
            elif exact:
                # Its direction: then what originates adds up to the norm.
                starts = [error / norm if norm > 0.0 else error for error in errors]
                self.target = Target("output", _norm(now), _norm(exact), norm)
            if exact:
                self._go_back(exact, starts)
        self._values.settle()

    def _go_back(self, exact: Sequence[Tensor], starts: Sequence[Tensor]) -> None:
        roots = [(t, start) for t, start in zip(exact, starts, strict=True) if t.requires_grad]
        if not roots:  # nothing originates that reaches the target
            self._is_weighed = True
            return
        try:
            torch.autograd.grad(
                [t for t, _ in roots],
                [self._root],
                [start for _, start in roots],
                allow_unused=True,
            )
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if is_of_a_signal(error):
                raise
            words = str(error).partition("\n")[0][:160]
            self.notes[f"the effect of errors on the target is not known: {words}"] = None
            return
        self._is_weighed = True

    def rows(self) -> list[ErrorRow]:
        """Return the rows of ops, those that matter most first."""
        for key, tally in self._tallies.items():
            tally.is_weighed = self._is_weighed and key.phase == Phase.FORWARD.label
        rows = [
            tally.row(key) for key, tally in self._tallies.items() if tally.exact or tally.total
        ]
        return sorted(rows, key=lambda r: (r.weight or 0.0, r.born or 0.0), reverse=True)

    def module_rows(self) -> list[ErrorRow]:
        """Return the rows of modules, in the order in which they have returned first.

        What originates in a module originates in its ops, and in those of its parts.
        """
        rows = []
        for name, tally in self._modules.items():
            inside = [
                t
                for key, t in self._tallies.items()
                if key.phase == Phase.FORWARD.label and is_within(key.module, name)
            ]
            tally.contribution = sum(t.contribution for t in inside)
            tally.squares = sum(t.squares for t in inside)
            tally.is_weighed, tally.is_born_known = self._is_weighed, False
            rows.append(tally.row(_Key(name, "", Phase.FORWARD.label, self._dtypes[name])))
        return rows

    def forget(self) -> None:
        """Let go of everything but the numbers. Idempotent."""
        self._values.forget()


def _difference(first: Tensor, second: Tensor) -> Tensor:
    """Return the difference; none where both are the same infinity, as masks have it."""
    return torch.where(first == second, 0.0, first - second)


def _size(tensor: Tensor) -> float:
    """Return the sum of the squares of the elements that are finite."""
    squares = _squares(tensor)
    if math.isfinite(squares):
        return squares
    return _squares(torch.where(torch.isfinite(tensor), tensor, 0.0))


def _squares(tensor: Tensor) -> float:
    norm = float(torch.linalg.vector_norm(tensor.detach()))
    return norm * norm


def _norm(tensors: Iterable[Tensor]) -> float:
    return math.sqrt(sum(map(_squares, tensors)))


def _relative(error: float, exact: float) -> float:
    """Return the root of a quotient of sums of squares; infinite for a NaN, or where nothing should be."""
    if error == 0.0:
        return 0.0
    if math.isnan(error) or exact == 0.0:
        return math.inf
    return math.sqrt(error / exact)
