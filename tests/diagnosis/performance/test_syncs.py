"""Lines at which the host waits in each step are reported once, and as dear as they were measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from ampwatch.diagnosis.book import FindingBook
from ampwatch.diagnosis.detector import Shared
from ampwatch.diagnosis.evidence.ops import HostWaits, WaitingLine, Window
from ampwatch.diagnosis.performance.syncs import WINDOW, SyncsInStep
from ampwatch.wire.records import Finding
from tests.diagnosis.words import Known, complaints_of
from tests.workshop.iterations import TAKEN, iteration

LOSS = WaitingLine("/home/me/train.py:20", "item")
MASK = WaitingLine("/home/me/model.py:7", "index by a mask")
BATCH = WaitingLine("/home/me/train.py:12", "copy to the device")


class Seen(NamedTuple):
    """A training of which each iteration is observed."""

    lines: Callable[[int], dict[WaitingLine, int]]
    steps: int = 40


def found(seen: Seen, *windows: Window) -> list[Finding]:
    """Return what is found; the windows end before the first iteration."""
    book = FindingBook(lambda _news: None)
    syncs = SyncsInStep(Shared(book))
    for window in windows:
        syncs.detect(iteration(window=window), TAKEN)
    for step in range(seen.steps):
        syncs.observe(HostWaits(step, seen.lines(step)))
    assert [why for f in book.findings for why in complaints_of(f, Known())] == []
    return book.findings


SILENT = {
    "never": Seen(lambda _step: {}),
    "each 100 steps": Seen(lambda step: {LOSS: 1} if step % 100 == 0 else {}, 400),
    "each other step": Seen(lambda step: {LOSS: 1} if step % 2 else {}),
    "at the beginning": Seen(lambda step: {LOSS: 1} if step < 10 else {}),
    "in too few steps to know": Seen(lambda _step: {LOSS: 1}, WINDOW - 1),
    "at a line of its own in each step": Seen(
        lambda step: {WaitingLine(f"generated.py:{step}", "item"): 1}
    ),
}


@pytest.mark.parametrize("seen", SILENT.values(), ids=SILENT.keys())
def test_a_line_that_does_not_wait_in_most_steps_is_left_alone(seen: Seen) -> None:
    assert found(seen) == []


@pytest.mark.parametrize(
    ("seen", "waits", "source", "words"),
    [
        (Seen(lambda _step: {LOSS: 1}), 1.0, LOSS.source, "once: item at 'train.py:20' (once)"),
        (
            Seen(lambda _step: {LOSS: 1, MASK: 3}),
            4.0,
            MASK.source,
            "4 times: index by a mask at 'model.py:7' (3 times), item at 'train.py:20' (once)",
        ),
        (
            Seen(lambda step: {LOSS: 1} if step % 8 else {}),
            14 / 16,
            LOSS.source,
            "0.875 times: item at 'train.py:20'",
        ),
        (Seen(lambda _step: {WaitingLine("", "item"): 1}), 1.0, "", "once: item (once)"),
        (
            Seen(lambda _s: {LOSS._replace(source=f"t.py:{n}"): n for n in range(1, 6)}),
            15.0,
            "t.py:5",
            "'t.py:5' (5 times), item at 't.py:4' (4 times), item at 't.py:3' (3 times) and more, at 5 lines in all",
        ),
    ],
)
def test_lines_that_wait_are_named_with_how_often(
    seen: Seen, waits: float, source: str, words: str
) -> None:
    """The one that waits most comes first, and is that of the finding."""
    (finding,) = found(seen)

    assert (finding.kind, finding.where, finding.severity) == ("sync_in_step", "api", "info")
    assert finding.evidence["waits_per_iteration"] == pytest.approx(waits)
    assert finding.source == source
    assert words in finding.summary


def window(waited: float, busy: float) -> Window:
    """Return a window of ten iterations in one second."""
    return Window(0, 10, 1.0, busy, (), waited)


@pytest.mark.parametrize(
    ("lines", "measured", "severity"),
    [
        ({LOSS: 1, MASK: 1}, window(0.4, 0.5), "warning"),
        ({LOSS: 1}, window(0.4, 0.5), "info"),
        ({LOSS: 1, MASK: 1}, window(0.1, 0.5), "info"),
        ({LOSS: 1, MASK: 1}, window(0.9, 0.95), "info"),
    ],
    ids=["dear", "one a step", "short", "a device that is busy"],
)
def test_waits_are_a_warning_where_they_leave_the_device_idle(
    lines: dict[WaitingLine, int], measured: Window, severity: str
) -> None:
    """Several in a step, long ones, and a device that has nothing to do: all three."""
    (finding,) = found(Seen(lambda _step: lines), measured)

    assert finding.severity == severity
    assert finding.evidence["waiting_share"] == pytest.approx(measured.waited_s)
    assert finding.evidence["idle_share"] == pytest.approx(1.0 - measured.busy_s)


def test_a_wait_that_is_mended_is_not_counted_any_more() -> None:
    """Once most of the iterations that are looked at are without."""
    (finding,) = found(Seen(lambda step: {BATCH: 1} if step < 40 else {}, 200))

    assert finding.last_step < 40 + WINDOW / 2
