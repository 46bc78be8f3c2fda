"""A real training that ends by an exception, and the report that it leaves.

One that is killed: tests/promises/test_it_is_readable_after_a_kill.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.wire.blackbox import Box, files
from ampwatch.wire.records import RunState

if TYPE_CHECKING:
    from pathlib import Path

    from tests.workshop.nursery import Nursery

TRAINING = """
import torch
import ampwatch
from ampwatch.training import outlet
from ampwatch.training.launcher import DaemonStatus
from ampwatch.numerics.units.ops import HALF_DTYPES
from ampwatch.training.model import machine
from tests.trainings import build

machine.cpu_dtypes = lambda _=None: HALF_DTYPES  # findings must not depend on the machine
outlet.ensure_daemon = lambda _: DaemonStatus("", "unavailable", "")  # nobody is there to help
torch.set_num_threads(1)
run = build("fp16-foreach")
watch = ampwatch.monitor(run.models, run.scaler, run="doomed")
run.loop()
def the_end():
    raise ValueError("the user's own")
the_end()
"""


def on_disk(own_places: Path) -> list[Box]:
    runs = own_places / "state" / "ampwatch" / "runs"
    return [box for path in files.paths(runs) for box in files.read(path)]


def test_by_an_exception(nursery: Nursery, own_places: Path) -> None:
    """It reaches the user unchanged; the report has it beside the finding."""
    ended = nursery.start(TRAINING)

    assert ended.wait() == 1
    assert ended.stderr.endswith("ValueError: the user's own\n")
    (box,) = on_disk(own_places)
    assert (box.state, box.reason) == (RunState.FAILED, "ValueError: the user's own")
    assert "in the_end" in box.traceback
    assert [f.kind for f in box.findings] == ["scale_collapse"]
    assert box.settings["level"] == "standard"
    assert box.facts["autocast_dtype"] == "float16"
    assert len(box.steps) == 12
    assert any(r.histogram.numel for r in box.ranges)
    assert box.sampling is not None
