"""Are the optional packages there: charts, terminal, password protection. No torch here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.doctor.check import Check, State, installed_version
from ampwatch.host.daemon.assets import PLOTLY, find_assets

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from ampwatch.doctor.check import Version


def page(
    version: Version = installed_version, assets: Callable[[], Container[str]] = find_assets
) -> list[Check]:
    """Look at what the page and the terminal are drawn with.

    Args:
        version: Looks up installed distributions.
        assets: Returns the URLs of the page's files.
    """
    plotly = version("plotly")
    if f"/static/{PLOTLY}" in assets():
        charts = Check("charts", State.OK, f"Plotly {plotly} draws them, from this machine")
    else:
        found = f"Plotly {plotly} is installed without {PLOTLY}" if plotly else "no Plotly"
        why = f"{found}: the page has its words and numbers, and no charts"
        charts = Check("charts", State.ABSENT, why, "pip install 'ampwatch[ui]'")
    return [charts, _package("terminal", "rich", "plain text", "ui", version)]


def web_config(version: Version = installed_version) -> list[Check]:
    """Look at what ``ampwatch daemon --web.config.file`` needs.

    Args:
        version: Looks up installed distributions.
    """
    return [
        _package("web-config file", "pyyaml", "it cannot be read", "web", version),
        _package("basic auth", "bcrypt", "passwords cannot be checked", "web", version),
    ]


def _package(name: str, package: str, without: str, extra: str, version: Version) -> Check:
    found = version(package)
    if found is None:
        remedy = f"pip install 'ampwatch[{extra}]'"
        return Check(name, State.ABSENT, f"{package} is not installed: {without}", remedy)
    return Check(name, State.OK, f"{package} {found}")
