"""Error budgets beside what a plain script in float64 finds, births of error that were planted, and casts by the book."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import cross_entropy, gelu, linear
from torch.utils.checkpoint import checkpoint

import ampwatch
from ampwatch import lab
from ampwatch.errors import SettingsError, StateError
from ampwatch.lab.budget import ErrorBudget, ErrorRow, from_dict
from ampwatch.lab.precision.evidence import OPERANDS, PlanMade, PlannedProduct
from ampwatch.lab.precision.plan import Plan
from ampwatch.lab.training.budgets import Asked, by_plan
from ampwatch.lab.training.cast_layers import Along, rounded
from ampwatch.numerics.formats import FORMATS, FormatFamily
from ampwatch.wire.records import PRODUCTS
from tests.numerics.block_oracle import quantised
from tests.numerics.oracle import NUMBERS, cast_by_table, cast_by_torch
from tests.training.replay.small_models import MODELS, batch

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


FORMATS_OF_LAYERS = [n for n, f in FORMATS.items() if f.family is not FormatFamily.FLOAT64]
OF_MODELS = ("float8_e4m3fn", "float8_e5m2", "mxfp8_e4m3", "nvfp4")


def by_the_book(values: Tensor, name: str, dim: int = -1) -> Tensor:
    """Return float64 values cast to a format and back: elements looked up, blocks along a dimension."""
    fmt = FORMATS[name]
    x = values.detach().double().contiguous()
    if fmt.block is not None:
        moved = x.movedim(dim, -1)
        padded = functional.pad(moved, (0, -moved.shape[-1] % fmt.block.elements))
        return quantised(padded.contiguous(), name)[..., : moved.shape[-1]].movedim(-1, dim)
    scale = 1.0
    if fmt.family is FormatFamily.FLOAT8:
        scale = 2.0 ** math.floor(math.log2(fmt.max / float(x.abs().max())))
    table = NUMBERS.get(name)
    return (
        cast_by_torch(x * scale, name) if table is None else cast_by_table(x * scale, table)
    ) / scale


@pytest.mark.parametrize("name", FORMATS_OF_LAYERS)
def test_a_cast_is_that_of_the_book(name: str) -> None:
    """Of values over forty octaves, with zeros, negative ones and ties, in rows that are no whole blocks."""
    torch.manual_seed(0)
    values = torch.randn(6, 70, dtype=torch.float64) * torch.exp2(torch.randint(-24, 4, (6, 70)))
    values[0, :33], values[1, 5], values[2, :4] = 0.0, -0.0, torch.tensor([1.5, 2.5, -3.5, 0.75])
    values = values.float().double()
    if not FORMATS[name].block and FORMATS[name].family is FormatFamily.FLOAT8:
        values = values.clamp(-8, 8)

    assert torch.equal(rounded(values, FORMATS[name], Along((-1,))), by_the_book(values, name))
    assert torch.equal(
        rounded(values.t(), FORMATS[name], Along((0,))), by_the_book(values.t(), name, 0)
    )


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("float16", [1e5, -1e5, 1.0], [math.inf, -math.inf, 1.0]),
        ("mxfp8_e4m3", [math.inf, 1.0, -3.0], [math.inf, 1.0, -3.0]),
        ("mxfp4", [-math.inf, 1.0, -3.0], [-math.inf, 1.0, -3.0]),
        ("mxfp4", [math.nan, 1.0, 2.0], [math.nan, 1.0, 2.0]),
        ("nvfp4", [math.inf, 0.0], [math.inf, 0.0]),
        ("float8_e5m2", [1.0, math.inf], [1.0, math.inf]),
        ("float8_e4m3fn", [0.0, 0.0], [0.0, 0.0]),
        ("nvfp4", [0.0, 0.0], [0.0, 0.0]),
        *((name, [], []) for name in OF_MODELS),
    ],
)
def test_what_has_no_scale_is_no_error(
    name: str, values: list[float], expected: list[float]
) -> None:
    """What is not finite stays, and its neighbours with it; of zeros and of nothing there is no scale."""
    found = rounded(torch.tensor(values, dtype=torch.float64), FORMATS[name], Along((-1,)))

    assert repr(found.tolist()) == repr(expected)


class Two(nn.Module):
    """Two layers, and a loss whose gradient to the output is ``target``."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.first, self.second = make(), make()

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return (self.second(self.first(x)) * target).sum()


def born(budget: ErrorBudget, op: str, module: str = "second") -> float:
    """Return what is born in an op of backward."""
    rows: list[ErrorRow] = [r for r in budget.rows if (r.module, r.op) == (module, op)]
    (row,) = [r for r in rows if r.phase == "backward"]
    assert row.born is not None
    return row.born


def relative(pairs: list[tuple[Tensor, Tensor]], exact: list[Tensor]) -> float:
    """Return how far results are from those of the same inputs, as a share of the exact ones."""
    off = sum(float(((a - b) ** 2).sum()) for a, b in pairs)
    return math.sqrt(off / sum(float((b**2).sum()) for b in exact))


@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_a_convolution_cast_what_they_multiply(*, transposed: bool) -> None:
    """Over channels of outputs and inputs, and over samples and positions; its bias is summed as it is."""
    torch.manual_seed(2)
    make = nn.ConvTranspose2d if transposed else nn.Conv2d
    model = Two(lambda: make(8, 8, 3, padding=1))
    x, target = torch.randn(2, 8, 6, 6), torch.randn(2, 8, 6, 6)
    budget = budget_of(model, (x, target), None, layers_in="mxfp8_e4m3")

    def cast(values: Tensor, *dims: int) -> Tensor:
        return rounded(values, FORMATS["mxfp8_e4m3"], Along(dims))

    def products(h: Tensor, g: Tensor, weight: Tensor, g2: Tensor, h2: Tensor) -> list[Tensor]:
        apply = functional.conv_transpose2d if transposed else functional.conv2d

        def back(given: Tensor, kernel: Tensor, gradient: Tensor, *, of_weight: bool) -> Tensor:
            given, kernel = given.clone().requires_grad_(), kernel.clone().requires_grad_()
            out = apply(given, kernel, padding=1)
            wanted = kernel if of_weight else given
            return torch.autograd.grad(out, wanted, gradient)[0]

        return [
            back(h, weight, g, of_weight=False),
            back(h2, weight, g2, of_weight=True),
            target.double().sum((0, 2, 3)),
        ]

    with torch.no_grad():
        apply = functional.conv_transpose2d if transposed else functional.conv2d
        first = model.first.weight.double()
        h = (
            apply(
                cast(x, 1),
                cast(first, 0 if transposed else 1),
                model.first.bias.double(),
                padding=1,
            )
            .float()
            .double()
        )
    weight, g, spots = model.second.weight.detach().double(), target.double(), (0, 2, 3)
    exact = products(h, g, weight, g, h)
    low = products(
        h, cast(g, 1), cast(weight, 1 if transposed else 0), cast(g, *spots), cast(h, *spots)
    )

    pairs = list(zip(low, exact, strict=True))
    # The inputs are off by less than the bound.
    assert born(budget, "convolution_backward") == pytest.approx(relative(pairs, exact), rel=0.02)


WIDE = "float32"


@pytest.mark.rotating
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("formats", [("mxfp4", WIDE), (WIDE, "mxfp4")])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_plan_has_each_operand_of_each_product_in_its_format(
    product: str, formats: tuple[str, str], *, autocast: bool
) -> None:
    """Of that layer alone: what is born in all other products is what was born without it."""
    torch.manual_seed(1)
    model = Two(lambda: nn.Linear(64, 64))
    x, target = torch.randn(32, 64), torch.randn(32, 64)
    planned = PlannedProduct("second", product, OPERANDS[product], formats, 20.0)
    asked = Asked(layers_in=by_plan(PlanMade(0, 20.0, 0.1, 1.0, [planned])))
    with ampwatch.monitor(model, serve=False) as watch:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            model(x, target)
        budget, plainly = watch.part.budgets.of(asked), lab.error_budget(watch)

    with torch.no_grad():
        first = functional.linear(x.double(), *(p.double() for p in model.first.parameters()))
    h, w, g = first, model.second.weight.detach().double(), target.double()
    bias = model.second.bias.detach()
    left, right, dims, exact = {
        "forward": (h, w, (1, 1), h @ w.t()),
        "grad_input": (g, w, (1, 0), g @ w),
        "grad_weight": (g, h, (0, 0), g.t() @ h),
    }[product]
    cast = [
        v if name == WIDE else by_the_book(v.bfloat16() if autocast else v, name, dim)
        for v, name, dim in zip((left, right), formats, dims, strict=True)
    ]
    made = {
        "forward": lambda: cast[0] @ cast[1].t(),
        "grad_input": lambda: cast[0] @ cast[1],
        "grad_weight": lambda: cast[0].t() @ cast[1],
    }[product]()
    if product == "forward":
        found = next(r.born for r in budget.rows if (r.module, r.op) == ("second", "addmm"))
        assert found == pytest.approx(relative([(made, exact)], [exact + bias]), rel=0.05)
    else:
        pairs, whole = [(made, exact)], [g @ w, g.t() @ h]
        assert born(budget, "mm") == pytest.approx(relative(pairs, whole), rel=0.05)

    def of_others(which: ErrorBudget) -> dict[tuple[str, str, str], float]:
        rows = {(r.module, r.op, r.phase): r.born or 0.0 for r in which.rows}
        op = "addmm" if product == "forward" else "mm"
        del rows["second", op, "forward" if product == "forward" else "backward"]
        return rows

    assert of_others(budget) == pytest.approx(of_others(plainly), rel=0.5, abs=1e-6)


def test_a_plan_of_the_training_is_one() -> None:
    """What the training itself has planned, in its words."""
    torch.manual_seed(1)
    model = Two(lambda: nn.Linear(32, 32))
    x, target = torch.randn(32, 32), torch.randn(32, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with ampwatch.monitor(model, optimizer=optimizer, serve=False, level="deep") as watch:
        for _ in range(3):
            model(x, target).backward()
            optimizer.step()
        plan = lab.plan(watch, formats=("float8_e5m2", "float8_e4m3fn"), limit=5.0)
        budget, plainly = lab.error_budget(watch, layers_in=plan), lab.error_budget(watch)
    assert {layer.module for layer in plan.layers} >= {"first"}
    assert budget.layers_in == "plan"
    assert "products of layers in the formats of the plan" in str(budget)
    off = [next(r.total for r in b.modules if r.module == "first") for b in (budget, plainly)]
    assert off[0] > 1000 * off[1] > 0.0


class Flat(nn.Module):
    """A convolution whose result is viewed as rows, which its order in memory has to allow."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(32, 32, 1, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).view(len(x), -1).square().mean()


@pytest.mark.parametrize("groups", [1, 4, 32])
def test_blocks_lie_within_the_groups_of_a_convolution(groups: int) -> None:
    """A group sums by itself: what another one holds is no neighbour."""
    torch.manual_seed(0)
    model, x = Flat(groups), torch.randn(4, 32, 5, 5)
    sizes = torch.exp2(-torch.arange(32.0))
    x = x * sizes.view(1, -1, 1, 1)
    budget = budget_of(model, (x,), None, layers_in="mxfp4")

    part = 32 // groups
    given = [by_the_book(piece, "mxfp4", 1) for piece in x.split(part, 1)]
    weight = by_the_book(model.conv.weight, "mxfp4", 1)
    bias = model.conv.bias.detach().double()
    low = functional.conv2d(torch.cat(given, 1), weight, bias, groups=groups)
    exact = functional.conv2d(x.double(), model.conv.weight.detach().double(), bias, groups=groups)
    found = next(r.born for r in budget.rows if (r.op, r.phase) == ("convolution", "forward"))
    assert found == pytest.approx(relative([(low, exact)], [exact]), rel=0.02)
    assert [r for r in budget.rows if r.op == "convolution_backward"]
    assert budget.layers_in == "mxfp4"
    assert "products of layers in mxfp4." in str(budget)


class Checkpointed(nn.Module):
    """A block whose forward may be repeated in backward."""

    def __init__(self, *, repeats: bool) -> None:
        super().__init__()
        self.repeats = repeats
        self.block = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        out = checkpoint(self.block, x, use_reentrant=False) if self.repeats else self.block(x)
        return (out * target).sum()


@pytest.mark.parametrize("autocast", [False, True])
def test_a_forward_that_is_repeated_in_backward_is_cast_again(*, autocast: bool) -> None:
    """Else the repeated one would be another, and what it saves as well."""
    torch.manual_seed(3)
    model, plain = Checkpointed(repeats=True), Checkpointed(repeats=False)
    plain.load_state_dict(model.state_dict())
    given = torch.randn(32, 32, requires_grad=True), torch.randn(32, 32)
    found = []
    for one in (model, plain):
        with ampwatch.monitor(one, serve=False) as watch:
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                one(*given)
            found.append(lab.error_budget(watch, layers_in="mxfp4"))
    assert not found[0].why_not
    assert {r.module: r.total for r in found[0].modules} == pytest.approx(
        {r.module: r.total for r in found[1].modules}
    )
    of_backward = [
        {r.module: r.born for r in b.rows if r.op == "mm" and r.phase == "backward"} for b in found
    ]
    assert of_backward[0].keys() == {"block.0", "block.2"}
    assert of_backward[0] == pytest.approx(of_backward[1], rel=0.05)


@pytest.mark.parametrize(
    ("layers_in", "words"),
    [
        ("mxfp8_e4m4", "did you mean 'mxfp8_e4m3'"),
        ("float64", "expected formats of"),
        ("", "expected formats of"),
        (8, "the name of a format or a plan, got 8"),
        (Plan(why_not="no layer was measured"), "no layer was measured"),
    ],
)
def test_what_is_no_format_is_refused(layers_in: Any, words: str) -> None:
    """With what was expected and what was given, before anything is computed."""
    with (
        ampwatch.monitor(nn.Linear(2, 2), serve=False) as watch,
        pytest.raises(SettingsError, match=words),
    ):
        lab.error_budget(watch, layers_in=layers_in)


class Own(nn.Linear):
    """A layer that multiplies in an op that is not PyTorch's own product."""

    def forward(self, x: Tensor) -> Tensor:
        return (x.unsqueeze(-2) * self.weight).sum(-1) + self.bias


@pytest.mark.parametrize(
    ("model", "note"),
    [
        (nn.LayerNorm(4), "there is no linear or convolutional layer, and nothing was cast"),
        (nn.Linear(4, 4, dtype=torch.complex64), "1 layer of 1 stayed as trained"),
        (
            nn.Sequential(nn.Linear(4, 4), Own(4, 4)),
            "1 layer of 2 stayed as trained: they multiplied in ops of their own, or in none (1)",
        ),
    ],
)
def test_layers_that_were_not_cast_are_named(model: nn.Module, note: str) -> None:
    """A budget that leaves some of them as they are says so."""
    dtype = next(model.parameters()).dtype
    budget = budget_of(model, (torch.randn(3, 4, dtype=dtype),), torch.bfloat16, layers_in="mxfp4")

    assert note in str(budget)
