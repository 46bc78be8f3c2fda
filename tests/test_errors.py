"""Tests of the exception tree."""

import pytest

import ampwatch
from ampwatch import errors
from ampwatch.errors import AmpwatchError

TREE = {
    "SettingsError": ValueError,
    "AttachError": TypeError,
    "StateError": RuntimeError,
    "RingError": OSError,
    "DaemonError": RuntimeError,
    "AskError": RuntimeError,
    "StopTraining": RuntimeError,
    "ReportError": OSError,
    "GrafanaError": RuntimeError,
    "DeployError": OSError,
    "DiffError": OSError,
}


@pytest.mark.parametrize(("name", "builtin"), TREE.items())
def test_an_error_is_caught_as_ours_and_as_the_builtin(name: str, builtin: type[Exception]) -> None:
    """``except AmpwatchError`` and ordinary code that knows nothing of ampwatch both catch it."""
    error = getattr(errors, name)("expected a, got b; do c")

    assert isinstance(error, AmpwatchError)
    assert isinstance(error, builtin)
    assert str(error) == "expected a, got b; do c"


def test_every_error_is_public_and_has_its_place_in_the_tree() -> None:
    """Whatever ampwatch raises can be caught by a name in ``ampwatch``."""
    defined = {name for name, thing in vars(errors).items() if isinstance(thing, type)}

    assert defined == {"AmpwatchError", *TREE}
    assert defined <= set(dir(ampwatch))
