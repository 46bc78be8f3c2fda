"""Tests of the exception tree."""

import re

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


def classes() -> dict[str, type]:
    """Return the exception classes that the module really defines."""
    found = {k: v for k, v in vars(errors).items() if isinstance(v, type)}
    return {k: v for k, v in found.items() if k != "AmpwatchError"}


@pytest.mark.parametrize(("name", "builtin"), TREE.items())
def test_an_error_is_caught_as_ours_and_as_the_builtin(name: str, builtin: type[Exception]) -> None:
    """``except AmpwatchError`` and ordinary code that knows nothing of ampwatch both catch it."""
    error = getattr(errors, name)("expected a, got b; do c")

    assert isinstance(error, AmpwatchError)
    assert isinstance(error, builtin)
    assert str(error) == "expected a, got b; do c"


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    """Every class is drawn with its built-in, and nothing is drawn that is not there."""
    drawn = dict(re.findall(r"[├└]── (\w+) +\((\w+)\)", errors.__doc__ or ""))

    assert drawn == {name: builtin.__name__ for name, builtin in TREE.items()}
    assert drawn.keys() == classes().keys()


def test_every_error_is_public() -> None:
    """Whatever ampwatch raises can be caught by a name in ``ampwatch``."""
    assert {"AmpwatchError", *classes()} <= set(ampwatch.__all__)
