"""Tests of the recording rules that make a few series of a thousand ranks."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.alerts.promtool import promtool
from tests.alerts.rules import ALERTS, groups, load, metrics
from tests.alerts.rules import FLEET_RULES as RULES

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
