"""NaN and infinities in what outlives a step, and trainings that diverge."""

from __future__ import annotations

import math
import random
from math import inf, nan
from typing import Any

import pytest

from ampwatch.diagnosis.book import FindingBook
from ampwatch.diagnosis.detector import Shared
from ampwatch.diagnosis.evidence.iteration import TensorRange
from ampwatch.diagnosis.evidence.origins import OriginKind, Values
from ampwatch.diagnosis.evidence.scaler import BadOption, BrokenWeights, SoundBuffers
from ampwatch.diagnosis.state.divergence import Divergence
from ampwatch.numerics.units.ops import Phase
from ampwatch.wire.records import Severity, Topic
from tests.workshop.iterations import iteration
from tests.workshop.origins import backward, inside, outside, traced
from tests.workshop.replay import Replay, measured
from tests.workshop.simulation import Simulation


def test_broken_weights_are_one_finding_at_the_worst_parameter() -> None:
    """However many parameters there are."""
    replay = Replay(scaled=False, dtypes=())
    for first in (inf, inf, nan):
        replay.take(
            measured(Topic.WEIGHT, "a.weight", [1.0, nan, 2.0]),
            measured(Topic.WEIGHT, "b.weight", [first, inf, 2.0]),
            measured(Topic.WEIGHT, "b.bias", [1.0]),
        )

    finding = replay.only("param_nonfinite")
    assert replay.roots == [("param_nonfinite", "param:b.weight")]
    assert (finding.severity, finding.count) == (Severity.CRITICAL, 3)
    assert finding.evidence == {"tensors": 2, "elements": 3, "nans": 1, "infs": 1}
    # The numbers are those of the newest measurement.
    assert "elements by step 2 (the first by step 0), most of them in" in finding.summary


@pytest.mark.parametrize(
    ("moved_at", "spread_to", "is_named"),
    [(2, {"a"}, True), (0, {"a"}, False), (2, {"loss"}, False)],
)
def test_what_moves_weights_by_hand_is_named_unless_they_were_finite_after_it(
    moved_at: int, spread_to: set[str], *, is_named: bool
) -> None:
    """And only where the model ran with what was made of a gradient."""
    replay = Replay(scaled=False, dtypes=())
    sound, broken = (measured(Topic.WEIGHT, "a.weight", [value]) for value in (1.0, nan))
    made = outside(
        "mul", phase=Phase.OPTIMIZER, gradient="a.weight", spread_to=spread_to, source="train.py:7"
    )
    for step, ranges in enumerate(([], [sound], [broken], [broken])):
        if step == moved_at:
            replay.diagnosis.observe(traced(made, step=step))
        replay.take(*ranges)

    finding = replay.only("param_nonfinite")
    assert (finding.op, finding.source) == (("mul", "train.py:7") if is_named else ("", ""))
    assert ("mul outside of any optimizer's step made them" in finding.summary) is is_named
    assert ("scaler.unscale_(optimizer)" in finding.advice) is is_named


@pytest.mark.parametrize(
    ("changes", "bad", "named"),
    [
        ({}, {}, ("param_nonfinite", "div", "train.py:7")),
        # Its dtype alone is no eps that was rounded to zero.
        ({"out": Values("float16", 4, posinf=True)}, {}, ("param_nonfinite", "div", "train.py:7")),
        ({"lost_eps": {"a.weight": 1e-8}}, {}, ("optimizer_eps_underflow", "div", "train.py:7")),
        ({"out": Values("float32", 4, neginf=True)}, {}, ("param_nonfinite", "", "")),  # a mask
        ({}, {"a.weight": {0}}, ("param_nonfinite", "", "")),  # what made a gradient is named as that
        ({"parents": frozenset({0})}, {}, ("param_nonfinite", "", "")),  # of what was broken before
        ({"phase": Phase.BACKWARD}, {}, ("param_nonfinite", "", "")),
        # What it has overwritten may have been broken, as a row is that no batch looks up.
        ({"op": "add_", "inputs": [Values("float32", 4)]}, {}, ("param_nonfinite", "", "")),
    ],
)  # fmt: skip
def test_the_op_of_a_step_that_breaks_weights_is_named_with_its_line(
    changes: dict[str, Any], bad: dict[str, set[int]], named: tuple[str, str, str]
) -> None:
    """Where it was seen to be made of finite numbers; what the next steps make of it changes no word."""
    zero = Values("float32", 4, amax=0.0, amin=0.0)
    usual = {
        "phase": Phase.OPTIMIZER,
        "out": Values("float32", 4, nans=True),
        "inputs": (zero, zero),
    }
    values = {**usual, **changes}
    replay = Replay(scaled=False, dtypes=(), lost_eps=values.pop("lost_eps", None))
    made = outside(values.pop("op", "div"), is_stepping=True, source="train.py:7", **values)
    replay.diagnosis.observe(
        traced(made, bad=bad, step=0, bad_parameters={"a.weight": frozenset({0})})
    )
    replay.take(measured(Topic.WEIGHT, "a.weight", [nan]))
    replay.take(*(measured(Topic.WEIGHT, name, [nan] * 9) for name in ("a.weight", "b.weight")))

    finding = replay.only(named[0])
    assert (finding.kind, finding.op, finding.source) == named
    assert finding.root
    assert finding.where == "param:a.weight"
    if named[1]:
        assert "div in an optimizer's step made" in finding.summary
        assert "a.weight" in finding.summary
        assert "one of them zero" in finding.summary


@pytest.mark.parametrize(
    ("sent_at", "more", "is_named"),
    [
        (2, {}, True),
        (1, {}, False),  # the weights were finite after it
        (2, {"is_scaled": True}, False),  # the scaler skips such a step
        (2, {"bad": {"a.weight": {0, 1}}}, False),  # something was made here as well
        (2, {"beside": OriginKind.PARAMETER}, False),  # weights of this rank were broken before it
    ],
)
def test_weights_that_the_gradient_of_another_rank_has_broken_are_said_to_be(
    sent_at: int, more: dict[str, Any], *, is_named: bool
) -> None:
    """It came by a collective, and no op of this rank made it."""
    replay = Replay(scaled=False, dtypes=())
    sound, broken = (measured(Topic.WEIGHT, "a.weight", [value]) for value in (1.0, nan))
    sent = outside("allreduce_", kind=OriginKind.SENT, phase=Phase.OPTIMIZER)
    for step, ranges in enumerate(([], [sound], [broken], [broken])):
        if step == sent_at:
            given = {"bad": {"a.weight": {0}}, "step": step, **more}
            beside = backward(kind=given.pop("beside", OriginKind.OP))
            replay.diagnosis.observe(traced(sent, beside, **given))
        replay.take(*ranges)

    finding = replay.only("param_nonfinite")
    assert ("allreduce_ brought it from another rank at step 2" in finding.summary) is is_named
    assert ("the findings of the other ranks" in finding.advice) is is_named


@pytest.mark.parametrize("topic", [Topic.WEIGHT, Topic.BUFFER])
def test_what_is_broken_is_gone_when_each_tensor_was_seen_to_be_finite(topic: Topic) -> None:
    """Another part of the model says nothing of it, nor does a step without a measurement."""
    replay = Replay(scaled=False, dtypes=())

    def is_gone(*ranges: TensorRange) -> bool:
        return replay.take(*ranges).findings[0].is_gone

    broken = [measured(topic, f"{name}.running_mean", [nan]) for name in "ab"]
    sound = [measured(topic, f"{name}.running_mean", [1.0]) for name in "abc"]
    assert not is_gone(*broken)
    assert not is_gone()
    assert not is_gone(sound[2])
    assert not is_gone(sound[0])
    assert is_gone(sound[1])
    assert not is_gone(broken[0])
    assert (replay.findings[0].last_step, len(replay.findings)) == (5, 1)


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
    """The collapse of the scale is explained as well."""
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


def test_a_sentinel_that_is_infinite_from_the_start_is_healthy() -> None:
    """The smallest value seen so far begins at infinity; a NaN in it is not meant."""
    replay = Replay(scaled=False)
    replay.take(measured(Topic.BUFFER, "min_val", [inf]), measured(Topic.BUFFER, "ema", [1.0]))
    replay.take(measured(Topic.BUFFER, "min_val", [inf]), measured(Topic.BUFFER, "ema", [1.0]))
    sentinel = list(replay.findings)
    replay.take(measured(Topic.BUFFER, "min_val", [inf]), measured(Topic.BUFFER, "ema", [inf]))

    assert sentinel == []
    assert replay.only("buffer_nonfinite").where == "buffer:ema"


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_sentinel_that_alone_makes_a_loss_nonfinite_is_none(*, is_alone: bool) -> None:
    """As the weight of a class that has no sample, until it has one; not where an op is at fault as well."""
    replay = Replay(scaled=False)
    replay.take(measured(Topic.BUFFER, "class_weight", [inf]))
    buffer = inside("nll_loss", kind=OriginKind.BUFFER, in_backward=True)
    buffer.name = "class_weight"
    op = inside("nll_loss", parents=frozenset({0} if is_alone else ()), spread_to={"loss"})
    replay.diagnosis.observe(traced(buffer, op, loss_nonfinite=True))
    replay.take(measured(Topic.BUFFER, "class_weight", [inf]))

    assert ("buffer_nonfinite" in {f.kind for f in replay.findings}) is is_alone


@pytest.mark.parametrize(("was_sound", "skips"), [(True, True), (False, True), (True, False)])
def test_what_the_first_step_has_made_of_a_sound_buffer_is_no_sentinel(
    *, was_sound: bool, skips: bool
) -> None:
    """An average of gradient norms takes in the infinity of a step that is rightly skipped."""
    replay = Replay(scale=256.0)
    names = {"norm"} if was_sound else set()
    replay.diagnosis.observe(SoundBuffers(frozenset(names)))
    replay.take(measured(Topic.BUFFER, "norm", [inf]), found_inf=skips)
    at_once = list(replay.roots)
    replay.take(measured(Topic.BUFFER, "norm", [inf]))

    assert at_once == []
    assert bool(replay.roots) is (was_sound and skips)


def test_a_buffer_that_is_set_anew_in_the_first_step_is_healthy() -> None:
    """The smallest value of an epoch, say: it is finite as soon as there was a value."""
    replay = Replay(scale=256.0)
    replay.diagnosis.observe(SoundBuffers(frozenset({"min_val"})))
    replay.take(measured(Topic.BUFFER, "min_val", [inf]), found_inf=True)
    replay.take(measured(Topic.BUFFER, "min_val", [1.0]))

    assert replay.roots == []


def test_a_buffer_that_was_broken_before_the_first_step_explains_the_weights() -> None:
    """It came so from a checkpoint, unless it was seen to be finite in between."""
    for is_written in (False, True):
        replay = Replay(scaled=False)
        replay.diagnosis.observe(SoundBuffers(frozenset(), frozenset({"bn.running_var"})))
        if is_written:
            replay.take(measured(Topic.BUFFER, "bn.running_var", [1.0]))
        broken = measured(Topic.WEIGHT, "w", [nan]), measured(Topic.BUFFER, "bn.running_var", [nan])
        replay.take(*broken)

        (root,) = replay.roots
        assert root[0] == ("param_nonfinite" if is_written else "buffer_nonfinite")
        buffer = replay.only("buffer_nonfinite")
        assert ("from before the first step on" in buffer.summary) is not is_written


def test_an_option_of_the_optimizer_that_is_nan_is_named() -> None:
    """Unless gradients were not finite before the weights were."""
    for gradients_first in (False, True):
        replay = Replay(scaled=False)
        replay.diagnosis.observe(BadOption(int(gradients_first), "lr", nan, 0))
        if gradients_first:
            replay.take(measured(Topic.GRADIENT, "w", [nan]), measured(Topic.WEIGHT, "w", [1.0]))
        replay.take(measured(Topic.WEIGHT, "w", [nan]))

        finding = replay.only("param_nonfinite")
        assert ("lr of optimizer 0 is nan" in finding.summary) is not gradients_first
        assert ("what sets lr" in finding.advice) is not gradients_first


@pytest.mark.parametrize("earlier", [True, False])
def test_weights_that_an_option_breaks_are_a_root_unless_an_op_was_at_fault_before(
    *, earlier: bool
) -> None:
    """What computes the option may be broken itself; what comes after it has not broken the weights."""
    replay = Replay(scaled=False)
    over = traced(inside(spread_to={"head", "loss"}, in_backward=True), step=0 if earlier else 2)
    if earlier:
        replay.diagnosis.observe(over)
        replay.take()
    replay.diagnosis.observe(BadOption(int(earlier), "lr", nan, 0))
    replay.take(measured(Topic.WEIGHT, "w", [nan]))
    if not earlier:
        replay.diagnosis.observe(over)
        replay.take(measured(Topic.WEIGHT, "w", [nan]))

    assert (("param_nonfinite", "param:w") in replay.roots) is not earlier
    assert ("forward_overflow", "block") in replay.roots


def test_an_option_that_was_mended_is_not_blamed() -> None:
    replay = Replay(scaled=False)
    replay.diagnosis.observe(BadOption(0, "lr", nan, 0))
    replay.take(measured(Topic.WEIGHT, "w", [1.0]))
    replay.take(measured(Topic.WEIGHT, "w", [nan]))

    assert "lr" not in replay.only("param_nonfinite").summary


def test_running_statistics_that_are_infinite_from_the_start_are_poisoned() -> None:
    """They came so from a checkpoint."""
    replay = Replay(scaled=False)
    replay.take(measured(Topic.BUFFER, "bn.running_var", [inf]))

    assert replay.roots == [("buffer_nonfinite", "buffer:bn.running_var")]


def test_skips_that_begin_with_a_poisoned_buffer_are_its_symptom() -> None:
    """The forward that overflowed is written in the buffer."""
    replay = Replay(scale=65536.0)
    for _ in range(30):
        replay.take(measured(Topic.BUFFER, "bn.running_mean", [0.0]))
    for _ in range(9):
        replay.take(measured(Topic.BUFFER, "bn.running_mean", [inf]), found_inf=True)

    assert replay.roots == [("buffer_nonfinite", "buffer:bn.running_mean")]
    assert replay.only("scale_collapse").caused_by == "buffer_nonfinite@buffer:bn.running_mean"


def test_gradients_lost_in_float16_weights_are_a_symptom_of_an_eps_that_is_zero() -> None:
    """Both come of weights in float16; the optimizer is what breaks them."""
    replay = Replay(scaled=False, dtypes=(), lost_eps={"w": 1e-8})
    replay.take(
        measured(Topic.GRADIENT, "w", [0.0] * 60 + [2.0**-24] * 40, "float16"),
        measured(Topic.WEIGHT, "w", [nan] * 60 + [-inf] * 40, "float16"),
    )

    assert replay.roots == [("optimizer_eps_underflow", "param:w")]
    assert replay.only("fp16_without_scaler").caused_by == "optimizer_eps_underflow@param:w"


def test_weights_that_were_nan_before_the_first_op_stay_where_they_were_seen() -> None:
    """After the first step all of them are, the largest first."""
    replay = Replay(scaled=False, dtypes=())
    replay.diagnosis.observe(BrokenWeights(0, "head.weight", "bfloat16", 2))
    for _ in range(3):
        replay.take(
            measured(Topic.WEIGHT, "body.weight", [nan] * 9),
            measured(Topic.WEIGHT, "head.weight", [nan, 1.0]),
        )

    finding = replay.only("param_nonfinite")
    assert replay.roots == [("param_nonfinite", "param:head.weight")]
    assert "2 parameters have NaN elements from before step 0 on" in finding.summary
    assert "reset_parameters()" in finding.advice
    assert (finding.first_step, finding.last_step) == (0, 2)
    replay.take(
        measured(Topic.WEIGHT, "body.weight", [1.0] * 9),
        measured(Topic.WEIGHT, "head.weight", [1.0, 1.0]),
    )
    assert finding.is_gone


def test_weights_that_break_while_others_were_nan_all_along_are_an_incident_of_their_own() -> None:
    """A parameter that nothing reads may be NaN for ever: the others held until then."""
    replay = Replay(scaled=False, dtypes=())
    replay.diagnosis.observe(BrokenWeights(0, "spare", "float32", 1))
    for held in (True, True, False):
        replay.take(
            measured(Topic.WEIGHT, "spare", [nan]),
            measured(Topic.WEIGHT, "a.weight", [1.0, 2.0] if held else [nan, nan]),
        )

    assert [
        (f.where, f.first_step, f.last_step) for f in replay.findings if f.kind == "param_nonfinite"
    ] == [
        ("param:spare", 0, 1),
        ("param:a.weight", 2, 2),
    ]


OK, INF = False, True


def train(*losses: float) -> Simulation:
    """Take a step with each loss."""
    run = Simulation(scale=1024.0)
    for loss in losses:
        run.run([OK], loss=loss)
    return run


def test_a_loss_that_grows_until_it_is_not_finite_diverges() -> None:
    """Told at the first non-finite loss, with where it began."""
    rising = [10.0**n for n in range(8)]
    assert train(*[1.0] * 20, *rising).kinds == []
    (finding,) = train(*[1.0] * 20, *rising, math.inf).book.findings

    assert (finding.kind, finding.where, finding.phase) == ("divergence", "loss", "forward")
    assert (finding.first_step, finding.last_step) == (21, 28)
    assert finding.evidence["loss"] == 1e7
    assert "learning rate" in finding.advice


@pytest.mark.parametrize(
    "losses",
    [[4.0**n for n in range(1, 20)], [150.0, 1e4, 3e3, 5e11, 3e12, 1e11, math.inf]],
    ids=["finite", "it falls once"],
)
def test_a_loss_without_end_diverges(losses: list[float]) -> None:
    """In float32 it takes long to leave the format; what is that large is not on its way back."""
    assert train(*[2.0] * 20, *losses).kinds == ["divergence"]


@pytest.mark.parametrize(
    "losses",
    [
        [1.0] * 30 + [math.inf] * 3,
        [1.0] * 30 + [1e9, math.nan],
        [1.0] * 30 + [5.0, 50.0, 5e3, 5e6, 10.0, 1.0, math.inf],
        [3.0, 2.0, 1.0, 0.5, 0.6, 0.7, 0.8, 0.9, math.nan],
        [0.0] * 5 + [math.nan],
        [1e-12 * 10.0**n for n in range(12)] + [math.nan],
    ],
    ids=["out of the blue", "one bad batch", "a spike", "a slow rise", "nothing", "from nothing"],
)
def test_what_did_not_grow_before_it_broke_did_not_diverge(losses: list[float]) -> None:
    """An overflow is another failure."""
    assert "divergence" not in train(*losses).kinds


def test_the_loss_of_a_critic_passes_through_zero_and_is_left_alone() -> None:
    """It wanders about zero and away from it, over four orders of magnitude."""
    draw = random.Random(0)
    losses = [draw.gauss(0.0, 1e-3 + step) for step in range(400)]
    assert train(*losses).kinds == []


def test_a_loss_that_jumps_and_stays_there_does_not_diverge() -> None:
    """About its new level it is larger than ever again and again, by a little each time."""
    draw = random.Random(3)
    level = [1e5 * (1.0 + 0.01 * n + 0.02 * draw.random()) for n in range(20)]

    assert train(*[1.0] * 30, *level, math.inf, math.inf).kinds == []


@pytest.mark.parametrize("grown_first", [False, True])
def test_weights_must_have_grown_before_the_loss_rises(*, grown_first: bool) -> None:
    """One update with the gradients of a broken loss throws the weights anywhere."""
    replay = Replay(scale=1024.0)
    for step in range(24):
        weight = 1e4 if step >= (20 if grown_first else 21) else 1.0
        values = measured(Topic.WEIGHT, "w", [weight, 0.5])
        loss = (1.0 if step < 21 else 1e5) if step < 23 else math.inf
        replay.take(values, loss=loss, found_inf=step == 23)

    assert ("divergence" in [f.kind for f in replay.findings]) is grown_first


@pytest.mark.parametrize("is_measured", [False, True])
def test_weights_of_before_the_rise_say_nothing_of_it(*, is_measured: bool) -> None:
    """A loss that rises a millionfold in four steps leaves no time for a second measurement."""
    replay = Replay(scale=1024.0)
    for step in range(25):
        weights = [measured(Topic.WEIGHT, "w", [1.0, 0.5])]
        loss = 1.0 if step < 20 else 100.0 ** (step - 19) if step < 24 else math.inf
        replay.take(*weights if is_measured or step < 2 else [], loss=loss, found_inf=step == 24)

    assert ("divergence" in [f.kind for f in replay.findings]) is not is_measured


def test_a_bias_that_begins_at_zero_has_not_blown_up() -> None:
    """Beside the weights of the model it is still small."""
    replay = Replay(scale=1024.0)
    for step in range(24):
        weights = measured(Topic.WEIGHT, "weight", [0.3, -0.1])
        bias = measured(Topic.WEIGHT, "bias", [1e-12 * 2.0**step])
        loss = (1.0 if step < 21 else 1e5) if step < 23 else math.inf
        replay.take(weights, bias, loss=loss, found_inf=step == 23)

    assert replay.findings == []


@pytest.mark.parametrize("seed", range(6))
def test_losses_are_followed_alike_however_many_come_at_once(seed: int) -> None:
    """Falling and noisy ones, with a rise and a way back now and then."""
    chance = random.Random(seed)
    losses, level = [], 1.0
    for _ in range(600):
        level *= 20.0 if chance.random() < 0.01 else 0.02 if chance.random() < 0.01 else 0.995
        losses.append(level * (1.0 + chance.random()))
    plain = [iteration(step=step, loss=loss, num_losses=1) for step, loss in enumerate(losses)]
    one_by_one, at_once = (Divergence(Shared(FindingBook(lambda _: None))) for _ in range(2))
    begin = 0
    while begin < len(plain):
        part = plain[begin : (begin := begin + chance.randrange(1, 60))]
        at_once.count(part)
        for one in part:
            one_by_one._follow(abs(one.loss), one.step)
            one_by_one._updated = True

    known = ("_losses", "_level", "_largest", "_record", "_records", "_newest", "_updated")
    assert [getattr(at_once, name) for name in known] == [
        getattr(one_by_one, name) for name in known
    ]
