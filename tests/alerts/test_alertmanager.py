"""The shipped configuration of Alertmanager: valid, routed by severity, and readable."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.alerts.rules import ROOT, alerts, load
from tests.alerts.texts import rendered
from tests.services import require

pytestmark = pytest.mark.services

CONFIG = ROOT / "deploy" / "alertmanager" / "alertmanager.yml"
NAMES = alerts()


def amtool(*arguments: str | Path) -> str:
    command = [require("amtool"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def alert(rank: int, **changed: Any) -> dict[str, Any]:
    """Return an alert as Alertmanager hands it to a template."""
    labels = {"alertname": "AmpwatchStraggler", "run": "gpt", "rank": str(rank)}
    texts = {
        "summary": "Run gpt: a rank ends no step any more.",
        "action": "Look at its GPU.",
        "description": f"Rank {rank} of run gpt lives.",
    }
    labels |= {"instance": "a:10917", "severity": "warning"}
    return {"labels": labels, "annotations": texts, **changed}


def test_amtool_finds_no_fault_with_the_configuration() -> None:
    said = amtool("check-config", CONFIG)

    assert "SUCCESS" in said
    assert "1 templates" in said


@pytest.mark.parametrize("severity", ["critical", "warning", "info", "page"])
def test_an_alert_goes_to_the_receiver_of_its_severity_or_is_a_warning(severity: str) -> None:
    route = ("config", "routes", "test", f"--config.file={CONFIG}")
    receiver = "ampwatch-warning" if severity == "page" else f"ampwatch-{severity}"

    assert amtool(*route, f"severity={severity}", "alertname=AmpwatchX").strip() == receiver


def test_what_is_inhibited_and_by_what_are_alerts_that_exist() -> None:
    for rule in load(CONFIG)["inhibit_rules"]:
        for matcher in (*rule["source_matchers"], *rule["target_matchers"]):
            label, _, values = re.split(r"(=~|!=|=)", matcher, maxsplit=1)
            if label == "alertname" and values != '"Ampwatch.+"':
                assert set(values.strip('"').split("|")) <= set(NAMES)


def test_no_alert_inhibits_itself() -> None:
    """What both sides match differs in a label, which the other side asks to be another or none."""
    for rule in load(CONFIG)["inhibit_rules"]:
        source, target = set(rule["source_matchers"]), set(rule["target_matchers"])
        sides = (source - target, target - source)
        first, second = ({re.split(r"\W", matcher)[0] for matcher in side} for side in sides)
        assert first & second, rule


def test_what_goes_on_is_said_again_before_alertmanager_has_forgotten_that_it_said_it() -> None:
    """It keeps its log of notifications for ``--data.retention``, 120 hours, and longer intervals are cut to that."""
    said = re.findall(r"repeat_interval: (\d+)h", CONFIG.read_text(encoding="utf-8"))

    assert [int(hours) < 120 for hours in said] == [True] * 3


def test_what_is_critical_is_held_back_only_by_an_alert_of_the_same_host() -> None:
    """Another host may have another run of the same name: by default that is the name of the script."""
    critical = {name for name, rule in alerts().items() if rule.severity == "critical"}
    held_back = 0
    for rule in load(CONFIG)["inhibit_rules"]:
        targets = " ".join(rule["target_matchers"])
        if critical & set(re.findall(r"Ampwatch\w+", targets)) and "loss_scales" not in targets:
            assert "instance" in rule["equal"], rule
            held_back += 1
    assert held_back == 4


def test_a_message_that_it_is_over_begins_with_that() -> None:
    over = [alert(3, status="resolved")]

    title, text = rendered(over, "resolved").split("\n\n", 1)
    assert title.startswith("Resolved: Run gpt: a rank ends")
    assert text.startswith("Over since 04:00 UTC: ")
    assert rendered(over, "resolved", names=("color",)) == "good\n"


def test_a_message_about_a_thousand_ranks_can_be_read() -> None:
    text = rendered([alert(rank) for rank in range(1000)])

    assert "Rank 0 of run gpt" in text
    assert "Also: rank 1 (a:10917), rank 2 (a:10917)," in text
    assert "rank 9" not in text
    assert "and 991 others." in text


def test_a_message_about_several_alerts_says_each_once() -> None:
    other = alert(3)
    other["labels"] = {**other["labels"], "alertname": "AmpwatchTrainingStalled"}
    other["annotations"] = {**other["annotations"], "summary": "Run gpt: it hangs."}
    over = alert(7, status="resolved")

    title, text = rendered([alert(3), alert(5), other, over]).split("\n\n", 1)

    assert title == "WARNING: Run gpt: a rank ends no step any more. (3 alerts)"
    assert text.count("Rank 3 of run gpt lives.") == 2
    assert "\n\nRun gpt: it hangs.\n" in text
    assert "rank 7" not in text
