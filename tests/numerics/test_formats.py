"""Formats and their encodings: limits, bit patterns and keys, held against PyTorch and the specifications."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from ampwatch.numerics import encodings
from ampwatch.numerics.encodings import ENCODINGS, encoding_of
from ampwatch.numerics.formats import E8M0, FORMATS, PLAIN, FormatFamily, Specials
from tests.numerics.oracle import E2M1, E2M3, E3M2, INT8, NUMBERS, cast_by_torch, rounded
from tests.training.kernels.oracle import FLOAT8, TORCH_DTYPES, all_patterns, bits, exponent, values

DTYPES = [fmt.name for fmt in PLAIN if fmt.torch_name]
BELOW_FLOAT64 = [name for name in FORMATS if name != "float64"]
E4M3 = [name for name, fmt in FORMATS.items() if fmt.torch_name == "float8_e4m3fn"]
BLOCK_SCALED = [name for name, fmt in FORMATS.items() if fmt.block]
INTEGERS = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}


def cast(value: float, name: str) -> float:
    return float(cast_by_torch(torch.tensor(value, dtype=torch.float64), name))


def next_to(value: float, towards: float, name: str) -> float:
    """The neighbour of a value in the type that the cast starts from."""
    source = torch.float64 if name == "float32" else torch.float32
    at, direction = torch.tensor(value, dtype=source), torch.tensor(towards, dtype=source)
    return float(torch.nextafter(at, direction))


def number(pattern: int, name: str) -> float:
    dtype = getattr(torch, name)
    return float(torch.tensor(pattern, dtype=INTEGERS[FORMATS[name].bits]).view(dtype).double())


@pytest.mark.parametrize("name", DTYPES)
def test_limits_are_those_that_torch_states(name: str) -> None:
    """``torch.finfo`` says the same.

    Not asked for ``eps``: it states that of float8_e4m3fnuz for float8_e5m2fnuz as well.
    """
    fmt, info = FORMATS[name], torch.finfo(getattr(torch, name))
    assert (fmt.max, fmt.min_normal, fmt.bits) == (info.max, info.smallest_normal, info.bits)


@pytest.mark.parametrize("name", DTYPES)
def test_the_bit_patterns_at_the_limits_are_the_limits(name: str) -> None:
    """The smallest pattern is the smallest subnormal, and so on, as read by torch."""
    fmt = FORMATS[name]
    first_normal = 1 << fmt.mantissa_bits
    one = next(p for p in range(0, 1 << fmt.bits - 1, first_normal) if number(p, name) == 1.0)
    assert number(1, name) == fmt.min_subnormal
    assert number(first_normal, name) == fmt.min_normal
    assert number(first_normal - 1, name) == fmt.min_normal - fmt.min_subnormal
    assert number(one + 1, name) - 1.0 == fmt.eps


def test_tf32_is_float32_with_thirteen_bits_less() -> None:
    """TF32 keeps the exponents of float32 and the mantissa of float16."""
    tf32 = FORMATS["tf32"]
    assert tf32.max == float.fromhex("0x1.ffcp127")
    assert (tf32.min_normal, tf32.min_subnormal) == (2.0**-126, 2.0**-136)
    assert (tf32.bits, tf32.mantissa_bits, tf32.eps) == (19, 10, 2.0**-10)


@pytest.mark.parametrize("name", BELOW_FLOAT64)
def test_a_cast_flushes_exactly_what_is_at_most_flush_at(name: str) -> None:
    """Half the smallest subnormal goes to zero, the next larger number does not."""
    fmt = FORMATS[name]
    assert cast(fmt.flush_at, name) == 0.0
    assert cast(next_to(fmt.flush_at, 1.0, name), name) == fmt.min_subnormal


@pytest.mark.parametrize("name", [n for n in BELOW_FLOAT64 if n not in E4M3])
def test_a_cast_overflows_exactly_from_overflow_from_on(name: str) -> None:
    """The number below becomes the largest finite one; the limit is inf, or NaN where none is."""
    fmt = FORMATS[name]
    outcome = cast(fmt.overflow_from, name)
    assert math.isnan(outcome) if fmt.specials is Specials.FNUZ else math.isinf(outcome)
    assert cast(next_to(fmt.overflow_from, 0.0, name), name) == fmt.max


def test_float8_e4m3fn_overflows_above_464_as_nan_or_by_saturating() -> None:
    """464 is a tie and goes to the even 448; beyond, versions of PyTorch differ."""
    fmt = FORMATS["float8_e4m3fn"]
    assert fmt.overflow_from == math.nextafter(464.0, math.inf)
    assert cast(464.0, fmt.name) == 448.0
    beyond = cast(next_to(464.0, math.inf, fmt.name), fmt.name)
    assert math.isnan(beyond) or beyond == 448.0


@pytest.mark.parametrize("name", BELOW_FLOAT64)
def test_limits_hold_to_the_last_bit_of_float64(name: str) -> None:
    """By exact rounding; casts start from float32 and cannot show it."""
    fmt = FORMATS[name]
    below = math.nextafter(fmt.overflow_from, 0.0)
    assert rounded(fmt.overflow_from, 0, fmt) is None
    assert rounded(below, 0, fmt) == Fraction(fmt.max)
    assert rounded(fmt.flush_at, 0, fmt) == 0
    assert rounded(math.nextafter(fmt.flush_at, 1.0), 0, fmt) == Fraction(fmt.min_subnormal)


def test_nothing_in_float64_is_beyond_float64() -> None:
    """Limits are given in float64, so its own are the limits of the type."""
    assert FORMATS["float64"].overflow_from == math.inf
    assert FORMATS["float64"].flush_at == 0.0


def test_formats_are_ordered_from_wide_to_narrow() -> None:
    """By their bits: the C kernel counts on those of 8 bits coming after all others it measures."""
    bits = [fmt.bits for fmt in FORMATS.values()]
    assert bits == sorted(bits, reverse=True)


def test_a_format_of_scales_is_as_torch_states_and_has_neither_zero_nor_subnormal_numbers() -> None:
    """E8M0: powers of two, of which the lowest pattern is the smallest."""
    info = torch.finfo(torch.float8_e8m0fnu)
    patterns = torch.arange(255, dtype=torch.uint8).view(torch.float8_e8m0fnu).double().tolist()
    assert (E8M0.bits, E8M0.max, E8M0.min_normal) == (info.bits, info.max, info.smallest_normal)
    assert patterns[: E8M0.max_pattern + 1] == [2.0**e for e in range(-127, 128)]
    assert (E8M0.min_subnormal, E8M0.flush_at) == (2.0**-127, 0.0)
    assert not E8M0.is_measured


@pytest.mark.parametrize(
    ("name", "numbers", "elements", "scale"),
    [
        ("mxint8", INT8, 32, "float8_e8m0fnu"),
        ("mxfp6_e2m3", E2M3, 32, "float8_e8m0fnu"),
        ("mxfp6_e3m2", E3M2, 32, "float8_e8m0fnu"),
        ("mxfp4", E2M1, 32, "float8_e8m0fnu"),
        ("nvfp4", E2M1, 16, "float8_e4m3fn"),
    ],
)
def test_a_block_scaled_format_has_the_numbers_and_the_scales_of_its_specification(
    name: str, numbers: tuple[float, ...], elements: int, scale: str
) -> None:
    """All patterns, decoded by the bits of the row, are the numbers that the standard lists."""
    fmt = FORMATS[name]
    decoded = tuple(encoding_of(fmt).value(key) for key in range(1 << fmt.bits - 1))
    assert fmt.block is not None
    assert decoded == numbers
    assert (fmt.max, fmt.max_pattern) == (max(numbers), len(numbers) - 1)
    assert (fmt.block.elements, fmt.block.scale.name) == (elements, scale)


@pytest.mark.parametrize("name", ["mxfp8_e4m3", "mxfp8_e5m2"])
def test_elements_of_mxfp8_are_those_of_the_plain_format_of_the_same_dtype(name: str) -> None:
    """Only the scale is added: one of E8M0 for 32 elements."""
    fmt = FORMATS[name]
    plain = FORMATS[fmt.torch_name]
    for limit in ("max", "overflow_from", "min_normal", "min_subnormal", "flush_at", "eps"):
        assert getattr(fmt, limit) == getattr(plain, limit)
    assert encoding_of(fmt) == encoding_of(plain)
    assert fmt.block is not None
    assert (fmt.block.elements, fmt.block.scale) == (32, E8M0)


def test_every_format_without_a_cast_in_torch_has_numbers_to_be_held_against() -> None:
    """A row whose limits nothing independent confirms would fail here."""
    without = {name for name, fmt in FORMATS.items() if fmt.bits < 8 or fmt.name == "mxint8"}
    assert set(NUMBERS) == without


def test_tensor_cores_want_rows_of_16_bytes_or_of_128_elements() -> None:
    """The first holds of all that is loaded as it lies, the second of 6 bits."""
    for fmt in FORMATS.values():
        expected = 128 if fmt.family is FormatFamily.FLOAT6 else 128 // fmt.stored_bits
        assert fmt.alignment in (0, expected)
    without = [fmt.name for fmt in FORMATS.values() if not fmt.alignment]
    assert without == ["float64", "float32", "mxint8"]


def test_block_scaled_formats_are_named_alike_and_neither_measured_nor_offered() -> None:
    """Elements mean nothing without their scales, which are in another tensor."""
    formats_of_blocks = [FORMATS[name] for name in BLOCK_SCALED]
    assert len(formats_of_blocks) == 7
    for fmt in formats_of_blocks:
        assert fmt.kernel_label == "mx"
        assert (fmt.is_measured, fmt.is_offered, fmt.is_candidate) == (False, False, False)


SMALL = ["float16", "bfloat16", *FLOAT8]


@pytest.mark.parametrize("dtype", SMALL)
def test_every_finite_key_has_the_value_and_the_bin_of_its_element(dtype: str) -> None:
    """Value and bin agree with what PyTorch and ``frexp`` make of the same bits."""
    encoding = ENCODINGS[dtype]
    finite = values(all_patterns(dtype))[: encoding.max_key + 1]

    assert [encoding.value(key) for key in range(len(finite))] == finite
    assert [encoding.bin(key) for key in range(1, len(finite))] == list(map(exponent, finite[1:]))


@pytest.mark.parametrize("dtype", encodings.DTYPES)
def test_the_largest_key_is_the_largest_number(dtype: str) -> None:
    """The largest key is ``finfo.max``; the next key is not finite, or has the sign bit set."""
    encoding = ENCODINGS[dtype]

    assert encoding.value(encoding.max_key) == torch.finfo(TORCH_DTYPES[dtype]).max
    (following,) = values(bits([encoding.max_key + 1], dtype))
    assert not math.isfinite(following)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "number", [1.0, 2.0**-25, 65504.0, 2.0**-126, 2.0**-149, 3 * 2.0**-149, 1.5 * 2.0**-127]
)
def test_wide_keys_have_the_value_and_the_bin_of_their_element(dtype: str, number: float) -> None:
    """Normal and subnormal numbers, at and off powers of two."""
    integer = torch.int32 if dtype == "float32" else torch.int64
    key = int(torch.tensor(number, dtype=TORCH_DTYPES[dtype]).view(integer))

    assert ENCODINGS[dtype].value(key) == number
    assert ENCODINGS[dtype].bin(key) == exponent(number)


def test_bins_beyond_the_axis_are_those_at_its_ends() -> None:
    """Only float64 has numbers that small and that large."""
    encoding = ENCODINGS["float64"]

    assert encoding.bin(1) == -191
    assert encoding.bin(encoding.max_key) == 192
