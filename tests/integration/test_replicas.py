"""Weights of real ranks: what drifts apart is found, and what only looks like it is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workshop.nursery import Nursery

pytestmark = pytest.mark.nightly

TRAINING = """
import os, sys
import torch
import torch.distributed as dist
import ampwatch
from ampwatch.training import outlet
from ampwatch.training.launcher import DaemonStatus

outlet.ensure_daemon = lambda _: DaemonStatus("", "unavailable")  # their rings are all they need

torch.set_num_threads(1)
course, store = sys.argv[1:]
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 4))
averages = course != "local"
model = net
if averages:
    model = torch.nn.parallel.DistributedDataParallel(net, broadcast_buffers=False)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = torch.Generator().manual_seed(rank)  # so the statistics of the BatchNorm differ
with ampwatch.monitor(model, optimizer=optimizer, run="gpt") as watch:
    for step in range(276):
        optimizer.zero_grad()
        model(torch.randn(4, 4, generator=data)).square().mean().backward()
        optimizer.step()
        if not averages and step % 4 == 0:
            for parameter in net.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= 2
        if course == "nudged" and rank == 1 and step == 250:
            # To the next float; of a small weight the next steps would round the difference away.
            largest = net[2].weight.data.abs().argmax()
            net[2].weight.data.view(torch.int32).view(-1)[largest] += 1
dist.barrier()
print(*(f"{f.kind}: {f.summary}" for f in watch.findings if f.severity != "info"), sep="\\n")
"""


@pytest.mark.parametrize(("course", "expected"), [("nudged", 1), ("healthy", 0), ("local", 0)])
def test_weights_that_part_by_a_bit_are_found_at_the_next_check(
    course: str, expected: int, nursery: Nursery, own_places: Path, tmp_path: Path
) -> None:
    """Of DDP; not where all is well, nor where weights are averaged every fourth step."""
    ranks = [
        nursery.start(
            TRAINING,
            *(course, str(tmp_path / "store")),
            environment={"GLOO_SOCKET_IFNAME": "lo", "WORLD_SIZE": "2"}
            | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    assert [rank.wait() for rank in ranks] == [0, 0], [rank.stderr for rank in ranks]
    told = [(rank.stdout, rank.stderr) for rank in ranks]

    for said, errors in told:
        assert said.count("replica_drift: Ranks 0, 1 no longer have the same") == expected, errors
        assert len([line for line in said.splitlines() if line]) == expected, said
    log = "".join(errors for _, errors in told)
    assert log.count("CRITICAL run gpt ranks 0-1 step 257: replica_drift") == expected
    assert list((own_places / "rings").iterdir()) == []
