"""Tests in this folder need a CUDA device; without one they are skipped, in words.

A module that is tested without a device as well says ``NEEDS_NO_DEVICE``.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent

if torch.version.cuda is not None:
    # A kernel that is used for the first time is loaded then, and loading may wait for a device
    # that is busy: tests in which the device sleeps would fail. Read when CUDA is first used.
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here, and skip it where there is no device."""
    skip = pytest.mark.skip(reason="there is no CUDA device on this machine")
    for item in items:
        if HERE in item.path.parents and not getattr(item.module, "NEEDS_NO_DEVICE", False):
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(skip)


@pytest.fixture(scope="session", autouse=True)
def loaded() -> None:
    """Load what lets the device sleep, for it is to sleep at once."""
    if torch.cuda.is_available():
        torch.cuda._sleep(1)
        torch.cuda.synchronize()
