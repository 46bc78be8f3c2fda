"""Casts foretold from the histogram, and held against the cast itself."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from torch import Tensor

from ampwatch.numerics.exponents import ExponentHistogram
from ampwatch.numerics.formats import FORMATS, FloatFormat
from ampwatch.numerics.whatif import (
    Fit,
    ScaleWindow,
    cast,
    fit,
    flushed_zeros,
    fp8_scale,
    scale_window,
)
from tests.numerics.oracle import (
    ALL_BFLOAT16,
    ALL_FLOAT16,
    BOUNDARIES,
    cast_by_torch,
    float32_values,
    from_bits,
    histogram_of,
    overflows_by_torch,
    rounded,
)

FLOAT16 = FORMATS["float16"]
BELOW_FLOAT64 = [name for name in FORMATS if name != "float64"]
FP8 = [name for name in FORMATS if name.startswith("float8")]
NOTHING = {
    "empty": ExponentHistogram(),
    "zeros only": histogram_of([0.0, -0.0, 0.0]),
    "nonfinite only": histogram_of([math.nan, math.inf, -math.inf]),
}

formats = st.sampled_from(list(FORMATS.values()))
sixteen_bit_values = st.lists(
    st.integers(0, 2**16 - 1).map(lambda bits: from_bits([bits], torch.bfloat16)[0])
    | st.integers(0, 2**16 - 1).map(lambda bits: from_bits([bits], torch.float16)[0])
    | st.sampled_from(BOUNDARIES),
    max_size=12,
)


def check_against_cast(
    histogram: ExponentHistogram, scaled: Tensor, fmt: FloatFormat, shift: int
) -> None:
    """Hold the outcome against the cast of the scaled magnitudes, in float64."""
    outcome = cast(histogram, fmt, shift)
    result = cast_by_torch(scaled, fmt.name)
    became_zero = (result == 0) & (scaled != 0)
    overflowed = int(overflows_by_torch(scaled, fmt).sum())
    assert outcome.underflow == int(became_zero.sum())
    assert outcome.subnormal == int(((result != 0) & (scaled <= fmt.min_normal)).sum())
    assert outcome.overflow_low <= overflowed <= outcome.overflow_high


# --- the cast itself ---------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("values", [ALL_FLOAT16, ALL_BFLOAT16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("stride", [16, pytest.param(1, marks=pytest.mark.nightly)])
def test_casting_every_16_bit_number_does_what_was_foretold(
    values: list[float], name: str, stride: int
) -> None:
    """All 65536 numbers, at every scale from 2**-40 to 2**40."""
    histogram = histogram_of(values)
    magnitudes = torch.tensor(values, dtype=torch.float64).abs()
    magnitudes = magnitudes[magnitudes.isfinite()]
    for shift in range(-40, 41, stride):
        check_against_cast(histogram, magnitudes * 2.0**shift, FORMATS[name], shift)


@pytest.mark.rotating
@settings(max_examples=300)
@given(float32_values, formats, st.integers(-40, 40))
def test_any_float32_numbers_round_as_was_foretold(
    values: list[float], fmt: FloatFormat, shift: int
) -> None:
    """Against exact rounding, which unlike a cast does not pass through float32."""
    outcome = cast(histogram_of(values), fmt, shift)
    finite = [v for v in values if math.isfinite(v)]
    results = [rounded(v, shift, fmt) for v in finite]
    overflowed = results.count(None)
    kept_zeros = finite.count(0.0)
    assert outcome.nonzero == len(finite) - kept_zeros
    assert outcome.underflow == results.count(0) - kept_zeros  # type: ignore[arg-type]
    assert outcome.overflow_low <= overflowed <= outcome.overflow_high


@pytest.mark.parametrize(
    ("value", "underflows", "overflows"),
    [
        (2.0**-25, 1, 0),
        (math.nextafter(2.0**-25, 1), 0, 0),
        (65504.0, 0, 0),
        (65519.99, 0, 0),
        (65520.0, 0, 1),
        (65536.0, 0, 1),
        (65537.0, 0, 1),
    ],
)
def test_one_value_at_the_edge_of_float16_is_judged_exactly(
    value: float, underflows: int, overflows: int
) -> None:
    """With one element the exact extremes leave no doubt: both bounds meet."""
    outcome = cast(histogram_of([value]), FLOAT16)
    assert outcome.underflow == underflows
    assert (outcome.overflow_low, outcome.overflow_high) == (overflows, overflows)


@pytest.mark.parametrize(
    ("values", "bounds"),
    [
        ([1.0, 40000.0, 50000.0, 70000.0, 1e6], (2, 4)),
        ([40000.0, 65530.0], (1, 2)),  # the exact amax proves one where the bins prove none
        ([65520.0, 65522.0, 65536.0], (3, 3)),  # and the exact amin all of them
    ],
)
def test_only_elements_in_the_top_bin_are_in_doubt(
    values: list[float], bounds: tuple[int, int]
) -> None:
    """Between the bounds there is room for those that may be on either side, no more."""
    outcome = cast(histogram_of(values), FLOAT16)
    assert (outcome.overflow_low, outcome.overflow_high) == bounds


def test_shares_are_of_the_non_zero_elements() -> None:
    """Zeros underflow nowhere and do not dilute the shares."""
    outcome = cast(histogram_of([0.0, 0.0, 1e-9, 1e-6, 1.0, 1e5]), FLOAT16)
    assert (outcome.underflow_share, outcome.overflow_share) == (0.25, 0.25)


@given(float32_values, formats, st.integers(-40, 40))
def test_a_shift_is_the_same_as_casting_the_shifted_histogram(
    values: list[float], fmt: FloatFormat, shift: int
) -> None:
    """Both ways to ask give one answer."""
    histogram = histogram_of(values)
    assert cast(histogram, fmt, shift) == cast(histogram.shifted(shift), fmt)


@pytest.mark.parametrize(("shift", "expected"), [(0, 65504 / 3.0), (4, 65504 / 48.0)])
def test_headroom_is_how_many_times_larger_the_largest_may_be(shift: int, expected: float) -> None:
    """Headroom goes from the scaled values to the largest finite number."""
    outcome = cast(histogram_of([1.0, -3.0]), FLOAT16, shift)
    assert outcome.headroom == pytest.approx(expected)


@pytest.mark.parametrize("kind", NOTHING)
def test_nothing_to_cast_is_no_loss_and_no_error(kind: str) -> None:
    """Without non-zero elements the shares are 0 and headroom has no limit."""
    outcome = cast(NOTHING[kind], FLOAT16, 7)
    assert (outcome.overflow_high, outcome.underflow, outcome.subnormal) == (0, 0, 0)
    assert (outcome.overflow_share, outcome.underflow_share) == (0, 0)
    assert outcome.headroom == math.inf


def test_an_outlier_that_a_subsample_missed_shows_in_headroom_and_the_scale_window() -> None:
    """Counts are those of the bins, but amax is exact and no overflow is recommended."""
    missed = replace(histogram_of([1.0, 2.0]), amax=1e6, numel=1000)
    outcome = cast(missed, FLOAT16)
    assert (outcome.overflow_low, outcome.overflow_high) == (0, 0)
    assert outcome.headroom < 1.0
    assert scale_window(missed, FLOAT16).high == -4
    assert fit(missed, FLOAT16) is Fit.FITS_SCALED


def test_a_histogram_cut_off_at_its_end_never_gives_crossed_bounds() -> None:
    """float64 magnitudes beyond the axis of the kernels sit in its last bin."""
    cut = ExponentHistogram(first=192, counts=(5,), amax=1e200, amin=1e190, numel=5)
    for shift in range(-700, 0):
        outcome = cast(cut, FLOAT16, shift)
        assert 0 <= outcome.overflow_low <= outcome.overflow_high <= 5


# --- which scale, which format -----------------------------------------------------------


class Tried:
    """Each power of two from 2**-320 to 2**320, tried by casting."""

    EXPONENTS = range(-320, 321)

    def __init__(self, values: list[float], fmt: FloatFormat, epsilon: float) -> None:
        magnitudes = torch.tensor(values, dtype=torch.float64).abs()
        magnitudes = magnitudes[magnitudes.isfinite() & (magnitudes > 0)]
        self.nonzero = len(magnitudes)
        scales = torch.tensor([2.0**k for k in self.EXPONENTS], dtype=torch.float64)
        scaled = magnitudes[:, None] * scales
        lost = (cast_by_torch(scaled, fmt.name) == 0).sum(0).tolist()
        beyond = overflows_by_torch(scaled, fmt).sum(0).tolist()
        shares = [count / max(1, self.nonzero) for count in lost]
        self.rare = {k for k, s in zip(self.EXPONENTS, shares, strict=True) if s <= epsilon}
        self.finite = {k for k, n in zip(self.EXPONENTS, beyond, strict=True) if not n}

    @property
    def fit(self) -> Fit:
        both = self.rare & self.finite
        return Fit.FITS if 0 in both else Fit.FITS_SCALED if both else Fit.TOO_WIDE


@pytest.mark.rotating
@settings(max_examples=150)
@given(sixteen_bit_values, st.sampled_from(BELOW_FLOAT64), st.sampled_from([0.0, 1e-3, 0.1, 0.5]))
def test_the_scale_window_is_what_trying_each_scale_finds(
    values: list[float], name: str, epsilon: float
) -> None:
    """The smallest with rare underflow, the largest without overflow; so is the fit."""
    fmt, histogram = FORMATS[name], histogram_of(values)
    tried = Tried(values, fmt, epsilon)
    window = scale_window(histogram, fmt, epsilon)
    if tried.nonzero:
        assert window == ScaleWindow(min(tried.rare), max(tried.finite))
    for exponent in tried.EXPONENTS:
        allowed = exponent in tried.rare and exponent in tried.finite
        assert window.allows(exponent) is allowed
    assert fit(histogram, fmt, epsilon) is tried.fit


def test_the_largest_scale_in_float64_itself_is_exact() -> None:
    """The overflow begins where float64 ends, at no number of float64."""
    values = [math.nextafter(1.0, 0.0), 1.5]
    assert scale_window(histogram_of(values), FORMATS["float64"]).high == 1023
    assert math.isfinite(1.5 * 2.0**1023)
    assert scale_window(histogram_of([0.5, 2.0]), FORMATS["float64"]).high == 1022


def test_underflow_of_exactly_epsilon_is_allowed() -> None:
    """One in a thousand is as rare as one in a thousand."""
    values = [2.0**-30] + [1.0] * 999
    assert scale_window(histogram_of(values), FLOAT16, epsilon=1e-3).low == -24
    assert scale_window(histogram_of(values[:-1]), FLOAT16, epsilon=1e-3).low == 6


@pytest.mark.parametrize("kind", NOTHING)
def test_without_magnitudes_no_scale_is_recommended_and_none_forbidden(kind: str) -> None:
    """Without a magnitude every format would do."""
    window = scale_window(NOTHING[kind], FLOAT16)
    assert window == ScaleWindow(None, None)
    assert window.allows(0)
    assert window.allows(-500)
    assert all(fit(NOTHING[kind], fmt) is Fit.FITS for fmt in FORMATS.values())


def test_a_subsample_without_any_non_zero_element_still_limits_the_scale_from_above() -> None:
    """The exact amax forbids large scales; there is nothing to recommend small ones by."""
    missed = ExponentHistogram(zeros=10, amax=2.0**20, numel=1000)
    window = scale_window(missed, FLOAT16)
    assert window == ScaleWindow(None, -5)
    assert fit(missed, FLOAT16) is Fit.FITS_SCALED


@pytest.mark.parametrize("epsilon", [-0.1, 1.0, 2.0, math.nan])
def test_an_epsilon_that_is_no_share_below_one_is_refused(epsilon: float) -> None:
    """The message says what was expected, what came and what to do."""
    with pytest.raises(ValueError, match="expected epsilon from 0 to below 1, got"):
        scale_window(histogram_of([1.0]), FLOAT16, epsilon)


@given(float32_values, st.sampled_from(FP8))
def test_the_fp8_scale_is_the_largest_that_fits(values: list[float], name: str) -> None:
    """The largest magnitude fits at the scale and does not at double of it."""
    fmt, histogram = FORMATS[name], histogram_of(values)
    scale = fp8_scale(histogram, fmt)
    assert math.frexp(scale)[0] == 0.5
    if histogram.amax:
        assert histogram.amax * scale <= fmt.max
        assert histogram.amax * scale * 2 > fmt.max or scale == 2.0**126
        largest = torch.tensor(histogram.amax * scale, dtype=torch.float64)
        assert float(cast_by_torch(largest, name)) <= fmt.max
    else:
        assert scale == 1.0


def test_the_fp8_scale_and_its_inverse_are_normal_float32_numbers() -> None:
    """At the smallest and at the largest amax that float32 can have."""
    tiny = torch.finfo(torch.float32).tiny
    for amax in (2.0**-149, FORMATS["float32"].max):
        scale = fp8_scale(histogram_of([amax]), FORMATS["float8_e4m3fn"])
        assert tiny <= scale < math.inf
        assert tiny <= 1 / scale < math.inf


@pytest.mark.parametrize("name", FORMATS)
def test_the_largest_number_of_a_format_fits_it_and_at_no_larger_scale(name: str) -> None:
    """The limit itself is inside, whatever binade the format ends in."""
    histogram = histogram_of([FORMATS[name].max])
    assert cast(histogram, FORMATS[name]).overflow_high == 0
    assert cast(histogram, FORMATS[name], 1).overflow_low == 1
    assert scale_window(histogram, FORMATS[name]).high == 0


@pytest.mark.parametrize("scale", [2.0**k for k in range(-30, 20, 5)])
def test_zeros_that_float16_made_are_distinguished_from_those_that_were_there(scale: float) -> None:
    """Normally distributed values, cast at some scale: flushed zeros stand beside subnormals."""
    torch.manual_seed(0)
    values = torch.randn(4000, dtype=torch.float64) * scale
    out = values.to(torch.float16).double()
    made = int((out == 0).sum())
    dead = [0.0] * 1000

    counted = flushed_zeros(histogram_of(out.tolist()), FLOAT16)
    beside_dead = flushed_zeros(histogram_of(out.tolist() + dead), FLOAT16)

    mostly_subnormal = bool(out.abs().median() <= FLOAT16.min_normal) and bool(out.any())
    few_at_the_end = int(((out != 0) & (out.abs() <= 2.0**-22)).sum()) < 100
    assert counted == (made if mostly_subnormal else 0)
    if few_at_the_end or not mostly_subnormal:
        assert beside_dead == 0


def test_rows_that_no_batch_has_touched_are_not_flushed() -> None:
    """Few small values and very many zeros: the tail of the one does not explain the other."""
    torch.manual_seed(0)
    touched = (torch.randn(64 * 16, dtype=torch.float64) * 2.0**-17).to(torch.float16).double()

    assert flushed_zeros(histogram_of([*touched.tolist(), *[0.0] * 300_000]), FLOAT16) == 0
    assert flushed_zeros(histogram_of(touched.tolist()), FLOAT16) == int((touched == 0).sum())
