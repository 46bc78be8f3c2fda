"""Runs of two ranks held against each other: gradients are really summed, and one rank is at fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ampwatch.cli import main
from tests.workshop.nursery import Nursery

pytestmark = pytest.mark.nightly

TRAINING = """
import os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import init_device_mesh
import ampwatch

torch.set_num_threads(1)
directory, store = sys.argv[1:]
rank, world = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
if world > 1:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 8), nn.LayerNorm(8), nn.Linear(8, 4)
    )


def spread(net, course):
    if world == 1:
        return net
    if course.startswith("fsdp"):
        mesh = init_device_mesh("cpu", (world,))
        fully_shard(net[0], mesh=mesh)
        return fully_shard(net, mesh=mesh)
    return nn.parallel.DistributedDataParallel(net)


def train(course):
    net = network()
    model = spread(net, course)
    is_at_fault = rank == 1
    if course == "eps" and is_at_fault:
        net[1].eps = 1e-3
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    is_half = "float16" in course
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=is_half)
    place = os.path.join(directory, course)
    with ampwatch.monitor(
        model, scaler if is_half else None, optimizer=optimizer, serve=False, lab=True, record_dir=place
    ):
        for step in range(3):
            drawn = torch.Generator().manual_seed(step)
            x = torch.randn(8, 8, generator=drawn).chunk(world)[rank]
            y = torch.randint(4, (8,), generator=drawn).chunk(world)[rank]
            with torch.autocast("cpu", torch.float16, enabled=is_half):
                loss = nn.functional.cross_entropy(model(x).float(), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if course == "nudged" and is_at_fault and step == 0:
                net[3].weight.data.view(torch.int32).view(-1)[3] += 1


COURSES = ["float32", "float16", "eps", "nudged"]
for course in COURSES + ["fsdp", "fsdp float16"] if world > 1 else ["float32"]:
    train(course)
if world > 1:
    dist.barrier()
"""


@pytest.fixture(scope="module")
def runs(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories of tapes: ``2/<course>`` of two ranks, ``1/float32`` of one."""
    place: Path = tmp_path_factory.mktemp("runs")
    ranks = [
        nursery.start(
            TRAINING,
            *(str(place / str(world)), str(place / "store")),
            environment={"GLOO_SOCKET_IFNAME": "lo", "WORLD_SIZE": str(world)}
            | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for world in (1, 2)
        for rank in range(world)
    ]
    assert [rank.wait() for rank in ranks] == [0, 0, 0], [rank.stderr for rank in ranks]
    return place


@pytest.fixture
def diff(runs: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Compare two runs by the command line; return the exit status, the document and the text."""

    def compared(a: str, b: str) -> tuple[int, dict[str, Any], str]:
        status = main(["diff", str(runs / a), str(runs / b), "--json"])
        document = json.loads(capsys.readouterr().out)
        assert main(["diff", str(runs / a), str(runs / b)]) == status
        return status, document, " ".join(capsys.readouterr().out.split())

    return compared


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("2/float32", "2/float16"),
        ("2/fsdp", "2/fsdp float16"),
        ("2/fsdp", "2/float32"),
        ("1/float32", "2/float32"),
        ("1/float32", "2/float16"),
    ],
)
def test_healthy_ranks_are_left_alone(a: str, b: str, diff: Any) -> None:
    """Formats, the sum over ranks and its order, and the way weights are divided are no difference."""
    status, document, said = diff(a, b)

    assert status == 0, said
    assert [rank["verdict"] for rank in document["ranks"]] != []
    assert len(document["ranks"]) == 2
    assert document["parted"] == []


def test_a_fault_of_one_rank_is_found_with_its_rank(diff: Any) -> None:
    """An eps that rank 1 alone has: its forward parts, and the gradients of all, which are summed."""
    status, document, said = diff("2/float32", "2/eps")

    assert status == 3
    assert "op native_layer_norm in 1, forward of step 0, rank 1" in said
    assert "1: eps is 1e-05 in A, 0.001 in B" in said
    assert "rank 0 differs by more from gradient of 0.weight" in said
    assert [rank["first"]["kind"] for rank in document["ranks"]] == ["gradient", "op"]


@pytest.mark.parametrize("a", ["1/float32", "2/float32"])
def test_weights_that_part_by_a_bit_between_ranks_are_found(a: str, diff: Any) -> None:
    """Far less than formats explain, so that no rank departs: the ranks of B do."""
    status, document, said = diff(a, "2/nudged")

    assert status == 3
    assert "ranks of one run differ where they should have the same" in said
    (parted,) = document["parted"]
    assert (parted["run"], parted["step"], parted["kind"]) == ("B", 1, "weight")
    assert (parted["name"], parted["ranks"]) == ("3.weight", [0, 1])
