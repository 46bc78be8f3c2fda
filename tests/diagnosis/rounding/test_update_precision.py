"""Optimizer steps that leave the weights as they were, and integers that a format cannot tell apart."""

from __future__ import annotations

import math

import pytest

from ampwatch.diagnosis.book import FindingBook
from ampwatch.diagnosis.detector import Shared
from ampwatch.diagnosis.evidence.rounding import LossyCast, OpSite
from ampwatch.diagnosis.news import Reason
from ampwatch.diagnosis.rounding.lossy_casts import RoundedIntegers
from ampwatch.wire.records import Severity, Topic
from tests.diagnosis.words import Known, complaints_of
from tests.workshop.replay import Replay, measured

STILL = [0.0] * 95 + [2.0**-8] * 5
MOVING = [0.0] * 40 + [2.0**-8] * 60


def iteration(
    replay: Replay, update: list[float], *, dtype: str, gradient: list[float], span: int = 8
) -> None:
    replay.take(
        measured(Topic.GRADIENT, "w", gradient),
        measured(Topic.WEIGHT, "w", [1.0], dtype),
        measured(Topic.UPDATE, "w", update, span=span),
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_updates_that_round_away_are_named_with_their_parameter(dtype: str) -> None:
    """Nine elements in ten have not changed over some steps, and their gradients are not zero."""
    replay = Replay(scaled=False, dtypes=())
    iteration(replay, STILL, dtype=dtype, gradient=[1e-3] * 10)

    finding = replay.only("update_rounding")
    assert replay.roots == [("update_rounding", "param:w")]
    assert finding.evidence["unchanged_share"] == 0.95
    assert "although 100.0% have a gradient that is not zero" in finding.summary
    assert f"2^{8 if dtype == 'bfloat16' else 11}" in finding.summary


@pytest.mark.parametrize(
    ("update", "dtype", "gradient", "span"),
    [
        (STILL, "float32", [1e-3] * 10, 8),
        (MOVING, "bfloat16", [1e-3] * 10, 8),
        (STILL, "bfloat16", [0.0] * 10, 8),
        (STILL, "bfloat16", [1e-3] * 10, 1),
        (STILL[:95] + [math.nan] * 900, "bfloat16", [1e-3] * 10, 8),
        (STILL[:90] + [0.5] * 10, "bfloat16", [0.0] * 88 + [1e-3] * 12, 8),
    ],
    ids=["float32", "weights that move", "no gradient", "one step", "broken", "rare rows"],
)
def test_weights_that_rest_for_good_reason_are_healthy(
    update: list[float], dtype: str, gradient: list[float], span: int
) -> None:
    """A small learning rate in float32 is the user's choice."""
    replay = Replay(scaled=False, dtypes=())
    for _ in range(4):
        iteration(replay, update, dtype=dtype, gradient=gradient, span=span)

    assert replay.findings == []


def test_the_parameter_with_the_most_unchanged_elements_is_named_once() -> None:
    """The others are counted."""
    replay = Replay(scaled=False, dtypes=())
    for _ in range(3):
        replay.take(
            *(measured(Topic.GRADIENT, n, [1.0]) for n in ("small", "large")),
            *(measured(Topic.WEIGHT, n, [1.0], "bfloat16") for n in ("small", "large")),
            measured(Topic.UPDATE, "small", [0.0] * 10, span=9),
            measured(Topic.UPDATE, "large", [0.0] * 99, span=9),
        )

    finding = replay.only("update_rounding")
    assert (finding.where, finding.count, finding.evidence["parameters"]) == ("param:large", 3, 2)


def test_steps_that_were_skipped_move_nothing_and_are_not_rounding() -> None:
    """A span with a skipped step in it says nothing; the next one does."""
    replay = Replay(dtypes=("bfloat16",))
    replay.take(found_inf=True)
    for _ in range(7):
        replay.take(found_inf=False)
    iteration(replay, STILL, dtype="bfloat16", gradient=[1e-3] * 10)
    within = [f.kind for f in replay.findings]
    iteration(replay, STILL, dtype="bfloat16", gradient=[1e-3] * 10)

    assert "update_rounding" not in within
    assert replay.only("update_rounding").where == "param:w"


def test_a_training_of_which_no_weight_changes_any_more_is_critical() -> None:
    """After 50 steps; one parameter that moves is enough for it to be none."""
    moves, stands, young = (Replay(scaled=False, dtypes=()) for _ in range(3))
    for replay, steps in ((moves, 90), (stands, 90), (young, 40)):
        for step in range(steps):
            other = [0.0, 2.0**-8] if replay is moves else [0.0, 0.0]
            replay.take(
                *(measured(Topic.GRADIENT, n, [1.0]) for n in ("w", "b")),
                *(measured(Topic.WEIGHT, n, [1.0], "bfloat16") for n in ("w", "b")),
                *(
                    measured(Topic.UPDATE, n, update, span=8)
                    for n, update in (("w", [0.0] * 99), ("b", other))
                    if step % 8 == 7
                ),
            )

    assert moves.only("update_rounding").severity is Severity.WARNING
    assert young.only("update_rounding").severity is Severity.WARNING
    finding = stands.only("update_rounding")
    assert finding.severity is Severity.CRITICAL
    assert "nothing is learnt" in finding.summary
    reasons = [reason for kind, reason in stands.notified if kind == "update_rounding"]
    assert [r for r in reasons if r is not Reason.CHANGED] == [Reason.MADE, Reason.WORSE]


def test_a_training_whose_weights_change_again_is_no_longer_critical() -> None:
    """Nothing changed for 100 steps; since then one parameter does, and the other one rounds away."""
    replay = Replay(scaled=False, dtypes=())
    told = []
    for step in range(200):
        moves = step >= 100
        replay.take(
            *(measured(Topic.GRADIENT, n, [1.0]) for n in ("w", "b")),
            *(measured(Topic.WEIGHT, n, [1.0], "bfloat16") for n in ("w", "b")),
            *(
                measured(Topic.UPDATE, n, update, span=8)
                for n, update in (("w", [0.0] * 99), ("b", [2.0**-8 * moves] * 9))
                if step % 8 == 7
            ),
        )
        told += [(f.severity, f.summary) for f in replay.findings] or [(None, "")]

    assert told[99][0] is Severity.CRITICAL
    assert told[99][1].endswith("No parameter changes any more: nothing is learnt")
    for severity, summary in (told[104], told[-1]):
        assert severity is Severity.WARNING
        assert "any more" not in summary
        assert "No parameter changed from step 0 to step 95: nothing was learnt then" in summary
    assert "up to step 199" in told[-1][1]
    assert list(complaints_of(replay.only("update_rounding"), Known())) == []


@pytest.fixture
def book() -> FindingBook:
    return FindingBook(lambda _news: None)


def _cast(where: str, *, ordered: bool, step: int = 0) -> LossyCast:
    site = OpSite(step, where, "_to_copy", "forward", "model.py:7")
    return LossyCast(site, "bfloat16", 2048, 2048, 641, 1500, 2047.0, ordered)


def test_positions_are_a_warning_once_whatever_the_number_of_layers(book: FindingBook) -> None:
    """Each layer casts them: one incident, counted once a step."""
    casts = RoundedIntegers(Shared(book))
    for step in range(3):
        for layer in range(4):
            casts.observe(_cast(f"layers.{layer}.rope", ordered=True, step=step))
    (finding,) = book.findings

    assert (finding.where, finding.severity) == ("layers.0.rope", Severity.WARNING)
    assert (finding.first_step, finding.last_step, finding.count) == (0, 2, 3)
    assert "of 2048 different ones 641 are left" in finding.summary
    assert "only up to 256" in finding.summary


def test_other_integers_are_an_info_and_hide_no_warning(book: FindingBook) -> None:
    """They may be measurements, which lose nothing that matters."""
    casts = RoundedIntegers(Shared(book))
    casts.observe(_cast("stem", ordered=False))
    casts.observe(_cast("stem", ordered=False))
    casts.observe(_cast("rope", ordered=True))
    casts.observe(_cast("head", ordered=False))

    assert [(f.where, f.severity) for f in book.findings] == [
        ("stem", Severity.INFO),
        ("rope", Severity.WARNING),
    ]


def test_times_that_were_rounded_are_a_warning_in_radians(book: FindingBook) -> None:
    """They are no integers: nothing is said of those that are left."""
    cast = _cast("loss", ordered=False)._replace(largest=999.2, angle=1.95)
    RoundedIntegers(Shared(book)).observe(cast)
    (finding,) = book.findings

    assert finding.severity == Severity.WARNING
    assert "wrong by up to 1.9 rad" in finding.summary
    assert "integer" not in finding.summary.lower()
    assert "until sines are taken of them" in finding.advice
    assert finding.evidence == {"values": 2048.0, "largest": 999.2, "angle": 1.95}
