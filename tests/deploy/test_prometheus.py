"""The configurations of Prometheus and Alertmanager, read by themselves."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import pytest

from tests.deploy.parts import DEPLOY, ROOT, loaded
from tests.services import require

PROMETHEUS = DEPLOY / "prometheus"
FLEET = ROOT / "dashboards" / "alerts" / "ampwatch.fleet.rules.yml"


def checked(*command: str) -> str:
    """Return what a checker said; fail with it if it found something."""
    done = subprocess.run([*command], check=False, capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


@pytest.mark.services
@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("prometheus/prometheus.yml", ()),
        ("compose/prometheus.yml", ()),
        ("prometheus/remote-write.yml", ()),
        ("prometheus/agent.yml", ("--agent",)),
    ],
)
def test_prometheus_takes_a_configuration(path: str, options: tuple[str, ...]) -> None:
    """With the rules that it names."""
    said = checked(require("promtool"), "check", "config", *options, str(DEPLOY / path))

    assert ("rules found" in said) == ("rule_files" in (DEPLOY / path).read_text(encoding="utf-8"))


def kept(labels: dict[str, str], rules: list[dict[str, Any]]) -> bool:
    """Tell whether a series passes, by the meaning of ``keep``: the whole value matches."""
    for rule in rules:
        assert rule["action"] == "keep"
        value = rule["separator"].join(labels.get(name, "") for name in rule["source_labels"])
        if not re.fullmatch(rule["regex"], value):
            return False
    return True


def test_a_fleet_sends_its_aggregates_and_nothing_else() -> None:
    """To each of three destinations the same."""
    records = [r["record"] for group in loaded(FLEET)["groups"] for r in group["rules"]]
    aggregates = [r for r in records if r.startswith(("run:", "instance_run:"))]
    sent = [{"__name__": name, "job": "ampwatch", "run": "a"} for name in aggregates]
    sent += [{"__name__": "up", "job": "ampwatch"}]
    sent += [{"__name__": "ALERTS", "alertname": "AmpwatchTrainingStalled", "job": "ampwatch"}]
    held = [
        {"__name__": "ampwatch_loss_scale", "job": "ampwatch", "rank": "7"},
        {"__name__": "run_rank:ampwatch_loss_scale:min", "job": "ampwatch"},
        {"__name__": "up", "job": "node"},
        {"__name__": "ALERTS", "alertname": "NodeDown", "job": "ampwatch"},
    ]
    destinations = loaded(PROMETHEUS / "remote-write.yml")["remote_write"]

    assert len(aggregates) > 30
    assert [d["name"] for d in destinations] == ["mimir", "thanos", "victoriametrics"]
    for destination in destinations:
        rules = destination["write_relabel_configs"]
        assert all(kept(labels, rules) for labels in sent)
        assert not any(kept(labels, rules) for labels in held)


def test_an_agent_scrapes_what_a_prometheus_scrapes() -> None:
    """It evaluates nothing, so it has no rules."""
    agent, full = (loaded(PROMETHEUS / name) for name in ("agent.yml", "prometheus.yml"))

    assert agent["scrape_configs"] == full["scrape_configs"]
    assert not {"rule_files", "alerting"} & agent.keys()
