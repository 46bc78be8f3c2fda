"""``ampwatch completion``: the script by which a shell completes commands, options and names."""

from __future__ import annotations

import argparse
from contextlib import suppress

from ampwatch.errors import AmpwatchError

DESCRIPTION = """\
Print the script with which your shell completes ampwatch's commands, options and names.

The package argcomplete, which is in ampwatch[ui], makes it. At each completion the shell runs
ampwatch, so the completions are always those of the installed version.
"""

EPILOG = """\
examples:
  eval "$(ampwatch completion bash)"
      in ~/.bashrc
  eval "$(ampwatch completion zsh)"
      in ~/.zshrc, after compinit
  ampwatch completion fish | source
      in ~/.config/fish/config.fish
"""

SHELLS = ("bash", "zsh", "fish")

ASKED = "_ARGCOMPLETE"
"""Environment variable with which argcomplete's script asks a program what may come next."""

LINE = "COMP_LINE"
"""Environment variable with the line of which it asks."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    parser.add_argument("shell", choices=SHELLS, help="the shell")


def run(args: argparse.Namespace) -> int:
    """Print the script.

    Raises:
        AmpwatchError: If argcomplete is not installed.
    """
    try:
        from argcomplete.shell_integration import shellcode  # noqa: PLC0415 - an extra
    except ImportError:
        msg = "the package argcomplete is not installed; run: pip install 'ampwatch[ui]'"
        raise AmpwatchError(msg) from None
    print(shellcode(["ampwatch"], shell=args.shell))
    return 0


def answer(parser: argparse.ArgumentParser) -> None:
    """Tell the shell that has asked what may come next, and end the process.

    Raises:
        SystemExit: Always, unless argcomplete is not installed.
    """
    with suppress(ImportError):
        from argcomplete import autocomplete  # noqa: PLC0415 - an extra

        autocomplete(parser)
