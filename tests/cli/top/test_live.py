"""Keys, one by one, of a terminal that is as before in the end."""

from __future__ import annotations

import os
import pty
import termios
from typing import TYPE_CHECKING

import pytest

from ampwatch.cli.top.live import keys_one_by_one, keys_pressed

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    """Both ends of a terminal: where keys are pressed, where they are read."""
    leader, follower = pty.openpty()
    yield leader, follower
    os.close(leader)
    os.close(follower)


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("q", ["q"]),
        ("\x1b[A\x1bOB\x1b[5~\x1b[6~", ["<up>", "<down>", "<page up>", "<page down>"]),
        ("\x1b[H\x1b[4~\x1b[D", ["<home>", "<end>", "<left>"]),
        ("\r\n\x7f\x08", ["<enter>", "<enter>", "<backspace>", "<backspace>"]),
        ("\x1b", ["<escape>"]),
        ("\x1bq", ["<escape>", "q"]),
        ("é模", ["é", "模"]),
        ("\x1b[15~\x0c\x1b[1;5C", []),
    ],
)
def test_keys_have_names(ends: tuple[int, int], text: str, keys: list[str]) -> None:
    """Those of xterm, of the Linux console and of rxvt; what means nothing here is nothing."""
    with keys_one_by_one(ends[1]):
        os.write(ends[0], text.encode())
        assert keys_pressed(ends[1]) == keys


def test_keys_come_one_by_one_and_unseen(ends: tuple[int, int]) -> None:
    """In the end the terminal is as before, whatever is raised."""
    modes = termios.tcgetattr(ends[1])

    def crash() -> None:
        with keys_one_by_one(ends[1]):
            assert not termios.tcgetattr(ends[1])[3] & (termios.ECHO | termios.ICANON)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        crash()
    assert termios.tcgetattr(ends[1]) == modes
