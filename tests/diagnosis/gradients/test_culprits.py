"""Whose gradients made steps be skipped, in this rank and in others."""

from __future__ import annotations

import math

import pytest

from ampwatch.diagnosis.book import FindingBook
from ampwatch.diagnosis.detector import Known, Shared
from ampwatch.diagnosis.evidence.origins import OriginKind, Values
from ampwatch.diagnosis.gradients.culprits import Culprits
from ampwatch.diagnosis.steps.steps import StepVerdict
from ampwatch.wire.records import SkipClass, Topic
from tests.workshop.iterations import iteration
from tests.workshop.origins import backward, inside, traced
from tests.workshop.replay import measured


class Others:
    """Another rank, which has left word or not."""

    are_there = True
    has_shards = True

    def __init__(self, answer: tuple[str, list[int]] = ("", [])) -> None:
        self.answer = answer
        self.noted: list[tuple[str, int]] = []

    def is_sharded(self) -> bool:
        return self.has_shards

    def note(self, parameter: str, since: int) -> None:
        self.noted.append((parameter, since))

    def ask(self, _since: int) -> tuple[str, list[int]]:
        return self.answer


SKIPPED = StepVerdict(SkipClass.STORM, 1024.0, backed_off=True)
GREW = StepVerdict(SkipClass.NONE, 1024.0, grew=True, applied=True)


def culprits_among(others: Others | None = None) -> Culprits:
    return Culprits(Shared(FindingBook(lambda _news: None), known=Known(other_ranks=others)))


def take(
    culprits: Culprits, *values: float, verdict: StepVerdict = SKIPPED, since: int = 3
) -> None:
    """Take an iteration that was the first of some to be skipped."""
    ranges = [measured(Topic.GRADIENT, "fc.weight", values)]
    topics = frozenset({Topic.GRADIENT})
    # A streak of none, before the judge has counted this one.
    culprits.detect(iteration(step=since - 1, topics=topics, ranges=ranges), verdict)


def test_a_rank_with_finite_gradients_names_the_parameter_of_another_one() -> None:
    """As the worst one, so that all that is said of the skips is of it."""
    culprits = culprits_among(Others(("head.bias", [1, 3])))
    take(culprits, 1.0, 2.0)

    assert culprits.worst == "head.bias"
    assert culprits.in_words() == (
        "; non-finite gradients are those of parameter head.bias in ranks 1, 3, while all of this"
        " rank's are finite"
    )


def test_where_no_name_is_known_it_says_whose_shard_it_is_in() -> None:
    """And asks again in the next step: the other rank may be late."""
    others = Others()
    culprits = culprits_among(others)
    take(culprits, 1.0)
    assert "in another rank's shard" in culprits.in_words()
    others.answer = ("head.bias", [1])
    take(culprits, 1.0)

    assert "parameter head.bias in rank 1" in culprits.in_words()


def test_gradients_that_were_not_all_measured_say_nothing_of_other_ranks() -> None:
    culprits = culprits_among(Others(("head.bias", [1])))
    topics = frozenset({Topic.GRADIENT})
    ranges = [measured(Topic.GRADIENT, "fc.weight", [1.0])]
    culprits.detect(iteration(topics=topics, incomplete=topics, ranges=ranges), SKIPPED)
    assert not culprits.in_words()


def test_ranks_that_have_all_of_the_model_are_not_asked() -> None:
    others = Others()
    others.has_shards = False
    culprits = culprits_among(others)
    take(culprits, 1.0)
    assert not culprits.in_words()


def test_a_rank_with_the_gradient_leaves_word_once() -> None:
    """Again where steps are skipped anew."""
    others = Others(("head.bias", [1]))
    culprits = culprits_among(others)
    for since in (3, 3, 9):
        take(culprits, 1.0, math.inf, since=since)
    take(culprits, 1.0, since=9)

    assert others.noted == [("fc.weight", 3), ("fc.weight", 9)]
    assert culprits.in_words() == "; most non-finite gradients are those of parameter fc.weight"


def test_what_was_not_finite_here_before_does_not_explain_these_skips() -> None:
    """A bad batch some steps ago, at which all ranks had infinite gradients."""
    others = Others(("head.bias", [1]))
    culprits = culprits_among(others)
    take(culprits, math.inf, since=3)
    take(culprits, 1.0, since=9)

    assert culprits.worst == "head.bias"
    others.answer = ("", [])
    take(culprits, 1.0, since=30)

    assert culprits.worst == ""


@pytest.mark.parametrize("others", [None, Others()])
def test_a_step_that_was_taken_asks_nobody(others: Others | None) -> None:
    """Nor does a rank that is alone conclude anything."""
    culprits = culprits_among(others)
    take(culprits, 1.0, verdict=GREW if others else SKIPPED)

    assert (culprits.worst, culprits.in_words()) == ("", "")


def test_without_a_measurement_nothing_is_concluded() -> None:
    """Gradients that nobody has looked at are not known to be finite."""
    culprits = culprits_among(Others(("head.bias", [1])))
    culprits.detect(iteration(), SKIPPED)

    assert culprits.in_words() == ""


def test_what_was_elsewhere_is_forgotten_when_the_scale_grows() -> None:
    """It was another incident."""
    culprits = culprits_among(Others(("head.bias", [1])))
    take(culprits, 1.0)
    take(culprits, 1.0, verdict=GREW)

    assert culprits.in_words() == ""


UNKNOWN = Values("float32", 4)
"""What was in a ``.grad`` before something was added to it."""


@pytest.mark.parametrize(
    ("added", "out", "expected"),
    [
        (Values("float32", 4, amax=3.0), Values("float32", 4, nans=True), "w"),
        (Values("float32", 4, amax=3.0), Values("float32", 4, posinf=True), "w"),
        (Values("float16", 4, amax=6e4), Values("float16", 4, posinf=True), ""),
        (Values("float32", 4, amax=3e38), Values("float32", 4, posinf=True), ""),
    ],
)
def test_a_gradient_that_nobody_has_set_to_zero_is_told_from_one_that_overflows(
    added: Values, out: Values, expected: str
) -> None:
    """By what was added to it: no sum of two small numbers is infinite."""
    culprits = culprits_among()
    take(culprits, math.inf)
    culprits.observe_trace(
        traced(backward("add_", inputs=(UNKNOWN, added), out=out), bad={"w": {0}})
    )

    assert culprits.left_over == expected
    assert ("was not finite before backward began" in culprits.in_words()) is bool(expected)


def test_a_gradient_that_was_left_is_forgotten_when_another_reason_is_seen_or_a_step_is_taken() -> (
    None
):
    """What is said is of the newest trace."""
    left = backward(
        "add_", inputs=(UNKNOWN, UNKNOWN._replace(amax=1.0)), out=Values("float32", 4, nans=True)
    )
    for end in ("overflow", "step"):
        culprits = culprits_among()
        culprits.observe_trace(traced(left, bad={"w": {0}}))
        assert culprits.left_over
        if end == "step":
            take(culprits, 1.0, verdict=GREW)
        else:
            culprits.observe_trace(traced(left, backward("mm"), bad={"w": {0, 1}}))
        assert not culprits.left_over


def test_nan_of_what_another_rank_has_sent_is_said_to_be_from_there() -> None:
    """What it has sent was infinite, and an op here has made NaN of that; not so of an infinity made here."""
    culprits = culprits_among()
    for step, kind in enumerate((OriginKind.SENT, OriginKind.OP)):
        take(culprits, math.inf)
        first = inside("all_reduce", kind=kind)
        nan = inside("addmm", parents=frozenset({0}))
        culprits.observe_trace(traced(first, nan, bad={"head.weight": {0, 1}}, step=7 + step))
        if kind is OriginKind.SENT:
            assert "all_reduce brought it from another rank at step 7" in culprits.in_words()
        else:
            assert "another rank at step 8" not in culprits.in_words()


def test_a_gradient_that_another_rank_has_sent_is_said_to_be_until_a_step_is_taken() -> None:
    """Whichever parameter has the most of it here."""
    culprits = culprits_among()
    take(culprits, math.inf)
    sent = backward("allreduce_", kind=OriginKind.SENT)
    culprits.observe_trace(traced(sent, bad={"head.weight": {0}}, step=7))
    assert "allreduce_ brought it from another rank at step 7" in culprits.in_words()

    take(culprits, 1.0, verdict=GREW)
    assert culprits.in_words() == ""
