"""Tests of the GPU families: what is there, what is absent, and that promtool agrees."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from ampwatch.host.fleet import Fleet
from ampwatch.host.fleet.gpus import KNOWN_XIDS, Feature, Gpu, Instance, MigDevice, Pass, Reason
from ampwatch.host.metrics.catalog import TOPICS
from ampwatch.host.metrics.prometheus import PrometheusExporter
from ampwatch.settings import Settings
from ampwatch.wire.records import FactsRecord
from tests.workshop.clocks import START
from tests.workshop.fleets import PID, fleet_with_gpus, without_nvml
from tests.workshop.records import identity

GOLDEN = Path(__file__).parents[2] / "golden" / "gpu_metrics.txt"
NAMES = [metric.name for metric in TOPICS["GPUs"]]


def gpu_scrape(fleet: Fleet) -> str:
    """Return the part of a scrape that is about GPUs."""
    body, _ = PrometheusExporter(fleet).render()
    heads = {f"# HELP {name} " for name in NAMES}
    lines: list[str] = []
    wanted = False
    for line in body.decode().splitlines():
        if line.startswith("# HELP "):
            wanted = any(line.startswith(head) for head in heads)
        if wanted:
            lines.append(line)
    return "".join(f"{line}\n" for line in lines)


def samples(fleet: Fleet, name: str) -> list[Sample]:
    families = text_string_to_metric_families(gpu_scrape(fleet))
    return [s for family in families for s in family.samples if s.name == name]


def fleet_of(*gpus: Gpu) -> Fleet:
    fleet = Fleet(Settings())
    fleet.gpus.apply(Pass(Reason.OK, list(gpus)))
    return fleet


def test_the_scrape_of_synthetic_gpus_is_the_golden_one() -> None:
    """Every family with every label, as people and dashboards will see it."""
    message = "if the change is wanted: python -m tests.host.metrics.test_gpus > tests/golden/gpu_metrics.txt"

    assert GOLDEN.read_text(encoding="utf-8") == gpu_scrape(fleet_with_gpus()), message


@pytest.mark.rotating
def test_every_gpu_metric_of_the_catalog_has_a_sample() -> None:
    """The synthetic GPUs have all that a dashboard may ask for."""
    fleet = fleet_with_gpus()

    assert [name for name in NAMES if not samples(fleet, name)] == []


def test_without_a_driver_only_the_reason_is_there() -> None:
    """One series instead of forty families of zeros."""
    fleet = without_nvml(Fleet(Settings()))

    assert [line for line in gpu_scrape(fleet).splitlines() if not line.startswith("#")] == [
        'ampwatch_gpu_capability{feature="nvml",gpu="",reason="library_not_found",state="unsupported",uuid=""} 1.0'
    ]


def test_a_gpu_that_has_gone_is_down_and_tells_nothing_else() -> None:
    """An alert on ampwatch_gpu_up has something to see; old values are not repeated."""
    fleet = fleet_of(Gpu(0, "GPU-a", {"name": "A"}, {Feature.POWER: {"": 300.0}}))
    fleet.gpus.apply(Pass(Reason.OK))

    (up,) = samples(fleet, "ampwatch_gpu_up")
    (info,) = samples(fleet, "ampwatch_gpu_info")

    assert (up.value, info.labels["name"]) == (0, "A")
    assert samples(fleet, "ampwatch_gpu_power_watts") == []
    assert {
        s.labels["reason"] for s in samples(fleet, "ampwatch_gpu_capability") if s.labels["uuid"]
    } == {"gpu_lost"}


def test_xid_counters_exist_before_the_first_error() -> None:
    """Where errors are listened for, and only there; the time does not."""
    listened = Gpu(0, "GPU-a", {}, {Feature.XID: {"": Reason.OK}})
    deaf = Gpu(1, "GPU-b", {}, {Feature.XID: {"": Reason.NO_PERMISSION}})
    fleet = fleet_of(listened, deaf)

    counts = samples(fleet, "ampwatch_gpu_xid_errors_total")

    assert {s.labels["uuid"] for s in counts} == {"GPU-a"}
    assert {s.labels["xid"] for s in counts} == {*map(str, KNOWN_XIDS), "other"}
    assert {s.value for s in counts} == {0}
    assert samples(fleet, "ampwatch_gpu_xid_last_timestamp_seconds") == []


def test_an_xid_is_counted_and_dated_also_when_its_gpu_has_gone() -> None:
    """XID 79 is the reason for which it has."""
    fleet = fleet_of(Gpu(0, "GPU-a", {}, {Feature.XID: {"": Reason.OK}}))
    fleet.gpus.xids("GPU-a").add(79, START)
    fleet.gpus.apply(Pass(Reason.OK))

    counts = {
        s.labels["xid"]: s.value for s in samples(fleet, "ampwatch_gpu_xid_errors_total") if s.value
    }
    (last,) = samples(fleet, "ampwatch_gpu_xid_last_timestamp_seconds")

    assert counts == {"79": 1}
    assert (last.labels["xid"], last.value) == ("79", START)


def test_a_rank_in_mig_mode_has_the_labels_of_its_instance() -> None:
    """So that it can be joined with what is read of the instance."""
    device = MigDevice("MIG-5", 0, "3g.40gb")
    activity = {Feature.TENSOR_ACTIVE: {"any": 0.5}}
    fleet = fleet_of(Gpu(3, "GPU-3", {}, instances=[Instance(2, (device,), activity)]))
    who, facts = identity(world_size=1, pid=PID), FactsRecord({"gpu_uuid": "MIG-5"})
    fleet.apply("/a.ring", who, [facts], alive=True, lost=0, dropped=0)

    (info,) = samples(fleet, "ampwatch_gpu_process_info")
    (activity,) = samples(fleet, "ampwatch_mig_tensor_active_ratio")

    joined = ("gpu", "uuid", "gpu_instance")
    assert [info.labels[name] for name in joined] == ["3", "GPU-3", "2"]
    assert [activity.labels[name] for name in joined] == ["3", "GPU-3", "2"]


def test_a_device_that_only_the_training_sees_has_that_as_its_reason() -> None:
    """Its readings are absent, and this says why."""
    fleet = fleet_of(Gpu(3, "GPU-3", {}))
    facts = FactsRecord({"gpu_uuid": "GPU-4"})
    fleet.apply("/a.ring", identity(world_size=1), [facts], alive=True, lost=0, dropped=0)

    (said,) = (s for s in samples(fleet, "ampwatch_gpu_capability") if s.labels["uuid"] == "GPU-4")

    assert (said.labels["feature"], said.labels["reason"]) == ("nvml", "not_shown")
    assert samples(fleet, "ampwatch_gpu_process_info") == []


def test_a_gpu_without_a_name_is_known_by_its_number() -> None:
    """Lost before the daemon came."""
    fleet = Fleet(Settings())
    fleet.gpus.apply(Pass(Reason.OK, [], {3: Reason.GPU_LOST}))

    told = {
        (s.labels["gpu"], s.labels["feature"], s.labels["reason"])
        for s in samples(fleet, "ampwatch_gpu_capability")
    }

    assert told == {("", "nvml", "ok"), ("3", "uuid", "gpu_lost")}


if __name__ == "__main__":
    print(gpu_scrape(fleet_with_gpus()), end="")  # noqa: T201 - the golden file is made from it
