"""The played device becomes a device of PyTorch in processes of its own, which ``PLAYED`` marks."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

PLAYED = "PLAYED_DEVICE"
"""Environment variable of a process in which the device is played: there, and only there, the
scenarios are tests. One of them alone: PLAYED_DEVICE=1 pytest tests/played/scenarios -k name"""

IS_PLAYED = bool(os.environ.get(PLAYED))
collect_ignore = ["test_scenarios.py"] if IS_PLAYED else ["scenarios"]

if IS_PLAYED:
    from tests.played import module
    from tests.played.machine import Machine, machine

    # Before the first backward of the process: autograd starts its threads with that. And before
    # ampwatch.training is loaded, which looks once whether there is an accelerator at all.
    module.register()
    from tests.played import kernel

    kernel.register()

    @pytest.fixture(autouse=True)
    def device() -> Iterator[Machine]:
        """The devices, at rest; at the end nothing may have been punished that was not expected."""
        machine.reset()
        yield machine
        machine.is_hanging = False
        machine.finish()
        assert machine.faults == []
