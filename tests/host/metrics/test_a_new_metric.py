"""A metric is one object: put into a topic, it is exported, documented and checked."""

from __future__ import annotations

import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse_text

from ampwatch.host.metrics.catalog import TOPICS, markdown
from ampwatch.host.metrics.metric import Metric
from ampwatch.host.metrics.prometheus import PrometheusExporter
from ampwatch.host.metrics.scopes import PER_OPTIMIZER, PER_RANK
from tests.host.metrics.test_catalog import problems
from tests.host.metrics.test_prometheus import OPENMETRICS, PASSES, parse_openmetrics
from tests.services import require
from tests.workshop.fleets import made_up_fleet, without_nvml

TOPIC = "Steps and loss"

NEW = Metric(
    "ampwatch_optimizer_steps_applied_total",
    "counter",
    "Optimizer steps that changed the weights.",
    PER_OPTIMIZER.one(lambda optimizer: optimizer.total_steps - sum(optimizer.total_skipped)),
)

ODD = Metric(
    "ampwatch_colour_total",
    "gauge",
    "colour of a rank",
    PER_RANK.by("colour", "rank", read=lambda _rank: [(("blue", "0"), 1)]),
    unit="seconds",
)


def topics(metric: Metric) -> dict[str, tuple[Metric, ...]]:
    return {**TOPICS, TOPIC: (*TOPICS[TOPIC], metric)}


def scrape(*metrics: Metric, accept: str = "", names: tuple[str, ...] = ()) -> str:
    """Return a scrape of all metrics of the catalog and of ``metrics`` after them."""
    catalog = [*(metric for of_topic in TOPICS.values() for metric in of_topic), *metrics]
    fleet = without_nvml(made_up_fleet())
    return PrometheusExporter(fleet, PASSES, catalog).render(accept, names)[0].decode()


def values(text: str, name: str) -> dict[tuple[str, ...], float]:
    """Return the samples of a family, added up over all labels but run, rank and optimizer."""
    found: dict[tuple[str, ...], float] = {}
    for family in parse_text(text):
        for sample in family.samples:
            if sample.name == name:
                who = tuple(sample.labels[label] for label in ("run", "rank", "optimizer"))
                found[who] = found.get(who, 0.0) + sample.value
    return found


def test_it_is_exported_and_nothing_else_changes() -> None:
    """Steps that were applied are those that were attempted without those that were skipped."""
    text = scrape(NEW)

    applied = values(text, NEW.name)
    attempted = values(text, "ampwatch_optimizer_steps_total")
    skipped = values(text, "ampwatch_optimizer_steps_skipped_total")

    assert applied == {who: attempted[who] - skipped[who] for who in attempted}
    assert len(set(applied.values())) > 1
    assert text.startswith(scrape())
    added = text.removeprefix(scrape()).splitlines()
    assert added[0] == f"# HELP {NEW.name} {NEW.help}"
    assert added[1] == f"# TYPE {NEW.name} counter"
    assert len(added) == 2 + len(applied)


def test_it_can_be_asked_for_by_name_and_in_openmetrics() -> None:
    """Both other ways to a sample know of it."""
    (alone,) = parse_text(scrape(NEW, names=(NEW.name,)))
    families = {
        family.name: family for family in parse_openmetrics(scrape(NEW, accept=OPENMETRICS))
    }

    assert {sample.name for sample in alone.samples} == {NEW.name}
    assert families[NEW.family].type == "counter"
    assert len(families[NEW.family].samples) == len(alone.samples)


def test_it_is_on_the_page_of_metrics() -> None:
    """The row is the last of its topic and has the labels of its scope; the rest stays."""
    row = f"| `{NEW.name}` | counter | run, rank, optimizer | {NEW.help} |"
    lines = markdown(topics(NEW)).splitlines()

    place = lines.index(row)

    assert lines[place - 1].startswith(f"| `{TOPICS[TOPIC][-1].name}` |")
    assert [*lines[:place], *lines[place + 1 :]] == markdown().splitlines()


def test_its_name_help_and_labels_are_checked() -> None:
    """Every breach of the conventions is reported."""
    assert problems(NEW) == []
    assert set(problems(ODD)) == {
        "only counters end in _total",
        "seconds are a unit",
        "the unit ends the name",
        "the help is no sentence",
        "a label is there twice",
        "the label colour is not explained",
    }


@pytest.mark.services
def test_promtool_reads_it() -> None:
    """It passes as it is, and does not as a counter by another name."""

    def promtool(metric: Metric) -> tuple[int, str]:
        command = [require("promtool"), "check", "metrics"]
        text = scrape(metric)
        run = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        return run.returncode, run.stdout + run.stderr

    wrong = Metric("ampwatch_applied", "gauge", "", NEW.reader)

    assert promtool(NEW) == (0, "")
    status, said = promtool(wrong)
    assert status != 0
    assert "ampwatch_applied no help text" in said
