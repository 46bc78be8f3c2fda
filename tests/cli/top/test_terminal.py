"""A terminal that is read key by key."""

from __future__ import annotations

import os
import pty
import signal
import termios
from typing import TYPE_CHECKING

import pytest

from ampwatch.cli.top.terminal import NOTED, Key, Terminal, keys_in

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
        ("\x1b[A\x1bOB\x1b[5~\x1b[6~", [Key.UP, Key.DOWN, Key.PAGE_UP, Key.PAGE_DOWN]),
        ("\x1b[H\x1b[4~\x1b[D", [Key.HOME, Key.END, Key.LEFT]),
        ("\r\n\x7f\x08", [Key.ENTER, Key.ENTER, Key.BACKSPACE, Key.BACKSPACE]),
        ("\x1b", [Key.ESCAPE]),
        ("\x1bq", [Key.ESCAPE, "q"]),
        ("é模", ["é", "模"]),
        ("\x1b[15~\x0c\x1b[1;5C", []),
    ],
)
def test_keys_have_names(text: str, keys: list[str]) -> None:
    """Those of xterm, of the Linux console and of rxvt; what means nothing here is nothing."""
    assert keys_in(text) == keys


def test_keys_come_one_by_one_and_unseen(ends: tuple[int, int]) -> None:
    """In the end the terminal is as before, and so are the handlers of signals."""
    leader, follower = ends
    modes = termios.tcgetattr(follower)
    handlers = [signal.getsignal(number) for number in NOTED]
    with Terminal(follower) as terminal:
        assert not termios.tcgetattr(follower)[3] & (termios.ECHO | termios.ICANON)
        os.write(leader, b"s\x1b[A")
        assert terminal.read() == (["s", Key.UP], [])

    assert termios.tcgetattr(follower) == modes
    assert [signal.getsignal(number) for number in NOTED] == handlers


def test_a_key_that_comes_in_pieces_is_one_key(ends: tuple[int, int]) -> None:
    """As over a slow line; half a character is waited for as well."""
    leader, follower = ends
    with Terminal(follower) as terminal:
        os.write(leader, b"\x1b")
        pressed = terminal.read()[0]
        os.write(leader, b"\xc3")
        half = terminal.read()[0]
        os.write(leader, b"\xa9")
        assert (pressed, half, terminal.read()[0]) == ([Key.ESCAPE], [], ["é"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_asks_to_end_is_noted(ends: tuple[int, int], number: signal.Signals) -> None:
    """And nothing is raised in the middle of a line."""
    with Terminal(ends[1]) as terminal:
        os.kill(os.getpid(), number)
        assert terminal.read() == ([], [number])
        assert terminal.ended_by == number


def test_a_new_size_and_a_call_wake_the_reader(ends: tuple[int, int]) -> None:
    """Neither ends anything."""
    with Terminal(ends[1]) as terminal:
        os.kill(os.getpid(), signal.SIGWINCH)
        assert terminal.read() == ([], [signal.SIGWINCH])
        terminal.wake()
        assert terminal.read() == ([], [])
        assert terminal.ended_by == 0


def test_a_crash_leaves_the_terminal_as_it_was(ends: tuple[int, int]) -> None:
    """Whatever is raised."""
    modes = termios.tcgetattr(ends[1])

    with pytest.raises(ZeroDivisionError), Terminal(ends[1]):
        raise ZeroDivisionError

    assert termios.tcgetattr(ends[1]) == modes


def test_a_terminal_that_is_gone_ends_it() -> None:
    """Nobody is there to press q."""
    leader, follower = pty.openpty()
    with Terminal(follower) as terminal:
        os.close(leader)
        assert terminal.read()[0] == []
        assert terminal.ended_by == signal.SIGHUP
    os.close(follower)
