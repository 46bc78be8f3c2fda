"""The row of the dashboard Precision about kernels: where matmuls ran, as far as names tell."""

from __future__ import annotations

from dashboards.source.fields import GOOD, NEUTRAL, WARN, Override, Step, described, thresholds
from dashboards.source.panels import Panel, TimeSeries
from dashboards.source.precision_shares import OVER, RUN, share, sums
from dashboards.source.queries import Query, of
from dashboards.source.tables import Column, Table

SECONDS = "ampwatch_kernel_seconds_total"
MATMULS = 'unit=~"tensor|cuda|unknown"'
AT_LEAST = 'unit="tensor"'
AT_MOST = 'unit=~"tensor|unknown"'

_MISALIGNED = "ampwatch_kernel_misaligned_seconds_total"
_LAGGING = "ampwatch_kernel_lagging_seconds_total"
_GEMV = "ampwatch_kernel_gemv_seconds_total"

_TENSOR = thresholds(NEUTRAL, Step(0, WARN), Step(0.5, NEUTRAL), Step(0.8, GOOD))
"""Below a half, AMP gains little; above four fifths, what is left is small matmuls."""

_WASTED = thresholds(NEUTRAL, Step(0.05, WARN))
"""Thresholds of lost matmul time; 5 % is about what the cure of padding or a new cuBLAS would win back."""

_BAND = (
    Override("/^At most/", {"custom.fillBelowTo": "At least", "custom.fillOpacity": 25}),
    Override("/^At least/", {"custom.fillOpacity": 0}),
)


def _by_all(matchers: str) -> str:
    return f"sum(increase({of(SECONDS, matchers)}[{OVER}]))"


def kernels() -> tuple[Panel, ...]:
    """Return the share of tensor cores as a band, and what keeps matmuls from them."""
    no_windows = f"No profiler window on a GPU within {OVER}"
    of_all = f"(sum(increase({of(SECONDS, MATMULS)}[{OVER}])) > 0)"
    return (
        TimeSeries(
            id=401,
            title="Share of tensor cores in the time of matmuls",
            description=described(
                shows="At least, and at most: not every kernel says by its name where it"
                f" multiplies. A narrow band is a measurement. Profiler windows of {OVER}, of all"
                " runs that were chosen.",
                good="a narrow band above 80 %.",
                act="a low band: see which dtype and which kernels below. A wide one: the names"
                " are in /debug/kernels.json of the daemon.",
                metrics=[SECONDS],
            ),
            unit="percentunit",
            no_value=no_windows,
            queries=(
                Query(f"{_by_all(AT_LEAST)} / {of_all}", "At least"),
                Query(f"{_by_all(AT_MOST)} / {of_all}", "At most"),
            ),
            minimum=0,
            maximum=1,
            overrides=_BAND,
            width=8,
        ),
        Table(
            id=402,
            title="Matmuls of each run",
            description=described(
                shows=f"The two ends of the band by run, and three shares of the time of matmuls"
                f" in {OVER}: kernels for matrices that are not fully aligned, kernels made for an"
                " older GPU, and matrix-vector kernels in 16 bits.",
                good="at least 80 % on tensor cores, the other three below 5 %.",
                act="misaligned: pad dimensions to a multiple of 8. Older GPU: a newer PyTorch or"
                " cuBLAS. Matrix-vector: the batch is 1, or a dimension is; batch what is there.",
                metrics=[SECONDS, _MISALIGNED, _LAGGING, _GEMV],
            ),
            unit="percentunit",
            no_value=no_windows,
            keys=(RUN,),
            columns=(
                *(
                    Column(
                        title=title,
                        expr=share(sums(SECONDS, unit), sums(SECONDS, MATMULS)),
                        unit="percentunit",
                        thresholds=_TENSOR,
                    )
                    for title, unit in (("At least", AT_LEAST), ("At most", AT_MOST))
                ),
                *(
                    Column(
                        title=title,
                        expr=share(sums(metric), sums(SECONDS, MATMULS)),
                        unit="percentunit",
                        thresholds=_WASTED,
                    )
                    for title, metric in (
                        ("Misaligned", _MISALIGNED),
                        ("For an older GPU", _LAGGING),
                        ("Matrix-vector", _GEMV),
                    )
                ),
            ),
            sort_by="At least",
            width=16,
        ),
    )
