"""The command line: one file per verb, each loaded when the parser is made.

A verb has ``HELP``, ``DESCRIPTION``, ``EPILOG``, ``add_arguments(parser)`` and ``run(args)``; what it
needs to run is imported when it runs, so that ``ampwatch --help`` is quick.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ampwatch import __version__, laboratory
from ampwatch.cli.completion import ASKED, answer
from ampwatch.errors import AmpwatchError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

VERBS = (
    "completion",
    "daemon",
    "demo",
    "deploy",
    "doctor",
    "explain",
    "grafana",
    "lab",
    "ops",
    "report",
    "run",
    "top",
    "trace",
    "url",
)

DESCRIPTION = """\
Watch the numerical health of PyTorch mixed-precision training.

Nothing has to be started by hand: add one line to the training script,

    watch = ampwatch.monitor(model, scaler)

and the page and the metrics are served on this machine while it trains.
The commands below are for everything around that.
"""

EPILOG = """\
Settings come from AMPWATCH_* environment variables as well; see `ampwatch explain settings`.
`ampwatch <command> --help` says what a command is for and shows examples.
"""


class Parser(argparse.ArgumentParser):
    """A parser whose texts stay as they are written; it says which choice may have been meant.

    Verbs are choices as well, and their parsers are of this class.
    """

    def __init__(self, **texts: Any) -> None:
        raw = argparse.RawDescriptionHelpFormatter
        super().__init__(**{"formatter_class": raw, "allow_abbrev": False, **texts})

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # Python has no public place for this before 3.14, which says it by itself if it is asked to.
        if action.choices is not None and value not in action.choices:
            # Of verbs those that help lists.
            listed = [verb.dest for verb in getattr(action, "_choices_actions", ())]
            choices = listed or [str(choice) for choice in action.choices]
            near = did_you_mean(str(value), choices)
            msg = f"invalid choice: {value!r} (choose from {', '.join(map(repr, choices))}){near}"
            raise argparse.ArgumentError(action, msg)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Arguments without the program's name; those of the process if ``None``.

    Returns:
        The exit status: 0, 1 after an error that was explained, 2 for a command line that makes no
        sense, 130 after Ctrl-C.
    """
    from ampwatch.cli.run import split  # noqa: PLC0415 - a verb like the others

    ours, program = split(sys.argv[1:] if argv is None else argv)
    parser = make_parser()
    if ASKED in os.environ:
        answer(parser)
    args = parser.parse_args(ours, argparse.Namespace(program=program))
    if "func" not in args:
        args.parser.print_help()
        return 0
    try:
        return int(args.func(args))
    except AmpwatchError as error:
        print(f"ampwatch: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def make_parser() -> argparse.ArgumentParser:
    """Return the parser with all verbs."""
    parser = Parser(
        prog="ampwatch",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"ampwatch {__version__}")
    parser.set_defaults(parser=parser)
    subparsers = parser.add_subparsers(title="commands", metavar="<command>")
    for verb in VERBS:
        add_verb(subparsers, verb, import_module(f"ampwatch.cli.{verb}"))
    # Their old place, until the next release; help does not list them.
    for verb in laboratory.VERBS:
        add_verb(subparsers, verb, laboratory.load(f"cli.{verb}"), is_listed=False)
    return parser


def add_verb(
    subparsers: argparse._SubParsersAction[Any],
    verb: str,
    module: Any,
    *,
    is_listed: bool = True,
) -> None:
    """Add a verb to a command line.

    Args:
        subparsers: Those of the command line.
        verb: Its name.
        module: Its module.
        is_listed: Whether help lists it.
    """
    listed = {"help": module.HELP} if is_listed else {}
    epilog = getattr(module, "EPILOG", None)
    parser = subparsers.add_parser(verb, **listed, description=module.DESCRIPTION, epilog=epilog)
    parser.set_defaults(parser=parser)
    if hasattr(module, "run"):  # others have verbs of their own
        parser.set_defaults(func=module.run)
    module.add_arguments(parser)
