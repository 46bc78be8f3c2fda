"""Faults of the machine under a watched training: it ends as one that nobody watches."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.workshop.nursery import Nursery

FAULTS = (
    "none",
    "cut",
    "descriptors closed",
    "descriptors closed at its end",
    "ring removed, descriptors closed",
    "no more descriptors",
    "no descriptors at the start",
    "no memory",
    "no memory at the start",
    "no large files",
)

PROGRAM = """
import json, os, resource, sys, traceback
from pathlib import Path
import torch
import ampwatch
from ampwatch.training import outlet
from ampwatch.training.launcher import DaemonStatus
from tests.trainings import build
torch.set_num_threads(1)
outlet.ensure_daemon = lambda settings: DaemonStatus(url="", state="unavailable", message="")
outlet.daemon_is_running = lambda settings: True  # that takes the ring after the end
directory = Path(sys.argv[1])

def limit(what, most):
    resource.setrlimit(what, (most, resource.getrlimit(what)[1]))

def use_up_memory():
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limit(resource.RLIMIT_AS, taken)

def use_up_descriptors():
    limit(resource.RLIMIT_NOFILE, 3)

def strike(fault, rings):
    if fault == "cut":
        os.truncate(next(rings.glob("*.ring")), 0)
    elif fault == "no more descriptors":
        use_up_descriptors()
    elif fault == "no memory":
        use_up_memory()
    elif fault == "no large files":
        limit(resource.RLIMIT_FSIZE, 0)
    elif fault in ("descriptors closed", "ring removed, descriptors closed"):
        if "removed" in fault:
            next(rings.glob("*.ring")).unlink()
        os.closerange(3, 1 << 16)

def train(fault, rings, watched=True):
    run = build("fp16-foreach")
    run.after_step = lambda index: strike(fault, rings) if index == 3 and watched else None
    before = [resource.getrlimit(w) for w in (resource.RLIMIT_AS, resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE)]
    if fault == "no descriptors at the start":
        use_up_descriptors()
    if fault == "no memory at the start":
        use_up_memory()
    watch = None
    if watched:
        options = {"ring_dir": str(rings), "report_dir": str(rings.parent / "reports")}
        watch = ampwatch.monitor(run.models, run.scaler, optimizer=run.optimizers, **options)
    run.loop()
    if fault == "descriptors closed at its end":
        os.closerange(3, 1 << 16)
    if watch is not None:
        watch.close()
    for what, limits in zip((resource.RLIMIT_AS, resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE), before):
        resource.setrlimit(what, limits)
    return run.digest()

def child(number, fault):
    rings = directory / str(number) / "rings"
    digest = train(fault, rings)
    (directory / f"{number}.json").write_text(json.dumps({"digest": digest}))

(directory / "warm").mkdir(mode=0o700)
train("none", directory / "warm" / "rings")  # everything is imported by now
unwatched = train("none", directory, watched=False)
statuses = {}
for number, fault in enumerate(json.loads(sys.argv[2])):
    (directory / str(number)).mkdir(mode=0o700)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            child(number, fault)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    statuses[fault] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(json.dumps({"unwatched": unwatched, "statuses": statuses}))
"""


@pytest.fixture(scope="module")
def outcomes(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What became of one training a fault, each in a process of its own."""
    directory = tmp_path_factory.mktemp("faults")
    program = nursery.start(
        PROGRAM, str(directory), json.dumps(FAULTS), environment={"AMPWATCH_POLL_SECONDS": "1"}
    )
    assert program.wait() == 0, program.stderr
    said = json.loads(program.stdout)
    ends = {}
    for number, fault in enumerate(FAULTS):
        path = directory / f"{number}.json"
        ends[fault] = {
            "status": said["statuses"][fault],
            **(json.loads(path.read_text()) if path.exists() else {}),
        }
    return {"unwatched": said["unwatched"], "stderr": program.stderr, **ends}


@pytest.mark.parametrize("fault", FAULTS)
def test_it_ends_as_if_nobody_watched(fault: str, outcomes: dict[str, Any]) -> None:
    """Not by a signal, not by an exception, and bit for bit."""
    end = outcomes[fault]

    assert end["status"] == 0, outcomes["stderr"]
    assert end["digest"] == outcomes["unwatched"]


DEEP = """
import torch
import ampwatch
torch.set_num_threads(1)

class Long(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, x):
        y = self.layer(x)
        for _ in range(60_000):
            y = y * 0.9999
        return y

model, scaler = Long(), torch.amp.GradScaler("cpu")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
with ampwatch.monitor(model, scaler, optimizer=optimizer, level="deep", serve=False):
    for step in range(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.ones(3, 2)).float().sum() * (1.0 if step < 2 else float("inf"))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        del loss
"""


@pytest.mark.nightly
def test_a_graph_of_very_many_nodes_ends_no_process(nursery: Nursery) -> None:
    """PyTorch frees nodes that Python has seen one within the other, and a stack has an end.

    Where steps are followed, and where the one that fails is replayed.
    """
    program = nursery.start(DEEP)

    assert program.wait(840) == 0, program.stderr
