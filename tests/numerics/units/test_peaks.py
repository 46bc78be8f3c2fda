"""What GPUs multiply, and how fast, by their datasheets; what can be won back, and a reason where it would be a guess."""

from __future__ import annotations

import math

import pytest

from ampwatch.errors import SettingsError
from ampwatch.numerics.formats import FORMATS
from ampwatch.numerics.units.peaks import GPUS, find_gpu, ideal_seconds, parse_override, peak_flops

# Product, capability, SMs, boost clock in Hz, dense TFLOP/s of float16 accumulated in float32:
# NVIDIA's datasheets and whitepapers, half of the number where that is for structured sparsity.
DATASHEETS = [
    ("Tesla V100-SXM2-16GB", (7, 0), 80, 1.53e9, 125.0),
    ("Tesla T4", (7, 5), 40, 1.59e9, 65.0),
    ("Quadro RTX 8000", (7, 5), 72, 1.77e9, 130.5),
    ("TITAN RTX", (7, 5), 72, 1.77e9, 130.5),
    ("NVIDIA GeForce RTX 2080 Ti", (7, 5), 68, 1.545e9, 53.8),
    ("NVIDIA A100-SXM4-80GB", (8, 0), 108, 1.41e9, 312.0),
    ("NVIDIA A30", (8, 0), 56, 1.44e9, 165.0),
    ("NVIDIA A40", (8, 6), 84, 1.74e9, 149.7),
    ("NVIDIA A10", (8, 6), 72, 1.695e9, 125.0),
    ("NVIDIA A10G", (8, 6), 80, 1.71e9, 70.0),
    ("NVIDIA GeForce RTX 3090", (8, 6), 82, 1.695e9, 71.0),
    ("NVIDIA L4", (8, 9), 58, 2.04e9, 121.0),
    ("NVIDIA L40", (8, 9), 142, 2.49e9, 181.05),
    ("NVIDIA L40S", (8, 9), 142, 2.52e9, 362.05),
    ("NVIDIA GeForce RTX 4090", (8, 9), 128, 2.52e9, 165.2),
    ("NVIDIA H100 80GB HBM3", (9, 0), 132, 1.83e9, 989.4),
    ("NVIDIA H200", (9, 0), 132, 1.83e9, 989.4),
    ("NVIDIA H100 PCIe", (9, 0), 114, 1.62e9, 756.0),
    ("NVIDIA B200", (10, 0), 148, 1.85e9, 2250.0),
    ("NVIDIA GeForce RTX 5090", (12, 0), 170, 2.407e9, 209.5),
]
TOLERANCE = 0.0125  # of the L40S, whose datasheet has a clock below its boost


@pytest.mark.parametrize(("name", "capability", "sms", "clock", "tflops"), DATASHEETS)
def test_float16_agrees_with_the_datasheet(
    name: str, capability: tuple[int, int], sms: int, clock: float, tflops: float
) -> None:
    """Consumer cards at the rate of float32 accumulation, which is PyTorch's."""
    peaks = peak_flops(capability, sms, clock, name)

    assert peaks.reason == ""
    assert peaks.flops["float16"] == pytest.approx(tflops * 1e12, rel=TOLERANCE)


@pytest.mark.parametrize(
    ("name", "capability", "sms", "clock", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", (8, 0), 108, 1.41e9, {"bfloat16": 312, "tf32": 156, "float32": 19.5, "float64": 19.5, "int8": 624}),
        ("NVIDIA H100 80GB HBM3", (9, 0), 132, 1.83e9, {"bfloat16": 989.4, "tf32": 494.7, "float8": 1978.9, "int8": 1978.9}),
        ("NVIDIA GeForce RTX 4090", (8, 9), 128, 2.52e9, {"tf32": 82.6, "float32": 82.6, "float8": 330.3, "int8": 660.6}),
        ("NVIDIA GeForce RTX 5090", (12, 0), 170, 2.407e9, {"float32": 104.8, "float8": 419, "int8": 838}),
        ("Tesla V100-SXM2-16GB", (7, 0), 80, 1.53e9, {"float32": 15.7, "float64": 7.8}),
    ],
)  # fmt: skip
def test_other_dtypes_agree_with_the_datasheet(
    name: str, capability: tuple[int, int], sms: int, clock: float, expected: dict[str, float]
) -> None:
    """In the ratios of the whitepapers, dense."""
    flops = peak_flops(capability, sms, clock, name).flops

    assert {d: flops[d] / 1e12 for d in expected} == pytest.approx(expected, rel=TOLERANCE)


@pytest.mark.parametrize(
    ("name", "capability", "without"),
    [
        ("Tesla V100-SXM2-16GB", (7, 0), {"bfloat16", "tf32", "float8", "int8"}),
        ("Tesla T4", (7, 5), {"bfloat16", "tf32", "float8"}),
        ("NVIDIA A100-SXM4-80GB", (8, 0), {"float8", "mx"}),
        ("NVIDIA GeForce GTX 1660 SUPER", (7, 5), {"float16", "int8"}),
        ("NVIDIA T1000", (7, 5), {"float16", "int8"}),
        ("NVIDIA B300 SXM6 AC", (10, 3), {"int8"}),
    ],
)
def test_what_a_generation_does_not_multiply_has_no_peak(
    name: str, capability: tuple[int, int], without: set[str]
) -> None:
    """Rather than the peak of another dtype."""
    flops = peak_flops(capability, 40, 1.5e9, name).flops

    assert flops["float32"] > 0
    assert without.isdisjoint(flops)


@pytest.mark.parametrize(
    ("name", "capability", "sms", "clock", "said"),
    [
        ("AMD Instinct MI250X", (9, 0), 110, 1.7e9, "NVIDIA's GPUs only"),
        ("AMD Instinct MI300X VF", (9, 4), 304, 2.1e9, "AMD Instinct MI300X VF"),
        ("", (9, 0), 132, 1.83e9, "nameless"),
        ("NVIDIA H20", (9, 0), 78, 1.83e9, "slower than its SMs"),
        ("NVIDIA GeForce RTX 5090 D", (12, 0), 170, 2.4e9, "slower than its SMs"),
        ("NVIDIA Thor", (11, 0), 20, 1.5e9, "compute capability 11.0"),
        ("Tesla P100-PCIE-16GB", (6, 0), 56, 1.3e9, "compute capability 6.0"),
        ("NVIDIA H100 PCIe", (9, 0), 0, 1.62e9, "does not report"),
        ("NVIDIA H100 PCIe", (9, 0), 114, 0.0, "does not report"),
        ("NVIDIA H100 PCIe", (9, 0), 114, float("nan"), "does not report"),
    ],
)
def test_what_is_not_known_says_why(
    name: str, capability: tuple[int, int], sms: int, clock: float, said: str
) -> None:
    """The reason says what to do about it; never a number."""
    peaks = peak_flops(capability, sms, clock, name)

    assert not peaks.flops
    assert said in peaks.reason
    assert "peak_flops" in peaks.reason


def test_a_users_peaks() -> None:
    """By dtype, in FLOP/s."""
    assert parse_override("float16=989e12, float32 = 67e12;tf32=4.9e14") == {
        "float16": 989e12,
        "float32": 67e12,
        "tf32": 4.9e14,
    }
    assert parse_override("  ") == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("989e12", "expected dtype=FLOP/s"),
        ("fp16=989e12", "got 'fp16'"),
        ("float16=fast", "got 'fast'"),
        ("float16=-1", "above 0"),
        ("float16=inf", "above 0"),
        ("float16=nan", "above 0"),
    ],
)
def test_a_wrong_peak_is_refused_by_name(text: str, said: str) -> None:
    """Expected, given, and an example."""
    with pytest.raises(SettingsError) as caught:
        parse_override(text)

    assert said in str(caught.value)
    assert "`peak_flops`" in str(caught.value)


def test_ideal_seconds_add_up_over_dtypes() -> None:
    """Each dtype at its own peak: 2 s of float16 and 3 s of float32."""
    ideal = ideal_seconds({"float16": 200.0, "float32": 30.0}, {"float16": 100.0, "float32": 10.0})

    assert ideal.seconds == pytest.approx(5.0)
    assert ideal.reason == ""


def test_ideal_seconds_without_a_peak_say_which() -> None:
    """Leaving it out would understate the utilisation; no FLOPs need no peak."""
    peaks = {"float16": 100.0}

    ideal = ideal_seconds({"float16": 200.0, "mx": 1.0, "": 2.0, "float8": 0.0}, peaks)
    assert ideal.seconds is None
    assert "a dtype that is not known, mx" in ideal.reason
    assert ideal_seconds({"float16": 50.0, "float8": 0.0}, peaks).seconds == pytest.approx(0.5)


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
