"""The state of a run in words, for every state there is."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from ampwatch.diagnosis.forward.kinds import FORWARD_OVERFLOW
from ampwatch.diagnosis.kinds.registry import ROWS
from ampwatch.report.endings import Failure, cause_of, num_led_to
from ampwatch.report.verdict import Level, judge, reach
from ampwatch.wire.blackbox.box import DIED
from ampwatch.wire.records import GONE_STEP, FindingRecord, RunState, Severity, SkipClass
from tests.workshop.clocks import START
from tests.workshop.fleets import fleet_of
from tests.workshop.records import alarm, end, finding, optimizer, step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.diagnosis.kinds.kind import Kind
    from ampwatch.host.fleet import RankView
    from ampwatch.report.verdict import RunVerdict
    from ampwatch.wire.records import Record, StepRecord


def rank_after(
    records: Sequence[Record], *, seconds: float | None = None, alive: bool = True, **who: Any
) -> tuple[RankView, float]:
    """The view of one rank after ``records``, and the time its clock shows."""
    steps = sum(hasattr(r, "loss_scale") for r in records)
    seconds = steps if seconds is None else seconds
    return fleet_of(*records, seconds=seconds, alive=alive, **who).ranks()[0], START + seconds


def of_run(*ranks: tuple[RankView, float]) -> RunVerdict:
    """The verdict on a run of these ranks, all on this machine."""
    return judge([r.judged_rank for r, _ in ranks], len(ranks), max(now for _, now in ranks))


def told(records: Sequence[Record], **how: Any) -> tuple[str, str]:
    """Health of one rank after ``records``: the word and the sentence, spaces made plain."""
    verdict = of_run(rank_after(records, **how))
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
    return FindingRecord(replace(record.finding, summary=summary, kind_advice="Mend it."))


def test_float16_without_a_scaler_is_not_called_healthy() -> None:
    """An info otherwise is nothing that a user has to read first."""
    steps = calm(100, loss_scale=math.nan)
    info = {
        "severity": Severity.INFO,
        "summary": "Nobody scales.",
        "where": "api",
        "phase": "config",
    }
    unscaled = made(kind="fp16_without_scaler", **info)
    assert told([*steps, unscaled]) == ("needs attention", "Nobody scales")
    assert told([*steps, made(kind="dims_unaligned", **info)])[0] == "healthy"
    assert told([*steps, unscaled, end()])[1].endswith("; at its end: Nobody scales")


def test_a_calm_run_is_healthy_and_says_its_step_its_scale_and_its_skips() -> None:
    """The three numbers a user looks for first are in the headline."""
    assert told(calm(1500)) == (
        "healthy",
        "step 1 499, loss scale 65 536, no step skipped in the last 1 000",
    )


def test_a_probe_within_reach_is_counted_and_named() -> None:
    """A user sees at once that the skip was the harmless sort."""
    records = calm(50, total_growths=1)
    records[40] = structs.replace(records[40], skip_class=SkipClass.PROBE)

    assert told(records) == (
        "healthy",
        "step 49, loss scale 65 536, 1 step skipped (1 probe) in the last 50",
    )


def test_a_skip_long_ago_is_not_reported_as_news() -> None:
    """Only the last thousand steps count for the headline."""
    records = calm(1100, total_growths=1)
    records[40] = structs.replace(records[40], skip_class=SkipClass.PROBE)

    assert told(records)[1].endswith("no step skipped in the last 1 000")


@pytest.mark.parametrize("skips", [2, 23])
def test_a_storm_is_no_alarm_before_the_finding_is_made(skips: int) -> None:
    """After how many skips it is one, is the user's setting; until then it is counted."""
    level, sentence = told([*calm(30), *storm(30, skips, 65536.0)])

    assert level == "healthy"
    assert sentence.endswith(f"{skips} steps skipped ({skips} storm) in the last {30 + skips}")


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
    key = cause.finding.key
    symptom = made(Severity.CRITICAL, "The symptom.", root=False, caused_by=key, last_step=9)

    assert told([*calm(30), symptom, cause])[1] == "The cause"


def test_a_warning_that_is_over_does_not_alarm_for_ever() -> None:
    """After a thousand quiet steps the run is healthy again, and the past is counted."""
    level, sentence = told([*calm(1200), made(last_step=100, first_step=90)])

    assert level == "healthy"
    assert sentence.endswith("; 1 warning from before")


def test_a_critical_finding_is_never_quietly_forgotten() -> None:
    """Weights may be broken though nothing new happens: somebody has to look."""
    level, sentence = told([*calm(1200), made(Severity.CRITICAL, last_step=100)])

    assert (level, sentence) == ("needs attention", "It broke; last seen at step 100")


@pytest.mark.parametrize(
    "row", [FORWARD_OVERFLOW, *(row for row in ROWS if row.is_state)], ids=lambda row: row.slug
)
def test_a_state_holds_until_it_was_seen_to_be_gone(row: Kind) -> None:
    """However long ago it was last seen: what is broken stays so. What happens in steps is over."""
    place = {"kind": row.slug, "where": "param:w", "first_step": 30, "last_step": 31, "count": 2}
    seen = made(Severity.CRITICAL, **place)
    gone = made(Severity.CRITICAL, **place, evidence={GONE_STEP: 40.0})
    ended = end(RunState.FINISHED)

    words = [
        told([*calm(200), record, *more])[0] for record in (seen, gone) for more in ((), (ended,))
    ]
    over = ["needs attention", "finished"]
    assert words == [*(["failing", "broken"] if row.is_state else over), *over]


def test_what_says_itself_how_long_it_lasted_has_no_other_end_behind_it() -> None:
    """What it explains may have been seen a step later, which is no second end of it."""
    summary = "The scale was stuck low from step 20 to step 100"
    root = alarm(severity=Severity.CRITICAL, summary=summary, first_step=20, last_step=100)
    symptom = alarm("grad_underflow", root=False, caused_by=root.key, last_step=101)
    records = [*calm(1200), FindingRecord(root), FindingRecord(symptom)]

    assert told(records) == ("needs attention", summary)


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


def test_a_rank_before_its_first_step_says_that_it_waits() -> None:
    """Compilation and data loading may take minutes."""
    assert told([], seconds=90) == ("starting", "no step yet, 90 s after the start")


def test_a_finished_run_is_summed_up() -> None:
    """Steps, skips, scale; and what there is to read."""
    totals = optimizer(0, total_steps=1300, total_skipped=(6, 1, 0, 0))
    records = [*calm(1300), totals, made(first_step=3, last_step=3), end()]

    assert told(records) == (
        "finished",
        "1 300 steps, 7 steps skipped (6 calibrating, 1 probe), loss scale 65 536; 1 finding to read",
    )


def test_a_run_that_ended_with_a_warning_says_which() -> None:
    """Advice without what it is about helps nobody."""
    records = [*calm(30), made(last_step=29), end()]

    assert told(records) == (
        "finished",
        "30 steps, no step skipped, loss scale 65 536; at its end: It broke",
    )


def test_a_run_that_ended_with_a_critical_finding_is_broken_and_stands_before_healthy_ones() -> (
    None
):
    """It did not raise, and what it has trained is of no use anyway."""
    verdict = of_run(rank_after([*calm(30), made(Severity.CRITICAL, last_step=29), end()]))

    assert verdict.level is Level.BROKEN
    assert verdict.sentence == "It broke; it was still so at the end, after 30 steps"
    assert verdict.advice == "Mend it."
    assert Level.FAILING.badness < Level.BROKEN.badness < Level.ATTENTION.badness


def test_a_collapse_that_was_over_long_before_the_end_is_no_broken_run() -> None:
    """However short the run was: two minutes are for whoever watches, and nobody watches any more."""
    over = made(Severity.CRITICAL, first_step=10, last_step=30, count=21)
    fast = [step(i, time_ns=int((START + 0.01 * i) * 1e9)) for i in range(10_000)]

    assert told([*fast, over], seconds=100)[0] == "failing"
    assert told([*fast, over, end()], seconds=100)[0] == "finished"


def test_a_run_that_diverged_and_was_killed_says_both() -> None:
    """The exception is not what is wrong with it."""
    records = [*calm(30), made(Severity.CRITICAL, last_step=29)]

    level, sentence = told(records, alive=False)

    assert level == "failed"
    assert sentence.startswith("It broke; then: the process ended without closing")
    assert sentence.endswith("; last step 29")


def test_what_came_in_every_step_is_over_soon_and_what_comes_seldom_is_not() -> None:
    """How long it took from one time to the next says what to expect."""
    quiet = 200
    every = made(Severity.CRITICAL, first_step=50, last_step=99, count=50)
    seldom = made(Severity.CRITICAL, first_step=0, last_step=99, count=4)
    ends = calm(100 + quiet, loss_scale=1024.0)

    assert told([*ends, every])[0] == "needs attention"
    assert told([*ends, seldom])[0] == "failing"


@given(
    first=st.integers(0, 10_000),
    length=st.integers(0, 5000),
    count=st.integers(1, 5001),
    more=st.integers(0, 3000),
)
def test_a_finding_reaches_between_a_few_and_a_thousand_steps(
    first: int, length: int, count: int, more: int
) -> None:
    """Never over at once, never current for ever, and the longer the rarer it came."""
    seen = finding(first_step=first, last_step=first + length, count=count).finding
    rarer = finding(first_step=first, last_step=first + length + more, count=count).finding

    assert 64 <= reach(seen) <= reach(rarer) <= 1000


LOST = "DistBackendError: NCCL remote error"


@given(st.permutations(range(8)), st.integers(0, 7), st.sampled_from([DIED, "KeyError: 'x'"]))
def test_the_cause_is_found_in_whatever_order_ranks_are_known(
    order: list[int], culprit: int, reason: str
) -> None:
    """A process that was killed has no exception, and still is the cause."""
    failures = [Failure(r, reason if r == culprit else LOST, 10.0 + r) for r in order]
    found = cause_of(failures, is_whole_job=True)

    assert found is not None
    assert (found.rank, found.error) == (culprit, "killed" if reason == DIED else "KeyError")
    assert num_led_to(found, failures) == 7


@pytest.mark.parametrize(
    ("failures", "cause"),
    [
        pytest.param([(10, DIED), *[(610, LOST)] * 3], 0, id="killed, the others time out"),
        pytest.param(
            [(610, "RuntimeError: NCCL communicator was aborted on rank 0."), (10, DIED)],
            1,
            id="an abort is a consequence",
        ),
        pytest.param([(9, DIED), (10, "ValueError: x"), (9, DIED)], 1, id="ended by a launcher"),
        pytest.param([(10, DIED), (70, "ValueError: x")], 0, id="killed a minute before"),
        pytest.param([(10, DIED)] * 8, None, id="all killed at once"),
        pytest.param([(10, DIED), (11, DIED), (12, LOST)], None, id="which was first is not known"),
        pytest.param(
            [(10, "SignalException: Process 5 got signal: 15"), (9, DIED)], 1, id="a signal"
        ),
        pytest.param(
            [(10, "ConnectionRefusedError: no object store"), (9, DIED), (9, DIED)],
            0,
            id="a connection of the program's own",
        ),
    ],
)
def test_the_cause_of_a_death_is_told_by_time_and_kind(
    failures: list[tuple[float, str]], cause: int | None
) -> None:
    """What nobody can put in order has no cause: a wrong rank sends somebody to the wrong machine."""
    known = [Failure(rank, reason, at_s) for rank, (at_s, reason) in enumerate(failures)]
    found = cause_of(known, is_whole_job=True)

    assert (None if found is None else found.rank) == cause


def test_a_rank_that_ended_long_before_the_cause_says_its_own_reason() -> None:
    """It did not end after the one that broke the job."""
    ends = [(0, "ValueError: x", 100), (1, "RuntimeError: Connection closed by peer", 20)]
    ranks = [
        rank_after(
            [*calm(8), end(RunState.FAILED, reason, time_ns=int((START + after) * 1e9))],
            rank=rank,
            world_size=2,
        )
        for rank, reason, after in ends
    ]
    verdict = of_run(*ranks)

    assert verdict.by_rank[1].sentence == f"{ends[1][1]}; last step 7"
    assert verdict.sentence == "rank 0: ValueError: x; last step 7"


def test_a_cause_on_another_machine_is_not_made_up() -> None:
    """All that is known here is that a connection was lost."""
    failures = [Failure(r, "DistNetworkError: gone", 1.0) for r in (0, 1)]

    assert cause_of(failures, is_whole_job=False) is None
    assert cause_of(failures, is_whole_job=True) == failures[0]


def test_sentence_root_and_speaker_are_of_one_finding() -> None:
    """Of ranks that are equally bad the one with the first story speaks, and the root is its own."""
    late = made(
        Severity.CRITICAL, "Late.", kind="forward_overflow", where="a", first_step=9, last_step=29
    )
    soon = made(
        Severity.CRITICAL, "Soon.", kind="masked_row_nan", where="b", first_step=1, last_step=29
    )
    verdict = of_run(rank_after([*calm(30), late]), rank_after([*calm(30), soon], rank=1))

    assert verdict.root is not None
    assert (verdict.shown_rank, verdict.root.finding.kind) == (1, "masked_row_nan")
    assert verdict.sentence == "rank 1: Soon"


def test_a_chain_of_causes_of_any_length_takes_nothing_away() -> None:
    """Findings are what another process says; one of them must not end the page of all others."""
    broken = {"severity": Severity.CRITICAL, "root": False, "last_step": 29}
    chain = [made(where=str(i), caused_by=f"scale_collapse@{i + 1}", **broken) for i in range(2000)]
    ranks = [rank_after([*calm(30), *chain[250 * r : 250 * r + 250]], rank=r) for r in range(8)]
    verdict = of_run(*ranks)

    assert verdict.level is Level.FAILING
    assert [len(incident.members) for incident in verdict.incidents] == [2000]


def test_the_worst_rank_speaks_for_the_run() -> None:
    """One broken rank breaks all, and the headline says which one it is."""
    verdict = of_run(rank_after(calm(30)), rank_after([*calm(30), made(last_step=29)], rank=3))

    assert (verdict.shown_rank, verdict.level) == (3, Level.ATTENTION)
    assert (verdict.sentence, verdict.advice) == ("rank 3: It broke", "Mend it.")


def test_ranks_that_are_alike_are_reported_as_one() -> None:
    """Eight healthy ranks need no eight sentences."""
    verdict = of_run(*[rank_after(calm(30), rank=r) for r in (1, 0)])

    assert (verdict.shown_rank, verdict.level) == (0, Level.HEALTHY)
    assert verdict.sentence.endswith("; 2 ranks alike")


def test_ranks_of_another_machine_are_not_counted_as_alike() -> None:
    """Nobody has seen them here."""
    ranks = [rank_after(calm(30), rank=r)[0].judged_rank for r in (0, 1)]

    verdict = judge(ranks, 4, START + 30)

    assert verdict.sentence.endswith("; 2 ranks alike, 2 not known here")


def test_a_finished_rank_does_not_speak_for_one_that_runs() -> None:
    """The run is over when all of it is."""
    verdict = of_run(rank_after([*calm(30), end()]), rank_after(calm(30), rank=1))

    assert verdict.shown_rank == 1


def test_what_one_rank_explains_is_no_headline_of_another_one() -> None:
    """Ranks skip together; the rank with the op that has failed speaks, and its copy of the skips is shown."""
    span = {"first_step": 5, "last_step": 29}
    op = made(Severity.CRITICAL, "It overflows.", kind=FORWARD_OVERFLOW.slug, where="a", **span)
    sent = made(Severity.CRITICAL, "Another rank did it.", **span)
    caused = made(Severity.CRITICAL, "It skips.", root=False, caused_by=op.finding.key, **span)

    verdict = of_run(rank_after([*calm(30), sent]), rank_after([*calm(30), op, caused], rank=1))

    assert verdict.sentence == "rank 1: It overflows"
    (incident,) = verdict.incidents
    assert [m.finding.summary for m in incident.members] == ["It overflows.", "It skips."]
    assert incident.symptoms[0].ranks == [0, 1]
