"""Two ranks whose gradients are sharded and summed, watched op by op."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.host.daemon.parts import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.nightly

TRAINING = """
import json, os, sys
from pathlib import Path
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
import ampwatch

dist.init_process_group("gloo")
GROUP = dist.group.WORLD


def sharded(model):
    return FullyShardedDataParallel(
        model,
        device_id=torch.device("cpu"),
        auto_wrap_policy=ModuleWrapPolicy({torch.nn.Linear}),
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16),
    )


def sharded_by_parameter(model):
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


def gathered(p):
    out = torch.empty(2 * p.numel())
    dist.all_gather_into_tensor(out, p.grad.reshape(-1), async_op=True).wait()
    p.grad.copy_(out.view(2, -1).mean(0).view_as(p))


def functionally(p):
    p.grad.copy_(functional.all_reduce(p.grad.half(), "sum", GROUP) / 2)


def overflowing(p):
    compressed = torch.full_like(p.grad, 6e4, dtype=torch.float16)
    dist.all_reduce(compressed, async_op=True).wait()
    p.grad.copy_(compressed / 2)


CASES = {
    "fsdp1": (sharded, None),
    "fsdp2": (sharded_by_parameter, None),
    "gathered": (lambda model: model, gathered),
    "functional": (lambda model: model, functionally),
    "overflowing": (lambda model: model, overflowing),
}
found = {}
for name, (wrap, communicate) in CASES.items():
    torch.manual_seed(0)
    model = wrap(torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Linear(64, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    with ampwatch.monitor(model, optimizer=optimizer, level="deep", serve=False) as watch:
        for step in range(8):
            # Written by no op: memory that a new tensor finds as another one has left it.
            used = [torch.empty(n) for n in (256, 512, 1024, 2112)]
            [memory.numpy().fill(float("nan")) for memory in used]
            del used
            model(torch.randn(16, 32)).float().square().mean().backward()
            for p in model.parameters() if communicate else ():
                communicate(p)
            optimizer.step()
            optimizer.zero_grad()
    lines = str(watch.report()).splitlines()
    # That a CPU has no instructions for bfloat16 is true of the machine, and no finding of this training.
    kinds = [f.kind for f in watch.findings if f.root and f.kind != "cpu_isa_missing"]
    found[name] = kinds + [x for x in lines if "switched off" in x]
Path(sys.argv[1], f"found-{dist.get_rank()}").write_text(json.dumps(found))
dist.destroy_process_group()
os._exit(0)  # the models keep the threads of gloo, for which PyTorch aborts a process that ends: see test_shards.py
"""


def test_what_a_collective_has_not_written_yet_fails_no_healthy_run(tmp_path: Path) -> None:
    """Sharded, gathered and functional runs are quiet, and a sum in float16 is found on each rank."""
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [*launch, str(script), str(tmp_path)],
        env=environment | {"GLOO_SOCKET_IFNAME": "lo"},
        stderr=subprocess.DEVNULL,
        timeout=300,
        check=True,
    )
    for rank in range(2):
        found = json.loads((tmp_path / f"found-{rank}").read_text())
        assert found.pop("overflowing") == ["reduce_overflow"]
        assert found == {"fsdp1": [], "fsdp2": [], "gathered": [], "functional": []}
