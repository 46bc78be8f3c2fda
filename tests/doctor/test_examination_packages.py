"""Results of the doctor about optional packages."""

from __future__ import annotations

from importlib import metadata

import pytest

from ampwatch.doctor.check import State, installed_version
from ampwatch.doctor.examination import page, web_config


def nothing(_distribution: str) -> None:
    return None


def everything(distribution: str) -> str:
    return f"1.2.3-{distribution}"


def test_without_the_extras_it_says_what_is_missing_and_how_to_get_it() -> None:
    """Absent, which is not a problem."""
    checks = [*page(nothing, dict), *web_config(nothing)]

    assert [check.state for check in checks] == [State.ABSENT] * 4
    assert [check.remedy for check in checks] == [
        "pip install 'ampwatch[ui]'",
        "pip install 'ampwatch[ui]'",
        "pip install 'ampwatch[web]'",
        "pip install 'ampwatch[web]'",
    ]


def test_with_the_extras_it_tells_their_versions() -> None:
    """Plotly's where its script is there to be served."""
    checks = [*page(everything, lambda: {"/static/plotly.min.js"}), *web_config(everything)]

    assert [check.state for check in checks] == [State.OK] * 4
    for check, package in zip(checks, ("plotly", "rich", "pyyaml", "bcrypt"), strict=True):
        assert f"1.2.3-{package}" in check.why


def test_a_plotly_without_its_script_draws_nothing() -> None:
    """Some distributions cut it out."""
    charts, _ = page(everything, dict)

    assert charts.state is State.ABSENT
    assert "without plotly.min.js" in charts.why


@pytest.mark.parametrize("distribution", ["prometheus-client", "no-such-distribution-here"])
def test_versions_are_those_of_this_environment(distribution: str) -> None:
    """None for what is not there."""
    there = {d.metadata["Name"].replace("_", "-") for d in metadata.distributions()}

    assert (installed_version(distribution) is not None) == (distribution in there)
