"""The training that every script plays: a few linear layers under autocast, with one weak place."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from traceback import format_exception
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

import ampwatch
from ampwatch.wire.blackbox.document import _plain
from tests.states.acts import BACKWARD_SECONDS, FORWARD_SECONDS, OPTIMIZER_SECONDS, Act
from tests.states.clock import ScriptedClock

WIDTH = 16
HUGE = 20.0
"""exp(20) is beyond the largest number of float16."""


class Gate(nn.Module):
    """A gate as in old sequence models, whose exp() overflows where its input is large."""

    def forward(self, x: Tensor, log_gain: Tensor) -> Tensor:
        # Beside the product, and not of it: a batch alone decides whether it overflows.
        return x * torch.exp(log_gain.to(x.dtype))


class Net(nn.Module):
    """A model without dead units: no gradient is exactly zero unless its dtype makes it so."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, WIDTH)
        self.encoder = nn.ModuleDict({"mix": nn.Linear(WIDTH, WIDTH), "gate": Gate()})
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor, log_gain: Tensor) -> Tensor:
        x = torch.tanh(self.embed(x))
        x = self.encoder["gate"](torch.tanh(self.encoder["mix"](x)), log_gain)
        said: Tensor = self.head(x)
        return said


class Batches(IterableDataset[Tensor]):
    """Batches without an end, for each of which the training waits as long as the script says."""

    def __init__(self, act: Act, rank: int, clock: ScriptedClock) -> None:
        self._random = torch.Generator().manual_seed(rank)
        self._pass = lambda: clock.go_on(act.waits)

    def __iter__(self) -> Iterator[Tensor]:
        while True:
            self._pass()
            yield torch.randn(16, 8, generator=self._random)


class SlowSGD(torch.optim.SGD):
    """SGD whose step takes time.

    Attributes:
        clock: The time of the script.
    """

    clock: ScriptedClock

    def step(self, closure: Any = None) -> Any:
        self.clock.go_on(OPTIMIZER_SECONDS)
        return super().step(closure)


class Notes(logging.Handler):
    """Writes what is logged, said and found, a JSON object a line.

    Attributes:
        step: The step that is under way.
    """

    def __init__(self, own: Path) -> None:
        super().__init__(logging.INFO)
        self.step = -1
        self._own = own

    def note(self, file: str, **what: Any) -> None:
        with (self._own / file).open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({"step": self.step, **what}) + "\n")

    def emit(self, record: logging.LogRecord) -> None:
        error = None if record.exc_info is None else "".join(format_exception(*record.exc_info))
        text = record.getMessage()
        self.note("log", time=record.created, level=record.levelname, text=text, error=error)

    def found(self, finding: ampwatch.Finding) -> None:
        self.note("found", finding=plain(finding))


def plain(finding: ampwatch.Finding) -> dict[str, Any]:
    """Return a finding for JSON."""
    fields = finding.__dataclass_fields__
    return {name: _plain(getattr(finding, name)) for name in fields}


def train(
    act: Act, rank: int, own: Path, hook: str, line: socket.socket, clock: ScriptedClock
) -> None:
    """Play ``act`` as one of its ranks.

    Args:
        act: The script.
        rank: Which one.
        own: Where notes go.
        hook: Where findings are posted to.
        line: Asks somebody to look, and waits until this was done.
        clock: The time of the script.
    """
    notes = Notes(own)
    log = logging.getLogger("ampwatch")
    log.setLevel(logging.INFO)
    log.addHandler(notes)
    clock.put(act.time_of(act.first - 1))
    torch.manual_seed(0)
    net: nn.Module = Net()
    if act.world_size > 1:
        store = dist.FileStore(  # type: ignore[attr-defined]
            str(own.parent / "store"), act.world_size
        )
        dist.init_process_group("gloo", store=store, rank=rank, world_size=act.world_size)
        net = nn.parallel.DistributedDataParallel(net)
    optimizer = SlowSGD(net.parameters(), lr=act.lr, momentum=0.9)
    optimizer.clock = clock
    scaler = None if act.scaler is None else torch.amp.GradScaler("cpu", **act.scaler)
    watch = ampwatch.monitor(
        net, scaler, run=act.run_name, level=act.level, step=act.first, ring_slots=32768
    )
    watch.on_finding(notes.found)
    sender = ampwatch.actions.webhook(hook)
    watch.on_finding(sender)
    data = iter(DataLoader(Batches(act, rank, clock), batch_size=None))
    for step in range(act.first, act.steps):
        notes.step = step
        clock.put(act.time_of(step))
        if act.killed == (rank, step):
            _keep(watch, sender, notes)
            os.kill(os.getpid(), signal.SIGKILL)
        if act.raises == (rank, step):
            msg = f"batch {step}: expected 16 samples, got 0"
            raise ValueError(msg)
        if act.diverges == step:
            for group in optimizer.param_groups:
                group["lr"] = 1e30
        if act.breaks == step:
            with torch.no_grad():
                next(net.parameters())[0, 0] = torch.nan
        _one_step(act, step, net, optimizer, scaler, next(data), clock, notes)
    if act.look == "ended":
        _keep(watch, sender, notes)
        return
    now = act.time_of(act.steps - 1) + act.later
    clock.put(now)
    _keep(watch, sender, notes)
    line.send(repr(now).encode())
    line.recv(64)
    # It lived when somebody looked, and nothing that comes later is part of the script.
    os.kill(os.getpid(), signal.SIGKILL)


def _one_step(
    act: Act,
    step: int,
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler | None,
    x: Tensor,
    clock: ScriptedClock,
    notes: Notes,
) -> None:
    target = x.sum(1, keepdim=True).sin()
    overflows = any(step in steps for steps in act.overflow)
    log_gain = torch.full((16, 1), HUGE if overflows else 0.0)
    with torch.autocast("cpu", dtype=getattr(torch, act.dtype)):
        loss = nn.functional.mse_loss(net(x, log_gain).float(), target)
    # Of the weights that hold at this step, the one that began last.
    for since, weight in act.weights_of_loss.items():
        loss = loss * weight if step >= since else loss
    clock.go_on(FORWARD_SECONDS)
    loss.register_hook(lambda _gradient: clock.go_on(BACKWARD_SECONDS))
    before = [p.detach().clone() for p in net.parameters()]
    if scaler is None:
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    else:
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
    gradients = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
    weights = list(net.parameters())
    # What is true, by nothing but plain reading of the user's own objects.
    notes.note(
        "truth",
        time=time.time(),
        loss=_plain(float(loss.detach())),
        scale=None if scaler is None else scaler.get_scale(),
        zeros=int((gradients == 0).sum()),
        elements=gradients.numel(),
        finite_gradients=bool(gradients.isfinite().all()),
        changed=sum(int((a != b).sum()) for a, b in zip(before, weights, strict=True)),
        bad_weights=sum(int((~w.isfinite()).sum()) for w in weights),
    )
    optimizer.zero_grad()


def _keep(watch: ampwatch.Monitor, sender: Any, notes: Notes) -> None:
    """Keep what ``watch`` says now, after all that is on its way has arrived."""
    findings = list(watch.findings)
    notes.note("reports", text=watch.report())
    for finding in findings:
        notes.note("findings", finding={**plain(finding), "advice": finding.advice})
    # Posted from a thread of its own, which ends with the last post; the limit only ends a hang.
    assert sender._courier.close(60.0) is None
