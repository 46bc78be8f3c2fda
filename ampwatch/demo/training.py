"""The training of the demo: the usual float16 AMP loop, one line of ampwatch, one planted fault."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import cast

import torch
from torch.nn import functional

import ampwatch
from ampwatch import LastStep
from ampwatch.demo.corpus import Corpus
from ampwatch.demo.display import Display, Status
from ampwatch.demo.model import MLP, CharacterGPT, Size
from ampwatch.demo.schedule import DemoSchedule, Moment, moments
from ampwatch.settings import Settings
from ampwatch.wire.rendezvous.machine import find_daemon, readers_token
from ampwatch.wire.rendezvous.token import TOKEN_FIELD


class Meter:
    """Counts steps and skips; updates the display as often as that likes, by a clock in seconds."""

    def __init__(self, display: Display, clock: Callable[[], float]) -> None:
        self._display = display
        self._clock = clock
        self._shown_at = clock()
        self._steps = 0
        self._skipped = 0
        self._phase = ""

    def update(self, moment: Moment, loss: torch.Tensor, last_step: LastStep) -> None:
        """Take in a step that is over, its loss, a scalar on any device, and its outcome."""
        self._steps += 1
        self._skipped += last_step.skipped is True  # None where it is not known yet
        phase = "faulty" if moment.faulty else "healthy"
        now = self._clock()
        if phase == self._phase and now - self._shown_at < self._display.every_seconds:
            return
        self._display.show(
            Status(
                phase=phase,
                share=moment.share,
                step=moment.step,
                loss=loss.item(),
                loss_scale=last_step.loss_scale,
                skipped=self._skipped,
                step_seconds=(now - self._shown_at) / self._steps,
            )
        )
        self._shown_at, self._steps, self._phase = now, 0, phase


SEED = 1
LEARNING_RATE = 1e-3

FAULTY_MODULE = "blocks.2.mlp"
DRIFT_PER_STEP = 4.0

MAX_BRANCH_SCALE = 2.0**24
"""End of the drift: far above the largest float16, far below the largest float32."""


def train(
    text: bytes,
    *,
    size: Size,
    device: torch.device,
    schedule: DemoSchedule,
    display: Display,
    port: int | None = None,
    serve: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> ampwatch.Monitor:
    """Train until the schedule or the user ends it.

    Args:
        text: What to learn, ASCII.
        size: Of model and batches.
        device: Where to train.
        schedule: When the fault is planted, when it is over.
        display: Where the progress is shown.
        port: Port of the daemon; that of the settings if ``None``.
        serve: Whether there is to be a page.
        clock: Monotonic time. Unit: s.

    Returns:
        The monitor, closed.
    """
    torch.manual_seed(SEED)
    corpus = Corpus(text, device, SEED)
    model = CharacterGPT(size).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    scaler = torch.amp.GradScaler(device.type)

    watch = ampwatch.monitor(model, scaler, run="demo", port=port, serve=serve)  # this line is all

    meter = Meter(display, clock)
    display.say(_introduction(model, device, watch.url))
    try:
        for moment in moments(schedule, clock):
            if moment.faulty:
                drift(model, display.say)  # the fault; a training of yours has no such line
            inputs, targets = corpus.batch(size.batch, size.context)
            with torch.autocast(device.type, dtype=torch.float16):
                logits = model(inputs)
                loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            meter.update(moment, loss, watch.last_step)
    except KeyboardInterrupt:
        display.say("Interrupted; here is the report so far.")
    watch.close()
    return watch


def prepare_device() -> torch.device:
    """Return the CUDA device if there is one, else the CPU, limited to one thread."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    # With matrices this small more threads hardly help, and on a busy machine they
    # spend most of their time waiting for one another: three times slower, measured.
    torch.set_num_threads(1)
    return torch.device("cpu")


def _page(url: str) -> str:
    """Return what to open: on a terminal, which keeps nothing, with the token of a new browser."""
    found = find_daemon(Settings.resolve(warns=False))
    is_ours = found is not None and found.info.url == url and sys.stdout.isatty()
    if found is not None and is_ours and (token := readers_token(found)):
        return f"{url}?{TOKEN_FIELD}={token}"
    return f"{url}  (in a new browser: `ampwatch url`)"


def _introduction(model: CharacterGPT, device: torch.device, url: str) -> str:
    parameters = sum(p.numel() for p in model.parameters()) / 1e6
    where = "No page: see the warning.\n"
    if url:
        where = f"Page     {_page(url)}\nMetrics  {url}metrics\n"
    return (
        f"A character GPT of {parameters:.1f} M parameters learns Python's standard library,\n"
        f"in float16 autocast with a GradScaler, on {device}. Ctrl-C ends it at any time.\n"
        f"\n{where}"
    )


def drift(model: CharacterGPT, say: Callable[[str], None]) -> None:
    """Raise the scale of the faulty branch by one step's worth, and say so the first time.

    As with a warm-up schedule of residual multipliers that nobody ends: every weight stays
    finite, and so does every input of the module; only its float16 output does not.
    """
    mlp = cast("MLP", model.get_submodule(FAULTY_MODULE))
    if mlp.branch_scale == 1.0:
        say(
            f"A fault is planted now: the branch scale of {FAULTY_MODULE} grows by a factor of"
            f" {DRIFT_PER_STEP:g} a step.\nSoon its output is beyond 65504, the largest float16."
        )
    mlp.branch_scale = min(mlp.branch_scale * DRIFT_PER_STEP, MAX_BRANCH_SCALE)
