"""The kinds of panels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from grafana_foundation_sdk.models import (
    common,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    timeseries,
)
from grafana_foundation_sdk.models import dashboard as model

from dashboards.source.fields import GOOD, NEUTRAL
from dashboards.source.panel import Panel
from dashboards.source.queries import still_there

if TYPE_CHECKING:
    from dashboards.source.queries import Query

__all__ = ["Heatmap", "Panel", "Stat", "StateTimeline", "TimeSeries"]

_LAST = common.ReduceDataOptions(values=False, calcs=["lastNotNull"], fields="")

MAX_POINTS_OF_A_COURSE = 400
"""More than a tile has pixels, for its number is the newest point: of a day that is 4 minutes old at most."""


@dataclass(frozen=True, kw_only=True)
class Stat(Panel):
    """Tile of one number, or of one for each series, with its course over the time range behind it.

    The course says since when, which the number alone does not. It has none where there is nothing in it
    to read: a state is a word and no magnitude, a setting does not change, and what is counted over the
    whole time range has no value at one point of it. Those are asked for the newest value alone.

    Args:
        course: Whether the course is drawn. The number is its last point, and only of what is still
            there: the newest value of a history may be that of a run that is gone.
        names: Whether the name of the series stands beside the value even if there is only one.
    """

    course: bool = True
    names: bool = False
    width: int = 4
    height: int = 4
    minimum: float | None = 0
    most_points: int | None = MAX_POINTS_OF_A_COURSE

    kind = "stat"

    def asked(self) -> tuple[Query, ...]:
        """Return the queries over the time range, or at its end alone."""
        if not self.course:
            return tuple(replace(query, instant=True) for query in self.queries)
        return tuple(
            replace(query, expr=still_there(query.expr), instant=False) for query in self.queries
        )

    def options(self) -> stat.Options:
        """Return the appearance of the tile."""
        return stat.Options(
            graph_mode=common.BigValueGraphMode.AREA
            if self.course
            else common.BigValueGraphMode.NONE,
            color_mode=common.BigValueColorMode.VALUE,
            justify_mode=common.BigValueJustifyMode.AUTO,
            text_mode=common.BigValueTextMode.VALUE_AND_NAME
            if self.names
            else common.BigValueTextMode.AUTO,
            reduce_options=_LAST,
            orientation=common.VizOrientation.AUTO,
        )


@dataclass(frozen=True, kw_only=True)
class TimeSeries(Panel):
    """Lines over time.

    Args:
        log2: Whether the axis counts powers of two, as loss scales and magnitudes do.
        stacked: Whether the series are parts of a whole.
        bars: Whether they are counts of what happened, drawn as bars.
        area: Whether the area beyond a threshold is coloured.
        reaches_from: Value that the axis reaches down to at least, of what can be smaller than that.
        reaches_to: Value that the axis reaches up to at least. An axis that has neither this nor a minimum
            makes of a line at zero one between -1 and 1.
        legend: Calculations in the legend, as ``("lastNotNull", "max")``, which makes it a table.
    """

    log2: bool = False
    stacked: bool = False
    bars: bool = False
    area: bool = False
    reaches_from: float | None = None
    reaches_to: float | None = None
    legend: tuple[str, ...] = ()

    kind = "timeseries"

    def color_mode(self) -> model.FieldColorModeId:
        """Return a palette: lines are told apart by it, thresholds are drawn as areas."""
        return model.FieldColorModeId.PALETTE_CLASSIC

    def drawn_thresholds(self) -> model.ThresholdsConfig:
        """Return no colour for what is good where areas are filled: only trouble has a ground."""
        if not self.area:
            return self.thresholds
        return model.ThresholdsConfig(
            mode=self.thresholds.mode,
            steps=[
                model.Threshold(
                    value=step.value,
                    color="transparent" if step.color in {GOOD, NEUTRAL} else step.color,
                )
                for step in self.thresholds.steps
            ],
        )

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
        """Return the appearance of the lines; a gap in the data stays a gap."""
        stacking = common.StackingMode.NORMAL if self.stacked else common.StackingMode.NONE
        area = common.GraphThresholdsStyleMode.AREA
        return common.GraphFieldConfig(
            draw_style=common.GraphDrawStyle.BARS if self.bars else common.GraphDrawStyle.LINE,
            line_width=1,
            fill_opacity=60 if self.bars else 25 if self.stacked else 0,
            show_points=common.VisibilityMode.AUTO,
            span_nulls=False,
            axis_soft_min=self.reaches_from,
            axis_soft_max=self.reaches_to,
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
                unit=self.unit,
                decimals=self.decimals,
                axis_placement=common.AxisPlacement.LEFT,
                reverse=False,
            ),
            legend=heatmap.HeatmapLegend(show=True),
            tooltip=heatmap.HeatmapTooltip(
                mode=common.TooltipDisplayMode.SINGLE, y_histogram=True, show_color_scale=True
            ),
        )


@dataclass(frozen=True, kw_only=True)
class StateTimeline(Panel):
    """Timeline with a band for each series, in the words and colours of the mappings."""

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
