"""The trainings of the scene: a small GPT in float16 with a GradScaler, or in bfloat16.

Started by ``tools.grafana.scene``, the float16 one on two ranks by torchrun. What goes wrong is
planted by ``ampwatch.inject``, is a slow rank, or an exception; the loop is an ordinary one.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

import torch
from torch import distributed
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset

import ampwatch
from ampwatch.demo.corpus import Corpus, source_text
from ampwatch.demo.model import CharacterGPT, Size

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZE = Size(layers=4, heads=4, width=64, context=32, batch=4)
GROWTH_INTERVAL = 40
"""Short, so that a few minutes have the saw-tooth that days have at the default of 2000."""

CRASH = 0.2
"""Share of the training after which the one dies that is made to."""


EVENTS = (
    (0.40, 1, {"kind": "stalled_step", "seconds": 3.0}),
    (0.50, None, {"kind": "collapsed_scale", "steps": 24}),
    (0.75, None, {"kind": "inf_activation", "module": "blocks.2.mlp", "steps": 4}),
)
"""Share of the training after which a fault is planted, its rank (``None`` for all), and what ``ampwatch.inject`` gets."""

READING_SECONDS = 0.03
"""Time that it takes to read a batch: a part of each step that is seen on the dashboards. Unit: s."""


class Batches(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """Batches of a corpus without end, each of which takes a while to read."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            time.sleep(READING_SECONDS)
            yield self._corpus.batch(SIZE.batch, SIZE.context)


def main() -> None:
    """Train until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds between steps")
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16")
    parser.add_argument("--crash", action="store_true", help="die early")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    ranks = distributed.is_torchelastic_launched()
    if ranks:
        distributed.init_process_group("gloo")
    rank = distributed.get_rank() if ranks else 0
    torch.manual_seed(1)
    corpus = Corpus(source_text(), torch.device("cpu"), seed=rank)
    batches = iter(DataLoader(Batches(corpus), batch_size=None))
    model = CharacterGPT(SIZE)
    whole = torch.nn.parallel.DistributedDataParallel(model) if ranks else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    dtype = getattr(torch, arguments.dtype)
    scaler = torch.amp.GradScaler(
        "cpu", growth_interval=GROWTH_INTERVAL, enabled=dtype is torch.float16
    )
    with ampwatch.monitor(model, scaler, optimizer=optimizer, run=arguments.name) as watch:
        begin = time.monotonic()
        due = list(EVENTS) if scaler.is_enabled() else []
        while True:
            share = (time.monotonic() - begin) / arguments.seconds
            if _agreed(share >= 1.0, ranks):
                break
            if arguments.crash and share >= CRASH:
                msg = "this training was made to die"
                raise RuntimeError(msg)
            while due and _agreed(share >= due[0][0], ranks):
                _, where, fault = due.pop(0)
                if where in (None, rank):
                    ampwatch.inject(watch, **fault)  # type: ignore[arg-type]
            inputs, targets = next(batches)
            watch.batch(samples=len(inputs), tokens=inputs.numel())
            with torch.autocast("cpu", dtype=dtype):
                logits = whole(inputs)
                loss = functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            time.sleep(arguments.pause * (1 + 0.3 * rank))
    if ranks:
        distributed.destroy_process_group()


def _agreed(mine: bool, ranks: bool) -> bool:  # noqa: FBT001 - a vote, and whether there is one
    """Return whether any rank says so: the clocks of two processes differ, their steps must not."""
    if not ranks:
        return mine
    vote = torch.tensor(float(mine))
    distributed.all_reduce(vote, distributed.ReduceOp.MAX)
    return bool(vote)


if __name__ == "__main__":
    main()
