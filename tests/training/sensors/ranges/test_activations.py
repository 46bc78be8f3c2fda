"""Outputs of leaf modules and the gradients that come back to them, whatever the model does."""

from __future__ import annotations

import copy
import gc
import warnings
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules import module as torch_module
from torch.utils.checkpoint import checkpoint

from ampwatch.diagnosis.evidence.iteration import Attention
from ampwatch.training.hooks.events import IterationPlanned
from ampwatch.training.model.tensors import MAX_TENSORS, tensors_in
from ampwatch.training.sensors.ranges.activations import ActivationSensor
from ampwatch.wire.records import Topic
from tests.training.sensors.notes import Parts

OUTPUTS, GRADIENTS = Topic.ACTIVATION, Topic.ACTIVATION_GRADIENT


class Bench:
    """A model under the sensor."""

    def __init__(self, model: nn.Module, *wanted: Topic) -> None:
        torch.manual_seed(0)
        self.model = model
        scaler = torch.amp.GradScaler("cpu")
        self.parts = Parts([model], *(wanted or (OUTPUTS, GRADIENTS)), scaler=scaler)
        self.parts.install(ActivationSensor(self.parts.context))

    def next(self, *wanted: Topic, focus: frozenset[str] = frozenset()) -> None:
        self.parts.governor.step += 1
        self.parts.governor.wanted = frozenset(wanted)
        self.parts.bus.emit(IterationPlanned(self.parts.governor.step, Attention(focus=focus)))

    def names(self, topic: Topic) -> list[str]:
        return [n.name for n in self.parts.notes.notes if n.topic is topic]

    def of(self, topic: Topic) -> dict[str, torch.Tensor]:
        values: dict[str, torch.Tensor] = self.parts.notes.of(topic)
        return values


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 2))


def test_outputs_and_their_gradients_are_those_that_autograd_has() -> None:
    """They are right also where the next module overwrites the output in place."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    bench = Bench(model)
    x = torch.randn(3, 4)
    first = model[0](x)
    hidden = model[1](first)
    out = model[2](hidden)
    expected = torch.autograd.grad(out.square().sum(), [first, hidden, out], retain_graph=True)
    bench.parts.notes.notes.clear()

    model(x).square().sum().backward()

    for name, output, gradient in zip("012", (first, hidden, out), expected, strict=True):
        torch.testing.assert_close(bench.of(OUTPUTS)[name], output.detach())
        torch.testing.assert_close(bench.of(GRADIENTS)[name], gradient)
    assert all(n.how.scaled is (n.topic is GRADIENTS) for n in bench.parts.notes.notes)


def test_an_output_is_measured_before_the_next_module_overwrites_it() -> None:
    """``ReLU(inplace=True)`` leaves no negative number behind."""
    bench = Bench(mlp())
    bench.model(torch.randn(64, 4)).sum().backward()

    assert bench.of(OUTPUTS)["0"].min() < 0
    assert bench.of(OUTPUTS)["1"].min() == 0
    assert set(bench.of(GRADIENTS)) == {"0", "1", "2"}


def test_the_users_hooks_see_what_they_would_have_seen() -> None:
    """Hooks may replace the output after it was measured."""
    bench = Bench(mlp())
    seen = []
    bench.model[0].register_forward_hook(lambda _m, _a, out: seen.append(out) or out * 0)
    result = bench.model(torch.ones(1, 4))

    assert seen[0].data_ptr() != 0
    assert bench.of(OUTPUTS)["0"].abs().sum() > 0
    torch.testing.assert_close(result, bench.model[2].bias.expand(1, 2))


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_forward_that_checkpointing_repeats_is_counted_once(*, reentrant: bool) -> None:
    """Reentrant checkpointing runs the first one without gradients, where nothing is measured."""
    bench = Bench(mlp())
    x = torch.randn(3, 4, requires_grad=True)
    checkpoint(bench.model, x, use_reentrant=reentrant).sum().backward()

    assert sorted(bench.names(OUTPUTS)) == ["0", "1", "2"]
    assert sorted(bench.names(GRADIENTS)) == ["0", "1", "2"]


def test_every_call_of_a_module_counts() -> None:
    """Modules are called several times in a recurrent model, or with gradient accumulation."""
    linear = nn.Linear(4, 4)
    bench = Bench(linear)
    linear(linear(torch.randn(2, 4))).sum().backward()

    assert bench.names(OUTPUTS) == ["", ""]
    assert bench.names(GRADIENTS) == ["", ""]


def test_validation_without_gradients_is_not_measured() -> None:
    """Validation is not the training."""
    bench = Bench(mlp())
    with torch.no_grad():
        bench.model(torch.randn(2, 4))

    assert bench.parts.notes.notes == []


@dataclass
class Output:
    logits: torch.Tensor
    extra: Any = None


class ModelOutput(dict):
    """A mapping with attributes, as the libraries return it."""


@pytest.mark.parametrize(
    "wrap",
    [
        lambda a, b: (a, [b]),
        lambda a, b: {"a": a, "b": {"c": b}},
        lambda a, b: ModelOutput(a=a, b=b),
        lambda a, b: Output(a, (b, None, "text", 3)),
    ],
)
def test_tensors_are_found_in_whatever_a_module_returns(wrap: Any) -> None:
    """Tuples, lists, mappings and dataclasses, also within one another."""

    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return wrap(x * 2, x * 3)

    bench = Bench(Odd(), OUTPUTS)
    bench.model(torch.ones(2, requires_grad=True))

    values = [n.values.tolist() for n in bench.parts.notes.notes]
    assert values == [[2.0, 2.0], [3.0, 3.0]]


def test_what_refers_to_itself_does_not_hang() -> None:
    """Nested outputs are searched down to a limit."""
    circle: list[Any] = [torch.ones(1)]
    circle.append(circle)

    assert len(tensors_in(circle)) <= MAX_TENSORS


def test_integer_outputs_are_left_out() -> None:
    """Integers have no exponent."""

    class Indices(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x.argmax(-1), x

    bench = Bench(Indices(), OUTPUTS)
    bench.model(torch.randn(2, 3))

    assert [n.values.dtype for n in bench.parts.notes.notes] == [torch.float32]


def test_the_hook_is_there_only_while_modules_are_sampled() -> None:
    """The hook is PyTorch's global one, so a copy of the model has no trace of it."""
    bench = Bench(mlp(), OUTPUTS)
    during = len(torch_module._global_forward_hooks)
    copied = copy.deepcopy(bench.model)
    bench.next(Topic.GRADIENT)
    after = len(torch_module._global_forward_hooks)
    copied(torch.randn(2, 4))
    bench.model(torch.randn(2, 4))

    assert (during, after) == (1, 0)
    assert bench.parts.notes.notes == []


def test_a_graph_that_outlives_its_iteration_is_not_measured_later() -> None:
    """The graph is not measured after the end of the training either."""
    bench = Bench(mlp(), GRADIENTS)
    late = bench.model(torch.randn(2, 4)).sum()
    bench.next(GRADIENTS)
    late.backward(retain_graph=True)
    bench.parts.remove()
    late.backward()

    assert bench.parts.notes.notes == []


def test_modules_in_focus_are_measured_whatever_is_sampled() -> None:
    """Modules out of focus are not measured."""
    bench = Bench(mlp(), OUTPUTS)
    bench.next(Topic.GRADIENT, focus=frozenset({"2"}))
    bench.model(torch.randn(2, 4)).sum().backward()

    assert bench.names(OUTPUTS) == ["2"]
    assert bench.names(GRADIENTS) == []


def test_a_part_of_the_modules_is_measured_when_all_would_be_too_much() -> None:
    """Each module belongs to one part."""
    bench = Bench(mlp(), OUTPUTS)
    seen = []
    for part in range(2):
        bench.parts.governor.part = (part, 2)
        bench.model(torch.randn(2, 4))
        seen.append(bench.names(OUTPUTS))
        bench.parts.notes.notes.clear()

    assert sorted(seen[0] + seen[1]) == ["0", "1", "2"]
    assert seen[0] != seen[1] != []


def test_nothing_is_sampled_once_compiled_code_has_run() -> None:
    """A hook that comes and goes would have it compiled again."""
    bench = Bench(mlp(), OUTPUTS)
    bench.parts.bus.runs_compiled = True
    bench.next(OUTPUTS)

    assert not torch_module._global_forward_hooks


def test_a_weight_norm_does_not_hide_a_layer() -> None:
    """Parametrizations are children of a leaf."""
    model = nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))
    bench = Bench(nn.Sequential(model), OUTPUTS)
    bench.model(torch.randn(2, 4))

    assert "0" in bench.names(OUTPUTS)


def test_the_graph_is_freed_as_without_ampwatch() -> None:
    """Hooks on its nodes keep nothing alive."""
    bench = Bench(mlp(), GRADIENTS)
    x = torch.randn(2, 4, requires_grad=True)
    hidden = bench.model[1](bench.model[0](x))
    out = bench.model[2](hidden)
    memory = StorageWeakRef(hidden.untyped_storage())
    del hidden
    assert not memory.expired()  # the graph has it for backward

    del out
    gc.collect()
    assert memory.expired()


@pytest.mark.rotating
def test_the_hook_goes_as_soon_as_compiled_code_runs() -> None:
    """The hook goes even in the middle of an iteration: with it, code would be compiled twice."""
    Bench(mlp(), OUTPUTS)
    compiled = torch.compile(mlp(), backend="eager")
    assert torch_module._global_forward_hooks

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(torch.randn(2, 4))

    assert not torch_module._global_forward_hooks
