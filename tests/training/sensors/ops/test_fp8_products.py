"""Products in FP8 inside of tensor subclasses: their FLOPs, dtypes and modules; a probability that was rounded under autocast."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from ampwatch.numerics.units.ops import OpKind
from ampwatch.training.hooks.regions import Regions
from ampwatch.training.sensors.ops.refused import RefusedOps
from tests.training.fp8_tensors import E4M3, Fp8Linear, mlp
from tests.training.sensors.counting import Counted
from tests.training.sensors.listening import EVALUATED, Listening

ROWS = 48
HOWS = [{"rows": rows, "emulates": emulates} for rows, emulates in product((False, True), repeat=2)]


def _counted(model: nn.Module, x: torch.Tensor) -> Counted:
    with Counted(model) as counted:
        model(x).square().mean().backward()
    return counted


def _is_emulated(inputs: tuple[str, ...]) -> bool:
    return not any(name.startswith("float8") for name in inputs)


@pytest.mark.parametrize("how", HOWS, ids=str)
def test_each_layer_has_three_products_in_fp8_whose_flops_its_shape_says(
    how: dict[str, bool],
) -> None:
    """In its own module, emulated or not; computed by hand from the shapes."""
    counted = _counted(mlp(**how), torch.randn(ROWS, 64, requires_grad=True))
    by_module = counted.by("module", "flops", dtype="float8_e4m3fn")

    assert by_module == {"0": 3 * 2 * ROWS * 64 * 128, "2": 3 * 2 * ROWS * 128 * 32}
    assert counted.by("dtype", "flops") == {"float8_e4m3fn": sum(by_module.values())}


@pytest.mark.parametrize("how", HOWS, ids=str)
def test_an_emulated_product_has_inputs_of_another_dtype(how: dict[str, bool]) -> None:
    """By which it is told from one that multiplies FP8 as it is."""
    counted = _counted(mlp(**how), torch.randn(ROWS, 64))
    products = [key for key, _ in counted.of(kind=OpKind.MATMUL)]

    assert len(products) >= 2
    assert {_is_emulated(key.inputs) for key in products} == {how["emulates"]}


def test_what_counts_is_where_the_operands_come_from_and_no_subclass() -> None:
    """Emulation that is written out in the model counts likewise."""

    class WrittenOut(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            def rounded(t: torch.Tensor) -> torch.Tensor:
                scale = 448.0 / t.detach().abs().max()
                return (t * scale).to(E4M3).float() / scale

            return nn.functional.linear(rounded(x), rounded(self.weight))

    with Counted(model := nn.Sequential(WrittenOut(64, 32))) as counted:
        model(torch.randn(ROWS, 64))

    assert counted.by("dtype", "flops") == {"float8_e4m3fn": 2 * ROWS * 64 * 32}


def _weights_alone(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x, weight.to(E4M3).float()


def _another_value(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.to(E4M3).float() + 1.0, weight.to(E4M3).float()


def _a_factor_for_each(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.to(E4M3).float() * torch.rand_like(x), weight.to(E4M3).float()


def _other_numbers(x: torch.Tensor, weight: torch.Tensor) -> Any:
    """What was cast from FP8 is freed, and other numbers come to lie there."""
    return [y.to(E4M3).float().normal_() for y in (x, weight)]


@pytest.mark.parametrize(
    "operands", [_weights_alone, _another_value, _a_factor_for_each, _other_numbers]
)
def test_a_product_of_other_numbers_is_one_in_float32(operands: Any) -> None:
    """Hardware could not multiply these in FP8."""

    class Layer(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.mm(*operands(x, self.weight.t()))

    with Counted(model := nn.Sequential(Layer(64, 32))) as counted:
        model(torch.randn(ROWS, 64))

    assert counted.by("dtype", "flops") == {"float32": 2 * ROWS * 64 * 32}


def test_a_layer_that_is_not_converted_stays_what_it_is() -> None:
    """Beside one that is."""
    model = nn.Sequential(Fp8Linear(64, 32), nn.Linear(32, 16))
    counted = _counted(model, torch.randn(ROWS, 64))

    assert counted.by("dtype", "flops", module="1") == {"float32": 3 * 2 * ROWS * 32 * 16}
    assert counted.by("dtype", "flops", module="0") == {"float8_e4m3fn": 3 * 2 * ROWS * 64 * 32}


HALF = (torch.float16, torch.bfloat16)


@pytest.fixture
def listening() -> Listening:
    regions = Regions()
    listening = Listening(RefusedOps, regions=regions)
    listening.bench.install(regions)
    return listening


def _answers() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Linear(4, 1), torch.randn(8, 4), (torch.rand(8, 1) > 0.5).float()


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("loss_of", [nn.BCELoss(), functional.binary_cross_entropy], ids=["m", "f"])
def test_a_rounded_probability_is_seen(
    listening: Listening, loss_of: Any, dtype: torch.dtype
) -> None:
    """The op, where it ran, and what the probability was rounded to."""
    model, x, y = _answers()
    with listening, torch.autocast("cpu", dtype=dtype):
        loss_of(torch.sigmoid(model(x)), y)

    (seen,) = listening.seen
    assert (seen.op, seen.where) == ("binary_cross_entropy", "loss")
    assert f"torch.{seen.dtype}" == str(dtype)


def test_a_cast_that_is_written_brings_nothing_back(listening: Listening) -> None:
    """``.float()`` after the sigmoid."""
    model, x, y = _answers()
    with listening, torch.autocast("cpu", dtype=torch.float16):
        functional.binary_cross_entropy(torch.sigmoid(model(x)).float(), y)

    assert len(listening.seen) == 1


def test_a_view_of_a_cast_is_as_it(listening: Listening) -> None:
    """Before the cast or after it."""
    model, x, y = _answers()
    with listening, torch.autocast("cpu", dtype=torch.float16):
        functional.binary_cross_entropy(torch.sigmoid(model(x)).squeeze(1), y.squeeze(1))
        functional.binary_cross_entropy(torch.sigmoid(model(x)).float().squeeze(1), y.squeeze(1))

    assert len(listening.seen) == 2


def test_what_is_computed_in_float32_is_left_alone(listening: Listening) -> None:
    """A sigmoid of float32 logits, an island, the loss of logits, no autocast at all."""
    model, x, y = _answers()
    with listening, torch.autocast("cpu", dtype=torch.float16):
        functional.binary_cross_entropy(torch.sigmoid(model(x).float()), y)
        functional.binary_cross_entropy_with_logits(model(x), y)
        probability = torch.sigmoid(model(x))
        with torch.autocast("cpu", enabled=False):
            functional.binary_cross_entropy(probability.float(), y)
    with listening:
        functional.binary_cross_entropy(probability.float(), y)
        functional.binary_cross_entropy(torch.sigmoid(model(x)), y)

    assert listening.seen == []


def test_an_evaluation_is_no_training(listening: Listening) -> None:
    """Nothing is learnt from its loss."""
    model, x, y = _answers()
    listening.place = EVALUATED
    with listening, torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        functional.binary_cross_entropy(torch.sigmoid(model(x)), y)

    assert listening.seen == []
