"""A panel is one place in ``dashboards/source``: built, linted and checked like all others."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

if sys.version_info < (3, 11):
    pytest.skip(
        "the dashboards are built with Python 3.11 or newer: grafana-foundation-sdk wants it",
        allow_module_level=True,
    )

from dashboards.source import __main__ as program
from dashboards.source import layers
from dashboards.source.fields import described
from dashboards.source.panels import Stat
from dashboards.source.queries import Query, of
from tests.dashboards.conventions import problems as breaches
from tests.dashboards.documents import drawn, expressions, load
from tests.dashboards.linter import lint
from tests.dashboards.names import Names

if TYPE_CHECKING:
    from pathlib import Path

TITLE = "Modules with series"
FILE = "ampwatch-layers.json"
COUNT = f"max(count by (run, rank) ({of('ampwatch_module_gradient_amax')}))"


def panel(expression: str = "", unit: str = "short") -> Stat:
    """Return a panel as a row of ``dashboards/source`` has it."""
    return Stat(
        id=699,
        title=TITLE,
        description=described(
            shows="Modules that have series of their own; most of any rank.",
            good="as many as the model has, or the setting allows.",
            act="raise AMPWATCH_MODULE_SERIES.",
            metrics=["ampwatch_module_gradient_amax"],
        ),
        unit=unit,
        no_value="No run was chosen",
        queries=(Query(expression or COUNT, instant=True),),
        width=6,
    )


def built(directory: Path, monkeypatch: pytest.MonkeyPatch, new: Stat) -> dict[str, Any]:
    """Return the dashboard Layers, as it is written with ``new`` at the end of its last row."""
    row = layers.trust
    monkeypatch.setattr(layers, "trust", lambda: (*row(), new))
    monkeypatch.setattr(program, "DIRECTORY", directory)
    monkeypatch.setattr(sys, "argv", ["dashboards"])
    assert program.main() == 0
    return load(directory / FILE)


def name_problems(dashboard: dict[str, Any]) -> list[str]:
    names = Names()
    return [
        problem
        for expression in expressions(dashboard)
        if TITLE in expression.where
        for problem in names.problems(expression.text, expression.legend)
    ]


def test_it_is_built_into_its_dashboard_and_nothing_else_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the place that is free, and the text and the query that it was given."""
    before = {file.name: file.read_text() for file in program.DIRECTORY.glob("*.json")}

    dashboard = built(tmp_path, monkeypatch, panel())

    (new,) = [shown for shown in drawn(dashboard) if shown["title"] == TITLE]
    assert new["id"] == 699
    assert new["gridPos"]["w"] == 6
    (target,) = new["targets"]
    everywhere = 'job=~"$job", instance=~"$instance", run=~"$run", rank=~"$rank"'
    gradients = f"ampwatch_module_gradient_amax{{{everywhere}}}"
    count = f"max(count by (run, rank) ({gradients}))"
    assert target["expr"] == f"({count}) and last_over_time(({count})[1s:1s] @ end())"
    others = [shown for shown in drawn(dashboard) if shown["title"] != TITLE]
    assert others == drawn(json.loads(before[FILE]))
    for name in before.keys() - {FILE}:
        assert (tmp_path / name).read_text() == before[name]


def test_a_file_with_it_is_stale_once_the_source_lacks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check names the file, and no other."""
    built(tmp_path, monkeypatch, panel())
    monkeypatch.undo()

    assert list(program.differences(tmp_path)) == [FILE]


def test_linter_conventions_and_names_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is wrong with it as it is."""
    dashboard = built(tmp_path, monkeypatch, panel())

    assert (lint(dashboard), breaches(dashboard), name_problems(dashboard)) == ([], [], [])


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ('max(ampwatch_colour{job=~"$job", instance=~"$instance"})', "no such metric"),
        ('max(ampwatch_loss{job=~"$job", instance=~"$instance", colour="x"})', "has no label"),
        ('max(ampwatch_run_state{job=~"$job", instance=~"$instance", state="blue"})', "is never"),
    ],
)
def test_a_name_that_is_not_exported_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expression: str, problem: str
) -> None:
    """A metric, a label, a value."""
    (told,) = name_problems(built(tmp_path, monkeypatch, panel(expression)))

    assert problem in told


def test_a_mistake_in_it_is_one_of_the_linter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit that Grafana does not know, and a counter without a rate."""
    bare = 'sum(ampwatch_steps_total{job=~"$job", instance=~"$instance"})'
    dashboard = built(tmp_path, monkeypatch, panel(bare, unit="smoots"))

    told = [str(problem) for problem in lint(dashboard)]

    assert len(told) >= 2
    assert all(TITLE in text for text in told)
