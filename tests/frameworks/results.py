"""What was found in each environment, a file for each: written by tests, read by the documentation."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tests.frameworks.judging import Cell

RESULTS = Path(__file__).with_name("results")


@dataclass(frozen=True)
class Result:
    """What was found in one environment.

    Attributes:
        date: Day on which it was found.
        versions: Version by package; Python and torch first.
        ways: Cells by column, by way of watching.
    """

    date: str
    versions: dict[str, str]
    ways: dict[str, dict[str, Cell]]


def read(name: str) -> Result | None:
    """Return what was found in that environment; None if nothing is written down."""
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return None
    told = json.loads(path.read_text())
    ways = {
        way: {column: _cell(text) for column, text in cells.items()}
        for way, cells in told["ways"].items()
    }
    return Result(told["date"], told["versions"], ways)


def write(name: str, result: Result) -> None:
    """Write down what was found in that environment."""
    RESULTS.mkdir(exist_ok=True)
    ways = {
        way: {column: _text(cell) for column, cell in cells.items()}
        for way, cells in result.ways.items()
    }
    told = {"date": result.date, "versions": result.versions, "ways": ways}
    (RESULTS / f"{name}.json").write_text(json.dumps(told, indent=1) + "\n")


def _text(cell: Cell) -> str:
    return f"{cell.answer}: {cell.note}" if cell.note else cell.answer


def _cell(text: str) -> Cell:
    answer, _, note = text.partition(": ")
    return Cell(answer, note)
