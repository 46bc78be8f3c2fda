"""From one dashboard to the next, with the time range and the variables."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as model

TAG = "ampwatch"
DOCS = "https://github.com/ampwatch/ampwatch/blob/main/docs"

MACHINE = "Machine"
"""Title of the column with the address of a daemon, in tables with links to it."""

_KEPT = "${__url_time_range}&${datasource:queryparam}"


def to_dashboard(
    title: str, uid: str, *, instance: str = "", run: str = "", rank: str = ""
) -> model.DashboardLink:
    """Return a data link to the dashboard ``uid``; what is not given stays as it is chosen.

    Args:
        title: What a click will show.
        uid: The dashboard, as ``ampwatch-run``.
        instance: The instance, run or rank to go to, as a rule a field of the row that was
            clicked: ``field("Run")``, or ``label("run")`` of a series.
        run: As ``instance``.
        rank: As ``instance``.
    """
    chosen = [
        f"var-{name}={value}" if value else f"${{{name}:queryparam}}"
        for name, value in {"job": "", "instance": instance, "run": run, "rank": rank}.items()
    ]
    url = f"/d/{uid}/{uid}?{_KEPT}&{'&'.join(chosen)}"
    return model.DashboardLink(title=title, url=url)


def to_page(title: str, url: str) -> model.DashboardLink:
    """Return a data link to a page outside Grafana, in a tab of its own."""
    return model.DashboardLink(title=title, url=url, target_blank=True)


def to_daemon(title: str, path: str) -> model.DashboardLink:
    """Return a data link to the daemon of the machine of the row, in a tab of its own.

    Args:
        title: What a click will show.
        path: After the slash, as ``explain/`` and a kind. The table has a key ``MACHINE``.
    """
    return to_page(title, f'http://${{__data.fields["{MACHINE}"]}}/{path}')


def field(name: str) -> str:
    """Return the variable for a field of the row of a table, by the name that is displayed."""
    return f'${{__data.fields["{name}"]:percentencode}}'


def label(name: str) -> str:
    """Return the variable for a label of the series of a time series or a stat."""
    return f"${{__field.labels.{name}:percentencode}}"


def others() -> model.DashboardLink:
    """Return the list of the other dashboards for the head of each of them."""
    return model.DashboardLink(
        title="ampwatch",
        type_val=model.DashboardLinkType.DASHBOARDS,
        icon="external link",
        tooltip="The other dashboards, for the same time and choice",
        tags=[TAG],
        include_vars=True,
        keep_time=True,
    )
