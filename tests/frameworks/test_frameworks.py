"""Each framework's program, bare and watched in two ways, healthy and with two faults.

What is found is compared with ``results/``, which docs/support.md is made of: a cell may not become
worse. ``make test-frameworks`` runs the rows of CI, ``ARGS=--all`` all of them, ``ARGS=--write``
writes down what was found.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import sys
from pathlib import Path

import pytest

from tests.frameworks.environments import ENVIRONMENTS, Environment, Where
from tests.frameworks.judging import NO, PARTLY, YES, Cell, judge
from tests.frameworks.results import Result, read, write
from tests.frameworks.running import Fault, Outcome, Runner, Start, Way, has, run_forks

RANKS = {NO: 0, PARTLY: 1, YES: 2}
STEPS = 44
"""As in programs/shared.py."""


@pytest.mark.nightly
@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda row: row.name)
def test_what_the_support_matrix_says_of(
    environment: Environment, python: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """No cell of the matrix is worse than it says."""
    if environment.where is not Where.CI and not request.config.getoption("--all"):
        pytest.skip("is not among the rows that CI runs: make test-frameworks ARGS=--all")
    if not has(python, environment.needs):
        pytest.fail(f"expected {', '.join(environment.needs)} in the environment of {python}")
    runner = Runner(python, tmp_path)
    with runner.daemon() as daemon:
        forked = [(way, fault) for way in (Way.BARE, Way.EDIT) for fault in Fault]
        outcomes = dict(zip(forked, runner.run_all(environment, forked, daemon), strict=True))
        bare = {fault: outcomes[Way.BARE, fault] for fault in Fault}
        for fault, outcome in bare.items():
            assert outcome.code == 0, f"bare, {fault}: {outcome.stderr}"
            assert len(outcome.ranks) == environment.ranks
            assert all(len(rank["scales"]) >= STEPS for rank in outcome.ranks), outcome.stdout
            differs = outcome.ranks[0]["weights"] != bare[Fault.NONE].ranks[0]["weights"]
            assert differs is bool(fault.value), "the fault was planted"
        watched = {
            Way.EDIT: {fault: outcomes[Way.EDIT, fault] for fault in Fault},
            Way.ZERO: {fault: runner.run(environment, Way.ZERO, fault, daemon) for fault in Fault},
        }
    leftovers = runner.leftovers()
    found = {
        way.value: judge(bare, outcomes, leftovers, environment.truths, environment.dtypes)
        for way, outcomes in watched.items()
    }
    if request.config.getoption("--write"):
        today = dt.datetime.now(tz=dt.timezone.utc).date().isoformat()
        write(environment.name, Result(today, _versions(bare[Fault.NONE]), found))
    worse = _worse(environment, found)
    assert not worse, "\n".join([*worse, *_words(watched)])


def test_a_program_that_cannot_import_its_framework_fails(tmp_path: Path) -> None:
    """A framework that is found and broken, or gone since, is no row of the matrix and nothing to skip."""
    program = tmp_path / "program.py"
    program.write_text("import no_framework_of_this_name")

    with pytest.raises(AssertionError, match="no_framework_of_this_name"):
        run_forks([sys.executable, str(program)], [Start((), dict(os.environ))])


def _versions(outcome: Outcome) -> dict[str, str]:
    """Return the versions without what tells builds of one version apart."""
    versions = outcome.ranks[0]["versions"].items()
    return {package: re.sub(r"\+.*", "", version) for package, version in versions}


def _worse(environment: Environment, found: dict[str, dict[str, Cell]]) -> list[str]:
    """Return a sentence for each cell that is worse than what is written down."""
    said = read(environment.name)
    assert said is not None, "expected results, found none; run: make test-frameworks ARGS=--write"
    return [
        f"{way}, {column}: expected {said.ways[way][column].answer}, found {cell.answer}: {cell.note}"
        for way, cells in found.items()
        for column, cell in cells.items()
        if RANKS[cell.answer] < RANKS[said.ways[way][column].answer]
    ]


def _words(watched: dict[Way, dict[Fault, Outcome]]) -> list[str]:
    """Return what the programs and ampwatch said, for whoever reads the failure."""
    return [
        f"--- {way.value}, {fault.value or 'healthy'}: {outcome.code}\n{outcome.stderr[-3000:]}"
        for way, outcomes in watched.items()
        for fault, outcome in outcomes.items()
    ]
