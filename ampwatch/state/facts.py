"""The numbers of a rank, one row each, with the ways out of each.

A row has the reader of a number of ``RankState``, what it says, its name in Prometheus and its key for
loggers. The daemon exports the rows that have a name (``host/metrics``); ``watch.metrics()``, callbacks and
loggers hand out those that have a key, and the end of ``docs/loggers.md`` is printed from them
(``python -m ampwatch.state.facts``). A new number takes a field of its record and a row here. Names,
keys and units are frozen once released.

A number that is not known is ``None``: there is no sample of it, and no key. A count of what happened so far
is 0 before its first record: a counter that appeared with its first value would hide it from ``increase()``.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.state.limits import finite_amax, limit_of, lost_share, zero_share
from ampwatch.state.text import whole_number
from ampwatch.wire.records import MEMORY_LIMIT, Severity, StepPhase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ampwatch.state.rank import RankState
    from ampwatch.wire.records import RangeRecord, SamplingRecord, StepRecord

    Read = Callable[[RankState], float | None]


class Fact(NamedTuple):
    """One number.

    Attributes:
        name: Its name in Prometheus, per run and rank; empty for one that loggers alone are handed.
        says: What it says: the help of the metric.
        read: Returns it; ``None`` if it is not known.
        key: Its key for loggers; empty for one that Prometheus alone has.
        unit: Its unit for loggers; ``1`` for a share, a flag or a number without a unit.
        query: The PromQL that gives the same number, where it is not ``name``.
        is_sum: ``query`` is the sum of a histogram, over all iterations.
    """

    name: str
    says: str
    read: Read
    key: str = ""
    unit: str = "1"
    query: str = ""
    is_sum: bool = False

    @property
    def promql(self) -> str:
        """The PromQL of the number for each run and rank; empty where Prometheus has it not."""
        return self.query or self.name


def _of_step(read: Callable[[StepRecord], float | None]) -> Read:
    """Return a reader of the newest iteration."""
    return lambda rank: None if rank.newest is None else read(rank.newest)


def _count(read: Callable[[StepRecord], float]) -> Read:
    """Return a reader of a count so far that every iteration has."""
    return lambda rank: 0 if rank.newest is None else read(rank.newest)


def _of_gradient(read: Callable[[RangeRecord], float | None]) -> Read:
    """Return a reader of the newest measurement of all gradients."""
    return lambda rank: None if rank.gradient is None else read(rank.gradient)


def _of_totals(read: Callable[[SamplingRecord], float | None]) -> Read:
    """Return a reader of the totals of sampling."""
    return lambda rank: None if rank.totals is None else read(rank.totals)


def _total(read: Callable[[SamplingRecord], float]) -> Read:
    """Return a reader of a count so far that the totals of sampling have."""
    return lambda rank: 0 if rank.totals is None else read(rank.totals)


def _known(value: float) -> float | None:
    """Return a number of a record; ``None`` for NaN, by which records say that it is not known."""
    return None if math.isnan(value) else value


def _counted(value: int) -> int | None:
    """Return a count of a record; ``None`` for -1, by which records say that it is not known."""
    return value if value >= 0 else None


def _seconds(nanoseconds: int) -> float | None:
    return nanoseconds / 1e9 if nanoseconds >= 0 else None


def _of_fact(name: str) -> Read:
    """Return a reader of a fact that should be a finite number: a ring can hold any text."""

    def read(rank: RankState) -> float | None:
        try:
            value = float(rank.facts.get(name, ""))
        except ValueError:
            return None
        return value if math.isfinite(value) else None

    return read


def _skipped_share(rank: RankState) -> float | None:
    return sum(rank.skips.values()) / rank.attempted if rank.attempted else None


def _overhead_share(rank: RankState) -> float | None:
    newest, started_ns = rank.newest, rank.identity.started_ns
    if newest is None or newest.time_ns <= started_ns:
        return None
    return newest.overhead_ns / (newest.time_ns - started_ns)


def _underflow_share(rank: RankState) -> float | None:
    gradient = rank.gradient
    return None if gradient is None else lost_share(gradient, limit_of(gradient, rank.autocast))


def _gradient_norm(record: RangeRecord) -> float | None:
    norm = record.norm / record.loss_scale if record.loss_scale else math.nan
    return norm if math.isfinite(norm) else None


def _of_memory(name: str) -> Read:
    """Return a reader of the memory of the device, of the host where there is no other."""

    def read(rank: RankState) -> float | None:
        places = () if rank.memory is None else rank.memory.places
        known = {memory.place: float(getattr(memory, name)) for memory in places}
        return known.get("device", known.get("host"))

    return read


def _phase(*phases: StepPhase) -> Read:
    """Return a reader of the time of phases, together; it knows nothing where none of them was seen."""
    return _of_step(lambda step: sum(step.phases[phase] for phase in phases) or None)


def _phase_sum(labels: str) -> str:
    """Return the PromQL of the sum of some phases over all iterations."""
    match = "=~" if "|" in labels else "="
    query = f'ampwatch_step_phase_seconds_sum{{clock="host", phase{match}"{labels}"}}'
    return f"sum by (run, rank) ({query})" if "|" in labels else query


_MEMORY_QUERY = (
    'sum by (run, rank) (ampwatch_training_memory_{0}_bytes{{memory="device"}})'
    ' or sum by (run, rank) (ampwatch_training_memory_{0}_bytes{{memory="host"}})'
)

SCALE: tuple[Fact, ...] = (
    Fact(
        "ampwatch_loss_scale",
        "Current loss scale of the GradScaler; absent without an enabled one.",
        lambda rank: rank.loss_scale,
        "amp/loss_scale",
    ),
    Fact(
        "ampwatch_loss_scale_initial",
        "Loss scale the GradScaler started from (init_scale).",
        _of_fact("init_scale"),
    ),
    Fact(
        "ampwatch_loss_scale_growth_interval_steps",
        "Unskipped steps in a row after which the GradScaler grows the scale (growth_interval).",
        _of_fact("growth_interval"),
    ),
    Fact(
        "ampwatch_loss_scale_growth_tracker_steps",
        "Unskipped steps in a row that the GradScaler has counted.",
        _of_step(lambda step: _counted(step.growth_tracker)),
    ),
    Fact(
        "ampwatch_loss_scale_growths_total",
        "Times the GradScaler grew the loss scale.",
        _count(lambda step: step.total_growths),
        "amp/growths",
    ),
    Fact(
        "ampwatch_loss_scale_backoffs_total",
        "Times the GradScaler reduced the loss scale after non-finite gradients.",
        _count(lambda step: step.total_backoffs),
        "amp/backoffs",
    ),
    Fact(
        "ampwatch_loss_scale_set_by_hand_total",
        "Times the loss scale changed otherwise than by growth or backoff.",
        _count(lambda step: step.total_set_by_hand),
    ),
)

STEPS: tuple[Fact, ...] = (
    Fact(
        "",
        "The newest iteration whose values have arrived, from 0.",
        _of_step(lambda step: step.step),
        "amp/step",
        "iterations",
        "ampwatch_steps_total - 1",
    ),
    Fact(
        "",
        "1 if a step of an optimizer was skipped in that iteration, else 0.",
        _of_step(lambda step: step.consecutive_skips > 0),
        "amp/skipped",
        query="ampwatch_optimizer_consecutive_skipped_steps > bool 0",
    ),
    Fact(
        "",
        "Steps of all optimizers that were skipped so far.",
        lambda rank: sum(rank.skips.values()),
        "amp/skipped_steps",
        "steps",
        "sum by (run, rank) (ampwatch_optimizer_steps_skipped_total)",
    ),
    Fact(
        "ampwatch_optimizer_consecutive_skipped_steps",
        "Length of the current run of skipped iterations.",
        _count(lambda step: step.consecutive_skips),
        "amp/consecutive_skips",
        "iterations",
    ),
    Fact(
        "ampwatch_last_step_timestamp_seconds",
        "Unix time at which the newest iteration ended.",
        _of_step(lambda step: step.time_ns / 1e9),
    ),
    Fact(
        "ampwatch_last_applied_step_timestamp_seconds",
        "Unix time at which the newest iteration without a skipped step ended.",
        lambda rank: rank.last_applied_ns / 1e9 if rank.last_applied_ns else None,
    ),
    Fact(
        "ampwatch_loss",
        "Newest loss handed to GradScaler.scale(), unscaled; NaN or infinite if the loss is.",
        lambda rank: rank.loss,
        "amp/loss",
    ),
    Fact(
        "ampwatch_loss_nonfinite_total",
        "Iterations in which a loss was NaN or infinite.",
        _count(lambda step: step.total_nonfinite_losses),
        "amp/nonfinite_losses",
        "iterations",
    ),
)

TIMES: tuple[Fact, ...] = (
    Fact(
        "",
        "Wall time of that iteration, from the end of the one before.",
        _of_step(lambda step: _known(step.duration_s)),
        "amp/step_seconds",
        "s",
        "ampwatch_step_duration_seconds_sum",
        is_sum=True,
    ),
    Fact(
        "",
        "Of that, waiting for the next batch of a DataLoader. This and the next three are by the clock of the host, which is ahead of a device, and absent where the phase was not seen.",
        _phase(StepPhase.DATA),
        "amp/data_wait_seconds",
        "s",
        _phase_sum("data"),
        is_sum=True,
    ),
    Fact(
        "",
        "Of that, from the call of the model to backward.",
        _phase(StepPhase.FORWARD),
        "amp/forward_seconds",
        "s",
        _phase_sum("forward"),
        is_sum=True,
    ),
    Fact(
        "",
        "Of that, in backward, sums of gradients over ranks included.",
        _phase(StepPhase.BACKWARD, StepPhase.BACKWARD_WITH_REDUCTION),
        "amp/backward_seconds",
        "s",
        _phase_sum("backward|backward_with_reduction"),
        is_sum=True,
    ),
    Fact(
        "",
        "Of that, in the steps of optimizers.",
        _phase(StepPhase.OPTIMIZER),
        "amp/optimizer_seconds",
        "s",
        _phase_sum("optimizer"),
        is_sum=True,
    ),
    Fact(
        "ampwatch_trained_samples_total",
        "Samples trained on, as the program reports them (Monitor.batch).",
        _of_step(lambda step: _counted(step.total_samples)),
        "amp/samples_total",
        "samples",
    ),
    Fact(
        "ampwatch_trained_tokens_total",
        "Tokens trained on, as the program reports them (Monitor.batch).",
        _of_step(lambda step: _counted(step.total_tokens)),
        "amp/tokens_total",
        "tokens",
    ),
    Fact(
        "ampwatch_training_thread_cpu_seconds_total",
        "CPU time of the training thread (Linux).",
        _of_step(lambda step: _seconds(step.cpu_ns)),
    ),
    Fact(
        "ampwatch_training_thread_run_delay_seconds_total",
        "Time for which the training thread waited for a core (Linux).",
        _of_step(lambda step: _seconds(step.run_delay_ns)),
    ),
)

RUN: tuple[Fact, ...] = (
    Fact(
        "ampwatch_run_start_timestamp_seconds",
        "Unix time at which ampwatch.monitor() was called on this rank.",
        lambda rank: rank.identity.started_ns / 1e9,
    ),
    Fact(
        "ampwatch_last_report_timestamp_seconds",
        "Unix time of the newest report of this rank: its start, a step or its end.",
        lambda rank: rank.last_record_ns / 1e9,
    ),
    Fact(
        "ampwatch_overhead_seconds_total",
        "Time that ampwatch took of the training: what it timed, an estimate for plain steps, and what sampled steps took longer.",
        _count(lambda step: step.overhead_ns / 1e9),
        "amp/overhead_seconds",
        "s",
    ),
    Fact(
        "ampwatch_memory_limit_bytes",
        "Limit of ampwatch's memory on the host, and again on devices (setting memory_bytes).",
        lambda rank: whole_number(rank.facts.get(MEMORY_LIMIT, "")),
    ),
    Fact(
        "ampwatch_observations_dropped_total",
        "Steps whose values were not read because the device was too far behind.",
        _count(lambda step: step.total_observations_dropped),
    ),
)

MEMORY: tuple[Fact, ...] = (
    Fact(
        "",
        "Memory in use when it was last read: allocated by PyTorch on the first device, or on a CPU the resident set.",
        _of_memory("allocated"),
        "amp/memory_bytes",
        "B",
        _MEMORY_QUERY.format("allocated"),
    ),
    Fact(
        "",
        "Its maximum so far.",
        _of_memory("peak"),
        "amp/memory_peak_bytes",
        "B",
        _MEMORY_QUERY.format("peak"),
    ),
)

SAMPLING: tuple[Fact, ...] = (
    Fact(
        "ampwatch_samples_dropped_total",
        "Measurements given up because the device was too far behind.",
        _total(lambda totals: totals.samples_dropped),
    ),
    Fact(
        "ampwatch_device_overhead_seconds_total",
        "Device time of measurements; on a CPU part of ampwatch_overhead_seconds_total.",
        _total(lambda totals: totals.device_ns / 1e9),
    ),
    Fact(
        "ampwatch_tensors_refused",
        "Tensors in the newest sample that cannot be measured (integer, complex, meta ...).",
        _of_totals(lambda totals: totals.tensors_refused),
    ),
    Fact(
        "ampwatch_modules_left_out",
        "Modules beyond max_modules, whose ranges the newest sample does not record.",
        _of_totals(lambda totals: totals.modules_left_out),
    ),
)

GRADIENTS: tuple[Fact, ...] = (
    Fact(
        "ampwatch_gradient_elements_total",
        "Gradient elements measured in sampled iterations.",
        _total(lambda totals: totals.gradient_elements),
    ),
    Fact(
        "ampwatch_gradient_zero_elements_total",
        "Gradient elements measured that are zero.",
        _total(lambda totals: totals.gradient_zeros),
    ),
    Fact(
        "ampwatch_gradient_underflow_elements_total",
        "Gradient elements measured that the dtype of autocast (their own without one) has flushed to zero, or would, at the loss scale of their time. What was flushed follows from the same gradient when it was last more than zeros, or from the values beside it; of a gradient that always was zeros nothing is counted.",
        _total(lambda totals: totals.gradient_underflow),
    ),
    Fact(
        "ampwatch_gradient_subnormal_elements_total",
        "Gradient elements measured that would be subnormal in the autocast dtype at the loss scale of their time.",
        _total(lambda totals: totals.gradient_subnormal),
    ),
    Fact(
        "ampwatch_gradient_sample_step",
        "Iteration of the newest sample of gradients, from 0.",
        _of_gradient(lambda gradient: gradient.step),
        "amp/sample_step",
        "iterations",
    ),
    Fact(
        "ampwatch_gradient_norm",
        "L2 norm of all gradients of the rank (of its shards, if sharded) in the newest sample, without the loss scale, before clipping (without a scaler after it); absent if one was not finite.",
        _of_gradient(_gradient_norm),
        "amp/grad_norm",
    ),
    Fact(
        "ampwatch_scaled_gradient_amax",
        "Largest finite gradient magnitude of the newest sample, multiplied by the loss scale.",
        _of_gradient(finite_amax),
        "amp/scaled_grad_amax",
    ),
    Fact(
        "ampwatch_gradient_underflow_ratio",
        "Share of the gradient elements that became zero only because the dtype cannot hold them, in the newest sample.",
        _underflow_share,
        "amp/underflow_share",
    ),
    Fact(
        "ampwatch_gradient_zero_ratio",
        "Share of the finite gradient elements of the newest sample that are zero.",
        _of_gradient(zero_share),
        "amp/zero_share",
    ),
    Fact(
        "ampwatch_gradient_sample_nonfinite_elements",
        "Gradient elements of the newest sample that are NaN or infinite.",
        _of_gradient(lambda gradient: gradient.histogram.nonfinite),
        "amp/nonfinite_elements",
        "elements",
    ),
    Fact(
        "ampwatch_autocast_dtype_max",
        "Largest finite number of the autocast dtype (65504 for float16); of several the smallest.",
        lambda rank: None if rank.autocast is None else rank.autocast.max,
    ),
)

PARAMETERS_AND_BUFFERS: tuple[Fact, ...] = (
    Fact(
        "ampwatch_parameter_nonfinite_elements",
        "NaN and infinite elements of all parameters, each as of its last check, without the infinities that were there before the first step.",
        _of_totals(lambda totals: _counted(totals.parameter_nonfinite)),
    ),
    Fact(
        "ampwatch_buffer_nonfinite_elements",
        "NaN and infinite elements of the buffers at their last check, without masks and sentinels that are meant to hold them.",
        _of_totals(lambda totals: _counted(totals.buffer_nonfinite)),
    ),
)

FINDINGS: tuple[Fact, ...] = (
    Fact(
        "",
        "Findings so far, one for each kind and place.",
        lambda rank: len(rank.findings),
        "amp/findings",
        query="sum by (run, rank) (ampwatch_findings) or 0 * sum by (run, rank) (ampwatch_steps_total)",
    ),
    Fact(
        "",
        "Those of them that are warnings or worse.",
        lambda rank: sum(f.severity is not Severity.INFO for f in rank.findings.values()),
        "amp/alarms",
        query='sum by (run, rank) (ampwatch_findings{severity!="info"}) or 0 * sum by (run, rank) (ampwatch_steps_total)',
    ),
    Fact(
        "",
        "Those of them that are critical.",
        lambda rank: sum(f.severity is Severity.CRITICAL for f in rank.findings.values()),
        "amp/critical_findings",
        query='sum by (run, rank) (ampwatch_findings{severity="critical"}) or 0 * sum by (run, rank) (ampwatch_steps_total)',
    ),
    Fact(
        "ampwatch_finding_records_left_out_total",
        "Reports of findings that the daemon did not keep because the rank has too many.",
        lambda rank: rank.finding_totals.left_out,
    ),
)

WHOLE_RUN: tuple[Fact, ...] = (
    Fact(
        "ampwatch_steps_total",
        "Iterations, one per update of the GradScaler, skipped ones included.",
        _count(lambda step: step.step + 1),
        "amp/steps",
        "iterations",
    ),
    Fact(
        "",
        "Share of the steps of all optimizers that were skipped.",
        _skipped_share,
        "amp/skipped_share",
        query="sum by (run, rank) (ampwatch_optimizer_steps_skipped_total) / sum by (run, rank) (ampwatch_optimizer_steps_total)",
    ),
    Fact(
        "",
        "Share of the time since `monitor()` that ampwatch took.",
        _overhead_share,
        "amp/overhead_share",
        query="ampwatch_overhead_seconds_total / (ampwatch_last_step_timestamp_seconds - ampwatch_run_start_timestamp_seconds)",
    ),
)
"""What a summary of the whole run has besides."""

LOGGED = tuple(
    fact for fact in (*STEPS, *SCALE, *TIMES, *RUN, *MEMORY, *GRADIENTS, *FINDINGS) if fact.key
)
"""What loggers are handed: numbers of the newest iteration, and from ``amp/sample_step`` on those of the
newest in which gradients were measured."""

FACTS = {fact.key: fact for fact in (*LOGGED, *WHOLE_RUN)}
"""Every number that has a key, by it."""


def flat(rank: RankState, facts: Iterable[Fact] = LOGGED) -> dict[str, float]:
    """Return the numbers that are known, by key. Cost: about 10 us."""
    values = ((fact.key, fact.read(rank)) for fact in facts)
    return {key: float(value) for key, value in values if value is not None}


_HEAD = "| key | unit | what it says | in Prometheus |\n| --- | --- | --- | --- |\n"

_INTRODUCTION = f"""\
<!-- From here on generated from ampwatch/state/facts.py: make docs -->

## Logged metrics

`watch.metrics()` returns these numbers as a flat dictionary of floats; callbacks and loggers get the same ones. An unknown number has no
key. The last column is the PromQL of the same number, by run and rank; *sum:* is that of a histogram, over all iterations.

The keys from `amp/sample_step` to `amp/nonfinite_elements` are of the newest iteration in which gradients were measured: none at level
`light`, at most ten a second. All others are of the newest iteration whose values have arrived.

{_HEAD}"""

_SUMMARY = f"""
`watch.summary()` has these as well, over the whole run:

{_HEAD}"""


def markdown() -> str:
    """Return the end of ``docs/loggers.md``: a table of all keys, and one of those of ``summary()``."""
    return "".join([_INTRODUCTION, *map(_line, LOGGED), _SUMMARY, *map(_line, WHOLE_RUN)])


def _line(fact: Fact) -> str:
    # A bar would end the cell of the table.
    query = fact.promql.replace("|", "\\|")
    promql = f"sum: `{query}`" if fact.is_sum else f"`{query}`"
    return f"| `{fact.key}` | {fact.unit} | {fact.says} | {promql} |\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
