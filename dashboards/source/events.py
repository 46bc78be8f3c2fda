"""Annotations: events drawn over the time series of every dashboard."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as model

from dashboards.source.fields import BAD, NOTE
from dashboards.source.queries import having, increase, of
from dashboards.source.variables import DATASOURCE


def _annotation(
    name: str, expr: str, text: str, tags: str, icon: str, *, enable: bool
) -> model.AnnotationQuery:
    return model.AnnotationQuery(
        name=name,
        datasource=DATASOURCE,
        enable=enable,
        icon_color=icon,
        expr=expr,
        title_format=name,
        text_format=text,
        tag_keys=tags,
        step="60s",
    )


ALERTS = "Critical alerts"
ROOTS = "What broke"

_FIRING = (
    'ALERTS{job=~"$job", instance=~"$instance|several", run=~"$run|", alertname=~"Ampwatch.+",'
    ' alertstate="firing", severity="critical"}'
)
"""Critical alerts of the chosen machines and runs. One that is of a whole run has the instance
``several``, one of a machine no run."""

_BROKEN = of("ampwatch_root_info", having("severity", "critical"))


def events(drawn: str = ALERTS) -> list[model.AnnotationQuery]:
    """Return critical alerts, critical findings and backoffs of the loss scale.

    Each is one band for a run at a time, however many alerts fire and ranks fail, and one of the three at
    most is drawn from the start: several bands over each other hide the lines that they are about.

    Args:
        drawn: Name of the one that is drawn from the start, the others when they are chosen; none if empty.
    """
    return [
        _annotation(
            ALERTS,
            f"max by (run) ({_FIRING})",
            "A critical alert fires {{run}}",
            "run",
            BAD,
            enable=drawn == ALERTS,
        ),
        _annotation(
            ROOTS,
            f"max by (run, kind) ({_BROKEN})",
            "{{kind}} in {{run}}",
            "run,kind",
            BAD,
            enable=drawn == ROOTS,
        ),
        _annotation(
            "Loss scale backoffs",
            f"max by (run) ({increase('ampwatch_loss_scale_backoffs_total', over='2m')}) > 0",
            "The GradScaler of {{run}} reduced the loss scale",
            "run",
            NOTE,
            enable=False,
        ),
    ]
