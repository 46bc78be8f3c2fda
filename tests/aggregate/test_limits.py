"""Tests of how close values are to the ends of their format."""

import math

import pytest

from ampwatch.aggregate.limits import BROKEN, headroom, limit_of, trouble
from ampwatch.numerics.formats import FORMATS
from ampwatch.records import Topic
from tests.aggregate.made_up import histogram, ranges

FLOAT16, BFLOAT16 = FORMATS["float16"], FORMATS["bfloat16"]


def test_gradients_are_held_against_autocast_and_outputs_against_their_own_dtype() -> None:
    """A gradient in float32 says nothing about float32: it came through float16."""
    gradient = ranges("fc", Topic.GRADIENT, dtype="float32")
    activation = ranges("fc", Topic.ACTIVATION, dtype="bfloat16")
    strange = ranges("fc", Topic.ACTIVATION, dtype="mixed")

    assert limit_of(gradient, FLOAT16) is FLOAT16
    assert limit_of(activation, FLOAT16) is BFLOAT16
    assert limit_of(strange, FLOAT16) is None


def test_headroom_is_the_factor_up_to_the_largest_number() -> None:
    """Half of the largest number leaves room for twice the value."""
    half = histogram(15, 1, amax=32752.0)

    assert headroom(ranges("fc", Topic.ACTIVATION, half, dtype="float16"), FLOAT16) == 2.0
    assert headroom(ranges("fc", Topic.ACTIVATION, half, dtype="mixed"), FLOAT16) is None
    assert headroom(ranges("fc", Topic.ACTIVATION, histogram(0, zeros=3)), FLOAT16) is None


@pytest.mark.parametrize(
    ("amax", "expected"),
    [(65504.0, 1.0), (65504.0 / 16, 0.5), (65504.0 / 256, 0.0), (1.0, 0.0)],
)
def test_an_activation_is_in_trouble_near_the_largest_number(amax: float, expected: float) -> None:
    """By the logarithm: from a 256th of the limit on."""
    exponent = math.ceil(math.log2(amax))
    record = ranges("fc", Topic.ACTIVATION, histogram(exponent, 1, amax=amax), dtype="float16")

    assert trouble(record, FLOAT16) == pytest.approx(expected)


@pytest.mark.parametrize("topic", [Topic.GRADIENT, Topic.ACTIVATION_GRADIENT])
def test_a_gradient_is_in_trouble_where_it_underflows(topic: Topic) -> None:
    """One of four at 2**-25 rounds to zero in float16; being large is the scaler's doing."""
    record = ranges("fc", topic, histogram(-25, 1, 0, 3), dtype="float16")
    large = ranges("fc", topic, histogram(16, 1, amax=65504.0), dtype="float16")

    assert trouble(record, FLOAT16) == 0.25
    assert trouble(large, FLOAT16) == 0.0


def test_an_update_is_in_trouble_where_it_changes_nothing() -> None:
    """Three of four elements are as they were."""
    record = ranges("fc", Topic.UPDATE, histogram(-8, 1, zeros=3))

    assert trouble(record, FLOAT16) == 0.75


@pytest.mark.parametrize("topic", list(Topic))
@pytest.mark.parametrize("kind", ["nans", "positive_infs", "negative_infs"])
def test_a_value_that_is_not_finite_is_the_worst(topic: Topic, kind: str) -> None:
    """Whatever it is and wherever."""
    record = ranges("fc", topic, histogram(-30, 9, zeros=9, **{kind: 1}), dtype="mixed")

    assert trouble(record, FLOAT16) == BROKEN


@pytest.mark.parametrize("topic", [Topic.WEIGHT, Topic.BUFFER])
def test_finite_state_is_no_trouble(topic: Topic) -> None:
    """A weight of zero or of a million is what it is."""
    assert trouble(ranges("fc", topic, histogram(-30, 1, zeros=9), dtype="float16"), FLOAT16) == 0.0
