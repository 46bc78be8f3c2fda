"""Places of what is shipped beside the code: pages, dashboards, alert rules, deployment files."""

from __future__ import annotations

from pathlib import Path

from ampwatch.errors import AmpwatchError

_PACKAGE = Path(__file__).parent


def shipped(name: str) -> Path:
    """Return a directory of what is shipped beside the code.

    In a wheel it lies in the package, in a checkout at its place in the repository. Both have one
    layout, so that a relative path from one file to another holds in both.

    Args:
        name: ``dashboards``, ``deploy`` or ``docs``.

    Raises:
        AmpwatchError: If the installation is incomplete.
    """
    places = (_PACKAGE / "_shipped" / name, _PACKAGE.parent / name)
    for place in places:
        if place.is_dir():
            return place
    text = (
        f"expected the {name} in {places[0]}, as the wheel of ampwatch has them, or in {places[1]},"
        " as a checkout has them; there are none: install ampwatch again"
    )
    raise AmpwatchError(text)
