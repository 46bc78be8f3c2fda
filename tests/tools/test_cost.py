"""The tables of what watching costs are of the code that is there, and of what was measured."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import ampwatch
from tests.trainings import build
from tools.cost import code
from tools.cost.__main__ import outdated
from tools.cost.tables import PAGES, TABLES, filled, measured

PACKAGE = Path(ampwatch.__file__).parent


def _files_of(level: str, steps: int = 48) -> set[Path]:
    """Return the files of ampwatch that run while steps are trained, none of which fails."""
    run = build("fp16-foreach")
    run.poison = ()
    watch = ampwatch.monitor(run.models, run.scaler, level=level, serve=False)
    files: set[str] = set()

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            files.add(frame.f_code.co_filename)

    run.steps = steps
    sys.setprofile(note)
    try:
        run.loop()
    finally:
        sys.setprofile(None)
        watch.close()
    return {Path(file) for file in files if Path(file).is_relative_to(PACKAGE)}


@pytest.mark.parametrize(
    "level", ["standard", *(pytest.param(n, marks=pytest.mark.nightly) for n in ("light", "deep"))]
)
def test_a_watched_step_runs_no_file_that_the_digest_leaves_out(level: str) -> None:
    """Whatever a step costs is then in the digest. A finding is put into words once, by other files."""
    ran = _files_of(level)

    assert PACKAGE / "guard.py" in ran
    assert ran <= set(code.sources())


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a few files, a folder of them and one that no step runs, which are all that counts."""
    paths = ("guard.py", "diagnosis/scale", "training/native", "training/launcher.py")
    monkeypatch.setattr(code, "PATHS", tuple(f"ampwatch/{path}" for path in paths))
    for path in code.PATHS:
        source, target = code.ROOT / path, tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("ampwatch/guard.py", "added = 1"),
        ("ampwatch/diagnosis/scale/added.py", "added = 1"),
        ("ampwatch/training/native/histogram.c", "static int added;"),
    ],
)
def test_a_line_of_code_changes_the_digest(copied: Path, file: str, line: str) -> None:
    """In Python and in C, in a file that is there and in a new one."""
    before = code.digest(copied)
    with (copied / file).open("a", encoding="utf-8") as source:
        source.write(f"\n{line}\n")

    assert code.digest(copied) != before


def test_words_do_not_change_the_digest(copied: Path) -> None:
    """Comments of both languages, an empty line, and a file that no step runs."""
    before = code.digest(copied)
    for file, line in {
        "ampwatch/guard.py": "# A comment.",
        "ampwatch/training/native/histogram.c": "/* A comment. */ // Another one.",
        "ampwatch/training/launcher.py": "added = 1",
    }.items():
        with (copied / file).open("a", encoding="utf-8") as source:
            source.write(f"\n\n{line}\n")

    assert code.digest(copied) == before


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('def f(x):\n    """Say this."""\n    return x', "def f(x):\n    return x"),
        ("def f(x: int) -> int:\n    return x  # here", "def f(x):\n\n    return (x)"),
        ('raise ValueError("expected one, got two")', 'raise ValueError("got no one")'),
        ('say(f"step {n} was skipped")', 'say(f"in step {n} it failed")'),
    ],
)
def test_words_of_python_do_not_count(one: str, other: str) -> None:
    """Docstrings, annotations of functions, brackets, and texts for people."""
    assert code.python_code(one) == code.python_code(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x = 1", "x = 2"),
        ("x = 1", "x = 1.0"),
        ("names = {'mul'}", "names = {'mul', 'add'}"),
        ("f(a, b)", "f(b, a)"),
        ("if a: b()", "b()"),
        ("def f(x, y=1): pass", "def f(x, y=2): pass"),
        ("class A:\n    x: int", "class A:\n    x: str"),
    ],
)
def test_what_runs_does_count(one: str, other: str) -> None:
    """Numbers, names of ops, order, conditions, defaults, fields of records."""
    assert code.python_code(one) != code.python_code(other)


def test_what_is_outdated_says_what_to_run() -> None:
    """Of two measurements one is of the code as it is."""
    kept = {
        "bench": {"code": {"digest": "old", "commit": "abc"}},
        "bench-peers": {"code": {"digest": "now", "commit": "def"}},
    }

    (sentence,) = outdated(kept, "now")

    assert "abc" in sentence
    assert sentence.endswith("make bench")


def test_a_page_has_what_was_measured_and_keeps_the_rest() -> None:
    """A number of the file is found in the page; what stands around the comments is untouched."""
    kept = json.loads(json.dumps(measured()))
    kept["bench"]["results"][0]["variants"]["light"]["after"]["own_us"] = 98765.4
    begin, end = "<!-- cost: light, written by python -m tools.cost -->", "<!-- cost: end -->"

    text = filled(f"before\n{begin}\nold\n{end}\nafter\n", kept)

    assert "98765 us" in text
    assert "old" not in text
    assert text.startswith(f"before\n{begin}\n")
    assert text.endswith(f"{end}\nafter\n")


def test_every_table_stands_on_a_page() -> None:
    """And every place on a page has its table."""
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)

    for name in TABLES:
        assert f"<!-- cost: {name}, " in pages
    assert pages.count("<!-- cost: end -->") == pages.count("written by python -m tools.cost -->")
