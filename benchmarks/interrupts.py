"""Interrupts from the keyboard during watched steps: caught, as in a notebook, and the cell run again.

Usage: ``python -m benchmarks.interrupts [--interrupts 10000] [--levels light standard deep]``, and with ``--lines``
one at each line of ampwatch that a step reaches. Without it the signals come from another process, at random times.
After them steps are skipped: wanted is that each is told, that the scheduler of the README waits, that no sensor is
off, and that nothing is left after ``close()``. A line is printed for each level; the exit status is 1 if
anything is missing.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules import module as module_state
from torch.optim import optimizer as optimizer_state

import ampwatch
from ampwatch.training.hooks import taps
from ampwatch.training.private import dispatch_modes, pop_mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import CodeType, FrameType

LEVELS = ("light", "standard", "deep")
PACKAGE = str(Path(ampwatch.__file__).parent)
SCALE = 1024.0
SKIPS = 30
"""Steps that are skipped in a row at the end of a round."""

PAUSE = 0.004
"""Mean time between two signals. Unit: s."""

Instant = tuple["CodeType", int]
"""Code, and number of a line of it."""


class Training:
    """A small training in float16 with a watched GradScaler, and the scheduler of the README.

    Args:
        level: At which it is watched.
    """

    def __init__(self, level: str) -> None:
        torch.manual_seed(0)
        layers = (nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
        self.model = nn.Sequential(*layers)
        self.data = torch.randn(16, 32)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-5, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 10**9)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=10**6)
        self.scaler.scale(self.data)  # makes its tensors, which PyTorch would leave half made
        self.watch = ampwatch.monitor(
            self.model, self.scaler, level=level, serve=False, report_files=0
        )
        self.advanced = 0
        self._handler = signal.getsignal(signal.SIGINT)

    def step(self, *, bad: bool = False) -> None:
        """Take a step, which is skipped if it is bad."""
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = self.model(self.data).float().square().mean()
        self.scaler.scale(loss * float("inf") if bad else loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if not self.watch.last_step.skipped:
            self.scheduler.step()
            self.advanced += 1

    def tidy(self) -> None:
        """Do what a cell does that begins anew: an interrupt leaves these of PyTorch half done."""
        self.optimizer.zero_grad()
        self.scaler._per_optimizer_states.clear()
        torch.set_autocast_enabled("cpu", False)  # noqa: FBT003 - PyTorch's
        torch.set_autocast_dtype("cpu", torch.bfloat16)  # as PyTorch begins
        # A region that was interrupted where it is entered or left counts as open for good, and then no
        # cast of a weight is ever forgotten.
        while torch.autocast_decrement_nesting() >= 0:
            pass
        torch.autocast_increment_nesting()
        torch.clear_autocast_cache()
        torch.set_grad_enabled(True)

    def deaf(self, skips: int = 3) -> list[str]:
        """Take some steps, some of them skipped; return what of it was not heard as ever."""
        self.tidy()
        missing = []
        for _ in range(2):
            self.step()
        before = self.advanced
        for _ in range(skips):
            self.step(bad=True)
            if not self.watch.last_step.skipped:
                missing.append("a skipped step is not told")
        if self.advanced != before:
            missing.append("the scheduler has run ahead")
        self.scaler._scale.fill_(SCALE)
        self.step()
        bus = self.watch._session.bus
        missing += [f"sensor {guard.name} is off" for guard in bus.guards if guard.off]
        missing += [f"sensor {guard.name} is held" for guard in bus.guards if guard._holders]
        if bus.account.is_mine:
            missing.append("the thread counts as ampwatch's own")
        if len(dispatch_modes()) > 1:
            missing.append("modes pile up")
        return missing

    def end(self) -> list[str]:
        """Close, and return what is left."""
        self.watch.close()
        left = [f"{owner!r}.{name} is replaced" for owner, name in taps._taps]
        if signal.getsignal(signal.SIGINT) is not self._handler:
            left.append("the handler of interrupts is another one")
        for state, names in (
            (
                module_state,
                (
                    "_global_forward_hooks",
                    "_global_forward_pre_hooks",
                    "_global_forward_hooks_always_called",
                ),
            ),
            (
                optimizer_state,
                ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"),
            ),
        ):
            for name in names:
                hooks = getattr(state, name, {})
                left += [f"{name} has {hook!r}" for hook in hooks.values()]
                hooks.clear()
        while dispatch_modes():
            left.append(f"mode {pop_mode()!r} is on")
        return left


def kinds(level: str) -> set[str]:
    """Return the kinds of findings of a round without interrupts."""
    training = Training(level)
    training.deaf(SKIPS)
    training.end()
    return {finding.kind for finding in training.watch.findings}


def round_ends(training: Training, wanted: set[str]) -> list[str]:
    """End a round with a storm of skips; return what is wrong."""
    missing = training.deaf(SKIPS)
    found = {finding.kind for finding in training.watch.findings}
    missing += [f"no finding of {kind}" for kind in sorted(wanted - found)]
    return missing + training.end()


# Signals from another process.


class Interrupts:
    """The handler of a program: raises one interrupt each time it is armed, and counts them."""

    def __init__(self) -> None:
        self.is_armed = False
        self.raised = 0

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        """Raise, if it is armed."""
        if self.is_armed:
            self.is_armed = False
            self.raised += 1
            raise KeyboardInterrupt


def be_interrupted(level: str, wanted: int, per_round: int = 100) -> dict[str, Any]:
    """Train until so many interrupts were caught around the loop; return what is wrong."""
    expected = kinds(level)
    interrupts = Interrupts()
    signal.signal(signal.SIGINT, interrupts)
    print("ready", flush=True)
    caught, wrong, swallowed, training = 0, list[str](), list[str](), Training(level)
    # Python says here what it swallows: in callbacks of weak references, and in __del__.
    lost: list[str] = []
    sys.unraisablehook = lambda event: lost.append(repr(event.object))
    while caught < wanted:
        try:
            training.tidy()
            interrupts.is_armed = True
            while interrupts.is_armed:  # one that has come and is not here was swallowed
                training.step()
                if caught % 10 == 9:  # also while another one comes and goes
                    ampwatch.monitor(nn.Linear(2, 2), level=level, serve=False).close()
        except KeyboardInterrupt:
            caught += 1
        if interrupts.raised - caught > len(swallowed):
            swallowed.append(f"swallowed in {lost[-1] if lost else 'an unknown place'}")
        if caught % per_round == 0 or caught == wanted:
            wrong += round_ends(training, expected)
            training = Training(level)
    training.end()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # others are on their way
    return {"level": level, "interrupts": caught, "wrong": sorted({*wrong, *swallowed})}


def interrupt(level: str, wanted: int, seed: int) -> dict[str, Any]:
    """Send a training of a process of its own signals until it has caught so many."""
    rng = random.Random(seed)
    command = [sys.executable, "-m", "benchmarks.interrupts", "--child", level, str(wanted)]
    root = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=root, env={**os.environ, "PYTHONPATH": path}
    ) as child:
        assert child.stdout is not None
        if child.stdout.readline() != "ready\n":
            return {"level": level, "interrupts": 0, "wrong": ["it did not start"]}
        while child.poll() is None:
            time.sleep(rng.random() * 2 * PAUSE)
            child.send_signal(signal.SIGINT)
        last = child.stdout.read().strip().rpartition("\n")[2]
    if child.returncode != 0:
        return {"level": level, "interrupts": 0, "wrong": [f"it ended with {child.returncode}"]}
    return dict(json.loads(last))


# At each line.


def lines_of_a_step(training: Training, modules: Iterable[str] = ("",)) -> list[Instant]:
    """Return the lines of ampwatch that some steps reach, skipped ones among them, each once.

    Args:
        training: Takes the steps.
        modules: How the paths of the modules begin, relative to the package.
    """
    reached: dict[Instant, None] = {}
    begins = tuple(str(Path(PACKAGE) / name) for name in modules)

    def trace(frame: FrameType, _event: str, _argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(begins):
            return None

        def at_line(frame: FrameType, event: str, _argument: object) -> Any:
            if event == "line":
                reached[frame.f_code, frame.f_lineno] = None
            return at_line

        return at_line

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        cycle(training)
    finally:
        sys.settrace(before)
    return list(reached)


def cycle(training: Training, is_over: Callable[[], bool] = lambda: False) -> None:
    """Take the steps in which lines are looked for."""
    for number in range(11):
        training.step(bad=number in (3, 4))
        if is_over():
            return


def interrupted_at(training: Training, instant: Instant) -> bool | None:
    """Interrupt some steps at a line, by a signal; return whether it came, ``None`` if it was not reached."""
    code, line = instant
    met: list[int] = []

    def trace(frame: FrameType, _event: str, _argument: object) -> Any:
        if frame.f_code is not code:
            return None

        def at_line(frame: FrameType, event: str, _argument: object) -> Any:
            if event == "line" and frame.f_lineno == line and not met:
                met.append(line)
                signal.raise_signal(signal.SIGINT)
            return at_line

        return at_line

    training.tidy()
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        cycle(training, lambda: bool(met))
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False if met else None


def interrupt_lines(
    level: str, *, modules: Iterable[str] = ("",), every: int = 1, per_round: int = 100
) -> dict[str, Any]:
    """Interrupt at each line that a step reaches, or each so many-th; return what is wrong."""
    training = Training(level)
    for _ in range(2):
        training.step()
    instants = lines_of_a_step(training, modules)[::every]
    training.end()
    wrong: list[str] = []
    came = 0
    for some in _rounds(instants, per_round):
        training = Training(level)
        training.step()
        for code, line in some:
            is_caught = interrupted_at(training, (code, line))
            came += bool(is_caught)
            trouble = training.deaf() + (["it was swallowed"] if is_caught is False else [])
            if trouble:
                where = f"{Path(code.co_filename).relative_to(PACKAGE)}:{line}"
                wrong += [f"{where}: {what}" for what in trouble + training.end()]
                training = Training(level)
        wrong += training.end()
    return {"level": level, "interrupts": came, "wrong": wrong}


def _rounds(instants: list[Instant], size: int) -> Iterator[list[Instant]]:
    for begin in range(0, len(instants), size):
        yield instants[begin : begin + size]


def main() -> int:
    """Run the program; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--interrupts", type=int, default=10_000, help="of all levels together")
    parser.add_argument("--levels", nargs="+", choices=LEVELS, default=LEVELS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lines", action="store_true")
    parser.add_argument("--every", type=int, default=1, help="with --lines: each so many-th line")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.getLogger("ampwatch").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    if options.child:
        print(json.dumps(be_interrupted(options.child[0], int(options.child[1]))), flush=True)
        return 0
    is_wrong = False
    for level in options.levels:
        began = time.monotonic()
        if options.lines:
            result = interrupt_lines(level, every=options.every)
        else:
            each = -(-options.interrupts // len(options.levels))
            result = interrupt(level, each, options.seed)
        result["seconds"] = round(time.monotonic() - began, 1)
        is_wrong |= bool(result["wrong"])
        print(json.dumps(result), flush=True)
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
