"""Zeros of gradients: how many were values before float16 flushed them, and what those were."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import torch

from ampwatch.diagnosis.gradients import lost_gradients
from ampwatch.diagnosis.news import Reason
from ampwatch.numerics.formats import FORMATS
from ampwatch.numerics.whatif import scale_window
from ampwatch.wire.records import ALL_MODULES, RangeRecord, SamplingRecord, Severity, Topic
from tests.numerics.oracle import histogram_of
from tests.workshop.replay import Replay, measured

if TYPE_CHECKING:
    from ampwatch.diagnosis.evidence.iteration import TensorRange

FLOAT16 = FORMATS["float16"]


def normal(amplitude: float, count: int = 256, zeros: int = 0) -> list[float]:
    """Gradients of a size, some of them true zeros."""
    rng = random.Random(count)
    return [rng.gauss(0.0, amplitude) for _ in range(count)] + [0.0] * zeros


def flushed(values: list[float], scale: float) -> int:
    """How many values a real cast makes zero that were not."""
    scaled = (torch.tensor(values, dtype=torch.float64) * scale).to(torch.float16)
    return sum(v != 0.0 and not s for v, s in zip(values, scaled.tolist(), strict=True))


def newest(replay: Replay, module: str = ALL_MODULES) -> RangeRecord:
    return [r for r in replay.of(RangeRecord) if r.module == module][-1]


def counted(replay: Replay) -> int:
    return replay.of(SamplingRecord)[-1].gradient_underflow


@pytest.mark.parametrize("exponent", [-28, -40, -120])
def test_of_a_whole_flush_the_values_are_counted_and_true_zeros_are_not(exponent: int) -> None:
    """As many as a real cast flushes, for each module and for all; what they were goes along."""
    values = {"a.w": normal(1e-3, 500, zeros=60), "b.w": normal(1e-2), "dead.w": [0.0] * 40}
    replay = Replay(scale=1024.0)
    for _ in range(3):
        replay.take(*(replay.gradient(name, v) for name, v in values.items()))
    assert (counted(replay), newest(replay).before) == (0, None)

    replay.scale = 2.0**exponent
    replay.take(*(replay.gradient(name, v) for name, v in values.items()))

    lost = {name: flushed(v, replay.scale) for name, v in values.items()}
    assert lost == {"a.w": 500, "b.w": 256, "dead.w": 0}
    assert counted(replay) == 756
    everything = newest(replay)
    assert (everything.flushed, everything.before_step) == (756, 2)
    assert {m: newest(replay, m).flushed for m in ("a", "b", "dead")} == {
        "a": 500,
        "b": 256,
        "dead": 0,
    }
    # float16 has rounded what was measured: its bins may be off by one at their ends.
    true = histogram_of([v for vs in values.values() for v in vs])
    assert everything.before is not None
    assert everything.before.zeros == true.zeros
    assert everything.before.amax == pytest.approx(true.amax, rel=1e-3)
    seen, meant = (scale_window(h, FLOAT16) for h in (everything.before, true))
    assert seen.high == meant.high
    assert seen.low == pytest.approx(meant.low, abs=1)


def test_while_a_scale_falls_the_sample_before_the_first_loss_is_kept() -> None:
    """By halves, as a scaler does it: what is left shrinks, what was before does not."""
    values = normal(1e-4, 1000)
    replay = Replay(scale=2.0**10)
    for exponent in range(10, -31, -1):
        replay.scale = 2.0**exponent
        replay.take(replay.gradient("w", values))

    assert newest(replay).flushed == 1000
    before = newest(replay).before
    assert before is not None
    assert before.nonzero == 1000
    window = scale_window(before, FLOAT16)
    assert window.low is not None
    assert window.high is not None
    assert -12 < window.low < min(window.high + 1, 10)


def test_what_is_partly_flushed_is_shown_whole_as_well() -> None:
    """Half of it is left, which would ask for too small a scale."""
    values = normal(2.0**-12, 1000)
    replay = Replay(scale=2.0**10)
    replay.take(replay.gradient("w", values))
    replay.scale = 2.0**-12
    replay.take(replay.gradient("w", values))

    record = newest(replay)
    assert 0 < record.flushed == flushed(values, 2.0**-12) < 1000
    assert record.before is not None
    assert record.before.nonzero == 1000


def test_what_has_shrunk_by_itself_is_not_shown_as_it_was_long_ago() -> None:
    """The scale that it needed then is not the one that it needs now."""
    replay = Replay(scale=2.0**10)
    for exponent in range(0, -40, -2):
        replay.take(replay.gradient("w", normal(2.0**exponent)))

    record = newest(replay)
    assert record.flushed == 256
    assert record.before is None


@pytest.mark.parametrize("loss", [1.0, 1e-3])
def test_gradients_that_end_at_the_scale_they_had_are_true_zeros(loss: float) -> None:
    """A term of the loss is switched off: nothing of it was lost, also when the scale falls then."""
    replay = Replay(scale=1024.0)
    for _ in range(5):
        replay.take(replay.gradient("w", normal(1e-2)), loss=loss)
    for step in range(90):
        replay.scale = 1024.0 if step < 20 else 2.0**-40
        replay.take(replay.gradient("w", [0.0] * 256), loss=loss)

    assert counted(replay) == 0
    assert newest(replay).flushed == 0
    assert "grad_underflow" not in [f.kind for f in replay.findings]


def test_a_loss_of_zero_has_no_gradient_to_lose() -> None:
    """At a scale that would have flushed it as well."""
    replay = Replay(scale=1024.0)
    replay.take(replay.gradient("w", normal(1e-2)))
    replay.scale = 2.0**-40
    replay.take(replay.gradient("w", normal(1e-2)))
    before = counted(replay)
    replay.take(replay.gradient("w", normal(1e-2)), loss=0.0)

    assert (before, counted(replay)) == (256, 256)
    assert newest(replay).flushed == 0


@pytest.mark.parametrize("scale", [2.0**16, 2.0**-40])
def test_what_never_was_more_than_zeros_is_not_known(scale: float) -> None:
    """Not of any use to count, and not fine: at a scale that shows gradients there were none."""
    replay = Replay(scale=2.0**16)
    for _ in range(3):
        replay.take(replay.gradient("w", [0.0] * 9))
    replay.scale = scale
    for _ in range(3):
        replay.take(replay.gradient("w", [0.0] * 9))

    assert newest(replay).flushed == newest(replay, "").flushed == -1
    assert counted(replay) == 0
    assert replay.findings == []


def test_from_the_start_a_loss_that_float16_hardly_holds_tells() -> None:
    """Nothing was measured but zeros, and the scaled loss is as small as what they would be."""
    replay = Replay(scale=2.0**-40)
    for _ in range(3):
        replay.take(replay.gradient("w", [0.0] * 9))

    assert (newest(replay).flushed, newest(replay).before) == (9, None)
    assert counted(replay) == 27
    assert replay.roots == [("grad_underflow", "param:w")]


def test_a_parameter_that_is_new_in_a_flush_goes_with_the_others() -> None:
    """It was frozen before: the largest of those that are known decides."""
    replay = Replay(scale=1024.0)
    replay.take(replay.gradient("w", normal(1e-2)))
    replay.scale = 2.0**-40
    replay.take(replay.gradient("w", normal(1e-2)), replay.gradient("thawed", [0.0] * 7))

    assert newest(replay).flushed == 256 + 7
    assert newest(replay).before is None  # of all together a part is not known


def test_a_scale_of_zero_says_nothing() -> None:
    """Times zero everything is zero, with or without float16."""
    replay = Replay(scale=1024.0)
    replay.take(replay.gradient("w", normal(1e-2)))
    replay.scale = 0.0
    replay.take(replay.gradient("w", [0.0] * 256))

    assert newest(replay).flushed == -1


@pytest.mark.parametrize(("learns", "known"), [(False, True), (True, False)])
def test_a_gradient_is_forgotten_by_steps_of_learning_only(
    *, learns: bool, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as all gradients are zero the weights stay, and what they would be as well."""
    monkeypatch.setattr(lost_gradients, "FORGOTTEN_AFTER", 20)
    replay = Replay(scale=1024.0)
    values = normal(1e-2)
    replay.take(replay.gradient("w", values), replay.gradient("v", normal(1.0)))
    replay.scale = 2.0**-30
    for _ in range(60):
        # The other one is too large to be flushed, or it is flushed as well.
        other = normal(2.0**20 if learns else 1.0)
        replay.take(replay.gradient("w", values), replay.gradient("v", other))

    assert (newest(replay).before is not None) == known


def test_a_model_in_float16_without_autocast_is_counted_too() -> None:
    """Its gradients are in the format that flushes them."""
    replay = Replay(scale=1024.0, dtypes=())

    def gradient(values: list[float]) -> TensorRange:
        made = replay.gradient("w", values)
        return made._replace(dtype="float16")

    replay.take(gradient(normal(1e-2)))
    replay.scale = 2.0**-40
    replay.take(gradient(normal(1e-2)))

    assert counted(replay) == 256


@pytest.mark.parametrize("dtypes", [(), ("bfloat16",)])
def test_zeros_are_no_loss_where_nothing_runs_in_float16(dtypes: tuple[str, ...]) -> None:
    """float32 and bfloat16 hold what the collapsed scale leaves."""
    replay = Replay(scale=1024.0, dtypes=dtypes)
    values = normal(1e-2)
    for scale in (1024.0, 2.0**-40):
        replay.scale = scale
        replay.take(measured(Topic.GRADIENT, "w", [v * scale for v in values], scaled=True))
    replay.take(measured(Topic.GRADIENT, "w", [0.0] * 256, scaled=True))

    assert counted(replay) == 0


def test_gradients_of_outputs_are_judged_by_what_came_back_before() -> None:
    """Two calls of one module are one gradient."""
    replay = Replay(scale=1024.0)
    values = normal(1e-4)
    for scale in (1024.0, 2.0**-40):
        replay.scale = scale
        scaled = (torch.tensor(values, dtype=torch.float64) * scale).to(torch.float16)
        half = measured(
            Topic.ACTIVATION_GRADIENT, "fc", scaled.double().tolist(), "float16", scaled=True
        )
        replay.take(half, half)

    assert newest(replay, "fc").flushed == 512
    assert newest(replay, "fc").before is not None


def _collapsed(steps: int, every: int = 1) -> Replay:
    replay = Replay(scale=1024.0)
    replay.take(replay.gradient("w", normal(1e-2)))
    replay.scale = 2.0**-40
    for step in range(steps):
        replay.take(*([] if step % every else [replay.gradient("w", normal(1e-2))]))
    return replay


def test_a_training_that_learns_nothing_any_more_is_critical_once() -> None:
    """A warning at first; new again when it is sure, and that is said since when."""
    young, old = _collapsed(50), _collapsed(80)

    assert young.only("grad_underflow").severity is Severity.WARNING
    finding = old.only("grad_underflow")
    assert finding.severity is Severity.CRITICAL
    assert finding.evidence["lost_share"] == finding.evidence["lost_share_here"] == 1.0
    assert finding.summary.endswith("not one gradient is left, so nothing is learnt since step 1")
    assert finding.count == 79
    reasons = [reason for kind, reason in old.notified if kind == "grad_underflow"]
    assert [r for r in reasons if r is not Reason.CHANGED] == [Reason.MADE, Reason.WORSE]


def test_samples_that_are_far_apart_are_enough() -> None:
    """One in 40 steps, as the overhead budget may have it."""
    assert _collapsed(81, every=40).only("grad_underflow").severity is Severity.CRITICAL


def test_one_parameter_that_learns_is_no_standstill() -> None:
    """Nearly all is lost, and it stays a warning."""
    replay = Replay(scale=1024.0)
    for step in range(100):
        replay.scale = 1024.0 if step < 5 else 2.0**-10
        replay.take(replay.gradient("w", normal(1e-6)), replay.gradient("b", normal(1.0, 4)))

    assert replay.only("grad_underflow").severity is Severity.WARNING


def test_gradients_in_float32_are_as_zero_as_those_that_they_come_through() -> None:
    """Of outputs: those of a norm are in float32, and float32 would have kept them."""
    replay = Replay(scale=1024.0)

    def outputs(values: list[float]) -> list[TensorRange]:
        scaled = [replay.scale * v for v in values]
        dtypes = {"linear": "float16", "norm": "float32"}
        return [
            measured(Topic.ACTIVATION_GRADIENT, name, scaled, dtype, scaled=True)
            for name, dtype in dtypes.items()
        ]

    replay.take(*outputs(normal(1e-2)))
    replay.scale = 2.0**-60
    replay.take(*outputs([0.0] * 256))

    assert {name: newest(replay, name).flushed for name in ("linear", "norm")} == {
        "linear": 256,
        "norm": 256,
    }
