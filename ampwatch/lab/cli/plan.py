"""``ampwatch lab plan``: the cheapest format of each product of each layer that keeps a limit."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from ampwatch.cli.asking import add_choice, ask, choose, empty_file, running
from ampwatch.cli.progress import progress
from ampwatch.errors import AskError, ReportError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from ampwatch.wire.blackbox import Box
    from ampwatch.wire.records import PlanRecord
    from ampwatch.wire.ring import RingReader

DESCRIPTION = """\
Plan the precision of a training: for each linear and convolutional layer, and for each of
its three products, the cheapest number format whose loss stays under a limit, why not the
next cheaper one, what it would gain, and what has to stay in bfloat16 or float32.

The plan is made from the inputs, weights and gradients that ampwatch has measured: in a running
training, which answers between two iterations, or in a report. The training is not changed. A
running training reports from then on when a layer leaves the plan (the finding plan_left), and its
page shows the plan on the map of the model; --no-follow turns both off.
docs/lab.md says how the noise is predicted.
"""

HELP = "plan which layer can train in which number format"

EPILOG = """\
examples:
  ampwatch lab plan
      of the only training of this user that runs
  ampwatch lab plan gpt.json --gpu B200 --limit 16
      from a report, for a GPU; a product may lose what leaves it 16 dB
  ampwatch lab plan gpt.json --formats float16,bfloat16,float32 --limit 40
      for autocast alone
  ampwatch lab plan --json > plan.json
      all of it, for a program

The exit status is 1, with a message, if there is no plan. In the training's own program
ampwatch.lab.plan(watch) returns it.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    add = parser.add_argument
    add(
        "report",
        nargs="?",
        metavar="REPORT",
        help="a report, or the name of a run that has left one; a training that runs is asked if not given",
    )
    add(
        "--limit",
        type=float,
        metavar="DB",
        help="least signal-to-noise ratio of a product (default: 20)",
    )
    add(
        "--flushed",
        type=float,
        metavar="SHARE",
        help="largest share of an operand that may become zero (default: 0.1)",
    )
    add("--gpu", metavar="NAME", help="plan for this GPU: A100, H100, B200, ...")
    add("--formats", metavar="A,B,...", help="choose from these formats only")
    add(
        "--no-follow",
        action="store_true",
        help="do not have the training report when it leaves this plan",
    )
    add("--lines", type=int, metavar="N", help="layers of the table (default: 40)")
    add("--json", action="store_true", help="print all of it as JSON")
    add_choice(parser)


def run(args: argparse.Namespace) -> int:
    """Read what was measured, plan, and print.

    Raises:
        AmpwatchError: If there is no plan, saying why, or an argument makes no sense.
    """
    from ampwatch.lab.precision import LIMIT_DB, MAX_FLUSHED  # noqa: PLC0415 - not for --help
    from ampwatch.lab.precision.plan import LINES, to_json  # noqa: PLC0415 - likewise
    from ampwatch.lab.precision.planner import checked, plan_of, records_of  # noqa: PLC0415 - likewise

    limit = LIMIT_DB if args.limit is None else args.limit
    flushed = MAX_FLUSHED if args.flushed is None else args.flushed
    formats = (
        None if args.formats is None else [f.strip() for f in args.formats.split(",") if f.strip()]
    )
    checked(limit, flushed, args.gpu, formats)  # before anybody is asked
    with ExitStack() as undo:
        reader, step = None, 0
        if args.report is not None:
            box = _reported(args)
        else:
            reader = choose(running(undo), args.run, args.rank)
            box, step = _asked(reader, args)
        plan = plan_of(box, limit=limit, max_flushed=flushed, gpu=args.gpu, formats=formats)
        if plan.why_not:
            msg = f"no precision plan: {plan.why_not}"
            raise ReportError(msg)
        lines = LINES if args.lines is None else max(args.lines, 1)
        print(to_json(plan) if args.json else plan.table(lines), end="", flush=True)
        if reader is not None and not args.no_follow:
            _have_followed(reader, records_of(plan, step), args.timeout)
    return 0


def _reported(args: argparse.Namespace) -> Box:
    """Return the newest box of a report, of the rank that is asked for, that knows layers."""
    from ampwatch.cli.report import boxes_of  # noqa: PLC0415 - not for --help

    boxes = boxes_of(args.report)
    wanted = [
        box
        for box in boxes
        if args.run in (None, box.identity.run) and args.rank in (None, box.identity.rank)
    ]
    if not wanted:
        found = ", ".join(f"{b.identity.run} (rank {b.identity.rank})" for b in boxes)
        msg = f"expected a rank that --run and --rank choose in {args.report}, found {found}"
        raise ReportError(msg)
    return max(wanted, key=lambda box: (bool(box.layers), box.written_ns, -box.identity.rank))


def _asked(reader: RingReader, args: argparse.Namespace) -> tuple[Box, int]:
    """Return what a running training says of its layers, and the step at which it did."""
    from ampwatch.wire.blackbox.document import from_json  # noqa: PLC0415 - not for --help

    with ExitStack() as undo:
        raw = _file_beside(reader, undo)
        with progress(f"waiting for an iteration of {reader.identity.run} to end"):
            answer = ask(reader, raw, "layers", 1, args.timeout, undo)
        try:
            boxes = from_json(raw.read_bytes(), "the answer of the training")
        except OSError as error:
            msg = f"cannot read the answer of the training: {error}"
            raise AskError(msg) from error
    return boxes[0], answer.step


def _have_followed(reader: RingReader, plan: Sequence[PlanRecord], timeout_s: float) -> None:
    """Have the training tell when it leaves the plan; if it cannot, the plan stands anyway."""
    try:
        with ExitStack() as undo, progress(f"having {reader.identity.run} follow the plan"):
            ask(reader, _file_beside(reader, undo), "follow", 1, timeout_s, undo, plan=plan)
    except AskError as error:
        print(f"ampwatch: the training does not follow this plan: {error}", file=sys.stderr)


def _file_beside(reader: RingReader, undo: ExitStack) -> Path:
    # Beside the ring, which both can reach: a container may have a /tmp of its own.
    return empty_file(reader.path.with_name("plan.json"), undo)
