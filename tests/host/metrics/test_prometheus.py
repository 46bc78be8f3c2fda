"""The scrape and its catalog: what is in it, and that Prometheus' own tools agree."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from prometheus_client import Metric as Family
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as parse_text

from ampwatch import __version__
from ampwatch.diagnosis.kinds.registry import KINDS
from ampwatch.host.fleet import Fleet
from ampwatch.host.fleet import fleet as fleets
from ampwatch.host.fleet.fleet import CollectorPass
from ampwatch.host.metrics.catalog import CATALOG, TOPICS, markdown
from ampwatch.host.metrics.labels import LABELS
from ampwatch.host.metrics.metric import Metric
from ampwatch.host.metrics.prometheus import PrometheusExporter
from ampwatch.host.metrics.run import RUN_FACTS
from ampwatch.numerics.units.kernels.kernel_name import Unit
from ampwatch.settings import Settings
from ampwatch.wire.records import KERNEL_UNITS, SKIP_CLASSES, FactsRecord, Record
from tests.services import require
from tests.workshop.clocks import START, Clock
from tests.workshop.fleets import (
    PRECISION,
    RANGES,
    fleet_of,
    fleet_with_gpus,
    made_up_fleet,
    put,
    without_nvml,
)
from tests.workshop.records import finding, identity, skipped_step, step

GOLDEN = Path(__file__).parents[2] / "golden" / "metrics.txt"
OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
RINGS = CollectorPass(success=True, duration_seconds=0.002)


def parse_openmetrics(text: str) -> list[Family]:
    return list(text_string_to_metric_families(text))  # type: ignore[no-untyped-call]


def scrape(fleet: Fleet, accept: str = "", names: Sequence[str] = ()) -> str:
    fleet.passes["rings"] = RINGS
    body, _ = PrometheusExporter(fleet).render(accept, names)
    return body.decode()


def made_up_scrape() -> str:
    """Return the golden scrape, in which the version of ampwatch is not that of today.

    Of a machine without a GPU; those of GPUs have a golden scrape of their own.
    """
    return scrape(without_nvml(made_up_fleet())).replace(
        f'version="{__version__}"', 'version="0.0.0"'
    )


def samples(fleet: Fleet) -> dict[tuple[str, ...], float]:
    """Return the value of each sample by its name and sorted label values."""
    return {
        (s.name, *(v for _, v in sorted(s.labels.items()))): s.value
        for family in parse_text(scrape(fleet))
        for s in family.samples
    }


@pytest.mark.parametrize("text", ["", "nan", "-1", "1e3", "9" * 5000, "\u0663", "12 kB"])
def test_memory_that_is_no_count_of_bytes_is_not_exported(text: str) -> None:
    """A ring can hold any text."""
    fleet = fleet_of(FactsRecord({"memory_limit": text, "memory_host_ring": text}))

    assert not {key[0] for key in samples(fleet) if "memory" in key[0] and "gpt" in key}


def names_of_rank_0(fleet: Fleet) -> set[str]:
    return {key[0] for key in samples(fleet) if "gpt" in key}


def test_the_scrape_of_the_made_up_fleet_is_the_golden_one() -> None:
    """Every line of a whole scrape, as people and dashboards will see it."""
    message = "if the change is wanted: python -m tests.host.metrics.test_prometheus > tests/golden/metrics.txt"

    assert GOLDEN.read_text(encoding="utf-8") == made_up_scrape(), message


@pytest.mark.services
@pytest.mark.parametrize("fleet", [made_up_fleet(), fleet_with_gpus(), Fleet(Settings(), Clock())])
def test_promtool_has_nothing_to_say(fleet: Fleet) -> None:
    """Names, units, types and help pass the linter, with runs and GPUs and with none."""
    command = [require("promtool"), "check", "metrics"]
    result = subprocess.run(
        command, input=scrape(fleet), capture_output=True, text=True, check=False
    )

    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_a_full_fleet_has_every_metric_of_the_catalog_and_no_other() -> None:
    """Names, types and help are those of the catalog, and each that is not of GPUs has a sample."""
    kinds = {"info": "gauge"}
    expected = {(m.name.removesuffix("_total"), kinds.get(m.type, m.type), m.help) for m in CATALOG}

    families = list(parse_text(made_up_scrape()))

    assert {(family.name, family.type, family.documentation) for family in families} == expected
    of_gpus = {metric.name.removesuffix("_total") for metric in TOPICS["GPUs"]}
    empty = {family.name for family in families if not family.samples}
    assert empty == of_gpus - {"ampwatch_gpu_capability"} | {"ampwatch_page_info"}


def test_every_sample_has_exactly_the_labels_of_the_catalog() -> None:
    """A label set never varies within a family."""
    labels = {metric.family: set(metric.labels) for metric in CATALOG}
    for fleet in (made_up_fleet(), fleet_with_gpus()):
        for family in parse_openmetrics(scrape(fleet, OPENMETRICS)):
            for sample in family.samples:
                assert set(sample.labels) - {"le"} == labels[family.name], sample


def test_a_content_type_never_has_a_line_break() -> None:
    """A header of the client's making cannot get into the answer."""
    accept = "application/openmetrics-text;version=2.\r\n X-Evil: 1"

    _, content_type = PrometheusExporter(fleet_of()).render(accept)

    assert content_type.isprintable()


PERHAPS_NOT_TOLD = {
    "ampwatch_trained_samples_total",
    "ampwatch_trained_tokens_total",
    "ampwatch_training_thread_cpu_seconds_total",
    "ampwatch_training_thread_run_delay_seconds_total",
}
"""Counters that a program or a system need not tell: nobody knows before the first step whether they do, and
no alert reads their increase from 0."""


def test_counters_are_there_at_0_before_the_first_step() -> None:
    """The first skip of a run is an increase that an alert can see, for each class of skips."""
    born = samples(fleet_of())
    rank_counters = [
        m.name
        for m in CATALOG
        if m.labels == ("run", "rank") and m.type == "counter" and m.name not in PERHAPS_NOT_TOLD
    ]

    assert [born[name, "0", "gpt"] for name in rank_counters] == [0] * len(rank_counters)
    assert born["ampwatch_optimizer_steps_total", "0", "0", "gpt"] == 0
    for skip in SKIP_CLASSES:
        assert born["ampwatch_optimizer_steps_skipped_total", skip.label, "0", "0", "gpt"] == 0
    for kind in KINDS:
        assert born["ampwatch_finding_steps_total", kind, "0", "gpt"] == 0


def test_a_kind_of_another_release_appears_when_it_is_seen() -> None:
    """The known ones stay beside it, each with its own count."""
    got = samples(fleet_of(finding("seen_from_the_future", count=7), finding(count=2)))

    steps = {key[1]: v for key, v in got.items() if key[0] == "ampwatch_finding_steps_total"}

    assert steps == {
        **dict.fromkeys(KINDS, 0),
        "scale_collapse": 2,
        "seen_from_the_future": 7,
    }


def test_what_is_not_known_is_absent() -> None:
    """No scaler, no loss, no step: no sample, instead of one that is wrong."""
    unknown = {
        "ampwatch_loss_scale",
        "ampwatch_loss_scale_min",
        "ampwatch_loss_scale_growth_tracker_steps",
        "ampwatch_loss_scale_initial",
        "ampwatch_loss_scale_growth_interval_steps",
        "ampwatch_loss",
        "ampwatch_last_applied_step_timestamp_seconds",
    }
    no_scaler = {"loss_scale": math.nan, "growth_tracker": -1, "num_losses": 0}
    skipped = skipped_step(0, 1.0)

    assert not names_of_rank_0(fleet_of()) & {*unknown, "ampwatch_last_step_timestamp_seconds"}
    bare = fleet_of(step(0, **no_scaler))
    assert names_of_rank_0(bare) & unknown == {"ampwatch_last_applied_step_timestamp_seconds"}
    assert "ampwatch_last_applied_step_timestamp_seconds" not in names_of_rank_0(fleet_of(skipped))


@pytest.mark.parametrize(("text", "value"), [("65536.0", 65536.0), ("nan", None), ("many", None)])
def test_settings_of_the_scaler_are_numbers_or_absent(text: str, value: float | None) -> None:
    """They come as text, and a writer can put anything there."""
    fleet = fleet_of(FactsRecord({"init_scale": text, "growth_interval": text}))

    got = samples(fleet)

    assert got.get(("ampwatch_loss_scale_initial", "0", "gpt")) == value
    assert got.get(("ampwatch_loss_scale_growth_interval_steps", "0", "gpt")) == value


def test_run_info_has_the_facts_of_the_catalog_and_no_other() -> None:
    """An unknown fact does not change the label set; one that is missing is empty."""
    fleet = fleet_of(FactsRecord({"torch": "2.13.0", "favourite_colour": "blue"}), world_size=8)
    families = {family.name: family for family in parse_text(scrape(fleet))}

    (sample,) = families["ampwatch_run_info"].samples

    assert {name: sample.labels[name] for name in RUN_FACTS if sample.labels[name]} == {
        "torch": "2.13.0"
    }
    assert (sample.labels["world_size"], "favourite_colour" in sample.labels) == ("8", False)


def test_text_of_users_never_breaks_a_scrape() -> None:
    """Quotes, line breaks and what UTF-8 cannot carry are escaped or replaced in every label."""
    nasty = 'a"\\\n\ud800'
    records: list[Record] = [FactsRecord({"device": nasty}), step(0), finding(nasty)]

    for accept, parse in (("", parse_text), (OPENMETRICS, parse_openmetrics)):
        text = scrape(fleet_of(*records, run=nasty, version=nasty), accept)
        families = {family.name: family for family in parse(text)}
        (loss,) = families["ampwatch_loss"].samples
        (found,) = families["ampwatch_findings"].samples
        assert loss.labels["run"] == found.labels["kind"] == 'a"\\\n?'


def test_one_rank_speaks_for_the_modules_and_every_rank_for_itself() -> None:
    """Series that alerts read of a rank are there for both, whatever is left out of modules."""
    per_module = {metric.name for metric in CATALOG if "module" in metric.labels}
    fleet = Fleet(Settings(), Clock())
    for rank in (0, 1):
        put(fleet, str(rank), identity(rank=rank), [*RANGES, *PRECISION])
    names: dict[str, set[str]] = {"0": set(), "1": set()}
    for family in parse_openmetrics(scrape(fleet, OPENMETRICS)):
        for sample in family.samples:
            if "rank" in sample.labels:
                names[sample.labels["rank"]].add(sample.name)

    assert per_module <= names["0"]
    assert names["0"] - names["1"] == per_module


def test_ranks_beyond_the_limit_are_counted_instead_of_exported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A scrape has a size that is known beforehand."""
    monkeypatch.setattr(fleets, "MAX_RANKS", 2)
    fleet = Fleet(Settings(), Clock())
    for rank in range(5):
        put(fleet, str(rank), identity(rank=rank, started_ns=START * 10**9 + rank), [step(0)])

    found = samples(fleet)

    assert found["ampwatch_ranks_left_out",] == 3.0
    steps = {key for key in found if key[0] == "ampwatch_steps_total"}
    assert steps == {("ampwatch_steps_total", "0", "gpt"), ("ampwatch_steps_total", "1", "gpt")}


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


if __name__ == "__main__":
    print(made_up_scrape(), end="")  # noqa: T201 - the golden file is made from it
