"""The command line: one file per verb, loaded where the command line has the verb: help is quick.

A verb has ``DESCRIPTION``, ``EPILOG``, ``add_arguments(parser)`` and ``run(args)``.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Container, Sequence
from importlib import import_module
from typing import Any

from ampwatch import __version__, laboratory
from ampwatch.cli.completion import ASKED, LINE, answer
from ampwatch.errors import AmpwatchError, did_you_mean

VERBS = {
    "completion": "print the completion script for your shell",
    "daemon": "serve the page and the metrics of this machine's runs",
    "demo": "train a small model that breaks, and see what ampwatch reports",
    "deploy": "write the files to run Prometheus, Alertmanager and Grafana with it",
    "doctor": "check what ampwatch can measure on this machine, and why not",
    "explain": "explain a kind of finding or an alert, and what to do",
    "grafana": "install the dashboards in a Grafana, compare or export them",
    "lab": "plan formats, show where errors appear, compare two runs",
    "ops": "show which ops of a training ran in which dtype, and why",
    "report": "report what went wrong in a run, during it or afterwards",
    "run": "run a training program unchanged, and watch it",
    "top": "show all runs on this machine, live, worst first",
    "trace": "profile the next iterations of a running training, and write the trace",
    "url": "print the address of the page, with the token it asks for",
}
"""The verbs, and what help says of each."""

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


WITH_VALUE = ("--level", "--run")
"""Those of the options of ``ampwatch run`` that take a value: the next word is not the program."""


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
    ours, program = split(sys.argv[1:] if argv is None else argv)
    if ASKED in os.environ:
        answer(make_parser(os.environ.get(LINE, "").split()))
    parser = make_parser(ours)
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


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words of a command line that are ours, and those of the program of ``ampwatch run``.

    argparse cannot be trusted with the latter: it takes a `--` of the program for its own.
    """
    place = 1
    while argv[:1] == ["run"] and place < len(argv):
        word = argv[place]
        if word == "--":
            return list(argv[:place]), list(argv[place + 1 :])
        if word.startswith("-m") or not word.startswith("-"):
            return list(argv[:place]), list(argv[place:])
        place += 2 if word in WITH_VALUE else 1
    return list(argv), []


def make_parser(words: Container[str] | None = None) -> argparse.ArgumentParser:
    """Return the parser of a command line, with the arguments of the verbs that are among its words.

    Args:
        words: The command line; ``None`` for the arguments of all verbs.
    """
    parser = Parser(prog="ampwatch", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--version", action="version", version=f"ampwatch {__version__}")
    parser.set_defaults(parser=parser)
    subparsers = parser.add_subparsers(title="commands", metavar="<command>")
    for verb, text in VERBS.items():
        listed = subparsers.add_parser(verb, help=text)
        if words is None or verb in words:
            add_verb(listed, import_module(f"ampwatch.cli.{verb}"))
    # Their old place, until the next release; help does not list them.
    for verb in laboratory.VERBS:
        unlisted = subparsers.add_parser(verb)
        if words is None or verb in words:
            add_verb(unlisted, laboratory.load(f"cli.{verb}"))
    return parser


def add_verb(parser: argparse.ArgumentParser, module: Any) -> None:
    """Have a parser take the arguments of a verb, and call it."""
    parser.description, parser.epilog = module.DESCRIPTION, getattr(module, "EPILOG", None)
    parser.set_defaults(parser=parser)
    if hasattr(module, "run"):  # others have verbs of their own
        parser.set_defaults(func=module.run)
    module.add_arguments(parser)
