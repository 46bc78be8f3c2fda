"""The report in words."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from ampwatch.report.report import render_boxes
from ampwatch.wire.blackbox import Box
from ampwatch.wire.records import RunState, Severity
from tests.report.test_step_times import spent
from tests.workshop.records import IDENTITY, alarm, optimizer, step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.wire.records import Finding


_finding = partial(alarm, severity=Severity.WARNING)


def _report(findings: Sequence[Finding] = (), **numbers: Any) -> str:
    """The report of one rank whose last step has these numbers."""
    skipped = numbers.pop("skipped", (0, 0, 0, 0))
    notes = numbers.pop("notes", [])
    steps = numbers.pop("steps", 20)
    box = Box(IDENTITY, findings=list(findings), notes=notes)
    box.steps = [step(9, **numbers)]
    box.optimizers = [optimizer(9, total_steps=steps, total_skipped=skipped)]
    return render_boxes([box])


def test_a_healthy_run_has_its_numbers_and_nothing_to_report() -> None:
    """Steps, scale, and the word that nothing was found."""
    text = _report(loss_scale=65536.0, total_growths=2)

    assert text == (
        "ampwatch report: run gpt, rank 0, on node\n"
        "  HEALTHY: step 9, loss scale 65536, no step skipped in the last 1.\n"
        "  No action needed.\n"
        "  10 iterations, 20 optimizer steps attempted\n"
        "  no step skipped\n"
        "  loss scale 65536, 2 growths, 0 backoffs\n"
        "\n"
        "There are no findings.\n"
    )


def test_a_report_says_where_the_time_of_a_step_goes() -> None:
    """A line a phase, what is trained on, and what was not seen."""
    phases = spent(forward=0.25, backward=0.5, rest=0.25)
    told = [step(i, phases=phases, total_samples=32 * i) for i in range(50, 54)]
    text = render_boxes([Box(IDENTITY, steps=told)])

    assert (
        "\n"
        "Where the time of a step of rank 0 goes (1 s, by the host's clock, mean of the newest 4\n"
        "  steps):\n"
        "  forward     250 ms     25 %\n"
        "  backward    500 ms     50 %\n"
        "  the rest    250 ms     25 %\n"
        "  Trained on 32 samples per second.\n"
        "  No DataLoader was seen: a wait for data would be part of the rest.\n"
    ) in text
    assert "Where the time" not in render_boxes([Box(IDENTITY, steps=[step(9)])])


def test_the_report_can_be_printed_in_any_locale() -> None:
    """The report's own words are ASCII, digits included: the user's locale may be "C"."""
    large = {"steps": 123_456, "total_growths": 12_345, "loss_scale": 2.0**30}

    assert _report([_finding("scale_collapse", last_step=123_455)], **large).isascii()
    assert _report(**large).isascii()


def test_a_run_without_a_scaler_says_nothing_of_scale_and_skips() -> None:
    """Parts that are not there are absent, not zero."""
    text = _report(loss_scale=math.nan)

    assert "20 optimizer steps attempted" in text
    assert "skipped" not in text
    assert "loss scale " not in text


def test_skips_are_reported_by_class() -> None:
    """Calibrating and storm are different news."""
    text = _report(skipped=(3, 0, 1, 2), loss_scale=1.0)

    assert "  6 steps skipped: 3 calibrating, 1 unprovoked, 2 storm\n" in text


def test_roots_come_by_severity_each_followed_by_what_it_explains() -> None:
    """The reader begins with the cause."""
    root = _finding("forward_overflow", severity=Severity.CRITICAL, op="mm", source="train.py:7")
    symptom = _finding("scale_collapse", root=False, caused_by=root.key)
    note = _finding("scheduler_ahead", severity=Severity.INFO, first_step=2, last_step=9, count=3)
    text = _report([note, symptom, root])
    order = [
        text.index(k)
        for k in (
            "  Do first: change forward_overflow.",
            "CRITICAL  forward_overflow",
            "  What to change: change forward_overflow.",
            "Where: ",
            "It explains: scale_",
            "INFO  sch",
        )
    ]

    assert order == sorted(order)
    assert "Where: optimizer 0; op mm; at train.py:7; rank 0" in text
    assert "Since: step 2; last seen at step 9, in 3 steps so far" in text
    assert "More: ampwatch explain forward_overflow\n" in text


def test_a_story_is_as_bad_and_as_old_as_anything_in_it() -> None:
    """A mild cause does not hide a run that is lost, nor when that began."""
    root = _finding("scale_stuck_low", first_step=50, last_step=50)
    symptom = _finding(
        "scale_collapse", severity=Severity.CRITICAL, root=False, caused_by=root.key, first_step=30
    )
    other = _finding("scale_reset", severity=Severity.CRITICAL, first_step=40, last_step=40)
    text = _report([root, symptom, other])

    assert text.index("CRITICAL  scale_stuck_low") < text.index("CRITICAL  scale_reset")
    assert "Since: step 50. What it explains was seen first, at step 30" in text
    assert "Since: step 40\n" in text


def test_what_a_callback_has_written_into_the_evidence_is_no_error() -> None:
    """It is shown as it is."""
    finding = _finding("scale_collapse", evidence={"note": "mine", "steps": 3.0})

    assert "note   'mine'\n" in _report([finding])


def test_it_says_how_sure_it_is_and_why() -> None:
    """A trend is not an observation."""
    text = _report([_finding("forward_overflow"), _finding("headroom_low")])

    assert "How sure: certain: the op had finite inputs" in text
    assert "How sure: likely: the largest output was measured step by step" in text


def test_every_number_of_the_evidence_is_there() -> None:
    """Numbers of symptoms are listed as well, and powers of two as such."""
    root = _finding("forward_overflow", evidence={"out_amax": math.inf, "input_amax": 512.25})
    symptom = _finding(
        "scale_collapse", root=False, caused_by=root.key, evidence={"loss_scale": 2.0**-15}
    )
    words = " ".join(_report([root, symptom]).split())

    assert (
        "largest magnitude of the output infinity input amax 512.25 of scale_collapse: loss scale 3.05"
        in words
    )
    assert "(2^-15)" in words


def test_a_term_is_explained_once_at_the_end() -> None:
    """A term that does not come up is not explained."""
    first = _finding("headroom_low", summary="it overflows", first_step=1)
    second = _finding("scale_collapse", summary="steps are skipped: overflow", first_step=2)
    text = _report([first, second])

    assert text.count("overflow: a result larger than") == 1
    assert text.index("overflow: a result") > text.index("WARNING  scale_collapse")
    assert "skipped step: when" in text
    assert "bfloat16:" not in text


def test_what_several_ranks_found_is_reported_once() -> None:
    """With the ranks, as the one tells it that saw it first."""
    boxes = [
        Box(
            replace(IDENTITY, rank=rank, world_size=4),
            findings=[_finding("scale_collapse", summary=f"since {9 - rank}", first_step=9 - rank)],
        )
        for rank in (0, 1, 3)
    ]
    text = render_boxes(boxes)

    assert text.startswith("ampwatch report: run gpt, 3 of 4 ranks\n  ")
    assert text.count("WARNING  scale_collapse") == 1
    assert "ranks 0-1, 3" in text
    assert "since 6" in text


def test_findings_that_name_each_other_as_their_cause_are_reported() -> None:
    """A report that is damaged must not hide them."""
    one = _finding("headroom_low", root=False, caused_by="scale_collapse@optimizer:0")
    other = _finding("scale_collapse", root=False, caused_by="headroom_low@optimizer:0")
    lost = _finding("scale_reset", root=False, caused_by="gone@nowhere")
    text = _report([one, other, lost])

    assert all(
        f"WARNING  {kind}" in text for kind in ("headroom_low", "scale_collapse", "scale_reset")
    )


@pytest.mark.parametrize("width", [80, 100])
def test_a_narrow_terminal_is_not_overrun(width: int) -> None:
    """Every line fits, the numbers included."""
    finding = _finding("scale_collapse", summary="x " * 200, evidence={"n" * 30: 1e-30})
    box = Box(IDENTITY, RunState.FAILED, "a reason " * 30, findings=[finding])

    assert max(map(len, render_boxes([box], width).splitlines())) <= width


def test_what_was_not_seen_is_said() -> None:
    """A report that misses something says so."""
    text = _report(notes=["3 iterations were not observed"])

    assert "  3 iterations were not observed\n" in text
