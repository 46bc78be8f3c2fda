"""Tests that what docs/operate.md says of fleets is so."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ampwatch.host.fleet import Fleet
from ampwatch.host.metrics.catalog import CATALOG, TOPICS
from ampwatch.host.metrics.prometheus import FleetCollector
from ampwatch.settings import Settings
from ampwatch.wire.records import FactsRecord
from tests.alerts.test_fleet_rules import ONLY_HERE, rules
from tests.services import require
from tests.workshop.clocks import Clock
from tests.workshop.fleets import put
from tests.workshop.records import H100, identity

TEXT = (Path(__file__).parents[2] / "docs" / "operate.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```yaml\n(scrape_configs:\n.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)

DROPPED = {
    "ampwatch_finding_steps_total",
    "ampwatch_op_calls_total",
    "ampwatch_op_bytes_total",
    "ampwatch_casts_total",
    "ampwatch_cast_bytes_total",
    "ampwatch_gradient_magnitude",
    "ampwatch_gradient_format_fit",
}


def test_what_the_page_drops_is_what_it_says_and_nothing_that_sounds_alike() -> None:
    """Counters of ops are not those of optimizers."""
    (snippet,) = SNIPPETS
    (job,) = yaml.safe_load(snippet)["scrape_configs"]
    (rule,) = job["metric_relabel_configs"]

    assert {m.name for m in CATALOG if re.fullmatch(rule["regex"], m.name)} == DROPPED
    assert re.fullmatch(rule["regex"], "ampwatch_gradient_magnitude_bucket")


def test_every_recorded_series_is_in_the_table() -> None:
    """Each is found by the part of its name after the level."""
    table = TEXT[TEXT.index("## Recording rules") : TEXT.index("## What to turn off")]
    words = re.findall(r"`([^`]+)`", table)
    stems = {word.partition(":")[0] for word in words}
    operations = {word.rpartition(":")[2] for word in words if ":" in word}
    for record in rules().keys() - ONLY_HERE:
        _, stem, operation = record.split(":")
        assert stem in stems, record
        assert operation in operations, record


def test_a_rank_before_its_first_step_has_no_more_series_than_the_page_says() -> None:
    """Per topic: what is born at 0, of a GPU; more come as they are known, up to the number."""
    fleet = Fleet(Settings(), Clock())
    facts = {**H100.facts, "init_scale": "65536", "growth_interval": "2000"}
    put(fleet, "0", identity(), [FactsRecord(facts)])
    found = {metric.name: samples for metric, samples in FleetCollector(fleet, {}).samples()}
    row = re.search(r"^\| a rank \| (\d+) \| (.*) \|$", TEXT, re.MULTILINE)
    assert row is not None
    parts = {name: int(number) for number, name in re.findall(r"(\d+) ([a-z ]+)", row[2])}
    assert sum(parts.values()) == int(row[1])

    for said, topics in {
        "run and state": ["Run"],
        "loss scaling": ["Loss scaling"],
        "steps and loss": ["Steps and loss"],
        "kernels": ["Kernels"],
        "findings": ["Findings"],
    }.items():
        born = sum(_lines(m.type, found[m.name]) for t in topics for m in TOPICS[t])
        assert 0 < born <= parts[said], said
    assert sum(_lines(m.type, found[m.name]) for m in TOPICS["Findings"]) == parts["findings"]


def _lines(kind: str, samples: list[tuple[tuple[str, ...], Any]]) -> int:
    if kind != "histogram":
        return len(samples)
    return sum(len(buckets) + 2 * (total is not None) for _, (buckets, total) in samples)


@pytest.mark.services
def test_promtool_takes_the_scrape_config_of_the_page(tmp_path: Path) -> None:
    """It is read as it stands there."""
    file = tmp_path / "prometheus.yml"
    file.write_text(SNIPPETS[0])
    command = [require("promtool"), "check", "config", str(file)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stdout + result.stderr
