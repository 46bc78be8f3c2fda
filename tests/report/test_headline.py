"""The verdict in four lines, for every state there is."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from ampwatch.diagnosis.kinds.registry import ROWS
from ampwatch.host.fleet import Fleet
from ampwatch.report.accounts import first_sentence
from ampwatch.report.headline import (
    MAX_LINE,
    MAX_REMEDY,
    Headline,
    cause_of,
    first_remedy,
    headline,
)
from ampwatch.report.judged_boxes import judge_boxes
from ampwatch.report.words import plain
from ampwatch.settings import Settings
from ampwatch.wire.blackbox import Box
from ampwatch.wire.blackbox.box import DIED
from ampwatch.wire.records import FindingRecord, Measure, RunState, Severity, SkipClass, Tried
from tests.workshop.clocks import START, Clock
from tests.workshop.fleets import put
from tests.workshop.records import alarm, end, identity, optimizer, step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.diagnosis.kinds.kind import Kind
    from ampwatch.wire.records import Record

OVERFLOW = alarm(
    "forward_overflow",
    "blocks.2.mlp",
    op="mul",
    dtype="float16",
    phase="forward",
    source="train.py:31",
    first_step=7,
    last_step=9,
    count=3,
    kind_advice="Keep this op in float32. Or rescale it.",
)


REMEDIES = (
    Tried(Measure.MODULE_IN_FLOAT32, "a.b", 7, cures=False),
    Tried(Measure.SUMS_IN_FLOAT32, "", 7, cures=False),
    Tried(Measure.BFLOAT16, "", 7, cures=False),
)
PLACES = ("encoder.layers.31.self_attn.out_proj", "api", "loss", "param:a.b")


def of_run(
    *ranks: Sequence[Record], seconds: float = 250.0, alive: bool = True, world_size: int = 0
) -> Headline:
    """The lines about a run whose ranks wrote these records, some seconds after its start."""
    clock = Clock(START + seconds)
    fleet = Fleet(Settings(stale_seconds=1e6), clock)
    for rank, records in enumerate(ranks):
        who = identity(rank=rank, world_size=world_size or len(ranks))
        put(fleet, f"/{rank}.ring", who, records, alive=alive)
    [(_, verdict)] = fleet.judge().values()
    lines = headline(verdict, clock.now)
    return replace(
        lines, **{n: plain(getattr(lines, n)) for n in ("state", "cause", "where", "remedy")}
    )


def calm(count: int, **changes: Any) -> list[Record]:
    return [step(i, growth_tracker=i + 1, **changes) for i in range(count)]


def test_a_failing_run_says_since_when_what_where_and_what_to_do() -> None:
    """The four lines that somebody reads who was just woken up."""
    assert of_run([*calm(10), FindingRecord(OVERFLOW)]) == Headline(
        state="failing, since step 7, 4 min ago",
        cause="mul in blocks.2.mlp overflowed float16",
        where="module blocks.2.mlp, op mul, in float16, forward pass, at train.py:31",
        remedy="Keep this op in float32.",
        is_tried=False,
    )


def test_the_ranks_that_found_it_are_named_among_all() -> None:
    """One rank of three, one of which is elsewhere."""
    lines = of_run(calm(10), [*calm(10), FindingRecord(OVERFLOW)], world_size=3)

    assert lines.where.endswith("at train.py:31, rank 1 of 3")


def test_a_remedy_that_was_tried_comes_first_and_is_marked() -> None:
    """It was tried on the very batch that failed: nothing else is as sure."""
    tried = (REMEDIES[0]._replace(module="blocks.2.mlp", cures=True), REMEDIES[1])

    lines = of_run([*calm(10), FindingRecord(replace(OVERFLOW, tried=tried))])

    assert lines.remedy == (
        "Run module blocks.2.mlp in float32 (tried on the batch of step 7: its forward pass is then finite; gradients may not be)."
    )
    assert lines.is_tried


@pytest.mark.parametrize(
    ("cures", "first"),
    [
        ((True, True, True), "Run module a.b in float32"),
        ((False, True, True), "Run the residual stream in float32"),
        ((False, False, True), "Use bfloat16 instead of float16"),
    ],
)
def test_the_first_remedy_that_cures_is_what_to_do_first(
    cures: tuple[bool, bool, bool], first: str
) -> None:
    """It is the smallest change of those that do."""
    tried = tuple(one._replace(cures=c) for one, c in zip(REMEDIES, cures, strict=True))

    assert first_remedy(replace(OVERFLOW, tried=tried)) == (
        f"{first} (tried on the batch of step 7: its forward pass is then finite; gradients may not be)."
    )


def test_where_nothing_that_was_tried_cures_it_the_advice_of_the_kind_comes_first() -> None:
    """And is not said to have been tried."""
    found = replace(OVERFLOW, tried=REMEDIES)

    assert first_remedy(found) == "Keep this op in float32."


def test_a_healthy_run_says_what_is_healthy() -> None:
    """Scale and skips; the scale as the chart writes it."""
    assert of_run(calm(200), calm(200)) == Headline(
        state="healthy, at step 199, 4 min after the start",
        cause="loss scale 2^16, no step skipped in the last 200",
        where="ranks 0-1",
        remedy="No action needed.",
    )


def test_a_healthy_run_does_not_hide_what_was_found_before() -> None:
    """It is over, and still to be read."""
    over = alarm(severity=Severity.WARNING, first_step=0, last_step=0)

    lines = of_run([*calm(1200), FindingRecord(over)], seconds=1300)

    assert lines.remedy == "No action needed now. 1 finding from before."


def test_what_was_critical_and_is_over_has_its_cause_and_its_span() -> None:
    """Weights may be broken though nothing new happens."""
    over = replace(OVERFLOW, first_step=1, last_step=3)

    lines = of_run([*calm(1200), FindingRecord(over)], seconds=1300)

    assert lines.state == "needs attention, from step 1 to step 3; over now"
    assert lines.cause == "mul in blocks.2.mlp overflowed float16"


def test_what_is_over_is_told_by_its_own_sentence() -> None:
    """Its kind means what goes on: "it does not come back" of a scale that has come back."""
    over = alarm("scale_stuck_low", summary="The scale was low.", first_step=1, last_step=3)

    assert of_run([*calm(1200), FindingRecord(over)], seconds=1300).cause == "The scale was low"


def test_an_op_of_the_loss_is_in_no_module() -> None:
    """And a path to its line is cut where paths are alike."""
    loss = replace(OVERFLOW, where="loss", op="mse_loss", source=f"/{'a' * 60}/code/train.py:3")

    lines = of_run([*calm(10), FindingRecord(loss)])

    assert lines.cause == "mse_loss outside the model overflowed float16"
    assert lines.where.endswith(", at .../code/train.py:3")


def test_a_run_without_a_scaler_is_not_said_to_have_skipped_nothing() -> None:
    """bfloat16 needs no scaler: nothing is missing."""
    lines = of_run(calm(3, loss_scale=float("nan")))

    assert lines.cause == "no finding is current; no loss scaler, so no step can be skipped"


def test_a_scale_that_fell_is_a_power_of_two() -> None:
    """Nobody reads 5.684e-14."""
    last = {"skip_class": SkipClass.CALIBRATING, "loss_scale": 2.0**-44}

    lines = of_run([step(0, **last), optimizer(0, skipped=True, total_skipped=(3, 0, 0, 0))])

    assert lines.state == "calibrating, at step 0, 4 min after the start"
    assert lines.cause == (
        "3 steps skipped (3 calibrating) while the scaler searches for its scale, loss scale 2^-44"
    )


def test_a_failed_run_names_the_error_and_what_was_wrong_before() -> None:
    """The exception is where it ended, the finding why."""
    ended = end(RunState.FAILED, "ValueError: expected a finite loss", time_ns=(START + 10) * 10**9)

    lines = of_run([*calm(10), FindingRecord(OVERFLOW), ended])

    assert lines.state == "failed at step 9, 4 min ago: ValueError; in trouble since step 7"
    assert lines.cause == "mul in blocks.2.mlp overflowed float16"


def test_a_rank_that_made_others_end_is_named_first() -> None:
    """Eight ranks fail, and seven of them only say that the other end was gone."""
    lost = end(RunState.FAILED, "RuntimeError: Connection closed by peer")

    lines = of_run([*calm(5), lost], [*calm(5), end(RunState.FAILED, "OSError: no such file")])

    assert lines.cause == "OSError: no such file"
    assert lines.where == "rank 1 of 2, and because of it rank 0"
    assert lines.remedy == "Read the traceback: ampwatch report."


def test_a_rank_that_another_machine_made_end_does_not_say_why() -> None:
    """Its own exception says no more than that somebody was gone."""
    lost = end(RunState.FAILED, "RuntimeError: Connection closed by peer")
    fleet = Fleet(Settings(stale_seconds=1e6), Clock(START + 250.0))
    for rank in (0, 1):
        who = identity(rank=rank, world_size=4)
        put(fleet, f"/{rank}.ring", who, [*calm(5), lost], alive=False)
    [(_, verdict)] = fleet.judge().values()

    lines = headline(verdict)

    assert lines.cause == "the connection to another rank was lost"
    assert lines.where == "ranks 0-1 of 4"
    assert lines.remedy.startswith("Read the reports of the other ranks")


def test_a_rank_that_another_one_made_end_names_that_one() -> None:
    """Its own exception says nothing, and the report has no traceback of it."""
    fleet = Fleet(Settings(stale_seconds=1e6), Clock(START + 250.0))
    lost = end(RunState.FAILED, "RuntimeError: Connection closed by peer")
    put(fleet, "/0.ring", identity(rank=0, world_size=2), [*calm(5), lost], alive=False)
    raised = end(RunState.FAILED, "OSError: no such file")
    put(fleet, "/1.ring", identity(rank=1, world_size=2), [*calm(5), raised], alive=False)
    [(_, verdict)] = fleet.judge().values()

    lines = headline(verdict.by_rank[0])

    assert lines.cause == "rank 1 had ended: OSError: no such file"
    assert lines.where == "rank 0"
    assert lines.remedy == "See rank 1."


def test_a_killed_run_says_so() -> None:
    """There is no exception to read."""
    lines = of_run(calm(5), alive=False)

    assert lines.state.startswith("failed at step 4, ")
    assert lines.state.endswith(": killed")
    assert lines.cause == DIED
    assert lines.remedy.startswith("Find out what ended it")


def test_a_run_that_hangs_says_since_when() -> None:
    """It lives and says nothing."""
    clock = Clock(START + 1000.0)
    fleet = Fleet(Settings(stale_seconds=120), clock)
    put(fleet, "/0.ring", identity(world_size=1), calm(5))
    [(_, verdict)] = fleet.judge().values()

    lines = headline(verdict, clock.now)

    assert lines.state == "stale, silent since step 4, 16 min ago"
    assert lines.remedy.startswith("Find out what the process waits for")


def test_a_run_that_ended_broken_or_well_says_when() -> None:
    """The two ends without an exception."""
    done = end(time_ns=(START + 10) * 10**9)

    assert of_run([*calm(10), done]).state == "finished at step 9, 4 min ago"
    broken = of_run([*calm(10), FindingRecord(OVERFLOW), done])
    assert broken.state == "broken, ended at step 9, 4 min ago; in trouble since step 7"


def test_a_daemon_that_came_late_does_not_date_what_began_before_it() -> None:
    """It would be the age of the first step that it has read."""
    late = [step(i) for i in range(100, 110)]

    found = replace(OVERFLOW, last_step=109, count=100)

    assert of_run([*late, FindingRecord(found)]).state == "failing, since step 7"


def test_what_began_before_anything_is_known_is_not_dated() -> None:
    """A report has the newest steps only: the first of them is not when it began."""
    box = Box(identity(world_size=1), findings=[OVERFLOW])
    box.steps = [step(i) for i in range(8, 10)]

    assert headline(judge_boxes([box]), START + 100.0).state == "failing, since step 7"
    assert headline(judge_boxes([box])).state == "failing, since step 7"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.slug)
def test_the_lines_of_each_kind_are_short_and_whole(row: Kind) -> None:
    """A line that is cut says so; nobody reads a paragraph in the largest type."""
    for where, op in product(PLACES, ("", "_scaled_dot_product_attention")):
        found = alarm(row.slug, where, op=op, dtype="float16", kind_advice=row.advice)

        lines = of_run([*calm(10), FindingRecord(found)])

        for line in (lines.state, lines.cause):
            assert 0 < len(line) <= MAX_LINE, line
            assert line.isascii(), line
        assert lines.remedy == (
            first_sentence(row.advice) or f"Read about it: ampwatch explain {row.slug}."
        )
        assert len(lines.remedy) <= MAX_REMEDY
        if where not in {"api", "loss"} and row.slug != "api_error":
            assert where.rpartition(":")[2] in lines.cause


def test_a_kind_of_another_release_is_said_by_its_summary() -> None:
    """A ring of a newer training may hold kinds that nobody here knows."""
    found = alarm("brand_new", "fc", summary="The moon is full at step 3. It shines.")

    assert cause_of(found) == "The moon is full at step 3"


def test_a_finding_without_advice_names_the_page_about_its_kind() -> None:
    """There is always something to do next."""
    found = alarm("brand_new", "fc", summary="The moon is full.", kind_advice="")

    assert first_remedy(found) == "Read about it: ampwatch explain brand_new."


def test_a_long_name_keeps_its_end() -> None:
    """Modules differ at the end of their names."""
    name = ".".join(["container"] * 12) + ".last"

    said = cause_of(replace(OVERFLOW, where=name))

    assert said.startswith("mul in ...")
    assert said.endswith(".last overflowed float16")
    assert len(said) <= MAX_LINE
