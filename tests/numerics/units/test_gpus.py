"""GPUs by name: what they multiply, and how fast, by their datasheets."""

from __future__ import annotations

import math

import pytest

from ampwatch.errors import SettingsError
from ampwatch.numerics.formats import FORMATS
from ampwatch.numerics.units.peaks import GPUS, find_gpu

BLOCK_SCALED = ("mxfp8_e4m3", "mxfp4", "nvfp4")


@pytest.mark.parametrize("name", ["h100", "H100 PCIe", "h100-pcie", "rtx4090", "NVIDIA B200"])
def test_a_gpu_is_found_however_it_is_spelt(name: str) -> None:
    """By its name or by that of the product."""
    assert find_gpu(name).peaks["float16"] > 1e14


def test_an_unknown_gpu_is_refused_with_the_known_ones() -> None:
    """And with what may have been meant."""
    with pytest.raises(SettingsError, match=r"A100.*did you mean 'H100'"):
        find_gpu("H10")


@pytest.mark.parametrize(
    ("gpu", "not_multiplied"),
    [
        ("V100", {"bfloat16", "tf32", "float8_e4m3fn", *BLOCK_SCALED}),
        ("A100", {"float8_e4m3fn", *BLOCK_SCALED}),
        ("H100", set(BLOCK_SCALED)),
        ("B200", set()),
    ],
)
def test_what_a_generation_multiplies(gpu: str, not_multiplied: set[str]) -> None:
    """float16 and float32 all of them."""
    names = ("float16", "float32", "bfloat16", "tf32", "float8_e4m3fn", *BLOCK_SCALED)

    assert {n for n in names if not GPUS[gpu].multiplies(FORMATS[n])} == not_multiplied


def test_peaks_of_narrow_formats_are_those_of_the_datasheet() -> None:
    """HGX B200: 9 PFLOP/s of dense FP4, 4.5 of FP8, also with scales of blocks."""
    flops = {n: GPUS["B200"].flops(FORMATS[n]) / 1e15 for n in ("nvfp4", "mxfp8_e4m3", "bfloat16")}

    assert flops == pytest.approx({"nvfp4": 9.0, "mxfp8_e4m3": 4.5, "bfloat16": 2.25}, rel=0.02)
    assert math.isnan(GPUS["RTX 5090"].flops(FORMATS["nvfp4"]))  # not known, so not guessed
