"""Gradients that do not fit into float16, told from those that are zero for good reason."""

from __future__ import annotations

import math
import random
import re
from typing import TYPE_CHECKING

import pytest

from ampwatch.diagnosis.evidence.scaler import UnscaledStep
from ampwatch.diagnosis.news import Reason
from ampwatch.numerics.written import scale_argument
from ampwatch.wire.records import Severity, Topic
from tests.diagnosis.words import Known, complaints_of
from tests.workshop.replay import Replay, measured

if TYPE_CHECKING:
    from ampwatch.diagnosis.evidence.iteration import TensorRange


def normal(amplitude: float, count: int = 256, seed: int = 0) -> list[float]:
    rng = random.Random(seed)
    return [rng.gauss(0.0, amplitude) for _ in range(count)]


def test_float16_without_a_scaler_that_does_no_harm_is_an_info() -> None:
    """It is still told, since it may do harm later."""
    replay = Replay(scaled=False)
    replay.diagnosis.observe(UnscaledStep(0))
    for _ in range(5):
        replay.take(replay.gradient("w", normal(1.0)))

    finding = replay.only("fp16_without_scaler")
    assert (finding.where, finding.severity) == ("api", Severity.INFO)
    assert finding.count == 4


def test_float16_without_a_scaler_is_told_before_anything_is_measured() -> None:
    """It is known from the calls; and is not said of a loss that may be scaled by something else."""
    silent, replay = Replay(scaled=False), Replay(scaled=False)
    replay.diagnosis.observe(UnscaledStep(0))
    for _ in range(5):
        silent.take(silent.gradient("w", normal(1.0)))
        replay.take()

    finding = replay.only("fp16_without_scaler")
    assert (finding.where, finding.severity, finding.first_step) == ("api", Severity.INFO, 0)
    assert silent.findings == []


def test_harm_that_comes_later_becomes_a_warning() -> None:
    """Gradients shrink as a training goes on."""
    replay = Replay(scaled=False)
    replay.diagnosis.observe(UnscaledStep(0))
    for amplitude in (1.0, 1.0, 1.0, 1e-2, 1e-4, 1e-5, 1e-9, 1e-9):
        replay.take(replay.gradient("w", normal(amplitude)))

    assert [f.where for f in replay.findings if f.root] == ["param:w"]
    assert replay.findings[-1].severity is Severity.WARNING


@pytest.mark.parametrize("dtypes", [(), ("bfloat16",)])
def test_zeros_mean_nothing_where_nothing_runs_in_float16(dtypes: tuple[str, ...]) -> None:
    """bfloat16 and float32 flush nothing that matters."""
    replay = Replay(scaled=False, dtypes=dtypes)
    for _ in range(5):
        replay.take(replay.gradient("w", [0.0] * 900 + normal(1e-7, 100)))

    assert replay.findings == []


def test_underflow_under_a_scaler_is_reported_after_two_looks() -> None:
    """One look may fall between a backoff and the growth after it."""
    replay = Replay(scale=16.0)
    replay.take(replay.gradient("w", normal(1e-9)), replay.gradient("b", normal(1e-2)))
    once = list(replay.findings)
    replay.take(replay.gradient("w", normal(1e-9)), replay.gradient("b", normal(1e-2)))

    assert once == []
    assert replay.only("grad_underflow").where == "param:w"
    assert replay.only("grad_underflow").evidence["loss_scale"] == 16.0


def test_underflow_began_in_the_first_of_the_looks_that_show_it() -> None:
    """And not before it was lost in this parameter, or in so many elements."""
    replay = Replay(scale=16.0)
    for lost in (1.0, 1.0, 1e-9, 1e-9):
        replay.take(replay.gradient("w", normal(lost)), replay.gradient("b", normal(1e-2)))

    finding = replay.only("grad_underflow")
    assert (finding.first_step, finding.last_step) == (2, 3)
    assert "since step 2," in finding.summary


def test_a_panel_that_has_nothing_to_show_is_not_advised() -> None:
    """Gradients that vanish with the loss were never measured as small as they are."""
    replay = Replay(scale=65536.0)
    for _ in range(3):
        replay.take(replay.gradient("w", normal(1.0)), loss=1.0)
    for _ in range(3):
        replay.take(replay.gradient("w", [0.0] * 256), loss=1e-14)

    vanished = replay.only("grad_underflow").advice
    assert "what-if" not in vanished
    assert "is not known" in vanished


def test_dead_units_are_not_underflow() -> None:
    """Their zeros stand beside ordinary gradients, or always were zeros."""
    replay = Replay(scale=65536.0)
    for step in range(20):
        replay.take(
            replay.gradient("relu.weight", [0.0] * 950 + normal(1e-3, 50, step)),
            replay.gradient("unused.weight", [0.0] * 500),
        )

    assert replay.findings == []


def test_a_few_biases_without_a_gradient_worth_the_name_are_not_underflow() -> None:
    """The bias of attention keys has none, in any precision."""
    replay = Replay(scale=65536.0)
    for step in range(20):
        replay.take(
            replay.gradient("attention.weight", normal(1e-3, 4096, step)),
            replay.gradient("attention.key.bias", normal(1e-14, 32, step)),
        )

    assert replay.findings == []


def test_two_parameters_that_no_scale_fits_are_one_finding_at_the_one_that_caps_it() -> None:
    """The other one, flushed to zero at the scale that is left, is its symptom; no scale is advised for it."""
    replay = Replay(scale=65536.0)
    for step in range(24):
        replay.take(
            replay.gradient("hot.weight", normal(3000.0, 64, step)),
            replay.gradient("cold.weight", normal(3e-9, 64, step)),
        )

    assert replay.roots == [("range_too_wide", "param:hot.weight")]
    finding = replay.only("range_too_wide")
    assert finding.evidence["overflows_at"] < finding.evidence["scale_needed"]
    symptom = replay.only("grad_underflow")
    assert (symptom.where, symptom.caused_by) == ("param:cold.weight", finding.key)
    assert "scale_that_fits" not in symptom.evidence
    assert not re.search(r"scaler\.update\(\d", symptom.advice)


def test_a_burst_of_bad_batches_leaves_the_scale_stuck_low() -> None:
    """Everything fitted before, would fit again, and the way back takes thousands of steps."""
    replay = Replay(scale=65536.0)

    def gradients(step: int) -> list[TensorRange]:
        return [
            replay.gradient("first.weight", normal(1e-9, 512, step)),
            replay.gradient("last.weight", normal(1e-3, 32, step)),
        ]

    for step in range(24):
        replay.take(*gradients(step))
    before = list(replay.findings)
    for _ in range(14):
        replay.take(found_inf=True, loss=float("inf"))
    for step in range(30):
        replay.take(*gradients(step))

    assert before == []
    assert replay.roots == [("scale_stuck_low", "param:first.weight")]
    finding = replay.only("scale_stuck_low")
    assert finding.evidence["loss_scale_before"] == 65536.0
    assert finding.evidence["steps_back"] == 14 * 2000
    assert replay.only("scale_collapse").caused_by == finding.key
    assert replay.only("grad_underflow").caused_by == finding.key


def test_a_scale_that_flushes_everything_is_critical_while_it_rests() -> None:
    """No weight changes any more: that costs GPU hours, whatever the loss looks like."""
    replay = Replay(scale=65536.0)
    for step in range(24):
        replay.take(replay.gradient("w", normal(1e-5, 512, step)))
    for _ in range(44):
        replay.take(found_inf=True, loss=float("inf"))
    for _ in range(40):
        replay.take(replay.gradient("w", [0.0] * 512))
    early = replay.only("scale_stuck_low").severity
    for _ in range(20):
        replay.take(replay.gradient("w", [0.0] * 512))
    finding = replay.only("scale_stuck_low")

    assert early is Severity.WARNING
    assert finding.severity is Severity.CRITICAL
    assert (
        "100.0% of all gradient elements are flushed to zero, so nothing is learnt"
        in finding.summary
    )


def test_a_scale_that_grows_back_soon_is_not_stuck() -> None:
    """With a growth interval of 5 it is back before it matters."""
    replay = Replay(scale=65536.0, growth_interval=5)
    for step in range(24):
        replay.take(replay.gradient("w", normal(1e-8, 256, step)))
    for _ in range(14):
        replay.take(found_inf=True)
    for step in range(80):
        replay.take(replay.gradient("w", normal(1e-8, 256, step)))

    assert [f.kind for f in replay.findings] == ["scale_collapse"]


def test_the_search_for_a_scale_is_no_underflow() -> None:
    """On the way down from 2^24 nothing is lost."""
    replay = Replay(scale=2.0**24)
    for step in range(40):
        replay.take(replay.gradient("w", normal(1e-2, 512, step)))

    assert replay.roots == []


@pytest.mark.parametrize(
    ("scale", "loss", "loss_dtype"),
    [(65536.0, 1.0, "float32"), (32768.0, 1.0, "float16"), (65536.0, float("inf"), "float16")],
)
def test_other_skips_are_not_put_down_to_the_loss(
    scale: float, loss: float, loss_dtype: str
) -> None:
    """A float32 loss, a scale that float16 holds, or a loss that is infinite itself."""
    replay = Replay(scale=scale)
    replay.take(found_inf=True, loss=loss, loss_dtype=loss_dtype)

    assert "fp16_loss_caps_scale" not in [f.kind for f in replay.findings]


def test_gradients_of_nothing_but_zeros_were_flushed_if_even_the_loss_is_tiny() -> None:
    """No element is left to tell by, but the scaled loss is below the format as well."""
    tiny, met, dead = (Replay(scale=16.0) for _ in range(3))
    for replay, loss in ((tiny, 1e-6), (met, 0.0), (dead, 1.0)):
        for _ in range(3):
            replay.take(
                replay.gradient("w", [0.0] * 99), replay.gradient("b", [0.0] * 9), loss=loss
            )

    assert tiny.roots == [("grad_underflow", "param:w")]
    assert met.findings == []
    assert dead.findings == []


def test_a_burst_that_brings_the_scale_below_one_leaves_one_root() -> None:
    """The gradients are not too large for a scale of 1: they would fit again."""
    replay = Replay(scale=4.0)
    for _ in range(4):
        replay.take(replay.gradient("w", normal(1e-6, 256)), found_inf=False)
    for _ in range(6):
        replay.take(found_inf=True)
    for step in range(12):
        replay.take(replay.gradient("w", normal(1e-7, 256, step)), found_inf=False)

    assert replay.roots == [("scale_stuck_low", "param:w")]
    for kind in ("grad_underflow", "scale_below_one"):
        assert replay.only(kind).caused_by == "scale_stuck_low@param:w"


def test_a_scale_that_no_gradient_fits_is_at_the_parameter_that_caps_it() -> None:
    """Also where the cap is below 1: what the scale does is a symptom of it."""
    replay = Replay(scale=65536.0)
    for step in range(40):
        replay.take(
            replay.gradient("large", normal(2e5, 8, step)),
            replay.gradient("small", normal(1e-8, 256, step)),
        )

    assert replay.roots == [("range_too_wide", "param:large")]
    assert replay.only("scale_below_one").caused_by == "range_too_wide@param:large"


def test_what_underflows_while_the_scale_collapses_is_its_symptom() -> None:
    """Every second batch is broken: the scale falls through everything that gradients need."""
    replay = Replay(scale=65536.0)
    for step in range(60):
        broken = step >= 30 and step % 2 == 0
        values = [] if broken else [replay.gradient("w", normal(2e-9, 256, step))]
        replay.take(*values, found_inf=broken)

    assert len(replay.roots) == 1
    assert replay.only("grad_underflow").caused_by


def test_gradients_that_a_clip_by_a_nan_norm_has_left_accuse_nobody() -> None:
    """All of them are NaN then; the next look may tell."""
    replay = Replay(scale=4.0)
    nans = [float("nan")] * 64
    for values in ([1.0, float("nan")], nans[:2], nans[:2]):
        replay.take(
            measured(Topic.GRADIENT, "large", nans if values == nans[:2] else [1.0] * 64),
            measured(Topic.GRADIENT, "small", values),
            found_inf=True,
        )
    for _ in range(3):
        replay.take(replay.gradient("large", normal(1.0)))

    assert replay.only("scale_below_one").where == "param:small"


@pytest.mark.parametrize("steps_before", [0, 90])
def test_what_is_infinite_at_every_scale_does_not_cap_the_scale(steps_before: int) -> None:
    """The gradients of one branch were infinite in a burst, and are as small as ever after it."""
    replay = Replay(scale=65536.0)
    for step in range(steps_before):
        replay.take(*_branches(replay, step))
    for step in range(30):
        broken = measured(Topic.GRADIENT, "branch", [math.inf] * 64, scaled=True)
        replay.take(broken, _branches(replay, step)[1])
    for step in range(20):
        replay.take(*_branches(replay, step))

    assert "range_too_wide" not in [f.kind for f in replay.findings]
    assert "grad_underflow" in [f.kind for f in replay.findings]


def _branches(replay: Replay, step: int) -> tuple[TensorRange, TensorRange]:
    return (
        replay.gradient("branch", normal(1e-2, 64, step)),
        replay.gradient("other", normal(1e-5, 256, step)),
    )


def test_a_training_without_a_scaler_that_learns_again_is_no_longer_critical() -> None:
    """It lost everything for 130 steps, and a quarter since: the sentence says both, each in its time."""
    replay = Replay(scaled=False)
    told = {}
    for step in range(260):
        loss = 1e-7 if 20 <= step < 150 else 1.0
        last = 1e-7 if step < 150 else 2e-8
        replay.take(
            replay.gradient("first.weight", normal(1e-2 * loss, 750, step)),
            replay.gradient("last.weight", normal(last * loss, 250, step)),
            loss=loss,
        )
        told[step] = [(f.severity, f.summary, dict(f.evidence)) for f in replay.findings][-1:]

    ((then, summary, evidence),) = told[149]
    assert then is Severity.CRITICAL
    assert "not one gradient is left, so nothing is learnt since step 20" in summary
    assert evidence["lost_share"] == 1.0
    ((now, summary, evidence),) = told[259]
    assert now is Severity.WARNING
    assert "nothing is learnt" not in summary
    assert "from step 20 to step 149, so nothing was learnt then" in summary
    assert "as of step 259" in summary
    assert evidence["lost_share"] == pytest.approx(0.25 * 0.86, rel=0.1)
    assert evidence["largest_lost_share"] == 1.0
    assert evidence["lost_share_here"] == 0.0  # of first.weight, for which it was made
    assert told[150][0][0] is Severity.WARNING  # at once
    finding = replay.findings[-1]
    assert finding.where == "param:first.weight"
    assert list(complaints_of(finding, Known())) == []


def test_a_training_without_a_scaler_that_stops_again_is_critical_again() -> None:
    """Since the second time, not since the first one."""
    replay = Replay(scaled=False)
    for step in range(300):
        loss = 1.0 if step < 20 or 100 <= step < 200 else 1e-7
        replay.take(replay.gradient("w", normal(1e-2 * loss, 500, step)), loss=loss)
    finding = replay.findings[-1]

    assert finding.severity is Severity.CRITICAL
    assert "nothing is learnt since step 200" in finding.summary
    assert list(complaints_of(finding, Known())) == []
    reasons = [r for k, r in replay.notified if k == "fp16_without_scaler"]
    assert reasons.count(Reason.WORSE) == 2


@pytest.mark.parametrize(("exponent", "is_certain"), [(-60, True), (-20, False)])
def test_a_scale_at_which_nothing_can_be_left_is_told_of_between_samples(
    exponent: int, *, is_certain: bool
) -> None:
    """Samples may not come for long; at a scale that loses nearly all, others may have gradients."""
    values = [1e-2, *normal(1e-4, 500)]
    replay = Replay(scale=65536.0)
    for _ in range(3):
        replay.take(replay.gradient("w", values))
    replay.scale = 2.0**exponent
    for _ in range(2):
        replay.take(replay.gradient("w", [1e-3 * v for v in values]))
    for _ in range(60):
        replay.take()
    finding = replay.only("grad_underflow")

    assert (finding.severity is Severity.CRITICAL) is is_certain
    assert finding.last_step == (64 if is_certain else 4)
    assert list(complaints_of(finding, Known())) == []
    replay.scale = 65536.0
    replay.take(replay.gradient("w", values))
    assert finding.severity is Severity.WARNING


def test_underflow_that_stopped_a_training_recedes_when_it_learns_again() -> None:
    """Nothing is lost since, so it is not counted any more; what it says is brought up to date."""
    replay = Replay(scale=1024.0)
    told = []
    for step in range(130):
        gone = 20 <= step < 100
        if step in (20, 100):
            replay.scale = 2.0**-30 if gone else 1024.0
        replay.take(replay.gradient("w", normal(1e-2, 512, step)))
        told.append(
            [(f.severity, f.summary) for f in replay.findings if f.kind == "grad_underflow"]
        )
    made = replay.only("grad_underflow")

    ((severity, summary),) = told[99]
    assert severity is Severity.CRITICAL
    assert "nothing is learnt since step 20" in summary
    assert made.severity is Severity.WARNING
    assert "from step 20 to step 99, so nothing was learnt then" in made.summary
    assert "nothing is learnt" not in made.summary
    assert list(complaints_of(made, Known(replay.scaler))) == []


def test_underflow_is_advised_with_the_scale_that_keeps_the_gradients() -> None:
    """It leaves the largest one room, and it keeps what is lost at the scale of now."""
    replay = Replay(scale=16.0)
    for step in range(4):
        replay.take(
            replay.gradient("w", normal(2e-9, 256, step)), replay.gradient("b", normal(1e-2, 64))
        )
    finding = replay.only("grad_underflow")
    fits = finding.evidence["scale_that_fits"]

    largest = max(abs(v) for v in normal(1e-2, 64))
    assert 8 * fits * largest < 65504 < 64 * fits * largest
    assert finding.advice.startswith(
        f"Raise the loss scale: scaler.update({scale_argument(fits)}) in place"
    )
    assert list(complaints_of(finding, Known(replay.scaler))) == []
