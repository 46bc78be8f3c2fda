"""From a training that breaks to the message that somebody is sent, with real parts all the way.

A training on the CPU with float16 autocast and a GradScaler, watched by one line; the daemon; a
Prometheus and an Alertmanager with the tree that ``ampwatch deploy`` writes; a webhook. The scale
is collapsed by ``ampwatch.inject``, recovers, and then the daemon is killed. What is replaced in
the deployed files, because nobody wants to wait and ports must be free, is in ``replaced`` and
nothing else.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.host.daemon.parts import ROOT, Place, eventually
from tests.integration.alertmanager import Messages, alertmanager, webhook
from tests.integration.prometheus import Prometheus, free_port, prometheus
from tests.services import require

pytestmark = [pytest.mark.nightly, pytest.mark.services]

RUN = "doomed-gpt"
RUNBOOKS = "https://wiki.example.com/runbooks/"
GRAFANA, PAGE = "https://example.com/grafana/", "https://train.example.com/a/"
FIRST_SCALE = 2.0**12
HALVINGS = 20
GROWTH_INTERVAL = 50
"""Small, so that the scale is back soon: each fifty steps it doubles."""

SCRAPER = "deploy/prometheus/prometheus.yml"
PAGER = "deploy/alertmanager/alertmanager.yml"
RULES = "dashboards/alerts/ampwatch.rules.yml"

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
            ("(?s)(alert: AmpwatchTargetDown\n.*?for:) 2m", r"\1 2s"),
        ],
    }


def test_a_collapse_and_its_end_reach_somebody_and_so_does_a_dead_daemon(tmp_path: Path) -> None:
    """By the deployed tree; the words are those of ``tests/states``."""
    for program in ("prometheus", "prometheus-alertmanager"):
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
        given = {"AMPWATCH_PORT": str(port), "AMPWATCH_EXTERNAL_URL": PAGE}
        daemon = stack.enter_context(place.daemon("--demo-gpu", **given))
        stack.enter_context(trained(place, tmp_path))
        config = tree / SCRAPER
        server = stack.enter_context(prometheus(config.parent, config.read_text()))
        story = lived(tmp_path, server, messages, daemon.process)

    assert story.before == []
    assert story.errors == {}
    told_of = {"run": RUN, "rank": "0", "severity": "critical"}
    assert told_of.items() <= story.collapsed["labels"].items()
    runbook = f"{RUNBOOKS}AmpwatchLossScaleCollapsed.md"
    annotations = story.collapsed["annotations"]
    assert annotations["runbook_url"] == runbook
    assert annotations["page"] == f"{PAGE}#run={RUN}&rank=0"
    assert annotations["dashboard"].startswith(f"{GRAFANA}d/ampwatch-run?")
    assert story.resolved["labels"] == story.collapsed["labels"]
    assert story.resolved["endsAt"] > story.resolved["startsAt"]
    assert story.down["labels"]["instance"] == address


def deployed(place: Place, tree: Path, hook: str) -> Path:
    """Write the tree that an operator starts."""
    options = ["--webhook", hook, "--runbooks", RUNBOOKS, "--grafana-url", GRAFANA]
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
) -> SimpleNamespace:
    """Break the training, mend it, kill the daemon; tell what was seen."""
    # So many that the search for the first scale is over.
    seen = f'ampwatch_steps_total{{run="{RUN}"}} > {GROWTH_INTERVAL}'
    eventually(lambda: server.query(seen), "a run that is scraped", 90)
    before = server.query('ALERTS{alertstate="firing"}')

    (directory / "collapse").touch()
    alert = "AmpwatchLossScaleCollapsed"
    collapsed = eventually(lambda: messages.of(alert, "firing"), "word of the collapse", 60)

    errors = server.rules_that_fail()

    (directory / "recover").touch()
    resolved = eventually(lambda: messages.of(alert, "resolved"), "word of its end", 60)

    daemon.send_signal(signal.SIGKILL)
    gone = "AmpwatchTargetDown"
    down = eventually(lambda: messages.of(gone, "firing"), "word of a dead daemon", 60)
    told = {"collapsed": collapsed, "resolved": resolved, "down": down}
    alerts = {name: each["alerts"][0] for name, each in told.items()}
    return SimpleNamespace(before=before, errors=errors, **alerts)
