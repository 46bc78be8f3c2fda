"""Words of findings, and the reader of them itself."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from ampwatch.diagnosis.evidence.iteration import ScalerSettings
from ampwatch.diagnosis.scale.scale_words import quicker_growth
from ampwatch.wire.records import Severity
from tests.diagnosis.words import ReadDiagnosis, Reader
from tests.workshop import replay as workshop
from tests.workshop.replay import Replay

OK, INF = False, True
LEFT, HELD = "and it stayed there", ScalerSettings(2.0, 0.5, 30)


@pytest.fixture(autouse=True)
def _every_word_is_read(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(workshop, "Diagnosis", ReadDiagnosis)
    yield
    ReadDiagnosis.readers.clear()


def read(run: Replay) -> Reader:
    """Return the reader of a run."""
    assert isinstance(run.diagnosis, ReadDiagnosis)
    return run.diagnosis.reader


def history(*runs: tuple[int, bool], **options: object) -> Replay:
    """Return a run of so many steps each that were taken, or skipped."""
    run = Replay(**options)  # type: ignore[arg-type]
    for steps, skipped in runs:
        for _ in range(steps):
            run.take(found_inf=skipped)
    return run


STRETCH = st.tuples(st.integers(1, 60), st.booleans())
OPTIONS = {
    "growth_interval": st.sampled_from([1, 3, 20, 200]),
    "scale": st.sampled_from([8.0, 2.0**16]),
}


@pytest.mark.rotating
@settings(max_examples=30)
@example(
    [(1, True), (24, True), (3, False), (3, True), (3, False)], {"growth_interval": 1, "scale": 8.0}
)
@given(st.lists(STRETCH, min_size=2, max_size=8), st.fixed_dictionaries(OPTIONS))
def test_no_word_about_a_scale_is_refuted(
    stretches: list[tuple[int, bool]], options: dict[str, object]
) -> None:
    """Whatever the scale does, step by step, from when a finding is made to the end."""
    # Below 2^-126 a scale is no normal number of float32, and the made-up one is none.
    assume(sum(steps for steps, skipped in stretches if skipped) <= 120)
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr(workshop, "Diagnosis", ReadDiagnosis)
        run = history((20, OK), *stretches, **options)

    assert read(run).complaints == []


@settings(max_examples=15)
@given(
    st.lists(
        st.tuples(st.integers(1, 20), st.sampled_from([0.0, 1e-9, 1e-4, 1.0, 1e6])), max_size=6
    ),
    st.sampled_from([3, 50, 2000]),
)
def test_no_word_about_gradients_is_refuted(
    stretches: list[tuple[int, float]], interval: int
) -> None:
    """Gradients that vanish, come back, grow and overflow, measured in every step."""
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr(workshop, "Diagnosis", ReadDiagnosis)
        run = Replay(growth_interval=interval)
        for steps, size in [(20, 1e-3), *stretches]:
            for _ in range(steps):
                large = run.gradient("large", [size, size / 2, size / 3])
                run.take(large, run.gradient("small", [1e-3 * size] * 5))

    assert read(run).complaints == []


def test_a_collapse_that_is_over_is_told_in_the_past_tense() -> None:
    """From where to where, between which steps, and no forecast; how to raise it, and to what."""
    run = history((50, OK), (20, INF), (300, OK), growth_interval=2000)
    finding = run.only("scale_collapse")

    assert finding.summary == (
        "The loss scale fell from 65536 to 2^-4 between steps 50 and 69; no step has been skipped"
        " since, and it stayed there"
    )
    assert "scaler.update(65536.0)" in finding.advice
    assert "takes 40000 steps to grow back" in finding.advice
    assert finding.evidence["steps_back"] == 40000
    assert finding.severity is Severity.CRITICAL


def test_a_collapse_that_begins_again_is_told_in_the_present_tense() -> None:
    """With the remedy of one that goes on."""
    run = history((50, OK), (10, INF), (300, OK), (10, INF), growth_interval=2000)
    finding = run.only("scale_collapse")

    assert finding.summary.startswith("The loss scale is collapsing: 10 steps skipped in a row")
    assert finding.advice.startswith("Find the op")
    assert finding.last_step == 369


def test_a_scale_has_recovered_when_it_is_about_where_it_was() -> None:
    """Three growths from a millionth are no recovery."""
    run = history((50, OK), (30, INF), (45, OK), growth_interval=10)
    rising = copy.deepcopy(run.only("scale_collapse"))
    for _ in range(400):
        run.take(found_inf=OK)
    back = run.only("scale_collapse")

    assert rising.severity is Severity.CRITICAL
    assert "it has grown back to 2^-5 by step 119" in rising.summary
    assert back.severity is Severity.INFO
    assert back.evidence["loss_scale_reached"] >= 2.0**-4 * back.evidence["loss_scale_before"]
    assert "recovered" not in rising.summary + back.summary


def test_a_growth_interval_that_is_advised_is_less_than_the_one_there_is() -> None:
    """Where there is no less, none is advised; nor one with which the scale would overflow all the time."""
    for interval, advised in ((2000, "100"), (500, "50"), (30, "20")):
        run = history((50, OK), (8, INF), (40, OK), growth_interval=interval)
        advice = run.only("scale_collapse").advice
        assert re.findall(r"growth_interval\((\d+)\)", advice) == [advised]
    assert quicker_growth(20) == quicker_growth(1) == ""


def test_what_lasts_is_shown_as_it_is_beside_the_newest_step() -> None:
    """After hundreds of steps the finding as it was reported last is a few steps old."""
    run = history((50, OK), (900, INF))
    shown = read(run).shown["scale_collapse@optimizer:0"]

    assert run.step - 1 - shown.last_step < 32
    assert (shown.first_step, shown.count) == (50, shown.last_step - 50 + 1)


def test_a_burst_does_not_make_a_range_too_wide_that_fitted_before() -> None:
    """What overflowed in the burst had fitted for 40 steps at a thousand times that scale."""
    run = Replay()
    for step in range(80):
        burst = 40 <= step < 52
        large = run.gradient("large", [0.9, 0.01] if not burst else [1e3, 1e9])
        # At 65536 the small one is subnormal, and needs a scale that nobody ever had.
        run.take(large, run.gradient("small", [4e-10] * 50))

    assert "range_too_wide" not in [f.kind for f in run.findings]
    assert [f.kind for f in run.findings if f.kind == "grad_underflow"]
