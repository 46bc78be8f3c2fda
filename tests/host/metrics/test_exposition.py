"""Tests of the fast way to write a scrape: it writes what the library writes."""

import math
import random
from collections.abc import Callable, Iterator

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from ampwatch.host.fleet import Fleet
from ampwatch.host.fleet.passes import CollectorPass
from ampwatch.host.metrics.prometheus import FleetCollector, PrometheusExporter
from ampwatch.numerics.units.ops import OpKind
from ampwatch.settings import Settings
from ampwatch.wire.records import ALL_MODULES, FactsRecord, KernelTotal, OpTotal, Record, Topic
from tests.workshop.clocks import START, Clock
from tests.workshop.fleets import fleet_of, made_up_fleet, put
from tests.workshop.records import (
    H100,
    census,
    checksum,
    failure,
    finding,
    histogram,
    identity,
    op_row,
    optimizer,
    ranges,
    sampling,
    step,
    window,
)

PASSES = {"rings": CollectorPass(success=True, duration_seconds=0.002)}
ACCEPTED = [
    "",
    "text/plain;version=1.0.0;escaping=allow-utf-8",
    "text/plain;version=1.0.0;escaping=dots",
    "application/openmetrics-text",
    "application/openmetrics-text;version=1.0.0;escaping=underscores",
    "application/openmetrics-text;version=1.0.0;escaping=values",
    "application/openmetrics-text;version=1.0.0;escaping=dots",
    "application/openmetrics-text;version=2.0.0;escaping=allow-utf-8",
]


def by_the_library(fleet: Fleet, accept: str) -> tuple[bytes, str]:
    registry = CollectorRegistry()
    registry.register(FleetCollector(fleet, PASSES))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def awkward_fleet() -> Fleet:
    """Text that needs escaping, and numbers of every look."""
    nasty = 'a"\\\n\\n\ud800é'
    records: list[Record] = [
        FactsRecord({"device": nasty}),
        *(step(i, loss_scale=scale) for i, scale in enumerate([1e-7, 123456789.0, math.inf])),
        step(4, loss=math.nan, loss_scale=2.0**-149),
        finding(nasty),
        ranges(nasty.replace("\ud800", ""), Topic.ACTIVATION, histogram(-140, 1), dtype="float16"),
        sampling(device_ns=1, gradient_elements=2**62),
    ]
    return fleet_of(*records, run=nasty, version=nasty)


@pytest.mark.parametrize("accept", ACCEPTED)
@pytest.mark.parametrize("make", [made_up_fleet, awkward_fleet, lambda: Fleet(Settings(), Clock())])
def test_every_byte_is_that_of_the_library(accept: str, make: Callable[[], Fleet]) -> None:
    """In every format and way of escaping, with and without runs."""
    fleet = make()

    assert PrometheusExporter(fleet, PASSES).render(accept) == by_the_library(fleet, accept)


def test_what_is_remembered_never_shows() -> None:
    """Scrape after scrape in both formats, while values change and ranks come and go."""
    clock = Clock(START + 5)
    fleet = Fleet(Settings(grace_seconds=0.0), clock)
    exporter = PrometheusExporter(fleet, PASSES)
    for index in range(6):
        alive = index % 3 != 2
        who = identity(rank=index % 2)
        put(fleet, f"{who.rank}", who, [step(index, loss=index / 3)], alive=alive)
        clock.now += 1
        for accept in ("", "application/openmetrics-text"):
            assert exporter.render(accept) == by_the_library(fleet, accept)


def some_record(dice: random.Random, index: int) -> Record:
    """A record of any kind, with numbers and names that other ones have as well."""
    few = dice.randrange(3)
    bell = histogram(
        -20 + few, 1, 5, few, 1, zeros=few, numel=dice.choice([None, 50]) or 7 + 2 * few
    )
    changes = {
        "step": index,
        "module": dice.choice([ALL_MODULES, "", "a", "b"]),
        "dtype": "float16",
    }
    ops = (OpTotal(OpKind.MATMUL, dice.choice(["float16", "float32"]), few, few, few, few),)
    return dice.choice(
        [
            step(index, loss=few / 3, loss_scale=2.0**few, consecutive_skips=few),
            step(index, loss=math.nan, total_sensor_errors=few),
            optimizer(few, step=index, total_steps=index, total_skipped=(0, few, 0, 0)),
            ranges(topic=dice.choice(list(Topic)), exponents=bell, **changes),
            sampling(step=index, gradient_nans=few, interval=few),
            census(op_row(module="a", calls=few), iterations=few, ops=ops),
            window(KernelTotal("tensor", "float16", few), windows=few, iterations=few, busy_ns=few),
            finding(dice.choice(["scale_collapse", "update_rounding"]), last_step=index, count=few),
            failure(dice.choice("ab"), errors=few),
            checksum(step=index * 300),
            FactsRecord({dice.choice(["device", "init_scale", "autocast_dtype"]): str(few)}),
            H100,
        ]
    )


def changing(seed: int, which: str) -> Iterator[Fleet]:
    """Yield a fleet that has nothing yet, and again after each of sixty changes."""
    dice = random.Random(seed)
    clock = Clock(START + 5)
    fleet = Fleet(Settings(grace_seconds=3.0, module_series_ranks=which), clock)
    yield fleet
    for index in range(60):
        start = index // 25
        who = identity(rank=dice.randrange(3), world_size=3, started_ns=start, pid=start)
        records = [some_record(dice, index) for _ in range(dice.randrange(4))]
        put(fleet, f"{who.rank}", who, records, alive=dice.random() < 0.9, lost=index // 7)
        clock.now += dice.choice([0.0, 0.5, 40.0])
        fleet.compare_views()
        yield fleet


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("seed", "which"),
    [
        (0, "host"),
        (1, "all"),
        *(pytest.param(s, w, marks=pytest.mark.nightly) for s in (2, 3) for w in ("host", "all")),
    ],
)
def test_whatever_changes_is_written_again(seed: int, which: str) -> None:
    """Records of every kind, in any order, of ranks that come, end and start again."""
    changes = changing(seed, which)
    exporter = PrometheusExporter(next(changes), PASSES)
    for fleet in changes:
        for accept in ("", "application/openmetrics-text"):
            assert exporter.render(accept) == by_the_library(fleet, accept)


def sizes_of_scrapes(accept: str, size: Callable[[PrometheusExporter], int]) -> list[int]:
    """Return what is kept after each of five scrapes of one run, always another one."""
    clock = Clock(START + 5)
    fleet = Fleet(Settings(grace_seconds=0.0), clock)
    exporter = PrometheusExporter(fleet, PASSES)
    sizes = []
    for index in range(5):
        who = identity(run=f"run{index}")
        put(fleet, who.run, who, [step(0)])
        exporter.render(accept)
        sizes.append(size(exporter))
        put(fleet, who.run, who, [], alive=False)
        clock.now += 1
    return sizes


def test_memory_is_that_of_the_newest_scrape() -> None:
    """Series of runs that are over are forgotten."""

    def size(exporter: PrometheusExporter) -> int:
        families = exporter._text._families.values()
        return sum(len(block.lines) for f in families for block in f._blocks.values())

    sizes = sizes_of_scrapes("", size)

    assert sizes == [sizes[0]] * 5


def test_a_finding_carries_its_newest_step_as_exemplar() -> None:
    """In OpenMetrics, on the counter of its kind; not in the text format, which has none."""
    records = step(7), finding("scale_collapse", last_step=7), finding("update_rounding")
    exporter = PrometheusExporter(fleet_of(*records), PASSES)

    def line(accept: str) -> str:
        text = exporter.render(accept)[0].decode()
        start = 'ampwatch_finding_steps_total{kind="scale_collapse"'
        return next(line for line in text.splitlines() if line.startswith(start))

    labels, exemplar = line("application/openmetrics-text").split(" # ")
    words, value, timestamp = exemplar.split()
    assert (words, value) == ('{step="7"}', "1.0")
    assert START <= float(timestamp) <= START + 10
    assert line("") == labels
