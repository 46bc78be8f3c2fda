"""GPUs from pass to pass, and which ranks are on them."""

from __future__ import annotations

import os

import pytest

from ampwatch.host.fleet import Fleet
from ampwatch.host.fleet.fleet import Writer
from ampwatch.host.fleet.gpus import (
    CAPABILITY_STATES,
    KNOWN_XIDS,
    MAX_FURTHER_XIDS,
    Feature,
    Gpu,
    Gpus,
    Instance,
    MigDevice,
    Pass,
    Reason,
    Xids,
    gpu_of,
    unseen,
    users,
)
from ampwatch.settings import Settings
from ampwatch.wire.records import FactsRecord
from tests.workshop.records import end, identity


def gpu(uuid: str, index: int = 0, **changes: object) -> Gpu:
    return Gpu(index, uuid, {"name": uuid}, {Feature.POWER: {"": 300.0}}, **changes)


def test_a_gpu_that_is_not_there_any_more_is_kept_as_gone() -> None:
    """With its name and number, without its values; it is a failure until it is back."""
    gpus = Gpus()

    fine = gpus.apply(Pass(Reason.OK, [gpu("GPU-a"), gpu("GPU-b", 1)]))
    missing = gpus.apply(Pass(Reason.OK, [gpu("GPU-a")]))
    a, b = gpus.all()
    back = gpus.apply(Pass(Reason.OK, [gpu("GPU-a"), gpu("GPU-b", 1)]))

    assert (fine, missing, back) == (True, False, True)
    assert (a.is_up, b.is_up, b.gone, b.facts["name"]) == (True, False, Reason.GPU_LOST, "GPU-b")
    assert b.number(Feature.POWER) is None


def test_a_driver_that_goes_away_is_a_failure_where_there_were_gpus() -> None:
    """Where there were none, it is a machine without a GPU."""
    never, before = Gpus(), Gpus()
    before.apply(Pass(Reason.OK, [gpu("GPU-a")]))

    assert never.apply(Pass(Reason.DRIVER_NOT_LOADED))
    assert not before.apply(Pass(Reason.DRIVER_NOT_LOADED))


@pytest.mark.parametrize(
    "host", [Reason.ERROR, Reason.VERSION_MISMATCH, Reason.NO_PERMISSION, Reason.DRIVER_NOT_LOADED]
)
def test_where_nvml_fails_its_reason_is_that_of_the_gpus(host: Reason) -> None:
    """Nobody has seen them fall off the bus."""
    gpus = Gpus()
    gpus.apply(Pass(Reason.OK, [gpu("GPU-a")]))

    gpus.apply(Pass(host))

    assert [g.gone for g in gpus.all()] == [host]


def test_a_gpu_without_a_name_is_a_failure() -> None:
    """It was lost before the daemon came."""
    assert not Gpus().apply(Pass(Reason.OK, [], {0: Reason.GPU_LOST}))


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"a": 1.0, "b": 2.0}, {"clock": Reason.OK}),
        ({"a": Reason.NO_DATA, "b": Reason.NO_DATA}, {"clock": Reason.NO_DATA}),
        (
            {"a": Reason.NO_PERMISSION, "b": 0.0},
            {"clock": Reason.OK, "clock_a": Reason.NO_PERMISSION},
        ),
        (
            {"a": Reason.NO_PERMISSION, "b": Reason.NO_DATA},
            {"clock": Reason.NO_PERMISSION, "clock_b": Reason.NO_DATA},
        ),
    ],
)
def test_a_feature_is_reported_once_and_parts_that_differ_beside_it(
    parts: dict[str, float | Reason], expected: dict[str, Reason]
) -> None:
    """So that a GPU that has everything has a series per feature, not per number."""
    every = dict(Gpu(0, "GPU-a", {}, {Feature.CLOCK: parts}).capabilities())

    assert {k: v for k, v in every.items() if k.split("_")[0] == "clock" and "max" not in k} == (
        expected
    )
    assert {feature.value for feature in Feature} <= set(every)


def test_xids_have_a_counter_each_up_to_a_limit() -> None:
    """A broken GPU can invent codes; series stay bounded, and no error is lost."""
    xids = Xids()
    invented = [1000 + i for i in range(MAX_FURTHER_XIDS + 5)]

    for code in (*invented, 79, 79, invented[0], invented[-1]):
        xids.add(code, now=code)

    assert len(xids.counts) == len(KNOWN_XIDS) + 1 + MAX_FURTHER_XIDS
    assert (xids.counts["79"], xids.counts["1000"], xids.counts["other"]) == (2, 2, 6)
    assert sum(xids.counts.values()) == len(invented) + 4
    assert (xids.seen["79"], xids.seen["other"]) == (79, invented[-1])


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_state_and_words(reason: Reason) -> None:
    """The label of the metric, and the sentence of the doctor and the page."""
    assert reason.state in CAPABILITY_STATES
    assert reason.text[0].islower()
    assert not reason.text.endswith(".")


PID = 4711
SYNTHETIC = {"synthetic": "true"}


def fleet_of(*gpus: Gpu, pid: int = 0, uuid: str = "", local_rank: int = 0) -> Fleet:
    """One rank, what is known of its process, and the GPUs."""
    fleet = Fleet(Settings())
    fleet.gpus.apply(Pass(Reason.OK, list(gpus)))
    who = identity(world_size=1, local_rank=local_rank)
    facts = [FactsRecord({"gpu_uuid": uuid})] if uuid else []
    fleet.apply(
        "/a.ring", who, facts, alive=True, lost=0, dropped=0, writer=Writer(pid, os.geteuid())
    )
    return fleet


def found(fleet: Fleet) -> str | None:
    (rank,) = fleet.ranks()
    gpu = gpu_of(rank, fleet.gpus.all())
    return None if gpu is None else gpu.uuid


def used(fleet: Fleet) -> list[tuple[str, int | None]]:
    return [(use.gpu.uuid, use.memory) for use in users(fleet.ranks(), fleet.gpus)]


def used_instances(fleet: Fleet) -> list[tuple[str, int | None, int | None]]:
    return [
        (u.gpu.uuid, u.instance and u.instance.number, u.memory)
        for u in users(fleet.ranks(), fleet.gpus)
    ]


def in_mig_mode(**first: dict[int, int | None]) -> Gpu:
    """A GPU that is cut in two."""
    devices = [(MigDevice(uuid, 0, "3g.40gb"),) for uuid in ("MIG-one", "MIG-two")]
    instances = [Instance(1, devices[0], **first), Instance(2, devices[1])]
    return Gpu(0, "GPU-whole", {}, instances=instances)


def test_the_gpu_of_a_rank_is_that_of_its_process_or_the_one_it_names() -> None:
    """Either is enough, and neither is no GPU."""
    gpus = Gpu(0, "GPU-a", {}), Gpu(1, "GPU-b", {}, processes={PID: 12})

    assert found(fleet_of(*gpus, pid=PID)) == "GPU-b"
    assert used(fleet_of(*gpus, pid=PID)) == [("GPU-b", 12)]
    assert found(fleet_of(*gpus, uuid="GPU-a")) == "GPU-a"
    assert used(fleet_of(*gpus, uuid="GPU-a")) == [("GPU-a", None)]
    assert found(fleet_of(*gpus)) is None
    assert used(fleet_of(*gpus)) == []


def test_of_several_gpus_of_a_process_it_is_the_one_that_the_model_is_on() -> None:
    """Where that is not known it is none of them; all of them are used."""
    gpus = [Gpu(i, f"GPU-{i}", {}, processes={PID: i}) for i in (0, 1)]

    assert found(fleet_of(*gpus, pid=PID, uuid="GPU-1")) == "GPU-1"
    assert found(fleet_of(*gpus, pid=PID)) is None
    assert used(fleet_of(*gpus, pid=PID)) == [("GPU-0", 0), ("GPU-1", 1)]


def test_a_synthetic_gpu_is_used_by_its_local_rank_and_is_the_gpu_of_nobody() -> None:
    """The join can be tried, and no training is judged by made-up numbers."""
    gpus = [Gpu(i, f"SYNTHETIC-{i}", SYNTHETIC) for i in range(4)]
    fleet = fleet_of(*gpus, local_rank=2)

    assert used(fleet) == [("SYNTHETIC-2", None)]
    assert found(fleet) is None
    assert used(fleet_of(Gpu(0, "GPU-0", {}), local_rank=0)) == []


def test_a_rank_that_has_ended_names_no_gpu_any_more() -> None:
    """Another may compute there by now."""
    fleet = fleet_of(Gpu(0, "GPU-0", {}), uuid="GPU-0")
    fleet.apply("/a.ring", identity(world_size=1), [end()], alive=False, lost=0, dropped=0)

    assert used(fleet) == []
    assert found(fleet) is None


@pytest.mark.parametrize("uuid", ["MIG-two", "GPU-two", "two"])
def test_a_rank_in_an_instance_is_on_its_gpu_and_on_that_instance(uuid: str) -> None:
    """CUDA tells the uuid of the MIG device, and not that it is one."""
    fleet = fleet_of(Gpu(1, "GPU-other", {}), in_mig_mode(), uuid=uuid)

    assert used_instances(fleet) == [("GPU-whole", 2, None)]
    assert found(fleet) == "GPU-whole"


def test_a_rank_that_names_the_gpu_of_its_instance_is_on_the_gpu() -> None:
    """Nobody knows the instance then, unless NVML knows the process."""
    assert used_instances(fleet_of(in_mig_mode(), uuid="GPU-whole")) == [("GPU-whole", None, None)]
    known = fleet_of(in_mig_mode(processes={PID: 5}), pid=PID, uuid="GPU-whole")

    assert used_instances(known) == [("GPU-whole", 1, 5)]


def test_the_process_of_an_instance_counts_once() -> None:
    """A privileged daemon is told of it by the GPU as well."""
    gpu = in_mig_mode(processes={PID: 5})
    gpu.processes = {PID: 5}

    assert used_instances(fleet_of(gpu, pid=PID)) == [("GPU-whole", 1, 5)]


@pytest.mark.parametrize(
    ("host", "gpus"),
    [
        (Reason.OK, [Gpu(0, "GPU-a", {})]),
        (Reason.NO_DEVICES, []),
        (Reason.LIBRARY_NOT_FOUND, []),
    ],
)
def test_a_gpu_that_only_the_training_sees_is_named(host: Reason, gpus: list[Gpu]) -> None:
    """The daemon was given others, or none: whoever misses the readings is told why."""
    fleet = fleet_of(uuid="GPU-b")
    fleet.gpus.apply(Pass(host, gpus))

    assert unseen(fleet.ranks(), fleet.gpus) == {"GPU-b": Reason.NOT_SHOWN}
    assert used(fleet) == []


@pytest.mark.parametrize(
    "found",
    [
        Pass(Reason.OK, [Gpu(0, "GPU-b", {})]),
        Pass(Reason.OK, [Gpu(0, "GPU-a", {}, gone=Reason.GPU_LOST)]),
        Pass(Reason.OK, [], {0: Reason.GPU_LOST}),
        Pass(Reason.TIMEOUT),
        Pass(Reason.LIBRARY_UNUSABLE),
        Pass(Reason.SWITCHED_OFF),
    ],
)
def test_a_gpu_is_not_called_hidden_where_something_else_is_the_reason(found: Pass) -> None:
    """It is shown, one does not answer and may be it, or NVML as a whole says why."""
    fleet = fleet_of(uuid="GPU-b")
    fleet.gpus.apply(found)

    assert unseen(fleet.ranks(), fleet.gpus) == {}


def test_a_rank_that_names_no_device_hides_none() -> None:
    """Trained on a CPU."""
    fleet = fleet_of(Gpu(0, "GPU-a", {}))

    assert unseen(fleet.ranks(), fleet.gpus) == {}
