"""Tests of what a notebook shows: one truth with the headline, data as text, one live card a monitor."""

from __future__ import annotations

import math
import re
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest
import torch

import ampwatch
from ampwatch.report import notebook
from ampwatch.report.headline import headline
from ampwatch.report.judged_boxes import judge_boxes
from ampwatch.report.notebook import Live, bundle_of, finding_card
from ampwatch.report.words import plain
from ampwatch.wire.blackbox import Box
from ampwatch.wire.records import Finding
from tests.workshop.clocks import Clock
from tests.workshop.records import finding, identity, skipped_step, step

if TYPE_CHECKING:
    from collections.abc import Iterator


def box_of(*findings: Finding, **changes: Any) -> Box:
    steps = [step(0), skipped_step(1, 32768.0), step(2, loss_scale=32768.0, loss=math.nan)]
    box = Box(identity(world_size=1), written_ns=steps[-1].time_ns, steps=steps)
    box.findings = list(findings)
    for name, value in changes.items():
        setattr(box, name, value)
    return box


def words_of(markup: str) -> str:
    return " ".join(ET.fromstring(markup).itertext())


def test_a_card_and_its_text_say_what_the_headline_says() -> None:
    """Whatever it says: nothing is judged a second time."""
    box = box_of(finding().finding)
    told = headline(judge_boxes([box]))

    bundle = bundle_of([box])

    shown = words_of(bundle["text/html"])
    for line in told.lines[1:]:
        assert line in shown
    assert told.state[1:] in shown
    assert re.sub(r"\s+", " ", plain(told.cause)) in re.sub(r"\s+", " ", bundle["text/plain"])


@pytest.mark.parametrize("steps", [[], [step(0)], [step(0, num_losses=0, loss_scale=math.nan)] * 2])
def test_without_a_course_there_is_no_picture(steps: list[Any]) -> None:
    """Before the first steps, and where neither a scale nor a loss is known."""
    assert "<svg" not in bundle_of([box_of(steps=steps)])["text/html"]


@pytest.mark.parametrize("loss", [1e308, -1e308, math.inf, 0.0, 5e-324])
def test_any_loss_can_be_drawn(loss: float) -> None:
    """Coordinates stay numbers."""
    steps = [step(n, loss=value) for n, value in enumerate([1.0, loss, -loss])]

    html = bundle_of([box_of(steps=steps)])["text/html"]

    for points in re.findall(r'points="([^"]*)"', html):
        assert all(math.isfinite(float(number)) for number in re.split("[ ,]", points) if number)


def test_data_is_never_markup() -> None:
    """Names of modules and texts of exceptions can hold anything."""
    evil = '<script>alert("x")</script>&<img src=x onerror=y>'
    made = Finding(
        kind=evil,
        severity=finding().finding.severity,
        where=evil,
        summary=evil,
        kind_advice=evil,
        op=evil,
    )

    for html in (finding_card(made), bundle_of([box_of(made)])["text/html"]):
        tags = {element.tag for element in ET.fromstring(html).iter()}
        assert not tags & {"script", "img"}
        assert "<script" not in html


def test_a_finding_is_a_card_of_its_own() -> None:
    """With what happened, where, since when and what to do."""
    made = finding().finding

    shown = words_of(finding_card(made))

    assert made.kind in shown
    assert made.summary in shown
    assert f"step {made.first_step}" in shown


class Handle:
    def __init__(self, bundle: dict[str, str]) -> None:
        self.drawn = [bundle]

    def update(self, bundle: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.drawn.append(bundle)


class Shell:
    """What is used of IPython's shell in a kernel."""

    def __init__(self) -> None:
        self.kernel = object()
        self.handles: list[Handle] = []
        self.cards: dict[type, Any] = {}
        self.display_formatter = SimpleNamespace(
            formatters={"text/html": SimpleNamespace(for_type=self.cards.__setitem__)}
        )

    def display(self, bundle: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        assert raw
        assert display_id
        self.handles.append(Handle(bundle))
        return self.handles[-1]


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    made = Shell()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: made))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=made.display))  # type: ignore[arg-type]
    return made


def test_a_live_card_is_drawn_at_most_so_often(shell: Shell) -> None:
    """Not at every iteration: a browser could not follow, and a training would wait."""
    clock = Clock()
    live = Live(box_of, shell.display, 2.0, clock)

    for _ in range(5):
        clock.now += 0.9
        live.refresh()

    assert len(shell.handles) == 1
    assert len(shell.handles[0].drawn) == 2


def test_the_interval_has_a_floor(shell: Shell) -> None:
    """Zero seconds would draw at every iteration."""
    clock = Clock()
    live = Live(box_of, shell.display, 0.0, clock)

    for _ in range(10):
        clock.now += 0.1
        live.refresh()

    assert len(shell.handles[0].drawn) <= 3


class Training:
    """A few steps of a real training under autocast."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

    def steps(self, count: int) -> None:
        for _ in range(count):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = self.model(torch.ones(2, 4)).float().square().mean()
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()


def test_live_again_goes_on_in_the_newest_cell_alone(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is drawn twice, and the last picture says how the run has ended."""
    monkeypatch.setattr(notebook, "MIN_SECONDS", 0.0)
    training = Training()
    with ampwatch.monitor(training.model, training.scaler, serve=False) as watch:
        watch.live(0.0)
        watch.live(0.0)
        training.steps(2)

    first, second = shell.handles
    assert len(first.drawn) == 1
    assert len(second.drawn) == 4
    assert "finished" in second.drawn[-1]["text/plain"]


def test_a_display_that_fails_costs_the_picture_not_the_training(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A kernel whose client has gone, for example: said once, and training goes on."""
    monkeypatch.setattr(notebook, "MIN_SECONDS", 0.0)
    training = Training()
    tries = []

    def refuse(self: Handle, bundle: dict[str, str], *, raw: bool) -> None:
        tries.append(bundle)
        raise OSError

    monkeypatch.setattr(Handle, "update", refuse)
    with ampwatch.monitor(training.model, training.scaler, serve=False) as watch:
        watch.live(0.0)
        training.steps(3)
        assert watch.last_step.step == 2

    assert len(tries) == 1
    assert caplog.text.count("notebook") >= 1


@pytest.mark.parametrize("kernel", [None, "absent"])
def test_outside_of_a_notebook_nothing_is_shown(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, kernel: str | None
) -> None:
    """A terminal would print the card again and again; a script has nobody to show it to."""
    shell.kernel = None
    if kernel == "absent":
        monkeypatch.delitem(sys.modules, "IPython")
    training = Training()
    with ampwatch.monitor(training.model, training.scaler, serve=False) as watch:
        watch.live()
        training.steps(1)

    assert not shell.handles


def test_a_monitor_and_its_findings_are_displayed_by_ipython(shell: Shell) -> None:
    """As the last line of a cell, open or closed."""
    training = Training()
    with ampwatch.monitor(training.model, training.scaler, run="gpt", serve=False) as watch:
        training.steps(2)
        bundle = watch._repr_mimebundle_(include=None, exclude=None)
        assert not [f for f in watch.findings if not f.kind]

    assert "gpt" in bundle["text/plain"]
    assert "<svg" in bundle["text/html"]
    assert shell.cards == {Finding: finding_card}
    assert "finished" in watch._repr_mimebundle_()["text/plain"]
