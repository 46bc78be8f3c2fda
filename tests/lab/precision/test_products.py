"""Losses of products, foretold, against products of tensors that were cast."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch

from ampwatch.lab.precision.products import HEADROOM, CastLoss, cast_loss, product_db
from ampwatch.numerics.blocks import BlockHistogram
from ampwatch.numerics.exponents import ExponentHistogram
from ampwatch.numerics.formats import FORMATS
from tests.numerics.block_oracle import counted, sqnr_db
from tests.numerics.block_oracle import rounded as cast
from tests.numerics.oracle import histogram_of

PLAIN = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
BLOCK_SCALED = ("mxfp4", "nvfp4", "mxfp8_e4m3")


def _tensor(kind: str, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(128, 128, generator=generator)
    made = {
        "normal": values,
        "relu": values.clamp(min=0),
        "small": values * 1e-6,
        "spread": values * torch.exp2(torch.randn(128, 128, generator=generator)),
    }
    return made[kind].double()


@cache
def _measured(
    values: tuple[float, ...],
) -> tuple[ExponentHistogram, list[BlockHistogram]]:
    largest = max(map(abs, values))
    blocks = [[values[i : i + n] for i in range(0, len(values), n)] for n in (16, 32)]
    counts = [counted(of, n, largest) for n, of in zip((16, 32), blocks, strict=True)]
    return histogram_of(values), counts


def _foretold(values: torch.Tensor, name: str) -> CastLoss:
    loss = cast_loss(*_measured(tuple(values.float().double().reshape(-1).tolist())), FORMATS[name])
    assert loss is not None
    return loss


@pytest.mark.parametrize("kind", ["normal", "relu", "small", "spread"])
@pytest.mark.parametrize("name", PLAIN)
def test_the_noise_of_a_plain_cast_is_known_to_within_a_decibel(kind: str, name: str) -> None:
    """Those of block-scaled formats are tested with `block_casts`."""
    values = _tensor(kind).float().double()
    rounded = cast(values, name)
    loss = _foretold(values, name)

    assert loss.sqnr_db == pytest.approx(sqnr_db(values, rounded), abs=1.0)
    flushed = ((rounded == 0) & (values != 0)).sum() / (values != 0).sum()
    assert loss.flushed_share == pytest.approx(float(flushed), abs=1e-12)


@pytest.mark.parametrize("pair", [("normal", "relu"), ("spread", "normal"), ("relu", "small")])
@pytest.mark.parametrize("name", [*PLAIN, *BLOCK_SCALED])
def test_the_noise_of_a_product_is_known_to_within_its_stated_error(
    pair: tuple[str, str], name: str
) -> None:
    """Of a matmul in float64 of operands that were cast, beside that of the operands themselves."""
    a, b = _tensor(pair[0], 1), _tensor(pair[1], 2)
    exact, rounded = a @ b.t(), cast(a, name) @ cast(b, name).t()
    foretold = product_db(_foretold(x, name).sqnr_db for x in (a, b))

    assert foretold == pytest.approx(sqnr_db(exact, rounded), abs=1.5)


def test_what_would_overflow_with_some_headroom_is_refused() -> None:
    """FP8 has a scale of its own, and bfloat16 the range of float32."""
    fits = torch.full((64,), 65504.0 / 2**HEADROOM).double()
    overflows = fits * 1.01

    assert _foretold(fits, "float16").sqnr_db > 60
    assert _foretold(overflows, "float16").sqnr_db == -math.inf
    assert _foretold(overflows, "float8_e4m3fn").sqnr_db > 20
    assert _foretold(overflows, "bfloat16").sqnr_db > 40


def test_zeros_lose_nothing_and_unmeasured_blocks_are_not_guessed() -> None:
    """Nothing but zeros is exact in any format."""
    assert cast_loss(histogram_of([0.0] * 64), (), FORMATS["nvfp4"]) == CastLoss(math.inf, 0.0)
    assert cast_loss(histogram_of([1.0] * 64), (), FORMATS["nvfp4"]) is None
    assert cast_loss(histogram_of([1.0] * 64), (), FORMATS["float16"]) is not None


def test_noise_of_operands_adds_up() -> None:
    """Two alike lose 3 dB; one without noise adds nothing; one that overflows leaves nothing."""
    assert product_db([20.0, 20.0]) == pytest.approx(20 - 10 * math.log10(2))
    assert product_db([20.0, math.inf]) == pytest.approx(20)
    assert product_db([math.inf, math.inf]) == math.inf
    assert product_db([20.0, -math.inf]) == -math.inf
