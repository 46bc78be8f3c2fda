"""The support matrix of docs/support.md, made from what the tests have found.

``python -m tests.frameworks.matrix`` prints the page with it, ``--write`` writes it; ``make check`` compares.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.frameworks.environments import ENVIRONMENTS, RECIPES, Environment
from tests.frameworks.judging import COLUMNS, NO, PARTLY, YES, Cell
from tests.frameworks.results import RESULTS, Result, read

PAGE = Path(__file__).parents[2] / "docs" / "support.md"
BEGIN, END = (
    f"<!-- {word} of what tests/frameworks/matrix.py writes -->" for word in ("begin", "end")
)
SIGNS = {YES: "yes", PARTLY: "partly", NO: "**no**"}
VERSIONS = RESULTS / "pytorch-versions.json"
USUAL_EDIT = "`ampwatch.monitor(model, scaler)` before the loop"


def page() -> str:
    """Return the page with what is generated of it."""
    results = {row: read(row.name) for row in ENVIRONMENTS}
    parts = [*_table(results), "", *_pytorch_versions(), *_recipes()]
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    return "".join([before, begin, "\n\n", "\n".join(parts), "\n", end, after])


def _table(results: dict[Environment, Result | None]) -> list[str]:
    """Return a table of all environments: the edit, and what is not a yes."""
    versions = {(r.versions["torch"], r.versions["python"]) for r in results.values() if r}
    ran = "; ".join(f"torch {torch}, Python {python}" for torch, python in sorted(versions))
    lines = [f"Run with {ran}. An empty edit is {USUAL_EDIT}.", ""]
    lines += ["| environment | edit | all yes, except | tried |", "| --- | --- | --- | --- |"]
    for row, result in results.items():
        edit = "" if row.edit == USUAL_EDIT else row.edit
        if result is None:
            lines.append(f"| {row.title} | {edit} | | not yet |")
            continue
        tried = f"{row.where.value}, {result.date}"
        lines.append(f"| {_title(row, result)} | {edit} | {_exceptions(result)} | {tried} |")
    return lines


def _exceptions(result: Result) -> str:
    """Return the cells that are not a yes, and those that are other ones under ``ampwatch run``."""
    edited, bare = result.ways["edit"], result.ways["zero edits"]
    said = [_cell(c, edited[c]) for c in COLUMNS if edited[c].answer != YES]
    said += [f"under `ampwatch run` {_cell(c, bare[c])}" for c in COLUMNS if bare[c] != edited[c]]
    return "; ".join(said)


def _cell(column: str, cell: Cell) -> str:
    return f"{column} {SIGNS[cell.answer]}" + (f": {cell.note}" if cell.note else "")


def _title(row: Environment, result: Result) -> str:
    packages = [f"{p} {v}" for p, v in result.versions.items() if p not in ("python", "torch")]
    return f"{row.title} ({', '.join(packages)})" if packages else row.title


def _pytorch_versions() -> list[str]:
    rows = json.loads(VERSIONS.read_text()) if VERSIONS.exists() else []
    lines = [
        "### Versions of PyTorch",
        "",
        "The test suite, not the programs above.",
        "",
        "| torch | Python | result | tried |",
        "| --- | --- | --- | --- |",
    ]
    lines += [f"| {r['torch']} | {r['python']} | {r['result']} | {r['tried']} |" for r in rows]
    return [*lines, ""]


def _recipes() -> list[str]:
    lines = ["### Not tried", "", "From the documentation and source of the others:", ""]
    lines += ["| environment | how |", "| --- | --- |"]
    return [*lines, *(f"| {recipe.title} | {recipe.how} |" for recipe in RECIPES), ""]


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        sys.stdout.write(page())
