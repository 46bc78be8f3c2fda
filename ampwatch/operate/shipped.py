"""Places of the dashboards, the alert rules, the deployment files and the runbooks."""

from __future__ import annotations

from pathlib import Path

from ampwatch.errors import AmpwatchError

_PACKAGE = Path(__file__).parents[1]

_IN_A_CHECKOUT = {"dashboards": "dashboards", "deploy": "deploy", "runbooks": "docs/runbooks"}


def shipped(name: str) -> Path:
    """Return the directory of what is shipped beside the code.

    In a wheel it lies in the package, in a checkout at its place in the repository.

    Args:
        name: ``dashboards``, ``deploy`` or ``runbooks``.

    Raises:
        AmpwatchError: If the installation is incomplete.
    """
    places = (_PACKAGE / "_shipped" / name, _PACKAGE.parent / _IN_A_CHECKOUT[name])
    for place in places:
        if place.is_dir():
            return place
    text = (
        f"expected the {name} in {places[0]}, as the wheel of ampwatch has them, or in {places[1]},"
        " as a checkout has them; there are none: install ampwatch again"
    )
    raise AmpwatchError(text)
