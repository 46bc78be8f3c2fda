"""The address of the page is shown once, where a person sees it; ranks that are known late."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import distributed, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

import ampwatch
from ampwatch.training import announcement
from ampwatch.training.announcement import announce

WORDS = "watching run gpt: http://127.0.0.1:10917/#run=gpt"


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Make of this process one that has announced nothing, and has set up no logging."""
    root, ours = logging.getLogger(), logging.getLogger("ampwatch")
    levels = root.level, ours.level

    def strip() -> None:  # within the test: pytest adds its handlers for that
        monkeypatch.setattr(announcement, "_announced", set())
        monkeypatch.setattr(root, "handlers", [])
        monkeypatch.setattr(ours, "handlers", [])
        root.setLevel(logging.WARNING)
        ours.setLevel(logging.NOTSET)

    yield strip
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (None, f"ampwatch: {WORDS}\n"),
        (logging.WARNING, f"ampwatch: {WORDS}\n"),
        (logging.INFO, f"INFO:ampwatch:{WORDS}\n"),
        (logging.DEBUG, f"INFO:ampwatch:{WORDS}\n"),
    ],
)
def test_it_is_on_stderr_however_logging_is_set_up(
    level: int | None,
    expected: str,
    capsys: pytest.CaptureFixture[str],
    bare: Callable[[], None],
) -> None:
    """Once, and again in the cell of a notebook that is run again not at all."""
    bare()
    if level is not None:
        logging.basicConfig(level=level, stream=sys.stderr)
    announce(WORDS)
    announce(WORDS)

    assert capsys.readouterr() == ("", expected)


def test_of_one_topic_the_first_words_are_the_only_ones(
    capsys: pytest.CaptureFixture[str], bare: Callable[[], None]
) -> None:
    """The cell of a notebook begins its run anew, and the address says when."""
    bare()
    announce(f"{WORDS}&started=1", WORDS)
    announce(f"{WORDS}&started=2", WORDS)

    assert capsys.readouterr().err == f"ampwatch: {WORDS}&started=1\n"


@pytest.mark.parametrize("handler", [logging.NullHandler(), logging.Handler(logging.WARNING)])
def test_a_handler_that_shows_nothing_is_none(
    handler: logging.Handler, capsys: pytest.CaptureFixture[str], bare: Callable[[], None]
) -> None:
    """The level of a handler counts as well as that of a logger."""
    bare()
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.INFO)
    announce(WORDS)

    assert capsys.readouterr().err == f"ampwatch: {WORDS}\n"


def test_who_wants_less_of_ampwatch_gets_none(
    capsys: pytest.CaptureFixture[str], bare: Callable[[], None]
) -> None:
    """By the level of its own logger."""
    bare()
    logging.getLogger("ampwatch").setLevel(logging.WARNING)
    announce(WORDS)

    assert capsys.readouterr() == ("", "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


SECRET = "watching run gpt: http://127.0.0.1:10917/?token=abc#run=gpt"


def test_what_is_for_one_person_is_said_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    bare: Callable[[], None],
) -> None:
    """A file, a pipe to one and the output of a notebook are handed on."""
    bare()
    announce(WORDS, "file", on_terminal=SECRET)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    announce(WORDS, "terminal", on_terminal=SECRET)

    assert capsys.readouterr().err == f"ampwatch: {WORDS}\n"
    assert terminal.getvalue() == f"ampwatch: {SECRET}\n"


def test_what_is_for_one_person_is_in_no_log(
    monkeypatch: pytest.MonkeyPatch, bare: Callable[[], None]
) -> None:
    """Even if it is shown on a terminal: a program may write it elsewhere as well."""
    bare()
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    logging.basicConfig(level=logging.INFO, stream=terminal)
    announce(WORDS, on_terminal=SECRET)

    assert terminal.getvalue() == f"INFO:ampwatch:{WORDS}\n"


def test_a_closed_stderr_is_no_error(
    monkeypatch: pytest.MonkeyPatch, bare: Callable[[], None]
) -> None:
    """A training goes on without one."""
    bare()
    monkeypatch.setattr(sys, "stderr", None)
    announce(WORDS)


@pytest.fixture(autouse=True)
def group_ends() -> Iterator[None]:
    """End the group that a test has begun."""
    yield
    if distributed.is_initialized():
        distributed.destroy_process_group()


def begin_group(world_size: int) -> None:
    """Begin a group whose collectives do nothing, of which this is the second rank or the only one."""
    rank = world_size // 2
    distributed.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())


def train(watch: ampwatch.Monitor, model: nn.Module, steps: int = 3) -> None:
    """Train some steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was said of ranks."""
    return [text for text in caplog.messages if "init_process_group" in text]


def test_a_group_that_begins_later_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """With the call to move, and what goes unseen."""
    model = nn.Linear(8, 4)
    watch = ampwatch.monitor(model, level="light", serve=False)
    begin_group(2)
    train(watch, model)

    (sentence,) = said(caplog)
    assert sentence.startswith("this is rank 1 of 2")
    assert "call monitor() after init_process_group()" in sentence


@pytest.mark.parametrize("world_size", [1, 2])
def test_nothing_is_said_where_the_ranks_were_known(
    caplog: pytest.LogCaptureFixture, world_size: int
) -> None:
    """The group is there first, as in all examples of PyTorch."""
    begin_group(world_size)
    model = nn.Linear(8, 4)
    train(ampwatch.monitor(model, level="light", serve=False), model)

    assert said(caplog) == []


def test_nothing_is_said_where_the_launcher_has_said_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By variables of the environment, as torchrun does."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    model = nn.Linear(8, 4)
    watch = ampwatch.monitor(model, level="light", serve=False)
    begin_group(2)
    train(watch, model)

    assert said(caplog) == []
