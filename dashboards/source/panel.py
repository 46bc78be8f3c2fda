"""Base of all panels, and what each must say about itself."""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import prometheus

from dashboards.source.fields import PLAIN, Override
from dashboards.source.variables import DATASOURCE

if TYPE_CHECKING:
    from dashboards.source.queries import Query


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Base of all panels.

    Args:
        id: Number that never changes: links and runbooks name it. The row's number is below it.
        title: What is asked or shown, in a few words.
        description: From ``fields.described``.
        unit: Grafana's id of the unit.
        no_value: What it means if there is nothing to show, in words.
        queries: What is asked of Prometheus.
        width: Of 24 columns.
        height: In rows of the grid, about 30 pixels each.
        thresholds: Colours by value.
        mappings: Words in place of numbers, from ``fields.words``.
        most_points: Points that are asked for at most; as many as it has pixels without.
        interval: Shortest time between two points. Counts of what happened want ``1m``: the time of
            ``$__rate_interval`` is never shorter, and an event would be counted by several points.
        decimals: How many; Grafana chooses by itself without.
        minimum: Lower end of the axis or the gauge.
        maximum: Upper end.
        overrides: What is different for some of the fields.
        links: Where a click on a value leads, from ``links``.
    """

    id: int
    title: str
    description: str
    unit: str
    no_value: str
    queries: tuple[Query, ...] = ()
    width: int = 12
    height: int = 8
    thresholds: model.ThresholdsConfig = field(default_factory=lambda: PLAIN)
    mappings: tuple[model.ValueMapping, ...] = ()
    most_points: int | None = None
    interval: str | None = None
    decimals: int | None = None
    minimum: float | None = None
    maximum: float | None = None
    overrides: tuple[Override, ...] = ()
    links: tuple[model.DashboardLink, ...] = ()

    kind = ""
    """Grafana's name of the panel plugin."""

    def build(self) -> model.Panel:
        """Return it as the SDK has it, without a place."""
        return model.Panel(
            type_val=self.kind,
            id_val=self.id,
            title=self.title,
            description=self.description,
            datasource=DATASOURCE,
            targets=[
                self.target(query, ref)
                for query, ref in zip(self.asked(), string.ascii_uppercase, strict=False)
            ],
            transformations=self.transformations() or None,
            interval=self.interval,
            max_data_points=self.most_points,
            options=self.options(),
            field_config=model.FieldConfigSource(
                defaults=model.FieldConfig(
                    unit=self.unit,
                    no_value=self.no_value,
                    decimals=self.decimals,
                    min_val=self.minimum,
                    max_val=self.maximum,
                    thresholds=self.drawn_thresholds(),
                    mappings=list(self.mappings) or None,
                    links=list(self.links) or None,
                    color=model.FieldColor(mode=self.color_mode()),
                    custom=self.custom(),
                ),
                overrides=[override.build() for override in self.all_overrides()],
            ),
        )

    def asked(self) -> tuple[Query, ...]:
        """Return the queries, in the order of their reference letters."""
        return self.queries

    def target(self, query: Query, ref: str) -> prometheus.Dataquery:
        """Return a query as this kind of panel asks it."""
        return prometheus.Dataquery(
            datasource=DATASOURCE,
            expr=query.expr,
            legend_format=query.legend or None,
            format_val=prometheus.PromQueryFormat.TIME_SERIES,
            instant=query.instant,
            range_val=not query.instant,
            ref_id=ref,
        )

    def transformations(self) -> list[model.DataTransformerConfig]:
        """Return what happens to the answers before they are shown."""
        return []

    def drawn_thresholds(self) -> model.ThresholdsConfig:
        """Return the colours as this kind of panel draws them."""
        return self.thresholds

    def options(self) -> Any:
        """Return the options of this kind of panel alone."""

    def custom(self) -> Any:
        """Return the options that only fields of this kind of panel have."""

    def color_mode(self) -> model.FieldColorModeId:
        """Return where the colour of a field comes from."""
        return model.FieldColorModeId.THRESHOLDS

    def all_overrides(self) -> tuple[Override, ...]:
        """Return the overrides, those that the kind of panel makes by itself first."""
        return self.overrides
