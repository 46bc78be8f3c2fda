"""The phases of two ranks whose gradients are summed within backward."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.nightly

PROGRAM = """
import json, os, time

import torch
from torch import distributed, nn

import ampwatch
from ampwatch.wire.records import StepPhase

torch.set_num_threads(1)
distributed.init_process_group("gloo")
rank = distributed.get_rank()
model = nn.Linear(16, 4)
wrapped = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
watch = ampwatch.monitor(model, level="light", serve=False)
for step in range(6):
    optimizer.zero_grad()
    with wrapped.no_sync():
        wrapped(torch.randn(8, 16)).square().mean().backward()
    loss = wrapped(torch.randn(8, 16)).square().mean()
    if rank == 1:
        time.sleep(0.2)
    loss.backward()
    optimizer.step()
newest = watch.box().steps[-1].phases
print(json.dumps({phase.label: s for phase, s in zip(StepPhase, newest) if s}), flush=True)
distributed.barrier()
watch.close()
# Threads of gloo may abort a process that ends by itself.
os._exit(0)
"""


def phases_of_ranks(place: Path) -> list[dict[str, float]]:
    """Return the phases of the last step of each of two ranks, the second of which is slow in forward."""
    program = place / "train.py"
    program.write_text(PROGRAM)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = str(sock.getsockname()[1])
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, program],
            env={**os.environ, **group, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=240)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [json.loads(text.splitlines()[-1]) for text in said]


def test_backward_in_which_ddp_reduces_is_one_phase_with_its_name(tmp_path: Path) -> None:
    """The rank that is early waits in it for the one that is slow in forward; ``no_sync`` is apart."""
    early, slow = phases_of_ranks(tmp_path)

    assert early["backward"] > 0.0
    assert "reduction" not in early | slow
    assert slow["forward"] - early["forward"] > 0.1
    assert early["backward_with_reduction"] - slow["backward_with_reduction"] > 0.1
