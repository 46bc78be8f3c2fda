"""Requests of the diagnosis for the next iteration, in one value."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ampwatch.diagnosis.evidence.rounding import SumSeen
from ampwatch.wire.records import Topic
from tests.workshop.replay import Replay, measured

if TYPE_CHECKING:
    from ampwatch.diagnosis.evidence.attention import Attention


def _flags(attention: Attention) -> tuple[bool, bool, bool]:
    return attention.trace, attention.inputs, attention.ops


def test_a_loss_that_is_not_finite_asks_for_a_trace_and_for_the_inputs() -> None:
    """In the iterations after it, and for nothing that rounds away."""
    replay = Replay(scale=1.0, scaled=False)
    replay.take()
    replay.take(loss=math.nan)

    assert _flags(replay.diagnosis.attention()) == (True, True, False)


def test_an_output_near_the_end_of_float16_is_asked_for_by_name() -> None:
    """The request is made as long as it is worth it."""
    replay = Replay()
    replay.take(measured(Topic.ACTIVATION, "block", [40000.0], "float16"))

    assert set(replay.diagnosis.attention().focus) == {"block"}


def test_a_running_sum_in_half_precision_asks_for_the_ops() -> None:
    """Whether it has stopped takes several additions in a row to tell."""
    replay = Replay()
    replay.take()
    replay.diagnosis.observe(SumSeen(0))

    assert _flags(replay.diagnosis.attention())[2] is True
