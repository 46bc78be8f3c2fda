"""The numbers of a training as a flat dictionary, for the logger that its user has already.

One row a number: its key, its unit, what it says, and the PromQL that has the same number of a
daemon. ``docs/logged-metrics.md`` is printed from the rows
(``python -m ampwatch.report.logged``). Keys
and units are frozen once released.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.numerics.formats import narrowest_half
from ampwatch.report.limits import finite_amax, limit_of, lost_share, zero_share
from ampwatch.wire.records import Severity, StepPhase

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.wire.blackbox import Newest
    from ampwatch.wire.records import RangeRecord


def _of_step(name: str) -> Callable[[Newest], float | None]:
    """Return a reader of an attribute of the newest iteration."""

    def read(newest: Newest) -> float | None:
        return None if newest.step is None else float(getattr(newest.step, name))

    return read


def _finite(read: Callable[[Newest], float | None]) -> Callable[[Newest], float | None]:
    """Return a reader that knows nothing where a number is NaN, by which records say that."""

    def known(newest: Newest) -> float | None:
        value = read(newest)
        return None if value is None or math.isnan(value) else value

    return known


def _of_gradient(
    read: Callable[[RangeRecord], float | None],
) -> Callable[[Newest], float | None]:
    """Return a reader of the newest measurement of all gradients."""
    return lambda newest: None if newest.gradient is None else read(newest.gradient)


def _skipped_steps(newest: Newest) -> float | None:
    if newest.step is None:
        return None
    return float(sum(sum(record.total_skipped) for record in newest.optimizers))


def _underflow_share(newest: Newest) -> float | None:
    record = newest.gradient
    if record is None:
        return None
    autocast = narrowest_half(newest.autocast_dtypes)
    return lost_share(record, limit_of(record, autocast))


def gradient_norm(record: RangeRecord) -> float | None:
    """Return the L2 norm of measured gradients without the loss scale; ``None`` if it is not known."""
    norm = record.norm / record.loss_scale if record.loss_scale else math.nan
    return norm if math.isfinite(norm) else None


def _of_memory(name: str) -> Callable[[Newest], float | None]:
    """Return a reader of the memory of the device, of the host where there is no other."""

    def read(newest: Newest) -> float | None:
        places = () if newest.memory is None else newest.memory.places
        known = {memory.place: float(getattr(memory, name)) for memory in places}
        return known.get("device", known.get("host"))

    return read


def _phase(*phases: StepPhase) -> Callable[[Newest], float | None]:
    """Return a reader of the time of phases, together; it knows nothing where none of them was seen."""

    def read(newest: Newest) -> float | None:
        seconds = 0.0 if newest.step is None else sum(newest.step.phases[p] for p in phases)
        return seconds or None

    return read


def _told(name: str) -> Callable[[Newest], float | None]:
    """Return a reader of a total that is -1 where the program does not tell it."""

    def read(newest: Newest) -> float | None:
        total = -1 if newest.step is None else getattr(newest.step, name)
        return float(total) if total >= 0 else None

    return read


def _phase_sum(labels: str) -> str:
    """Return the PromQL of the sum of some phases over all iterations."""
    match = "=~" if "|" in labels else "="
    query = f'ampwatch_step_phase_seconds_sum{{clock="host", phase{match}"{labels}"}}'
    return f"sum by (run, rank) ({query})" if "|" in labels else query


class LoggedMetric(NamedTuple):
    """One number that is handed to loggers.

    Attributes:
        key: Its key.
        unit: Its unit; ``1`` for a share, a flag or a number without a unit.
        says: What it says.
        promql: The same number in Prometheus, for one run and rank; empty where it is not there.
        read: Returns it; ``None`` if it is not known, and then there is no such key.
        summed: For a number that Prometheus has in a histogram: the PromQL of its sum over all
            iterations.
    """

    key: str
    unit: str
    says: str
    promql: str
    read: Callable[[Newest], float | None]
    summed: str = ""


_PROMQL_OF_MEMORY = (
    'sum by (run, rank) (ampwatch_training_memory_{0}_bytes{{memory="device"}})'
    ' or sum by (run, rank) (ampwatch_training_memory_{0}_bytes{{memory="host"}})'
)

METRICS: tuple[LoggedMetric, ...] = (
    LoggedMetric(
        "amp/step",
        "iterations",
        "The newest iteration whose values have arrived, from 0: what all but the sampled numbers are of.",
        "ampwatch_steps_total - 1",
        _of_step("step"),
    ),
    LoggedMetric(
        "amp/loss_scale",
        "1",
        "Loss scale after that iteration; absent without an enabled scaler.",
        "ampwatch_loss_scale",
        _finite(_of_step("loss_scale")),
    ),
    LoggedMetric(
        "amp/skipped",
        "1",
        "1 if a step of an optimizer was skipped in that iteration, else 0.",
        "ampwatch_optimizer_consecutive_skipped_steps > bool 0",
        lambda newest: None if newest.step is None else float(newest.step.consecutive_skips > 0),
    ),
    LoggedMetric(
        "amp/skipped_steps",
        "steps",
        "Steps of all optimizers that were skipped so far.",
        "sum by (run, rank) (ampwatch_optimizer_steps_skipped_total)",
        _skipped_steps,
    ),
    LoggedMetric(
        "amp/consecutive_skips",
        "iterations",
        "Length of the run of skipped iterations that ends with that one.",
        "ampwatch_optimizer_consecutive_skipped_steps",
        _of_step("consecutive_skips"),
    ),
    LoggedMetric(
        "amp/growths",
        "1",
        "Times the scaler grew the loss scale so far.",
        "ampwatch_loss_scale_growths_total",
        _of_step("total_growths"),
    ),
    LoggedMetric(
        "amp/backoffs",
        "1",
        "Times the scaler reduced the loss scale so far.",
        "ampwatch_loss_scale_backoffs_total",
        _of_step("total_backoffs"),
    ),
    LoggedMetric(
        "amp/loss",
        "1",
        "Newest loss handed to the scaler, unscaled; NaN or infinite if the loss is.",
        "ampwatch_loss",
        lambda newest: newest.loss,
    ),
    LoggedMetric(
        "amp/step_seconds",
        "s",
        "Wall time from the end of the iteration before to the end of that one.",
        "",
        _finite(_of_step("duration_s")),
        "ampwatch_step_duration_seconds_sum",
    ),
    LoggedMetric(
        "amp/data_wait_seconds",
        "s",
        "Of that, waiting for the next batch of a DataLoader; absent, like the next three, where the phase was not seen. By the clock of the host, which is ahead of a device.",
        "",
        _phase(StepPhase.DATA),
        _phase_sum("data"),
    ),
    LoggedMetric(
        "amp/forward_seconds",
        "s",
        "Of that, from the call of the model to backward, by the clock of the host.",
        "",
        _phase(StepPhase.FORWARD),
        _phase_sum("forward"),
    ),
    LoggedMetric(
        "amp/backward_seconds",
        "s",
        "Of that, in backward, also where gradients are summed over ranks in it, by the clock of the host.",
        "",
        _phase(StepPhase.BACKWARD, StepPhase.BACKWARD_WITH_REDUCTION),
        _phase_sum("backward|backward_with_reduction"),
    ),
    LoggedMetric(
        "amp/optimizer_seconds",
        "s",
        "Of that, in the steps of optimizers, by the clock of the host; absent in a skipped one.",
        "",
        _phase(StepPhase.OPTIMIZER),
        _phase_sum("optimizer"),
    ),
    LoggedMetric(
        "amp/samples_total",
        "samples",
        "Samples that this rank has trained on so far, where the program says so (`watch.batch(samples=...)`).",
        "ampwatch_trained_samples_total",
        _told("total_samples"),
    ),
    LoggedMetric(
        "amp/tokens_total",
        "tokens",
        "Tokens that this rank has trained on so far, where the program says so (`watch.batch(tokens=...)`).",
        "ampwatch_trained_tokens_total",
        _told("total_tokens"),
    ),
    LoggedMetric(
        "amp/overhead_seconds",
        "s",
        "Time that ampwatch took of the training thread so far.",
        "ampwatch_overhead_seconds_total",
        lambda newest: None if newest.step is None else newest.step.overhead_ns / 1e9,
    ),
    LoggedMetric(
        "amp/memory_bytes",
        "B",
        "Memory in use as it was read last, in one iteration of some: of the first device what PyTorch's allocator has handed out, of a training on a CPU the resident set.",
        _PROMQL_OF_MEMORY.format("allocated"),
        _of_memory("allocated"),
    ),
    LoggedMetric(
        "amp/memory_peak_bytes",
        "B",
        "The most that it was so far.",
        _PROMQL_OF_MEMORY.format("peak"),
        _of_memory("peak"),
    ),
    LoggedMetric(
        "amp/sample_step",
        "iterations",
        "The newest iteration in which gradients were measured: what the numbers below are of. Absent, like them, at level `light` and before the first.",
        "ampwatch_gradient_sample_step",
        _of_gradient(lambda gradient: float(gradient.step)),
    ),
    LoggedMetric(
        "amp/grad_norm",
        "1",
        "L2 norm of all gradients of this rank, without the loss scale, before clipping (without a scaler where the optimizer steps, so after it); absent where one of them is not finite.",
        "ampwatch_gradient_norm",
        _of_gradient(gradient_norm),
    ),
    LoggedMetric(
        "amp/scaled_grad_amax",
        "1",
        "Largest finite magnitude of a gradient, times the loss scale.",
        "ampwatch_scaled_gradient_amax",
        _of_gradient(finite_amax),
    ),
    LoggedMetric(
        "amp/underflow_share",
        "1",
        "Share of the gradient elements that are zero only because of the dtype of autocast (their own without one).",
        "ampwatch_gradient_underflow_ratio",
        _underflow_share,
    ),
    LoggedMetric(
        "amp/zero_share",
        "1",
        "Share of the gradient elements that are zero.",
        "ampwatch_gradient_zero_ratio",
        _of_gradient(zero_share),
    ),
    LoggedMetric(
        "amp/nonfinite_elements",
        "elements",
        "Elements of the gradients that are NaN or infinite.",
        "ampwatch_gradient_sample_nonfinite_elements",
        _of_gradient(lambda gradient: float(gradient.histogram.nonfinite)),
    ),
    LoggedMetric(
        "amp/findings",
        "1",
        "Findings so far, one for each kind and place.",
        "sum by (run, rank) (ampwatch_findings) or 0 * sum by (run, rank) (ampwatch_steps_total)",
        lambda newest: float(len(newest.findings)),
    ),
    LoggedMetric(
        "amp/critical_findings",
        "1",
        "Those of them that are critical.",
        'sum by (run, rank) (ampwatch_findings{severity="critical"}) or 0 * sum by (run, rank) (ampwatch_steps_total)',
        lambda newest: float(sum(f.severity is Severity.CRITICAL for f in newest.findings)),
    ),
)
"""The numbers of the newest iteration."""


def _skipped_share(newest: Newest) -> float | None:
    steps = sum(record.total_steps for record in newest.optimizers)
    skipped = _skipped_steps(newest)
    return skipped / steps if steps and skipped is not None else None


def _overhead_share(newest: Newest) -> float | None:
    if newest.step is None or newest.step.time_ns <= newest.started_ns:
        return None
    return newest.step.overhead_ns / (newest.step.time_ns - newest.started_ns)


TOTALS: tuple[LoggedMetric, ...] = (
    LoggedMetric(
        "amp/steps",
        "iterations",
        "Iterations of the run.",
        "ampwatch_steps_total",
        lambda newest: None if newest.step is None else newest.step.step + 1.0,
    ),
    LoggedMetric(
        "amp/skipped_share",
        "1",
        "Share of the steps of all optimizers that were skipped.",
        "sum by (run, rank) (ampwatch_optimizer_steps_skipped_total) / sum by (run, rank) (ampwatch_optimizer_steps_total)",
        _skipped_share,
    ),
    LoggedMetric(
        "amp/overhead_share",
        "1",
        "Time that ampwatch took, as a share of that since `monitor()` was called.",
        "ampwatch_overhead_seconds_total / (ampwatch_last_step_timestamp_seconds - ampwatch_run_start_timestamp_seconds)",
        _overhead_share,
    ),
)
"""What a summary of the whole run has besides."""


def flat(newest: Newest, rows: tuple[LoggedMetric, ...] = METRICS) -> dict[str, float]:
    """Return the numbers that are known, by key. Cost: about 10 us."""
    values = ((row.key, row.read(newest)) for row in rows)
    return {key: value for key, value in values if value is not None}


_HEAD = "| key | unit | what it says | in Prometheus |\n| --- | --- | --- | --- |\n"

_INTRODUCTION = f"""\
# Logged metrics

Generated from `ampwatch/report/logged.py`; change what is there, then run
`python -m ampwatch.report.logged > docs/logged-metrics.md`.

`watch.metrics()` returns these numbers as a flat dictionary of floats, and every callback and
logger of ampwatch is handed the same ones. A number that is not known has no key. The last column
has the PromQL that gives the same number of a daemon, for each run and rank.

The keys from `amp/sample_step` on are of the newest iteration in which gradients were measured, and
at most ten a second are recorded. All others are of the newest iteration whose values have arrived.

{_HEAD}"""

_SUMMARY = f"""
`watch.summary()` has these as well, over the whole run:

{_HEAD}"""


def markdown() -> str:
    """Return the text of ``docs/logged-metrics.md``."""
    parts = [_INTRODUCTION, *map(_line, METRICS), _SUMMARY, *map(_line, TOTALS)]
    return "".join(parts)


def _line(row: LoggedMetric) -> str:
    # A bar would end the cell of the table.
    found = (row.promql or row.summed).replace("|", "\\|")
    promql = f"`{found}`" if row.promql else f"not there: a histogram is, whose sum is `{found}`"
    return f"| `{row.key}` | {row.unit} | {row.says} | {promql} |\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
