"""The order in which modules are in trouble, the reason that is told, and which of them have series."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import pytest

from ampwatch.host.fleet.modules import MAX_MODULES, Modules
from ampwatch.host.fleet.ranges import Ranges
from ampwatch.host.fleet.trouble import Trouble
from ampwatch.numerics.formats import narrowest_half
from ampwatch.settings import Settings
from ampwatch.wire.records import ALL_MODULES, RangeRecord, Topic
from tests.workshop.records import histogram, ranges


def worst(topics: dict[Topic, RangeRecord], autocast: str = "float16") -> Trouble:
    """Return the trouble of a module of a run whose other gradients are ordinary."""
    run = Ranges(Settings(), 0)
    run.know_autocast(narrowest_half([autocast]))
    run.put(ranges(ALL_MODULES, exponents=histogram(-3, 1)))
    return run.trouble(topics)


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
MAX_MISSED = ranges("fc", Topic.UPDATE, histogram(-12, 100, zeros=900))
FEW_MISSED = ranges("fc", Topic.UPDATE, histogram(-12, 900, zeros=100))

IN_ORDER = (ONE_NAN, ALL_LOST, SOME_LOST, AT_THE_END, NEAR_THE_END, MAX_MISSED, FAR_FROM_IT, FINE)


def test_modules_are_sorted_as_the_page_promises() -> None:
    """Non-finite, then lost gradients, then the end of the format, then updates that miss."""
    scores = [worst(module(record)).score for record in IN_ORDER]

    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == len(scores)
    assert scores[-1] == 0.0


def test_the_worst_topic_of_a_module_speaks() -> None:
    """Whatever else is fine or less bad about it."""
    pairs = [(a, b) for a, b in itertools.combinations(IN_ORDER, 2) if a.topic is not b.topic]

    for worse, other in pairs:
        assert worst(module(other, worse)) == worst(module(worse))


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (ONE_NAN, "nonfinite"),
        (ALL_LOST, "lost"),
        (SOME_LOST, "lost"),
        (HARDLY_LOST, ""),
        (AT_THE_END, "activation_headroom"),
        (FAR_FROM_IT, ""),
        (MAX_MISSED, "unchanged"),
        (FEW_MISSED, ""),
        (FINE, ""),
    ],
)
def test_a_reason_is_reported_only_if_it_is_notable(record: RangeRecord, reason: str) -> None:
    """A share within what is tolerated sorts a little higher, and is not called trouble."""
    assert worst(module(record)).reason == reason


@pytest.mark.parametrize(
    ("amax", "score"),
    [(65504.0, 3.0), (65504.0 / 16, 0.5), (65504.0 / 256, 0.0), (1.0, 0.0)],
)
def test_an_output_is_in_trouble_near_the_largest_number(amax: float, score: float) -> None:
    """By the logarithm: from a 256th of the limit on; at the end it is notable as well."""
    exponent = math.ceil(math.log2(amax))
    record = ranges("fc", Topic.ACTIVATION, histogram(exponent, 1, amax=amax), dtype="float16")

    assert worst(module(record)).score == pytest.approx(score)


@pytest.mark.parametrize("topic", list(Topic))
@pytest.mark.parametrize("kind", ["nans", "positive_infs", "negative_infs"])
def test_a_value_that_is_not_finite_is_the_worst(topic: Topic, kind: str) -> None:
    """Whatever it is and wherever."""
    record = ranges("fc", topic, histogram(-30, 9, zeros=9, **{kind: 1}), dtype="mixed")

    assert worst(module(record)) == (5.0, "nonfinite")


@pytest.mark.parametrize("topic", [Topic.WEIGHT, Topic.BUFFER])
def test_finite_state_is_no_trouble(topic: Topic) -> None:
    """A weight of zero or of a million is what it is."""
    record = ranges("fc", topic, histogram(-30, 1, zeros=9), dtype="float16")

    assert worst(module(record)) == (0.0, "")


def test_large_gradients_are_no_trouble() -> None:
    """Being near the end is the scaler's doing."""
    assert worst(module(ranges("fc", exponents=histogram(16, 1, amax=65504.0)))) == (0.0, "")


def test_gradients_of_outputs_count_as_those_of_parameters_do() -> None:
    """Backward in float16 flushes there, before any parameter sees it."""
    lost = ranges(
        "fc", Topic.ACTIVATION_GRADIENT, histogram(-24, 6, zeros=4), dtype="float16", flushed=4
    )
    fine = ranges("fc", Topic.ACTIVATION_GRADIENT, histogram(-24, 6, zeros=4))

    assert worst(module(FINE, lost)) == (3.4, "lost")
    assert worst(module(FINE, fine)) == (0.0, "")


def judge(topics: Mapping[Topic, RangeRecord]) -> Trouble:
    """Judge by the smallest numbers alone: a quarter of them is notable."""
    gradient = topics[Topic.GRADIENT].histogram
    share = gradient.at_most(-25) / gradient.nonzero
    return Trouble(share, "lost" if share >= 0.25 else "")


def modules_of(troubles: dict[str, int], max_series: int) -> Modules:
    """Return modules of whose 16 gradient elements so many underflow."""
    modules = Modules(max_series)
    for name, lost in troubles.items():
        measure(modules, name, lost)
    return modules


def measure(modules: Modules, name: str, lost: int) -> None:
    modules.put(ranges(name, Topic.GRADIENT, histogram(-25, lost, 16 - lost)))


def test_a_small_model_has_series_for_all_its_modules() -> None:
    """Also for those without trouble, and for one that shows up later."""
    modules = modules_of({"a": 0, "b": 4}, max_series=3)
    modules.choose(judge)
    measure(modules, "c", 0)
    modules.choose(judge)

    assert modules.tracked == ["b", "a", "c"]
    assert modules.num_untracked == 0


def test_of_a_large_model_half_the_series_go_to_those_with_the_most_trouble() -> None:
    """The other half waits for modules whose trouble becomes notable later."""
    modules = modules_of({f"layer{i}": 0 for i in range(8)} | {"worst": 9, "bad": 5}, max_series=4)
    modules.choose(judge)
    assert modules.tracked == ["worst", "bad"]

    measure(modules, "layer4", 3)
    measure(modules, "layer5", 16)
    modules.choose(judge)

    assert modules.tracked == ["worst", "bad", "layer5"]
    assert modules.num_untracked == 7


def test_a_series_never_moves_to_another_module() -> None:
    """Chosen once, it stays, whatever becomes of the module."""
    modules = modules_of({"a": 9, "b": 8, "c": 7, "d": 6}, max_series=2)
    modules.choose(judge)
    for name in ("a", "b"):
        measure(modules, name, 0)
    for name in ("c", "d"):
        measure(modules, name, 16)
    modules.choose(judge)

    assert modules.tracked == ["a", "b"]


def test_without_series_none_is_chosen() -> None:
    """``module_series=0`` switches them off."""
    modules = modules_of({"a": 9}, max_series=0)
    modules.choose(judge)

    assert modules.tracked == []
    assert modules.num_untracked == 1


def test_many_modules_take_bounded_memory_and_tracked_ones_stay() -> None:
    """Modules measured longest ago are let go; the counters of a tracked one go on."""
    modules = modules_of({"tracked": 16, "old": 0}, max_series=1)
    modules.choose(judge)
    for index in range(2 * MAX_MODULES):
        measure(modules, f"layer{index}", 0)

    assert len(modules.by_name) == MAX_MODULES
    assert {"tracked", f"layer{2 * MAX_MODULES - 1}"} <= modules.by_name.keys()
    assert "old" not in modules.by_name
    assert modules.tracked == ["tracked"]
