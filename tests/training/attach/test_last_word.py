"""The report at the end: of the ranks of a machine that end together, one prints it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from ampwatch.settings import Settings
from ampwatch.training import said
from ampwatch.training.attach.last_word import MAX_SECONDS, LastWord
from ampwatch.wire.blackbox import Box
from ampwatch.wire.records import Finding, RunState, Severity
from tests.workshop.records import identity

if TYPE_CHECKING:
    from pathlib import Path

RANKS = 4


class Job:
    """Ranks of one machine that end when the test says so; a pause takes as long as it claims."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.waiting: list[int] = []
        self.texts: dict[int, str] = {}
        self.words: dict[int, LastWord] = {}
        self._settings = Settings.resolve({"ring_dir": str(directory)})
        for rank in range(RANKS):
            # In a process of its own each would be the first of its run.
            monkeypatch.setattr(said, "_opened", Counter())
            who = identity(run="gpt", rank=rank, local_rank=rank, world_size=RANKS)
            self.words[rank] = LastWord(
                self._settings, who, clock=lambda: self.now_s, sleep=self._sleep
            )

    def end(self, *boxes: Box) -> None:
        """End ranks; those after the first come while the one before waits."""
        self.boxes = list(boxes)
        self._next()

    def _next(self) -> None:
        box = self.boxes.pop(0)
        rank = box.identity.rank
        self.texts[rank] = self.words[rank].speak(box, self.now_s + MAX_SECONDS)

    def _sleep(self, seconds: float) -> None:
        if self.boxes:
            self._next()
        self.now_s += seconds


@pytest.fixture
def job(own_places: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(own_places / "rings", monkeypatch)


def box(rank: int, *places: str, error: str = "", severity: Severity = Severity.WARNING) -> Box:
    who = identity(run="gpt", rank=rank, local_rank=rank, world_size=RANKS)
    state = RunState.FAILED if error else RunState.FINISHED
    findings = [
        Finding("scale_collapse", severity, place, "It broke", "Mend it") for place in places
    ]
    return Box(who, state, error, ended_ns=who.started_ns + 1, findings=findings)


def test_ranks_that_end_together_print_one_report_of_all(job: Job, own_places: Path) -> None:
    """The lowest one does, also if it comes last; and nothing is left."""
    job.end(*(box(rank, "optimizer:0") for rank in (2, 1, 3, 0)))

    assert [rank for rank, text in job.texts.items() if text] == [0]
    assert job.texts[0].startswith("ampwatch report: run gpt, 4 of 4 ranks\n")
    assert job.texts[0].count("WARNING  scale_collapse") == 1
    assert "ranks 0-3" in job.texts[0]
    assert job.now_s < MAX_SECONDS
    assert list((own_places / "rings").iterdir()) == []


def test_a_rank_without_findings_ends_at_once_and_is_part_of_the_report(job: Job) -> None:
    """A healthy run waits for nobody."""
    for rank in (0, 1, 2):
        job.end(box(rank))
    assert job.now_s == 0.0
    assert not any(job.texts.values())
    job.end(box(3, "optimizer:1"))

    assert job.texts[3].startswith("ampwatch report: run gpt, 4 of 4 ranks\n")
    assert "  rank 0, on node: " in job.texts[3]
    assert "rank 3\n" in job.texts[3]


def test_nobody_waits_longer_than_a_second_for_a_rank_that_lives_on(job: Job) -> None:
    """It may evaluate for an hour, or hang. What it adds at its end is what differs."""
    job.end(*(box(rank, "optimizer:0") for rank in (1, 2, 3)))

    spoke = [rank for rank, text in job.texts.items() if text]
    assert len(spoke) == 1
    assert "3 of 4 ranks" in job.texts[spoke[0]]
    assert job.now_s < MAX_SECONDS * 1.1
    job.end(box(0, "optimizer:0"))
    assert not job.texts[0]


@pytest.mark.parametrize(
    "late",
    [
        box(0, "optimizer:0", "optimizer:7"),
        box(0, "optimizer:0", severity=Severity.CRITICAL),
        box(0, "optimizer:0", error="ValueError: boom"),
    ],
)
def test_a_rank_that_comes_later_adds_what_differs_alone(job: Job, late: Box) -> None:
    """A further finding, a worse one, a failure of its own."""
    job.end(*(box(rank, "optimizer:0") for rank in (1, 2, 3)))
    job.end(late)
    text = job.texts[0]

    assert text.startswith("ampwatch report: run gpt, more from rank 0 of 4\n")
    assert ("optimizer 7" in text) == (len(late.findings) == 2)
    assert ("boom" in text) == bool(late.reason)
    assert "WARNING  scale_collapse  optimizer 0" not in text


def test_a_connection_that_a_failed_rank_has_closed_is_nothing_to_add(job: Job) -> None:
    """The failure has been reported, and theirs follows from it."""
    job.end(box(3, "optimizer:0", error="ValueError: boom"))
    lost = "RuntimeError: Connection closed by peer"
    job.end(*(box(rank, "optimizer:0", error=lost) for rank in (0, 1, 2)))

    assert [rank for rank, text in job.texts.items() if text] == [3]


def test_the_only_rank_of_a_run_waits_for_nobody(own_places: Path) -> None:
    """And has no file."""
    settings = Settings.resolve({"ring_dir": str(own_places / "rings")})
    word = LastWord(settings, identity(world_size=1), sleep=lambda _: pytest.fail("it waits"))

    assert not word.is_shared
    assert word.speak(box(0, "optimizer:0"), 0.0).startswith("ampwatch report: run gpt, rank 0")
    assert list((own_places / "rings").iterdir()) == []


def test_ranks_that_cannot_agree_each_print_theirs(own_places: Path, job: Job) -> None:
    """Twice is better than never."""
    for path in (own_places / "rings").iterdir():
        path.unlink()
        path.mkdir()
    job.end(box(0, "optimizer:0"))
    job.end(box(1, "optimizer:0"))

    assert "rank 0, on node" in job.texts[0]
    assert "rank 1, on node" in job.texts[1]
