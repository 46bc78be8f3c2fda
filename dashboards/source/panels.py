"""The kinds of panels, and what each must say about itself."""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grafana_foundation_sdk.models import (
    bargauge,
    common,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    timeseries,
)
from grafana_foundation_sdk.models import dashboard as model

from dashboards.source.fields import PLAIN, Override
from dashboards.source.variables import DATASOURCE

if TYPE_CHECKING:
    from dashboards.source.queries import Query


@dataclass(frozen=True, kw_only=True)
class Panel:
    """What all panels have.

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
            options=self.options(),
            field_config=model.FieldConfigSource(
                defaults=model.FieldConfig(
                    unit=self.unit,
                    no_value=self.no_value,
                    decimals=self.decimals,
                    min_val=self.minimum,
                    max_val=self.maximum,
                    thresholds=self.thresholds,
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

    def options(self) -> Any:
        """Return what only this kind of panel can be told."""

    def custom(self) -> Any:
        """Return what only the fields of this kind of panel can be told."""

    def color_mode(self) -> model.FieldColorModeId:
        """Return where the colour of a field comes from."""
        return model.FieldColorModeId.THRESHOLDS

    def all_overrides(self) -> tuple[Override, ...]:
        """Return the overrides, those that the kind of panel makes by itself first."""
        return self.overrides


_LAST = common.ReduceDataOptions(values=False, calcs=["lastNotNull"], fields="")


@dataclass(frozen=True, kw_only=True)
class Stat(Panel):
    """One number, or one for each series, as a tile.

    Args:
        background: Whether the tile has the colour, or the text.
        sparkline: Whether the history is drawn behind it; wants queries that are not instant.
        names: Whether the name of the series stands beside the value even if there is only one.
    """

    background: bool = False
    sparkline: bool = False
    names: bool = False
    width: int = 4
    height: int = 4

    kind = "stat"

    def options(self) -> stat.Options:
        """Return how the tile looks."""
        return stat.Options(
            graph_mode=common.BigValueGraphMode.AREA
            if self.sparkline
            else common.BigValueGraphMode.NONE,
            color_mode=common.BigValueColorMode.BACKGROUND
            if self.background
            else common.BigValueColorMode.VALUE,
            justify_mode=common.BigValueJustifyMode.AUTO,
            text_mode=common.BigValueTextMode.VALUE_AND_NAME
            if self.names
            else common.BigValueTextMode.AUTO,
            reduce_options=_LAST,
            orientation=common.VizOrientation.AUTO,
        )


@dataclass(frozen=True, kw_only=True)
class BarGauge(Panel):
    """One bar for each series: for a few that are compared."""

    kind = "bargauge"

    def options(self) -> bargauge.Options:
        """Return horizontal bars with their values beside them."""
        return bargauge.Options(
            display_mode=common.BarGaugeDisplayMode.BASIC,
            value_mode=common.BarGaugeValueMode.TEXT,
            reduce_options=_LAST,
            orientation=common.VizOrientation.HORIZONTAL,
        )


@dataclass(frozen=True, kw_only=True)
class TimeSeries(Panel):
    """Lines over time.

    Args:
        log2: Whether the axis counts powers of two, as loss scales and magnitudes do.
        stacked: Whether the series are parts of a whole.
        bars: Whether they are counts of what happened, drawn as bars.
        area: Whether the area beyond a threshold is coloured.
        legend: Calculations in the legend, as ``("lastNotNull", "max")``, which makes it a table.
    """

    log2: bool = False
    stacked: bool = False
    bars: bool = False
    area: bool = False
    legend: tuple[str, ...] = ()

    kind = "timeseries"

    def color_mode(self) -> model.FieldColorModeId:
        """Return a palette: lines are told apart by it, thresholds are drawn as areas."""
        return model.FieldColorModeId.PALETTE_CLASSIC

    def options(self) -> timeseries.Options:
        """Return a legend below, and all values under the pointer in order."""
        return timeseries.Options(
            legend=common.VizLegendOptions(
                display_mode=common.LegendDisplayMode.TABLE
                if self.legend
                else common.LegendDisplayMode.LIST,
                placement=common.LegendPlacement.BOTTOM,
                show_legend=True,
                calcs=list(self.legend),
            ),
            tooltip=common.VizTooltipOptions(
                mode=common.TooltipDisplayMode.MULTI, sort=common.SortOrder.DESCENDING
            ),
        )

    def custom(self) -> common.GraphFieldConfig:
        """Return how the lines look; a gap in the data stays a gap."""
        stacking = common.StackingMode.NORMAL if self.stacked else common.StackingMode.NONE
        area = common.GraphThresholdsStyleMode.AREA
        return common.GraphFieldConfig(
            draw_style=common.GraphDrawStyle.BARS if self.bars else common.GraphDrawStyle.LINE,
            line_width=1,
            fill_opacity=60 if self.bars else 25 if self.stacked else 0,
            show_points=common.VisibilityMode.AUTO,
            span_nulls=False,
            stacking=common.StackingConfig(mode=stacking, group="A"),
            scale_distribution=common.ScaleDistributionConfig(
                type_val=common.ScaleDistribution.LOG, log=2
            )
            if self.log2
            else common.ScaleDistributionConfig(type_val=common.ScaleDistribution.LINEAR),
            thresholds_style=common.GraphThresholdsStyleConfig(
                mode=area if self.area else common.GraphThresholdsStyleMode.OFF
            ),
        )


@dataclass(frozen=True, kw_only=True)
class Heatmap(Panel):
    """The buckets of a histogram over time.

    Its query sums the increase of the buckets ``by (le)``; the legend has to be ``{{le}}``.
    """

    kind = "heatmap"

    def target(self, query: Query, ref: str) -> prometheus.Dataquery:
        """Return a query whose answer Grafana takes for the buckets of a histogram."""
        target = super().target(query, ref)
        target.format_val = prometheus.PromQueryFormat.HEATMAP
        return target

    def options(self) -> heatmap.Options:
        """Return cells as the buckets are, empty ones left out."""
        return heatmap.Options(
            calculate=False,
            color=heatmap.HeatmapColorOptions(
                mode=heatmap.HeatmapColorMode.SCHEME,
                scheme="Oranges",
                fill="dark-orange",
                scale=heatmap.HeatmapColorScale.EXPONENTIAL,
                exponent=0.5,
                steps=64,
            ),
            filter_values=heatmap.FilterValueRange(le=1e-9),
            rows_frame=heatmap.RowsHeatmapOptions(layout=common.HeatmapCellLayout.AUTO),
            cell_gap=1,
            cell_values=heatmap.CellValues(unit="short"),
            y_axis=heatmap.YAxisConfig(
                unit=self.unit, axis_placement=common.AxisPlacement.LEFT, reverse=False
            ),
            legend=heatmap.HeatmapLegend(show=True),
            tooltip=heatmap.HeatmapTooltip(
                mode=common.TooltipDisplayMode.SINGLE, y_histogram=True, show_color_scale=True
            ),
        )


@dataclass(frozen=True, kw_only=True)
class StateTimeline(Panel):
    """One band for each series, in the words and colours of the mappings."""

    kind = "state-timeline"

    def options(self) -> statetimeline.Options:
        """Return bands in which equal neighbours are one."""
        return statetimeline.Options(
            show_value=common.VisibilityMode.AUTO,
            merge_values=True,
            align_value=common.TimelineValueAlignment.LEFT,
            legend=common.VizLegendOptions(
                display_mode=common.LegendDisplayMode.LIST,
                placement=common.LegendPlacement.BOTTOM,
                show_legend=True,
                calcs=[],
            ),
            tooltip=common.VizTooltipOptions(
                mode=common.TooltipDisplayMode.SINGLE, sort=common.SortOrder.NONE
            ),
        )
