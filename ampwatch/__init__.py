"""A numerical-health monitor for PyTorch mixed-precision training.

One line is added to a training script, and the training loop stays as it is::

    watch = ampwatch.monitor(model, scaler)

The names to begin with:

    monitor         watches a training and returns a ``Monitor``
    Monitor         has the findings, the report and the metrics of that training
    actions         functions for ``on_finding``: log, send to a webhook, save a checkpoint, stop
    integrations    callbacks for Lightning, transformers and Accelerate
    inject          plants a fault, to see what ampwatch reports

The other public names, which ``dir(ampwatch)`` lists as well:

    Finding, Severity, SkipClass, LastStep    what a ``Monitor`` hands out
    LossScaler                                for a scaler that is not torch's
    Injection                                 what ``inject`` returns
    StopTraining                              what ``actions.stop()`` raises
    AmpwatchError and its other subclasses    all other exceptions: ``ampwatch.errors``

docs/api.md describes all of them. They are loaded on first use (PEP 562): importing
``ampwatch`` does not load torch, which the daemon and the command line do without.
"""

from __future__ import annotations

import errno
import gc
import logging
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from ampwatch.last_resort import LastResort
from ampwatch.version import __version__

if TYPE_CHECKING:
    from ampwatch import actions, integrations
    from ampwatch.errors import AmpwatchError as AmpwatchError
    from ampwatch.errors import AskError as AskError
    from ampwatch.errors import AttachError as AttachError
    from ampwatch.errors import DaemonError as DaemonError
    from ampwatch.errors import DeployError as DeployError
    from ampwatch.errors import DiffError as DiffError
    from ampwatch.errors import GrafanaError as GrafanaError
    from ampwatch.errors import ReportError as ReportError
    from ampwatch.errors import RingError as RingError
    from ampwatch.errors import SettingsError as SettingsError
    from ampwatch.errors import StateError as StateError
    from ampwatch.errors import StopTraining as StopTraining
    from ampwatch.training.inject.injection import Injection as Injection
    from ampwatch.training.inject.injection import inject
    from ampwatch.training.monitor import LastStep as LastStep
    from ampwatch.training.monitor import Monitor, monitor
    from ampwatch.training.scalers.loss_scaler import LossScaler as LossScaler
    from ampwatch.wire.records import Finding as Finding
    from ampwatch.wire.records import Severity as Severity
    from ampwatch.wire.records import SkipClass as SkipClass

__all__ = ["Monitor", "__version__", "actions", "inject", "integrations", "monitor"]
"""The names to begin with. ``help(ampwatch)`` describes each of them in full; the other public names, of
``_HOME``, inherit hundreds of lines from ``str``, ``int`` and ``Exception``."""

_HOME = {
    "AmpwatchError": "errors",
    "AskError": "errors",
    "AttachError": "errors",
    "DaemonError": "errors",
    "DeployError": "errors",
    "DiffError": "errors",
    "GrafanaError": "errors",
    "ReportError": "errors",
    "RingError": "errors",
    "SettingsError": "errors",
    "StateError": "errors",
    "StopTraining": "errors",
    "Finding": "wire.records",
    "Severity": "wire.records",
    "SkipClass": "wire.records",
    "Injection": "training.inject.injection",
    "inject": "training.inject.injection",
    "LastStep": "training.monitor",
    "LossScaler": "training.scalers.loss_scaler",
    "Monitor": "training.monitor",
    "monitor": "training.monitor",
}


if not logging.getLogger("ampwatch").handlers:
    logging.getLogger("ampwatch").addHandler(LastResort())


def __getattr__(name: str) -> object:
    """Load a public name from the module it lives in."""
    if name in ("actions", "integrations", "lab"):
        return import_module(f"ampwatch.{name}")
    home = _HOME.get(name)
    if home is None:
        msg = f"module 'ampwatch' has no attribute {name!r}; it has {', '.join(__dir__())}"
        raise AttributeError(msg)
    try:
        return getattr(_load(f"ampwatch.{home}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        msg = (
            f"ampwatch.{name}: expected torch in {sys.executable}, got none; run the Python that"
            " trains, or pip install torch"
        )
        raise ModuleNotFoundError(msg, name="torch") from None
    except (OSError, MemoryError) as error:
        number = getattr(error, "errno", errno.ENOMEM)
        if number not in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise
        # No class of ampwatch.errors, which could not be loaded either.
        msg = f"expected to load ampwatch.{home}, got: {os.strerror(number)}; import ampwatch.{name} where the program begins, or raise the limit that was met (`ulimit -a` lists them)"
        raise OSError(number, msg) from error


def _load(name: str) -> object:
    """Import a module, without a collection of garbage in the middle.

    It would go through all that PyTorch has made, 0.1 s, and find nothing.
    """
    collects = gc.isenabled()
    try:
        if collects:
            gc.disable()
        return import_module(name)
    finally:
        if collects:
            gc.enable()


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*__all__, *_HOME})
