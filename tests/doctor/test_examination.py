"""The whole examination, and optional packages."""

from __future__ import annotations

from threading import Event

from ampwatch.doctor.check import Check, State
from ampwatch.doctor.examination import examine, is_able, packages, probes
from ampwatch.settings import Settings

GOOD = Check("good", State.OK, "it works")


def broken() -> list[Check]:
    message = "no such thing"
    raise LookupError(message)


def test_a_probe_that_fails_does_not_hide_the_others() -> None:
    """It is a problem of its group, with what was raised."""
    found = examine({"first": broken, "second": lambda: [GOOD]})

    assert found["second"] == [GOOD]
    (check,) = found["first"]
    assert check.state is State.PROBLEM
    assert "LookupError: no such thing" in check.why
    assert is_able(found)


def test_a_probe_that_hangs_is_left_behind() -> None:
    """As one does that asks a driver which has died."""
    answers = Event()

    def hangs() -> list[Check]:
        answers.wait()
        return [GOOD]

    (check,) = examine({"first": hangs}, seconds=0.0)["first"]
    answers.set()

    assert check.state is State.PROBLEM
    assert "did not end" in check.why


def test_every_group_is_probed() -> None:
    """In the order in which a user would ask."""
    assert list(probes(Settings.resolve())) == [
        "training",
        "ring",
        "report",
        "daemon",
        "terminal",
        "GPU",
        "protection",
    ]


def nothing(_distribution: str) -> None:
    return None


def everything(distribution: str) -> str:
    return f"1.2.3-{distribution}"


def test_without_the_extras_it_says_what_is_missing_and_how_to_get_it() -> None:
    """Absent, which is not a problem."""
    checks = [*packages("terminal", nothing), *packages("protection", nothing)]

    assert [check.state for check in checks] == [State.ABSENT] * 3
    assert [check.remedy for check in checks] == [
        "pip install 'ampwatch[ui]'",
        "pip install 'ampwatch[web]'",
        "pip install 'ampwatch[web]'",
    ]


def test_with_the_extras_it_tells_their_versions() -> None:
    """The number of each."""
    checks = [*packages("terminal", everything), *packages("protection", everything)]

    assert [check.state for check in checks] == [State.OK] * 3
    for check, package in zip(checks, ("rich", "pyyaml", "bcrypt"), strict=True):
        assert f"1.2.3-{package}" in check.why
