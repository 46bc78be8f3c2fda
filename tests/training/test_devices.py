"""Questions about devices, on a machine that has none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import ampwatch
from ampwatch.training import devices, session
from ampwatch.training.hooks import compiling, places, taps
from ampwatch.training.hooks.compiling import is_traced
from ampwatch.training.sensors.births import following
from ampwatch.training.sensors.ops import census
from ampwatch.training.transfer import losses, measuring


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An accelerator that is in use, and captures when it is told to."""
    played = SimpleNamespace(captures=False, is_used=True, asked=0)

    def is_capturing() -> bool:
        played.asked += 1
        return bool(played.captures)

    module = SimpleNamespace(
        is_initialized=lambda: played.is_used, is_current_stream_capturing=is_capturing
    )
    monkeypatch.setattr(devices, "_capturing", lambda: (module,))
    # Where PyTorch was built for the CPU alone, nobody asks.
    for user in (devices, taps, places, compiling, census, following, measuring):
        monkeypatch.setattr(user, "is_capturing", devices._is_capturing)
    return played


def test_without_an_accelerator_nothing_is_captured() -> None:
    """This PyTorch may be built for one all the same."""
    assert not devices.is_capturing()


def test_a_backend_that_is_not_in_use_is_not_asked(gpu: Any) -> None:
    """The question would start it up, and a fork after that would fail."""
    gpu.is_used, gpu.captures = False, True

    assert not devices.is_capturing()
    assert gpu.asked == 0


def test_what_is_captured_counts_as_written_down(gpu: Any) -> None:
    """As what is traced or compiled does."""
    assert not is_traced()
    gpu.captures = True

    assert is_traced()
    assert not devices.Link().may_ask((torch.device("cuda", 0),))
    assert devices.Link().may_ask(())


def test_steps_that_are_captured_are_no_iterations(gpu: Any) -> None:
    """Nothing is done in a capture; what follows it counts again."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def step() -> None:
        scaler.scale(model(torch.ones(2, 4)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    with ampwatch.monitor(model, scaler, level="deep", serve=False) as watch:
        for captures in (False, True, True, False):
            gpu.captures = captures
            step()
        gpu.captures = False
        last = watch.last_step

    assert last.step == 1
    assert "switched off" not in watch.report()


@pytest.mark.parametrize(
    ("device_type", "words"),
    [
        ("cpu", ""),
        ("cuda", ""),
        ("xpu", "kernels on xpu are not recorded"),
        ("mps", "values on mps are not read"),
        ("hpu", "values on hpu are not read"),
    ],
)
def test_what_a_backend_lacks_is_said(device_type: str, words: str) -> None:
    """By its type alone."""
    said = devices.limitation(device_type)

    assert said.startswith(words)
    assert bool(said) is bool(words)


def test_a_model_on_a_backend_without_events_is_watched_for_its_steps_alone() -> None:
    """Nothing is measured, and the report says why."""
    model = nn.Linear(2, 2)
    parameters = list(model.parameters())
    with pytest.MonkeyPatch.context() as patch:
        # All three are loaded by now: what was imported meanwhile would keep the lambda for good.
        for user in (devices, session, losses):
            patch.setattr(user, "is_readable", lambda _type: False)
        with ampwatch.monitor(model, serve=False) as watch:
            optimizer = torch.optim.SGD(parameters, lr=0.1)
            for _ in range(3):
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
        report = " ".join(watch.report().split())

    assert watch.last_step.step == 2
    assert "values on cpu are not read" in report


def test_autocast_keys_are_those_of_the_dispatcher() -> None:
    """A backend from outside has that of PrivateUse1, whatever its name."""
    keys = [str(devices.autocast_key(name)) for name in ("cpu", "cuda", "xpu", "mine")]

    assert [key.rpartition(".")[2] for key in keys] == [
        "AutocastCPU",
        "AutocastCUDA",
        "AutocastXPU",
        "AutocastPrivateUse1",
    ]


def test_the_classes_of_graphs_can_be_listened_to() -> None:
    """Each has a beginning."""
    kinds = devices.graph_classes()

    assert torch.cuda.CUDAGraph in kinds
    assert all(hasattr(kind, "capture_begin") for kind in kinds)
