"""Observations of API use, and the findings they make."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ampwatch.diagnosis.book import FindingBook
from ampwatch.diagnosis.calls.api_misuse import WAIT_FOR_NAME, ApiMisuse
from ampwatch.diagnosis.detector import Shared
from ampwatch.diagnosis.evidence.calls import (
    AutocastBackward,
    MixedGradients,
    MixedScales,
    NonfiniteClip,
    RefusedOp,
    ScaledClip,
    ScaledStep,
)
from ampwatch.wire.records import Finding, Severity
from tests.diagnosis.calls.test_api_errors import raised
from tests.workshop.iterations import TAKEN
from tests.workshop.simulation import Simulation

NAN = math.nan


class Case:
    """The family with a book, and a scale that has reached the host."""

    def __init__(self, scale: float = 4096.0) -> None:
        self.book = FindingBook(lambda _news: None)
        self.family = ApiMisuse(Shared(self.book, loss_scale=lambda: scale))

    def see(self, *observations: object) -> Case:
        for observation in observations:
            getattr(self.family, self.family.observers[type(observation)])(observation)
        return self

    def iterate(self, step: int) -> Case:
        simulation = Simulation()
        simulation.step = step
        self.family.detect(simulation.iteration({}), TAKEN)
        return self

    @property
    def one(self) -> Finding:
        (finding,) = self.book.findings
        return finding


def scaled_clip(step: int = 3, limit: float = 1.0, scale: float = 1024.0) -> ScaledClip:
    return ScaledClip(step, 1, "clip_grad_norm_", limit, 640.0, scale, "train.py:9")


def nonfinite_clip(step: int = 3, parameter: str = "head.weight") -> NonfiniteClip:
    return NonfiniteClip(step, 0, parameter, 5, math.inf, 1.0, "train.py:9")


def broken_weights(step: int, where: str = "param:body.weight") -> Finding:
    return Finding("param_nonfinite", Severity.CRITICAL, where, "", "", first_step=step)


def test_a_clip_of_scaled_gradients_tells_the_limit_that_is_left() -> None:
    """1 at a scale of 1024 is 0.000977."""
    finding = Case().see(scaled_clip()).one

    assert (finding.kind, finding.where, finding.phase, finding.severity) == (
        "clip_before_unscale",
        "optimizer:1",
        "optimizer",
        Severity.WARNING,
    )
    assert finding.evidence["effective_limit"] == pytest.approx(1 / 1024)
    assert finding.source == "train.py:9"
    assert "0.000977" in finding.summary
    assert "scaler.unscale_(optimizer)" in finding.advice


@pytest.mark.parametrize("limit", [1024.0, 5000.0, math.inf, NAN])
def test_a_limit_that_was_multiplied_by_the_scale_is_right(limit: float) -> None:
    """So is one that only measures; one that is a tensor is not known."""
    assert Case().see(scaled_clip(limit=limit)).book.findings == []


def test_a_scale_on_a_device_is_the_newest_that_has_arrived() -> None:
    """The host does not wait for it."""
    finding = Case(scale=256.0).see(scaled_clip(scale=NAN)).one

    assert finding.evidence["loss_scale"] == 256.0


def test_a_finding_is_made_once_and_counted_once_per_iteration() -> None:
    """Micro-batches of one iteration are one."""
    finding = Case().see(*(scaled_clip(step) for step in (3, 3, 4, 5, 5))).one

    assert (finding.first_step, finding.last_step, finding.count) == (3, 5, 3)


def test_a_parameter_that_is_not_known_at_once_is_known_from_the_weights() -> None:
    """Where a device clipped, nobody has looked before the gradients were gone."""
    case = Case().see(nonfinite_clip(step=3, parameter="")).iterate(4)
    assert case.book.findings == []
    weights = broken_weights(3)
    case.book.make(weights)
    case.iterate(5)

    made = case.book.of_kind("clip_nonfinite_norm")
    assert [f.where for f in made] == ["param:body.weight"]
    assert not weights.root


@pytest.mark.parametrize("ends", [True, False])
def test_a_parameter_that_never_becomes_known_leaves_the_optimizer(*, ends: bool) -> None:
    """It is said anyway, some iterations later or when the run ends."""
    case = Case().see(nonfinite_clip(step=3, parameter=""))
    if ends:
        case.family.flush()
    else:
        case.iterate(3 + WAIT_FOR_NAME)

    assert case.one.where == "optimizer:0"


def test_what_becomes_of_steps_that_are_too_large_is_explained_by_them() -> None:
    """Broken weights, and a scale that collapses for it."""
    case = Case().see(ScaledStep(2, 0, 4096.0, 6, "train.py:7"))
    weights = broken_weights(5)
    case.book.make(weights)
    case.iterate(5)

    (step,) = case.book.of_kind("unscaled_step")
    assert (step.op, step.phase, step.evidence["parameters"]) == ("step", "optimizer", 6.0)
    assert weights.caused_by == step.key


@pytest.mark.parametrize(
    ("any_scaled", "after_unscale", "words"),
    [
        (True, False, "was not scaled beside others that were"),
        (False, False, "were not scaled, and are divided"),
        (True, True, "added, after unscale_"),
    ],
)
def test_mixed_losses_are_described_as_they_are(
    words: str, *, any_scaled: bool, after_unscale: bool
) -> None:
    """Three ways to mix them, one kind."""
    seen = MixedGradients(0, 1, 512.0, "w", 3, any_scaled, after_unscale, "train.py:5")
    finding = Case().see(seen).one

    assert (finding.kind, finding.where, finding.phase) == (
        "mixed_scaled_backward",
        "optimizer:1",
        "backward",
    )
    assert words in finding.summary
    assert "parameter w" in finding.summary


def test_two_scales_in_one_sum_are_both_reported() -> None:
    """The one it was multiplied by and the one it is divided by."""
    finding = Case().see(MixedScales(9, 1, 512.0, 256.0, 4, 2, "train.py:5")).one

    assert finding.kind == "scale_changed_mid_accumulation"
    assert (finding.evidence["loss_scale"], finding.evidence["other_scale"]) == (512.0, 256.0)
    assert "4 updates" in finding.summary


def test_backward_under_autocast_tells_the_dtype() -> None:
    """The region decides in what ops of backward run."""
    finding = Case().see(AutocastBackward(0, "bfloat16", "train.py:5")).one

    assert (finding.kind, finding.where, finding.dtype) == (
        "backward_under_autocast",
        "api",
        "bfloat16",
    )
    assert "backward ran under autocast" in finding.summary


@pytest.mark.parametrize(
    ("meant", "words"),
    [
        ({"is_held": True}, "backward ran under autocast"),
        ({"region_of": "Lightning's Trainer"}, "the region is that of Lightning's Trainer"),
    ],
)
def test_backward_in_a_region_that_nobody_could_leave_is_an_info_until_it_is_not(
    meant: dict[str, Any], words: str
) -> None:
    """A block of the step is a mistake; one around an epoch is a choice, and a framework's is not the user's."""
    case = Case().see(AutocastBackward(2, "bfloat16", "", **meant))
    assert case.one.severity is Severity.INFO
    assert words in case.one.summary
    case.see(AutocastBackward(3, "bfloat16", ""))
    assert case.one.severity is Severity.WARNING


def test_of_a_chain_of_exceptions_one_is_explained() -> None:
    """The one that was raised from another says no more than that."""
    refused = raised("ValueError", "Attempting to unscale FP16 gradients.", optimizer=0)
    outer = refused._replace(type_name="RuntimeError", message="training failed")

    assert Case().see(outer, refused, refused).one.where == "optimizer:0"


def test_what_a_gpu_would_refuse_is_reported_once_and_counted() -> None:
    """A warning: on a CPU the training goes on. What to change is as for the exception."""
    op = "binary_cross_entropy"
    seen = [RefusedOp(step, op, "loss", "float16", "train.py:9") for step in (3, 3, 5)]
    finding = Case().see(*seen).one

    assert (finding.kind, finding.where, finding.op) == ("api_error", "loss", op)
    assert (finding.phase, finding.dtype) == ("forward", "float16")
    assert finding.severity is Severity.WARNING
    assert (finding.first_step, finding.last_step, finding.count) == (3, 5, 2)
    assert "torch.nn.BCEWithLogitsLoss" in finding.advice
    assert finding.source == "train.py:9"
