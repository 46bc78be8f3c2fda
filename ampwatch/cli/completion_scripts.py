"""Completion scripts for bash, zsh and fish, from parsers of argparse.

The packages that do this (shtab, argcomplete) are larger than what is needed here, and would be
one more to install before a shell completes anything.
"""

from __future__ import annotations

import argparse
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@dataclass(slots=True)
class Command:
    """The program or one of its commands.

    Attributes:
        path: Its words after the program's name, joined by blanks; empty for the program.
        has_commands: Another command follows, so that no file does.
        words: What can stand there, with what it is for: commands below it and values.
        options: Its options, likewise.
        values: By each option that takes a value, the ones it takes; empty where it may be any.
    """

    path: str
    has_commands: bool = False
    words: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    values: dict[str, tuple[str, ...]] = field(default_factory=dict)


def commands_of(
    parser: argparse.ArgumentParser, names: Mapping[str, Mapping[str, str]], path: str = ""
) -> list[Command]:
    """Return the program, and all commands below it.

    Args:
        parser: Its parser.
        names: What else can stand after a command, by the path of that.
        path: Where the parser stands.
    """
    command = Command(path, words=dict(names.get(path, {})))
    found = [command]
    for action in parser._actions:  # noqa: SLF001 - argparse has no public way to list them
        help_ = "" if action.help in (None, argparse.SUPPRESS) else _expanded(parser, action)
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - likewise
            helps = {a.dest: a.help or "" for a in action._choices_actions}  # noqa: SLF001 - likewise
            command.has_commands = True
            for word, below in action.choices.items():
                command.words[word] = helps.get(word, "")
                found += commands_of(below, names, f"{path} {word}".strip())
        elif action.help is argparse.SUPPRESS:
            continue
        elif action.option_strings:
            command.options.update(dict.fromkeys(action.option_strings, help_))
            if action.nargs != 0:
                taken = tuple(map(str, action.choices or ()))
                command.values.update(dict.fromkeys(action.option_strings, taken))
        else:
            command.words.update(dict.fromkeys(map(str, action.choices or ()), ""))
    return found


def _expanded(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Return the help of an option as ``--help`` prints it."""
    formatter = parser._get_formatter()  # noqa: SLF001 - as above
    return formatter._expand_help(action)  # noqa: SLF001 - as above


def script(shell: str, commands: Sequence[Command]) -> str:
    """Return the script for ``shell``: ``bash``, ``zsh`` or ``fish``."""
    make = {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]
    return "\n".join(make(commands)) + "\n"


def _paths(commands: Sequence[Command]) -> list[str]:
    return [command.path for command in commands if command.path]


def _bash(commands: Sequence[Command]) -> Iterator[str]:
    yield "_ampwatch() {"
    yield "  local word path= words="
    yield '  local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}"'
    yield '  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do'
    yield '    case "${path:+$path }$word" in'
    yield f'      {"|".join(map(shlex.quote, _paths(commands)))}) path="${{path:+$path }}$word" ;;'
    yield "    esac"
    yield "  done"
    yield '  case "$path $previous" in'
    for command in commands:
        for option, taken in command.values.items():
            # Any value: bash then offers files.
            yield f"    {shlex.quote(f'{command.path} {option}')}) words={shlex.quote(' '.join(taken))} ;;"
    yield '    *) case "$path" in'
    for command in commands:
        listed = " ".join([*command.words, *command.options])
        yield f"      {shlex.quote(command.path)}) words={shlex.quote(listed)} ;;"
    yield "    esac ;;"
    yield "  esac"
    yield '  COMPREPLY=($(compgen -W "$words" -- "$current"))'
    yield "}"
    yield "complete -o default -F _ampwatch ampwatch"


def _zsh(commands: Sequence[Command]) -> Iterator[str]:
    yield "#compdef ampwatch"
    yield "_ampwatch() {"
    yield "  local word spot= before=${words[CURRENT-1]}"
    yield "  local -a found"
    yield "  for word in ${words[2,CURRENT-1]}; do"
    yield '    case "${spot:+$spot }$word" in'
    yield f'      ({"|".join(map(shlex.quote, _paths(commands)))}) spot="${{spot:+$spot }}$word" ;;'
    yield "    esac"
    yield "  done"
    yield '  case "$spot $before" in'
    for command in commands:
        for option, taken in command.values.items():
            at = shlex.quote(f"{command.path} {option}")
            yield f"    ({at}) found=({' '.join(map(shlex.quote, taken))}) ;;"
    yield '    (*) case "$spot" in'
    for command in commands:
        told = {**command.words, **command.options}
        pairs = " ".join(shlex.quote(_pair(word, help_)) for word, help_ in told.items())
        yield f"      ({shlex.quote(command.path)}) found=({pairs}) ;;"
    yield "    esac ;;"
    yield "  esac"
    yield "  _describe ampwatch found || _files"
    yield "}"
    yield "compdef _ampwatch ampwatch"


def _pair(word: str, help_: str) -> str:
    escaped = word.replace(":", "\\:")
    return f"{escaped}:{_line(help_)}" if help_ else escaped


def _fish(commands: Sequence[Command]) -> Iterator[str]:
    yield "function __ampwatch_at"
    yield "  set -l spot"
    yield "  for word in (commandline -opc)[2..-1]"
    yield f"    if contains -- (string join ' ' -- $spot $word) {' '.join(map(_fish_quoted, _paths(commands)))}"
    yield "      set -a spot $word"
    yield "    end"
    yield "  end"
    yield "  set -l joined (string join ' ' -- $spot)"  # none, not an empty one, of nothing
    yield '  test "$joined" = "$argv[1]"'
    yield "end"
    for command in commands:
        at = (
            f"complete -c ampwatch -n {_fish_quoted(f'__ampwatch_at {_fish_quoted(command.path)}')}"
        )
        if command.has_commands:
            yield f"{at} -f"
        for word, help_ in command.words.items():
            yield f"{at} -a {_fish_quoted(word)}{_described(help_)}"
        for option, help_ in command.options.items():
            name = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            taken = command.values.get(option)
            listed = f" -a {_fish_quoted(' '.join(taken))} -f" if taken else ""
            takes = "" if taken is None else f" -r{listed}"
            yield f"{at} {name}{takes}{_described(help_)}"


def _described(help_: str) -> str:
    return f" -d {_fish_quoted(_line(help_))}" if help_ else ""


def _fish_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _line(text: str) -> str:
    return " ".join(text.split())
