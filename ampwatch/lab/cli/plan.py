"""``ampwatch lab plan``: the cheapest format of each product of each layer that keeps a limit."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from ampwatch.cli.asking import add_choice, answer_of, choose
from ampwatch.cli.report import boxes_of
from ampwatch.errors import AskError, ReportError
from ampwatch.lab.precision.plan import LINES, to_json
from ampwatch.lab.precision.planner import LIMIT_DB, MAX_FLUSHED, checked, plan_of, records_of
from ampwatch.wire.blackbox import Box
from ampwatch.wire.blackbox.document import from_json
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
        default=LIMIT_DB,
        help="least signal-to-noise ratio of a product (default: %(default)g)",
    )
    add(
        "--flushed",
        type=float,
        metavar="SHARE",
        default=MAX_FLUSHED,
        help="largest share of an operand that may become zero (default: %(default)g)",
    )
    add("--gpu", metavar="NAME", help="plan for this GPU: A100, H100, B200, ...")
    add("--formats", metavar="A,B,...", type=_names, help="choose from these formats only")
    add(
        "--no-follow",
        action="store_true",
        help="do not have the training report when it leaves this plan",
    )
    lines = "layers of the table (default: %(default)s)"
    add("--lines", type=int, metavar="N", default=LINES, help=lines)
    add("--json", action="store_true", help="print all of it as JSON")
    add_choice(parser)


def run(args: argparse.Namespace) -> int:
    """Read what was measured, plan, and print.

    Raises:
        AmpwatchError: If there is no plan, saying why, or an argument makes no sense.
    """
    # Before anybody is asked.
    wanted = checked(args.limit, args.flushed, args.gpu, args.formats)
    with ExitStack() as undo:
        reader, step = None, 0
        if args.report is not None:
            box = _reported(args)
        else:
            reader = choose(undo, args.run, args.rank)
            raw, answer = answer_of(reader, "layers", args.timeout)
            box, step = from_json(raw, "the answer of the training")[0], answer.step
        plan = plan_of(box, wanted)
        if plan.why_not:
            msg = f"no precision plan: {plan.why_not}"
            raise ReportError(msg)
        print(to_json(plan) if args.json else plan.table(max(args.lines, 1)), end="", flush=True)
        if reader is not None and not args.no_follow:
            _have_followed(reader, records_of(plan, step), args.timeout)
    return 0


def _have_followed(reader: RingReader, plan: Sequence[PlanRecord], timeout_s: float) -> None:
    """Have the training tell when it leaves the plan; if it cannot, the plan stands anyway."""
    try:
        answer_of(reader, "follow", timeout_s, plan)
    except AskError as error:
        print(f"ampwatch: the training does not follow this plan: {error}", file=sys.stderr)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _reported(args: argparse.Namespace) -> Box:
    """Return the newest box of a report, of the rank that is asked for, that knows layers."""
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
