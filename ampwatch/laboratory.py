"""The door to the laboratory, ``ampwatch.lab``: nothing else imports it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

VERBS = {
    "diff": "say where two runs of the same batches first differ",
    "errors": "show where the error of a running training appears, op by op",
    "plan": "plan which layer can train in which number format",
}
"""Its verbs on the command line, ``ampwatch lab <verb>``, and what help says of each."""


def load(module: str) -> Any:
    """Return a module of the laboratory, by its name below ``ampwatch.lab``, where it is asked for."""
    return import_module(f"ampwatch.lab.{module}")
