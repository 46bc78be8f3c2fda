"""Which rank computes on which GPU."""

from __future__ import annotations

from ampwatch.host.fleet import Fleet
from ampwatch.host.fleet.gpu_users import gpu_of, users
from ampwatch.host.fleet.gpus import Gpu, Pass, Reason
from ampwatch.settings import Settings
from ampwatch.wire.records import FactsRecord
from tests.workshop.records import end, identity

PID = 4711
SYNTHETIC = {"synthetic": "true"}


def fleet_of(*gpus: Gpu, pid: int = 0, uuid: str = "", local_rank: int = 0) -> Fleet:
    """One rank, what is known of its process, and the GPUs."""
    fleet = Fleet(Settings())
    fleet.gpus.apply(Pass(Reason.OK, list(gpus)))
    who = identity(world_size=1, local_rank=local_rank)
    facts = [FactsRecord({"gpu_uuid": uuid})] if uuid else []
    fleet.apply("/a.ring", who, facts, alive=True, lost=0, dropped=0, pid=pid)
    return fleet


def found(fleet: Fleet) -> str | None:
    (rank,) = fleet.ranks()
    gpu = gpu_of(rank, fleet.gpus.all())
    return None if gpu is None else gpu.uuid


def used(fleet: Fleet) -> list[tuple[str, int | None]]:
    return [(gpu.uuid, memory) for _, gpu, memory in users(fleet)]


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
