"""Operands of layers: which are measured, whose outputs they are, that nothing is judged by them; sketches of tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

import ampwatch
from ampwatch import lab
from ampwatch.diagnosis.evidence.iteration import TensorRange
from ampwatch.lab.precision.planner import checked, plan_of
from ampwatch.lab.tape.rows import NUM_BUCKETS
from ampwatch.lab.training.layers import LayerSensor
from ampwatch.lab.training.sketch import CHUNK, Sketcher
from ampwatch.training.hooks.events import Requested
from ampwatch.training.kernels.dtypes import unknown_formats
from ampwatch.wire.records import LayerRecord, Operand, PlanRecord, Topic
from ampwatch.wire.ring.requests import FOLLOW, Request
from tests.numerics.oracle import histogram_of
from tests.wire.ring.samples import IDENTITY
from tests.workshop.records import planned


class Model(nn.Module):
    """Layers whose inputs are a batch, an output, an output that is changed in place, and a view."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(64, 64), nn.LayerNorm(64)
        self.second, self.third, self.fourth = (nn.Linear(64, 64) for _ in range(3))
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        x = self.second(self.norm(self.first(x)))
        x = self.relu(x)
        x = self.third(x)
        x *= 2
        x = self.fourth(x)
        return self.head(x.view(-1, 64))


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Train under a monitor whose samples all have blocks, until each operand was measured."""
    monkeypatch.setattr("ampwatch.training.transfer.measuring.BLOCKS_APART_NS", 0)
    made: list[ampwatch.Monitor] = []

    def run(
        model: nn.Module, x: torch.Tensor, steps: int = 300, **settings: Any
    ) -> ampwatch.Monitor:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # ranges stay what they are
        watch = ampwatch.monitor(model, optimizer=optimizer, serve=False, **settings)
        made.append(watch)
        for step in count():
            target = torch.zeros(len(x), dtype=torch.long)
            cross_entropy(model(x), target).backward()
            optimizer.step()
            optimizer.zero_grad()
            layers = [layer for layer in watch.box().layers if layer.has_products]
            if layers and all(len(_operands(layer)) == 3 for layer in layers):
                break
            if step >= steps:
                break
        return watch

    yield run
    for watch in made:
        watch.close()


def _operands(layer: LayerRecord) -> dict[Operand, Any]:
    return {operand.operand: operand for operand in layer.operands}


def test_inputs_are_measured_once_as_what_they_are(train: Any) -> None:
    """As the output of the module that made them, or by themselves where nothing else is measured."""
    torch.manual_seed(0)
    model, x = Model(), torch.randn(64, 64)
    watch = train(model, x)
    layers = {layer.module: layer for layer in watch.box().layers}

    assert {
        name: layers[name].source for name in ("first", "second", "third", "fourth", "head")
    } == {
        "first": "",
        "second": "norm",
        "third": "relu",
        "fourth": "",  # changed in place since
        "head": "",  # a view
    }
    h = model.norm(model.first(x))
    fourth = model.third(model.relu(model.second(h))) * 2
    for name, values in {"first": x, "second": h, "fourth": fourth}.items():
        measured = _operands(layers[name])[Operand.INPUT].histogram
        assert measured == histogram_of(values.detach().flatten().tolist())
    weight = _operands(layers["third"])[Operand.WEIGHT].histogram
    assert weight == histogram_of(model.third.weight.detach().flatten().tolist())


def _request(plan: PlanRecord) -> Request:
    return Request("token", 1, Path("/plan.json"), 1, FOLLOW, plan=(plan,))


def test_of_a_plan_from_outside_a_format_that_is_unknown_is_refused_in_words() -> None:
    """And the plan before it stays."""
    put: list[Any] = []
    context = SimpleNamespace(
        names=None,
        observe=lambda _made: None,
        out=SimpleNamespace(put=lambda *records: put.extend(records)),
        memory=SimpleNamespace(add=lambda *_: None),
    )
    sensor = LayerSensor(cast("Any", context), IDENTITY)
    answers: list[str] = []
    sensor.requested(Requested(_request(planned(step=7)), answers.append))
    unknown = planned(step=9, formats=("fp7", "float16", "float16"))
    sensor.requested(Requested(_request(unknown), answers.append))

    assert answers[0] == ""
    assert "'fp7'" in answers[1]
    assert sensor.plan is not None
    assert (sensor.plan.step, put) == (7, [planned(step=7)])


def test_an_input_is_that_of_the_module_that_makes_it_now() -> None:
    """Also where another one made it in the steps before, and for each of two layers that have the same."""
    made = {"relu": nn.ReLU(), "tanh": nn.Tanh()}
    layers = {"left": nn.Linear(4, 4), "right": nn.Linear(4, 4)}
    modules = made | layers
    names = SimpleNamespace(
        parameters=lambda: iter(()),
        leaf_modules=modules.items,
        read=lambda _name, make, *given: make(*given),
    )
    context = SimpleNamespace(
        names=names, observe=None, out=None, memory=SimpleNamespace(add=lambda *_: None)
    )
    sensor = LayerSensor(cast("Any", context), IDENTITY)
    sensor.installed()
    found = []
    for step, source in enumerate(("relu", "tanh", "tanh", "relu")):
        sensor.begin()
        x = made[source](torch.randn(8, 4))
        sensor.called(made[source], source, (x,), x)
        for name, layer in layers.items():
            sensor.called(layer, name, (x,), layer(x))
        ranges = [
            TensorRange(Topic.ACTIVATION, name, name, "float32", histogram_of([1.0 + at]))
            for at, name in enumerate(made)
        ]
        of_gradients = TensorRange(Topic.GRADIENT, "w", "left", "float32", histogram_of([9.0]))
        iteration = SimpleNamespace(
            step=step, ranges=[*ranges, of_gradients], inputs=[], scale_before=1.0
        )
        sensor.iteration_arrived(cast("Any", SimpleNamespace(iteration=iteration)))
        records = [r for r in sensor.records() if r.has_products]
        found.append([(o.step, o.histogram.amax) for r in records for o in r.operands])

    assert found == [[(step, amax)] * 2 for step, amax in enumerate((1.0, 2.0, 2.0, 1.0))]


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(24, 32), (4, 7, 24)),
        (nn.Conv2d(4, 8, 3, padding=1, stride=2, groups=2), (2, 4, 8, 8)),
        (nn.ConvTranspose2d(4, 8, 3, stride=2), (2, 4, 5, 5)),
    ],
)
def test_flops_are_those_that_pytorch_counts(
    train: Any, layer: nn.Module, shape: tuple[int, ...]
) -> None:
    """Of forward, in one call."""
    x = torch.randn(shape)
    with FlopCounterMode(display=False) as counter:
        layer(x)
    model = nn.Sequential(layer, nn.Flatten(), nn.LazyLinear(10))
    model(x)
    record = train(model, x).box().layers[0]

    assert (
        2 * record.rows * record.inner * record.columns * record.groups == counter.get_total_flops()
    )
    assert (record.kind, record.input_elements) == (type(layer).__name__, x.numel())


@pytest.mark.each_commit
def test_a_plan_of_a_live_training_rests_on_its_steps(train: Any) -> None:
    """And is that of its report."""
    torch.manual_seed(0)
    watch = train(Model(), torch.randn(64, 64))
    plan = lab.plan(watch)

    assert not plan.why_not
    assert {p.format for layer in plan.layers[1:-1] for p in layer.products} == {"float8_e4m3fn"}
    assert plan.layers[-1].bits == 16
    assert [p.product for p in plan.layers[0].products] == ["forward", "grad_weight"]
    assert plan.phases[0].first == 0
    assert plan_of(watch.box(), checked()) == plan
    watch.close()
    assert lab.plan(watch) == plan


def test_a_tied_weight_is_measured_under_the_name_that_it_has(train: Any) -> None:
    """The head of a language model is often its embedding."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.letters, self.head = nn.Embedding(32, 64), nn.Linear(64, 32, bias=False)
            self.head.weight = self.letters.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.letters(x))

    model = Tied()
    watch = train(model, torch.randint(32, (64,)))
    head = watch.box().layers[-1]

    assert head.source == "letters"
    assert len(_operands(head)) == 3


def test_a_weight_that_is_computed_is_not_said_to_be_measured(train: Any) -> None:
    """What is multiplied is not the parameter."""
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(64, 64))
    watch = train(nn.Sequential(layer, nn.Linear(64, 10)), torch.randn(64, 64), steps=60)
    layers = watch.box().layers

    assert Operand.WEIGHT not in _operands(layers[0]) or not layers[0].has_products
    assert Operand.WEIGHT in _operands(layers[-1])


def test_where_nothing_was_measured_there_is_no_plan(train: Any) -> None:
    """And it says why, and what to do."""
    watch = train(nn.Linear(64, 10), torch.randn(64, 64), steps=0)

    why = "no step in which layers are measured was watched yet; ask "
    assert lab.plan(watch).why_not.startswith(why)
    assert "at level standard" in lab.plan(watch).why_not


@pytest.mark.parametrize("level", ["off", "light", "standard"])
def test_where_the_laboratory_is_off_it_says_how_to_turn_it_on(train: Any, level: str) -> None:
    """A program that asks goes on anyway."""
    watch = train(nn.Linear(64, 10), torch.randn(64, 64), steps=2, level=level, lab=False)

    for answer in (lab.plan(watch), lab.error_budget(watch), watch.plan(), watch.error_budget()):
        assert "lab=True" in answer.why_not
    assert watch.part is None


def test_formats_that_this_torch_lacks_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """FP4 has a dtype from 2.8 on."""
    assert unknown_formats(["bfloat16", "float8_e4m3fn", "tf32"]) == []
    monkeypatch.delattr(torch, "float4_e2m1fn_x2", raising=False)
    (sentence,) = unknown_formats(["bfloat16", "mxfp4", "nvfp4"])
    assert "no dtype for mxfp4, nvfp4" in sentence


def test_inputs_are_in_no_range_that_is_judged_or_shown(train: Any) -> None:
    """Ranges of activations stay those of outputs."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 10))
    with torch.no_grad():
        model[0].weight.mul_(1e-3)
    watch = train(model, torch.randn(64, 64) * 1e4)
    ranges = {r.module: r for r in watch.box().ranges if r.topic.label == "activation"}

    assert ranges["0"].histogram.numel == 64 * 64
    assert ranges["0"].histogram.amax < 1e3


@pytest.mark.parametrize("numel", [1, 31, 4096, CHUNK + 77])
def test_the_norm_of_a_difference_follows_from_two_sketches(numel: int) -> None:
    """Within four standard errors of the norm that PyTorch computes of the difference itself."""
    drawn = torch.Generator().manual_seed(numel)
    a = torch.randn(numel, generator=drawn)
    b = a + 1e-3 * torch.randn(numel, generator=drawn)
    sketcher = Sketcher()

    sums = (sketcher.sketch(a) - sketcher.sketch(b))[:NUM_BUCKETS]

    ratio = float(sums.norm() / (a.double() - b.double()).norm())
    assert abs(ratio - 1) < 4 * math.sqrt(2 / NUM_BUCKETS) / 2


def test_the_square_of_the_norm_comes_along_and_leaves_out_what_is_not_finite() -> None:
    """As summed element by element, without NaN and infinities."""
    tensor = torch.tensor([3.0, math.nan, -4.0, math.inf])

    assert float(Sketcher().sketch(tensor)[NUM_BUCKETS]) == 25.0


def test_the_order_in_memory_is_of_no_importance() -> None:
    """A transposed copy of a transposed tensor has the sketch of the tensor."""
    tensor = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    other = tensor.t().contiguous().t()

    assert torch.equal(Sketcher().sketch(tensor), Sketcher().sketch(other))


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
)
def test_every_dtype_has_a_sketch(dtype: torch.dtype) -> None:
    """Also integers and masks: a batch of words is told from another one."""
    tensor = torch.tensor([1, 1, 0, 0]).to(dtype)

    assert float(Sketcher().sketch(tensor)[NUM_BUCKETS]) == 2.0
    assert not torch.equal(Sketcher().sketch(tensor), Sketcher().sketch(tensor.flip(0)))


def test_no_random_number_is_drawn() -> None:
    """The random state is what it was."""
    before = torch.get_rng_state()
    Sketcher().sketch(torch.ones(9))

    assert torch.equal(torch.get_rng_state(), before)
