"""Results of the doctor about optional packages."""

from __future__ import annotations

from ampwatch.doctor.check import State
from ampwatch.doctor.examination import terminal, web_config


def nothing(_distribution: str) -> None:
    return None


def everything(distribution: str) -> str:
    return f"1.2.3-{distribution}"


def test_without_the_extras_it_says_what_is_missing_and_how_to_get_it() -> None:
    """Absent, which is not a problem."""
    checks = [*terminal(nothing), *web_config(nothing)]

    assert [check.state for check in checks] == [State.ABSENT] * 3
    assert [check.remedy for check in checks] == [
        "pip install 'ampwatch[ui]'",
        "pip install 'ampwatch[web]'",
        "pip install 'ampwatch[web]'",
    ]


def test_with_the_extras_it_tells_their_versions() -> None:
    """The number of each."""
    checks = [*terminal(everything), *web_config(everything)]

    assert [check.state for check in checks] == [State.OK] * 3
    for check, package in zip(checks, ("rich", "pyyaml", "bcrypt"), strict=True):
        assert f"1.2.3-{package}" in check.why
