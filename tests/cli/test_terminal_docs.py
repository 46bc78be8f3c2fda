"""docs/page.md: commands in a terminal, with the output that they have."""

from __future__ import annotations

from tests.cli.terminal_examples import PAGE, commands, written

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_output_of_each_example_is_what_the_command_prints() -> None:
    """If not: `python -m tests.cli.terminal_examples`."""
    assert len(commands(TEXT)) == 3
    assert written(TEXT) == TEXT
    assert "\nampwatch: " not in TEXT  # no error has been written down
