"""What a real Alertmanager with the shipped configuration tells somebody, in the words that they read."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tests.alerts.rules import ROOT
from tests.host.daemon.parts import eventually
from tests.integration.alertmanager import alertmanager, webhook
from tests.services import require
from tests.states.rules import Alert, Evaluated
from tests.states.table import WORST

SHIPPED = ROOT / "deploy" / "alertmanager"
FAR = "2100-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it is read.

    Attributes:
        names: Names of the alerts in it.
        severity: The worst of theirs.
        title: The subject.
        text: The words below it.
        alerts: The alerts in it, as Alertmanager sends them.
    """

    names: tuple[str, ...]
    severity: str
    title: str
    text: str
    alerts: list[dict[str, Any]]


def told(
    evaluated: Mapping[str, Evaluated], times: Mapping[str, float], directory: Path
) -> dict[str, list[Message]]:
    """Return what is told in each state when somebody looks, by the state's name.

    Args:
        evaluated: The outcome of the rules in each state.
        times: When somebody looks at each. Unit: s.
        directory: For the files of Alertmanager.
    """
    config = directory / "alertmanager"
    shutil.copytree(SHIPPED, config)
    file = config / "alertmanager.yml"
    firing = {
        name: [(name, alert, _since(outcome, alert)) for alert in outcome.at(times[name])]
        for name, outcome in evaluated.items()
    }
    with webhook() as messages:
        text = file.read_text(encoding="utf-8")
        # Nobody wants to wait, and the address is the test's.
        text = re.sub(r"(group_wait): \S+", r"\1: 1s", text)
        text = re.sub(r"(group_interval): \S+", r"\1: 2s", text)
        text, replaced = re.subn(r"http://127\.0\.0\.1:5001/alerts", messages.address, text)
        assert replaced
        # What is one message for all runs or all hosts is one for each state here.
        text = re.sub(r"group_by: \[(alertname[\w, ]*)\]", _split, text)
        file.write_text(text, encoding="utf-8")
        with alertmanager(file, directory / "alertmanager-data") as address:
            _post(address, [_sent(*each) for several in firing.values() for each in several])

            def wanted() -> set[str]:
                asked = f"http://{address}/api/v2/alerts?active=true&inhibited=false&silenced=false"
                with urllib.request.urlopen(asked, timeout=10) as answer:
                    return {alert["fingerprint"] for alert in json.load(answer)}

            def came() -> set[str]:
                return {a["fingerprint"] for body in messages.bodies for a in body["alerts"]}

            eventually(lambda: wanted() <= came(), "all alerts told", 30)
        bodies = list(messages.bodies)
    found: dict[str, list[Message]] = {name: [] for name in evaluated}
    for number, body in enumerate(bodies):
        (state,) = {alert["generatorURL"].rpartition("/")[2] for alert in body["alerts"]}
        for alert in body["alerts"]:
            since = next(s for _, a, s in firing[state] if a.labels == alert["labels"])
            alert["startsAt"] = datetime.fromtimestamp(since, timezone.utc).isoformat()
        labels = [alert["labels"] for alert in body["alerts"]]
        names = tuple(dict.fromkeys(of["alertname"] for of in labels))
        severity = max((of["severity"] for of in labels), key=WORST.__getitem__)
        title, words = (_rendered(config, number, part, body) for part in ("title", "text"))
        message = Message(names, severity, title, words, body["alerts"])
        found[state].append(message)
    return found


def _split(found: re.Match[str]) -> str:
    names = dict.fromkeys([*found[1].split(", "), "instance", "run"])
    return f"group_by: [{', '.join(names)}]"


def _since(outcome: Evaluated, alert: Alert) -> float:
    """Return since when an alert fires without a gap. Unit: s."""
    times = sorted({a.time for a in outcome.alerts if a.labels == alert.labels}, reverse=True)
    since = alert.time
    for time in times:
        if since - time > 15:
            break
        since = time
    return since


def _sent(state: str, alert: Alert, _since: float) -> dict[str, Any]:
    # It begins now: of one that has waited for long Alertmanager speaks at once, before it has taken in
    # the one that inhibits it. What was true is put back before the words are made.
    return {
        "labels": alert.labels,
        "annotations": alert.annotations,
        "endsAt": FAR,
        "generatorURL": f"http://prometheus.example/{state}",
    }


def _post(address: str, alerts: list[dict[str, Any]]) -> None:
    request = urllib.request.Request(
        f"http://{address}/api/v2/alerts",
        data=json.dumps(alerts).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200


def _rendered(config: Path, number: int, part: str, body: dict[str, Any]) -> str:
    file = config / f"message-{number}.json"
    file.write_text(json.dumps(body), encoding="utf-8")
    command = [
        require("amtool"),
        "template",
        "render",
        f"--template.data={file}",
        f"--template.glob={config}/*.tmpl",
        f'--template.text={{{{ template "ampwatch.{part}" . }}}}',
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
