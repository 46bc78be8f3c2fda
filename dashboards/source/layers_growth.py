"""The row of the dashboard Layers about what grows for a long time before a loss spikes."""

from __future__ import annotations

from dashboards.source.fields import described
from dashboards.source.modules import NOT_HERE, SHOWN, worst
from dashboards.source.panels import Panel, TimeSeries
from dashboards.source.queries import Query, largest

_OUTLIERS = "ampwatch_module_activation_outlier_ratio"
_UPDATES = "ampwatch_module_update_ratio"


def growth() -> tuple[Panel, ...]:
    """Return the modules whose outputs have ever larger outliers, and those whose weights move ever faster."""
    return (
        _over_time(
            701,
            "Outlier features",
            described(
                shows="The largest output of a module over the root mean square of its elements, of the worst rank. The"
                f" {SHOWN} largest. 4 to 5 is noise of a thousand elements; an outlier channel makes it tens.",
                good="level, after the first hundreds of steps.",
                act="a ratio that keeps on growing costs a format with one scale for the tensor its other elements: see What if"
                " on the page of the run, use blocks or rows with scales of their own, or lower the rate before the loss spikes.",
                metrics=[_OUTLIERS],
            ),
            f"No outputs: {NOT_HERE}",
            _OUTLIERS,
            "none",
        ),
        _over_time(
            702,
            "Update over weight",
            described(
                shows="The median share of its own magnitude by which the optimizer changes an element of a module's parameters,"
                f" in one step, of the worst rank. The {SHOWN} largest.",
                good="as the learning rate goes: up in its warm-up, then down; about a thousandth is usual.",
                act="a module far above all others, or a share that grows while the rate does not: clip its gradients, lower its"
                " rate, or raise eps of the optimizer.",
                metrics=[_UPDATES],
            ),
            f"No updates: {NOT_HERE}",
            _UPDATES,
            "percentunit",
        ),
    )


def _over_time(
    number: int, title: str, about: str, no_value: str, metric: str, unit: str
) -> TimeSeries:
    return TimeSeries(
        id=number,
        title=title,
        description=about,
        unit=unit,
        no_value=no_value,
        queries=(Query(largest(SHOWN, worst("max", metric)), "{{run}} {{module}}"),),
        minimum=0,
    )
