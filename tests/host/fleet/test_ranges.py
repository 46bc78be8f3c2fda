"""What the sampled ranges of a rank add up to, and its gradients over time."""

from __future__ import annotations

import math
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampwatch.host.fleet.gradients import MAX_COLUMNS, GradientHistory, unscaled
from ampwatch.host.fleet.ranges import CANDIDATES, MAGNITUDE_BOUNDS, Ranges
from ampwatch.numerics.exponents import ExponentHistogram
from ampwatch.numerics.formats import FORMATS, narrowest_half
from ampwatch.numerics.whatif import Fit, ScaleWindow
from ampwatch.settings import Settings
from ampwatch.wire.records import ALL_MODULES, RangeRecord, SamplingRecord, Topic
from ampwatch.wire.ring.encoding import decode, encode
from tests.workshop.clocks import SECOND, START
from tests.workshop.records import histogram, ranges, sampling


def ranges_of(*records: RangeRecord | SamplingRecord, **knobs: Any) -> Ranges:
    made = Ranges(Settings(**knobs), START * SECOND)
    for record in records:
        made.put(record)
    return made


def test_series_are_given_when_a_sample_is_complete() -> None:
    """Not to the module that happens to be written first."""
    healthy = [ranges(f"layer{i}", exponents=histogram(0, 1)) for i in range(4)]
    broken = ranges("broken", exponents=histogram(0, 1, nans=1))
    made = ranges_of(*healthy, broken, module_series=2)
    assert made.modules.tracked == []

    made.close_sample(sampling().step)

    assert made.modules.tracked == ["broken"]

    troubles = {name: made.trouble(topics) for name, topics in made.modules.by_name.items()}
    assert max(troubles, key=lambda name: troubles[name].score) == "broken"


def test_a_module_that_was_flushed_whole_gets_a_series() -> None:
    """Nothing but zeros that were something is the worst loss."""
    fine = [ranges(f"layer{i}", exponents=histogram(-20, 1)) for i in range(4)]
    flushed = ranges("flushed", exponents=histogram(0, zeros=9), flushed=9)
    made = ranges_of(ranges(exponents=histogram(-20, 4, zeros=9)), *fine, flushed, module_series=2)
    made.know_autocast(narrowest_half(["float16"]))

    made.close_sample(sampling().step)

    assert made.modules.tracked == ["flushed"]
    assert made.trouble(made.modules.by_name["flushed"]) == (4.0, "lost")


def test_the_newest_time_of_a_topic_is_known() -> None:
    """Of a module as well as of all together."""
    made = ranges_of(
        ranges(step=3), ranges("fc", step=1, topic=Topic.WEIGHT), ranges("fc2", step=4)
    )

    assert made.sampled_ns(Topic.GRADIENT) == (START + 5) * SECOND
    assert made.sampled_ns(Topic.WEIGHT) == (START + 2) * SECOND
    assert made.sampled_ns(Topic.BUFFER) is None


@pytest.mark.parametrize(
    ("names", "dtype"),
    [
        ([], None),
        (["bfloat16"], "bfloat16"),
        (["bfloat16", "float16"], "float16"),
        (["float64"], None),
    ],
)
def test_of_several_dtypes_the_one_with_the_smallest_range_counts(
    names: list[str], dtype: str | None
) -> None:
    """Ranges that fit float16 fit bfloat16 as well."""
    made = ranges_of()
    made.know_autocast(narrowest_half(names))

    assert made.autocast is (None if dtype is None else FORMATS[dtype])


@pytest.mark.parametrize(
    ("dtype", "expected"), [("float32", None), ("float16", "float16"), ("mixed", None)]
)
def test_without_autocast_only_a_narrow_model_has_a_format_to_fit(
    dtype: str, expected: str | None
) -> None:
    """float32 asks for no loss scale and is no trouble; what would fit is told anyway."""
    made = ranges_of(ranges(exponents=histogram(-40, 4), dtype=dtype))

    assert made.format is (None if expected is None else FORMATS[expected])
    assert made.recommendation is not None
    assert (made.recommendation.window == ScaleWindow(None, None)) == (expected is None)
    assert made.recommendation.fits["float16"] is Fit.FITS_SCALED


@pytest.mark.parametrize(("scale", "high"), [(2.0**16, 15), (1000.0, 9), (1.0, -1)])
def test_a_scale_at_which_gradients_overflowed_is_never_recommended(
    scale: float, high: int
) -> None:
    """An infinite element may have been of any size above the rest, so nothing is said to fit."""
    overflowed = histogram(-10, 9, positive_infs=1)
    made = ranges_of(ranges(exponents=overflowed, loss_scale=scale))
    made.know_autocast(narrowest_half(["float16"]))

    assert made.recommendation is not None
    assert made.recommendation.window.high == high
    assert made.recommendation.window.low is not None
    assert made.recommendation.fits == {}


def test_nothing_but_infinities_still_asks_for_a_smaller_scale() -> None:
    """Nothing else is known then."""
    made = ranges_of(ranges(exponents=histogram(0, negative_infs=3), loss_scale=2.0**16))
    made.know_autocast(narrowest_half(["float16"]))

    assert made.recommendation is not None
    assert made.recommendation.window == ScaleWindow(None, 15)


def test_gradients_that_are_all_flushed_are_recommended_what_brings_them_back() -> None:
    """The window is that of what they were; whoever reads the record needs no memory of its own."""
    before = histogram(-30, *[1] * 11)
    zeros = histogram(0, zeros=11)
    record = ranges(
        exponents=zeros, loss_scale=2.0**-40, flushed=11, before=before, before_step=7, step=9
    )
    made = ranges_of(record)
    made.know_autocast(narrowest_half(["float16"]))

    assert made.lost_share(record) == 1.0
    assert made.unscaled == zeros
    assert made.whole == before
    assert made.recommendation is not None
    assert made.recommendation.window == ScaleWindow(6, 35)
    assert made.recommendation.fits["float16"] is Fit.FITS_SCALED


def test_of_what_was_flushed_and_is_not_known_nothing_is_recommended() -> None:
    """What is left does not say how much more was needed."""
    made = ranges_of(ranges(exponents=histogram(-24, 9, zeros=9), flushed=9))
    made.know_autocast(narrowest_half(["float16"]))

    assert made.recommendation is not None
    assert made.recommendation.window.low is None
    assert made.recommendation.fits == {}


def test_beside_nan_nothing_is_said_to_fit() -> None:
    """They were something once; the window is that of the rest."""
    made = ranges_of(ranges(exponents=histogram(-10, 9, nans=1)))
    made.know_autocast(narrowest_half(["float16"]))

    assert made.recommendation is not None
    assert made.recommendation.fits == {}
    assert made.recommendation.window == ScaleWindow(-14, 25)


def test_a_sample_without_a_scale_leaves_the_recommendation_to_the_one_before() -> None:
    """Scaled and unscaled values are always those of one sample."""
    made = ranges_of(
        ranges(exponents=histogram(-10, 9)),
        ranges(exponents=histogram(-24, 9, zeros=9), loss_scale=0.0, step=1),
    )
    made.know_autocast(narrowest_half(["float16"]))

    assert made.measured == ranges(exponents=histogram(-10, 9))
    assert made.recommendation is not None
    assert made.recommendation.window == ScaleWindow(-14, 25)


def test_the_recommendation_is_about_the_gradients_without_their_scale() -> None:
    """2**-30 to 2**-20 needs a scale from 2**6 on, and up to 2**35 it overflows nowhere."""
    gradients = histogram(-14, *[1] * 11)
    made = ranges_of(ranges(exponents=gradients, loss_scale=65536.0))
    made.know_autocast(narrowest_half(["float16"]))

    assert made.unscaled == gradients.shifted(-16)
    assert made.recommendation is not None
    assert made.recommendation.window == ScaleWindow(6, 35)
    assert made.recommendation.fits == {
        "float16": Fit.FITS_SCALED,
        "bfloat16": Fit.FITS,
        "float8_e4m3fn": Fit.FITS_SCALED,
        "float8_e5m2": Fit.FITS_SCALED,
    }


def test_the_recommendation_follows_gradients_and_dtype() -> None:
    """It is kept between scrapes, not beyond what it rests on."""
    made = ranges_of(ranges(exponents=histogram(-40, 1, 1999)))
    made.know_autocast(narrowest_half(["float16"]))
    windows = [made.recommendation]
    made.know_autocast(narrowest_half(["bfloat16"]))
    windows.append(made.recommendation)
    made.put(ranges(exponents=histogram(-50, 1)))
    windows.append(made.recommendation)
    made.put(ranges(exponents=histogram(0, zeros=5)))

    # The smallest bin may be lost: one element of two thousand.
    assert [w and w.window.low for w in windows] == [-24 + 39, -133 + 39, -133 + 50]
    assert made.recommendation is None


def test_magnitudes_are_those_above_zero_without_the_scale() -> None:
    """Each bin lies in one bucket, so the counts are exact; zeros and NaN are elsewhere."""
    exponents = histogram(-32, 3, 1, 0, 0, 0, 2, zeros=9, nans=9)
    made = ranges_of(ranges(exponents=exponents, loss_scale=2.0**16))
    made.put(ranges(exponents=histogram(20, 7)))

    counts = dict(made.magnitude.distribution().buckets)

    assert counts[2.0**-48] == 3
    assert counts[2.0**-44] == 4
    assert counts[2.0**-40] == counts[2.0**16] == 6
    assert counts[math.inf] == 13
    assert made.magnitude.sum is None


def test_every_bin_lies_in_one_bucket() -> None:
    """The bounds are ends of bins."""
    assert all(math.frexp(bound)[0] == 0.5 for bound in MAGNITUDE_BOUNDS)


def test_what_a_predecessor_has_counted_is_not_counted_again() -> None:
    """To Prometheus all that is counted at the first look happened just then."""
    old = ranges(exponents=histogram(0, 5), time_ns=START * SECOND - 1)
    made = ranges_of(old, ranges(exponents=histogram(0, 2), time_ns=START * SECOND))

    assert made.magnitude.distribution().buckets[-1] == (math.inf, 2)
    assert made.gradients.spans[0].histogram.nonzero == 7


def test_a_sample_of_nothing_finite_has_no_largest_gradient() -> None:
    """The largest value before is held as long as ever."""
    nans = histogram(0, nans=3)
    only = ranges_of(ranges(exponents=nans))
    after = ranges_of(ranges(exponents=histogram(3, 1)), ranges(exponents=nans, step=1))

    assert only.scaled_amax_max((START + 1) * SECOND) is None
    assert after.scaled_amax_max((START + 30) * SECOND) == 8.0
    assert after.scaled_amax_max((START + 180) * SECOND) is None


@settings(max_examples=100)
@given(st.data())
def test_no_record_that_the_ring_lets_through_breaks_anything(data: st.DataObject) -> None:
    """Tensors of float64, scales from the end of the numbers: every answer is still given."""
    extremes = st.floats(5e-324, 1.7e308)
    first = data.draw(st.integers(-191, 190))
    amin, amax = sorted([data.draw(extremes), data.draw(extremes)])
    others = {"zeros": data.draw(st.integers(0, 2)), "positive_infs": data.draw(st.integers(0, 2))}
    numel = data.draw(st.integers(7, 2**62))
    some = histogram(first, 1, 2, amax=amax, amin=amin, numel=numel, **others)
    record = ranges(
        data.draw(st.sampled_from([ALL_MODULES, "fc"])),
        data.draw(st.sampled_from(Topic)),
        data.draw(st.sampled_from([some, histogram(0, numel=numel, **others)])),
        loss_scale=data.draw(st.just(0.0) | st.floats(2.0**-149, 2.0**128)),
        dtype=data.draw(st.sampled_from(["float16", "float64", "float8_e4m3fn", "mixed"])),
    )
    read = decode(*encode(record, 10**6))
    assert isinstance(read, RangeRecord)

    made = ranges_of(read, ranges(loss_scale=0.5))
    made.know_autocast(narrowest_half(data.draw(st.sampled_from([[], ["float16"], ["bfloat16"]]))))

    assert made.recommendation is None or made.recommendation.fits.keys() <= set(CANDIDATES)
    assert made.trouble({read.topic: read}).score >= 0.0
    assert 0.0 <= (made.lost_share(read) or 0.0) <= 1.0


def measured(values: list[float], **changes: Any) -> RangeRecord:
    """Return the ranges of ``values``, counted one by one."""
    exponents = [math.ceil(math.log2(abs(v))) for v in values if v]
    first = min(exponents, default=0)
    counts = [exponents.count(e) for e in range(first, max(exponents, default=-1) + 1)]
    found = histogram(
        first,
        *counts,
        zeros=values.count(0.0),
        amax=max(map(abs, values), default=0.0),
        amin=min((abs(v) for v in values if v), default=math.inf),
    )
    return ranges(exponents=found, **changes)


@given(
    st.lists(st.floats(-1e6, 1e6, width=32).filter(lambda v: not 0 < abs(v) < 1e-6), max_size=30),
    st.integers(-20, 30),
)
def test_unscaled_is_what_counting_the_divided_values_gives(
    values: list[float], exponent: int
) -> None:
    """A power of two only shifts the bins: nothing is lost by not having the values any more."""
    scale = 2.0**exponent

    found = unscaled(measured(values, loss_scale=scale))

    assert found == measured([v / scale for v in values]).histogram


@pytest.mark.parametrize(
    ("scale", "shift"), [(1.0, 0), (65536.0, -16), (1000.0, -10), (3.0, -2), (0.7, 1)]
)
def test_a_scale_that_is_no_power_of_two_is_rounded_to_the_nearest(
    scale: float, shift: int
) -> None:
    """By its logarithm: users set 1000 by hand."""
    found = unscaled(ranges(exponents=histogram(3, 5), loss_scale=scale))

    assert found == histogram(3 + shift, 5)


def test_what_was_multiplied_by_0_is_not_known() -> None:
    """A scale that has halved itself to zero leaves nothing to divide by."""
    assert unscaled(ranges(loss_scale=0.0)) is None


samples: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    gap=st.integers(1, 4),
    first=st.integers(-30, 10),
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    scale=st.sampled_from([1.0, 1024.0, 65536.0]),
)


@settings(max_examples=30)
@given(st.lists(samples, max_size=700))
def test_columns_are_the_sum_of_their_samples(drawn: list[dict[str, Any]]) -> None:
    """However often it was thinned: no sample is forgotten, none is counted twice."""
    history = GradientHistory()
    put: list[tuple[int, float, ExponentHistogram]] = []
    step = 0
    for sample in drawn:
        step += sample["gap"]
        exponents = histogram(sample["first"], *sample["counts"])
        scale = sample["scale"]
        history.put(ranges(step=step, loss_scale=scale), exponents)
        put.append((step, scale, exponents))

    expected = []
    for _, members in groupby(put, key=lambda item: item[0] // history.stride):
        steps, scales, found = zip(*members, strict=True)
        bins: dict[int, int] = {}
        for h in found:
            for exponent, count in h.by_exponent().items():
                bins[exponent] = bins.get(exponent, 0) + count
        amax = max(h.amax for h in found)
        expected.append((steps[0], steps[-1], min(scales), max(scales), amax, bins))
    assert len(history.spans) <= MAX_COLUMNS
    assert expected == [
        (c.first_step, c.last_step, c.scale_low, c.scale_high, c.amax, c.histogram.by_exponent())
        for c in history.spans
    ]
