"""Exceptions of ampwatch. Set-up and the command line raise them; a training step never does.

The exception is ``StopTraining``, which ``actions.stop()`` raises on request.

The tree, each class also a built-in so that ordinary ``except`` clauses work::

    AmpwatchError
    ├── SettingsError   (ValueError)    a setting or an AMPWATCH_* variable is not valid
    ├── AttachError     (TypeError)     monitor() cannot watch an argument
    ├── StateError      (RuntimeError)  the monitor is closed, or there is no memory
    ├── RingError       (OSError)       a ring file cannot be created or read
    ├── DaemonError     (RuntimeError)  the daemon cannot start, or cannot serve as configured
    ├── AskError        (RuntimeError)  a running training did not answer a request
    ├── StopTraining    (RuntimeError)  actions.stop() ends the training at a finding
    ├── ReportError     (OSError)       a report cannot be found, read or written
    ├── DiffError       (OSError)       two runs cannot be compared
    ├── DeployError     (OSError)       the files of a deployment cannot be read or written
    └── GrafanaError    (RuntimeError)  Grafana cannot be reached, or refuses a request

A message says what happened, then what was done about it, then what to do. Where an argument or a setting
is wrong it says what was expected and what was given.
"""

from __future__ import annotations

import errno
import typing
from difflib import get_close_matches

if typing.TYPE_CHECKING:
    from collections.abc import Iterable


def did_you_mean(
    given: object, known: Iterable[str], otherwise: str = "", *, prefix: str = "", most: int = 1
) -> str:
    """Return the end of a message about a name that is not known: ``; did you mean 'x' or 'y'?``.

    Args:
        given: The name, in whatever case.
        known: Names there are.
        otherwise: What the message ends with where none is near, without a semicolon.
        prefix: Begins each of the names, and makes none of them more alike.
        most: Names that are offered, those that are nearest first.
    """
    by_lower = {name.removeprefix(prefix).lower(): name for name in known}
    near = get_close_matches(str(given).removeprefix(prefix).lower(), by_lower, n=most)
    if near:
        return f"; did you mean {' or '.join(repr(by_lower[name]) for name in near)}?"
    return f"; {otherwise}" if otherwise else ""


LIMITS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EFBIG)
"""What the kernel says where a process has come to a limit, and another place would not help."""

RAISE_THE_LIMIT = "raise the limit of this process that was met (`ulimit -a` lists them)"


def remedy_of(error: OSError, otherwise: str) -> str:
    """Return what to do: ``otherwise``, unless a limit of the process was met."""
    return RAISE_THE_LIMIT if error.errno in LIMITS else otherwise


class AmpwatchError(Exception):
    """Base of all exceptions that ampwatch raises."""


class SettingsError(AmpwatchError, ValueError):
    """A keyword setting or an ``AMPWATCH_*`` environment variable is not valid."""


class AttachError(AmpwatchError, TypeError):
    """An argument of ``ampwatch.monitor`` cannot be watched."""


class StateError(AmpwatchError, RuntimeError):
    """The call is valid, but not now: the monitor is closed, or there is no memory."""


CLOSED = "expected an open monitor, got one that is closed; call ampwatch.monitor() again"


class RingError(AmpwatchError, OSError):
    """A ring file cannot be created, opened or read.

    Attributes:
        writer_lives: Whether the writer of a ring of another release lives; ``None`` for any other file.
    """

    writer_lives: bool | None = None


class DaemonError(AmpwatchError, RuntimeError):
    """The daemon cannot start, or cannot serve as it was configured."""


class AskError(AmpwatchError, RuntimeError):
    """A running training did not return what was requested: a trace, an error budget, a precision plan."""


class StopTraining(AmpwatchError, RuntimeError):  # noqa: N818 - like StopIteration, it asks for an end
    """A finding has ended the training, as ``ampwatch.actions.stop()`` requests.

    Attributes:
        finding: The ``ampwatch.Finding``; ``None`` if there is only a message.
        step: The iteration that has just closed, -1 if unknown.
    """

    # Any, for records stand above errors.
    def __init__(self, finding: typing.Any, step: int = -1) -> None:
        super().__init__(finding if isinstance(finding, str) else _text_of(finding))
        self.finding = None if isinstance(finding, str) else finding
        self.step = step


def _text_of(finding: typing.Any) -> str:
    return (
        "ampwatch.actions.stop() ends the training at this finding:"
        f" {finding.kind}: {finding.summary}. {finding.advice}"
    )


class ReportError(AmpwatchError, OSError):
    """The report of a run cannot be found, read or written."""


class DiffError(AmpwatchError, OSError):
    """A tape, or the one to compare it with, cannot be found, read or compared."""


class DeployError(AmpwatchError, OSError):
    """The files of a deployment cannot be read, or cannot be written to the directory given."""


class GrafanaError(AmpwatchError, RuntimeError):
    """Grafana cannot be reached, or refuses a request. The message never holds the token."""
