"""Progress on a terminal, in a log, with Rich and without."""

from __future__ import annotations

import io
import logging
from typing import TYPE_CHECKING

import torch

from ampwatch import LastStep
from ampwatch.demo.course import Moment
from ampwatch.demo.display import Status, open_display
from ampwatch.demo.rich_display import RichDisplay
from ampwatch.demo.training import Meter
from tests.demo.recorder import Recorder

if TYPE_CHECKING:
    import pytest

STATUS = Status("healthy", 0.25, 12, 2.5, 65536.0, 1, 0.1)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_status_is_one_line_with_all_that_matters() -> None:
    """Loss, scale, skipped steps, time of a step."""
    assert str(STATUS) == "step 12  loss 2.50  scale 65536  skipped 1  100 ms/step"


def test_a_terminal_with_rich_gets_its_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text that looks like markup is printed as it is."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()

    with open_display(stream) as display:
        display.show(STATUS)
        display.say("[red]hello")

    assert isinstance(display, RichDisplay)
    assert str(STATUS) in stream.getvalue()
    assert "[red]hello" in stream.getvalue()


def test_what_ampwatch_warns_of_is_said_on_the_display() -> None:
    """Warnings go there as long as it is open, and in lines that fit."""
    stream = io.StringIO()
    logger = logging.getLogger("ampwatch")

    with open_display(stream):
        logger.warning("%s", "word " * 40)
        logger.info("not this")
    logger.warning("nor this")

    assert "ampwatch: word word" in stream.getvalue()
    assert max(map(len, stream.getvalue().splitlines())) <= 92
    assert "this" not in stream.getvalue()


def test_the_meter_counts_skips_and_the_time_of_a_step() -> None:
    """It shows at once, at a change of phase, and else as often as the display likes."""
    display = Recorder()
    display.every_seconds = 5.0
    times = iter([0.0, 1.0, 2.0, 7.0, 8.0])
    meter = Meter(display, lambda: next(times))

    for step, (skipped, faulty) in enumerate(
        [(False, False), (True, False), (True, False), (False, True)]
    ):
        meter.update(
            Moment(step, faulty, 0.5), torch.tensor(float(step)), LastStep(step, skipped, 8.0)
        )

    assert display.shown == [
        Status("healthy", 0.5, 0, 0.0, 8.0, 0, 1.0),
        Status("healthy", 0.5, 2, 2.0, 8.0, 2, 3.0),
        Status("faulty", 0.5, 3, 3.0, 8.0, 2, 1.0),
    ]
