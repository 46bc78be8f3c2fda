"""Tests of the workshop: it alone builds records, and what it keeps of a compiler is used."""

from __future__ import annotations

import re
import typing
from pathlib import Path

from ampwatch.diagnosis.evidence.iteration import Iteration
from ampwatch.wire.records import KernelRow, OpRow, Record, RunIdentity

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
