"""What may be handed to ``monitor``, and what the user is told otherwise."""

from __future__ import annotations

import logging
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import ampwatch
from ampwatch.training.targets import check_targets


def _sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_one_or_several_of_each_are_accepted() -> None:
    """A module, a list or a tuple; a ModuleList is one module."""
    one, several = nn.Linear(1, 1), [nn.Linear(1, 1), nn.Linear(1, 1)]

    assert check_targets(one, None, _sgd(one)).models == (one,)
    assert check_targets(several, None, None).models == tuple(several)
    assert len(check_targets(nn.ModuleList(several), None, None).models) == 1
    assert check_targets(None, torch.amp.GradScaler("cpu"), None).models == ()


@pytest.mark.parametrize(
    ("model", "scaler", "optimizer", "message"),
    [
        ("gpt", None, None, r"`model`: expected a torch\.nn\.Module.*got builtins\.str"),
        ([], None, None, r"`model`: .*got an empty list"),
        ([nn.Linear(1, 1), 3], None, None, r"`model`: .*got builtins\.int"),
        (torch.amp.GradScaler("cpu"), None, None, r"the order is ampwatch\.monitor\(model, scaler"),
        (
            nn.Linear(1, 1),
            object(),
            None,
            r"`scaler`: expected a torch\.amp\.GradScaler.*scaler=None",
        ),
        (
            nn.Linear(1, 1),
            None,
            nn.Linear(1, 1),
            r"`optimizer`: expected a torch\.optim\.Optimizer",
        ),
        (None, None, None, r"at least one of model, scaler and optimizer"),
    ],
)
def test_anything_else_is_refused_in_words(
    model: Any, scaler: Any, optimizer: Any, message: str
) -> None:
    """Expected, given, what to do."""
    with pytest.raises(ampwatch.AttachError, match=message):
        ampwatch.monitor(model, scaler, optimizer=optimizer, serve=False)


def test_a_scaler_whose_private_state_has_changed_is_refused() -> None:
    """A future GradScaler that keeps its state elsewhere is named, with what is missing."""

    class Future(torch.amp.GradScaler):
        @property
        def _growth_tracker(self) -> Any:
            raise AttributeError

        @_growth_tracker.setter
        def _growth_tracker(self, value: Any) -> None: ...

    with pytest.raises(ampwatch.AttachError, match=r"Future of torch .* has no _growth_tracker"):
        ampwatch.monitor(None, Future("cpu"), serve=False)


def test_a_wrapped_optimizer_is_unwrapped() -> None:
    """Wrappers that derive from Optimizer step the one inside."""
    inner = _sgd(nn.Linear(1, 1))

    class Wrapper(torch.optim.Optimizer):
        def __init__(self) -> None:
            self.optimizer = inner

    assert check_targets(None, None, Wrapper()).optimizers == (inner,)


def test_a_model_or_scaler_that_is_watched_already_changes_hands(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A notebook's cell that runs again just works; the older monitor is closed, in words."""
    model, scaler = nn.Linear(1, 1), torch.amp.GradScaler("cpu")
    monitors = [ampwatch.monitor(model, scaler, run="first", serve=False)]
    with caplog.at_level(logging.WARNING):
        monitors.append(ampwatch.monitor(model, run="second", serve=False))
        monitors.append(ampwatch.monitor([nn.Linear(1, 1), model], scaler, serve=False))
    states = ["closed" in repr(m) for m in monitors]
    monitors[-1].close()

    assert states == [True, True, False]
    assert (
        "<ampwatch.Monitor run='first' rank=0 open, step -1 > was watching this Linear"
        in caplog.text
    )
    assert len(caplog.records) == 2


def test_a_scaler_for_a_backend_without_events_is_refused() -> None:
    """Its values could not be read back without waiting."""
    with pytest.raises(ampwatch.AttachError, match=r"one of cpu, cuda, xpu.*, got one for 'mps'"):
        ampwatch.monitor(None, torch.amp.GradScaler("mps"), serve=False)


def test_a_closed_monitor_can_be_read_but_not_used_again() -> None:
    """Findings and report stay; entering it or adding a callback is an error in words."""
    watch = ampwatch.monitor(nn.Linear(1, 1), serve=False)
    watch.close()
    watch.close()

    assert watch.findings == []
    assert "There are no findings" in watch.report()
    with pytest.raises(ampwatch.StateError, match="got one that is closed"):
        watch.on_finding(print)
    with pytest.raises(ampwatch.StateError, match="got one that is closed"), watch:
        pass


class Accelerator:
    """What is read of accelerate's: the real one is in the programs of tests/frameworks."""

    def __init__(self, *prepared: nn.Module, scaler: torch.amp.GradScaler | None = None) -> None:
        self._models = list(prepared)
        self.scaler = scaler


@pytest.fixture
def accelerate(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("accelerate")
    vars(module)["Accelerator"] = Accelerator
    monkeypatch.setitem(sys.modules, "accelerate", module)


@pytest.mark.usefixtures("accelerate")
def test_an_accelerator_stands_for_what_it_has_prepared_and_its_scaler() -> None:
    """Without fp16 it has no scaler; one that is handed in goes first."""
    one, two, scaler = nn.Linear(1, 1), nn.Linear(1, 1), torch.amp.GradScaler("cpu")

    found = check_targets(Accelerator(one, two, scaler=scaler), None, None)
    assert (found.models, found.scaler) == ((one, two), scaler)

    assert check_targets(Accelerator(one), None, None).scaler is None
    other = torch.amp.GradScaler("cpu")
    assert check_targets(Accelerator(one, scaler=scaler), other, None).scaler is other


@pytest.mark.usefixtures("accelerate")
def test_an_accelerator_that_has_prepared_nothing_is_refused_in_words() -> None:
    """The usual slip: the line stands before prepare()."""
    with pytest.raises(ampwatch.AttachError, match=r"after accelerator\.prepare"):
        check_targets(Accelerator(), None, None)
