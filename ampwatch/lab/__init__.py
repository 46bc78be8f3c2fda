"""The laboratory: what a training would lose in other number formats, op by op, and where two runs part.

Error budgets, precision plans, block formats, and two runs compared. It is off by default:
``ampwatch.monitor(model, scaler, lab=True)``, or ``AMPWATCH_LAB=1``, turns it on, and only then anything of it
is measured. On the command line it is ``ampwatch lab``. Nothing else in ampwatch imports it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ampwatch.lab.api import error_budget, plan

__all__ = ["error_budget", "plan"]


def __getattr__(name: str) -> Any:
    # Commands and the page read what it has measured without torch.
    if name in __all__:
        return getattr(import_module("ampwatch.lab.api"), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
