"""Does the run learn, is it as fast as it was, and how closely is it watched?"""

from __future__ import annotations

from dashboards.source.fields import (
    described,
)
from dashboards.source.links import label, to_dashboard
from dashboards.source.measures import LOSS_REACHES, NO_RUN, NONE_IS_GOOD
from dashboards.source.panels import TimeSeries
from dashboards.source.queries import Query, of, rate
from dashboards.source.tables import Column, Key, Table

_BUCKETS = "ampwatch_step_duration_seconds_bucket"


def learning() -> tuple[TimeSeries, ...]:
    """Return what the loss and the weights say."""
    return (
        TimeSeries(
            id=401,
            title="Loss",
            description=described(
                shows="The newest loss, unscaled: mean, smallest and largest of the ranks. A gap is"
                " a loss that is NaN or infinite.",
                good="falls, with noise; the ranks stay together.",
                act="a gap: see the next panel and the findings. A jump that stays: divergence;"
                " lower the learning rate or go back to a checkpoint. Ranks apart: see Ranks.",
                metrics=["ampwatch_loss"],
            ),
            unit="short",
            no_value="No loss was seen: without GradScaler.scale(loss) ampwatch is not handed one",
            queries=(
                Query(f"avg by (run) ({of('ampwatch_loss')})", legend="mean {{run}}"),
                Query(f"min by (run) ({of('ampwatch_loss')})", legend="smallest {{run}}"),
                Query(f"max by (run) ({of('ampwatch_loss')})", legend="largest {{run}}"),
            ),
            reaches_to=LOSS_REACHES,
        ),
        TimeSeries(
            id=403,
            title="Weights and buffers that are not finite",
            description=described(
                shows="NaN and infinite elements of parameters and buffers at their last"
                " check, of the rank that has most.",
                good="0.",
                act="stop the run: weights do not come back. Buffers (running statistics) can be"
                " reset or restored from a checkpoint.",
                metrics=[
                    "ampwatch_parameter_nonfinite_elements",
                    "ampwatch_buffer_nonfinite_elements",
                ],
            ),
            unit="short",
            no_value="The parameters were not checked yet",
            queries=(
                Query(
                    f"max by (run) ({of('ampwatch_parameter_nonfinite_elements')})",
                    legend="parameters {{run}}",
                ),
                Query(
                    f"max by (run) ({of('ampwatch_buffer_nonfinite_elements')})",
                    legend="buffers {{run}}",
                ),
            ),
            minimum=0,
            reaches_to=1,
            thresholds=NONE_IS_GOOD,
            area=True,
        ),
    )


def speed() -> tuple[TimeSeries, ...]:
    """Return what a step takes, and what of it is ampwatch."""
    steps = f"sum by (run, le) ({rate(_BUCKETS)})"
    return (
        TimeSeries(
            id=501,
            title="Time of a step",
            description=described(
                shows="Half, 90 % and 99 % of the steps of all ranks were shorter than this; and the"
                " mean.",
                good="level, 99 % not far above half.",
                act="all rise: the GPUs are throttled or shared (see GPU), or the data comes late."
                " Only 99 % rises: checkpoints, or one rank (see Ranks).",
                metrics=["ampwatch_step_duration_seconds"],
            ),
            unit="s",
            no_value="No step has ended since the daemon was started",
            queries=(
                *(
                    Query(
                        f"histogram_quantile({share}, {steps})",
                        legend=f"{name} {{{{run}}}}",
                    )
                    for share, name in ((0.5, "half"), (0.9, "90 %"), (0.99, "99 %"))
                ),
                Query(
                    f"sum by (run) ({rate('ampwatch_step_duration_seconds_sum')})"
                    f" / (sum by (run) ({rate('ampwatch_step_duration_seconds_count')}) > 0)",
                    legend="mean {{run}}",
                ),
            ),
            minimum=0,
            interval="1m",
            legend=("lastNotNull", "max"),
            links=(
                to_dashboard("Which rank? Open its ranks", "ampwatch-ranks", run=label("run")),
                to_dashboard("What do the GPUs do?", "ampwatch-gpu"),
                to_dashboard("Do the tensor cores work?", "ampwatch-precision", run=label("run")),
            ),
        ),
    )


def facts() -> Table:
    """Return what the ranks reported about themselves."""
    said = {
        "run": "Run",
        "autocast_dtype": "Autocast",
        "scaler": "Scaler",
        "growth_interval": "Growth interval",
        "world_size": "World size",
        "device": "Device",
        "torch": "PyTorch",
        "version": "ampwatch",
        "allow_tf32": "TF32",
    }
    return Table(
        id=601,
        title="Facts",
        description=described(
            shows="What the ranks reported about themselves at the start.",
            good="one line for each run: all ranks agree. Ranks equals World size.",
            act="two lines: the ranks run with different settings or versions; the columns that"
            " differ say in what. Fewer ranks than the world size: not every host has a daemon.",
            metrics=["ampwatch_run_info"],
        ),
        unit="none",
        no_value=NO_RUN,
        height=5,
        keys=tuple(Key(label=name, title=title) for name, title in said.items()),
        sort_by="Run",
        columns=(
            Column(
                title="Ranks",
                expr=f"count by ({', '.join(said)}) ({of('ampwatch_run_info')})",
            ),
        ),
    )
