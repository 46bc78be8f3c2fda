"""A sensor is a class whose methods are named after events: what follows once one is added.

Its file stands below, and one row in `ampwatch/training/families.py` names it; both are added to a
copy of the package.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import ampwatch
from tests.workshop.alone import python

# It runs a copy of the package in processes of its own.
pytestmark = pytest.mark.nightly

PACKAGE = Path(ampwatch.__file__).parent
SENSOR = '''
"""How often gradients were set to zero."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.training.hooks.sensor import Sensor

if TYPE_CHECKING:
    from ampwatch.training.hooks.events import IterationClosed, Zeroed
    from ampwatch.training.iteration.context import Context

totals = []


class ZeroedSensor(Sensor):
    """Counts calls of ``zero_grad``; a test breaks it at the fifth iteration."""

    name = "zeroed"

    def __init__(self, context: Context) -> None:
        self._iteration = context.iteration
        self._count = 0

    def zeroed(self, event: Zeroed) -> None:
        self._count += 1

    def iteration_closed(self, event: IterationClosed) -> None:
        totals.append(self._count)
        if self._iteration.step == 5:
            raise RuntimeError("planted")
'''
IMPORT = "from ampwatch.training.sensors.scaler.missed_steps import MissedSteps, RootLosses, UnscaledHalf\n"
LINE = "    Row(AutocastSensor, _always),\n"
TRAINING = """
import json
import logging
import torch

import ampwatch
from tools.site import patched
from ampwatch.training.sensors.scaler import zeroed
from ampwatch.wire.blackbox.document import from_json

logging.disable(logging.WARNING)
torch.set_num_threads(1)


def train(watches):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    watch = ampwatch.monitor(model, scaler, level="light", serve=False) if watches else None
    for _ in range(8):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(2, 4)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    if watch is not None:
        (box,) = from_json(watch.report("json"), "report")
        said = watch.report()
        watch.close()
        return model.weight.tolist(), [[f.sensor, f.step] for f in box.failures], said
    return model.weight.tolist()


bare, before = train(False), torch.optim.Optimizer.zero_grad
weights, failures, said = train(True)
(row,) = [line for line in patched.markdown().splitlines() if "Optimizer.zero_grad, " in line]
print(json.dumps({
    "same": weights == bare,
    "totals": zeroed.totals,
    "failures": failures,
    "report": said,
    "row": row,
    "restored": torch.optim.Optimizer.zero_grad is before,
}))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a training says in a copy of the package that has one sensor more."""
    root = tmp_path_factory.mktemp("one-more")
    copy = root / "ampwatch"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "static"))
    shutil.copytree(PACKAGE.parent / "tools", root / "tools")
    (copy / "training/sensors/scaler/zeroed.py").write_text(SENSOR, encoding="utf-8")
    table = copy / "training/families.py"
    text = table.read_text(encoding="utf-8")
    assert (text.count(IMPORT), text.count(LINE)) == (1, 1)
    more = "from ampwatch.training.sensors.scaler.zeroed import ZeroedSensor\n"
    text = text.replace(IMPORT, IMPORT + more)
    text = text.replace(LINE, LINE + "    Row(ZeroedSensor, _always),\n")
    table.write_text(text, encoding="utf-8")
    said: dict[str, Any] = json.loads(python("-c", TRAINING, place=root).stdout)
    return said


def test_it_is_told_of_the_events_that_its_methods_are_named_after(answers: dict[str, Any]) -> None:
    """Of each from the first on, in the order in which they happen."""
    assert answers["totals"] == [1, 2, 3, 4, 5, 6]


def test_training_is_bit_for_bit_the_same_with_it(answers: dict[str, Any]) -> None:
    """Also after it has failed."""
    assert answers["same"]


def test_its_failure_is_its_own_and_is_reported_by_its_name(answers: dict[str, Any]) -> None:
    """The record that becomes the label, and the sentence of the report."""
    assert answers["failures"] == [["zeroed", 5]]
    assert "sensor zeroed failed and was switched off" in answers["report"]


def test_what_it_needs_is_placed_listed_and_taken_off_without_a_line_of_its_own(
    answers: dict[str, Any],
) -> None:
    """The page of what is patched names it beside the place."""
    assert "zeroed" in answers["row"]
    assert answers["restored"]
