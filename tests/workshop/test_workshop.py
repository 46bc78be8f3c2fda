"""Tests of the workshop: it alone builds records, and what it keeps of a compiler is used."""

from __future__ import annotations

import os
import re
import shutil
import typing
from pathlib import Path

import pytest

from ampwatch.diagnosis.evidence.iteration import Iteration
from ampwatch.training.kernels import native
from ampwatch.wire.records import KernelRow, OpRow, Record, RunIdentity
from tests.workshop.compiler import put_in_front

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
KINDS: tuple[type[Record], ...] = typing.get_args(Record)

ENVELOPES = {"FactsRecord", "FindingRecord", "EndRecord"}
"""Records that are one value in a wrapping, or two: a builder would say no more."""

BUILT = {kind.__name__ for kind in (*KINDS, RunIdentity, Iteration, OpRow, KernelRow)} - ENVELOPES
"""Types with many fields, whose constructors are called in the workshop only."""


def test_a_field_that_is_added_is_added_in_one_place() -> None:
    """No other test or benchmark spells a constructor that would then miss an argument."""
    call = re.compile(rf"\b({'|'.join(sorted(BUILT))})\(")
    files = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("benchmarks/**/*.py")]
    spelled = {
        f"{file.relative_to(ROOT)}: {match[1]}"
        for file in files
        if HERE not in file.parents
        for match in call.finditer(file.read_text(encoding="utf-8"))
    }

    assert len(files) > 100
    assert spelled == set()


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler on this machine")
def test_what_ampwatch_compiles_is_compiled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second time it is a copy of what was kept, and so as broken as that."""
    monkeypatch.setenv("PATH", os.environ["PATH"])  # as it is, to be so again after the test
    put_in_front(tmp_path / "compiled")

    assert native.load() is not None
    (kept,) = [file for file in (tmp_path / "compiled").iterdir() if file.name != "cc"]
    kept.write_bytes(b"")
    assert native.load() is None
