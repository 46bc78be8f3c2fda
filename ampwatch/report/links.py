"""Addresses of Grafana, Alertmanager and the page, as the page and the terminal link to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from ampwatch.report.one_line import address

if TYPE_CHECKING:
    from ampwatch.settings import Settings


@dataclass(frozen=True, slots=True)
class Links:
    """Addresses that an operator gave, each with a slash at its end; empty for one that nobody gave.

    Without an address there is no link: one that leads nowhere is worse.

    Attributes:
        page: Of the page, for a browser elsewhere.
        grafana: Of the Grafana that has the dashboards.
        alertmanager: Of Alertmanager.
    """

    page: str = ""
    grafana: str = ""
    alertmanager: str = ""

    @classmethod
    def of(cls, settings: Settings) -> Links:
        """Return the addresses that are set."""
        return cls(settings.external_url, settings.grafana_url, settings.alertmanager_url)

    def of_run(self, run: str) -> dict[str, str]:
        """Return the addresses for a run, by the words of the link."""
        made = {
            "its page": address(self.page, run),
            "its dashboard": self.dashboard(run),
            "silence its alerts": self.silence(run),
        }
        return {words: url for words, url in made.items() if url}

    def dashboard(self, run: str) -> str:
        """Return the address of the dashboard of a run; empty without a Grafana."""
        return self.grafana and f"{self.grafana}d/ampwatch-run?{urlencode({'var-run': run})}"

    def silence(self, run: str) -> str:
        """Return the address of a new silence for all alerts of a run; empty without an Alertmanager.

        Source: Alertmanager's page, whose form of a silence takes ``filter`` after the ``#``.
        """
        escaped = run.replace("\\", "\\\\").replace('"', '\\"')
        matchers = quote(f'{{run="{escaped}"}}', safe="")
        return self.alertmanager and f"{self.alertmanager}#/silences/new?filter={matchers}"
