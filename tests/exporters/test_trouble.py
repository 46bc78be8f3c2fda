"""The order in which modules are in trouble, and the reason that is told."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from ampwatch.exporters.trouble import Trouble, lost_share
from ampwatch.exporters.trouble import worst as worst_above
from ampwatch.numerics.formats import FORMATS
from ampwatch.records import RangeRecord, Topic
from tests.aggregate.made_up import histogram, ranges

if TYPE_CHECKING:
    from ampwatch.numerics.formats import FloatFormat

FLOAT16, BFLOAT16 = FORMATS["float16"], FORMATS["bfloat16"]


def worst(topics: dict[Topic, RangeRecord], autocast: FloatFormat) -> Trouble:
    return worst_above(topics, autocast, 0.001)


def module(*records: RangeRecord) -> dict[Topic, RangeRecord]:
    return {record.topic: record for record in records}


FINE = ranges("fc", Topic.GRADIENT, histogram(-8, 1000))
ONE_NAN = ranges("fc", Topic.ACTIVATION, histogram(-8, 10**6, nans=1), dtype="float16")
ALL_LOST = ranges("fc", Topic.GRADIENT, histogram(-30, 1000))
SOME_LOST = ranges("fc", Topic.GRADIENT, histogram(-25, 2, 0, 0, *[0] * 12, 998))
HARDLY_LOST = ranges("fc", Topic.GRADIENT, histogram(-25, 1, 0, 0, *[0] * 12, 10**6))
AT_THE_END = ranges("fc", Topic.ACTIVATION, histogram(16, 9, amax=65504.0), dtype="float16")
NEAR_THE_END = ranges("fc", Topic.ACTIVATION, histogram(14, 9, amax=16380.0), dtype="float16")
FAR_FROM_IT = ranges("fc", Topic.ACTIVATION, histogram(12, 9, amax=4000.0), dtype="float16")
MOST_MISSED = ranges("fc", Topic.UPDATE, histogram(-12, 100, zeros=900))
FEW_MISSED = ranges("fc", Topic.UPDATE, histogram(-12, 900, zeros=100))

IN_ORDER = (ONE_NAN, ALL_LOST, SOME_LOST, AT_THE_END, NEAR_THE_END, MOST_MISSED, FAR_FROM_IT, FINE)


def test_modules_are_sorted_as_the_page_promises() -> None:
    """Non-finite, then lost gradients, then the end of the format, then updates that miss."""
    scores = [worst(module(record), FLOAT16).score for record in IN_ORDER]

    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == len(scores)
    assert scores[-1] == 0.0


def test_the_worst_topic_of_a_module_speaks() -> None:
    """Whatever else is fine or less bad about it."""
    pairs = [(a, b) for a, b in itertools.combinations(IN_ORDER, 2) if a.topic is not b.topic]

    for worse, other in pairs:
        assert worst(module(other, worse), FLOAT16) == worst(module(worse), FLOAT16)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (ONE_NAN, "nonfinite"),
        (ALL_LOST, "lost"),
        (SOME_LOST, "lost"),
        (HARDLY_LOST, ""),
        (AT_THE_END, "activation_headroom"),
        (FAR_FROM_IT, ""),
        (MOST_MISSED, "unchanged"),
        (FEW_MISSED, ""),
        (FINE, ""),
    ],
)
def test_a_reason_is_told_only_if_it_is_notable(record: RangeRecord, reason: str) -> None:
    """What is within the tolerated sorts a little higher, and is not called trouble."""
    assert worst(module(record), FLOAT16).reason == reason


def test_without_any_trouble_the_one_with_more_is_still_above() -> None:
    """So that the table has an order on a good day."""
    few, none = worst(module(FEW_MISSED), FLOAT16), worst(module(FINE), FLOAT16)

    assert few.score > none.score
    assert worst({}, FLOAT16) == (0.0, "")


def test_the_lost_share_is_of_all_elements_the_zeros_among_them() -> None:
    """400 flushed before, 100 by the cast, of 1000."""
    record = ranges("fc", Topic.GRADIENT, histogram(-26, 0, 100, 500, zeros=400))

    assert lost_share(record, FLOAT16) == 0.5
    assert lost_share(record, BFLOAT16) == 0.0


def test_nothing_but_zeros_is_not_called_lost() -> None:
    """They do not say why they are zero."""
    assert lost_share(ranges("fc", Topic.GRADIENT, histogram(0, zeros=9)), FLOAT16) == 0.0


def test_gradients_of_outputs_count_against_their_own_dtype() -> None:
    """Backward in float16 flushes there, before any parameter sees it."""
    in_float16 = ranges(
        "fc", Topic.ACTIVATION_GRADIENT, histogram(-24, 6, zeros=4), dtype="float16"
    )
    in_float32 = ranges("fc", Topic.ACTIVATION_GRADIENT, histogram(-24, 6, zeros=4))

    assert worst(module(FINE, in_float16), FLOAT16) == (3.4, "lost")
    assert worst(module(FINE, in_float32), FLOAT16) == (0.0, "")


def test_what_is_tolerated_is_a_setting() -> None:
    """As much as a recommended loss scale may lose is no trouble."""
    assert worst_above(module(SOME_LOST), FLOAT16, 0.002).reason == ""
    assert worst_above(module(SOME_LOST), FLOAT16, 0.0019).reason == "lost"
    assert worst_above(module(FINE), FLOAT16, 0.0).reason == ""
