"""Tests of what the sampled ranges of a rank add up to."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampwatch.aggregate.modules import MAX_MODULES
from ampwatch.aggregate.ranges import MAGNITUDE_BOUNDS, Ranges
from ampwatch.numerics.formats import FORMATS
from ampwatch.numerics.whatif import Fit, ScaleWindow
from ampwatch.records import ALL_MODULES, RangeRecord, SamplingRecord, Topic
from ampwatch.ring.encoding import decode, encode
from ampwatch.settings import Settings
from tests.aggregate.made_up import SECOND, START, histogram, ranges, sampling


def ranges_of(*records: RangeRecord | SamplingRecord, **knobs: Any) -> Ranges:
    made = Ranges(Settings(**knobs), START * SECOND)
    for record in records:
        made.put(record)
    return made


def test_before_the_first_sample_nothing_is_known() -> None:
    """Nothing is made up."""
    made = ranges_of()

    assert (made.totals, made.newest(Topic.GRADIENT), made.unscaled) == (None, None, None)
    assert (made.recommendation, made.smallest_headroom()) == (None, None)
    assert made.scaled_amax_max(START * SECOND) is None
    assert (made.autocast_dtype, made.autocast) == ("", FORMATS["float16"])


def test_the_newest_records_hold() -> None:
    """Of all modules together, of each module, and the totals."""
    whole, part = ranges(step=2), ranges("fc", step=3)
    made = ranges_of(sampling(step=1), ranges(step=1), whole, part, sampling(step=3))

    assert made.newest(Topic.GRADIENT) == made.newest(Topic.GRADIENT, ALL_MODULES) == whole
    assert made.newest(Topic.GRADIENT, "fc") == part
    assert made.newest(Topic.WEIGHT, "fc") is None
    assert made.newest(Topic.GRADIENT, "fc2") is None
    assert made.totals == sampling(step=3)
    assert list(made.modules.by_name) == ["fc"]


def test_series_are_given_when_a_sample_is_complete() -> None:
    """Not to the module that happens to be written first."""
    healthy = [ranges(f"layer{i}", exponents=histogram(0, 1)) for i in range(4)]
    broken = ranges("broken", exponents=histogram(0, 1, nans=1))
    made = ranges_of(*healthy, broken, module_series=2)
    assert made.modules.tracked == []

    made.put(sampling())

    assert made.modules.tracked == ["broken"]
    assert made.trouble("broken") > made.trouble("layer0")


@pytest.mark.parametrize(
    ("names", "dtype", "limit"),
    [
        ([], "", 65504.0),
        (["bfloat16"], "bfloat16", FORMATS["bfloat16"].max),
        (["bfloat16", "float16"], "float16", 65504.0),
        (["float64"], "", 65504.0),
    ],
)
def test_of_several_dtypes_the_one_with_the_smallest_range_counts(
    names: list[str], dtype: str, limit: float
) -> None:
    """What fits float16 fits bfloat16 as well."""
    made = ranges_of()
    made.know_dtypes(names)

    assert (made.autocast_dtype, made.autocast.max) == (dtype, limit)


def test_the_recommendation_is_about_the_gradients_without_their_scale() -> None:
    """2**-30 to 2**-20 needs a scale from 2**6 on, and up to 2**35 it overflows nowhere."""
    gradients = histogram(-14, *[1] * 11)
    made = ranges_of(ranges(exponents=gradients, loss_scale=65536.0))

    assert made.unscaled == gradients.shifted(-16)
    assert made.recommendation is not None
    assert made.recommendation.window == ScaleWindow(6, 35)
    assert made.recommendation.fits == {
        "float16": Fit.FITS_SCALED,
        "bfloat16": Fit.FITS,
        "float8_e4m3fn": Fit.FITS_SCALED,
        "float8_e5m2": Fit.FITS_SCALED,
    }


def test_the_recommendation_follows_gradients_dtype_and_setting() -> None:
    """It is kept between scrapes, not beyond what it rests on."""
    made = ranges_of(ranges(exponents=histogram(-40, 1, 9)), window_epsilon=0.1)
    windows = [made.recommendation]
    made.know_dtypes(["bfloat16"])
    windows.append(made.recommendation)
    made.put(ranges(exponents=histogram(-50, 1)))
    windows.append(made.recommendation)
    made.put(ranges(exponents=histogram(0, zeros=5)))

    # The smallest bin may be lost: one element of ten.
    assert [w and w.window.low for w in windows] == [-24 + 39, -133 + 39, -133 + 50]
    assert made.recommendation is None


def test_magnitudes_are_those_above_zero_without_the_scale() -> None:
    """Each bin lies in one bucket, so the counts are exact; zeros and NaN are elsewhere."""
    exponents = histogram(-32, 3, 1, 0, 0, 0, 2, zeros=9, nans=9)
    made = ranges_of(ranges(exponents=exponents, loss_scale=2.0**16))
    made.put(ranges(exponents=histogram(20, 7)))

    counts = dict(made.magnitude.cumulative())

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

    assert made.magnitude.cumulative()[-1] == (math.inf, 2)
    assert made.gradients.spans[0].histogram.nonzero == 7


def test_a_scale_of_zero_leaves_what_is_known_without_a_scale() -> None:
    """The scaled values are still shown."""
    made = ranges_of(ranges(exponents=histogram(0, 1)), ranges(loss_scale=0.0, step=1))

    assert made.unscaled == histogram(0, 1)
    assert len(made.gradients.spans) == 1
    assert made.newest(Topic.GRADIENT) == ranges(loss_scale=0.0, step=1)


def test_a_peak_of_the_scaled_gradients_is_held() -> None:
    """Longer than the time between two scrapes, and not for ever."""
    made = ranges_of(
        ranges(exponents=histogram(3, 1), time_ns=START * SECOND),
        ranges(exponents=histogram(1, 1), time_ns=(START + 1) * SECOND),
    )

    assert made.scaled_amax_max((START + 30) * SECOND) == 8.0
    assert made.scaled_amax_max((START + 180) * SECOND) == 2.0


def test_the_smallest_headroom_names_its_module() -> None:
    """Of outputs whose dtype is known."""
    made = ranges_of(
        ranges("a", Topic.ACTIVATION, histogram(10, 1), dtype="float16"),
        ranges("b", Topic.ACTIVATION, histogram(14, 1), dtype="float16"),
        ranges("c", Topic.ACTIVATION, histogram(15, 1), dtype="mixed"),
        ranges("d", Topic.ACTIVATION, histogram(0, zeros=1), dtype="float16"),
        ranges("e", Topic.WEIGHT, histogram(15, 1), dtype="float16"),
    )

    assert made.smallest_headroom() == ("b", 65504.0 / 2**14)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_no_record_that_the_ring_lets_through_breaks_anything(data: st.DataObject) -> None:
    """Tensors of float64, scales from the end of the numbers: every answer is still given."""
    extremes = st.floats(5e-324, 1.7e308)
    first = data.draw(st.integers(-191, 190))
    amin, amax = sorted([data.draw(extremes), data.draw(extremes)])
    record = ranges(
        data.draw(st.sampled_from([ALL_MODULES, "fc"])),
        data.draw(st.sampled_from(Topic)),
        histogram(first, 1, 2, amax=amax, amin=amin, numel=data.draw(st.integers(3, 2**62))),
        loss_scale=data.draw(st.just(0.0) | st.floats(2.0**-149, 2.0**128)),
        dtype=data.draw(st.sampled_from(["float16", "float8_e4m3fn", "mixed"])),
    )
    read = decode(*encode(record, 10**6))
    assert isinstance(read, RangeRecord)

    made = ranges_of(read, sampling(), window_epsilon=data.draw(st.sampled_from([0.0, 0.001, 0.5])))

    assert made.recommendation is None or made.recommendation.fits
    assert made.trouble("fc") >= 0.0
    assert made.smallest_headroom() is None or read.topic is Topic.ACTIVATION


def test_memory_is_bounded_whatever_is_sent() -> None:
    """Any number of modules, any number of samples."""
    made = ranges_of()
    for index in range(3 * MAX_MODULES):
        made.put(ranges(f"layer{index}"))
        made.put(ranges(step=index * 1000))
        made.put(sampling(step=index))

    assert len(made.modules.by_name) == MAX_MODULES
    assert len(made.modules.tracked) == Settings().module_series
    assert len(made.gradients.spans) <= 240
