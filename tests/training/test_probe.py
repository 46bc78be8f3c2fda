"""Tensors that a program has measured under a name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

import ampwatch
from ampwatch.training.session import MAX_PROBES
from ampwatch.wire.records import RangeRecord, Topic

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
