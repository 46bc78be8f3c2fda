"""Which rank do the others wait for, and why? What each does by itself, held against the others."""

from __future__ import annotations

from dashboards.source.fields import GOOD, WARN, Step, described, thresholds
from dashboards.source.panels import TimeSeries
from dashboards.source.phases import (
    DATA,
    EXCESS,
    NO_PHASES,
    OWN_EXCESS,
    OWN_SHARE,
    WAITS_FOR_DATA,
)
from dashboards.source.queries import rate
from dashboards.source.ranks_apart import THIS_RANK, TOP, bands, outliers

_PHASES = ["ampwatch_step_phase_seconds"]
_BUSY = thresholds(GOOD, Step(0.1, WARN))
"""From a tenth on the finding step_slower calls a host busy."""


def waiting() -> tuple[TimeSeries, ...]:
    """Return the panels of the row."""
    delay = rate("ampwatch_training_thread_run_delay_seconds_total")
    return (
        TimeSeries(
            id=501,
            title="Own part of a step over the ranks",
            description=described(
                shows="Share of the time that ranks take for what they do by themselves, so neither reducing"
                " with others nor evaluating: smallest, largest, median, and the band in which nine of ten lie."
                " What is left they wait or reduce. By the clock of the device where there is one.",
                good="one narrow band.",
                act="largest far above 95 %: one rank makes the others wait, named on the right. A wide band:"
                " uneven batches, or stages of a pipeline, which differ by design.",
                metrics=_PHASES,
            ),
            unit="percentunit",
            no_value=NO_PHASES,
            queries=bands(OWN_SHARE),
            minimum=0,
            maximum=1,
            width=8,
        ),
        TimeSeries(
            id=502,
            title=f"Ranks that the others wait for ({TOP})",
            description=described(
                shows="How much more of each step a rank takes for its own part than the median rank of its"
                " run: that much the others wait. Steps of ranks that reduce gradients end together, so the"
                " time of a step does not tell.",
                good="below 5 %.",
                act="a rank that stays above costs all of them that share of the time. Its finding straggler"
                " says in which phase and why; a click leads to its own steps, and to its GPU.",
                metrics=_PHASES,
            ),
            unit="percentunit",
            no_value=NO_PHASES,
            queries=outliers(OWN_EXCESS),
            reaches_from=0,
            reaches_to=0.15,
            width=8,
            thresholds=EXCESS,
            area=True,
            links=THIS_RANK,
        ),
        TimeSeries(
            id=503,
            title=f"Ranks that wait for data ({TOP})",
            description=described(
                shows="Share of the time in which a rank waits for its next batch, of those that wait most.",
                good="below 10 %, and all alike.",
                act="one alone: its shard, its disk, the workers on its host. All: see Does it wait for data?"
                " in Run.",
                metrics=_PHASES,
            ),
            unit="percentunit",
            no_value="No wait for a batch was seen: no DataLoader, or no step yet",
            queries=outliers(WAITS_FOR_DATA),
            minimum=0,
            reaches_to=0.5,
            width=8,
            thresholds=DATA,
            area=True,
            links=THIS_RANK,
        ),
        TimeSeries(
            id=504,
            title=f"Whose host is busy? ({TOP})",
            description=described(
                shows="Share of the time in which the training thread could run and had no core, of the ranks"
                " where it is most.",
                good="below 1 %.",
                act="something else runs on that host, or too many workers and threads share its cores:"
                " look with top, set OMP_NUM_THREADS, bind processes to cores.",
                metrics=["ampwatch_training_thread_run_delay_seconds_total"],
            ),
            unit="percentunit",
            no_value="The system does not tell (it is not Linux), or no step has ended yet",
            queries=outliers(delay),
            minimum=0,
            reaches_to=0.2,
            thresholds=_BUSY,
            area=True,
            links=THIS_RANK,
        ),
        TimeSeries(
            id=505,
            title="Share of a core that training threads use",
            description=described(
                shows="CPU time of the training thread in a second: smallest, largest, median of the ranks, and"
                " the band in which nine of ten lie.",
                good="one band. At 1 the thread computes all the time: on a CPU that is the training, with a"
                " device it is Python, which then holds the device up.",
                act="near 1 with a GPU: larger batches, torch.compile or CUDA graphs. One rank below the others:"
                " it waits, for a lock, a disk or the network.",
                metrics=["ampwatch_training_thread_cpu_seconds_total"],
            ),
            unit="percentunit",
            no_value="The system does not tell (it is not Linux), or no step has ended yet",
            queries=bands(rate("ampwatch_training_thread_cpu_seconds_total")),
            minimum=0,
            maximum=1,
        ),
    )
