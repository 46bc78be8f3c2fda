"""What can be told of the tests for devices where there is none: their helpers, and their names.

Most of them run on a CPU as well, with PyTorch's calls for devices played. They show less there, but
a name of ampwatch that has changed fails here, and not first on somebody's GPU.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import ampwatch
from ampwatch.training.kernels import native
from ampwatch.training.kernels.base import Kernel
from ampwatch.training.kernels.eager import EagerKernel
from tests.gpu import test_diagnosis, test_fused, test_on_a_device, test_precision
from tests.gpu.syncs import sync_debug_mode
from tests.gpu.test_precision import precision  # noqa: F401 - a fixture

NEEDS_NO_DEVICE = True

pytestmark = pytest.mark.rotating

MODULES = (test_diagnosis, test_fused, test_on_a_device, test_precision)

ONLY_ON_A_DEVICE = {
    "test_a_captured_step_replays_without_ampwatch_in_its_graph",
    "test_a_float32_matmul_without_tf32_is_never_said_to_be_on_tensor_cores",
    "test_a_matmul_in_half_precision_is_never_said_to_be_on_cuda_cores",
    "test_a_watched_step_with_foreach_waits_as_often_as_without",
    "test_a_window_finds_the_kernels_of_a_training",
    "test_an_update_inside_a_capture_does_not_break_it",
    "test_equal_elements_do_not_overflow_a_counter",
    "test_float32_matmuls_count_as_tf32_where_that_is_allowed",
    "test_gradients_of_a_replayed_graph_are_measured_between_replays",
    "test_memory_stays_flat_over_a_thousand_calls_with_new_addresses",
    "test_pieces_need_not_be_on_the_current_device",
    "test_softmax_runs_in_float32_because_autocast_says_so",
    "test_streams_do_not_see_each_others_tables",
    "test_the_device_says_enough_for_its_peak",
    "test_the_host_is_back_while_the_device_is_still_busy",
    "test_the_longest_piece_is_counted_to_its_end",
    "test_with_a_fused_optimizer_the_verdict_is_unknown_until_the_device_has_got_there",
}
"""Tests of graphs, streams, kernels' names and of a device that is behind; and of much memory."""

for module in MODULES:
    # Not by a name that begins with "test": what it has at the end would be a test once more.
    for name, each in vars(module).items():
        if name.startswith("test_") and name not in ONLY_ON_A_DEVICE:
            globals()[name] = each


class Played:
    """PyTorch's mode: set first, and then warned of, once in a process."""

    def __init__(self) -> None:
        self.mode = "default"
        self._has_warned = False

    def set(self, mode: str) -> None:
        self.mode = mode
        if not self._has_warned:
            self._has_warned = True
            warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=2)


@pytest.fixture
def kernel() -> Kernel:
    return native.load() or EagerKernel()


@pytest.fixture(autouse=True)
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    """A device that is none, and is never behind."""
    for module in (test_diagnosis, test_fused, test_on_a_device):
        monkeypatch.setattr(module, "DEVICE", "cpu")
    monkeypatch.setattr(test_precision, "DEVICE", torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda _cycles: None)
    played = Played()
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", played.set)
    yield played
    assert played.mode == "default"


def test_a_test_that_fails_takes_the_mode_off(played: Played) -> None:
    """Otherwise every test after it would fail as well, wherever it copies to the host."""
    with pytest.raises(ZeroDivisionError), sync_debug_mode("warn"):
        raise ZeroDivisionError
    assert played.mode == "default"


def _chains(path: Path) -> set[str]:
    """Return what a module reads of monitors, as ``_session.cost``."""
    texts = {
        ast.unparse(node)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
    }
    return {text.removeprefix("watch.") for text in texts if text.startswith("watch.")}


def test_what_tests_for_devices_read_of_a_monitor_is_there() -> None:
    """Private names too, also of the tests that do not run here."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ampwatch.monitor(model, optimizer=optimizer, level="deep", serve=False) as watch:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    chains = {
        chain for module in MODULES if module.__file__ for chain in _chains(Path(module.__file__))
    }

    assert "_diagnosis.totals.skipped" in chains
    for chain in {chain for chain in chains if chain.replace(".", "_").isidentifier()}:
        found: object = watch
        for name in chain.split("."):
            assert hasattr(found, name), f"watch.{chain}"
            found = getattr(found, name)
