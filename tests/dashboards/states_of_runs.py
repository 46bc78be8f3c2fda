"""Runs in the states that people look at dashboards for, each with what must be said of it.

Most series are those of rank 0 of the golden scrape. What tells the states apart is set here, minute
by minute: what the daemon exports of the verdict, and the numbers beside it that must not refute it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ampwatch.diagnosis.kinds.registry import KINDS
from ampwatch.host.metrics.prometheus import PrometheusExporter
from ampwatch.report.verdict import Level
from tests.workshop.clocks import START
from tests.workshop.fleets import fleet_with_gpus, made_up_fleet

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MINUTES = 60
MACHINE = "node-0:10917"
STEPS_PER_MINUTE = 600
FIRST_SCALE = 2.0**16

_PROCESSES = ("running", "finished", "failed", "stale")
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_GPU_SAMPLE = re.compile(r"^(ampwatch_(?:gpu|mig)_\w+)\{(.*)\} (\S+)$", re.MULTILINE)
_RISES = ("_total", "_sum", "_count", "_bucket")
_ROWDY = (
    "ampwatch_optimizer_steps_skipped_total",
    "ampwatch_optimizer_consecutive_skipped_steps",
    "ampwatch_optimizer_consecutive_skipped_steps_max",
    "ampwatch_loss_scale_set_by_hand_total",
    "ampwatch_loss_nonfinite_total",
    "ampwatch_gradient_nonfinite_elements_total",
    "ampwatch_buffer_nonfinite_elements",
)
"""Trouble of the golden scrape that no run here has unless its story says so."""

_TOLD_HERE = (
    "ampwatch_run_state",
    "ampwatch_run_health",
    "ampwatch_root_info",
    "ampwatch_rank_failure_info",
    "ampwatch_finding",
    "ampwatch_sensor_errors_total",
    "ampwatch_gpu_",
    "ampwatch_mig_",
)

Moment = dict[str, float]
"""Values of one minute by series: a name, or a name with the labels that tell its series apart."""


@dataclass(frozen=True)
class Root:
    """Finding that the verdict of a run speaks of."""

    kind: str
    place: str
    op: str
    first_step: int
    remedy: str
    severity: str = "critical"

    def labels(self) -> str:
        """Return the labels of ``ampwatch_root_info`` beside run and rank."""
        return (
            f'kind="{self.kind}",severity="{self.severity}",place="{self.place}",op="{self.op}"'
            f',first_step="{self.first_step}",remedy="{self.remedy}"'
        )


OVERFLOW = Root(
    "forward_overflow",
    "module encoder.0",
    "softmax",
    35 * STEPS_PER_MINUTE,
    "Run encoder.0 in float32 or bfloat16: its output is beyond 65504.",
)
FLUSHED = Root(
    "grad_underflow",
    "the gradients of the model",
    "",
    25 * STEPS_PER_MINUTE,
    "Let the loss scale grow: at 4.8e-07 every gradient is flushed to zero.",
)
DIVERGED = Root(
    "param_nonfinite",
    "parameter fc.weight",
    "",
    40 * STEPS_PER_MINUTE,
    "Stop the run and go back to a checkpoint from before step 24000.",
)


@dataclass(frozen=True)
class Story:
    """A run over an hour.

    Args:
        run: Its name.
        health: Its state now.
        process: What became of its process.
        before: Its state until ``since``.
        since: Minute from which on ``health`` and ``root`` hold.
        root: What the verdict speaks of, as long as it does.
        found: What was found so far, by kind, with the minutes of the first and the last sighting.
        ranks: How many ranks it has, all alike.
        ended: Minute of its newest step.
    """

    run: str
    health: str
    process: str = "running"
    before: str = "healthy"
    since: int = 0
    root: Root | None = None
    found: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    ranks: int = 1
    ended: int = MINUTES

    def moment(self, minute: int) -> Moment:
        """Return what is different from the golden scrape in a minute."""
        return {}

    def health_at(self, minute: int) -> str:
        """Return the state of the run in a minute."""
        return self.health if minute >= self.since else self.before


class Healthy(Story):
    """A saw-tooth: the scale is doubled each twenty minutes, and halved at once."""

    def moment(self, minute: int) -> Moment:
        probes = minute // 20
        return {
            "ampwatch_loss_scale": FIRST_SCALE,
            "ampwatch_loss_scale_min": FIRST_SCALE,
            "ampwatch_loss_scale_growths_total": probes,
            "ampwatch_loss_scale_backoffs_total": probes,
            'ampwatch_optimizer_steps_skipped_total{class="probe"}': probes,
            "ampwatch_loss": 4.0 - minute / 40,
        }


class Collapsed(Story):
    """A storm that goes on: from minute 35 on each minute four halvings and more."""

    def moment(self, minute: int) -> Moment:
        halvings = max(minute - 35, 0) * 4
        scale = FIRST_SCALE * 2.0**-halvings
        return {
            "ampwatch_loss_scale": scale,
            "ampwatch_loss_scale_min": scale,
            "ampwatch_loss_scale_growths_total": 0,
            "ampwatch_loss_scale_backoffs_total": halvings,
            'ampwatch_optimizer_steps_skipped_total{class="storm"}': halvings,
            "ampwatch_optimizer_consecutive_skipped_steps_max": 4.0 if halvings else 0.0,
            "ampwatch_loss": 4.0 if minute < 35 else float("nan"),
            "ampwatch_loss_nonfinite_total": halvings,
            'ampwatch_gradient_nonfinite_elements_total{kind="nan"}': 1000.0 * halvings,
            "ampwatch_last_applied_step_timestamp_seconds": -60.0 * max(minute - 35, 0),
        }


class Recovered(Story):
    """A burst of 24 halvings in minutes 52 and 53; since then the scale is doubled each minute."""

    def moment(self, minute: int) -> Moment:
        halvings = min(max(minute - 51, 0) * 12, 24)
        growths = max(minute - 53, 0)
        scale = FIRST_SCALE * 2.0 ** (growths - halvings)
        return {
            "ampwatch_loss_scale": scale,
            "ampwatch_loss_scale_min": FIRST_SCALE * 2.0**-halvings,
            "ampwatch_loss_scale_growths_total": growths,
            "ampwatch_loss_scale_backoffs_total": halvings,
            'ampwatch_optimizer_steps_skipped_total{class="storm"}': halvings,
            "ampwatch_optimizer_consecutive_skipped_steps_max": 12.0 if 51 < minute < 55 else 0.0,
            "ampwatch_loss": 4.0 - minute / 40,
        }


class Flushed(Story):
    """A scale of 2^-21, left there: from minute 25 on every gradient is zero, and nothing is skipped."""

    def moment(self, minute: int) -> Moment:
        lost = max(minute - 25, 0) * 2632.0
        scale = 2.0**-21 if minute >= 25 else 1.0
        return {
            "ampwatch_loss_scale": scale,
            "ampwatch_loss_scale_min": scale,
            "ampwatch_loss_scale_growths_total": 0,
            "ampwatch_loss_scale_backoffs_total": 0,
            "ampwatch_scaled_gradient_amax": 0.0 if minute >= 25 else 0.004,
            "ampwatch_scaled_gradient_amax_max": 0.0 if minute >= 25 else 0.004,
            "ampwatch_gradient_elements_total": minute * 2632.0,
            "ampwatch_gradient_zero_elements_total": lost,
            "ampwatch_gradient_underflow_elements_total": lost,
            "ampwatch_gradient_subnormal_elements_total": 0.0,
            "ampwatch_gradient_magnitude_bucket": min(minute, 25) * 100.0,
            "ampwatch_gradient_magnitude_count": min(minute, 25) * 100.0,
            "ampwatch_loss": 4.0,
        }


class Diverged(Story):
    """Weights that are not finite from minute 40 on; it trained until minute 55 and ended well."""

    def moment(self, minute: int) -> Moment:
        bad = minute >= 40
        return {
            "ampwatch_loss_scale": FIRST_SCALE,
            "ampwatch_loss_scale_min": FIRST_SCALE,
            "ampwatch_loss_scale_growths_total": 0,
            "ampwatch_loss_scale_backoffs_total": 0,
            "ampwatch_parameter_nonfinite_elements": 512.0 if bad else 0.0,
            "ampwatch_loss": float("nan") if bad else 4.0,
            "ampwatch_loss_nonfinite_total": max(min(minute, 55) - 40, 0) * 600.0,
        }


STORIES: tuple[Story, ...] = (
    Healthy("a-healthy", "healthy"),
    Collapsed(
        "b-collapsed",
        "failing",
        since=35,
        root=OVERFLOW,
        found={"forward_overflow": (35, 60), "scale_collapse": (37, 60)},
    ),
    Recovered(
        "c-recovered", "attention", since=52, found={"backward_nonfinite_any_scale": (52, 53)}
    ),
    Flushed(
        "d-flushed",
        "failing",
        since=25,
        root=FLUSHED,
        found={"grad_underflow": (25, 60)},
    ),
    Diverged(
        "e-diverged",
        "broken",
        process="finished",
        before="failing",
        since=55,
        ended=55,
        root=DIVERGED,
        found={"param_nonfinite": (40, 55)},
    ),
    Healthy("f-finished", "finished", process="finished", since=50, ended=50),
    Healthy("g-killed", "failed", process="failed", since=50, ended=50, ranks=8),
    Healthy("h-stale", "stale", process="stale", since=57, ended=55),
    Healthy("i-searching", "calibrating", before="starting", since=59),
)

CAUSE = 3
"""Rank of ``g-killed`` whose exception made the others end."""

ALERTS = (
    ("AmpwatchLossScaleCollapsed", "critical", "b-collapsed", 36),
    ("AmpwatchCriticalFinding", "critical", "b-collapsed", 36),
    ("AmpwatchSkipStorm", "warning", "b-collapsed", 36),
    ("AmpwatchUnderflowHigh", "warning", "d-flushed", 30),
    ("AmpwatchCriticalFinding", "critical", "d-flushed", 26),
)
"""Alerts that fire: name, severity, run, and the minute since which."""


def openmetrics_of_states(now: float) -> str:
    """Return a sample a minute of every story, and of a machine with GPUs, in OpenMetrics."""
    golden = _golden()
    beside = list(_machine())
    lines = []
    for minute in range(MINUTES + 1):
        at = now - 60 * (MINUTES - minute)
        for name, labels, value in beside:
            lines.append(
                f'{name}{{job="ampwatch",instance="{MACHINE}"{labels}}} {value!r} {at:.3f}'
            )
        for story in STORIES:
            for rank in range(story.ranks):
                who = f'job="ampwatch",instance="{MACHINE}",run="{story.run}",rank="{rank}"'
                for series, value in _scrape(story, rank, minute, golden, now).items():
                    name, _, labels = series.partition("{")
                    own = f",{labels}" if labels else "}"
                    lines.append(f"{name}{{{who}{own} {value!r} {at:.3f}")
        for alert, severity, run, since in ALERTS:
            labels = f'alertname="{alert}",severity="{severity}",run="{run}",rank="0"'
            who = f'job="ampwatch",instance="{MACHINE}",{labels}'
            if minute >= since:
                began = now - 60 * (MINUTES - since)
                lines.append(f'ALERTS{{{who},alertstate="firing"}} 1.0 {at:.3f}')
                lines.append(f"ALERTS_FOR_STATE{{{who}}} {began!r} {at:.3f}")
    return "\n".join([*lines, "# EOF\n"])


def _golden() -> dict[str, float]:
    """Return the series of rank 0 of the golden scrape, run and rank left out of their labels."""
    body, _ = PrometheusExporter(made_up_fleet(), {}).render()
    found = {"ampwatch_autocast_dtype_max": 65504.0}
    for line in body.decode().splitlines():
        match = _SAMPLE.match(line)
        if match is None or 'run="gpt"' not in line or not re.search(r'\brank="0"', line):
            continue
        if match[1].startswith(_TOLD_HERE):
            continue
        labels = [
            label
            for label in re.findall(r'\w+="(?:[^"\\]|\\.)*"', match[2])
            if not label.startswith(("run=", "rank="))
        ]
        found[match[1] + (f"{{{','.join(labels)}}}" if labels else "")] = float(match[3])
    return found


def _scrape(
    story: Story, rank: int, minute: int, golden: Mapping[str, float], now: float
) -> Moment:
    """Return the series of a rank in a minute, without its run and rank."""
    trained = min(minute, story.ended)
    at = now - 60 * (MINUTES - trained)
    return {
        **_usual(story, trained, golden, at),
        **_special(story.moment(minute if story.process == "running" else trained), at),
        "ampwatch_run_start_timestamp_seconds": now - 60 * MINUTES,
        **_verdict(story, rank, minute),
        **_findings(story, minute, now),
    }


def _usual(story: Story, trained: int, golden: Mapping[str, float], at: float) -> Moment:
    """Return what is as in the golden scrape, at a time: what rises does so from 0, and nothing is lost."""
    found: Moment = {}
    buckets = story.moment(trained).get("ampwatch_gradient_magnitude_bucket")
    for series, value in golden.items():
        name = series.partition("{")[0]
        if name in _ROWDY:
            found[series] = 0.0
        elif name in ("ampwatch_steps_total", "ampwatch_optimizer_steps_total"):
            found[series] = float(trained * STEPS_PER_MINUTE)
        elif name == "ampwatch_gradient_magnitude_bucket" and buckets is not None:
            found[series] = buckets
        elif name.endswith(_RISES):
            found[series] = value * trained / MINUTES
        elif name.endswith("_timestamp_seconds"):
            found[series] = value - (START + 20) + at
        elif name == "ampwatch_run_info":
            found[re.sub(r'world_size="\d+"', f'world_size="{story.ranks}"', series)] = value
        else:
            found[series] = value
    return found


def _special(moment: Moment, at: float) -> Moment:
    """Return what a story says of a minute; times are told as seconds from then."""
    found: Moment = {}
    for series, value in moment.items():
        name, _, labels = series.partition("{")
        if name == "ampwatch_optimizer_steps_skipped_total":
            found[f'{name}{{{labels[:-1]},optimizer="0"}}'] = float(value)
        elif not name.endswith("_bucket"):
            found[series] = value + at if name.endswith("_timestamp_seconds") else float(value)
    return found


def _verdict(story: Story, rank: int, minute: int) -> Moment:
    """Return the state of a rank, its root, and why it failed."""
    over = story.process != "running" and minute >= story.since
    process = story.process if over else "running"
    health = story.health_at(minute)
    found = {
        **{f'ampwatch_run_state{{state="{name}"}}': float(name == process) for name in _PROCESSES},
        **{
            f'ampwatch_run_health{{health="{level.label}"}}': float(level.label == health)
            for level in Level
        },
    }
    if story.root is not None and minute * STEPS_PER_MINUTE >= story.root.first_step:
        found[f"ampwatch_root_info{{{story.root.labels()}}}"] = 1.0
    if process == "failed":
        error = "ZeroDivisionError" if rank == CAUSE else "DistBackendError"
        cause = str(rank == CAUSE).lower()
        found[f'ampwatch_rank_failure_info{{cause="{cause}",error="{error}"}}'] = 1.0
    return found


def _findings(story: Story, minute: int, now: float) -> Moment:
    """Return what was found so far; the counters of all kinds are born at 0."""
    found: Moment = {}
    for kind in KINDS:
        first, last = story.found.get(kind, (MINUTES + 1, MINUTES + 1))
        seen = max(min(minute, last) - first + 1, 0)
        found[f'ampwatch_finding_steps_total{{kind="{kind}"}}'] = 100.0 * seen
        if seen:
            sort = f'{{kind="{kind}",root="true",severity="critical"}}'
            at = now - 60 * (MINUTES - min(minute, last))
            found[f"ampwatch_finding_last_seen_timestamp_seconds{sort}"] = at
            found[f"ampwatch_findings{sort}"] = 1.0
    return found


def _machine() -> Iterator[tuple[str, str, float]]:
    """Yield what the daemon says of itself, and of GPUs whose driver does not tell whose memory it is.

    Rank 0 of the run ``a-healthy`` computes on one of them.
    """
    yield "up", "", 1.0
    yield "ampwatch_build_info", ',version="0.0.0"', 1.0
    yield "ampwatch_rings_unreadable", "", 0.0
    yield "ampwatch_ranks_left_out", "", 0.0
    for collector in ("rings", "gpu"):
        yield "ampwatch_collector_success", f',collector="{collector}"', 1.0
        yield "ampwatch_collector_duration_seconds", f',collector="{collector}"', 0.01
    body, _ = PrometheusExporter(fleet_with_gpus(), {}).render()
    for name, labels, value in _GPU_SAMPLE.findall(body.decode()):
        if name != "ampwatch_gpu_process_memory_used_bytes":
            yield name, "," + re.sub(r'run="\w+"', 'run="a-healthy"', labels), float(value)
