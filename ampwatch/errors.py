"""Exceptions of ampwatch, raised at set-up or by the command line and never in a training step.

But for one, which is for those who ask for it: ``StopTraining``.

The tree, each class also a built-in so that ordinary ``except`` clauses work::

    AmpwatchError
    ├── SettingsError   (ValueError)    a setting or an AMPWATCH_* variable is not usable
    ├── AttachError     (TypeError)     what was handed to monitor() cannot be watched
    ├── StateError      (RuntimeError)  right call, wrong moment: the monitor is closed, or there is no memory
    ├── RingError       (OSError)       a ring file cannot be created or understood
    ├── DaemonError     (RuntimeError)  the daemon cannot start or keep its promises
    ├── AskError        (RuntimeError)  what was asked of a training cannot be had
    ├── StopTraining    (RuntimeError)  actions.stop() was asked for, and there is a finding
    ├── ReportError     (OSError)       a report cannot be found, read or written
    ├── DiffError       (OSError)       two runs cannot be held against each other
    ├── DeployError     (OSError)       what is to be deployed cannot be had or written
    └── GrafanaError    (RuntimeError)  Grafana is not reached, or does not do what it was asked

Every message says what was expected, what was given and what to do.
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
    """Base of everything ampwatch raises on purpose."""


class SettingsError(AmpwatchError, ValueError):
    """A keyword setting or an ``AMPWATCH_*`` environment variable is not usable."""


class AttachError(AmpwatchError, TypeError):
    """An object handed to ``ampwatch.monitor`` cannot be watched."""


class StateError(AmpwatchError, RuntimeError):
    """The call is right but comes at the wrong moment."""


CLOSED = "expected an open monitor, got one that is closed; call ampwatch.monitor() again"


class RingError(AmpwatchError, OSError):
    """A ring file cannot be created, opened or understood."""


class DaemonError(AmpwatchError, RuntimeError):
    """The daemon cannot start, or could not keep a promise it was configured to keep."""


class AskError(AmpwatchError, RuntimeError):
    """What a running training was asked for cannot be had: a trace, an error budget, a precision plan."""


class StopTraining(AmpwatchError, RuntimeError):  # noqa: N818 - like StopIteration, it asks for an end
    """A finding has ended the training, as ``ampwatch.actions.stop()`` was asked to.

    Attributes:
        finding: The ``ampwatch.Finding``; ``None`` if there is only a message.
        step: The iteration that has just closed, -1 if unknown.
    """

    # Any, for records stand above errors.
    def __init__(self, finding: typing.Any, step: int = -1) -> None:
        super().__init__(finding if isinstance(finding, str) else _said(finding))
        self.finding = None if isinstance(finding, str) else finding
        self.step = step


def _said(finding: typing.Any) -> str:
    return (
        f"actions.stop() was asked to end the training at a finding like this one:"
        f" {finding.kind}: {finding.summary}. {finding.advice}"
    )


class ReportError(AmpwatchError, OSError):
    """A report that a run has left behind cannot be found, read or written."""


class DiffError(AmpwatchError, OSError):
    """A tape, or what it has to be held against, cannot be found, read or compared."""


class DeployError(AmpwatchError, OSError):
    """The files of a deployment cannot be had, or not be written where they were asked for."""


class GrafanaError(AmpwatchError, RuntimeError):
    """Grafana cannot be reached, or does not do what it was asked to. Never holds the token."""
