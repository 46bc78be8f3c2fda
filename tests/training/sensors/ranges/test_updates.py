"""Updates: changes of an optimizer step, as a share of the weights."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import nn

from ampwatch.diagnosis.evidence.iteration import Attention
from ampwatch.diagnosis.evidence.rounding import UPDATE_SPAN
from ampwatch.training.hooks.events import IterationPlanned
from ampwatch.training.sensors.ranges.updates import LONG_SPAN, MAX_ELEMENTS, UpdateSensor
from ampwatch.wire.records import Topic
from tests.training.sensors.notes import Parts


class Bench:
    """Parameters whose updates are known: plain SGD with a given gradient."""

    def __init__(self, *parameters: torch.Tensor, **options: Any) -> None:
        self.model = nn.ParameterList([nn.Parameter(p) for p in parameters])
        self.optimizer = torch.optim.SGD(self.model.parameters(), **{"lr": 1.0, **options})
        self.parts = Parts([self.model], Topic.UPDATE)
        self.parts.install(UpdateSensor(self.parts.context))

    def step(self, gradient: float) -> None:
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, gradient)
        self.optimizer.step()
        self.parts.governor.step += 1

    def ratios(self, *, span: int = 1) -> list[torch.Tensor]:
        return [n.values for n in self.parts.notes.notes if n.how.span == span]


def test_the_ratio_of_update_to_weight_is_measured_per_parameter() -> None:
    """In magnitudes."""
    watched = Bench(torch.tensor([4.0, -8.0]), torch.tensor([16.0]))
    watched.step(0.5)

    assert [r.tolist() for r in watched.ratios()] == [[0.125, 0.0625], [0.03125]]
    assert [n.name for n in watched.parts.notes.notes] == ["0", "1"]


def test_an_update_that_rounds_away_is_a_zero() -> None:
    """bfloat16 near 1 has steps of 2^-7."""
    watched = Bench(torch.tensor([1.0, 2.0**-10], dtype=torch.bfloat16))
    watched.step(2.0**-10)

    assert [r.tolist() for r in watched.ratios()] == [[0.0, 1.0]]


def test_updates_are_also_compared_over_many_steps() -> None:
    """From the snapshot that is kept: a sum that is lost, too, is lost to rounding."""
    watched = Bench(torch.tensor([1.0, 256.0], dtype=torch.bfloat16))
    for _ in range(2 * UPDATE_SPAN + 1):
        watched.step(2.0**-3)

    spans = watched.ratios(span=UPDATE_SPAN)
    assert [r[1].item() for r in spans] == [0.0, 0.0]
    assert all(r[0] > 0.1 for r in spans)


def test_a_weight_of_zero_has_a_ratio_too() -> None:
    """Finite, and large."""
    watched = Bench(torch.zeros(2))
    watched.step(1e-3)

    (moved,) = watched.ratios()
    assert moved.isfinite().all()
    assert moved.min() > 1.0


def test_an_infinity_that_stays_has_not_changed_and_one_that_is_made_is_no_number() -> None:
    """Of a mask, and of a weight that a step has broken."""
    inf = float("inf")
    watched = Bench(torch.tensor([-inf, inf, 3e38, 1.0]))
    watched.step(-3e38)

    (moved,) = watched.ratios()
    assert moved[:2].tolist() == [0.0, 0.0]
    assert moved.isfinite().tolist() == [True, True, False, True]


@pytest.mark.parametrize("rate", [0, 0.0])
def test_parameters_with_a_learning_rate_of_zero_are_left_out(rate: float) -> None:
    """Those parameters are not meant to move."""
    watched = Bench(torch.ones(2), lr=rate)
    watched.step(1.0)

    assert watched.parts.notes.notes == []


def test_parameters_without_a_gradient_are_left_out() -> None:
    """Parameters without a gradient are not meant to move either."""
    watched = Bench(torch.ones(2), torch.ones(3))
    watched.model[0].grad = torch.ones(2)
    watched.optimizer.step()

    assert [n.name for n in watched.parts.notes.notes] == ["0"]


@pytest.mark.parametrize("numel", [MAX_ELEMENTS, MAX_ELEMENTS + 1, 10 * MAX_ELEMENTS + 7])
def test_of_a_large_parameter_a_subsample_is_compared(numel: int) -> None:
    """Every k-th element, spread over all of it."""
    weight = torch.ones(numel)
    weight[numel // 2 :] = 2.0
    watched = Bench(weight)
    watched.step(0.5)

    (ratio,) = watched.ratios()
    assert MAX_ELEMENTS / 2 < len(ratio) <= MAX_ELEMENTS
    assert (ratio == 0.25).double().mean().item() == pytest.approx(0.5, abs=0.01)


def test_an_iteration_that_is_not_sampled_is_left_alone() -> None:
    """No snapshot, no comparison."""
    watched = Bench(torch.ones(2))
    watched.parts.governor.wanted = frozenset()
    watched.parts.bus.emit(IterationPlanned(0, Attention()))
    watched.step(1.0)

    assert watched.parts.notes.notes == []


def test_a_part_of_the_parameters_is_compared_when_all_would_be_too_much() -> None:
    """Each part has a snapshot of its own, so that spans are seen as well."""
    watched = Bench(*(torch.ones(2) for _ in range(3)))
    for step in range(4 * UPDATE_SPAN):
        watched.parts.governor.part = (step % 2, 2)
        watched.step(1e-3)

    names = {n.name for n in watched.parts.notes.notes if n.how.span > 1}
    assert names == {"0", "1", "2"}
    assert {n.how.span for n in watched.parts.notes.notes} == {1, UPDATE_SPAN}
    assert [n.name for n in watched.parts.notes.notes[:3]] == ["0", "2", "1"]


def test_a_step_that_raised_does_not_end_the_comparisons() -> None:
    """The next step is a new one."""
    watched = Bench(torch.ones(2))

    def fail() -> float:
        msg = "of the user"
        raise ValueError(msg)

    watched.model[0].grad = torch.ones(2)
    with pytest.raises(ValueError, match="of the user"):
        watched.optimizer.step(fail)
    watched.parts.governor.step += 1
    watched.step(0.5)

    assert [r.tolist() for r in watched.ratios()] == [[0.5, 0.5]]


def test_parameters_of_several_dtypes_are_compared() -> None:
    """Dtypes that cannot be joined are compared apart."""
    watched = Bench(
        torch.ones(2), torch.ones(3, dtype=torch.bfloat16), torch.ones(4, dtype=torch.float64)
    )
    watched.step(0.5)

    assert {n.name: n.values.tolist() for n in watched.parts.notes.notes} == {
        "0": [0.5] * 2,
        "1": [0.5] * 3,
        "2": [0.5] * 4,
    }


def test_optimizers_that_are_gone_leave_no_snapshot() -> None:
    """A change of the number of parts leaves no snapshot either."""
    model = nn.ParameterList([nn.Parameter(torch.ones(4)) for _ in range(8)])
    parts = Parts([model], Topic.UPDATE)
    sensor = UpdateSensor(parts.context)
    parts.install(sensor)
    for number in range(10):
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        for parameter in model:
            parameter.grad = torch.ones_like(parameter)
        for part in range(4):
            parts.governor.part = (part % (1 + number % 4), 1 + number % 4)
            parts.governor.step += 1
            optimizer.step()
    kept = [len(history.kept) for history in sensor._histories.values()]
    del optimizer
    gc.collect()

    assert max(kept) <= 4
    assert len(sensor._histories) == 0


def test_an_optimizer_of_others_is_given_more_time() -> None:
    """An optimizer of others may round stochastically, or keep float32 weights of its own."""

    class Own(torch.optim.SGD):
        pass

    watched = Bench(torch.ones(2))
    own = Own(watched.model.parameters(), lr=1.0)
    for _ in range(LONG_SPAN + UPDATE_SPAN):
        watched.model[0].grad = torch.zeros(2)
        own.step()
        watched.parts.governor.step += 1

    assert {n.how.span for n in watched.parts.notes.notes} == {1, LONG_SPAN}


def test_an_optimizer_that_cannot_be_a_key_steps_as_without_ampwatch() -> None:
    """One that defines ``__eq__`` has no hash: the sensor gives up, the step goes on."""

    class Unhashable(torch.optim.SGD):
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            return self is other

    model = nn.ParameterList([nn.Parameter(torch.ones(2))])
    optimizer = Unhashable(model.parameters(), lr=1.0)
    parts = Parts([model], Topic.UPDATE)
    parts.bus.add(UpdateSensor(parts.context))
    parts.bus.install()
    for _ in range(3):
        model[0].grad = torch.ones(2)
        optimizer.step()
    parts.bus.remove()

    assert model[0].tolist() == [-2.0, -2.0]
    assert [guard.name for guard in parts.bus.guards if guard.errors] == ["updates"]


def test_an_eps_that_is_zero_in_the_parameters_dtype_is_noted() -> None:
    """float16 flushes 1e-8; bfloat16 and float32 hold it."""
    for dtype, eps, lost in [
        (torch.float16, 1e-8, {"0": 1e-8}),
        (torch.float16, 1e-4, {}),
        (torch.bfloat16, 1e-8, {}),
        (torch.float32, 1e-8, {}),
    ]:
        model = nn.ParameterList([nn.Parameter(torch.ones(2, dtype=dtype))])
        optimizer = torch.optim.Adam(model.parameters(), eps=eps)
        parts = Parts([model], Topic.UPDATE)
        parts.install(UpdateSensor(parts.context))
        model[0].grad = torch.ones_like(model[0])
        optimizer.step()
        parts.remove()

        assert parts.context.lost_eps == lost
