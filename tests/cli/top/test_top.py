"""`ampwatch top` as a user runs it: a real daemon, a real terminal, and pipes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from ampwatch.cli import main
from ampwatch.cli.top.table import once
from ampwatch.report.rank_list import unpacked
from ampwatch.report.verdict import Level
from ampwatch.wire.blackbox import Box, files
from ampwatch.wire.records import RunState
from tests.cli.terminals import SECONDS, on_a_terminal
from tests.cli.test_daemon_state import list_of, serving
from tests.cli.top.states import made_up_state, many_ranks
from tests.host.daemon.parts import ROOT, Place, eventually
from tests.workshop.records import identity

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.terminals import Terminal
    from tests.host.daemon.parts import Daemon


TOP = [sys.executable, "-m", "ampwatch", "top"]

CLOSED = "\x1b[?1049l"
"""What gives back the screen that was there."""

COLOURS = re.compile(r"\x1b\[(?:\d+;)*(?:3|9)\d(?:;\d+)*m")
"""What sets a colour of text."""

NO_RICH = """
import importlib.util, sys
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "rich" else find_spec(name, *more)
sys.modules["rich"] = None
from ampwatch.cli import main
sys.exit(main(["top"]))
"""
"""``ampwatch top`` where Rich is not installed."""

SHELL = """
import os, signal, subprocess, sys, termios
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
job = subprocess.Popen(sys.argv[1:], preexec_fn=os.setpgrp)
os.tcsetpgrp(0, job.pid)
_, status = os.waitpid(job.pid, os.WUNTRACED)
echo = bool(termios.tcgetattr(0)[3] & termios.ECHO)
print(f"stopped: {os.WIFSTOPPED(status)}, echo: {echo}", flush=True)
os.kill(job.pid, signal.SIGCONT)
sys.exit(job.wait())
"""
"""What a shell does: only below one can a command be stopped by a key."""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A place without a daemon."""
    return Place(tmp_path)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A place with a daemon, that shows run gpt of two ranks."""
    place = Place(tmp_path_factory.mktemp("watched"))
    with place.daemon() as daemon, place.writer("gpt", 0, 2) as one, place.writer("gpt", 1, 2):
        one.do("step")
        eventually(lambda: len(_ranks(daemon)) == 2, "two ranks")
        yield place


def _ranks(daemon: Daemon) -> dict[str, Any]:
    return daemon.ask("/state.json").json["runs"].get("gpt", {"ranks": {}})["ranks"]


@contextmanager
def running(place: Place, command: list[str], columns: int = 100) -> Iterator[Terminal]:
    """The command on a terminal, as soon as the run is to be seen there."""
    environment = {name: v for name, v in place.environment.items() if name != "NO_COLOR"}
    with on_a_terminal(command, environment, columns) as terminal:
        terminal.until("gpt")
        yield terminal


def run(place: Place, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TOP, *arguments],
        cwd=ROOT,
        env=place.environment | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_shows_the_ranks_and_q_gives_the_screen_back(watched: Place) -> None:
    """Exit status 0, no traceback, the terminal as it was."""
    with running(watched, TOP) as terminal:
        assert terminal.now() != terminal.modes
        terminal.press("q")

        assert terminal.end() == 0
        assert terminal.now() == terminal.modes
        assert CLOSED in terminal.said
        assert "\x1b[?25h" in terminal.said[terminal.said.index("gpt") :]
        assert "Traceback" not in terminal.said
        assert COLOURS.search(terminal.said)


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        *(pytest.param(n, marks=pytest.mark.nightly) for n in (signal.SIGINT, signal.SIGHUP)),
    ],
)
def test_a_signal_ends_it_with_the_terminal_as_it_was(
    watched: Place, number: signal.Signals
) -> None:
    """The exit status is the one that shells know."""
    with running(watched, TOP) as terminal:
        terminal.process.send_signal(number)

        assert terminal.end() == 128 + number
        assert terminal.now() == terminal.modes
        assert CLOSED in terminal.said
        assert "Traceback" not in terminal.said


def test_a_terminal_that_is_gone_ends_it(watched: Place) -> None:
    """Nobody is there to press q."""
    with running(watched, TOP) as terminal:
        terminal.hang_up()

        terminal.process.wait(SECONDS)


def test_a_new_size_is_painted(watched: Place) -> None:
    """As wide as the terminal is by then."""
    with running(watched, TOP, columns=100) as terminal:
        terminal.resize(64, 20)
        terminal.until("─" * 64)
        terminal.resize(30, 3)
        terminal.press("q")
        assert terminal.end() == 0


def test_without_rich_a_terminal_gets_one_table(watched: Place) -> None:
    """And a line that says what a table that follows needs."""
    with on_a_terminal([sys.executable, "-c", NO_RICH], watched.environment) as terminal:
        assert terminal.end() == 0

    assert "the live table needs Rich: pip install 'ampwatch[ui]'" in terminal.said
    assert "2 ranks of 1 run: " in terminal.said
    assert "\x1b" not in terminal.said


@pytest.mark.parametrize("arguments", [(), ("--once",)])
def test_a_terminal_that_shows_ascii_alone_gets_ascii_alone(
    watched: Place, arguments: tuple[str, ...]
) -> None:
    """Rules and courses as well."""
    command = ["env", "PYTHONIOENCODING=ascii", *TOP, *arguments]
    with on_a_terminal(command, watched.environment) as terminal:
        terminal.until("loss")
        terminal.press("q")
        terminal.end()

    assert terminal.said.isascii()
    assert arguments or "-" * 100 in terminal.said


def test_keys_open_a_rank_and_close_it(watched: Place) -> None:
    """Enter, Escape, and the arrows between them."""
    with running(watched, TOP) as terminal:
        terminal.press("\x1b[B\r")
        terminal.until("No finding was made.")
        terminal.press("\x1b")
        terminal.until("filter")
        terminal.press("q")
        assert terminal.end() == 0


@pytest.mark.nightly
def test_it_can_be_stopped_and_continued(watched: Place) -> None:
    """The shell gets its terminal back meanwhile; afterwards the screen is painted anew."""
    with running(watched, [sys.executable, "-c", SHELL, *TOP]) as terminal:
        terminal.press("\x1a")
        said = terminal.until("stopped: True, echo: True")
        assert CLOSED in said

        terminal.until("gpt")
        terminal.press("q")
        assert terminal.end() == 0
        assert terminal.now() == terminal.modes


@pytest.mark.nightly
def test_a_daemon_that_goes_away_is_said(place: Place) -> None:
    """What was known stays on the screen; another daemon is found by itself."""
    with ExitStack() as undo:
        undo.enter_context(place.writer("gpt"))
        with place.daemon() as daemon:
            eventually(lambda: _ranks(daemon), "the run")
            terminal = undo.enter_context(running(place, TOP))
        terminal.until("not current: no daemon shows your runs")
        undo.enter_context(place.daemon())
        eventually(lambda: "not current" not in terminal.until("q quit"), "the new daemon")
        terminal.press("q")

        assert terminal.end() == 0


def test_no_colour_is_shown_to_who_wants_none(watched: Place) -> None:
    """NO_COLOR; what is chosen is turned round anyway."""
    with on_a_terminal(TOP, watched.environment | {"NO_COLOR": "1"}) as terminal:
        terminal.until("gpt")
        terminal.press("q")
        terminal.end()

    assert "\x1b[7m" in terminal.said
    assert not COLOURS.search(terminal.said)


def test_a_pipe_gets_one_plain_table(watched: Place) -> None:
    """Nothing but lines; --once is the same on a terminal."""
    said = run(watched)
    with on_a_terminal([*TOP, "--once"], watched.environment) as terminal:
        assert terminal.end() == 0

    assert (said.returncode, said.stderr) == (0, "")
    lines = said.stdout.splitlines()
    assert lines[0].startswith("2 ranks of 1 run: ")
    assert sorted(line.split()[2] for line in lines[2:4]) == ["0", "1"]
    assert "\x1b" not in said.stdout + terminal.said
    assert "2 ranks of 1 run: " in terminal.said


def test_without_a_daemon_it_says_who_starts_one(place: Place) -> None:
    """One line, exit status 1."""
    said = run(place)

    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr.startswith("ampwatch: no daemon shows your runs (none in ")
    assert said.stderr.count("\n") == 1


def test_the_plain_table_has_the_story_of_each_run_in_trouble() -> None:
    """The run's own four lines, whole; nothing of runs that are well."""
    said = once(made_up_state(), "", 80)

    assert "\ngpt: failing, since step 1, " in said
    assert (
        "\nwhat      optimizer 0: every step is skipped and the scale falls towards zero\n" in said
    )
    assert "\nbert: failed at step 1, " in said
    runs = [replace(run, level=Level.HEALTHY) for run in made_up_state().runs]
    assert "what " not in once(replace(made_up_state(), runs=runs), "", 80)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_line_of_the_plain_table_is_wider_than_asked(width: int) -> None:
    """Of 256 ranks each has its line."""
    lines = once(many_ranks(256, broken=200), "", width).splitlines()

    assert max(map(len, lines)) <= width
    assert sum(line.startswith(("healthy ", "failing ")) for line in lines) == 256
    first = next(line for line in lines if line.startswith(("healthy ", "failing ")))
    assert first.split()[:3] == ["failing", "gpt", "200"]


def test_without_a_run_it_says_how_one_comes() -> None:
    """Not an empty table; and which command knows of those that have ended."""
    said = once(unpacked(list_of()), "; as ever", 80)

    assert said.startswith("no run; a training that calls ampwatch.monitor()")
    assert said.endswith("; as ever")


def test_a_run_that_ended_a_while_ago_is_in_a_report(
    own_places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its daemon shows none; what the table cannot say it leaves to the command that can."""
    reports = own_places / "state" / "ampwatch" / "runs"
    said = []
    with serving(own_places / "runtime", {"/ranks": (200, list_of())}, wants_token=False):
        for _ in range(2):
            assert main(["top", "--once"]) == 0
            said.append("`ampwatch report` says what went wrong" in capsys.readouterr().out)
            files.write(reports, Box(identity(), RunState.FAILED, "it broke"), most=4)

    assert said == [False, True]
