"""The state of a run in words, for every state there is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ampwatch.host.fleet import Fleet
from ampwatch.host.page.health import Level, rank_health, run_health
from ampwatch.settings import Settings
from ampwatch.wire.records import FindingRecord, RunState, Severity, SkipClass
from tests.workshop.clocks import START, Clock
from tests.workshop.fleets import put
from tests.workshop.records import end, finding, identity, optimizer, step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.host.fleet import RankView
    from ampwatch.host.page.health import Health
    from ampwatch.wire.records import Record, StepRecord


def rank_after(
    records: Sequence[Record], *, seconds: float | None = None, alive: bool = True, **who: Any
) -> tuple[RankView, float]:
    """The view of one rank after ``records``, and the time its clock shows."""
    steps = sum(hasattr(r, "loss_scale") for r in records)
    clock = Clock(START + (steps if seconds is None else seconds))
    fleet = Fleet(Settings(), clock)
    put(fleet, "/a.ring", identity(**who), records, alive=alive)
    return fleet.ranks()[0], clock.now


def told(records: Sequence[Record], **how: Any) -> tuple[str, str]:
    """Health of one rank after ``records``: the word and the sentence, spaces made plain."""
    verdict = rank_health(*rank_after(records, **how))
    return verdict.level.value, verdict.sentence.replace("\u202f", " ")


def calm(count: int, **changes: Any) -> list[StepRecord]:
    return [step(i, growth_tracker=i + 1, **changes) for i in range(count)]


def storm(first: int, length: int, scale: float) -> list[StepRecord]:
    return [
        step(
            first + i,
            loss_scale=scale / 2 ** (i + 1),
            growth_tracker=0,
            skip_class=SkipClass.STORM,
            consecutive_skips=i + 1,
        )
        for i in range(length)
    ]


def made(
    severity: Severity = Severity.WARNING, summary: str = "It broke.", **changes: Any
) -> FindingRecord:
    record = finding(severity=severity, **changes)
    return FindingRecord(replace(record.finding, summary=summary, advice="Mend it."))


def test_a_calm_run_is_healthy_and_says_its_step_its_scale_and_its_skips() -> None:
    """The three numbers a user looks for first are in the headline."""
    assert told(calm(1500)) == (
        "healthy",
        "step 1 499, loss scale 65 536, no step skipped in the last 1 000",
    )


def test_a_run_without_a_scaler_is_healthy_without_talk_of_skips() -> None:
    """bfloat16 needs no scaler: nothing is missing."""
    records = calm(3, loss_scale=float("nan"))

    assert told(records) == ("healthy", "step 2, no loss scaler")


def test_a_probe_within_reach_is_counted_and_named() -> None:
    """A user sees at once that the skip was the harmless sort."""
    records = calm(50, total_growths=1)
    records[40] = replace(records[40], skip_class=SkipClass.PROBE)

    assert told(records) == (
        "healthy",
        "step 49, loss scale 65 536, 1 step skipped (1 probe) in the last 50",
    )


def test_a_skip_long_ago_is_not_reported_as_news() -> None:
    """Only the last thousand steps count for the headline."""
    records = calm(1100, total_growths=1)
    records[40] = replace(records[40], skip_class=SkipClass.PROBE)

    assert told(records)[1].endswith("no step skipped in the last 1 000")


def test_the_search_for_a_scale_is_calibration_and_no_alarm() -> None:
    """The skips of the first steps are normal, and the page says so."""
    records = [
        step(
            i,
            loss_scale=2.0 ** (15 - i),
            growth_tracker=0,
            skip_class=SkipClass.CALIBRATING,
            consecutive_skips=i + 1,
        )
        for i in range(6)
    ]
    records.append(optimizer(0, total_steps=6, total_skipped=(6, 0, 0, 0)))

    assert told(records) == (
        "calibrating",
        "step 5, finding a scale that fits: 6 steps skipped (6 calibrating) so far, loss scale 1 024; normal at the start",
    )


@pytest.mark.parametrize("calibration_steps", [1, 20, 100])
def test_calibration_is_what_the_record_says(calibration_steps: int) -> None:
    """The length is the user's setting, which only the training process knows."""
    records = calm(calibration_steps + 1)
    records[-1] = replace(records[-1], skip_class=SkipClass.CALIBRATING, growth_tracker=0)

    assert told(records)[0] == "calibrating"
    assert told(records[:-1])[0] == "healthy"


@pytest.mark.parametrize("skips", [2, 23])
def test_a_storm_is_no_alarm_before_the_finding_is_made(skips: int) -> None:
    """After how many skips it is one, is the user's setting; until then it is counted."""
    level, sentence = told([*calm(30), *storm(30, skips, 65536.0)])

    assert level == "healthy"
    assert sentence.endswith(f"{skips} steps skipped ({skips} storm) in the last {30 + skips}")


@pytest.mark.parametrize(
    ("severity", "level"),
    [(Severity.WARNING, "needs attention"), (Severity.CRITICAL, "failing")],
)
def test_a_collapse_is_as_bad_as_its_finding(severity: Severity, level: str) -> None:
    """The finding has the numbers and the forecast; the headline repeats it."""
    summary = "The loss scale is collapsing: 3 steps skipped in a row since step 30."
    collapse = made(severity, summary, last_step=32)

    assert told([*calm(30), *storm(30, 3, 65536.0), collapse]) == (level, summary[:-1])


@pytest.mark.parametrize(
    ("severity", "level"),
    [
        (Severity.INFO, "healthy"),
        (Severity.WARNING, "needs attention"),
        (Severity.CRITICAL, "failing"),
    ],
)
def test_the_worst_finding_makes_the_level_and_the_sentence(severity: Severity, level: str) -> None:
    """An info is never an alarm; the summary of the others is the headline."""
    word, sentence = told([*calm(30), made(severity, last_step=29)])

    assert word == level
    assert (sentence == "It broke") == (severity is not Severity.INFO)


def test_of_several_findings_the_root_speaks_before_its_symptoms() -> None:
    """The cause is what the user must change."""
    cause = made(Severity.CRITICAL, "The cause.", kind="forward_overflow", where="wo", last_step=9)
    symptom = made(Severity.CRITICAL, "The symptom.", root=False, last_step=9)

    assert told([*calm(30), symptom, cause])[1] == "The cause"


def test_a_warning_that_is_over_does_not_alarm_for_ever() -> None:
    """After a thousand quiet steps the run is healthy again, and the past is counted."""
    level, sentence = told([*calm(1200), made(last_step=100, first_step=90)])

    assert level == "healthy"
    assert sentence.endswith("; 1 warning from before")


def test_a_critical_finding_is_never_quietly_forgotten() -> None:
    """Weights may be broken though nothing new happens: somebody has to look."""
    level, sentence = told([*calm(1200), made(Severity.CRITICAL, last_step=100)])

    assert (level, sentence) == ("needs attention", "It broke; last reported at step 100")


@pytest.mark.parametrize("place", [{"where": "api"}, {"where": "env"}, {"phase": "config"}])
def test_what_is_wrong_in_the_code_stays_wrong(place: dict[str, str]) -> None:
    """It was seen once, in the first step, and nobody has changed the code since."""
    assert told([*calm(1200), made(last_step=0, **place)])[0] == "needs attention"


@pytest.mark.parametrize(("silent_seconds", "level"), [(60, "needs attention"), (121, "healthy")])
def test_what_was_reported_within_two_minutes_is_current(silent_seconds: float, level: str) -> None:
    """A lasting finding is reported once a minute, in which a fast run takes thousands of steps."""
    seconds_per_step = silent_seconds / 2000
    records = [
        step(i, time_ns=int((START + seconds_per_step * i) * 1e9), growth_tracker=i + 1)
        for i in range(3001)
    ]

    assert (
        told([*records, made(first_step=100, last_step=1000)], seconds=silent_seconds)[0] == level
    )


def test_a_silent_rank_is_stale_and_says_for_how_long() -> None:
    """A hang in a collective looks like this."""
    assert told(calm(30), seconds=30 + 300) == (
        "stale",
        "no step for 5 min; the last was step 29",
    )


def test_a_rank_before_its_first_step_says_that_it_waits() -> None:
    """Compilation and data loading may take minutes."""
    assert told([], seconds=90) == ("starting", "no step yet, 90 s after the start")


def test_a_finished_run_is_summed_up() -> None:
    """Steps, skips, scale; and what there is to read."""
    records = [*calm(300), optimizer(0, total_steps=300, total_skipped=(6, 1, 0, 0)), made(), end()]

    assert told(records) == (
        "finished",
        "300 steps, 7 steps skipped (6 calibrating, 1 probe), loss scale 65 536; 1 finding to read",
    )


def test_a_failed_run_says_why_and_where() -> None:
    """The exception that ended the loop is the headline."""
    records = [*calm(8), end(RunState.FAILED, "RuntimeError: out of memory")]

    assert told(records) == ("failed", "RuntimeError: out of memory; last step 7")


def test_a_killed_run_says_that_it_was_killed() -> None:
    """Nobody wrote an end: the process is simply gone."""
    level, sentence = told(calm(8), alive=False)

    assert level == "failed"
    assert sentence.startswith("the process ended without closing")


def of_run(*ranks: tuple[RankView, float]) -> tuple[int, Health]:
    return run_health([(r, rank_health(r, now)) for r, now in ranks])


def test_the_worst_rank_speaks_for_the_run() -> None:
    """One broken rank breaks all, and the headline says which one it is."""
    speaker, verdict = of_run(
        rank_after(calm(30)), rank_after([*calm(30), made(last_step=29)], rank=3)
    )

    assert (speaker, verdict.level) == (3, Level.ATTENTION)
    assert (verdict.sentence, verdict.advice) == ("rank 3: It broke", "Mend it.")


def test_ranks_that_are_alike_are_reported_as_one() -> None:
    """Eight healthy ranks need no eight sentences."""
    speaker, verdict = of_run(*[rank_after(calm(30), rank=r) for r in (1, 0)])

    assert (speaker, verdict.level) == (0, Level.HEALTHY)
    assert verdict.sentence.endswith("; 2 ranks alike")


def test_a_finished_rank_does_not_speak_for_one_that_runs() -> None:
    """The run is over when all of it is."""
    speaker, _ = of_run(rank_after([*calm(30), end()]), rank_after(calm(30), rank=1))

    assert speaker == 1
