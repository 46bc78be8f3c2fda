"""Each page of docs/diagnoses holds a program that has the failure, and its remedy; both are run."""

from __future__ import annotations

import math
import re
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import ampwatch
from ampwatch.training.iteration import governor
from ampwatch.training.model import machine
from tests.stories.births import BORN, Birth, Births
from tests.stories.stage import ALARMS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

    from ampwatch.wire.records import Finding

PAGES = sorted(
    page
    for page in (Path(__file__).parents[2] / "docs/diagnoses").glob("*.md")
    if page.name != "README.md"
)
PROGRAM = "A program that shows it"
REMEDY = "The remedy"
LONGEST = 40
"""Lines of a program that is still minimal."""

pytestmark = [
    pytest.mark.filterwarnings("ignore:Detected call of:UserWarning"),
    pytest.mark.filterwarnings("ignore:User provided device_type of 'cuda':UserWarning"),
    pytest.mark.filterwarnings("ignore:CUDA is not available:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*GradScaler is enabled, but CUDA:UserWarning"),
    pytest.mark.usefixtures("one_thread"),
]

WITH_A_PROGRAM = [page for page in PAGES if "```python" in page.read_text()]
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
    """Return the one Python block below a heading."""
    section = page.read_text().split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    (block,) = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return str(block)


def execute(page: Path, heading: str) -> Any:
    """Run a program of a page as a user would, from the top; return its ``watch``."""
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(program_of(page, heading), f"{page.name}: {heading}", "exec"), names)
    return names["watch"]


def run(page: Path, heading: str) -> list[Finding]:
    """Run a program of a page; return what ampwatch has found."""
    watch = execute(page, heading)
    assert isinstance(watch, ampwatch.Monitor)
    return list(watch.findings)


class Unwatched:
    """Stands where a monitor would, and only lists births, by a reference that is slow."""

    def __init__(self, births: Births) -> None:
        self.births = births

    def report(self) -> str:
        return ""


@contextmanager
def unwatched(models: nn.Module | list[nn.Module], *_: Any, **__: Any) -> Iterator[Unwatched]:
    """Stand in for ``ampwatch.monitor``."""
    with Births(models if isinstance(models, list) else [models]) as births:
        yield Unwatched(births)


def places(findings: Sequence[Finding]) -> list[tuple[str, str, str]]:
    """Return what can be read at a glance."""
    return [(f.kind, f.where, f.severity) for f in findings]


@pytest.fixture(autouse=True)
def machine_of_the_page(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words that depend on the machine are as the page has them."""
    # How many pieces a sample is split into depends on how busy this machine is.
    monkeypatch.setattr(governor, "WORST_SHARE", math.inf)
    page = request.getfixturevalue("page").stem if "page" in request.fixturenames else ""
    if page == "cpu_isa_missing":
        monkeypatch.setattr(machine, "cpu_dtypes", lambda _=None: frozenset())


@of_each_program
def test_the_program_has_the_one_finding_that_its_page_promises(page: Path) -> None:
    """One root of its kind, at its place, in the op that it names; no other root is an alarm."""
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


@of_each_program
def test_the_program_with_the_remedy_is_left_alone(page: Path) -> None:
    """Neither a warning nor a critical, root or not; nor the kind of the page as an info."""
    findings = run(page, REMEDY)

    assert places([f for f in findings if f.severity in ALARMS]) == []
    assert places([f for f in findings if f.kind == promise_of(page).kind]) == []


@pytest.mark.parametrize(
    "page", [p for p in WITH_A_PROGRAM if p.stem in BORN], ids=lambda page: page.stem
)
def test_the_failure_of_a_page_is_there_without_ampwatch(
    page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the op and place that the page names; and the remedy takes it away."""
    promise = promise_of(page)
    monkeypatch.setattr(ampwatch, "monitor", unwatched)

    sick = execute(page, PROGRAM).births.seen
    well = execute(page, REMEDY).births.seen

    # What the remedy has as well is taken out by what comes after it.
    first = next(birth for birth in sick if birth not in well)
    assert first.op == (promise.op or first.op)
    if promise.phase in {"forward", "eval"}:
        assert first == Birth(promise.where, first.op, promise.phase)
        assert [birth for birth in well if birth.phase == promise.phase] == []


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
