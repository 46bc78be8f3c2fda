"""``ampwatch lab errors``: the error budget of a running training, op by op."""

from __future__ import annotations

import argparse
from contextlib import ExitStack

from ampwatch.cli.asking import add_choice, answer_of, choose
from ampwatch.cli.output import above_zero
from ampwatch.errors import AskError
from ampwatch.lab.budget import from_dict, to_json
from ampwatch.wire.ring.text import parse_json

DESCRIPTION = """\
Ask a training that runs under ampwatch for the error budget of its newest batch: how far
each op and each module is from the result in float64, where the error arises, where it is
amplified, and how much it adds to the error of the loss.

The training has to be of this user, on this machine, at level standard or deep with
lab=True, and with a ring (not serve=False). Between two iterations it runs that batch once more on a copy of the
model, in float64 as well, and goes on: it pauses for the time of some five to fifteen steps.
Nothing in its program changes.
"""

EPILOG = """\
examples:
  ampwatch lab errors
      the only training of this user
  ampwatch lab errors --run gpt --rank 3 --lines 30
      one of several; more of each table
  ampwatch lab errors --json > errors.json
      all of it, for a program

The exit status is 1, with a message, if there is no budget. In the training's own program
ampwatch.lab.error_budget(watch) returns it, also where the loss is computed outside of the model.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    add_choice(parser)
    parser.add_argument(
        "--lines",
        type=above_zero(int, "a number of lines > 0"),
        default=10,
        metavar="N",
        help="lines of each table (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print all of it as JSON")


def run(args: argparse.Namespace) -> int:
    """Ask, wait, and print.

    Raises:
        AmpwatchError: If there is no budget, saying why, or a setting is not usable.
    """
    with ExitStack() as undo:
        raw, _ = answer_of(choose(undo, args.run, args.rank), "errors", args.timeout)
    try:
        budget = from_dict(parse_json(raw))
    except ValueError as error:
        msg = f"cannot read the answer of the training: {error}"
        raise AskError(msg) from error
    print(to_json(budget) if args.json else budget.table(args.lines), end="")
    return 0
