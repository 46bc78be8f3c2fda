"""A detector, a metric and a sensor of the laboratory are a file and a line, or a row: what follows once they are added.

All three are added to one copy of the package, and one training has them.
"""

from __future__ import annotations

import filecmp
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import ampwatch
from tests.workshop.alone import python

# It runs a copy of the package in a process of its own.
pytestmark = pytest.mark.nightly

PACKAGE = Path(ampwatch.__file__).parent

DETECTOR = '''
"""Says that the third iteration has come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.diagnosis.detector import Detector
from ampwatch.diagnosis.time.kinds import INPUT_BOUND

if TYPE_CHECKING:
    from ampwatch.diagnosis.evidence.iteration import Iteration
    from ampwatch.diagnosis.steps.steps import StepVerdict


class Third(Detector):
    """Says that the third iteration has come."""

    is_at_rest = False

    def detect(self, iteration: Iteration, _verdict: StepVerdict) -> None:
        if iteration.step == 3:
            self._book.report(INPUT_BOUND, "step", 3, summary="the third")
'''

SENSOR = '''
"""How often gradients were set to zero, for the laboratory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.training.hooks.sensor import Sensor

if TYPE_CHECKING:
    from ampwatch.training.hooks.events import Zeroed

steps = []


class ZeroedSensor(Sensor):
    """Counts calls of ``zero_grad``."""

    name = "zeroed"

    def zeroed(self, event: Zeroed) -> None:
        steps.append(len(steps))
'''

ROW = """    Fact(
        "",
        "Twice as many iterations.",
        _of_step(lambda step: 2 * step.step),
        "amp/twice",
    ),
"""

FILES = {
    "diagnosis/time/third.py": DETECTOR,
    "lab/training/zeroed.py": SENSOR,
}

LINES = {
    "diagnosis/detectors.py": (
        ("import StepTimes\n", "from ampwatch.diagnosis.time.third import Third\n"),
        ("    StepTimes,\n", "    Third,\n"),
    ),
    "lab/training/part.py": (
        ("import TapeSensor\n", "from ampwatch.lab.training.zeroed import ZeroedSensor\n"),
        ("(layers, self.budgets,", " ZeroedSensor(),"),
    ),
    "state/facts.py": (("STEPS: tuple[Fact, ...] = (\n", ROW),),
}
"""What is written behind what."""

TRAINING = """
import json
import logging
import sys
import torch

import ampwatch

logging.disable(logging.WARNING)
torch.set_num_threads(1)


def train(lab):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = ampwatch.monitor(model, level="standard", serve=False, lab=lab)
    for _ in range(8):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
    metrics = watch.metrics()
    watch.close()
    return [[f.kind, f.first_step, f.summary] for f in watch.findings], metrics


without = train(False)
before = [name for name in sys.modules if name.startswith("ampwatch.lab.")]
findings, metrics = train(True)
from ampwatch.lab.training import zeroed
print(json.dumps({
    "findings": findings, "metrics": metrics, "zeroed": zeroed.steps,
    "without": without[0], "before": before,
}))
"""


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package that has one more of each."""
    copy = tmp_path_factory.mktemp("one-more") / "ampwatch"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "static"))
    for name, text in FILES.items():
        (copy / name).write_text(text, encoding="utf-8")
    for name, lines in LINES.items():
        text = (copy / name).read_text(encoding="utf-8")
        for behind, line in lines:
            assert text.count(behind) == 1
            text = text.replace(behind, behind + line)
        (copy / name).write_text(text, encoding="utf-8")
    return copy


@pytest.fixture(scope="module")
def answers(copied: Path) -> dict[str, Any]:
    """What two trainings say, of which the second has the laboratory."""
    said: dict[str, Any] = json.loads(python("-c", TRAINING, place=copied.parent).stdout)
    return said


def test_each_takes_the_files_that_contributing_names(copied: Path) -> None:
    """Two for a detector, two for a part of the laboratory, one for a number of what is known already."""
    changed = {
        str(file.relative_to(copied))
        for file in copied.rglob("*.py")
        if not (PACKAGE / file.relative_to(copied)).exists()
        or not filecmp.cmp(file, PACKAGE / file.relative_to(copied), shallow=False)
    }
    assert changed == {*FILES, *LINES}
    assert len(changed) == 2 + 2 + 1


def test_a_detector_is_asked_and_its_finding_is_handed_out(answers: dict[str, Any]) -> None:
    """Once, dated by the iteration that it was found in."""
    assert answers["findings"] == answers["without"] == [["input_bound", 3, "the third"]]


def test_a_number_has_its_key(answers: dict[str, Any]) -> None:
    """``watch.metrics()`` has it beside the others."""
    assert answers["metrics"]["amp/twice"] == 2 * answers["metrics"]["amp/step"] > 0


def test_a_sensor_of_the_laboratory_is_told_of_events_only_there(answers: dict[str, Any]) -> None:
    """Without ``lab=True`` nothing of the laboratory is even imported."""
    assert answers["before"] == []
    assert answers["zeroed"] == list(range(8))
