"""ampwatch: a numerical-health monitor for PyTorch mixed-precision training.

``watch = ampwatch.monitor(model, scaler)`` is all; the training loop stays as it is.

The public names are loaded on first use (PEP 562): importing ``ampwatch`` costs
no torch, so that the daemon and the command line never load it.
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
    from ampwatch.errors import (
        AmpwatchError,
        AskError,
        AttachError,
        DaemonError,
        DeployError,
        DiffError,
        GrafanaError,
        ReportError,
        RingError,
        SettingsError,
        StateError,
        StopTraining,
    )
    from ampwatch.training.inject.injection import Injection, inject
    from ampwatch.training.monitor import LastStep, Monitor, monitor
    from ampwatch.training.scalers.loss_scaler import LossScaler
    from ampwatch.wire.records import Finding, Severity, SkipClass

__all__ = [
    "AmpwatchError",
    "AskError",
    "AttachError",
    "DaemonError",
    "DeployError",
    "DiffError",
    "Finding",
    "GrafanaError",
    "Injection",
    "LastStep",
    "LossScaler",
    "Monitor",
    "ReportError",
    "RingError",
    "SettingsError",
    "Severity",
    "SkipClass",
    "StateError",
    "StopTraining",
    "__version__",
    "actions",
    "inject",
    "integrations",
    "monitor",
]

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
        msg = f"module 'ampwatch' has no attribute {name!r}; it has {', '.join(__all__)}"
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
    return list(__all__)
