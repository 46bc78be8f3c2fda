"""Error budgets beside what a plain script in float64 finds, and births of error that were planted."""

from __future__ import annotations

import copy
import json
import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, linear

import ampwatch
from ampwatch import lab
from ampwatch.errors import SettingsError, StateError
from ampwatch.lab.budget import ErrorBudget, from_dict
from tests.training.replay.small_models import MODELS, batch

if TYPE_CHECKING:
    from collections.abc import Callable

HALVES = (torch.float16, torch.bfloat16)
EACH = [(name, dtype) for name in MODELS for dtype in HALVES]


def outputs_of(model: nn.Module, inputs: tuple[Any, ...]) -> dict[str, Tensor]:
    """Return what each module with one output returns, and the loss under the empty name."""
    seen: dict[str, Tensor] = {}

    def hook(name: str) -> Callable[..., None]:
        def keep(_module: nn.Module, _args: Any, output: Any) -> None:
            seen[name] = (output[0] if isinstance(output, tuple) else output).detach().double()

        return keep

    handles = [m.register_forward_hook(hook(name)) for name, m in model.named_modules()]
    with torch.no_grad():
        model(*inputs)
    for handle in handles:
        handle.remove()
    return seen


def as_exact(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(x.double() if x.is_floating_point() else x for x in inputs)


def budget_of(model: nn.Module, inputs: tuple[Any, ...], trained: Any, **more: Any) -> ErrorBudget:
    """Return the budget of one call of a model under autocast, or without it."""
    with ampwatch.monitor(model, serve=False) as watch:
        with torch.autocast("cpu", dtype=trained or torch.bfloat16, enabled=trained is not None):
            model(*inputs)
        budget: ErrorBudget = lab.error_budget(watch, **more)
    assert not budget.why_not
    return budget


@pytest.mark.rotating
@pytest.mark.parametrize(("name", "dtype"), EACH)
def test_modules_are_as_far_off_as_a_script_in_float64_finds(name: str, dtype: torch.dtype) -> None:
    """Each module within 10 %, the worst ten in the same order; the loss and its error as well."""
    torch.manual_seed(3)
    model, inputs = MODELS[name](), batch(name)
    budget = budget_of(model, inputs, dtype)
    with torch.autocast("cpu", dtype=dtype):
        low = outputs_of(copy.deepcopy(model), inputs)
    exact = outputs_of(copy.deepcopy(model).double(), as_exact(inputs))

    errors = {key: float((low[key] - exact[key]).norm() / exact[key].norm()) for key in exact}
    # The root returns a loss and logits: the row of the root is of both.
    loss = (float(low.pop("")), float(exact.pop("")))
    del errors[""]
    found = {row.module: row.total for row in budget.modules if row.module}
    assert found == pytest.approx(errors, rel=0.1)
    worst = [sorted(e, key=lambda key: -e[key])[:10] for e in (found, errors)]
    assert worst[0] == worst[1]
    assert (budget.value, budget.exact) == pytest.approx(loss, rel=1e-9)
    assert budget.error == pytest.approx(loss[0] - loss[1], rel=0.1)
    # What is born explains it within a factor of two, sign and all.
    assert budget.target == "loss"
    assert 0.5 < budget.explained / budget.error < 2.0
    assert budget.explained == pytest.approx(sum(r.contribution or 0.0 for r in budget.rows))


def test_without_a_loss_births_explain_the_error_of_the_output() -> None:
    """Its norm; and the budget says what it is about, and what would be more."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    x = torch.randn(4, 8)
    budget = budget_of(model, (x,), torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        low = model(x).double()
        error = float((low - copy.deepcopy(model).double()(x.double())).norm())

    assert budget.target == "output"
    assert budget.error == pytest.approx(error)
    assert 0.5 < budget.explained / error < 2.0
    assert "does not return its loss" in str(budget)
    assert not [row for row in budget.rows if row.phase == "backward"]


def test_a_loss_outside_of_the_model_can_be_handed_in() -> None:
    """Then it is the target, its ops are in the budget, and backward is."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    loss = lambda out: out.float().square().mean()  # noqa: E731 - as a user writes it
    budget = budget_of(model, (torch.randn(4, 8),), torch.bfloat16, loss=loss)

    assert budget.target == "loss"
    assert {"pow", "mean"} <= {row.op for row in budget.rows}
    assert [row for row in budget.rows if row.phase == "backward"]


@pytest.mark.each_commit
def test_a_product_is_checked_by_hand() -> None:
    """What is born, what came in, and by how much it was amplified, of two ops in float16."""
    torch.manual_seed(0)
    x = torch.randn(64, dtype=torch.float64)

    class Cancels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros((), dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return (x + self.bias).half() - x.round().half()

    budget = budget_of(Cancels(), (x,), None)
    sub = next(row for row in budget.rows if row.op == "sub")
    given, whole = x.half().double(), x.round()
    exact = x - whole
    came = (given - x).norm() / exact.norm()

    assert sub.propagated == pytest.approx(float(came), rel=1e-6)
    assert sub.amplification == pytest.approx(float(came / ((given - x).norm() / x.norm())))
    born = (given - whole).half().double() - (given - whole)
    assert sub.born == pytest.approx(float(born.norm() / exact.norm()), rel=1e-6, abs=1e-15)
    assert sub.total == pytest.approx(float(((given - whole).half() - exact).norm() / exact.norm()))
    assert sub.bits == pytest.approx(-math.log2(sub.total))


@pytest.mark.rotating
@pytest.mark.parametrize("trained", [None, torch.float16])
def test_another_dtype_is_what_a_training_in_it_would_have(trained: torch.dtype | None) -> None:
    """The numbers are those of a batch that was trained in it, whatever it was trained in."""
    torch.manual_seed(0)
    model, inputs = MODELS["mixer"](), batch("mixer")
    asked = budget_of(model, inputs, trained, dtype=torch.bfloat16)

    assert asked.formats == ("bfloat16",)
    assert asked.error == budget_of(model, inputs, torch.bfloat16).error


class Planted(nn.Module):
    """A model in float32, but for one place."""

    def __init__(self, plant: str) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(16, 32), nn.LayerNorm(32)
        self.gate, self.last = nn.Linear(32, 32), nn.Linear(32, 4)
        self.plant = plant

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = gelu(self.first(x))
        x = self.norm(x)
        scores = self.gate(x)
        if self.plant == "softmax":
            x = x * scores.softmax(-1, dtype=torch.bfloat16).float()
        else:
            x = x * scores.softmax(-1)
        weight = self.last.weight
        if self.plant == "parameter":
            weight = weight.half().float()
        out = linear(x, weight, self.last.bias)
        if self.plant == "accumulation":
            total = torch.zeros(4, dtype=torch.float16)
            for row in out:
                total += row.half() + 30.0
            out = out + total.float() / len(out)
        return cross_entropy(out, y)


@pytest.mark.parametrize(
    ("plant", "op", "module"),
    [
        ("softmax", {"_softmax", "_to_copy"}, ""),
        ("accumulation", {"add_", "add"}, ""),
        ("parameter", {"_to_copy"}, ""),
    ],
)
def test_what_was_planted_comes_first(plant: str, op: set[str], module: str) -> None:
    """One place in half precision in a model in float32; without it nothing there is above float32."""
    torch.manual_seed(1)
    inputs = torch.randn(64, 16), torch.randint(0, 4, (64,))
    budget = budget_of(Planted(plant), inputs, None)
    worst = budget.rows[0]

    assert worst.op in op
    assert worst.dtype in ("float16", "bfloat16")
    assert worst.module == module
    assert worst.phase == "forward"
    clean = budget_of(Planted(""), inputs, None)
    assert not [row for row in clean.rows if row.dtype in ("float16", "bfloat16")]
    assert clean.rows[0].weight < worst.weight / 5


def test_dropout_drops_the_same_in_both() -> None:
    """Else the outputs would have nothing in common."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.5), nn.Linear(64, 8))
    with ampwatch.monitor(model, serve=False) as watch:
        with torch.autocast("cpu", dtype=torch.float16):
            model(torch.randn(32, 16))
        budget = lab.error_budget(watch)

    assert not budget.why_not
    assert all(row.total < 2e-3 for row in budget.modules)


def test_masks_of_infinity_are_no_error() -> None:
    """A score that is masked is the same in each format."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scores = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            mask = torch.ones(8, 8).triu(1).bool()
            return self.scores(x).masked_fill(mask, -math.inf).softmax(-1)

    torch.manual_seed(0)
    budget = budget_of(Masked(), (torch.randn(8, 8),), torch.float16)

    assert all(math.isfinite(row.total) for row in budget.rows)
    assert 0.5 < budget.explained / budget.error < 2.0


def test_an_overflow_is_an_infinite_error() -> None:
    """And comes first; JSON has a word for it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    with torch.no_grad():
        model[0].weight.mul_(1e6)
    budget = budget_of(model, (torch.randn(4, 8),), torch.float16)

    assert budget.modules[0].total == math.inf
    assert budget.modules[0].bits == 0.0
    assert '"total": "infinity"' in json.dumps(budget.as_dict())


@pytest.mark.rotating
def test_it_costs_at_most_four_forwards() -> None:
    """As counted by the profiler: products of matrices in a budget and in a forward."""
    torch.manual_seed(0)
    model, inputs = MODELS["gpt"](), batch("gpt")

    def products(work: Callable[[], object]) -> int:
        with torch.profiler.profile() as profile:
            work()
        return sum(event.name == "aten::addmm" for event in profile.events())

    with ampwatch.monitor(model, serve=False) as watch:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            once = products(lambda: model(*inputs))
            assert once > 0
        assert once < products(watch.error_budget) <= 4 * once


def test_a_budget_survives_json() -> None:
    """And what is no budget is refused in words."""
    torch.manual_seed(0)
    budget = budget_of(MODELS["cnn"](), batch("cnn"), torch.bfloat16)
    assert from_dict(json.loads(json.dumps(budget.as_dict()))) == budget
    for wrong in ([], {}, {**budget.as_dict(), "rows": [1]}, {**budget.as_dict(), "model": "\x1b"}):
        with pytest.raises(ValueError, match="expected"):
            from_dict(wrong)


# What it says where there is none.


def why_not(model: nn.Module, *inputs: Any, **settings: Any) -> str:
    with ampwatch.monitor(model, serve=False, **settings) as watch:
        if inputs:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                model(*inputs)
        budget = lab.error_budget(watch)
        assert not budget.rows
        assert str(budget) == f"No error budget: {budget.why_not}\n"
        return budget.why_not


class Keeping(nn.Linear):
    """Keeps a lambda, of which nobody knows what a copy of it would refer to."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        owner = self
        self.function = lambda x: x + owner.bias


def test_without_a_budget_it_says_why() -> None:
    """In words, and never by an exception: it is called in a training loop."""
    x = torch.randn(2, 8)
    assert "no forward" in why_not(nn.Linear(8, 8))
    assert "level standard" in why_not(nn.Linear(8, 8), x, level="light")
    assert 'replay="off"' in why_not(nn.Linear(8, 8), x, replay="off")
    assert "cannot be run again: it keeps a function" in why_not(Keeping(), x)


def test_arguments_that_make_no_sense_are_refused() -> None:
    """Before anything is done."""
    model = nn.Linear(8, 8)
    with ampwatch.monitor(model, serve=False) as watch:
        with pytest.raises(SettingsError, match="`loss` to be a function"):
            lab.error_budget(watch, loss=3)
        with pytest.raises(SettingsError, match="`dtype` to be"):
            lab.error_budget(watch, dtype="float16")
        with pytest.raises(SettingsError, match="`model` to be a watched one"):
            lab.error_budget(watch, nn.Linear(8, 8))
    with pytest.raises(StateError):
        lab.error_budget(watch)


def test_of_several_models_the_one_called_last_or_the_one_named() -> None:
    """Each has its newest call."""
    torch.manual_seed(0)
    first, second = nn.Linear(8, 6), nn.Linear(6, 4)
    with ampwatch.monitor([first, second], serve=False) as watch:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            second(first(torch.randn(4, 8)))
        last, named = lab.error_budget(watch), lab.error_budget(watch, first)

    assert last.model != named.model
    assert len({row.module for row in (*last.modules, *named.modules)}) == 2


def test_an_op_without_float64_is_said_and_taken_for_exact() -> None:
    """A kernel for halves alone: what comes after it is measured as if it were exact."""
    library = torch.library.Library("budget_test", "DEF")
    library.define("halved(Tensor x) -> Tensor")

    def halved(x: Tensor) -> Tensor:
        if x.dtype is not torch.float16:
            msg = "expected float16"
            raise RuntimeError(msg)
        return x * 0.5

    library.impl("halved", halved, "CPU")

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(torch.ops.budget_test.halved(x.half()).float())

    with ampwatch.monitor(model := Own(), serve=False) as watch:
        model(torch.randn(4, 8))
        budget = lab.error_budget(watch)
    assert any("halved does not run in float64" in note for note in budget.notes)
    assert next(row for row in budget.rows if row.op == "halved").born is None
    assert budget.modules[-1].total < 1e-6


@pytest.mark.rotating
def test_of_a_compiled_model_it_is_that_of_the_model_run_eagerly() -> None:
    """And it says so. Nothing is compiled again for it."""
    torch.manual_seed(0)
    model = MODELS["mixer"]()
    inputs = batch("mixer")
    eager = budget_of(copy.deepcopy(model), inputs, torch.bfloat16)
    compiled = torch.compile(model, backend="eager")
    with ampwatch.monitor(compiled, serve=False) as watch:
        for _ in range(8):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss, _ = compiled(*inputs)
            loss.backward()
            watch.end_iteration()
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        budget = lab.error_budget(watch)

    assert budget.error == eager.error
    assert any("run eagerly" in note for note in budget.notes)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs


def test_a_model_that_was_replaced_is_freed() -> None:
    """The newest call does not keep it."""
    import gc  # noqa: PLC0415 - next to its only use
    import weakref  # noqa: PLC0415 - likewise

    model = nn.Linear(8, 8)
    with ampwatch.monitor(model, serve=False) as watch:
        model(torch.randn(2, 8))
        gone = weakref.ref(model)
        del model
        gc.collect()
        assert gone() is None
        assert "its model is gone" in lab.error_budget(watch).why_not
