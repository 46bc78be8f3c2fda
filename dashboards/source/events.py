"""Annotations: events drawn over the time series of every dashboard."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as model

from dashboards.source.fields import BAD, NOTE, WARN
from dashboards.source.queries import increase, of
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


_FIRING = 'ALERTS{job=~"$job", instance=~"$instance|several", alertname=~"Ampwatch.+", alertstate="firing"}'
"""Alerts of the chosen machines, and of whole runs, whose instance is ``several``."""

_SEEN = of("ampwatch_finding_last_seen_timestamp_seconds", 'root="true"')


def events(*, findings: bool = False) -> list[model.AnnotationQuery]:
    """Return firing alerts, findings and backoffs of the loss scale.

    Args:
        findings: Whether findings are drawn from the start, or only when they are chosen.
    """
    return [
        _annotation(
            "Alerts",
            _FIRING,
            "{{alertname}}",
            "severity,instance,run,rank",
            BAD,
            enable=True,
        ),
        # A finding that lasts is told at least once a minute: with a scrape between, a band.
        _annotation(
            "Findings",
            f"max by (run, kind, severity) ({_SEEN}) > time() - 120",
            "{{kind}} in {{run}}",
            "kind,severity",
            WARN,
            enable=findings,
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
