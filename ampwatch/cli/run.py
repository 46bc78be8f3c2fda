"""``ampwatch run``: run a program, and watch every training in it."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from ampwatch.settings import ATTACH, FINDINGS_ONLY, SERVE, Settings

DESCRIPTION = """\
Run a program unchanged, and watch every optimizer and GradScaler that it makes, as if
ampwatch.monitor() had been called for them. Its results, output, arguments and exit status stay
the same; ampwatch writes to stderr only. If ampwatch cannot attach, it logs one line, and the
program runs without it.
"""

EPILOG = """\
examples:
  ampwatch run train.py --lr 3e-4
      instead of `python train.py --lr 3e-4`
  ampwatch run -m package.train --lr 3e-4
      instead of `python -m package.train --lr 3e-4`
  ampwatch run --level deep --run gpt torchrun --nproc-per-node 8 train.py
      in front of torchrun, accelerate launch, deepspeed, python -O ...: the programs that these
      start are watched; the ranks of a machine write one log and one report

Options for ampwatch come before the program, options for the program after it. All settings
can be given as AMPWATCH_* variables. What it cannot see:
`ampwatch explain using`.
"""

STARTUP = Path(__file__).parents[1] / "training" / "attach" / "startup"
"""Directory of the ``sitecustomize`` that attaches."""

NOT_FOUND = 127
NOT_EXECUTABLE = 126


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    parser.usage = "ampwatch run [options] (SCRIPT.py | -m MODULE | PROGRAM) [arguments ...]"
    add = parser.add_argument
    add("--level", metavar="L", help="off, light, standard or deep (AMPWATCH_LEVEL)")
    add("--run", metavar="NAME", dest="run_name", help="name of the run (AMPWATCH_RUN)")
    add(
        "--no-serve",
        action="store_true",
        help="no page, no metrics: findings on stderr only",
    )


def run(args: argparse.Namespace) -> int:
    """Become the program; this returns only if that is not possible.

    Raises:
        SettingsError: If ``--level`` or ``--run`` is not usable.
    """
    command = command_of(args.program)
    if not command:
        args.parser.error("expected a script, -m MODULE or a program")
    executable = shutil.which(command[0])
    if executable is None:
        print(
            f"ampwatch: expected a script.py, -m MODULE or a program on the PATH, got {command[0]!r}",
            file=sys.stderr,
        )
        return NOT_FOUND
    environment = environment_for(args)
    # Python has these ignored, and what is ignored stays so in whatever it becomes.
    for name in ("SIGPIPE", "SIGXFSZ"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(executable, command, environment)  # noqa: S606 - that is what was asked for
    except OSError as error:
        print(f"ampwatch: cannot run {command[0]!r}: {error}", file=sys.stderr)
        return NOT_EXECUTABLE


def command_of(words: Sequence[str]) -> list[str]:
    """Return the command that is meant: for a script or a module it begins with this Python."""
    if not words:
        return []
    first = Path(words[0])
    is_program = shutil.which(words[0]) is not None
    is_script = first.suffix in (".py", ".pyc", ".pyz") or (not is_program and first.exists())
    if words[0].startswith("-m") or is_script:
        return [sys.executable, *words]
    return list(words)


def environment_for(args: argparse.Namespace) -> dict[str, str]:
    """Return the environment in which every Python attaches by itself.

    Raises:
        SettingsError: If an option is not usable; a variable that is not is reported by the program.
    """
    given = {"level": args.level, "run": args.run_name}
    Settings.resolve(given, {})
    environment = dict(os.environ)
    environment.update(
        {f"AMPWATCH_{name.upper()}": value for name, value in given.items() if value}
    )
    environment[ATTACH] = FINDINGS_ONLY if args.no_serve else SERVE
    paths = [str(STARTUP), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return environment
