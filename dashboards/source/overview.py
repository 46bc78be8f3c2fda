"""Is every run healthy? One row for each run, worst news first."""

from __future__ import annotations

from dashboards.source.fields import BAD, GOOD, Step, described, thresholds
from dashboards.source.page import Page, Row
from dashboards.source.panels import Stat
from dashboards.source.queries import Query, of

_OF_AMPWATCH = f"and on (job, instance) last_over_time({of('ampwatch_build_info')}[1d])"
"""What else is scraped has no such series; a daemon that is down had it a while ago."""


def page() -> Page:
    """Return the dashboard."""
    return Page(
        uid="ampwatch-overview",
        title="ampwatch / Overview",
        description="Is every run healthy? Start here; a click on a run leads to why not.",
        rows=(
            Row(
                100,
                "Is every run healthy?",
                (
                    Stat(
                        id=101,
                        title="Scrape targets",
                        description=described(
                            shows="Daemons that Prometheus reaches.",
                            good="one for each machine that trains.",
                            act="see Daemons down.",
                            metrics=["up", "ampwatch_build_info"],
                        ),
                        unit="none",
                        no_value="No ampwatch target",
                        queries=(Query(f"count({of('up')} == 1 {_OF_AMPWATCH})", instant=True),),
                        thresholds=thresholds(BAD, Step(1, GOOD)),
                    ),
                ),
            ),
        ),
    )
