"""Budgets with products of layers in other formats, beside casts by the book and plain products of them."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import ampwatch
from ampwatch.errors import SettingsError
from ampwatch.numerics.formats import FORMATS, FormatFamily
from ampwatch.report.plan import Plan
from ampwatch.training.sensors.births.cast_layers import rounded
from tests.numerics.block_oracle import quantised
from tests.numerics.oracle import NUMBERS, cast_by_table, cast_by_torch
from tests.training.sensors.births.small_models import MODELS, batch
from tests.training.sensors.births.test_error_budget import as_exact, budget_of, outputs_of

if TYPE_CHECKING:
    from ampwatch.report.error_budget import ErrorBudget, ErrorRow

FORMATS_OF_LAYERS = [n for n, f in FORMATS.items() if f.family is not FormatFamily.FLOAT64]
OF_MODELS = ("float8_e4m3fn", "float8_e5m2", "mxfp8_e4m3", "nvfp4")


def by_the_book(values: Tensor, name: str, dim: int = -1) -> Tensor:
    """Return float64 values cast to a format and back: elements looked up, blocks along a dimension."""
    fmt = FORMATS[name]
    x = values.detach().double()
    if fmt.block is not None:
        moved = x.movedim(dim, -1)
        padded = functional.pad(moved, (0, -moved.shape[-1] % fmt.block.elements))
        return quantised(padded, name)[..., : moved.shape[-1]].movedim(-1, dim)
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

    assert torch.equal(rounded(values, FORMATS[name], (-1,)), by_the_book(values, name))
    assert torch.equal(rounded(values.t(), FORMATS[name], (0,)), by_the_book(values.t(), name, 0))


def test_blocks_lie_along_all_dimensions_that_are_summed_over() -> None:
    """One after the other, as memory has them."""
    values = torch.randn(3, 5, 4, 4, dtype=torch.float64).exp()
    found = rounded(values, FORMATS["mxfp4"], (0, 2, 3))

    rows = values.permute(1, 0, 2, 3).reshape(5, -1)
    assert torch.equal(found.permute(1, 0, 2, 3).reshape(5, -1), by_the_book(rows, "mxfp4"))


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("float16", [1e5, -1e5, 1.0], [math.inf, -math.inf, 1.0]),
        ("mxfp8_e4m3", [math.inf, 1.0], None),
        ("float8_e4m3fn", [0.0, 0.0], [0.0, 0.0]),
        ("nvfp4", [0.0, 0.0], [0.0, 0.0]),
        ("float8_e4m3fn", [], []),
    ],
)
def test_what_does_not_fit_is_no_error(
    name: str, values: list[float], expected: list[float] | None
) -> None:
    """Overflow is infinite without a scale; of nothing there is no scale; inf and NaN come through."""
    found = rounded(torch.tensor(values, dtype=torch.float64), FORMATS[name], (-1,))

    assert len(found) == len(values)
    assert expected is None or found.tolist() == expected


class Emulated:
    """Linear and convolutional layers as a script would have them: cast by the book, multiplied in float32."""

    def __init__(self, name: str) -> None:
        self.name = name

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        low, dtype = self._low(x, weight, bias)
        given, matrix = by_the_book(low[0], self.name).float(), by_the_book(low[1], self.name)
        return functional.linear(given, matrix.float(), low[2]).to(dtype)

    def conv2d(self, layer: nn.Conv2d, x: Tensor) -> Tensor:
        low, dtype = self._low(x, layer.weight, layer.bias)
        given, kernel = by_the_book(low[0], self.name, 1), by_the_book(low[1], self.name, 1)
        return functional.conv2d(
            given.float(), kernel.float(), low[2], layer.stride, layer.padding, layer.dilation
        ).to(dtype)

    @staticmethod
    def _low(*tensors: Tensor | None) -> tuple[list[Any], torch.dtype]:
        on = torch.is_autocast_enabled("cpu")
        dtype = torch.get_autocast_dtype("cpu") if on else torch.float32
        low = [None if t is None else t.detach().to(dtype) for t in tensors]
        return [*low[:2], None if low[2] is None else low[2].float()], dtype


def emulate(model: nn.Module, name: str) -> nn.Module:
    """Have the layers of a model compute so."""
    emulated = Emulated(name)

    def of(layer: Any) -> Any:
        if isinstance(layer, nn.Linear):
            return lambda x: emulated.linear(x, layer.weight, layer.bias)
        return lambda x: emulated.conv2d(layer, x)

    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            module.forward = of(module)  # type: ignore[method-assign]
    return model


@pytest.mark.parametrize("name", OF_MODELS)
@pytest.mark.parametrize("kind", MODELS)
def test_modules_are_as_far_off_as_a_script_that_casts_finds(kind: str, name: str) -> None:
    """Each module within 10 %, and the worst ten in the same order, of a GPT, a CNN and a mixer."""
    torch.manual_seed(3)
    model, inputs = MODELS[kind](), batch(kind)
    # Where bfloat16 rounds a sum in another order, 4 bits make another number of many that follow.
    is_low = FORMATS[name].bits > 4
    budget = budget_of(model, inputs, torch.bfloat16 if is_low else None, layers_in=name)
    torch.manual_seed(3)
    plain = MODELS[kind]()
    exact = outputs_of(plain.double(), as_exact(inputs))
    torch.manual_seed(3)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_low):
        low = outputs_of(emulate(MODELS[kind](), name), inputs)

    errors = {
        key: float((low[key] - exact[key]).norm() / exact[key].norm()) for key in exact if key
    }
    found = {row.module: row.total for row in budget.modules if row.module}
    assert found == pytest.approx(errors, rel=0.1)
    # Some are as good as equal.
    worst = [found[key] for key in sorted(errors, key=lambda key: -errors[key])[:10]]
    assert all(more > 0.97 * less for more, less in pairwise(worst))
    assert budget.layers_in == name
    assert f"products of layers in {name}." in str(budget)


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


@pytest.mark.parametrize("name", ["mxfp4", "float8_e5m2"])
def test_products_of_backward_cast_what_they_multiply(name: str) -> None:
    """The gradient of the output with the weight, over outputs, and with the input, over samples."""
    torch.manual_seed(1)
    model = Two(lambda: nn.Linear(40, 40))
    x, target = torch.randn(34, 40), torch.randn(34, 40)
    budget = budget_of(model, (x, target), None, layers_in=name)

    w = [layer.weight.detach().double() for layer in (model.first, model.second)]
    h = by_the_book(x, name) @ by_the_book(w[0], name).t() + model.first.bias.detach().double()
    h, g = h.float().double(), target.double()
    products = [
        (by_the_book(g, name, 1) @ by_the_book(w[1], name, 0), g @ w[1]),
        (by_the_book(g, name, 0).t() @ by_the_book(h, name, 0), g.t() @ h),
    ]
    truth = functional.linear(x.double(), w[0], model.first.bias.detach().double())
    # One row: both are products of one op in one module.
    expected = relative(products, [g @ w[1], g.t() @ truth])
    assert born(budget, "mm") == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_a_convolution_cast_what_they_multiply(*, transposed: bool) -> None:
    """Over channels of outputs and inputs, and over samples and positions; its bias is summed as it is."""
    torch.manual_seed(2)
    make = nn.ConvTranspose2d if transposed else nn.Conv2d
    model = Two(lambda: make(8, 8, 3, padding=1))
    x, target = torch.randn(2, 8, 6, 6), torch.randn(2, 8, 6, 6)
    budget = budget_of(model, (x, target), None, layers_in="mxfp8_e4m3")

    def cast(values: Tensor, *dims: int) -> Tensor:
        return rounded(values, FORMATS["mxfp8_e4m3"], dims)

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


def test_a_plan_has_each_product_in_its_formats() -> None:
    """Another one for each operand, and a layer that it does not name as it is trained."""
    torch.manual_seed(1)
    model = Two(lambda: nn.Linear(32, 32))
    x, target = torch.randn(32, 32), torch.randn(32, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with ampwatch.monitor(model, optimizer=optimizer, serve=False, level="deep") as watch:
        for _ in range(3):
            model(x, target).backward()
            optimizer.step()
        plan = watch.plan(formats=("float8_e5m2", "float8_e4m3fn"), limit=5.0)
        assert {layer.module for layer in plan.layers} >= {"first"}
        budget = watch.error_budget(layers_in=plan)
        plainly = watch.error_budget()
    assert not budget.why_not
    assert budget.layers_in == "plan"
    assert "products of layers in the formats of the plan" in str(budget)
    off = [next(r.total for r in b.modules if r.module == "first") for b in (budget, plainly)]
    assert off[0] > 1000 * off[1] > 0.0


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
        watch.error_budget(layers_in=layers_in)


class Own(nn.Linear):
    """A layer that multiplies in an op that is not PyTorch's own product."""

    def forward(self, x: Tensor) -> Tensor:
        return (x.unsqueeze(-2) * self.weight).sum(-1) + self.bias


@pytest.mark.parametrize(
    ("model", "note"),
    [
        (nn.LayerNorm(4), "there is no linear or convolutional layer, and nothing was cast"),
        (
            nn.Sequential(nn.Linear(4, 4), Own(4, 4)),
            "1 layer of 2 multiplied nothing that was seen",
        ),
    ],
)
def test_layers_that_were_not_cast_are_named(model: nn.Module, note: str) -> None:
    """A budget that leaves some of them as they are says so."""
    budget = budget_of(model, (torch.randn(3, 4),), torch.bfloat16, layers_in="mxfp4")

    assert note in str(budget)
