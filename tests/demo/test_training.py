"""The training of the demo."""

from __future__ import annotations

import linecache
import math

import pytest
import torch

import ampwatch
from ampwatch.demo.corpus import source_text
from ampwatch.demo.course import DemoCourse, Limit
from ampwatch.demo.model import CPU_SIZE, Size
from ampwatch.demo.training import FAULTY_MODULE, train
from tests.demo.recorder import Recorder

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
    course = DemoCourse(Limit(steps=steps), Limit(steps=fault_after))
    watch = train(TEXT, size=size, device=CPU, course=course, display=display, serve=False)
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
