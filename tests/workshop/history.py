"""The newest minutes of a made-up training of many ranks, as Prometheus would have scraped it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ampwatch.host.metrics.prometheus import PrometheusExporter
from tests.workshop.history_of_gpus import dcgm_samples, gpu_samples
from tests.workshop.records import START, made_up_fleet

if TYPE_CHECKING:
    from collections.abc import Iterator

MINUTES = 20
JOB = "ampwatch"
PER_MACHINE = 2
"""Ranks of the made-up run that share a daemon."""

BACKOFFS = 41.0
"""Of the last rank; one growth as everywhere, so that 40 halvings are left over."""

_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_RISES = ("_total", "_sum", "_count", "_bucket", "_ENERGY_CONSUMPTION")


def instance(machine: int) -> str:
    return f"node-{machine}:10917"


def samples(ranks: int) -> Iterator[tuple[str, str, float]]:
    """Name, labels and newest value of each series of the run gpt with so many ranks, and of bert.

    All ranks are as rank 0 of the golden scrape, but for the last: it hangs, is slower, and has
    half the loss scale, more backoffs and another loss.
    """
    body, _ = PrometheusExporter(made_up_fleet(), {}).render()
    machines = -(-ranks // PER_MACHINE)
    lines = [line for line in body.decode().splitlines() if not line.startswith("#")]
    for line in [*lines, 'ampwatch_autocast_dtype_max{rank="0",run="gpt"} 65504.0']:
        match = _SAMPLE.match(line)
        assert match is not None, line
        name, labels, value = match[1], match[2] or "", float(match[3])
        if name.startswith("ampwatch_gpu_"):
            continue  # the golden scrape has no GPU, the first machine has
        if 'run="gpt"' not in labels:
            for machine in range(1 if "run=" in labels else machines):
                yield name, f'{labels},instance="{instance(machine)}"'.lstrip(","), value
        elif 'rank="0"' in labels:
            for rank in range(ranks):
                own = labels.replace('rank="0"', f'rank="{rank}"')
                own = re.sub(r'world_size="\d*"', f'world_size="{ranks}"', own)
                changed = differing(name, labels, value) if rank == ranks - 1 else value
                yield name, f'{own},instance="{instance(rank // PER_MACHINE)}"', changed
    yield from gpu_samples(instance(0))
    yield from dcgm_samples()
    for machine in range(machines):
        yield "up", f'instance="{instance(machine)}"', 1.0
        for collector in ("rings", "gpu"):
            at = f'collector="{collector}",instance="{instance(machine)}"'
            yield "ampwatch_collector_success", at, 1.0
            yield "ampwatch_collector_duration_seconds", at, 0.01
    alert = 'alertname="AmpwatchLossScaleCollapsed",severity="critical",rank="0",run="gpt"'
    at = f'{alert},instance="{instance(0)}"'
    yield "ALERTS", f'{at},alertstate="firing"', 1.0
    whole_run = (
        'alertname="AmpwatchLossScaleDiverged",severity="warning",run="gpt",instance="several"'
    )
    yield "ALERTS", f'{whole_run},alertstate="firing"', 1.0
    yield "ALERTS_FOR_STATE", at, START + 10.0


def differing(name: str, labels: str, value: float) -> float:
    """The value of the last rank, where that of rank 0 is ``value``."""
    if name == "ampwatch_run_state":
        return float('state="stale"' in labels)
    if name in {"ampwatch_loss_scale", "ampwatch_loss_scale_min"}:
        return value / 2
    if name == "ampwatch_loss_scale_backoffs_total":
        return BACKOFFS
    if name in {"ampwatch_loss", "ampwatch_step_duration_seconds_sum"}:
        return value * 3
    return value


def openmetrics(ranks: int, now: float) -> str:
    """A sample a minute: counters rise from 0, timestamps stay as long ago as they are."""
    series = list(samples(ranks))
    lines = []
    for minute in range(MINUTES + 1):
        at = now - 60 * (MINUTES - minute)
        for name, labels, value in series:
            if name.endswith(_RISES):
                shown = value * minute / MINUTES
            elif name.endswith("_timestamp_seconds") or name == "ALERTS_FOR_STATE":
                shown = value - (START + 20) + at
            else:
                shown = value
            job = "" if labels.startswith("job=") else f'job="{JOB}",'
            lines.append(f"{name}{{{job}{labels}}} {shown!r} {at:.3f}")
    return "\n".join([*lines, "# EOF\n"])
