"""Recording rules that make a few series of a thousand ranks, and what docs/operate.md says of them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ampwatch.host.fleet import Fleet
from ampwatch.host.metrics.catalog import CATALOG, TOPICS
from ampwatch.host.metrics.prometheus import PrometheusExporter
from ampwatch.settings import Settings
from ampwatch.wire.records import FactsRecord
from tests.alerts.promtool import promtool
from tests.alerts.rules import ALERTS, groups, load, metrics
from tests.alerts.rules import FLEET_RULES as RULES
from tests.services import require
from tests.workshop.clocks import Clock
from tests.workshop.fleets import put
from tests.workshop.records import H100, identity

TESTS = ALERTS / "ampwatch.fleet.rules.test.yml"
REMOTE = re.compile(r"(run|instance_run):ampwatch_.*")
"""Names that are written to a central server, as docs/operate.md and deploy/ say."""

ONLY_HERE = {"instance_run_le:ampwatch_step_duration_seconds_bucket:rate5m"}
"""Only other rules read these."""

CHANGES = (
    ("by (job, instance, run", "by (job, run"),
    ("by (job, run", "by (run"),
    ("min by", "max by"),
    ("group by", "sum by"),
    ("max by", "min by"),
    ("sum by", "avg by"),
    ("avg by", "sum by"),
    ("count by", "sum by"),
    ("quantile by (job, run) (0.5", "quantile by (job, run) (0.9"),
    ("histogram_quantile(0.", "histogram_quantile(0.1"),
    (") > 0", ") >= 0"),
    ('=~"tensor|cuda|unknown"', '!=""'),
    ('{unit="tensor"}', ""),
    ('=~"tensor|unknown"', '="tensor"'),
    ('{pipe="any"}', '{pipe="hmma"}'),
)
"""Ways of being wrong; each is tried on every rule in which it finds its text, first place first."""


def rules() -> dict[str, str]:
    """Return the expression of each series that is recorded."""
    return {rule["record"]: rule["expr"] for group in groups(RULES) for rule in group["rules"]}


def test_every_rule_is_tested() -> None:
    """Each name is asked for; promtool compares the values in the file beside the rules."""
    known = rules()
    (group,) = load(TESTS)["tests"]
    asked = " ".join(test["expr"] for test in group["promql_expr_test"])

    assert {name for name in known if name not in asked} == set()


def test_a_rule_reads_only_rules_above_it() -> None:
    """Prometheus evaluates a group in its order: a rule further down would be an interval old."""
    before: set[str] = set()
    for record, expression in rules().items():
        assert {name for name in metrics(expression) if ":" in name} <= before, record
        before.add(record)


def test_names_say_what_is_kept_and_what_is_written_elsewhere() -> None:
    """The level is the prefix; whoever forwards series by it gets these and no others."""
    for record, expression in rules().items():
        assert bool(REMOTE.fullmatch(record)) is (record not in ONLY_HERE)
        outer = re.search(r"by \(([a-z, ]+)\)", expression)
        assert outer is not None, record
        kept = outer[1].split(", ")
        level = ["job", "instance", "run"] if record.startswith("instance_run") else ["job", "run"]
        assert kept[: len(level)] == level, record
        assert "rank" not in kept, record


@pytest.mark.nightly
@pytest.mark.services
@pytest.mark.parametrize("record", sorted(rules()))
def test_a_rule_that_is_wrong_is_noticed(record: str, tmp_path: Path) -> None:
    """Another aggregation, another quantile, a condition less: promtool says so each time."""
    document = RULES.read_text(encoding="utf-8")
    begin = document.index(f"record: {record}\n")
    end = document.find("- record:", begin + 1)
    rule = document[begin:end] if end > 0 else document[begin:]
    wrong = [
        rule.replace(old, new, 1)
        for old, new in CHANGES
        # A quantile is the same of sums and of means of buckets.
        if old in rule and not (old == "sum by" and "histogram_quantile" in rule)
    ]
    shutil.copy(TESTS, tmp_path / TESTS.name)

    assert wrong, "no change of CHANGES is one to this rule"
    for other in wrong:
        changed = document.replace(rule, other)
        (tmp_path / RULES.name).write_text(changed, encoding="utf-8")
        result = promtool("test", "rules", tmp_path / TESTS.name)
        assert result.returncode != 0, other


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
    found = {metric.name: samples for metric, samples in PrometheusExporter(fleet).samples()}
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
