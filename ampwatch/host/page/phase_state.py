"""Where the time of a step goes as the page has it: what its strip cannot say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.report.words import percent, step_time
from ampwatch.wire.records import StepPhase

if TYPE_CHECKING:
    from ampwatch.host.fleet import RankView
    from ampwatch.host.page.rows import State
    from ampwatch.report.step_times import Breakdown

PHASES = tuple((phase.label, phase.words) for phase in StepPhase)
"""Each phase by its label and in words, in the order of the rows of a course."""


def phase_state(rank: RankView) -> State:
    """Return by whose clock, of which steps and what the phases of a rank are.

    ``line`` has the largest of them for a terminal. ``key`` has label, words, time and share of each phase that the newest steps had; it is empty where
    nothing is known.
    """
    told = rank.phase_times.breakdown
    if told is None:
        return {"sentence": "", "line": "", "key": [], "notes": []}
    return {
        "sentence": _sentence(told),
        "line": told.line,
        "key": _key(told),
        "notes": told.unseen,
    }


def _sentence(told: Breakdown) -> str:
    return f"{step_time(told.seconds)} a step, {told.source}"


def _key(told: Breakdown) -> list[list[str]]:
    return [
        [phase.label, phase.words, step_time(seconds), percent(share)]
        for phase, seconds, share in told.shares
    ]
