"""Each page of docs/diagnoses holds a program that has the failure, and its remedy; both are run.

What the program prints stands on the page, and the remedy as a difference: `tools/site/kinds.py` writes both.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import ampwatch
from ampwatch.wire.records import Finding
from tests.diagnoses.pictures import PLACE, sentences_on
from tests.stories.stage import ALARMS
from tools.site import kinds
from tools.site.kinds import PAGES, PROGRAM, REMEDY
from tools.site.tutorial import masked

LONGEST = 40
"""Lines of a program that is still minimal."""

MAX_PICTURE = 60_000
"""Size of a picture. Unit: B."""

pytestmark = [
    pytest.mark.filterwarnings("ignore:Detected call of:UserWarning"),
    pytest.mark.filterwarnings("ignore:User provided device_type of 'cuda':UserWarning"),
    pytest.mark.filterwarnings("ignore:CUDA is not available:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*GradScaler is enabled, but CUDA:UserWarning"),
    pytest.mark.usefixtures("one_thread"),
]

WITH_A_PROGRAM = [page for page in PAGES if kinds.has_program(page.read_text())]
"""The others need a GPU, and say so."""

of_each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
of_each_program = pytest.mark.parametrize("page", WITH_A_PROGRAM, ids=lambda page: page.stem)


@dataclass(frozen=True)
class Promise:
    """Finding that a page says ampwatch makes: its line ``Finding: kind ..., where ..., ...``."""

    kind: str
    where: str
    op: str
    phase: str
    severity: str


@cache
def promise_of(page: Path) -> Promise:
    """Read the line; ``where ""`` is the model itself, and what is left out is not promised."""
    (line,) = re.findall(r"^Finding: (.*?)\.?$", page.read_text(), re.MULTILINE)
    said = dict(part.strip().split(" ", 1) for part in line.replace("`", "").split(", "))
    return Promise(
        said["kind"],
        said.get("where", "").strip('"'),
        said.get("op", ""),
        said.get("phase", ""),
        said.get("severity", ""),
    )


def program_of(page: Path, heading: str) -> str:
    """Return a program of a page: the one that fails, or the remedied one."""
    return kinds.program_of(page.read_text(), heading)


def run(page: Path, heading: str) -> list[Finding]:
    """Run a program of a page; return what ampwatch has found."""
    watch = kinds.executed(program_of(page, heading))
    assert isinstance(watch, ampwatch.Monitor)
    return list(watch.findings)


def places(findings: Sequence[Finding]) -> list[tuple[str, str, str]]:
    """Return what can be read at a glance."""
    return [(f.kind, f.where, f.severity) for f in findings]


@pytest.fixture(autouse=True)
def machine_of_the_page(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words that depend on the machine are as the page has them."""
    page = request.getfixturevalue("page").stem if "page" in request.fixturenames else ""
    kinds.even(page, monkeypatch.setattr)
    if page == "memory_creep":
        # Memory that earlier tests have freed is the process's until it is given back: a program that
        # uses it again does not grow.
        ctypes.CDLL(None).malloc_trim(0)


@pytest.mark.nightly
@of_each_program
def test_the_program_has_the_one_finding_that_its_page_promises(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One root of its kind, at its place, in the op that it names; no other root is an alarm.

    What is printed of it is what the page shows; numbers apart, which another CPU may round otherwise.
    """
    promise = promise_of(page)

    findings = run(page, PROGRAM)

    roots = [f for f in findings if f.root]
    of_kind = [f for f in roots if f.kind == promise.kind]
    assert promise.kind == page.stem
    assert [(f.kind, f.where) for f in of_kind] == [(promise.kind, promise.where)], places(findings)
    assert of_kind[0].op == (promise.op or of_kind[0].op)
    assert of_kind[0].phase == (promise.phase or of_kind[0].phase)
    assert places([f for f in roots if f.severity in ALARMS and f.kind != promise.kind]) == []
    assert of_kind[0].severity == (promise.severity or of_kind[0].severity)
    assert of_kind[0].severity in ALARMS or promise.severity == "info"
    assert of_kind[0].summary
    assert of_kind[0].advice
    now = kinds.printed(capsys.readouterr().out, page.stem)
    assert masked(kinds.shown(page.read_text())) == masked(now), f"run: make kinds ARGS={page.stem}"


@pytest.mark.nightly
@of_each_program
def test_the_program_with_the_remedy_is_left_alone(page: Path) -> None:
    """Neither a warning nor a critical, root or not; nor the kind of the page as an info."""
    findings = run(page, REMEDY)

    assert places([f for f in findings if f.severity in ALARMS]) == []
    assert places([f for f in findings if f.kind == promise_of(page).kind]) == []


@of_each_program
@pytest.mark.parametrize("heading", [PROGRAM, REMEDY])
def test_a_program_of_a_page_is_minimal_and_ends_with_the_report(page: Path, heading: str) -> None:
    """A reader takes it in at a glance, and sees the words when running it."""
    lines = program_of(page, heading).splitlines()

    assert len(lines) < LONGEST
    assert lines[-1] == "print(watch.report())"


@of_each_page
def test_a_page_has_every_section(page: Path) -> None:
    """Whoever comes from an alert finds the same order everywhere."""
    headings = re.findall(r"^## (.*)$", page.read_text(), re.MULTILINE)

    assert headings == [
        "How ampwatch sees it",
        PROGRAM,
        REMEDY,
        "What it is not",
        "How the finding reads",
    ]


@of_each_page
def test_a_page_without_a_program_says_what_it_takes(page: Path) -> None:
    """A reader on a laptop does not look for it."""
    if page not in WITH_A_PROGRAM:
        text = page.read_text()
        assert "It takes a GPU" in text or "It takes two processes" in text


def test_the_list_of_pages_names_each_page() -> None:
    """A page that is not listed is not found."""
    listed = re.findall(r"\]\((\w+)\.md\)", (PAGES[0].parent / "README.md").read_text())

    assert sorted(listed) == [page.stem for page in PAGES]


@pytest.mark.nightly
@of_each_program
def test_the_picture_of_a_page_says_what_the_page_says(page: Path) -> None:
    """Numbers apart, as above; and it is small enough for a page of text."""
    picture = PLACE / f"{page.stem}.png"
    printed = masked(kinds.shown(page.read_text()))

    said = [masked(sentence) for sentence in sentences_on(picture)]

    assert all(said), said
    amiss = [sentence for sentence in said if sentence not in printed]
    assert amiss == [], f"run: make kind-pictures ARGS={page.stem}"
    assert picture.stat().st_size < MAX_PICTURE


@pytest.mark.nightly
def test_there_is_a_picture_of_each_program_and_no_other() -> None:
    """Pages without a program show none."""
    assert {file.stem for file in PLACE.iterdir()} == {page.stem for page in WITH_A_PROGRAM}


@of_each_program
def test_a_page_is_as_it_would_be_written(page: Path) -> None:
    """The remedied program is there as a difference alone, and both blocks are where they belong."""
    text = page.read_text()

    assert kinds.filled(text, kinds.shown(text)) == text, f"run: make kinds ARGS={page.stem}"


BEFORE = "import torch\n\nx = 1\ny = 2\nz = 3\n\nprint(x)\n"
AFTER = "import math\nimport torch\n\nx = 1\nz = 3\n\nprint(x)\nprint(math.pi)\n"


def test_a_difference_makes_the_remedied_program() -> None:
    """Also where lines are empty, at the first line and at the last."""
    change = kinds.difference(BEFORE, AFTER)

    assert kinds.changed(BEFORE, change) == AFTER
    assert not [line for line in change.splitlines() if line != line.rstrip()]
    assert len(change.splitlines()) < len(AFTER.splitlines()) + 8


@pytest.mark.parametrize("other", [BEFORE.replace("2", "4"), BEFORE.replace("y = 2\n", ""), ""])
def test_a_difference_of_another_program_is_refused(other: str) -> None:
    """Whoever changes a program is told how the remedy follows."""
    with pytest.raises(ValueError, match=r"in whole, as a Python block, and run: make kinds"):
        kinds.changed(other, kinds.difference(BEFORE, AFTER))


def page_of(remedy: str) -> str:
    return f"# x\n\n## {PROGRAM}\n\nSo:\n\n```python\n{BEFORE}```\n\n## {REMEDY}\n\nDo:\n\n{remedy}\nMore.\n\n## End\n"


def test_a_remedied_program_that_is_written_in_whole_becomes_a_difference() -> None:
    """An author writes programs; written once more, the page stays as it is."""
    page = page_of(f"```python\n{AFTER}```\n")
    written = kinds.filled(page, "WARNING  x  y\n")

    assert written.count("```python") == 1
    assert kinds.program_of(written, REMEDY) == AFTER
    assert kinds.shown(written) == "WARNING  x  y\n"
    assert kinds.filled(written, "WARNING  x  y\n") == written
    assert written.endswith("\n```\n\nMore.\n\n## End\n")
    assert kinds.shown(page) == ""


def test_of_a_finding_the_page_has_what_comes_before_terms_and_numbers() -> None:
    """And of no other kind than its own."""
    said = (
        "noise\nampwatch report: run r, rank 0, on h\n  6 iterations\n\n"
        "WARNING  x  here\n  It is so.\n  How sure: This\n    and that.\n  It explains: y\n    there\n\n"
        "INFO  z  there\n  It is so.\n  How sure: nothing\n"
    )

    assert kinds.printed(said, "x") == (
        "WARNING  x  here\n  It is so.\n  How sure: This\n    and that.\n"
    )
    assert kinds.printed(said, "z").endswith("nothing\n")
