"""Trainings as people write them: each is what it is without a monitor, bit for bit and wait for wait."""

from __future__ import annotations

import copy
import functools
import io
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import ampwatch
from tests.played.machine import Graph, machine
from tests.played.trainings import DEVICE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ampwatch import Finding
    from tests.played.machine import Machine

# What PyTorch says of work on side streams, with and without ampwatch.
pytestmark = pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")

LEVELS = ("light", "standard", "deep")
STEPS = 8
BREAKS_AT = 3
played: Any = getattr(torch, DEVICE)


class Run:
    """How a program is run: where, at which level if watched at all, and with what planted.

    Attributes:
        place: Device of the program.
        breaks: Whether the hot layers of the program multiply beyond float16 from a step on.
        watches: The monitors that the program has opened.
    """

    def __init__(self, level: str | None, place: str = DEVICE, *, breaks: bool = False) -> None:
        self.level = level
        self.place = place
        self.breaks = breaks
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

    def heat(self, step: int) -> float:
        """Return the factor of hot layers in a step."""
        return 1e7 if self.breaks and step >= BREAKS_AT else 1.0

    def scaler(self, **more: Any) -> Any:
        """Return a scaler that starts low."""
        return torch.amp.GradScaler(self.place, init_scale=16.0, growth_interval=5, **more)

    def autocast(self, dtype: torch.dtype = torch.float16) -> Any:
        """Return autocast of the place."""
        return torch.autocast(self.place, dtype=dtype)

    def batch(self, *shape: int) -> torch.Tensor:
        """Return a batch, drawn on the host."""
        return torch.randn(*shape).to(self.place)


class Hot(nn.Module):
    """Multiplies in float16, at times beyond what that can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.half() * self.factor).float()


def layers(place: str, *more: nn.Module) -> nn.Sequential:
    """Return a small model, with the same weights each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), Hot(), *more, nn.Linear(32, 8)).to(place)


def heat(model: nn.Module, factor: float) -> None:
    """Set the factor of all hot layers."""
    for module in model.modules():
        if isinstance(module, Hot):
            module.factor = factor


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


def fused(model: nn.Module, place: str = DEVICE) -> torch.optim.Optimizer:
    """Return an optimizer that does not wait."""
    return torch.optim.AdamW(
        model.parameters(), lr=1e-3, fused=place != "cpu", foreach=False if place != "cpu" else None
    )


def learn(
    run: Run, model: nn.Module, optimizer: Any, scaler: Any, loss: torch.Tensor
) -> torch.Tensor:
    """Do what comes after forward."""
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def accumulated(run: Run) -> list[Any]:
    """Three micro-batches a step, two optimizers and one scaler, gradients that stay zeros."""
    model, scaler = layers(run.place), run.scaler()
    body = torch.optim.AdamW(model[0].parameters(), foreach=True)
    head = torch.optim.SGD(model[-1].parameters(), lr=0.01, momentum=0.9, foreach=True)
    data = run.batch(3, 4, 16)
    losses = []
    with run.open(model, scaler):
        for step in range(STEPS):
            heat(model, run.heat(step))
            for part in data:
                with run.autocast():
                    loss = model(part).float().square().mean() / 3
                scaler.scale(loss).backward()
                losses.append(loss.detach())
            for optimizer in (body, head):
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in (body, head):
                scaler.step(optimizer)
            scaler.update()
            for optimizer in (body, head):
                optimizer.zero_grad(set_to_none=False)
    return [losses, model, body, head, scaler]


def adversaries(run: Run) -> list[Any]:
    """A generator and a discriminator, which take turns; a penalty of the second order."""
    generator, discriminator, scaler = layers(run.place), layers(run.place), run.scaler()
    discriminator[0] = nn.Linear(8, 32).to(run.place)
    made, judged = fused(generator, run.place), fused(discriminator, run.place)
    noise, real = run.batch(4, 16), run.batch(4, 8)
    losses = []
    with run.open(nn.ModuleList([generator, discriminator]), scaler):
        for _ in range(STEPS):
            with run.autocast():
                fake = generator(noise)
                loss = discriminator(fake.detach()).mean() - discriminator(real).mean()
            seen = real.clone().requires_grad_()
            (slope,) = torch.autograd.grad(
                scaler.scale(discriminator(seen).sum()), seen, create_graph=True
            )
            penalty = (slope / scaler._scale - 1.0).square().mean()
            losses.append(learn(run, discriminator, judged, scaler, loss.float() + penalty))
            discriminator.requires_grad_(requires_grad=False)
            with run.autocast():
                loss = -discriminator(generator(noise)).mean()
            losses.append(learn(run, generator, made, scaler, loss.float()))
            discriminator.requires_grad_(requires_grad=True)
    return [losses, generator, discriminator, made, judged, scaler]


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
        self.second = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), Hot(), nn.Linear(32, 8)).to(place)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in (self.first, self.second):
            x = checkpoint(part, x, use_reentrant=self.reentrant)
        return x


def _recomputed(run: Run, *, reentrant: bool) -> list[Any]:
    torch.manual_seed(0)
    model, scaler = Recomputed(run.place, reentrant=reentrant), run.scaler()
    optimizer = fused(model, run.place)
    batch = run.batch(4, 16).requires_grad_()
    losses = []
    with run.open(model, scaler):
        for step in range(STEPS):
            heat(model, run.heat(step))
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
    optimizer = fused(model, run.place)
    batch = run.batch(4, 16)
    losses = []

    def away(tensor: torch.Tensor) -> Any:
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=run.place != "cpu")
        return host.copy_(tensor, non_blocking=True)

    def back(host: torch.Tensor) -> torch.Tensor:
        return host.to(run.place, non_blocking=True)

    with run.open(model, scaler):
        for step in range(STEPS):
            heat(model, run.heat(step))
            with run.autocast(), torch.autograd.graph.saved_tensors_hooks(away, back):
                loss = model(batch).float().square().mean()
            losses.append(learn(run, model, optimizer, scaler, loss))
    return [losses, model, optimizer, scaler]


class Counts(TorchDispatchMode):
    """Counts the ops of a program, as FLOP counters and memory trackers do."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(func)] = self.counts.get(str(func), 0) + 1
        return func(*args, **(kwargs or {}))


def under_a_mode(run: Run) -> list[Any]:
    """A mode of the user's around steps, and around half a step."""
    model, scaler = layers(run.place), run.scaler()
    optimizer = fused(model)
    batch = run.batch(4, 16)
    losses, whole, half = [], Counts(), Counts()
    with run.open(model, scaler):
        for step in range(STEPS):
            with whole if step % 3 else nullcontext():
                with half if step % 3 == 0 else nullcontext(), run.autocast():
                    loss = model(batch).float().square().mean()
                losses.append(learn(run, model, optimizer, scaler, loss))
    return [losses, model, optimizer, scaler]


def averaged(run: Run) -> list[Any]:
    """A moving average of the weights, and an evaluation of it, between the steps."""
    model, scaler = layers(run.place), run.scaler()
    average = copy.deepcopy(model).requires_grad_(requires_grad=False)
    optimizer = fused(model)
    batch, unseen = run.batch(4, 16), run.batch(4, 16)
    losses = []
    with run.open(model, scaler):
        for step in range(STEPS):
            with run.autocast():
                loss = model(batch).float().square().mean()
            losses.append(learn(run, model, optimizer, scaler, loss))
            with torch.no_grad():
                pairs = zip(average.parameters(), model.parameters(), strict=True)
                for kept, new in pairs:
                    kept.lerp_(new, 0.1)
            if step % 4 == 3:
                model.eval()
                with torch.inference_mode(), run.autocast():
                    losses.append(model(unseen).float().mean())
                    losses.append(average(unseen).float().mean())
                model.train()
    return [losses, model, average, optimizer, scaler]


class Words(nn.Module):
    """Tied embeddings, a recurrent layer and attention with an expanded mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.recurrent = nn.RNN(8, 8, batch_first=True)
        self.hot = Hot()
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x, _ = self.recurrent(self.embedding(words))
        x = self.hot(x)
        mask = torch.ones(1, 1, 6, 6, dtype=torch.bool, device=x.device).tril().expand(2, 2, 6, 6)
        heads = x.view(2, 6, 2, 4).transpose(1, 2)
        seen = nn.functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)
        out: torch.Tensor = self.head(seen.transpose(1, 2).reshape(2, 6, 8))
        return out


def words(run: Run) -> list[Any]:
    """A language model whose first and last layer are one tensor."""
    torch.manual_seed(0)
    model, scaler = Words().to(run.place), run.scaler()
    optimizer = fused(model, run.place)
    text = torch.randint(16, (2, 7)).to(run.place)
    losses = []
    with run.open(model, scaler):
        for step in range(STEPS):
            heat(model, run.heat(step))
            with run.autocast():
                out = model(text[:, :-1]).float()
                loss = nn.functional.cross_entropy(out.reshape(-1, 16), text[:, 1:].reshape(-1))
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
        for step in range(STEPS):
            heat(model, run.heat(step))
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


def stepped_on_the_host(run: Run) -> list[Any]:
    """Weights and state of the optimizer are on the host; gradients go there, weights come back."""
    model, scaler = layers(run.place), run.scaler()
    masters = [p.detach().cpu().pin_memory() for p in model.parameters()]
    optimizer = torch.optim.AdamW(masters, foreach=False)
    batch = run.batch(4, 16)
    losses = []
    with run.open(model, scaler, optimizer=optimizer):
        for _ in range(STEPS):
            with run.autocast():
                loss = model(batch).float().square().mean()
            scaler.scale(loss).backward()
            scale = scaler.get_scale()
            for master, parameter in zip(masters, model.parameters(), strict=True):
                assert parameter.grad is not None
                master.grad = parameter.grad.cpu() / scale
                parameter.grad = None
            optimizer.step()
            with torch.no_grad():
                for master, parameter in zip(masters, model.parameters(), strict=True):
                    parameter.copy_(master)
            losses.append(loss.detach())
    return [losses, model, optimizer, scaler]


def captured_again_and_again(run: Run) -> list[Any]:
    """A step is captured, replayed between eager steps, and captured anew; values are on their way."""
    model, scaler = layers(run.place), run.scaler()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, capturable=True)
    batch = run.batch(4, 16)
    losses, nodes = [], []

    def step() -> None:
        with run.autocast():
            loss = model(batch).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())

    with run.open(model, scaler):
        for _ in range(3):
            for _ in range(3):
                step()
                optimizer.zero_grad(set_to_none=True)
            graph, evaluation = Graph(), Graph()
            with played.graph(graph):
                step()
            with played.graph(evaluation), torch.no_grad():
                out = model(batch)
            for _ in range(4):
                batch.mul_(1.01)
                graph.replay()
                evaluation.replay()
                losses.append(out.clone())
            optimizer.zero_grad(set_to_none=True)
            nodes.append([graph.nodes, evaluation.nodes])
    return [losses, nodes, model, optimizer, scaler]


def reopened(run: Run) -> list[Any]:
    """Monitors one after another; the model is copied and pickled while it is watched."""
    model, scaler = layers(run.place), run.scaler()
    optimizer = fused(model)
    batch = run.batch(4, 16)
    losses, copies = [], []
    for _ in range(4):
        with run.open(model, scaler):
            for _ in range(3):
                with run.autocast():
                    loss = model(batch).float().square().mean()
                losses.append(learn(run, model, optimizer, scaler, loss))
            twin = copy.deepcopy(model)
            file = io.BytesIO()
            torch.save(model.state_dict(), file)
            file.seek(0)
            twin.load_state_dict(torch.load(file, map_location="cpu"))
            whole = io.BytesIO()
            torch.save(copy.deepcopy(model).cpu(), whole)
            whole.seek(0)
            again = torch.load(whole, weights_only=False).to(run.place)
            with run.autocast():
                copies.append((twin(batch) - again(batch)).float())
        with run.autocast():
            loss = model(batch).float().square().mean()
        losses.append(learn(run, model, optimizer, scaler, loss))
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    return [losses, copies, model, optimizer, scaler, hooks]


def moved(run: Run, *, swaps: bool = False) -> list[Any]:
    """The model goes to the other device and back between two steps."""
    model, scaler = layers(run.place), run.scaler()
    batch = run.batch(4, 16)
    losses = []
    torch.__future__.set_swap_module_params_on_conversion(value=swaps)
    try:
        with run.open(model, scaler):
            for place in ("played:0", "played:1", "played:0"):
                model.zero_grad()
                model.to(place)
                scaler = run.scaler() if place != "played:0" else scaler
                optimizer = fused(model)
                for _ in range(5):
                    with run.autocast():
                        loss = model(batch.to(place)).float().square().mean()
                    losses.append(learn(run, model, optimizer, scaler, loss))
                del loss, optimizer  # what refers to a parameter keeps it from being swapped
    finally:
        torch.__future__.set_swap_module_params_on_conversion(value=False)
    return [losses, model, scaler]


def swapped(run: Run) -> list[Any]:
    """The model goes to the other device, and its parameters stay the same objects."""
    return moved(run, swaps=True)


def closed_in_a_step(run: Run) -> list[Any]:
    """The monitor goes after forward, in backward, before the step, and in the middle of forward."""
    model, scaler = layers(run.place), run.scaler()
    optimizer = fused(model)
    batch = run.batch(4, 16)
    losses = []
    for where in ("forward", "backward", "step", "inside", "optimizer"):
        watch = run.open(model, scaler)

        def close(*_: Any, watch: Any = watch) -> None:
            watch.__exit__(None, None, None)

        for last in (False, False, True):
            handles: list[Any] = []
            if last and where == "inside":
                handles.append(model[2].register_forward_hook(close))
            if last and where == "backward":
                handles.append(model[0].weight.register_hook(close))
            if last and where == "optimizer":
                handles.append(optimizer.register_step_pre_hook(close))
            with run.autocast():
                loss = model(batch).float().square().mean()
            if last and where == "forward":
                close()
            scaler.scale(loss).backward()
            if last and where == "step":
                close()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss.detach())
            for handle in handles:
                handle.remove()
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


def changing(run: Run) -> list[Any]:
    """Layers are frozen, thawed, replaced and added; the scale is set by hand; a state is loaded."""
    model, scaler = layers(run.place), run.scaler()
    optimizer = fused(model)
    batch = run.batch(4, 16)
    losses = []
    with run.open(model, scaler):
        for step in range(11):
            if step in (2, 5):
                model[0].requires_grad_(step == 5)
            if step == 4:
                scaler.update(new_scale=64.0)
            if step == 6:
                model[3] = nn.Linear(32, 4).to(run.place)
                optimizer.add_param_group({"params": model[3].parameters()})
            if step == 8:
                model.append(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)).to(run.place))
                optimizer.add_param_group({"params": model[4].parameters()})
            if step == 10:
                scaler.load_state_dict(scaler.state_dict() | {"scale": 32.0})
                model.load_state_dict(model.state_dict())
                optimizer.load_state_dict(optimizer.state_dict())
            with run.autocast():
                loss = model(batch).float().square().mean()
            losses.append(learn(run, model, optimizer, scaler, loss))
    return [losses, model, optimizer, scaler]


PROGRAMS: tuple[Callable[[Run], list[Any]], ...] = (
    accumulated,
    adversaries,
    on_a_side_stream,
    replicated,
    recomputed,
    recomputed_reentrant,
    offloaded,
    under_a_mode,
    averaged,
    words,
    in_backward,
    reduced,
    sharded,
    stepped_on_the_host,
    captured_again_and_again,
    reopened,
    moved,
    swapped,
    closed_in_a_step,
    interrupted,
    elsewhere,
    out_of_memory,
    changing,
)

IN_SHORT = (
    averaged,
    elsewhere,
    recomputed,
    recomputed_reentrant,
    stepped_on_the_host,
    under_a_mode,
    words,
)
"""Programs that differ in their ops alone, all of which are looked at in `deep`."""

AT_COMMITS = ((on_a_side_stream, "deep"), (interrupted, "standard"))
"""Of the programs and levels those in which the device has most to punish."""

PLANTED = (recomputed, offloaded)
"""Programs in which something breaks, and is found as soon as on the host."""

LATE = (accumulated, recomputed_reentrant, words, in_backward)
"""As well, at `deep`. At `standard` weights are looked at once something was found, which is later."""


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


def told(findings: Sequence[Finding]) -> list[tuple[str, str, str, int]]:
    """Return what findings say, without what the speed of a machine decides."""
    graver = [f for f in findings if f.severity != "info"]
    return sorted((f.kind, f.where, f.op, f.first_step) for f in graver)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("program", "level"),
    [
        *((program, level) for program in PLANTED for level in ("standard", "deep")),
        *((program, "deep") for program in LATE),
    ],
)
def test_what_breaks_is_found_as_on_the_host(
    device: Machine, program: Callable[[Run], list[Any]], level: str
) -> None:
    """Kind, module, op and step, in programs whose ops run in threads and twice."""
    found = []
    for place in ("cpu", DEVICE):
        run = Run(level, place, breaks=True)
        _, waits = done(program, run)
        found.append(told([f for watch in run.watches for f in watch.findings]))
        assert [wait for wait in waits if wait.is_ours] == []

    assert found[1] == found[0]
    assert found[0]
