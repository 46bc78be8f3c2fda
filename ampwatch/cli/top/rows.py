"""The ranks in a state of the daemon, one row each. What a person reads is the daemon's; here it is taken apart.

The state may be that of an older daemon, and its names and messages are those of any program:
what is missing is left out, and what is not printable is written as what it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ampwatch.cli.top.cells import clean
from ampwatch.report.accounts import first_sentence
from ampwatch.report.stories import Story
from ampwatch.report.verdict import Level
from ampwatch.wire.records import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Row:
    """One rank.

    Attributes:
        run: Name of its run.
        rank: Global rank.
        world_size: Ranks of the run.
        level: How it goes, in a word.
        badness: Place among the levels; 0 is the worst.
        is_speaker: The run's verdict is about this rank.
        lines: The verdict in four lines: state, cause, place, what to do first.
        step: Its newest step; -1 before the first.
        scales: Loss scales of its newest spans of steps; ``None`` without one.
        losses: Losses likewise.
        step_seconds: What a step takes lately; NaN if not known. Unit: s.
        step_line: Where the time of a step goes; empty if that is not known.
        figures: What describes it right now: title, value and note.
        gpu: The GPU it computes on, in a few words; empty if that is not known.
        host: Host it is on.
        user: User whose it is.
        process: What its process is doing, in a word.
        stories: Its findings, as the page orders them.
    """

    run: str
    rank: int
    world_size: int
    level: str
    badness: int
    is_speaker: bool
    lines: tuple[str, str, str, str]
    step: int
    scales: tuple[float | None, ...] = ()
    losses: tuple[float | None, ...] = ()
    step_seconds: float = math.nan
    step_line: str = ""
    figures: tuple[tuple[str, str, str], ...] = ()
    gpu: str = ""
    host: str = ""
    user: str = ""
    process: str = ""
    stories: tuple[Story, ...] = field(default=())

    @property
    def identity(self) -> tuple[str, int]:
        """Run and rank, by which it is known from one state to the next."""
        return self.run, self.rank

    @property
    def name(self) -> str:
        """Its run, and which rank of several it is."""
        return self.run if self.world_size <= 1 else f"{self.run} rank {self.rank}"

    def figure(self, title: str) -> str:
        """Return the value of a figure; empty if there is none."""
        return next((value for name, value, _ in self.figures if name == title), "")


def rows_of(state: Mapping[str, Any]) -> list[Row]:
    """Return a row for each rank of a state of the daemon."""
    on_gpu = _gpus(state)
    columns = {name: place for place, name in enumerate(state.get("columns", ()))}
    rows = []
    for run, told in state["runs"].items():
        for number, of in told.get("ranks", {}).items():
            rank = int(number)
            level = str(of.get("level", ""))
            seconds = _column(of, columns, "seconds")
            rows.append(
                Row(
                    run=clean(run),
                    rank=rank,
                    world_size=int(told.get("world_size", 1)),
                    level=clean(level),
                    badness=badness_of(level),
                    is_speaker=rank == told.get("speaker"),
                    lines=lines_of(of),
                    step=int(of.get("step", -1)),
                    scales=tuple(_column(of, columns, "scale")),
                    losses=tuple(_column(of, columns, "loss")),
                    step_seconds=next((s for s in reversed(seconds) if s is not None), math.nan),
                    step_line=clean(of.get("phases", {}).get("line", "")),
                    figures=tuple(_figures(of)),
                    gpu=on_gpu.get((run, rank), ""),
                    host=clean(of.get("host", "")),
                    user=clean(of.get("user", "")),
                    process=clean(of.get("state", "")),
                    stories=tuple(_stories(of, rank)),
                )
            )
    return rows


def badness_of(level: str) -> int:
    """Return the place of a level among all; that of a newer daemon which is not known is last."""
    try:
        return Level(level).badness
    except ValueError:
        return len(Level)


def lines_of(of: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Return the four lines of a run or a rank; of an older daemon what they would be made from."""
    told = of.get("headline")
    if isinstance(told, dict):
        state, cause, where, remedy = (
            clean(told.get(name, "")) for name in ("state", "cause", "where", "remedy")
        )
        return state, cause, where, remedy
    level, sentence, advice = (clean(of.get(n, "")) for n in ("level", "sentence", "advice"))
    return level, first_sentence(sentence), "", first_sentence(advice)


def number_of(value: object) -> float | None:
    """Return a number of a state, in which NaN and the infinities are words; ``None`` for none."""
    if isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    return float(value) if isinstance(value, (int, float)) else None


def _figures(of: Mapping[str, Any]) -> Iterable[tuple[str, str, str]]:
    """Yield the figures that are known: a page keeps the place of the others, a terminal need not."""
    for title, (value, note, *more) in of.get("figures", {}).items():
        if not more or more[0]:
            yield clean(title), clean(value), clean(note)


def _column(of: Mapping[str, Any], columns: Mapping[str, int], name: str) -> list[float | None]:
    """Return a column of the course of a rank, in the order of the steps."""
    place = columns.get(name)
    if place is None:
        return []
    rows = sorted(of.get("series", {}).items(), key=lambda item: int(item[0]))
    return [number_of(row[place]) for _, row in rows]


def _gpus(state: Mapping[str, Any]) -> dict[tuple[str, int], str]:
    """Return the GPU of each rank that has one, in a few words."""
    found = {}
    for gpu in state.get("gpus", {}).get("gpus", {}).values():
        words = _gpu(gpu)
        for run, rank, _ in gpu.get("users", ()):
            found[run, rank] = words
    return found


def _gpu(gpu: Mapping[str, Any]) -> str:
    values = gpu.get("values", {})
    busy = values.get("utilization", {}).get("")
    tensor = values.get("tensor_active", {}).get("any")
    used = values.get("memory", {}).get("used")
    heat = values.get("temperature", {}).get("gpu")
    parts = [
        f"{gpu.get('index')}:",
        "" if busy is None else f"{busy:.0%}",
        "" if tensor is None else f"tc {tensor:.0%}",
        "" if used is None else f"{used / GIB:.0f}G",
        "" if heat is None else f"{heat:.0f}C",
        "" if gpu.get("up", True) else "lost",
    ]
    return clean(" ".join(filter(None, parts)))


def _stories(of: Mapping[str, Any], rank: int) -> Iterable[Story]:
    """Yield the findings of a rank as stories: each root with what it explains."""
    findings = of.get("findings", {})
    story: Story | None = None
    for key, depth in of.get("stories", ()):
        if key not in findings:
            continue
        told = findings[key]
        member = Story(_finding(told), [rank], bool(told.get("current", True)))
        if depth and story is not None:
            story.symptoms.append(member)
            continue
        if story is not None:
            yield story
        story = member
    if story is not None:
        yield story


def _finding(told: Mapping[str, Any]) -> Finding:
    try:
        severity = Severity(told.get("severity"))
    except ValueError:  # of a newer daemon
        severity = Severity.WARNING
    numbers = ((name, number_of(v)) for name, v in told.get("evidence", {}).items())
    evidence = {clean(name): value for name, value in numbers if value is not None}

    def word(name: str) -> str:
        return clean(told.get(name, ""))

    return Finding(
        kind=word("kind"),
        where=word("where"),
        summary=word("summary"),
        kind_advice=word("advice"),
        op=word("op"),
        phase=word("phase"),
        dtype=word("dtype"),
        source=word("source"),
        first_step=int(told.get("first_step", 0)),
        last_step=int(told.get("last_step", 0)),
        count=int(told.get("count", 1)),
        severity=severity,
        evidence=evidence,
        root=bool(told.get("root", True)),
        caused_by=clean(told.get("caused_by", "")),
    )
