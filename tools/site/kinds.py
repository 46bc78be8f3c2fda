"""What the pages of kinds show: what their programs print of the finding, and the remedy as a difference.

``python -m tools.site.kinds`` runs the program of each page of ``docs/diagnoses``, or of those that are named, and writes what is
printed of the page's own kind below it. A remedied program that stands on a page in whole, as an author writes it, becomes its
difference to the program that fails. ``tests/diagnoses`` runs the programs as well, and holds the pages against what they print.
"""

from __future__ import annotations

import difflib
import io
import math
import multiprocessing
import os
import re
import sys
import tempfile
import time
import warnings
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any

import torch

from ampwatch.numerics.units.ops import HALF_DTYPES
from ampwatch.training import session
from ampwatch.training.iteration import governor
from ampwatch.training.iteration.ledger import Clock
from ampwatch.training.model import machine
from ampwatch.training.sensors.time import phases
from tools.cost.code import ROOT
from tools.site.tutorial import parts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

PAGES = sorted(
    page for page in (ROOT / "docs" / "diagnoses").glob("*.md") if page.name != "README.md"
)
PROGRAM = "A program that shows it"
REMEDY = "The remedy"
PICTURES = "docs/images/kinds"
"""Where the pictures of the page are, one a kind; ``tests/diagnoses/pictures.py`` takes them."""
FILE = "train.py"
"""What a reader calls the program: the finding and the difference name it."""

CONTEXT = 2
"""Lines around a change."""

BEGIN = "<!-- printed, written by python -m tools.site.kinds -->"
END = "<!-- printed: end -->"
LAST_PART = "  How sure:"
"""What follows of a finding are terms and numbers."""

_PRINTED = re.compile(
    rf"{re.escape(BEGIN)}\n.*?```text\n(.*?)```\n.*?{re.escape(END)}\n", re.DOTALL
)
_PYTHON = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_DIFF = re.compile(r"^```diff\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@\n")


PLAYED_KINDS = ("input_bound", "step_slower")
"""Kinds that are about time: what their programs print must not depend on how busy the machine is."""

READING_NS = 1_000_000
"""Time that passes with each reading of a played clock: a step of ten events takes 10 ms. Unit: ns."""


class PlayedTime:
    """A clock that a program moves on by sleeping. Unit: ns."""

    def __init__(self) -> None:
        self._now_ns = 10**18

    def __call__(self) -> int:
        """Return the time, later than at the last reading."""
        self._now_ns += READING_NS
        return self._now_ns

    def sleep(self, seconds: float) -> None:
        """Move on by ``seconds``, as ``time.sleep`` does."""
        self._now_ns += round(seconds * 1e9)


def has_program(text: str) -> bool:
    """Return whether a page has a program; the others need a GPU or two processes."""
    return _PYTHON.search(text) is not None


def program_of(text: str, heading: str) -> str:
    """Return the program of a page that fails, or the remedied one.

    Raises:
        ValueError: If there is not exactly one, or the remedy does not fit the program.
    """
    if heading == REMEDY and (found := _DIFF.findall(_section(text, REMEDY))):
        (change,) = found
        return changed(program_of(text, PROGRAM), change)
    (program,) = _PYTHON.findall(_section(text, heading))
    return str(program)


def difference(before: str, after: str) -> str:
    """Return what changes from one program to the other, as ``diff -u`` writes it.

    Lines that are empty in both are empty in it: ``patch`` takes them, and no editor strips them.
    """
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), FILE, FILE, n=CONTEXT, lineterm=""
    )
    return "".join(f"{line.rstrip()}\n" for line in lines)


def changed(program: str, change: str) -> str:
    """Return a program with a difference made to it.

    Raises:
        ValueError: If the difference is that of another program.
    """
    old, new = program.splitlines(keepends=True), []
    at = 0
    for line in change.splitlines(keepends=True)[2:]:
        if hunk := _HUNK.fullmatch(line):
            start = int(hunk[1]) - 1
            new += old[at:start]
            at = start
        elif line.startswith("+"):
            new.append(line[1:])
        else:
            kept = line if line == "\n" else line[1:]
            if at >= len(old) or old[at] != kept:
                msg = (
                    f"expected line {at + 1} of the program to be {kept.rstrip()!r}, as the difference below The remedy has it; write"
                    " the remedied program there in whole, as a Python block, and run: make kinds"
                )
                raise ValueError(msg)
            if line == "\n" or line.startswith(" "):
                new.append(old[at])
            at += 1
    return "".join(new + old[at:])


def even(kind: str, assign: Callable[[object, str, Any], None]) -> None:
    """Have words that depend on the machine, and on how busy it is, be as a page has them.

    Args:
        kind: The page.
        assign: Sets an attribute, as ``setattr`` does.
    """
    dtypes = frozenset() if kind == "cpu_isa_missing" else HALF_DTYPES
    assign(machine, "cpu_dtypes", lambda _=None: dtypes)
    if kind in PLAYED_KINDS:
        # Nobody waits for them: time passes where a program sleeps, and by a bit with each reading.
        played = PlayedTime()
        assign(session, "Clock", lambda: Clock(monotonic_ns=played, unix_ns=played))
        assign(time, "sleep", played.sleep)
    # Whether the thread had to wait for a core depends on what else the machine does.
    assign(phases, "SCHEDSTAT", os.devnull)
    # Into how many pieces a sample is split depends on the time that it takes.
    assign(governor, "WORST_SHARE", math.inf)


def executed(program: str) -> Any:
    """Run a program as a user would, from the top; return its ``watch``."""
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(program, FILE, "exec"), names)  # noqa: S102 - a program of this repository
    return names["watch"]


def printed(said: str, kind: str) -> str:
    """Return what a program has printed of a kind: from its title to how sure it is.

    Raises:
        KeyError: If it has printed nothing of it.
    """
    lines = parts(said)[1][kind].splitlines()
    end = next(place for place, line in enumerate(lines) if line.startswith(LAST_PART)) + 1
    while end < len(lines) and lines[end].startswith("    "):
        end += 1
    return "".join(f"{line}\n" for line in lines[:end])


def shown(text: str) -> str:
    """Return what a page says that its program prints; empty if it says nothing."""
    found = _PRINTED.search(text)
    return found[1] if found else ""


def filled(text: str, block: str) -> str:
    """Return a page with ``block`` below its program, and its remedy as a difference."""
    change = difference(program_of(text, PROGRAM), program_of(text, REMEDY))
    text = re.sub(rf"\n{_PRINTED.pattern}", "", text, flags=re.DOTALL)
    program, remedy = _section(text, PROGRAM), _section(text, REMEDY)
    # In functions, for what a program has is no template.
    says = f"Run as `{FILE}`, it prints this, and the numbers behind it:\n\n```text\n{block}```"
    below = f"\n{BEGIN}\n\n{says}\n\n{_picture(block)}\n\n{END}\n"
    new_program = _PYTHON.sub(lambda it: it[0] + below, program)
    as_change = f"```diff\n{change}```\n"
    new_remedy = _DIFF.sub(lambda _: as_change, _PYTHON.sub(lambda _: as_change, remedy))
    return text.replace(program, new_program).replace(remedy, new_remedy)


def _picture(block: str) -> str:
    kind = block.split()[1]
    return f"![The page then: the headline, and the finding {kind} unfolded](../images/kinds/{kind}.png)"


def _section(text: str, heading: str) -> str:
    return text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0] + "\n"


def _written(page: Path) -> str:
    """Run the program of a page and write the page; return why that was not possible, if so."""
    text = page.read_text(encoding="utf-8")
    torch.set_num_threads(1)
    even(page.stem, setattr)
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as place:
        own = ("AMPWATCH_RUNTIME_DIR", "AMPWATCH_RING_DIR", "XDG_STATE_HOME")
        os.environ |= {"AMPWATCH_PORT": "0"} | dict.fromkeys(own, place)
        try:
            with redirect_stdout(said), redirect_stderr(io.StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                executed(program_of(text, PROGRAM))
            page.write_text(filled(text, printed(said.getvalue(), page.stem)), encoding="utf-8")
        except Exception as error:  # noqa: BLE001 - another page's may run
            return f"{page.stem}: {type(error).__name__}: {error}"
    return ""


def main(names: Sequence[str]) -> int:
    """Write the pages of these kinds, or all of them; return the exit status."""
    chosen = [
        page
        for page in PAGES
        if (not names or page.stem in names) and has_program(page.read_text(encoding="utf-8"))
    ]
    # Each program in a process of its own, as a reader has it, and none loads PyTorch again.
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        failed = list(filter(None, pool.map(_written, chosen, chunksize=1)))
    print("\n".join([*failed, f"{len(chosen) - len(failed)} pages written"]), file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
