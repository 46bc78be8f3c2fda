"""NaN and infinities in what outlives a step."""

from __future__ import annotations

from math import inf, nan

from ampwatch.records import Severity, Topic
from tests.diagnosis.replay import Replay, measured


def test_broken_weights_are_one_finding_at_the_worst_parameter() -> None:
    """However many parameters there are."""
    replay = Replay(scaled=False, dtypes=())
    for _ in range(3):
        replay.take(
            measured(Topic.WEIGHT, "a.weight", [1.0, nan, 2.0]),
            measured(Topic.WEIGHT, "b.weight", [nan, inf, 2.0]),
            measured(Topic.WEIGHT, "b.bias", [1.0]),
        )

    finding = replay.only("param_nonfinite")
    assert replay.roots == [("param_nonfinite", "param:b.weight")]
    assert (finding.severity, finding.count) == (Severity.CRITICAL, 3)
    assert finding.evidence == {"tensors": 2, "elements": 3, "nans": 1, "infs": 1}


def test_an_eps_that_is_zero_in_the_dtype_explains_weights_that_break_on_finite_gradients() -> None:
    """Then it is the root, and the weights are its symptom."""
    replay = Replay(scaled=False, dtypes=(), lost_eps={"weight": 1e-8})
    replay.take(
        measured(Topic.GRADIENT, "weight", [1e-3, 0.0], "float16"),
        measured(Topic.WEIGHT, "weight", [-inf, nan], "float16"),
    )

    assert replay.roots == [("optimizer_eps_underflow", "param:weight")]
    assert replay.only("optimizer_eps_underflow").evidence["eps"] == 1e-8
    assert replay.only("param_nonfinite").caused_by == "optimizer_eps_underflow@param:weight"


def test_a_lost_eps_is_not_blamed_for_gradients_that_broke_first() -> None:
    """The weights were seen to be whole after that."""
    replay = Replay(scaled=False, dtypes=(), lost_eps={"weight": 1e-8})
    replay.take(
        measured(Topic.GRADIENT, "weight", [nan], "float16"),
        measured(Topic.WEIGHT, "weight", [1.0], "float16"),
    )
    replay.take(measured(Topic.WEIGHT, "weight", [nan], "float16"))

    assert replay.roots == [("param_nonfinite", "param:weight")]


def test_a_lost_eps_that_breaks_nothing_is_healthy() -> None:
    """Some optimizers keep their state in float32."""
    replay = Replay(scaled=False, dtypes=(), lost_eps={"weight": 1e-8})
    for _ in range(5):
        replay.take(measured(Topic.WEIGHT, "weight", [1.0], "float16"))

    assert replay.findings == []


def test_poisoned_running_statistics_are_one_finding_at_the_first_buffer() -> None:
    """A skipped step does not undo them."""
    replay = Replay(scale=256.0)
    replay.take(
        measured(Topic.BUFFER, "1.running_mean", [nan, 0.0]),
        measured(Topic.BUFFER, "1.running_var", [inf, 1.0]),
        found_inf=True,
    )
    replay.take(measured(Topic.BUFFER, "1.running_mean", [nan, 0.0]))

    finding = replay.only("buffer_nonfinite")
    assert replay.roots == [("buffer_nonfinite", "buffer:1.running_mean")]
    assert (finding.phase, finding.first_step, finding.count) == ("forward", 0, 2)


def test_a_mask_of_minus_infinity_is_healthy() -> None:
    """But not among running statistics."""
    replay = Replay(scaled=False)
    replay.take(measured(Topic.BUFFER, "mask", [0.0, -inf]))
    mask = list(replay.findings)
    replay.take(measured(Topic.BUFFER, "bn.running_mean", [0.0, -inf]))

    assert mask == []
    assert replay.only("buffer_nonfinite").where == "buffer:bn.running_mean"


def test_broken_buffers_after_broken_weights_are_their_symptom() -> None:
    """And so is the collapse of the scale."""
    replay = Replay(scale=65536.0)
    for _ in range(30):
        replay.take()
    for _ in range(8):
        replay.take(
            measured(Topic.WEIGHT, "w", [nan]),
            measured(Topic.BUFFER, "running_mean", [nan]),
            found_inf=True,
            loss=nan,
        )

    assert replay.roots == [("param_nonfinite", "param:w")]
    assert replay.only("buffer_nonfinite").caused_by == "param_nonfinite@param:w"
    assert replay.only("scale_collapse").caused_by == "param_nonfinite@param:w"
