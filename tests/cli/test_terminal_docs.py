"""docs/terminal.md: every command of ours is there, with the output that it has."""

from __future__ import annotations

import re

import pytest

from ampwatch.cli import make_parser
from ampwatch.cli.completion_scripts import commands_of
from tests.cli.terminal_examples import PAGE, commands, output_of, written

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_output_of_each_example_is_what_the_command_prints() -> None:
    """If not: `python -m tests.cli.terminal_examples`."""
    assert len(commands(TEXT)) == 4
    assert written(TEXT) == TEXT


@pytest.mark.parametrize("command", commands(TEXT))
def test_an_example_says_something_and_fits_the_page(command: str) -> None:
    """No error has been written down."""
    said = output_of(command)

    assert said.count("\n") > 4
    assert max(map(len, said.splitlines())) <= 100
    assert not said.startswith("ampwatch: ")


def test_every_command_and_option_that_is_named_exists() -> None:
    """Names and options in the text."""
    known = {command.path: command for command in commands_of(make_parser(), {})}
    for line in re.findall(r"ampwatch ([a-z][^`\n\"|]*)", TEXT):
        verb, *rest = line.split()
        if verb not in known:
            assert verb.startswith("top"), line
        for option in rest:
            assert not option.startswith("--") or option in known[verb].options, line
