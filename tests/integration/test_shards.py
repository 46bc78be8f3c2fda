"""Models that are spread over two ranks: what each rank sees of its part, and of the other one's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.host.daemon.parts import ROOT

pytestmark = pytest.mark.nightly

TRAINING = """
import hashlib, json, os, sys
from pathlib import Path
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
import ampwatch
from ampwatch.training.kernels.admission import admit
from ampwatch.training import outlet
from ampwatch.training.launcher import DaemonStatus

outlet.ensure_daemon = lambda _: DaemonStatus("", "unavailable")  # their rings are all they need

dist.init_process_group("gloo")
RANK = dist.get_rank()
OUT = Path(sys.argv[1])
MESH = init_device_mesh("cpu", (2,))
OVERFLOW, INFINITE, STEPS = 6, 9, 18


class Boost(nn.Module):
    gain = 1.0

    def forward(self, x):
        return x * self.gain


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.boost, self.fc2 = nn.Linear(16, 32), Boost(), nn.Linear(32, 16)

    def forward(self, x):
        return x + self.fc2(self.boost(torch.relu(self.fc1(x))))


def fsdp2(model, **policy):
    for block in model[:2]:
        fully_shard(block, **policy)
    return fully_shard(model, **policy)


def mixed(model):
    return fsdp2(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.float16))


def fsdp1(model, use_orig_params=True):
    return FullyShardedDataParallel(
        model,
        device_id=torch.device("cpu"),
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        use_orig_params=use_orig_params,
    )


def flat(model):
    return fsdp1(model, use_orig_params=False)


def parallel(model):
    for block in model[:2]:
        parallelize_module(block, MESH, {"fc1": ColwiseParallel(), "fc2": RowwiseParallel()})
    parallelize_module(model, MESH, {"2": ColwiseParallel(output_layouts=Replicate())})
    return model


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gradients_of_second_block(model):
    # The weight of fc2 is in the second half of its block, which rank 1 has.
    for name, p in model.named_parameters():
        if "1." in name and p.grad is not None and local(p.grad).numel():
            if name.endswith("_flat_param"):
                yield local(p.grad)[-32:]  # before the 16 of the bias
            elif name.endswith("fc2.weight"):
                yield local(p.grad)


def train(name, level):
    torch.manual_seed(0)
    model = CASES[name](nn.Sequential(Block(), Block(), nn.Linear(16, 4)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = (ShardedGradScaler if name in ("fsdp1", "flat") else torch.amp.GradScaler)(
        "cpu", init_scale=1024.0
    )
    watch = None
    if level:
        watch = ampwatch.monitor(model, scaler, level=level)
    boost = [m for m in model.modules() if isinstance(m, Boost)][1]
    # Tensor parallel ranks compute one batch together; of the others only one may overflow.
    is_one_batch = name == "parallel"
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(2 * step + (0 if is_one_batch else RANK))
        x = torch.randn(8, 16, generator=generator)
        overflows = step == OVERFLOW and (RANK == 1 or name != "mixed")
        boost.gain = 1e6 if overflows else 1.0
        with torch.autocast("cpu", torch.float16, enabled=name != "mixed"):
            loss = model(x).float().square().mean() / 2
        scaler.scale(loss).backward()
        if step >= INFINITE and RANK == 1:
            with torch.no_grad():
                next(gradients_of_second_block(model)).view(-1)[0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    weights = hashlib.sha256()
    for p in model.parameters():
        weights.update(local(p.detach()).contiguous().numpy().tobytes())
    seen = {"weights": weights.hexdigest(), "scale": scaler.get_scale()}
    if watch is not None:
        watch.close()
        seen["findings"] = [[f.kind, f.where, f.summary] for f in watch.findings]
        seen["report"] = " ".join(str(watch.report()).split())
        census = watch._session.census
        seen["flops"] = sum(row.flops for row in census.rows if row.op) if census else 0
    return seen


CASES = {"fsdp2": fsdp2, "mixed": mixed, "fsdp1": fsdp1, "flat": flat, "parallel": parallel}


def plain_dtensor():
    torch.manual_seed(0)
    model = nn.Linear(16, 4)
    for name, p in list(model.named_parameters()):
        setattr(model, name, nn.Parameter(distribute_tensor(p.detach(), MESH, [Replicate()])))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with ampwatch.monitor(model, optimizer=optimizer, level="deep", serve=False) as watch:
        for step in range(4):
            batch = torch.full((8, 16), float("inf") if step == 3 else 1.0)
            model(distribute_tensor(batch, MESH, [Replicate()])).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return {"findings": [f.kind for f in watch.findings], "report": str(watch.report())}


def pending():
    replaced = dict(vars(dist.ProcessGroup)), dict(vars(dist.Work))
    seen = []
    with ampwatch.monitor(nn.Linear(2, 2), serve=False):
        for begin in (
            lambda t: dist.all_reduce(t, async_op=True),
            lambda t: dist.broadcast(t, 1, async_op=True),
            lambda t: dist.all_gather([t, torch.zeros(4)], torch.ones(4), async_op=True),
            lambda t: dist.all_gather_into_tensor(t, torch.ones(2), async_op=True),
            lambda t: dist.reduce_scatter_tensor(t, torch.ones(8), async_op=True),
            lambda t: dist.all_to_all_single(t, torch.ones(4), async_op=True),
            lambda t: dist.irecv(t, 1) if RANK == 0 else dist.isend(t, 0),
        ):
            target = torch.ones(4)
            if RANK:  # comes when the other rank has looked
                dist.recv(torch.empty(1), 0, tag=7)
            work = begin(target)
            before = admit(target)[1]
            if not RANK:
                dist.send(torch.ones(1), 1, tag=7)
            work.wait()
            seen.append([before, admit(target)[1], admit(target[:2])[1]])
    left = replaced != (dict(vars(dist.ProcessGroup)), dict(vars(dist.Work)))
    return {"seen": seen, "left": left}


found = {}
for name in CASES:
    for level in ("", *(["light"] if name == "fsdp2" else []), "standard", "deep"):
        found[f"{name}-{level}"] = train(name, level)
found["plain"] = plain_dtensor()
found["pending"] = pending()
(OUT / f"found-{RANK}").write_text(json.dumps(found))
dist.destroy_process_group()
# The wrapped models keep the group, and with it the threads of gloo. One of them may let go of the
# all-to-all, for which it needs the interpreter, while that goes away: PyTorch then aborts.
os._exit(0)
"""

CASES = ("fsdp2", "mixed", "fsdp1", "flat", "parallel")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What both ranks have seen, of one start of two processes."""
    directory: Path = tmp_path_factory.mktemp("shards")
    script = directory / "train.py"
    script.write_text(TRAINING)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    rings = directory / "rings"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment |= {"AMPWATCH_RING_DIR": str(rings)}
    done = subprocess.run(
        [*launch, str(script), str(directory)],
        env=environment | {"GLOO_SOCKET_IFNAME": "lo"},
        stderr=subprocess.PIPE,
        timeout=300,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "failed and is switched off" not in done.stderr
    assert list(rings.iterdir()) == []
    return [json.loads((directory / f"found-{rank}").read_text()) for rank in range(2)]


@pytest.mark.parametrize(
    ("case", "level"),
    [*((case, level) for case in CASES for level in ("standard", "deep")), ("fsdp2", "light")],
)
def test_a_sharded_training_is_the_same_watched(
    found: list[dict[str, Any]], case: str, level: str
) -> None:
    """Weights of each shard bit for bit, and the scale; and no sensor has failed."""
    for seen in found:
        alone, watched = seen[f"{case}-"], seen[f"{case}-{level}"]
        assert (watched["weights"], watched["scale"]) == (alone["weights"], alone["scale"])
        assert "switched off" not in watched["report"]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("level", ["standard", "deep"])
def test_faults_are_named_on_each_rank(found: list[dict[str, Any]], case: str, level: str) -> None:
    """The op where it overflows; the parameter also where another rank has the infinite gradient."""
    for rank, seen in enumerate(found):
        findings = seen[f"{case}-{level}"]["findings"]
        kinds = {kind for kind, _, _ in findings}
        overflows = [where for kind, where, _ in findings if kind == "forward_overflow"]
        if case == "mixed" and rank == 0:
            assert not overflows
        else:
            assert overflows == ["1.boost"]
        (collapse,) = [words for kind, _, words in findings if kind == "scale_collapse"]
        assert "parameter 1.fc2.weight" in collapse
        assert "_flat_param" not in collapse
        assert ("in rank 1, while all of this rank's are finite" in collapse) == (rank == 0)
        # What the CPU can do depends on the machine that runs the tests.
        expected = {"scale_collapse", *(["forward_overflow"] if overflows else [])}
        assert kinds - {"cpu_isa_missing"} == expected


@pytest.mark.parametrize("case", CASES)
def test_a_failed_step_of_sharded_parameters_is_not_replayed(
    found: list[dict[str, Any]], case: str
) -> None:
    """A replay in one rank would wait for another one; the report says so."""
    reports = [seen[f"{case}-deep"]["report"] for seen in found]
    assert "communicates with" in reports[1]
    assert all("failed steps are not replayed" in report for report in reports)


def test_each_rank_counts_the_ops_on_its_own_shard(found: list[dict[str, Any]]) -> None:
    """Tensor parallel ranks share the products of one batch; sharded ones gather the weights."""
    for seen in found:
        assert seen["parallel-deep"]["flops"] * 2 == seen["fsdp2-deep"]["flops"] > 0


def test_a_dtensor_is_watched_where_it_lies(found: list[dict[str, Any]]) -> None:
    """Input, loss and weights of one: an input that is infinite is found on both ranks."""
    for seen in found:
        assert "nonfinite_input" in seen["plain"]["findings"]
        assert "switched off" not in seen["plain"]["report"]


def test_what_a_collective_has_yet_to_write_is_not_read(found: list[dict[str, Any]]) -> None:
    """Whoever asks, in any iteration; when the program has waited it is read again."""
    assert found[0]["pending"]["seen"] == [["pending", "", ""]] * 7
    assert not any(seen["pending"]["left"] for seen in found)
