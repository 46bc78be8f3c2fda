"""``ampwatch demo``: a real training that breaks, to see what ampwatch shows."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

from ampwatch.cli.output import above_zero, seconds
from ampwatch.demo.schedule import SECONDS, DemoSchedule, Limit, usual_schedule
from ampwatch.report.judged_boxes import judge_boxes
from ampwatch.report.short import render_short
from ampwatch.wire.blackbox import Box

ONE_LINE = "watch = ampwatch.monitor(model, scaler)"

DESCRIPTION = """\
Train a small model, let it break, and see what ampwatch reports.

A character GPT of 1 to 3 M parameters learns the sources of Python's standard library:
float16 autocast with a GradScaler, on CUDA if there, else on the CPU. Nothing is
downloaded. For a minute it trains normally. Then a fault is planted in the forward of one
module: its float16 output overflows, every step is skipped and the loss scale collapses.
After 120 skipped steps, or two minutes in all, the demo ends with a summary on one screen:
what broke, where, what to do first, and where to read more.

Open the page whose address it prints. The training loop is worth reading:
ampwatch/demo/training.py is an ordinary AMP loop and one line of ampwatch.
"""

EPILOG = """\
examples:
  ampwatch demo
      a healthy minute, then the collapse
  ampwatch demo --healthy --seconds 600
      ten minutes without a fault, to see a healthy run
  ampwatch demo --fault-after 5
      break after five seconds
  ampwatch demo --steps 60 --fault-after-steps 30
      the same steps on every machine, to test an alert
"""


_steps = above_zero(int, "a whole number of steps >= 1")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    add = parser.add_argument
    add("--steps", type=_steps, metavar="N", help="end after N steps at the latest")
    add(
        "--seconds",
        type=seconds,
        default=SECONDS,
        metavar="S",
        help="end after S seconds at the latest (default: %(default)g)",
    )
    add("--port", type=int, help="port of the page if a daemon has to be started (AMPWATCH_PORT)")
    fault = parser.add_mutually_exclusive_group()
    fault.add_argument("--healthy", action="store_true", help="plant no fault")
    fault.add_argument(
        "--fault-after",
        type=seconds,
        metavar="S",
        help="plant the fault after S seconds (default: 60, but half way at the latest)",
    )
    fault.add_argument(
        "--fault-after-steps", type=_steps, metavar="N", help="plant the fault after N steps"
    )


def run(args: argparse.Namespace) -> int:
    """Train, and report.

    Raises:
        AmpwatchError: If there is nothing to train on, or a setting is not usable.
    """
    if importlib.util.find_spec("torch") is None:
        print(
            f"ampwatch: the demo trains a PyTorch model, and {sys.executable} has no torch;"
            " install it (pip install torch) and try again",
            file=sys.stderr,
        )
        return 1
    from ampwatch.demo.corpus import source_text  # noqa: PLC0415 - --help must not load torch
    from ampwatch.demo.display import open_display  # noqa: PLC0415
    from ampwatch.demo.model import CPU_SIZE, CUDA_SIZE  # noqa: PLC0415
    from ampwatch.demo.training import prepare_device, train  # noqa: PLC0415

    device = prepare_device()
    with open_display(sys.stdout) as display:
        watch = train(
            source_text(),
            size=CUDA_SIZE if device.type == "cuda" else CPU_SIZE,
            device=device,
            schedule=schedule_of(args),
            display=display,
            port=args.port,
        )
    minutes = watch.settings.grace_seconds / 60
    print(f"\n{ending(watch.box(), time.time(), url=watch.url, minutes=minutes)}", end="")
    return 0


def ending(box: Box, now_s: float, *, url: str = "", minutes: float = 0.0) -> str:
    """Return how the demo went, and where to look at it, on one screen.

    Args:
        box: What its monitor has seen.
        now_s: Unix time. Unit: s.
        url: Address of the page; empty without one.
        minutes: How long the page goes on showing it. Unit: min.
    """
    subject = judge_boxes([box]).subject
    name = box.identity.run
    rows = [("ampwatch top", "a line for each rank on this machine; Enter opens its findings")]
    rows = rows if url else []
    if subject is not None:
        kind = subject.finding.kind
        rows += [
            (f"ampwatch explain {kind} --run {name}", "this finding, then the page of its kind"),
            (f"ampwatch report {name}", "all findings, with their numbers"),
            (f"ampwatch report {name} --html {name}.html", "the same with pictures"),
        ]
    longest = max((len(command) for command, _ in rows), default=0)
    # `make demo` runs it from an environment that no shell has activated.
    activate = os.path.relpath(Path(sys.prefix, "bin", "activate"))
    first = "" if shutil.which("ampwatch") else f", after `. {activate}`"
    lines = [f"Read more{first}:"] if rows or url else []
    if url:
        lines.append(
            f"  {url}  the page, for another {minutes:.3g} min (`ampwatch url` has the token)"
        )
    lines += [f"  {command:<{longest}}  {what}" for command, what in rows]
    lines += ["In your own training, add one line:", f"  {ONE_LINE}"]
    return "\n".join([render_short([box], now_s), *lines]) + "\n"


def schedule_of(args: argparse.Namespace) -> DemoSchedule:
    """Return what the options make of the usual schedule."""
    schedule = usual_schedule(steps=args.steps, seconds=args.seconds, healthy=args.healthy)
    if args.fault_after is not None:
        return replace(schedule, fault=Limit(seconds=args.fault_after))
    if args.fault_after_steps is not None:
        return replace(schedule, fault=Limit(steps=args.fault_after_steps))
    return schedule
