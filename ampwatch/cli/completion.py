"""``ampwatch completion``: the script by which a shell completes commands, options and names."""

from __future__ import annotations

import argparse

DESCRIPTION = """\
Print the script by which your shell completes ampwatch's commands, options and names.

It is made from the commands themselves, so it never says anything else than they do. Have
it made when a shell starts, rather than kept in a file that another release leaves behind.
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


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = subparsers.add_parser(
        "completion",
        help="print what your shell completes commands by",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Print the script.

    Raises:
        AmpwatchError: If the installation is incomplete.
    """
    from ampwatch.cli import make_parser  # noqa: PLC0415 - it loads this module
    from ampwatch.cli.completion_scripts import commands_of, script  # noqa: PLC0415 - not for --help
    from ampwatch.report.pages import pages  # noqa: PLC0415 - likewise

    # What the parser cannot know: which names `explain` takes is up to the pages that are there.
    names = {"explain": dict.fromkeys(pages(), "")}
    print(script(args.shell, commands_of(make_parser(), names)), end="")
    return 0
