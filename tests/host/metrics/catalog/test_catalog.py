"""Tests of the table of metrics, and of the page printed from it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ampwatch.diagnosis.kinds.advice import ADVICE
from ampwatch.host.fleet import tensor_views
from ampwatch.host.fleet.peak import HOLD_SECONDS
from ampwatch.host.metrics.catalog import CATALOG, KINDS, LABELS, Metric, markdown
from ampwatch.numerics.units.kernels.kernel_name import Unit
from ampwatch.wire.records import KERNEL_UNITS

PAGE = Path(__file__).parents[4] / "docs" / "metrics.md"


@pytest.mark.parametrize("metric", CATALOG, ids=lambda metric: metric.name)
def test_a_name_follows_the_conventions(metric: Metric) -> None:
    """Counters end in ``_total``, infos in ``_info``, and the unit ends the rest."""
    assert re.fullmatch(r"ampwatch(_[a-z]+)+", metric.name)
    assert (metric.type == "counter") == metric.name.endswith("_total")
    assert (metric.type == "info") == metric.name.endswith("_info")
    assert ("seconds" in metric.name) == (metric.unit == "seconds")
    assert metric.family.endswith(metric.unit)


@pytest.mark.parametrize("metric", CATALOG, ids=lambda metric: metric.name)
def test_a_help_text_is_a_sentence_and_its_labels_are_explained(metric: Metric) -> None:
    """A reader of the page understands every row."""
    assert re.fullmatch(r"[A-Z].*\.", metric.help)
    assert set(metric.labels) <= set(LABELS)
    assert len(set(metric.labels)) == len(metric.labels)


def test_no_metric_is_there_twice_and_no_label_is_explained_in_vain() -> None:
    """Names are unique, also without the suffix of their type."""
    assert len({metric.family for metric in CATALOG}) == len(CATALOG)
    assert set(LABELS) == {label for metric in CATALOG for label in metric.labels}


def test_what_is_held_says_for_how_long() -> None:
    """The help texts name the window that the hold really has."""
    held = [
        metric
        for metric in CATALOG
        if metric.name.endswith(("_min", "_max")) and not metric.name.endswith("_dtype_max")
    ]

    assert len(held) == 3
    for metric in held:
        assert f"of the last {HOLD_SECONDS} s (up to {2 * HOLD_SECONDS} s)" in metric.help


def test_the_committed_page_is_the_generated_one() -> None:
    """``docs/metrics.md`` is up to date."""
    message = "regenerate it: python -m ampwatch.host.metrics.catalog > docs/metrics.md"

    assert PAGE.read_text(encoding="utf-8") == markdown(), message


def test_running_the_module_prints_the_page() -> None:
    """The command in the page makes the page."""
    command = [sys.executable, "-m", "ampwatch.host.metrics.catalog"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True)

    assert markdown() == printed.stdout


def test_the_kinds_of_findings_are_those_that_the_diagnosis_has_advice_for() -> None:
    """The two halves share no list, so this test holds theirs together; one the daemon makes."""
    assert set(KINDS) == {*ADVICE, tensor_views.KIND}


def test_the_units_of_kernels_are_those_of_the_classifier_and_the_cpu() -> None:
    """Records know no classifier, so this test holds the two together."""
    assert set(KERNEL_UNITS) == {*(unit.value for unit in Unit), "cpu"}
