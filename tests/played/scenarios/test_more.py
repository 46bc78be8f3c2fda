"""Trainings as people write them: each is what it is without a monitor, bit for bit and wait for wait."""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import ampwatch
from tests.played.machine import Machine, machine
from tests.played.trainings import DEVICE

# What PyTorch says of work on side streams, with and without ampwatch.
pytestmark = pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")

LEVELS = ("light", "standard", "deep")
STEPS = 8
played: Any = getattr(torch, DEVICE)


class Run:
    """How a program is run: where, and at which level if watched at all.

    Attributes:
        place: Device of the program.
        watches: The monitors that the program has opened.
    """

    place = DEVICE

    def __init__(self, level: str | None) -> None:
        self.level = level
        self.watches: list[ampwatch.Monitor] = []

    def open(self, model: nn.Module | None, scaler: Any = None, **more: Any) -> Any:
        """Open a monitor if there is to be one, to be closed by ``close()``."""
        if self.level is None:
            return nullcontext()
        before = len(machine.waits)
        watch = ampwatch.monitor(model, scaler, level=self.level, serve=False, **more)
        self.watches.append(watch)
        # At set-up it may wait: the scale is read once.
        del machine.waits[before:]
        return watch

    def scaler(self, **more: Any) -> Any:
        """Return a scaler that starts low."""
        return torch.amp.GradScaler(self.place, init_scale=16.0, growth_interval=5, **more)

    def autocast(self, dtype: torch.dtype = torch.float16) -> Any:
        """Return autocast of the place."""
        return torch.autocast(self.place, dtype=dtype)

    def batch(self, *shape: int) -> torch.Tensor:
        """Return a batch, drawn on the host."""
        return torch.randn(*shape).to(self.place)


class Half(nn.Module):
    """Passes through float16."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.half().float()


def layers(place: str, *more: nn.Module) -> nn.Sequential:
    """Return a small model, with the same weights each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), Half(), *more, nn.Linear(32, 8)).to(place)


def bits(thing: Any) -> Any:
    """Return what can be compared bit for bit."""
    if isinstance(thing, torch.Tensor):
        flat = thing.detach().cpu().contiguous().reshape(-1)
        return flat.view(torch.uint8).tolist()
    if isinstance(thing, nn.Module):
        return bits(list(thing.state_dict().values()))
    if isinstance(thing, torch.optim.Optimizer):
        state = thing.state_dict()["state"]
        return bits([v for entry in state.values() for v in entry.values()])
    if isinstance(thing, torch.amp.GradScaler):
        return thing.state_dict()
    if isinstance(thing, (list, tuple)):
        return [bits(value) for value in thing]
    return thing


def fused(model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer that does not wait."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True, foreach=False)


def learn(
    run: Run, model: nn.Module, optimizer: Any, scaler: Any, loss: torch.Tensor
) -> torch.Tensor:
    """Do what comes after forward."""
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def on_a_side_stream(run: Run) -> list[Any]:
    """Batches come on a stream, training is on another, and their memory goes round."""
    model, scaler = layers(run.place), run.scaler()
    optimizer = fused(model)
    copies, side = played.Stream(), played.Stream()
    hosts = [torch.randn(4, 16).pin_memory() for _ in range(STEPS)]
    losses = []

    def fetch(host: torch.Tensor) -> torch.Tensor:
        with played.stream(copies):
            return host.to(DEVICE, non_blocking=True)

    with run.open(model, scaler):
        side.wait_stream(played.current_stream())
        coming = fetch(hosts[0])
        for number in range(STEPS):
            side.wait_stream(copies)
            batch, coming = coming, fetch(hosts[(number + 1) % STEPS])
            with played.stream(side):
                with run.autocast():
                    loss = model(batch).float().square().mean()
                losses.append(learn(run, model, optimizer, scaler, loss))
            copies.wait_stream(side)
        played.current_stream().wait_stream(side)
    return [losses, model, optimizer, scaler]


def replicated(run: Run) -> list[Any]:
    """A copy of the model on the other device, each run by a thread of its own."""
    model, scaler = layers(f"{DEVICE}:0"), run.scaler()
    optimizer = fused(model)
    batches = [torch.randn(4, 16).to(f"{DEVICE}:{index}") for index in range(2)]
    losses = []
    with run.open(model, scaler):
        for _ in range(STEPS):
            replica = copy.deepcopy(model).to(f"{DEVICE}:1")
            outs: dict[int, torch.Tensor] = {}

            def forward(index: int, part: nn.Module, outs: dict[int, torch.Tensor] = outs) -> None:
                with played.device(index), run.autocast():
                    outs[index] = part(batches[index]).float().square().mean()

            threads = [
                threading.Thread(target=forward, args=(index, part))
                for index, part in enumerate((model, replica))
            ]
            for thread in threads:
                thread.start()
                thread.join()
            scaler.scale([outs[0], outs[1]])
            loss = outs[0] + outs[1].to(f"{DEVICE}:0")
            scaler.scale(loss).backward()
            for own, other in zip(model.parameters(), replica.parameters(), strict=True):
                own.grad += other.grad.to(f"{DEVICE}:0")
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss.detach())
    return [losses, model, optimizer, scaler]


class Recomputed(nn.Module):
    """Runs its layers once more in backward, with the same random numbers."""

    def __init__(self, place: str, *, reentrant: bool) -> None:
        super().__init__()
        self.first = layers(place, nn.Dropout(0.1))
        self.second = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), Half(), nn.Linear(32, 8)).to(place)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in (self.first, self.second):
            x = checkpoint(part, x, use_reentrant=self.reentrant)
        return x


def _recomputed(run: Run, *, reentrant: bool) -> list[Any]:
    torch.manual_seed(0)
    model, scaler = Recomputed(run.place, reentrant=reentrant), run.scaler()
    optimizer = fused(model)
    batch = run.batch(4, 16).requires_grad_()
    losses = []
    with run.open(model, scaler):
        for _step in range(STEPS):
            with run.autocast():
                loss = model(batch).float().square().mean()
            losses.append(learn(run, model, optimizer, scaler, loss))
    return [losses, model, optimizer, scaler]


def recomputed(run: Run) -> list[Any]:
    """Activation checkpointing: forward again in the thread of autograd."""
    return _recomputed(run, reentrant=False)


def recomputed_reentrant(run: Run) -> list[Any]:
    """Activation checkpointing with a backward in backward."""
    return _recomputed(run, reentrant=True)


def offloaded(run: Run) -> list[Any]:
    """Activations go to pinned memory of the host, and come back in backward."""
    model, scaler = layers(run.place), run.scaler()
    optimizer = fused(model)
    batch = run.batch(4, 16)
    losses = []

    def away(tensor: torch.Tensor) -> Any:
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)

    def back(host: torch.Tensor) -> torch.Tensor:
        return host.to(run.place, non_blocking=True)

    with run.open(model, scaler):
        for _step in range(STEPS):
            with run.autocast(), torch.autograd.graph.saved_tensors_hooks(away, back):
                loss = model(batch).float().square().mean()
            losses.append(learn(run, model, optimizer, scaler, loss))
    return [losses, model, optimizer, scaler]


def in_backward(run: Run) -> list[Any]:
    """Each parameter has an optimizer, which steps in backward as soon as its gradient is there."""
    model = layers(run.place)
    optimizers = {p: torch.optim.SGD([p], lr=0.01, foreach=True) for p in model.parameters()}

    def step_now(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step_now)
    batch = run.batch(4, 16)
    losses = []
    with run.open(model):
        for _step in range(STEPS):
            with run.autocast(torch.bfloat16):
                loss = model(batch).float().square().mean()
            loss.backward()
            losses.append(loss.detach())
    return [losses, model]


def reduced(run: Run) -> list[Any]:
    """Gradients are averaged on a stream of their own while backward goes on, as DDP does."""
    model, scaler = layers(run.place), run.scaler()
    optimizer = fused(model)
    comm = played.Stream()
    batch = run.batch(4, 16)
    losses = []
    buckets: dict[int, torch.Tensor] = {}

    def send(index: int, parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        comm.wait_stream(played.current_stream())
        with played.stream(comm):
            buckets[index] = parameter.grad.float() * 0.5

        def joined() -> None:
            if buckets:
                played.current_stream().wait_stream(comm)
                for number, bucket in buckets.items():
                    found = parameters[number].grad
                    assert found is not None
                    found.copy_(bucket)
                comm.wait_stream(played.current_stream())
                buckets.clear()

        torch.autograd.Variable._execution_engine.queue_callback(joined)

    parameters = list(model.parameters())
    for number, parameter in enumerate(parameters):
        parameter.register_post_accumulate_grad_hook(functools.partial(send, number))
    with run.open(model, scaler):
        for _ in range(STEPS):
            with run.autocast():
                loss = model(batch).float().square().mean()
            losses.append(learn(run, model, optimizer, scaler, loss))
            comm.wait_stream(played.current_stream())
    return [losses, model, optimizer, scaler]


def sharded(run: Run) -> list[Any]:
    """The memory of weights is given back after forward and after backward, as FSDP does."""
    model, scaler = layers(run.place), run.scaler()
    parameters = list(model.parameters())
    shards = [p.detach().clone() for p in parameters]
    optimizer = torch.optim.AdamW(shards, fused=True)
    sizes = [p.untyped_storage().nbytes() for p in parameters]
    batch = run.batch(4, 16)
    losses = []

    def gather() -> None:
        with torch.no_grad():
            for parameter, size, shard in zip(parameters, sizes, shards, strict=True):
                parameter.untyped_storage().resize_(size)
                parameter.copy_(shard)

    def free() -> None:
        for parameter in parameters:
            parameter.untyped_storage().resize_(0)

    free()
    with run.open(model, scaler, optimizer=optimizer):
        for _ in range(STEPS):
            gather()
            with run.autocast():
                loss = model(batch).float().square().mean()
            scaler.scale(loss).backward()
            for parameter, shard in zip(parameters, shards, strict=True):
                shard.grad, parameter.grad = parameter.grad, None
            free()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss.detach())
    gather()
    return [losses, model, optimizer, scaler]


def interrupted(run: Run) -> list[Any]:
    """The user interrupts backward, forward and a step, and goes on with the next batch."""
    model, scaler = layers(run.place), run.scaler()
    optimizer = fused(model)
    batch = run.batch(4, 16)
    losses = []

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with run.open(model, scaler):
        for step in range(11):
            handle: Any = None
            if step == 3:
                handle = model[0].weight.register_hook(interrupt)
            if step == 5:
                handle = model[2].register_forward_hook(interrupt)
            if step == 7:
                handle = optimizer.register_step_pre_hook(interrupt)
            try:
                with run.autocast():
                    loss = model(batch).float().square().mean()
                losses.append(learn(run, model, optimizer, scaler, loss))
            except KeyboardInterrupt:
                handle.remove()
                optimizer.zero_grad()
                scaler.update(scaler.get_scale())
    return [losses, model, optimizer, scaler]


def elsewhere(run: Run) -> list[Any]:
    """All is on the second device, while the first is the current one; the losses are a list."""
    place = f"{DEVICE}:1"
    model, scaler = layers(place), run.scaler()
    optimizer = fused(model)
    batch = torch.randn(4, 16).to(place)
    losses = []
    with run.open(model, scaler):
        for _ in range(STEPS):
            with run.autocast():
                out = model(batch).float()
            one, two = scaler.scale([out.square().mean(), (out.abs().mean() * 0.1).to("played:0")])
            torch.autograd.backward([one, two], retain_graph=True)
            torch.autograd.backward([one])
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses += [one.detach(), two.detach()]
    return [losses, model, optimizer, scaler]


def out_of_memory(run: Run) -> list[Any]:
    """A batch is too large, in forward and in backward: the program halves it and goes on."""
    model, scaler = layers(run.place), run.scaler()
    optimizer = fused(model)
    large, small = run.batch(4096, 16), run.batch(4, 16)
    losses, failures = [], 0
    try:
        with run.open(model, scaler):
            machine.refuses = lambda nbytes: nbytes > 100_000
            for step in range(11):
                batch = large[:2000] if step in (4, 8) else small
                try:
                    with run.autocast():
                        out = model(batch)
                        if step == 6:
                            out = out.float().repeat(8, 400).sum() * 0.0 + out
                        loss = out.float().square().mean()
                    losses.append(learn(run, model, optimizer, scaler, loss))
                except torch.OutOfMemoryError:
                    failures += 1
                    optimizer.zero_grad(set_to_none=True)
    finally:
        machine.refuses = lambda _nbytes: False
    assert failures == 3
    return [losses, model, optimizer, scaler]


PROGRAMS: tuple[Callable[[Run], list[Any]], ...] = (
    on_a_side_stream,
    replicated,
    recomputed,
    recomputed_reentrant,
    offloaded,
    in_backward,
    reduced,
    sharded,
    interrupted,
    elsewhere,
    out_of_memory,
)

IN_SHORT = (elsewhere, recomputed, recomputed_reentrant)
"""Programs that differ in their ops alone, all of which are looked at in `deep`."""

AT_COMMITS = ((on_a_side_stream, "deep"), (interrupted, "standard"))
"""Of the programs and levels those in which the device has most to punish."""


def done(program: Callable[[Run], list[Any]], run: Run) -> tuple[list[Any], list[Any]]:
    """Run a program from the same seed; return its bits and the waits up to its end."""
    torch.manual_seed(0)
    machine.waits.clear()
    things = program(run)
    waits = list(machine.waits)
    return bits([*things, torch.random.get_rng_state(), played.get_rng_state()]), waits


@functools.cache
def alone(program: Callable[[Run], list[Any]]) -> tuple[list[Any], list[str]]:
    """Return the bits and the waits of a program that nobody watches."""
    found, waits = done(program, Run(None))
    return found, [wait.name for wait in waits]


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("program", "level"),
    [
        pytest.param(p, level, marks=[] if (p, level) in AT_COMMITS else pytest.mark.nightly)
        for p in PROGRAMS
        for level in (LEVELS[-1:] if p in IN_SHORT else LEVELS)
    ],
)
def test_a_program_is_what_it_is_without_us(
    device: Machine, program: Callable[[Run], list[Any]], level: str
) -> None:
    """Bits and waits; nothing is punished, and no sensor has been switched off."""
    before = alone(program)
    run = Run(level)
    found, waits = done(program, run)
    for watch in run.watches:
        watch.close()
    reports = [" ".join(watch.report().split()) for watch in run.watches]

    assert [wait for wait in waits if wait.is_ours] == []
    assert [wait.name for wait in waits] == before[1]
    assert found == before[0]
    assert device.faults == []
    assert [report for report in reports if "switched off" in report] == []
    assert run.watches
