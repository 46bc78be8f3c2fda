"""Parameters and buffers at the end of an iteration."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from ampwatch.diagnosis.evidence.scaler import BadOption, BrokenWeights
from ampwatch.training.hooks.events import IterationClosing, OptimizerStepping
from ampwatch.training.sensors.ranges.weights import BITS, WeightSensor
from ampwatch.training.transfer.deferred import SLOTS, WIDTH, Deferred
from ampwatch.wire.records import Topic
from tests.training.sensors.late import FakeDevice
from tests.training.sensors.notes import Parts

STATE = (Topic.WEIGHT, Topic.UPDATE, Topic.BUFFER)


def watched(*wanted: Topic) -> tuple[nn.Module, Parts]:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    parts = Parts([model], *wanted)
    parts.install(WeightSensor(parts.context))
    return model, parts


def test_all_parameters_and_floating_buffers_are_measured() -> None:
    """The count of batches is an integer and is left out."""
    model, parts = watched(*STATE)
    parts.bus.emit(IterationClosing(has_nonfinite=False))

    assert set(parts.notes.of(Topic.WEIGHT)) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert set(parts.notes.of(Topic.BUFFER)) == {"1.running_mean", "1.running_var"}
    torch.testing.assert_close(
        parts.notes.of(Topic.WEIGHT)["0.weight"], model.get_parameter("0.weight").detach()
    )


@pytest.mark.parametrize(("nonfinite", "first", "measured"), [(0, 1, 0), (1, 1, 1), (1, 0, 0)])
def test_something_non_finite_is_a_reason_to_measure_at_once(
    nonfinite: int, first: int, measured: int
) -> None:
    """In an iteration that is not sampled, and once in a row of them."""
    _, parts = watched()
    parts.governor.first_check = bool(first)
    parts.bus.emit(IterationClosing(has_nonfinite=bool(nonfinite)))

    assert bool(parts.notes.notes) is bool(measured)


def test_light_does_not_measure_even_then() -> None:
    """Light watches scaler and steps."""
    _, parts = watched()
    parts.governor.observes_skips = False
    parts.bus.emit(IterationClosing(has_nonfinite=True))

    assert parts.notes.notes == []


def test_a_part_of_the_parameters_is_measured_when_all_would_be_too_much() -> None:
    """Each belongs to one part."""
    _, parts = watched(*STATE)
    seen = []
    for part in range(3):
        parts.governor.part = (part, 3)
        parts.notes.notes.clear()
        parts.bus.emit(IterationClosing(has_nonfinite=False))
        seen += parts.notes.of(Topic.WEIGHT)

    assert sorted(seen) == ["0.bias", "0.weight", "1.bias", "1.weight"]


@pytest.mark.parametrize(
    ("broken", "seen"),
    [
        ({"1.bias": math.nan}, [BrokenWeights(0, "1.bias", "float32", 1)]),
        (
            {"0.bias": math.nan, "1.bias": math.nan},
            [BrokenWeights(0, "0.bias", "float32", 2)],
        ),
        ({"0.bias": math.inf}, []),  # a mask, perhaps
        ({"2.weight": math.nan}, []),  # frozen: a placeholder
        ({}, []),
    ],
)
def test_weights_that_are_nan_from_the_start_are_reported_once(
    broken: dict[str, float], seen: list[BrokenWeights]
) -> None:
    """What the first step breaks is no weight of these."""
    model = nn.Sequential(
        nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1).requires_grad_(requires_grad=False)
    )
    with torch.no_grad():
        for name, value in broken.items():
            model.get_parameter(name)[0] = value
    parts = Parts([model])
    parts.install(WeightSensor(parts.context))
    with torch.no_grad():
        model.get_parameter("0.weight")[0, 0] = math.nan
    for _ in range(2):
        parts.bus.emit(IterationClosing(has_nonfinite=False))

    assert [o for o in parts.seen if isinstance(o, BrokenWeights)] == seen


def test_an_option_that_is_nan_is_reported_and_an_infinity_that_may_be_meant_is_not() -> None:
    """As of a norm to clip by; an infinite learning rate is none."""
    model, parts = nn.Sequential(nn.Linear(2, 3)), None
    for lr, seen in ((0.1, ["decay"]), (math.inf, ["lr", "decay"])):
        parts = Parts([model])
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        optimizer.param_groups[0] |= {"max_norm": math.inf, "decay": math.nan}
        parts.context.registry.admit(optimizer)
        parts.install(WeightSensor(parts.context))
        parts.governor.wanted = frozenset({Topic.WEIGHT})
        parts.bus.emit(IterationClosing(has_nonfinite=False))

        assert [o.name for o in parts.seen if isinstance(o, BadOption)] == seen


def test_weights_that_are_written_after_set_up_are_left_alone() -> None:
    """A checkpoint is loaded into memory that nobody has initialised."""
    model = nn.Sequential(nn.Linear(2, 3))
    with torch.no_grad():
        model[0].weight.fill_(math.nan)
    parts = Parts([model])
    parts.install(WeightSensor(parts.context))
    model.load_state_dict(nn.Sequential(nn.Linear(2, 3)).state_dict())
    parts.bus.emit(IterationClosing(has_nonfinite=False))

    assert [o for o in parts.seen if isinstance(o, BrokenWeights)] == []


@pytest.mark.parametrize("is_skipped", [False, True])
def test_what_is_finite_before_the_first_step_is_known_then_and_after_a_checkpoint_was_loaded(
    *, is_skipped: bool
) -> None:
    """What the step makes of it comes too late, and a first step that is skipped changes nothing."""
    model = nn.Sequential(nn.Linear(2, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parts = Parts([model])
    parts.install(WeightSensor(parts.context))
    with torch.no_grad():
        model[0].bias[2] = -math.inf
    if not is_skipped:
        parts.bus.emit(OptimizerStepping(optimizer))
        with torch.no_grad():
            model[0].weight.fill_(math.inf)
            model[0].bias.fill_(0.0)
    parts.bus.emit(IterationClosing(has_nonfinite=False))
    assert parts.notes.finite == {("0.weight", 6)}

    with torch.no_grad():
        model[0].bias.fill_(0.0)
    parts.bus.emit(OptimizerStepping(optimizer))
    parts.bus.emit(IterationClosing(has_nonfinite=False))
    assert parts.notes.finite == {("0.weight", 6)}


@pytest.mark.parametrize("of_this", [True, False])
def test_the_step_of_an_optimizer_of_another_model_is_not_the_first(*, of_this: bool) -> None:
    """A checkpoint may be loaded after it; not after the first step of one of the parameters."""
    model, other = nn.Sequential(nn.Linear(2, 3)), nn.Linear(2, 2)
    parts = Parts([model])
    parts.install(WeightSensor(parts.context))
    stepping = (model if of_this else other).parameters()
    parts.bus.emit(OptimizerStepping(torch.optim.SGD(stepping, lr=0.1)))
    with torch.no_grad():
        model[0].bias[2] = -math.inf
    parts.bus.emit(OptimizerStepping(torch.optim.SGD(model.parameters(), lr=0.1)))

    assert (("0.bias", 3) in parts.notes.finite) is of_this


@pytest.mark.parametrize("slots", [SLOTS, 1])
def test_each_of_many_parameters_is_known_to_be_finite_or_not(slots: int) -> None:
    """One whose look finds no room on its way from the device is taken to be finite."""
    model = nn.ParameterList(nn.Parameter(torch.zeros(1)) for _ in range(2 * WIDTH * BITS + 5))
    masks = [0, 1, BITS, WIDTH * BITS - 1, WIDTH * BITS, len(model) - 1]
    for mask in masks:
        model[mask].data.fill_(-math.inf)
    link = FakeDevice()
    deferred = Deferred(link, slots=slots)
    parts = Parts([model], parts={"deferred": deferred})
    parts.install(WeightSensor(parts.context))
    link.done = link.recorded
    deferred.poll()
    parts.bus.emit(IterationClosing(has_nonfinite=False))
    link.done = link.recorded
    deferred.poll()

    read = masks if slots > 1 else masks[:4]
    assert parts.notes.finite == {(str(i), 1) for i in range(len(model)) if i not in read}
