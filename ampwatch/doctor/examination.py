"""The whole examination: every probe, in the order in which a user would ask.

Those of the optional packages (charts, terminal, password protection) are here as well. No
torch here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import cache, partial

from ampwatch.doctor.check import Check, State, Version, installed_version
from ampwatch.doctor.daemon import daemon
from ampwatch.doctor.gpu import gpus
from ampwatch.doctor.places import reports, rings
from ampwatch.doctor.training import shown_devices, training
from ampwatch.settings import Settings

Probe = Callable[[], list[Check]]

MAX_SECONDS = 120.0
"""Time after which a probe is given up. Importing torch from a slow file system takes half of it.
Unit: s."""


def probes(settings: Settings) -> dict[str, Probe]:
    """Return the probes of this machine, by group."""
    shown = cache(shown_devices)  # two groups want to know
    return {
        "training": partial(training, shown=shown),
        "ring": partial(rings, settings),
        "report": partial(reports, settings),
        "daemon": partial(daemon, settings),
        "terminal": partial(packages, "terminal"),
        "GPU": partial(gpus, shown=shown),
        "protection": partial(packages, "protection"),
    }


def examine(probes: Mapping[str, Probe], seconds: float = MAX_SECONDS) -> dict[str, list[Check]]:
    """Return the checks of every probe, by group; a probe that fails is a problem of its group.

    Args:
        probes: The probes.
        seconds: How long each may take; one that hangs is left behind. Unit: s.
    """
    return {group: _tried(probe, seconds) for group, probe in probes.items()}


def is_able(checks: Mapping[str, list[Check]]) -> bool:
    """Return whether ampwatch can do its main job: no check blocks."""
    return not any(check.blocks for group in checks.values() for check in group)


def _tried(probe: Probe, seconds: float) -> list[Check]:
    found: list[list[Check]] = []

    def probe_here() -> None:
        try:
            found.append(probe())
        except Exception as error:  # noqa: BLE001 - one probe that fails must not hide what the others found
            why = f"this could not be examined: {type(error).__name__}: {error}"
            found.append([Check("examination", State.PROBLEM, why, "report it, with this line")])

    # In a thread, for a driver that hangs ends no call; a daemon, for it must not keep the process.
    thread = threading.Thread(target=probe_here, daemon=True)
    thread.start()
    thread.join(seconds)
    if found:
        return found[0]
    why = f"this did not end within {seconds:.0f} s: a driver or a file system hangs"
    return [
        Check("examination", State.PROBLEM, why, "nvidia-smi, or ls there, should hang as well")
    ]


PACKAGES = {
    "terminal": (("colours and tables", "rich", "plain text", "ui"),),
    "protection": (
        ("web-config file", "pyyaml", "it cannot be read", "web"),
        ("basic auth", "bcrypt", "passwords cannot be checked", "web"),
    ),
}
"""Optional packages by group: what each is for, its name, what it is like without, and the extra it is in."""


def packages(group: str, version: Version = installed_version) -> list[Check]:
    """Check which of the optional packages of a group are installed."""
    checks = []
    for name, package, without, extra in PACKAGES[group]:
        if found := version(package):
            checks.append(Check(name, State.OK, f"{package} {found}"))
        else:
            why = f"{package} is not installed: {without}"
            remedy = f"pip install 'ampwatch[{extra}]'"
            checks.append(Check(name, State.ABSENT, why, remedy))
    return checks
