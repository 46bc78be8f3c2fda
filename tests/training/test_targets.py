"""What may be handed to ``monitor``, what the user is told otherwise, and tensors that are measured under a name."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

import ampwatch
from ampwatch.training.session import MAX_PROBES
from ampwatch.training.targets import check_targets
from ampwatch.wire.records import RangeRecord, Topic


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


STEPS = 16

NEEDS_CXX = pytest.mark.skipif(shutil.which("c++") is None, reason="inductor wants a compiler")


class Scored(nn.Module):
    """A model with scores that are the output of no module."""

    def __init__(self, probe: Callable[[str, Tensor], Tensor]) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(8, 8), nn.Linear(8, 1)
        self._probe = probe
        self.largest: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        scores = self._probe("scores", h @ h.T * 100)
        return self.head(scores.softmax(-1) @ h)


def trained(
    compiled: Callable[[nn.Module], Any] = lambda model: model, *, is_probed: bool
) -> tuple[list[Tensor], list[RangeRecord]]:
    """Weights after some steps of a float16 training, and what was measured of the scores."""
    torch.manual_seed(0)
    watch: list[ampwatch.Monitor] = []
    model = Scored(lambda name, x: watch[0].probe(name, x) if is_probed else x)
    # Little changes from one step to another: it does not matter which of them are measured.
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    x = torch.randn(4, 8)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with ampwatch.monitor(model, scaler, level="deep", sample_every=1, serve=False) as monitor:
        watch.append(monitor)
        forward = compiled(model)
        for _ in range(STEPS):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = forward(x).float().pow(2).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        measured = [record for record in monitor.box().ranges if record.module == "scores"]
    return [p.detach().clone() for p in model.parameters()], measured


def test_a_named_tensor_is_measured_as_the_output_of_a_module_and_nothing_changes() -> None:
    """Its values, and the gradient that comes back to it."""
    weights, measured = trained(is_probed=True)
    plain, nothing = trained(is_probed=False)

    assert all(torch.equal(a, b) for a, b in zip(weights, plain, strict=True))
    assert not nothing
    assert {record.topic for record in measured} == {Topic.ACTIVATION, Topic.ACTIVATION_GRADIENT}
    assert {record.dtype for record in measured} == {"float16"}


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of inductor's own
@pytest.mark.parametrize(
    "backend",
    ["eager", "aot_eager", pytest.param("inductor", marks=[pytest.mark.nightly, NEEDS_CXX])],
)
def test_compiled_code_is_compiled_once_and_in_one_graph(backend: str) -> None:
    """Whether an iteration is sampled is asked when the op runs; its values are those of eager code."""
    torch._dynamo.reset()
    counter = CompileCounter()

    def compiled(model: nn.Module) -> Any:
        return torch.compile(model, backend=counter if backend == "eager" else backend)

    weights, measured = trained(compiled, is_probed=True)
    torch._dynamo.reset()
    plain, _ = trained(lambda model: torch.compile(model, backend=backend), is_probed=False)
    torch._dynamo.reset()
    _, in_eager = trained(is_probed=True)

    (values,) = measured
    (expected,) = (record for record in in_eager if record.topic is Topic.ACTIVATION)
    assert all(torch.equal(a, b) for a, b in zip(weights, plain, strict=True))
    assert values.topic is Topic.ACTIVATION
    assert values.histogram.amax == pytest.approx(expected.histogram.amax, rel=0.01)
    assert backend != "eager" or counter.frame_count == 1


def test_the_value_is_that_of_the_tensor() -> None:
    """Compared with torch's own amax, of the iteration that was measured."""
    model, largest = nn.Linear(4, 4), list[float]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with ampwatch.monitor(model, level="deep", sample_every=1, serve=False) as watch:
        for _ in range(STEPS):
            x = torch.randn(3, 4)
            largest.append(float(watch.probe("data", x).abs().amax()))
            model(x).sum().backward()
            optimizer.step()
        (measured,) = (
            r for r in watch.box().ranges if (r.module, r.topic) == ("data", Topic.ACTIVATION)
        )

    assert measured.histogram.amax == largest[measured.step]
    assert measured.histogram.numel == 12


class Unprintable:
    """A tensor in place of a name must not be printed: that waits for its device."""

    def __repr__(self) -> str:
        raise AssertionError


def test_what_is_no_tensor_is_said_once_and_returned(caplog: pytest.LogCaptureFixture) -> None:
    """As are names without end, and what comes after the end; without gradients nothing is measured."""
    x = torch.ones(2)
    with ampwatch.monitor(nn.Linear(2, 2), level="deep", sample_every=1, serve=False) as watch:
        for _ in range(2):
            assert watch.probe("nothing", None) is None
            assert watch.probe(Unprintable(), "scores") == "scores"  # type: ignore[arg-type] # as where they are exchanged
            assert watch.probe(7, x) is x  # type: ignore[arg-type] # what is tried
        for number in range(MAX_PROBES + 2):
            assert watch.probe(f"name {number}", x) is x
    assert watch.probe("late", x) is x

    said = [r.getMessage() for r in caplog.records if "probe()" in r.getMessage()]
    assert said == [
        "probe(): expected a name and a tensor, got str and NoneType; it is not measured, training goes on",
        "probe() of many names: expected 256 names at most, got one more; it is not measured, training goes on",
    ]
