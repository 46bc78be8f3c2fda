"""The ranks in a state of the daemon, one row each, in words that move no cursor.

The state may be that of another release, and its names and messages are those of any program: what
is missing is left out, and what is not printable is written as what it is.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ampwatch.report.accounts import first_sentence
from ampwatch.report.one_line import printable
from ampwatch.report.stories import Story
from ampwatch.report.verdict import Level
from ampwatch.report.words import plain
from ampwatch.wire.records import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Mapping

    Data = Mapping[str, Any]
    """A state, or what it has of something."""

    Course = list[float | None]

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Row:
    """One rank.

    Attributes:
        run: Name of its run.
        rank: Global rank.
        data: What the state has of it.
        world_size: Ranks of the run.
        is_speaker: The run's verdict is about this rank.
        courses: Of its newest spans of steps the ``scale``, the ``loss`` and the ``seconds`` of a
            step; ``None`` where that is not known.
        gpu: The GPU it computes on, in a few words; empty if that is not known.
    """

    run: str
    rank: int
    data: Data
    world_size: int
    is_speaker: bool
    courses: Mapping[str, Course]
    gpu: str

    @property
    def identity(self) -> tuple[str, int]:
        """Run and rank, by which it is known from one state to the next."""
        return self.run, self.rank

    @property
    def name(self) -> str:
        """Its run, and which rank of several it is."""
        return self.run if self.world_size <= 1 else f"{self.run} rank {self.rank}"

    @property
    def level(self) -> str:
        """How it goes, in a word."""
        return str(self.data.get("level", ""))

    @property
    def step(self) -> int:
        """Its newest step; -1 before the first."""
        return int(self.data.get("step", -1))

    @property
    def figures(self) -> dict[str, tuple[str, str]]:
        """What describes it right now: by title value and note, without what is not known yet."""
        every = self.data.get("figures", {}).items()
        return {title: (value, note) for title, (value, note, *known) in every if all(known)}

    def stories(self) -> list[Story]:
        """Return its findings, as the page orders them: each root with what it explains."""
        found: list[Story] = []
        for key, depth in self.data.get("stories", ()):
            if (data := self.data["findings"].get(key)) is None:
                continue
            story = Story(_finding(data), [self.rank], bool(data.get("current", True)))
            (found[-1].symptoms if depth and found else found).append(story)
        return found


def rows_of(state: Data) -> list[Row]:
    """Return a row for each rank of a state of the daemon, whose strings are ``cleaned``."""
    gpus = state.get("gpus", {}).get("gpus", {}).values()
    on_gpu = {(run, rank): _gpu(gpu) for gpu in gpus for run, rank, _ in gpu.get("users", ())}
    rows = []
    for run, of_run in state["runs"].items():
        for number, data in of_run.get("ranks", {}).items():
            columns = state.get("columns", [])
            rows.append(
                Row(
                    run=run,
                    rank=int(number),
                    data=data | {"links": of_run.get("links", {})},
                    world_size=int(of_run.get("world_size", 1)),
                    is_speaker=int(number) == of_run.get("speaker"),
                    courses={n: _course(data, columns, n) for n in ("scale", "loss", "seconds")},
                    gpu=on_gpu.get((run, int(number)), ""),
                )
            )
    return rows


def cleaned(value: Any) -> Any:
    """Return a state whose strings, names included, move no cursor and take no colour."""
    if isinstance(value, str):
        return _clean(value)
    if isinstance(value, dict):
        return {cleaned(name): cleaned(each) for name, each in value.items()}
    # Most of a state are the rows of courses: what begins with a number has no text.
    if isinstance(value, list) and not (value and isinstance(value[0], (int, float))):
        return [cleaned(each) for each in value]
    return value


@lru_cache(maxsize=8192)  # ranks mostly say the same, and say it again each second
def _clean(text: str) -> str:
    # Plain first: to split(), the narrow spaces between digits are spaces as well.
    return printable(" ".join(plain(text).split()))


def badness_of(level: str) -> int:
    """Return the place of a level among all; that of a newer daemon which is not known is last."""
    return next((known.badness for known in Level if known.value == level), len(Level))


def headline_of(data: Data) -> tuple[str, str, str, str]:
    """Return state, cause, place and remedy of a run or a rank; an older daemon has sentences."""
    level, sentence, advice = (str(data.get(n, "")) for n in ("level", "sentence", "advice"))
    older = {"state": level, "cause": first_sentence(sentence), "remedy": first_sentence(advice)}
    headline = data.get("headline", older)
    state, cause, where, remedy = (
        str(headline.get(name, "")) for name in ("state", "cause", "where", "remedy")
    )
    return state, cause, where, remedy


def newest(values: Course) -> float | None:
    """Return the last value that is known."""
    return next((value for value in reversed(values) if value is not None), None)


def _course(data: Data, columns: list[str], name: str) -> Course:
    """Return a column of the course of a rank, in the order of the steps."""
    if name not in columns:
        return []
    rows = sorted(data.get("series", {}).items(), key=lambda item: int(item[0]))
    return [_number(row[columns.index(name)]) for _, row in rows]


def _number(value: Any) -> float | None:
    """Return a number of a state, in which NaN and the infinities are words; ``None`` for none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _gpu(gpu: Data) -> str:
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
    return " ".join(filter(None, parts))


def _finding(data: Data) -> Finding:
    known = {field.name: data[field.name] for field in fields(Finding) if field.name in data}
    known.pop("tried", None)  # the advice says it
    known["kind_advice"] = data.get("advice", "")
    numbers = {name: _number(value) for name, value in data.get("evidence", {}).items()}
    is_known = data.get("severity") in {severity.value for severity in Severity}
    known["severity"] = Severity(data["severity"]) if is_known else Severity.WARNING  # a newer one
    known["evidence"] = {name: value for name, value in numbers.items() if value is not None}
    return Finding(**known)
