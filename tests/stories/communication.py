"""Finite gradients whose sum, or whose norm, is not."""

from __future__ import annotations

import math
from threading import Thread

import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from tests.stories.stage import Program, Stories, backward, update

STORIES = Stories()


@STORIES.tell("reduce_overflow", "optimizer:0", "optimizer", "pow")
def a_norm_of_the_gradients_computed_in_float16(*, sick: bool) -> Program:
    """Clipped by hand: the square of 300 is infinite, 1 / inf is 0, and nothing ever moves."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    start = [p.detach().clone() for p in model.parameters()]
    norms: list[float] = []

    def iterate(_step: int) -> torch.Tensor:
        x = torch.randn(32, 8)
        loss = (model(x) - 6000.0).square().mean()
        backward(None, loss)
        gradients = [p.grad for p in model.parameters()]
        squares = [(g.half() if sick else g).pow(2).sum() for g in gradients]
        norm = torch.stack(squares).sum().sqrt()
        for gradient in gradients:
            gradient.mul_(torch.clamp(1.0 / (norm + 1e-6), max=1.0))
        norms.append(float(norm))
        update(None, optimizer)
        return loss

    def shows(run: Program) -> bool:
        stays = all(torch.equal(a, b) for a, b in zip(model.parameters(), start, strict=True))
        return stays and not any(map(math.isfinite, norms))

    return Program([model], [optimizer], iterate, shows=shows)


_KEPT: list[nn.Module] = []
"""Replicas, which are never freed. Freeing one waits for gloo's thread with the GIL in hand, and that thread may
want the GIL to let go of a hook: then both wait for good."""


@STORIES.tell("reduce_overflow", "param:weight", "backward", "_to_copy")
def gradients_that_ddp_compresses_to_float16(*, sick: bool) -> Program:
    """PyTorch's own hook, and nothing that scales: 2e5 is finite until it is sent."""
    _leave_the_group()
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    model = nn.Linear(6, 1, bias=False)
    parallel = DistributedDataParallel(model)
    _KEPT.append(parallel)
    parallel.register_comm_hook(
        None, default_hooks.fp16_compress_hook if sick else default_hooks.allreduce_hook
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    local: list[bool] = []
    lost: list[bool] = []
    steps = 24

    def iterate(step: int) -> torch.Tensor:
        x = 30.0 + torch.rand(16, 6)
        if step == 0:
            alone = (nn.functional.linear(x, model.weight) - 3000.0).square().mean()
            (gradient,) = torch.autograd.grad(alone, [model.weight])
            local.append(bool(gradient.isfinite().all()))
        loss = (parallel(x) - 3000.0).square().mean()
        backward(None, loss)
        lost.append(not bool(model.weight.grad.isfinite().all()))
        update(None, optimizer)
        if step == steps - 1:
            _leave_the_group()
        return loss

    return Program(
        [model], [optimizer], iterate, steps=steps, shows=lambda run: all(local) and lost[0]
    )


@STORIES.tell("reduce_overflow", "param:weight", "backward", "_to_copy")
def gradients_that_come_back_in_another_thread(*, sick: bool) -> Program:
    """The hook above where the network is slow: who waits for it writes the gradients."""
    _leave_the_group()
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    model = nn.Linear(6, 1, bias=False)
    parallel = DistributedDataParallel(model)
    _KEPT.append(parallel)
    waiting: list[Thread] = []

    def hook(_state, bucket):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - PyTorch wants classes there, no words
        sent = bucket.buffer().to(torch.float16 if sick else torch.float32)
        answer: torch.futures.Future[torch.Tensor] = torch.futures.Future()

        def receive() -> None:
            bucket.buffer().copy_(sent)
            answer.set_result(bucket.buffer())

        waiting.append(Thread(target=receive))
        waiting[-1].start()
        waiting[-1].join()
        return answer

    parallel.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    lost: list[bool] = []
    steps = 24

    def iterate(step: int) -> torch.Tensor:
        loss = (parallel(30.0 + torch.rand(16, 6)) - 3000.0).square().mean()
        backward(None, loss)
        lost.append(not bool(model.weight.grad.isfinite().all()))
        update(None, optimizer)
        if step == steps - 1:
            _leave_the_group()
        return loss

    return Program([model], [optimizer], iterate, steps=steps, shows=lambda run: lost[0])


def _leave_the_group() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()
