"""``ampwatch lab errors``: the error budget of a running training, op by op."""

from __future__ import annotations

import argparse
from contextlib import ExitStack

from ampwatch.cli.asking import add_choice, ask, choose, empty_file, running
from ampwatch.errors import AskError

DESCRIPTION = """\
Ask a training that runs under ampwatch for the error budget of its newest batch: how far
each op and each module is from the result in float64, where the error arises, where it is
amplified, and how much it adds to the error of the loss.

The training has to be of this user, on this machine, at level standard or deep with
lab=True, and with a ring (not serve=False). Between two iterations it runs that batch once more on a copy of the
model, in float64 as well, and goes on: it pauses for the time of some five to fifteen steps.
Nothing in its program changes.
"""

HELP = "show where the error of a running training appears, op by op"

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
        type=_count,
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
    from ampwatch.cli.progress import progress  # noqa: PLC0415 - not for --help
    from ampwatch.lab.budget import from_dict, to_json  # noqa: PLC0415 - likewise
    from ampwatch.wire.ring.text import parse_json  # noqa: PLC0415 - likewise

    with ExitStack() as undo:
        reader = choose(running(undo), args.run, args.rank)
        # Beside the ring, which both can reach: a container may have a /tmp of its own.
        raw = empty_file(reader.path.with_name("errors.json"), undo)
        with progress(f"waiting for an iteration of {reader.identity.run} to end"):
            ask(reader, raw, "errors", 1, args.timeout, undo)
        try:
            budget = from_dict(parse_json(raw.read_bytes()))
        except (OSError, ValueError) as error:
            msg = f"cannot read the answer of the training: {error}"
            raise AskError(msg) from error
    print(to_json(budget) if args.json else budget.table(args.lines), end="")
    return 0


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number > 0:
        return number
    msg = f"expected a number of lines > 0, got {text!r}"
    raise argparse.ArgumentTypeError(msg)
