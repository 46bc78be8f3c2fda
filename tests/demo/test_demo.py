"""The demo: its text and its course, the fault that it has, and what is said on a terminal and in a log."""

from __future__ import annotations

import io
import itertools
import linecache
import logging
import math
from pathlib import Path

import pytest
import torch

import ampwatch
from ampwatch import LastStep
from ampwatch.cli.demo import DESCRIPTION
from ampwatch.demo.corpus import MAX_CHARACTERS, MIN_CHARACTERS, VOCABULARY, Corpus, source_text
from ampwatch.demo.display import RichDisplay, Status, open_display
from ampwatch.demo.model import CPU_SIZE, Size
from ampwatch.demo.schedule import (
    FAULTY_STEPS,
    DemoSchedule,
    Limit,
    Moment,
    moments,
    usual_schedule,
)
from ampwatch.demo.training import FAULTY_MODULE, Meter, train


class Recorder:
    every_seconds = 0.0

    def __init__(self) -> None:
        self.said: list[str] = []
        self.shown: list[Status] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def show(self, status: Status) -> None:
        self.shown.append(status)


TINY = Size(layers=3, heads=2, width=16, context=8, batch=2)
CPU = torch.device("cpu")
TEXT = source_text()[:50_000]


SMALL = Size(layers=6, heads=4, width=64, context=16, batch=2)
"""As deep as the demo's, so that what grows from block to block does, at a tenth of the price."""


def trained(
    steps: int, fault_after: float = math.inf, size: Size = TINY
) -> tuple[Recorder, ampwatch.Monitor]:
    """Train a model, the tiny one where none is given, without a daemon."""
    display = Recorder()
    schedule = DemoSchedule(Limit(steps=steps), Limit(steps=fault_after))
    watch = train(TEXT, size=size, device=CPU, schedule=schedule, display=display, serve=False)
    return display, watch


def text_at(source: str) -> str:
    """Return the line that ``file:line`` names."""
    name, _, line = source.rpartition(":")
    return linecache.getline(name, int(line))


@pytest.mark.rotating
def test_the_fault_collapses_the_scale_and_is_reported() -> None:
    """From the first overflow on every step halves it; the multiplication is named as the cause."""
    display, watch = trained(steps=70, fault_after=30)

    cause, finding = watch.findings
    first = finding.first_step
    scales = [status.loss_scale for status in display.shown]
    assert (cause.kind, cause.where, cause.op) == ("forward_overflow", FAULTY_MODULE, "mul")
    assert cause.root
    assert "* self.branch_scale" in text_at(cause.source)
    assert (finding.kind, finding.root) == ("scale_collapse", False)
    assert finding.caused_by == cause.key
    assert 30 < first < 50
    assert scales[first:] == [scales[first - 1] / 2**n for n in range(1, 71 - first)]
    assert display.shown[-1].skipped - display.shown[first - 1].skipped == 70 - first
    assert "scale_collapse" in watch.report()
    # It is said once.
    assert sum(FAULTY_MODULE in text for text in display.said) == 1


@pytest.mark.nightly
@pytest.mark.parametrize(("size", "steps"), [(CPU_SIZE, 250), (SMALL, 2500)])
def test_nothing_is_wrong_in_the_demo_that_stays_healthy(size: Size, steps: int) -> None:
    """As long as the demo lasts, and ten times as long: the first thing that a newcomer sees.

    What a CPU has not got, and that so small a model saves no memory, may be said.
    """
    _, watch = trained(steps, size=size)

    said = [(f.kind, f.where, f.first_step) for f in watch.findings if f.severity != "info"]
    assert said == []
    assert watch.metrics()["amp/step"] == steps - 1


def played(schedule: DemoSchedule, step_seconds: float, at_most: int = 10_000) -> list[Moment]:
    """Play the course with steps that take so long."""
    clock = itertools.chain([0.0], itertools.count(0.0, step_seconds))
    return list(itertools.islice(moments(schedule, lambda: next(clock)), at_most))


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({}, Limit(seconds=60.0)),
        ({"seconds": 30.0}, Limit(seconds=15.0)),
        ({"seconds": 600.0}, Limit(seconds=60.0)),
        ({"steps": 40}, Limit(steps=20, seconds=60.0)),
        ({"healthy": True}, Limit()),
    ],
)
def test_the_fault_comes_after_a_minute_but_half_way_at_the_latest(
    given: dict[str, float], fault: Limit
) -> None:
    """A short demo breaks as well, a healthy one does not."""
    assert usual_schedule(**given).fault == fault  # type: ignore[arg-type]


def test_a_broken_training_is_shown_for_a_while_and_ends() -> None:
    """Not at the end of its time, which may be far away."""
    schedule = DemoSchedule(Limit(seconds=math.inf), Limit(steps=7))

    steps = played(schedule, 1.0)

    assert [m.faulty for m in steps] == [False] * 7 + [True] * FAULTY_STEPS
    assert [m.step for m in steps] == list(range(7 + FAULTY_STEPS))


def test_what_is_said_of_the_time_is_so() -> None:
    """It ends so many steps after the fault, and two minutes from its beginning at the latest."""
    said = f"{FAULTY_STEPS} steps later, after two minutes at the latest"
    page = Path(__file__).parents[2] / "docs" / "tutorial.md"

    assert said in page.read_text(encoding="utf-8")
    assert f"After {FAULTY_STEPS} skipped steps, or two minutes" in DESCRIPTION
    assert len(played(usual_schedule(), 0.25)) == 240 + FAULTY_STEPS  # 90 s
    assert len(played(usual_schedule(), 1.0)) == 120


def test_a_healthy_training_goes_on_until_its_time_is_over() -> None:
    """120 seconds of steps of half a second."""
    steps = played(usual_schedule(healthy=True), 0.5)

    assert len(steps) == 240
    assert not any(m.faulty for m in steps)


def test_this_machine_has_a_text() -> None:
    """Real Python, in bounds, all of it ASCII, the same each time."""
    text = source_text()

    assert MIN_CHARACTERS <= len(text) <= MAX_CHARACTERS
    assert max(text) < VOCABULARY
    assert b"import " in text
    assert text == source_text()


def test_the_target_of_a_character_is_the_next_one() -> None:
    """In every passage, and every passage is in the text."""
    text = bytes(i * 7 % VOCABULARY for i in range(1000))

    inputs, targets = Corpus(text, CPU, seed=3).batch(batch=5, context=8)

    assert inputs.shape == targets.shape == (5, 8)
    for before, after in zip(inputs.tolist(), targets.tolist(), strict=True):
        assert before[1:] == after[:-1]
        assert bytes([*before, after[-1]]) in text


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
