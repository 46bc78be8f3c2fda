"""From a training that breaks to the words that somebody reads, with real parts all the way.

A training on the CPU with float16 autocast and a GradScaler, watched by one line; the daemon; a
Prometheus and an Alertmanager with the tree that ``ampwatch deploy`` writes; a webhook. The scale
is collapsed by ``ampwatch.inject``, recovers, and then the daemon is killed. What is replaced in
the deployed files, because nobody wants to wait and ports must be free, is in ``replaced`` and
nothing else.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.dashboards.queries import ON_A_CPU, Unanswered, shipped_dashboards, unanswered
from tests.host.daemon.parts import ROOT, Place, eventually
from tests.integration.alertmanager import alertmanager, webhook
from tests.integration.prometheus import free_port, prometheus
from tests.services import require

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.alertmanager import Messages
    from tests.integration.prometheus import Prometheus

pytestmark = [pytest.mark.nightly, pytest.mark.services]

RUN = "doomed-gpt"
RUNBOOKS = "https://wiki.example.com/runbooks/"
FIRST_SCALE = 2.0**12
HALVINGS = 20
GROWTH_INTERVAL = 50
"""Small, so that the scale is back soon: each fifty steps it doubles."""

SCRAPER = "deploy/prometheus/prometheus.yml"
PAGER = "deploy/alertmanager/alertmanager.yml"
RULES = "dashboards/alerts/ampwatch.rules.yml"

ABSENT = ON_A_CPU | {
    "ampwatch_mfu_ratio": "nobody knows the peak of a CPU",
    "ampwatch_profiler_": "the profiler does not run in the first minute",
    "ampwatch_cpu_op_seconds_total": "it comes from the profiler",
    "ampwatch_gpu_xid_last_timestamp_seconds": "no GPU has had an error",
    'state="stale"': "no rank is stale or has failed",
    "ampwatch_loss_nonfinite_total": "no loss was NaN or infinite",
    "ampwatch_rank_failure_info": "no rank has failed",
    "ampwatch_finding_steps_total": "tables of what was found leave out what was not: nothing about precision, layers or ranks",
    "ampwatch_gradient_format_fit": "a bias before a BatchNorm has gradients of all but zero, and a scale that collapses flushes more: a sample of which none is flushed may come, or not",
}
"""Alerts that so short a training on a CPU cannot have."""

TRAINING = f"""
import sys, time
from pathlib import Path
import torch
import ampwatch

torch.manual_seed(0)
layers = torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cpu", init_scale={FIRST_SCALE}, growth_interval={GROWTH_INTERVAL})
# Often enough that within its minute every panel has two counts to make a rate of.
watch = ampwatch.monitor(model, scaler, run="{RUN}", sample_every=2)
asked = lambda what: (Path(sys.argv[1]) / what).exists()
# A loader, for a panel shows how long it is waited for.
batches = iter(torch.utils.data.DataLoader(torch.randn(16 * 100_000, 8), 16))
fault, end = None, time.monotonic() + 230
while not asked("stop") and time.monotonic() < end:
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(next(batches)).float().square().mean()
    watch.batch(samples=16, tokens=128)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    if fault is None and asked("collapse"):
        fault = ampwatch.inject(watch, "collapsed_scale", steps={HALVINGS})
    recovers = asked("recover") and scaler.get_scale() < {FIRST_SCALE}
    time.sleep(0.0 if recovers else 0.03)
"""


def replaced(daemon: str, alertmanager: str) -> dict[str, list[tuple[str, str]]]:
    """Return what is replaced in the deployed files: addresses, and how long they wait."""
    return {
        SCRAPER: [
            ("http://127.0.0.1:10917/sd", f"http://{daemon}/sd"),
            ("localhost:9093", alertmanager),
            ("scrape_interval: 5s", "scrape_interval: 1s"),
            ("scrape_timeout: 5s", "scrape_timeout: 1s"),
            ("evaluation_interval: 5s", "evaluation_interval: 1s"),
        ],
        PAGER: [
            ("group_wait: 30s", "group_wait: 1s"),
            ("group_wait: 3s", "group_wait: 1s"),
            ("group_interval: 1m", "group_interval: 2s"),
        ],
        RULES: [
            *(
                (f"(?s)(name: ampwatch-{group}\n    interval:) 5s", r"\1 1s")
                for group in ("scale", "numerics", "ranks")
            ),
            # The daemon holds the smallest scale for up to two minutes: so far it does not fall here.
            ("max_over_time(ampwatch_loss_scale[30m]) / 1024", f"{2.0**-60}"),
            ("(?s)(alert: AmpwatchLossScaleCollapsed\n.*?keep_firing_for:) 5m", r"\1 2s"),
            ("(?s)(alert: AmpwatchExporterDown\n.*?for:) 2m", r"\1 2s"),
        ],
    }


@pytest.mark.timeout(240)
def test_a_collapse_and_its_end_reach_somebody_and_so_does_a_dead_daemon(tmp_path: Path) -> None:
    """With the words that a person reads; and no panel of the dashboards is empty meanwhile."""
    for program in ("prometheus", "prometheus-alertmanager", "amtool"):
        require(program)
    place = Place(tmp_path)
    port = free_port()
    address = f"127.0.0.1:{port}"
    with ExitStack() as stack:
        messages = stack.enter_context(webhook())
        tree = deployed(place, tmp_path / "tree", messages.address)
        replace(tree, PAGER, replaced(address, ""))
        told = stack.enter_context(alertmanager(tree / PAGER, tmp_path / "alertmanager"))
        for file in (SCRAPER, RULES):
            replace(tree, file, replaced(address, told))
        daemon = stack.enter_context(place.daemon("--demo-gpu", AMPWATCH_PORT=str(port)))
        stack.enter_context(trained(place, tmp_path))
        config = tree / SCRAPER
        server = stack.enter_context(prometheus(config.parent, config.read_text()))
        story = lived(tmp_path, server, messages, daemon.process)

    assert story.before == []
    assert story.gaps == []
    assert story.errors == {}
    reads_as_a_collapse(tree, story.collapsed)
    reads_as_its_end(tree, story.resolved)
    reads_as_a_dead_daemon(tree, story.down, address)


@dataclass
class Story:
    """Observations of a scene.

    Attributes:
        before: Alerts that fired before anything was broken.
        collapsed: The message that the scale has collapsed.
        resolved: The message that this is over.
        gaps: Queries of the dashboards without an answer.
        errors: Why rules could not be evaluated, by their names.
        down: The message that the daemon is gone.
    """

    before: list[dict[str, Any]]
    collapsed: dict[str, Any]
    resolved: dict[str, Any]
    gaps: list[Unanswered]
    errors: dict[str, str]
    down: dict[str, Any]


def deployed(place: Place, tree: Path, hook: str) -> Path:
    """Write the tree that an operator starts."""
    options = ["--webhook", hook, "--runbooks", RUNBOOKS]
    command = place.command("deploy", str(tree), *options, "--scrape-interval", "5s")
    _, said = command.communicate(timeout=60)
    assert command.returncode == 0, said
    return tree


def replace(tree: Path, file: str, changes: dict[str, list[tuple[str, str]]]) -> None:
    text = (tree / file).read_text(encoding="utf-8")
    for old, new in changes[file]:
        pattern = old if old.startswith("(?s)") else re.escape(old)
        text, times = re.subn(pattern, new, text)
        assert times == 1, f"{old!r} is {times} times in {file}"
    (tree / file).write_text(text, encoding="utf-8")


@contextmanager
def trained(place: Place, directory: Path) -> Iterator[None]:
    """Train until the end."""
    environment = place.environment | {
        "OMP_NUM_THREADS": "1",
        "XDG_STATE_HOME": str(directory / "state"),
    }
    command = [sys.executable, "-c", TRAINING, str(directory)]
    with subprocess.Popen(command, env=environment, cwd=ROOT) as process:
        try:
            yield
        finally:
            (directory / "stop").touch()
            process.wait(30)


def lived(
    directory: Path, server: Prometheus, messages: Messages, daemon: subprocess.Popen[str]
) -> Story:
    """Break the training, mend it, kill the daemon; tell what was seen."""
    # So many that the search for the first scale is over.
    seen = f'ampwatch_steps_total{{run="{RUN}"}} > {GROWTH_INTERVAL}'
    eventually(lambda: server.query(seen), "a run that is scraped", 90)
    before = server.query('ALERTS{alertstate="firing"}')

    (directory / "collapse").touch()
    alert = "AmpwatchLossScaleCollapsed"
    collapsed = eventually(lambda: messages.of(alert, "firing"), "word of the collapse", 60)

    gaps = never_answered(server, seconds=40)

    errors = server.rules_that_fail()

    (directory / "recover").touch()
    resolved = eventually(lambda: messages.of(alert, "resolved"), "word of its end", 60)

    daemon.send_signal(signal.SIGKILL)
    gone = "AmpwatchExporterDown"
    down = eventually(lambda: messages.of(gone, "firing"), "word of a dead daemon", 60)
    return Story(before, collapsed, resolved, gaps, errors, down)


def never_answered(server: Prometheus, seconds: float) -> list[Unanswered]:
    """Return what has had no answer until then.

    A rate has none before its second sample, a forecast none after the scale has grown again.
    """
    boards = [impatient(board) for board in shipped_dashboards()]
    end = time.monotonic() + seconds
    gaps: list[Unanswered] | None = None
    while gaps is None or (gaps and time.monotonic() < end):
        now = unanswered(server, boards, minutes=2, scrape_seconds=2, absent=ABSENT)
        still = {gap[:3] for gap in now}  # whatever the reason is by now
        gaps = now if gaps is None else [gap for gap in gaps if gap[:3] in still]
    return gaps


def impatient(part: dict[str, Any]) -> dict[str, Any]:
    """Return a dashboard whose panels draw more than a point a minute, for the run is not older."""
    panels = [impatient(panel) for panel in part.get("panels") or ()]
    return {**{k: v for k, v in part.items() if k != "interval"}, "panels": panels}


def reads_as_a_collapse(tree: Path, message: dict[str, Any]) -> None:
    """Which run, how far down, how fast, what to do, and where more is said."""
    (alert,) = message["alerts"]
    assert alert["labels"]["severity"] == "critical"
    assert (alert["labels"]["run"], alert["labels"]["rank"]) == (RUN, "0")
    text = written(tree, "text", message)
    told = re.search(
        r"Rank 0 \(127\.0\.0\.1:\d+\): the loss scale fell to ([\d.e+-]+)\."
        r" It was halved (\d+) times more than it grew within 30 minutes.*"
        r" At this pace 1/scale becomes infinite in (\d+) steps \(.+?\), and",
        text,
    )
    assert told is not None, text
    scale, halvings, steps = told[1], int(told[2]), int(told[3])
    # How often it had doubled before, and been halved when it was scraped, nobody knows.
    assert scale in {f"{FIRST_SCALE * 2.0**-power:.4g}" for power in range(-4, HALVINGS + 1)}
    assert 10 <= halvings <= 1.5 * HALVINGS  # increase() extrapolates
    assert steps > 0
    assert "What to do first: Keep the newest checkpoint from being overwritten." in text
    assert f"Page: {alert['labels']['instance']}/#run={RUN}&rank=0" in text
    assert f"Runbook: {RUNBOOKS}AmpwatchLossScaleCollapsed.md" in text
    assert f"/d/ampwatch-run?var-job=ampwatch&var-run={RUN}&var-rank=0" in text
    title = written(tree, "title", message)
    assert title.startswith(f"CRITICAL: Run {RUN}: the loss scale is collapsing")


def reads_as_its_end(tree: Path, message: dict[str, Any]) -> None:
    """It begins with the word that it is over, and says since when."""
    (alert,) = message["alerts"]
    assert alert["status"] == "resolved"
    assert alert["endsAt"] > alert["startsAt"]
    title = written(tree, "title", message)
    assert title.startswith(f"Resolved: Run {RUN}: the loss scale is collapsing")
    assert written(tree, "text", message).startswith(f"Over since {alert['endsAt'][11:16]} UTC: ")


def reads_as_a_dead_daemon(tree: Path, message: dict[str, Any], address: str) -> None:
    """Which one, and that the runs go on."""
    text = written(tree, "text", message)
    assert f"Prometheus cannot scrape {address} of job ampwatch" in text
    assert "The runs there go on and lose nothing" in text
    assert f"Runbook: {RUNBOOKS}AmpwatchExporterDown.md" in text
    assert written(tree, "title", message).startswith(
        f"WARNING: Host {address}: its daemon cannot be"
    )


def written(tree: Path, part: str, message: dict[str, Any]) -> str:
    """Return what the deployed template makes of a message, for e-mail and chat."""
    file = tree / f"{part}.json"
    file.write_text(json.dumps(message), encoding="utf-8")
    command = [
        require("amtool"),
        "template",
        "render",
        f"--template.data={file}",
        f"--template.glob={tree}/deploy/alertmanager/*.tmpl",
        f'--template.text={{{{ template "ampwatch.{part}" . }}}}',
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout
