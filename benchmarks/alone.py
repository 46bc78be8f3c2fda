"""What single sensors share with a training, where nothing else watches it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ampwatch.settings import Settings
from ampwatch.training.hooks.bus import Bus
from ampwatch.training.ops.events import OP_EVENTS
from ampwatch.training.outlet import Outlet
from ampwatch.training.session import Session
from ampwatch.training.targets import check_targets
from tests.workshop.records import identity

if TYPE_CHECKING:
    from workloads import Training

    from ampwatch.training.iteration.context import Context


def context_of(training: Training, **settings: Any) -> Context:
    """Return what the sensors of a training would share, with a bus that has none.

    Args:
        training: The training.
        settings: Settings by name.
    """
    chosen = Settings(**settings)
    targets = check_targets(training.model, training.scaler, None)
    context = Session(targets, chosen, Outlet(chosen, identity()))._context
    bus = Bus(context.bus.account, targets.scaler, context.iteration, OP_EVENTS)
    return replace(context, bus=bus)
