"""Which origins of backward the loss scale has no effect on."""

from __future__ import annotations

import math

import pytest

from ampwatch.diagnosis.evidence.origins import Answer, Fault, Values
from ampwatch.diagnosis.forward.persistence import MAX_APART, ScaleWitness
from tests.workshop.origins import NAN, backward, traced


def _lasting(
    magnitudes: list[float], scales: list[float], *, apart: int = 1, **more: object
) -> list[bool]:
    """Return for each trace whether its one origin was found to last."""
    witness = ScaleWitness()
    found = []
    for number, (magnitude, scale) in enumerate(zip(magnitudes, scales, strict=True)):
        origin = backward(
            "fused", inputs=(Values("float16", 8, amax=magnitude), Values("float16", 8, amax=2.0))
        )
        trace = traced(origin, bad={"w": {0}}, scale=scale, step=number * apart, **more)
        found.append(witness.observe(trace) == {0})
    return found


HALVED = [1024.0, 512.0, 256.0, 128.0, 64.0]


def test_what_stays_as_large_at_an_eighth_of_the_scale_lasts() -> None:
    """Three halvings prove it, two do not."""
    assert _lasting([9.0] * 5, HALVED) == [False, False, False, True, True]


def test_what_shrinks_with_the_scale_is_a_gradient() -> None:
    """However long it takes to fit."""
    assert not any(_lasting([9.0 / 2**n for n in range(5)], HALVED))


def test_batches_that_differ_do_not_make_a_gradient_last() -> None:
    """By less than the square root of what the scale has fallen by."""
    assert not any(_lasting([9.0, 6.0, 2.0, 3.0, 1.1], HALVED))


def test_the_result_in_float64_counts_where_it_is_known() -> None:
    """The inputs may be a gradient and a large number that stays."""
    witness = ScaleWitness()
    found = []
    for scale in HALVED:
        origin = backward("fused", answer=Answer(Fault.OVERFLOW, 100.0 * scale))
        trace = traced(origin, bad={"w": {0}}, scale=scale)
        found.append(bool(witness.observe(trace)))

    assert not any(found)


def test_results_of_one_op_are_not_compared_with_one_another() -> None:
    """The gradient of inputs fits first. That of the weights, a sum over the batch, is as large as that was."""
    witness = ScaleWitness()
    found = []
    for scale in HALVED:
        fits = scale < HALVED[2]
        origins = [
            backward("fused", out_index=place, answer=Answer(Fault.OVERFLOW, size * scale))
            for place, size in ((0, 100.0), (1, 1600.0))
            if not (place == 0 and fits)
        ]
        trace = traced(*origins, bad={"w": set(range(len(origins)))}, scale=scale)
        found.append(witness.observe(trace))

    assert not any(found)


@pytest.mark.parametrize(("fallen", "expected"), [(16.0, False), (32.0, True)])
def test_nan_of_unmeasured_inputs_takes_more_halvings(fallen: float, *, expected: bool) -> None:
    """Nothing but its return speaks for it."""
    witness = ScaleWitness()
    for scale in (1024.0, 1024.0 / fallen):
        trace = traced(backward("fused", out=NAN, inputs=()), bad={"w": {0}}, scale=scale)
        lasting = witness.observe(trace)

    assert bool(lasting) is expected


def test_what_was_gone_in_between_was_cured() -> None:
    """It begins anew."""
    witness = ScaleWitness()
    origin = backward("fused")
    for scale in HALVED:
        assert not witness.observe(traced(origin, bad={"w": {0}}, scale=scale, step=1))
        assert not witness.observe(traced(scale=scale, step=2))


def test_a_scale_that_has_grown_and_traces_far_apart_begin_anew() -> None:
    """They may be of different incidents."""
    assert not any(_lasting([9.0] * 4, [512.0, 256.0, 1024.0, 256.0]))
    assert not any(_lasting([9.0] * 5, HALVED, apart=MAX_APART + 1))


@pytest.mark.parametrize(
    "more", [{"loss_nonfinite": True}, {"is_replay": True}, {"has_trained": False}]
)
def test_only_a_backward_after_a_finite_forward_counts(more: dict[str, bool]) -> None:
    """Else what is in the gradients came from forward."""
    assert not any(_lasting([9.0] * 5, HALVED, **more))


def test_without_a_scale_nothing_is_concluded_from_it() -> None:
    """Nobody has multiplied the loss."""
    assert not any(_lasting([9.0] * 5, [math.nan] * 5))


def test_backwards_of_two_lines_are_not_compared_with_one_another() -> None:
    """The one fits at a quarter of the scale; what the other makes of the same layer is larger."""
    witness = ScaleWitness()
    found = []
    for scale in HALVED:
        line, size = ("train.py:3", 1.0) if scale > HALVED[2] else ("train.py:9", 8.0)
        origin = backward("mm", answer=Answer(Fault.OVERFLOW, size * scale), source=line)
        found.append(witness.observe(traced(origin, bad={"w": {0}}, scale=scale)))

    assert not any(found)


@pytest.mark.parametrize("sizes", [[1, 1, 1, 8, 8, 8], [1, 9, 1, 9, 1, 9]])
def test_backwards_that_share_a_line_do_not_last(sizes: list[int]) -> None:
    """Two networks take turns in one function: of their gradients one follows the scale, each time."""
    assert not any(_lasting([n / 2**i for i, n in enumerate(sizes)], [*HALVED, 32.0]))


@pytest.mark.parametrize(("taken", "expected"), [(1, [3, 4]), (2, [])])
def test_a_step_that_is_taken_begins_anew(taken: int, expected: list[int]) -> None:
    """The scale was the cure. It is told of late: what was skipped after it goes on."""
    witness = ScaleWitness()
    found = []
    for step, scale in enumerate(HALVED):
        lasting = witness.observe(traced(backward("x"), bad={"w": {0}}, scale=scale, step=step))
        found += [step] * bool(lasting)
        if step == 2:
            witness.step_taken(taken)

    assert found == expected
