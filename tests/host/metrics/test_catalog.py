"""Tests of the table of metrics, and of the page printed from it."""

import re
from pathlib import Path

import pytest

from ampwatch.host.metrics.catalog import CATALOG, markdown
from ampwatch.host.metrics.labels import LABELS
from ampwatch.host.metrics.metric import Metric
from ampwatch.numerics.units.kernels.kernel_name import Unit
from ampwatch.wire.records import KERNEL_UNITS

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def problems(metric: Metric) -> list[str]:
    """Return what of ``metric`` is against the conventions, in words.

    Type and unit are read from it; a reader of the page understands its row.
    """
    in_seconds = metric.unit == "seconds"
    rules = {
        "the name is no name of ampwatch": re.fullmatch(r"ampwatch(_[a-z]+)+", metric.name),
        "seconds are a unit": ("seconds" in metric.name) == in_seconds,
        "the help is no sentence": re.fullmatch(r"[A-Z].*\.", metric.help),
        "a label is there twice": len(set(metric.labels)) == len(metric.labels),
    }
    unexplained = sorted(set(metric.labels) - set(LABELS))
    return [text for text, kept in rules.items() if not kept] + [
        f"the label {label} is not explained" for label in unexplained
    ]


@pytest.mark.parametrize("metric", CATALOG, ids=lambda metric: metric.name)
def test_a_metric_follows_the_conventions(metric: Metric) -> None:
    """Of names, units, help and labels."""
    assert problems(metric) == []


def test_no_metric_is_there_twice_and_no_label_is_explained_in_vain() -> None:
    """Names are unique, also without the suffix of their type."""
    assert len({metric.family for metric in CATALOG}) == len(CATALOG)
    assert set(LABELS) == {label for metric in CATALOG for label in metric.labels}


def test_the_committed_page_is_the_generated_one() -> None:
    """``docs/metrics.md`` is up to date."""
    message = "regenerate it: python -m ampwatch.host.metrics.catalog > docs/metrics.md"

    assert PAGE.read_text(encoding="utf-8") == markdown(), message


def test_the_units_of_kernels_are_those_of_the_classifier_and_the_cpu() -> None:
    """Records know no classifier, so this test holds the two together."""
    assert set(KERNEL_UNITS) == {*(unit.value for unit in Unit), "cpu"}
