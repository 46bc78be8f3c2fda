"""The newest minutes of a made-up training of many ranks, as Prometheus would have scraped it.

The first machine has GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ampwatch.host.metrics.prometheus import PrometheusExporter
from tests.workshop.clocks import START
from tests.workshop.fleets import fleet_with_gpus, made_up_fleet

MINUTES = 20
JOB = "ampwatch"
PER_MACHINE = 2
"""Ranks of the made-up run that share a daemon."""

BACKOFFS = 41.0
"""Backoffs of the last rank; with one growth, as everywhere, 40 halvings are left over."""

_OF_THE_SLOWEST = {"data": 2.6, "backward_with_reduction": 0.2}
"""By how much the last rank takes longer for a phase, on its device: 0.08 s of 0.25 s that others wait."""

_OF_THE_LAST = {
    "ampwatch_loss": 3.0,
    "ampwatch_step_duration_seconds_sum": 3.0,
}
"""Factors of what the last rank has more of."""

_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_RISES = ("_total", "_sum", "_count", "_bucket")


_GPU_SAMPLE = re.compile(r"^(ampwatch_(?:gpu|mig)_\w+)\{(.*)\} (\S+)$", re.MULTILINE)


def instance(machine: int) -> str:
    return f"node-{machine}:10917"


def samples(ranks: int) -> Iterator[tuple[str, str, float]]:
    """Name, labels and newest value of each series of the run gpt with ``ranks``, and of bert.

    All ranks are as rank 0 of the golden scrape, but for the last: it hangs, is slower, has half the
    loss scale, more backoffs and another loss, multiplies matrices in float32, and the others wait for its data.
    """
    body, _ = PrometheusExporter(made_up_fleet()).render()
    machines = -(-ranks // PER_MACHINE)
    lines = [line for line in body.decode().splitlines() if not line.startswith("#")]
    max_of_dtype = 'ampwatch_autocast_dtype_max{rank="0",run="gpt"} 65504.0'
    for line in [*lines, max_of_dtype, 'ampwatch_page_info{url="https://train.example.com/"} 1.0']:
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
    for machine in range(machines):
        yield "up", f'instance="{instance(machine)}"', 1.0
        for collector in ("rings", "gpu"):
            at = f'collector="{collector}",instance="{instance(machine)}"'
            yield "ampwatch_collector_success", at, 1.0
            yield "ampwatch_collector_duration_seconds", at, 0.01
    alert = 'alertname="AmpwatchLossScaleCollapsed",severity="critical",rank="0",run="gpt"'
    at = f'{alert},instance="{instance(0)}"'
    yield "ALERTS", f'{at},alertstate="firing"', 1.0
    whole_run = 'alertname="AmpwatchRanksApart",severity="critical",run="gpt",instance="several"'
    yield "ALERTS", f'{whole_run},alertstate="firing"', 1.0
    yield "ALERTS_FOR_STATE", at, START + 10.0


def differing(name: str, labels: str, value: float) -> float:
    """The value of the last rank, where that of rank 0 is ``value``."""
    if name in {"ampwatch_run_state", "ampwatch_run_health"}:
        return float('="stale"' in labels)
    if name in {"ampwatch_loss_scale", "ampwatch_loss_scale_min"}:
        return value / 2
    if name == "ampwatch_finding_steps_total" and 'kind="fp32_matmul"' in labels:
        return 6.0
    if name == "ampwatch_loss_scale_backoffs_total":
        return BACKOFFS
    if name == "ampwatch_step_phase_seconds_sum":  # in a step of the same time it waits for nobody
        (phase,) = re.findall(r'phase="(\w+)"', labels)
        return _OF_THE_SLOWEST.get(phase, 1.0) * value
    return _OF_THE_LAST.get(name, 1.0) * value


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


def gpu_samples(instance: str) -> Iterator[tuple[str, str, float]]:
    """Name, labels and newest value of each series of the synthetic GPUs, rank 0 on the second."""
    body, _ = PrometheusExporter(fleet_with_gpus()).render()
    for name, labels, value in _GPU_SAMPLE.findall(body.decode()):
        yield name, f'{labels},instance="{instance}"', float(value)
