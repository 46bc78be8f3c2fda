"""What an op answers that is computed once more in float64."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ampwatch.diagnosis.evidence.origins import Fault
from ampwatch.training.ops.call import OpCall
from ampwatch.training.ops.info import op_info
from ampwatch.training.sensors.origins import asking
from ampwatch.training.sensors.origins.asking import ask, ask_for_ends, emptied

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.diagnosis.evidence.origins import Answer

HALF = torch.float16


class Asking(TorchDispatchMode):
    """Asks the first op whose result is not finite."""

    def __init__(self) -> None:
        super().__init__()
        self.answer: Answer | None = None
        self.call: OpCall | None = None
        self.before: list[torch.Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        out = func(*args, **(kwargs or {}))
        tensors = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        bad = [i for i, t in enumerate(tensors) if not bool(torch.isfinite(t.float()).all())]
        if bad and self.call is None:
            self.call = OpCall(func, op_info(func), args, kwargs or {}, out)
            self.before = [t.clone() for t in tree_leaves(args) if isinstance(t, torch.Tensor)]
            self.answer = ask(self.call, bad[0])
        return out


def asked(program: Callable[[], object]) -> Answer:
    with Asking() as mode:
        program()
    assert mode.answer is not None
    return mode.answer


def numbers(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def impossible_target() -> torch.Tensor:
    frames = torch.full((2, 1, 6), 1 / 6).log()
    return functional.ctc_loss(
        frames, torch.tensor([[1, 2, 3]]), torch.tensor([2]), torch.tensor([3])
    )


OVERFLOWS = {
    "product": lambda: numbers(300.0, dtype=HALF) * numbers(300.0, dtype=HALF),
    "written number": lambda: numbers(1.5, dtype=HALF) * 1e6,
    "temperature": lambda: numbers(6e4, dtype=HALF) / 0.05,
    "cast": lambda: numbers(1e6).to(HALF),
    "matrices": lambda: (
        torch.full((64, 64), 40.0, dtype=HALF) @ torch.full((64, 64), 40.0, dtype=HALF)
    ),
    "exponential": lambda: numbers(12.0, dtype=HALF).exp(),
    "beyond float64": lambda: numbers(1000.0).exp(),
    "power": lambda: numbers(1e20).pow(2.0),
    "power of a tensor": lambda: numbers(1e20).pow(numbers(2.0)),
    "sum": lambda: torch.full((70000,), 1.0, dtype=HALF).sum(),
    "squares of a norm that fits": lambda: torch.linalg.vector_norm(numbers(1e20, 1e-3)),
    "sum of a mean that fits": lambda: functional.mse_loss(
        torch.full((32,), 1e19), torch.zeros(32)
    ),
}

POINTS = {
    "logarithm": lambda: numbers(0.0).log(),
    "0/0": lambda: numbers(0.0) / numbers(0.0),
    "1/0": lambda: numbers(1.0) / 0,
    "0/0 of a number": lambda: numbers(0.0) / 0,
    "0/0 of a count": lambda: numbers(0.0) / torch.tensor(0),
    "1/0 of counts": lambda: numbers(1.0, 1.0) / torch.tensor([0, 3]),
    "0/0 of a scalar": lambda: numbers(0.0, 1.0) / torch.tensor(0.0),
    "an eps that is next to nothing": lambda: numbers(3.0, dtype=HALF) / 1e-7,
    "a small divisor": lambda: numbers(300.0, dtype=HALF) / numbers(1e-6, dtype=HALF),
    "an eps that one minus it is one": lambda: torch.logit(numbers(1.0, dtype=HALF), eps=1e-6),
    "root": lambda: numbers(0.0).rsqrt(),
    "the end of a domain": lambda: numbers(1.0).atanh(),
    "just beyond it": lambda: numbers(1.001).acos(),
    "negative power": lambda: numbers(0.0, 2.0).pow(-0.5),
    "power of a tensor": lambda: numbers(0.0).pow(numbers(-0.5)),
}

INVALID = {
    "root": lambda: numbers(-3.0).sqrt(),
    "logarithm": lambda: numbers(-3.0).log(),
    "cosine": lambda: numbers(3.0).acos(),
    "beside a zero that is no fault": lambda: numbers(0.0, -3.0).sqrt(),
    "target": impossible_target,
}


@pytest.mark.parametrize(
    ("program", "fault"),
    [
        *((p, Fault.OVERFLOW) for p in OVERFLOWS.values()),
        *((p, Fault.POINT) for p in POINTS.values()),
        *((p, Fault.INVALID) for p in INVALID.values()),
    ],
    ids=[*OVERFLOWS, *POINTS, *INVALID],
)
def test_an_op_says_itself_what_is_wrong(program: Callable[[], object], fault: Fault) -> None:
    """Too large for the format, a point without a result, or no result near by either."""
    assert asked(program).fault is fault


@pytest.mark.filterwarnings("ignore:std:UserWarning")
def test_the_variance_of_one_sample_is_an_invalid_operation() -> None:
    """Whatever the sample is."""
    assert asked(lambda: torch.ones(1, 3).std(0)).fault is Fault.INVALID


def test_the_result_in_float64_is_told() -> None:
    """From it follows with which scale it would have fit."""
    assert asked(lambda: numbers(300.0, dtype=HALF) * 1e6).amax == 3e8
    assert asked(lambda: numbers(0.0).log()).amax == math.inf


def test_operands_and_random_state_stay_what_they_are() -> None:
    """The op gets copies."""
    state = torch.get_rng_state()
    x = numbers(0.0, 1.0, dtype=HALF)
    with Asking() as mode:
        x.log()

    assert torch.equal(x, numbers(0.0, 1.0, dtype=HALF))
    assert torch.equal(torch.get_rng_state(), state)
    assert mode.call is not None
    assert mode.before[0].dtype is HALF


@torch.library.custom_op("ampwatch_tests::counted", mutates_args=())
def counted(x: torch.Tensor) -> torch.Tensor:
    """Stand for an op of a user, whose calls somebody may count."""
    CALLS.append(1)
    return x / 0.0


CALLS: list[int] = []


def test_an_op_of_the_user_is_never_called_again() -> None:
    """Nobody knows what else it does."""
    CALLS.clear()
    assert asked(lambda: counted(numbers(1.0))).fault is Fault.UNKNOWN
    assert CALLS == [1]


@pytest.mark.parametrize(
    "program",
    [
        lambda: numbers(0.0).log_(),
        lambda: torch.log(numbers(0.0), out=torch.zeros(1)),
        lambda: torch.native_dropout(torch.full((64,), 3e38), 0.9, train=True),
    ],
    ids=["in place", "out", "random"],
)
def test_what_writes_or_draws_is_never_computed_again(program: Callable[[], object]) -> None:
    """What it has read is gone, or its random numbers are."""
    torch.manual_seed(0)
    assert asked(program).fault is Fault.UNKNOWN


def test_what_is_large_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of matrices has a limit of its own."""
    monkeypatch.setattr(asking, "MAX_ELEMENTS_OF_PRODUCT", 10)
    assert asked(OVERFLOWS["matrices"]).fault is Fault.UNKNOWN
    assert asked(POINTS["logarithm"]).fault is Fault.POINT
    monkeypatch.setattr(asking, "MAX_ELEMENTS", 1)
    assert asked(POINTS["logarithm"]).fault is Fault.UNKNOWN


class Watching(torch.overrides.TorchFunctionMode):
    """Lists the functions that a mode of the user gets to see."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


def test_a_mode_of_the_user_does_not_see_it() -> None:
    """Such as a default device."""
    with Asking() as mode:
        numbers(0.0).log()
    call = mode.call
    assert call is not None
    with Watching() as watching:
        assert ask(call, 0).fault is Fault.POINT

    assert watching.seen == []


@pytest.mark.parametrize(
    ("program", "ends", "fault"),
    [
        (lambda: numbers(0.0, 2.0).log(), [(0.0, 2.0)], Fault.POINT),
        (lambda: numbers(-3.0, 2.0).log(), [(-3.0, 2.0)], Fault.INVALID),
        (lambda: numbers(1.0, 1e30).square() * 1e30, [(1.0, 1e30)], Fault.OVERFLOW),
        (lambda: numbers(3.0) / numbers(0.0), [(3.0,), (0.0,)], Fault.POINT),
        (lambda: numbers(300.0, dtype=HALF) * 1e6, [(300.0,)], Fault.OVERFLOW),
    ],
    ids=["logarithm", "negative", "product", "division", "number"],
)
def test_the_ends_of_operands_answer_where_these_are_gone(
    program: Callable[[], object], ends: list[tuple[float, ...]], fault: Fault
) -> None:
    """As on a device, of an elementwise op."""
    with Asking() as mode:
        program()
    call = mode.call
    assert call is not None
    arguments = emptied(call)
    assert arguments is not None

    limit = torch.finfo(tree_leaves(call.out)[0].dtype).max
    assert ask_for_ends(call.func, arguments, ends, limit).fault is fault


def test_only_elementwise_ops_are_kept_for_that() -> None:
    """The ends of a matrix say nothing of a product."""
    with Asking() as mode:
        OVERFLOWS["matrices"]()

    assert mode.call is not None
    assert emptied(mode.call) is None
