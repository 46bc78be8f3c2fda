"""Prints docs/support.md: the support matrix, made from what the tests have found.

Written by ``make docs``; ``make check`` compares.
"""

from __future__ import annotations

import json
import sys

from tests.frameworks.environments import ENVIRONMENTS, RECIPES, Environment
from tests.frameworks.judging import COLUMNS, NO, PARTLY, YES, Cell
from tests.frameworks.results import RESULTS, Result, read

SIGNS = {YES: "yes", PARTLY: "partly", NO: "**no**"}
VERSIONS = RESULTS / "pytorch-versions.json"

HEAD = """\
# Where it works

Generated from what the tests have found (`tests/frameworks/results`): `make test-frameworks ARGS=--write`, then `make docs`.
Each row of the first two tables is [a program](https://github.com/ampwatch/ampwatch/tree/main/tests/frameworks/programs) that trains with that framework. It runs bare,
with one edit, and unedited under `ampwatch run`; each time healthy, with an overflow planted in one module, and with an infinite
gradient planted in one parameter. All of it on a CPU, with float16 and a small model; processes of one training talk over gloo.
The programs train for less than a second, so the budget of samples is lifted for them (`AMPWATCH_OVERHEAD_BUDGET=1`): a cell says what
ampwatch can see there. How soon it looks in a training of your length is in [the first steps](decisions/0051-an-opening-in-advance.md).

| column | a yes means |
| --- | --- |
| names | every module and parameter in series and findings is called as in the `state_dict` of the bare model |
| scale and skips | loss scale, its growths, and skipped steps of every iteration are those that the framework itself counts |
| ops | ops are counted by dtype beyond the first iteration, float16 matmuls among them, on every rank |
| ranges | gradients and outputs are measured on every rank, gradients of each module that has parameters |
| overflow found | every rank names the module, with a kind of finding that fits, and accuses nothing else |
| gradient found | every rank names the parameter, with a kind of finding that fits, and accuses nothing else |
| quiet | nothing but information is said of the healthy training |
| identical | weights and loss scales end bit by bit as without ampwatch, in all three trainings |
| clean exit | exit status 0, no traceback, not a word on stdout, no sensor that failed, no file left in shared memory |

A cell that becomes worse than it stands here fails the tests: in CI, where the row says CI, else by hand, at the date of the row.
"""

ABOUT_TABLES = {
    "edit": "## With one edit\n\nThe edit is in [the last table of programs](#the-edits).",
    "zero edits": "## With no edit\n\n`ampwatch run` in front of the command: [zero-code.md](zero-code.md).",
}


def page() -> str:
    """Return the page."""
    results = {row: read(row.name) for row in ENVIRONMENTS}
    notes: list[str] = []
    parts = [HEAD]
    for way, heading in ABOUT_TABLES.items():
        parts += [heading, "", *_table(way, results, notes), ""]
    if notes:
        parts += ["What is missing:", ""]
        parts += [f"{number}. {note}" for number, note in enumerate(notes, 1)]
        parts.append("")
    parts += _edits(results)
    parts += _pytorch_versions()
    parts += _recipes()
    return "\n".join(parts)


def _table(way: str, results: dict[Environment, Result | None], notes: list[str]) -> list[str]:
    """Return a table of all environments, watched in one way; new notes are appended to ``notes``."""
    lines = [
        f"| environment | {' | '.join(COLUMNS)} | tried |",
        f"| --- |{' --- |' * len(COLUMNS)} --- |",
    ]
    for row, result in results.items():
        if result is None:
            lines.append(f"| {row.title} |{' |' * len(COLUMNS)} not yet |")
            continue
        cells = [_cell(result.ways[way][column], notes) for column in COLUMNS]
        tried = f"{row.where.value}, {result.date}"
        lines.append(f"| {_title(row, result)} | {' | '.join(cells)} | {tried} |")
    return lines


def _title(row: Environment, result: Result) -> str:
    packages = [f"{p} {v}" for p, v in result.versions.items() if p not in ("python", "torch")]
    return f"{row.title} ({', '.join(packages)})" if packages else row.title


def _cell(cell: Cell, notes: list[str]) -> str:
    if not cell.note:
        return SIGNS[cell.answer]
    if cell.note not in notes:
        notes.append(cell.note)
    return f"{SIGNS[cell.answer]} ({notes.index(cell.note) + 1})"


def _edits(results: dict[Environment, Result | None]) -> list[str]:
    lines = ["## The edits", "", "| environment | edit | program | torch | Python |"]
    lines.append("| --- | --- | --- | --- | --- |")
    lines += [
        f"| {row.title} | {row.edit} | `{' '.join(row.program)}`"
        f" | {result.versions['torch'] if result else ''} | {result.versions['python'] if result else ''} |"
        for row, result in results.items()
    ]
    on_cpu = (
        "transformers and accelerate give no float16 to a CPU, so that their programs put a"
        ' `GradScaler("cpu")` in by hand; Lightning takes it as a plugin; DeepSpeed is told that the'
        " CPU can do float16. On a GPU none of that is needed."
    )
    return [*lines, "", on_cpu, ""]


def _pytorch_versions() -> list[str]:
    rows = json.loads(VERSIONS.read_text()) if VERSIONS.exists() else []
    lines = [
        "## Versions of PyTorch",
        "",
        "The whole suite of tests, not the programs above.",
        "",
        "| torch | Python | result | tried |",
        "| --- | --- | --- | --- |",
    ]
    lines += [f"| {r['torch']} | {r['python']} | {r['result']} | {r['tried']} |" for r in rows]
    return [*lines, ""]


UNTRIED = (
    "Nothing of this has been run. It is what the documentation and the source of the others say."
    " Launchers, Ray Train and MONAI, which were run by hand: [recipes](recipes.md)."
)


def _recipes() -> list[str]:
    lines = [
        "## Untried",
        "",
        UNTRIED,
        "",
        "| environment | how |",
        "| --- | --- |",
    ]
    return [*lines, *(f"| {recipe.title} | {recipe.how} |" for recipe in RECIPES), ""]


if __name__ == "__main__":
    sys.stdout.write(page())
