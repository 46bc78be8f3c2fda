"""A new kind of finding: its row and a page. No more."""

from __future__ import annotations

import filecmp
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ampwatch.diagnosis.kinds.registry import KINDS

pytestmark = pytest.mark.nightly

REPOSITORY = Path(__file__).parents[2]

ROW = """

LOSS_IS_ZERO = Kind(
    slug="loss_is_zero",
    number={number},
    family=KindFamily.NOT_AMP,
    meaning="there is nothing left to learn from",
    severities=(Severity.INFO,),
    certainty=certain("the loss was read in one step"),
    advice="Look at the labels.",
    explained_by=since("unscaled_step"),
)
"""


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the repository, as far as it knows kinds."""
    for name in ("ampwatch", "docs"):
        shutil.copytree(
            REPOSITORY / name,
            tmp_path / name,
            ignore=shutil.ignore_patterns("__pycache__", "*.png"),
        )
    shutil.copy(REPOSITORY / "README.md", tmp_path)
    return tmp_path


def _python(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def _add_kind(place: Path) -> None:
    """Do what CONTRIBUTING says."""
    with (place / "ampwatch/diagnosis/state/kinds.py").open("a") as kinds:
        kinds.write(ROW.format(number=len(KINDS)))
    (place / "docs/diagnoses/loss_is_zero.md").write_text("# loss_is_zero\n")


def _changed(place: Path) -> set[str]:
    """Return the files of the copy that are not those of the repository."""
    return {
        str(file.relative_to(place))
        for file in place.rglob("*")
        if file.is_file()
        and not (
            (known := REPOSITORY / file.relative_to(place)).exists()
            and filecmp.cmp(file, known, shallow=False)
        )
    }


def test_a_new_kind_takes_two_places_and_the_generator(copied: Path) -> None:
    """The tables are generated; until they are, the check says so."""
    before = _python(copied, "-m", "ampwatch.diagnosis.kinds", "--check")
    _add_kind(copied)
    by_hand = _changed(copied)
    stale = _python(copied, "-m", "ampwatch.diagnosis.kinds", "--check")
    written = _python(copied, "-m", "ampwatch.diagnosis.kinds")
    after = _python(copied, "-m", "ampwatch.diagnosis.kinds", "--check")

    assert len(by_hand) == 2
    assert [run.returncode for run in (before, stale, written, after)] == [0, 1, 0, 0]
    assert "docs/diagnoses/README.md as generated" in stale.stderr
    assert _changed(copied) - by_hand == {"README.md", "docs/diagnoses/README.md"}
    index = (copied / "docs/diagnoses/README.md").read_text()
    assert "| [`loss_is_zero`](loss_is_zero.md) | there is nothing left to learn from |" in index
    line = "- [Not caused by mixed precision](docs/diagnoses/README.md#not-amp): "
    lines = {
        place: (place / "README.md").read_text().split(line)[1] for place in (REPOSITORY, copied)
    }
    assert lines[REPOSITORY].splitlines()[0].endswith(", and 2 more")
    assert lines[copied].splitlines()[0].endswith(", and 3 more")


def test_a_kind_whose_row_does_not_fit_is_refused_at_once(copied: Path) -> None:
    """A number may be another kind's, or a kind be explained by one that nobody makes."""
    _add_kind(copied)
    detector = copied / "ampwatch/diagnosis/state/kinds.py"
    row = detector.read_text()

    detector.write_text(row.replace(f"number={len(KINDS)}", "number=3"))
    twice = _python(copied, "-m", "ampwatch.diagnosis.kinds", "--check")
    detector.write_text(row.replace('since("unscaled_step")', 'since("unscald_step")'))
    misspelt = _python(copied, "-m", "ampwatch.diagnosis.kinds", "--check")

    assert "expected numbers 0 to" in twice.stderr
    assert "unscald_step" in misspelt.stderr
