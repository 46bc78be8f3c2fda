"""The whole examination: every probe, in the order in which a user would ask."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ampwatch.doctor.check import Check, State
from ampwatch.doctor.daemon import daemon
from ampwatch.doctor.extras import page, web_config
from ampwatch.doctor.gpu import gpus
from ampwatch.doctor.places import rings
from ampwatch.doctor.training import training

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ampwatch.settings import Settings

    Probe = Callable[[], list[Check]]


def probes(settings: Settings) -> dict[str, Probe]:
    """Return the probes of this machine, by group."""
    return {
        "training": training,
        "ring": partial(rings, settings),
        "daemon": partial(daemon, settings),
        "page": page,
        "GPU": gpus,
        "protection": web_config,
    }


def examine(probes: Mapping[str, Probe]) -> dict[str, list[Check]]:
    """Return the checks of every probe, by group; a probe that fails is a problem of its group."""
    return {group: _tried(probe) for group, probe in probes.items()}


def is_able(checks: Mapping[str, list[Check]]) -> bool:
    """Return whether ampwatch can do its main job: no check blocks."""
    return not any(check.blocks for group in checks.values() for check in group)


def _tried(probe: Probe) -> list[Check]:
    try:
        return probe()
    except Exception as error:  # noqa: BLE001 - one probe that fails must not hide what the others found
        why = f"this could not be examined: {type(error).__name__}: {error}"
        return [Check("examination", State.PROBLEM, why, "report it, with this line")]
