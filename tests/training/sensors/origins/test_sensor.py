"""Origins of non-finite values: where they come up, what becomes of them."""

from __future__ import annotations

import gc
import linecache
import math
import re
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor
from torch.utils.checkpoint import checkpoint

import ampwatch
from ampwatch.diagnosis.evidence.lineage import MAX_ORIGINS
from ampwatch.diagnosis.evidence.origins import OriginKind
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.sensors.origins.reading import values_of
from tests.training.sensors.tracing import Naive, Traced

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

HALF = torch.float16


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def full(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((4,), value, dtype=dtype)


class Calling(nn.Module):
    """Calls a function where a module is called."""

    def __init__(self, call: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(x * self.weight)


def half() -> None:
    (full(300.0, HALF) * 300.0).relu().sum()


def in_place() -> None:
    x = full(1.0)
    x.div_(zeros(4))
    x.add_(1.0)
    x.zero_()
    x.log_()
    x.sub_(x)


def written_through_a_view() -> None:
    x = zeros(4)
    x[1:2].log_()
    (x.view(2, 2).t() * 2.0).sum()


def a_list() -> None:
    out = torch._foreach_div([full(1.0), full(1.0)], [full(1.0), zeros(4)])
    torch._foreach_mul_(out, 2.0)
    torch._foreach_log_([full(1.0), zeros(4), zeros(4)])


def several_outputs() -> None:
    x = torch.tensor([3e38, -3e38])
    variance, mean = torch.var_mean(x)
    variance + mean
    torch.aminmax(zeros(4).log())


def infinities_that_cancel() -> None:
    x = full(100.0).exp()
    x - x
    x * 0.0


def a_masked_row() -> None:
    mask = torch.tensor([[True, False], [True, True]])
    scores = zeros(2, 2).masked_fill(mask, -math.inf)
    scores.softmax(-1).sum()


def nothing_in_it() -> None:
    torch.empty(0).log()
    torch.empty(0).mean() + 1.0


def sparse() -> None:
    eye = torch.eye(3).to_sparse()
    torch.sparse.mm(eye * 2.0, full(3e38)[:3, None]) * 2.0


def complex_numbers() -> None:
    x = zeros(2, dtype=torch.complex64)
    x.log().abs() + 1.0


def float8() -> None:
    full(1e30).to(torch.float8_e5m2).float() * 2.0


def meta() -> None:
    torch.ones(3, device="meta").log().add_(math.inf).sum()


def gradients() -> None:
    x = zeros(4).requires_grad_()
    (x.sqrt() * 2.0).sum().backward()


def computed_again() -> None:
    x = full(300.0, HALF).requires_grad_()
    y = checkpoint(lambda x: (x * x).tanh(), x, use_reentrant=False)
    y.sum().backward()


def constants() -> None:
    torch.full((3,), math.inf) + 1.0
    full(1.0).clamp_(min=math.nan)
    full(1.0) * math.inf


def finite() -> None:
    x = full(3.0, HALF).requires_grad_()
    (x * x).float().log().sum().backward()


def sums_that_overflow() -> None:
    torch.full((100_000,), 6e4, dtype=HALF).neg()
    torch.full((1000,), 3e38).neg()


PROGRAMS = (
    *(half, in_place, written_through_a_view, a_list),
    *(several_outputs, infinities_that_cancel, a_masked_row, nothing_in_it, sparse),
    *(complex_numbers, float8, meta, gradients, computed_again, constants, finite),
    sums_that_overflow,
)

WITHOUT = {meta, constants, finite, sums_that_overflow}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_origins_are_those_that_a_slow_check_of_each_op_finds(program: Callable[[], None]) -> None:
    """Both find the same ops and outputs, in the same order."""
    with Naive() as naive:
        program()
    with Traced() as traced:
        program()

    seen = [(origin.op, origin.out_index) for origin in traced.of(OriginKind.OP)]
    assert seen == naive.origins
    assert bool(seen) is (program not in WITHOUT)
    if program in WITHOUT - {constants}:
        assert traced.origins == []
        assert traced.traces[0].num_ops > 0


def test_an_origin_names_the_op_its_place_and_its_values() -> None:
    """Module, phase, dtype, line of code, and the range of what went in."""
    model = nn.Sequential(nn.Identity(), Calling(lambda x: x.half() * 3e4))
    with Traced(model) as traced:
        model(torch.tensor([1.0, 2.0, 4.0, -4.0]))

    (origin,) = traced.origins
    assert (origin.op, origin.module, origin.is_inside) == ("mul", "1", True)
    assert (origin.phase, origin.needs_grad, origin.number) == (Phase.FORWARD, True, 3e4)
    assert "test_sensor.py" in origin.source
    assert origin.out == values_of(torch.tensor([3e4, 6e4, math.inf, -math.inf]).half())
    # The number is an input as well, once PyTorch has wrapped it.
    assert (origin.inputs[0].amax, origin.inputs[0].amin, origin.in_amax) == (4.0, 1.0, 4.0)


@pytest.mark.parametrize("is_on", [True, False])
def test_an_origin_says_whether_autocast_was_on_there(*, is_on: bool) -> None:
    """Where the op was called; below the dispatcher it always seems to be off."""
    with Traced() as traced, torch.autocast("cpu", dtype=HALF, enabled=is_on):
        full(300.0, HALF) * 300.0

    assert [origin.has_autocast for origin in traced.origins] == [is_on]


def test_an_origin_says_whether_it_reads_what_the_model_was_called_with() -> None:
    """The first cast of an outlier does; what comes after reads something that was made."""
    for call, expected in (
        (lambda x: x.half(), True),
        (lambda x: (x * 1.0).half(), False),
    ):
        model = nn.Sequential(nn.Identity(), Calling(lambda x: x), nn.Identity())
        inner = model[0]
        inner.forward = call  # type: ignore[method-assign]
        with Traced(model) as traced:
            model(full(1e6))
        assert [origin.reads_argument for origin in traced.origins[:1]] == [expected]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, -2.0, 0.0], (False, False, False, 2.0, 0.0)),
        ([math.nan, -2.0], (True, False, False, 2.0, math.nan)),
        ([math.inf, -3.0, 1.0], (False, True, False, 3.0, math.nan)),
        ([-math.inf, -math.inf], (False, False, True, 0.0, math.nan)),
    ],
)
@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16, torch.float32, torch.float64])
def test_values_are_distinguished(values: list[float], expected: Any, dtype: torch.dtype) -> None:
    """NaN, either infinity, and the range of what is finite."""
    known = values_of(torch.tensor(values, dtype=dtype))

    assert known.numel == len(values)
    found = (known.nans, known.posinf, known.neginf, known.amax, known.amin)
    assert all(
        a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(found, expected, strict=True)
    )


@pytest.mark.rotating
def test_an_op_that_makes_finite_numbers_of_them_has_absorbed_them() -> None:
    """By name and count; what only looks at the shape, or compares, computes nothing of them."""
    with Traced() as traced:
        x = full(100.0).exp()
        torch.zeros_like(x)
        torch.gt(x, 0)
        x.reciprocal()
        x.neg().reciprocal()
        x.clamp(max=1.0)

    (origin,) = traced.origins
    assert origin.absorbed_by == {"reciprocal": 2, "clamp": 1}


def test_what_is_written_over_is_not_followed_any_further() -> None:
    """The storage holds something else now."""
    with Traced() as traced:
        x = zeros(4).log()
        x.fill_(2.0)
        x.exp()

    (origin,) = traced.origins
    assert origin.spread_to == set()
    assert origin.absorbed_by.keys() <= {"fill_"}


def test_storage_that_is_used_again_has_no_history() -> None:
    """A new tensor where a bad one lay is as good as its own values."""
    with Traced() as traced:
        for _ in range(20):
            zeros(1024).log()
            full(2.0).repeat(256).exp()

    assert [origin.op for origin in traced.origins] == ["log"] * 20
    assert all(not origin.spread_to and not origin.absorbed_by for origin in traced.origins)


def test_it_spreads_to_the_modules_that_make_more_of_it() -> None:
    """The loss is a place as well; a module that never sees it is none."""
    model = nn.Sequential(Calling(torch.log), Calling(torch.neg), Calling(torch.relu))
    other = Calling(torch.exp)
    with Traced(model, other) as traced:
        other(full(0.0))
        model(full(0.0)).sum()

    (origin,) = [b for b in traced.origins if b.parents == frozenset()]
    assert origin.module == "0.0"
    assert {"0.1", "0.2", "loss"} <= origin.spread_to
    assert "1" not in origin.spread_to


@pytest.mark.parametrize(
    ("prediction", "joins"), [(full(1.0).requires_grad_(), True), (full(1.0), False)]
)
def test_it_joins_the_graph_of_what_requires_a_gradient(
    prediction: torch.Tensor, *, joins: bool
) -> None:
    """As a target does in a loss that is not handed to backward; the logarithm itself requires none."""
    with Traced() as traced:
        prediction * torch.log(full(0.0))

    (origin,) = traced.origins
    assert (origin.op, origin.needs_grad, origin.joins_graph) == ("log", False, joins)


def test_nan_of_infinities_is_their_child() -> None:
    """Through ops that keep them infinite."""
    with Traced() as traced:
        x = full(100.0).exp() * 2.0
        x - x
        (-x).softmax(0)
        (x * torch.ones(1, requires_grad=True)).softmax(0)

    parent, child, masked, scored = traced.origins
    assert (parent.op, child.op, masked.op) == ("exp", "sub", "_softmax")
    assert child.parents == masked.parents == {parent.index}
    assert child.out.nans
    assert (child.reads_posinf, masked.reads_posinf) == (True, False)
    assert (child.reads_graph, scored.reads_graph) == (False, True)


def test_gradients_that_are_not_finite_at_the_end_name_their_origins() -> None:
    """The parameters that are reached, and only they."""
    model = nn.Sequential(Calling(lambda x: x), Calling(torch.sqrt), Calling(lambda x: x))
    with Traced(model) as traced:
        model(torch.zeros(4)).sum().backward()

    (trace,) = traced.traces
    assert trace.has_trained
    bad = {n for n, p in model.named_parameters() if not bool(p.grad.isfinite().all())}
    assert set(trace.bad_gradients) == bad
    assert bad
    origins = set().union(*trace.bad_gradients.values())
    # The gradient of the square root at zero; and NaN where it is multiplied by zero.
    assert {trace.origins[index].phase for index in origins} == {Phase.BACKWARD}
    assert {b.op for b in trace.origins if not b.parents} == {"div"}


def test_gradients_that_became_finite_again_are_not_bad() -> None:
    """Gradients count as the optimizer would use them."""
    model = Calling(torch.sqrt)
    with Traced(model) as traced:
        model(torch.zeros(4)).sum().backward()
        model.weight.grad.nan_to_num_()

    assert traced.origins
    assert traced.traces[0].bad_gradients == {}


@pytest.mark.parametrize("kind", ["input", "parameter", "buffer", "constant"])
def test_what_no_op_has_made_has_another_origin(kind: str) -> None:
    """A batch, a weight, a buffer, a number; each is found once, however often it is read."""
    model = nn.BatchNorm1d(4)
    model.eval()
    x = torch.ones(2, 4)
    if kind == "input":
        x[0, 0] = math.nan
    elif kind == "parameter":
        model.weight.data[1] = math.nan
    elif kind == "buffer":
        model.running_mean[1] = math.nan
    with Traced(model) as traced:
        out = model(x)
        model(x)
        if kind == "constant":
            out + math.nan

    names = {"parameter": "weight", "buffer": "running_mean"}
    (origin,) = traced.origins
    assert (origin.kind, origin.name) == (OriginKind(kind), names.get(kind, ""))


def test_an_overflow_of_the_loss_scale_is_no_ops_doing() -> None:
    """Without a scaler the same product is an origin."""
    scale = torch.tensor(2.0**100)
    loss = torch.tensor(2.0**60)
    with Traced(scale=scale) as traced:
        loss * scale
    with Traced() as bare:
        loss * scale

    assert [b.kind for b in traced.origins] == [OriginKind.OTHER]
    assert [b.kind for b in bare.origins] == [OriginKind.OP]
    assert (traced.traces[0].scale, bare.traces[0].scale) == (
        2.0**100,
        pytest.approx(math.nan, nan_ok=True),
    )


@pytest.mark.parametrize("calls", ["unscale_", "step"])
@pytest.mark.parametrize("scale", [0.0, 2.0**-140])
def test_gradients_divided_by_no_scale_are_no_ops_doing(scale: float, calls: str) -> None:
    """1/scale is infinite, in float64 or in float32: the scaler's ops are none of the program's."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    with ampwatch.monitor(model, scaler, optimizer=optimizer, level="deep", serve=False) as watch:
        for _ in range(3):
            scaler.scale(model(torch.ones(4, 4)).square().mean()).backward()
            if calls == "unscale_":
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    roots = [finding for finding in watch.findings if finding.root]
    assert not model.weight.isfinite().any()
    assert "param_nonfinite" in {finding.kind for finding in watch.findings}
    assert [finding.op for finding in roots if finding.op] == []


def test_very_many_origins_are_not_distinguished() -> None:
    """The first ones are; one more stands for all the others."""
    x = zeros(2)
    with Traced() as traced:
        for _ in range(MAX_ORIGINS + 50):
            x.log()

    assert len(traced.origins) == MAX_ORIGINS + 1
    assert {b.kind for b in traced.origins[:-1]} == {OriginKind.OP}
    assert traced.origins[-1].kind is OriginKind.OTHER


def test_the_next_iteration_begins_at_nothing() -> None:
    """Origins of one are not those of the next, which are traced under its own index."""
    traced = Traced()
    with traced:
        zeros(2).log()
    with traced:
        zeros(2).exp()

    assert [t.step for t in traced.traces] == [0, 1]
    assert [len(t.origins) for t in traced.traces] == [1, 0]


def test_no_tensor_is_kept_alive() -> None:
    """Outputs and inputs of an origin go while the iteration goes on."""
    with Traced() as traced:
        given = zeros(4)
        made = given.log()
        seen = [weakref.ref(given), weakref.ref(made)]
        del given, made
        gc.collect()
        during = [reference() for reference in seen]

    assert during == [None, None]
    assert traced.origins


def test_what_an_optimizer_makes_is_known_as_its_own() -> None:
    """A second moment that overflows breaks no weight, and no finding is about it."""
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.full((2,), 1e30)
    optimizer = torch.optim.Adam([parameter], foreach=False)
    with Traced() as traced:
        optimizer.step()

        total = optimizer.state[parameter]["exp_avg_sq"].sum()

    assert not total.isfinite()
    assert all(b.is_stepping for b in traced.origins)
    assert traced.traces[0].bad_parameters == {}


class OfOwnSize(torch.optim.Optimizer):
    """Divides each gradient by its root mean square."""

    def __init__(self, parameters: Any, eps: float) -> None:
        super().__init__(parameters, {"eps": eps})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            p.sub_(p.grad / (p.grad.square().mean().sqrt() + self.param_groups[0]["eps"]))


@pytest.mark.parametrize("eps", [0.0, 1e-8])
def test_weights_that_a_step_breaks_are_those_of_the_op_that_divided_by_zero(eps: float) -> None:
    """And no gradient is: one of zeros is finite."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    optimizer = OfOwnSize(model.parameters(), eps)
    with Traced(model) as traced:
        (model[0](torch.ones(1, 2)).sum() + model[1].weight.sum() * 0.0).backward()
        optimizer.step()

    trace = traced.traces[0]
    assert trace.bad_gradients == {}
    broken = {name: {traced.origins[i].op for i in at} for name, at in trace.bad_parameters.items()}
    assert broken == ({} if eps else {"1.weight": {"div"}})
    assert bool(model[1].weight.isfinite().all()) is bool(eps)


def test_weights_that_were_mended_before_the_end_are_not_broken() -> None:
    """A program that puts its copy back has lost nothing."""
    model = nn.Linear(2, 2, bias=False)
    copy = model.weight.detach().clone()
    with Traced(model) as traced:
        model(torch.ones(1, 2)).sum().mul(0.0).backward()
        OfOwnSize(model.parameters(), 0.0).step()
        model.load_state_dict({"weight": copy})

    assert {b.op for b in traced.origins} == {"div"}
    assert traced.traces[0].bad_parameters == {}


def test_weights_in_shards_are_read_where_they_lie() -> None:
    """A DTensor has no memory of its own."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        model = nn.Linear(2, 2, bias=False)
        model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), mesh))
        shard: Any = model.weight.to_local().detach()
        with Traced(model) as traced:
            shard.zero_().log_()
    finally:
        distributed.destroy_process_group()

    assert traced.traces[0].bad_parameters == {"weight": frozenset({0})}


def test_weights_that_a_transform_is_given_are_those_of_the_model() -> None:
    """``torch.func`` swaps them for wrappers while the model is called."""
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.fill_(math.nan)
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, weights, (x,)).sum()

    with Traced(model) as traced:
        torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, torch.ones(3, 2))

    first = traced.origins[0]
    assert (first.kind, first.name) == (OriginKind.PARAMETER, "weight")


def test_a_norm_between_backward_and_the_step_names_the_gradient_it_reads() -> None:
    """A cast of the gradient is known by its shape."""
    model = nn.Linear(4, 3, bias=False)
    with Traced(model) as traced:
        (model(torch.ones(2, 4)).sum() * 1e4).backward()
        model.weight.grad.half().square().sum()

    (origin,) = traced.origins
    assert (origin.phase, origin.gradient) == (Phase.OPTIMIZER, "weight")


def test_a_norm_of_gradients_that_no_backward_has_made_names_them_as_well() -> None:
    """By their memory alone: without backward nothing else says that these are gradients."""
    model = nn.Linear(4, 3, bias=False).half()
    model.weight.grad = torch.full((3, 4), 700.0, dtype=HALF)
    other = torch.full((3, 4), 700.0, dtype=HALF)
    with Traced(model) as traced:
        _ = (model.weight.grad * model.weight.grad).sum()
        _ = (other * other).sum()

    assert [origin.gradient for origin in traced.origins] == ["weight", ""]


def _in_half(parameter: torch.Tensor) -> None:
    parameter.grad.half().mul_(1e6)


@pytest.mark.parametrize("in_a_hook", [False, True])
def test_a_hook_of_a_gradient_is_distinguished_from_a_node(in_a_hook: bool) -> None:  # noqa: FBT001 - a case
    """Ops of a hook are no part of the graph."""
    model = Calling(torch.sqrt)
    if in_a_hook:
        model.weight.register_post_accumulate_grad_hook(_in_half)
    with Traced(model) as traced:
        model(torch.ones(4) if in_a_hook else torch.zeros(4)).sum().backward()

    first = traced.origins[0]
    assert first.phase is Phase.BACKWARD
    assert first.is_hook is in_a_hook


def _root_of_zero(x: torch.Tensor) -> torch.Tensor:
    y = x * 2.0
    y = torch.sqrt(y)
    return y * 3.0


def _arc_at_the_end(x: torch.Tensor) -> torch.Tensor:
    y = torch.acos(x + 1.0)
    return y * 3.0


def _branch_not_taken(x: torch.Tensor) -> torch.Tensor:
    y = x.log()
    return torch.where(x > 0, y, x)


def _repeated(x: torch.Tensor) -> torch.Tensor:
    return checkpoint(_root_of_zero, x, use_reentrant=False)


DERIVATIVES = [
    (_root_of_zero, "sqrt"),
    (_arc_at_the_end, "acos"),
    (_branch_not_taken, "log"),
    (_repeated, "sqrt"),
]


@pytest.mark.parametrize(("function", "op"), DERIVATIVES)
@pytest.mark.parametrize("is_inside", [False, True])
def test_a_derivative_has_the_op_and_the_line_of_forward(
    function: Callable[[torch.Tensor], torch.Tensor],
    op: str,
    is_inside: bool,  # noqa: FBT001 - a case
) -> None:
    """The line of ``backward()`` says nothing of it. PyTorch's anomaly mode names the same one."""
    model = Calling(function if is_inside else torch.clone)
    with Traced(model) as traced:
        out = model(torch.zeros(4))
        (out if is_inside else function(out)).sum().backward()
    (origin,) = [o for o in traced.origins if o.phase is Phase.BACKWARD and not o.parents]

    with warnings.catch_warnings(record=True) as said, torch.autograd.set_detect_anomaly(mode=True):
        warnings.simplefilter("always")
        # An infinity alone would be no anomaly: it is multiplied by zero.
        loss = (function(torch.zeros(4, requires_grad=True)) * 0.0).sum()
        with pytest.raises(RuntimeError, match=f"{op.capitalize()}Backward0"):
            loss.backward()
    lines = re.findall(rf'File "{re.escape(__file__)}", line (\d+)', str(said[-1].message))

    assert origin.derivative_of == op
    assert origin.source == f"{__file__}:{lines[-1]}"
    assert op in linecache.getline(__file__, int(lines[-1]))


class _Inverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient / x


def test_a_backward_that_the_user_has_written_has_its_own_line() -> None:
    """It is code of the user's, and the derivative of no op."""
    with Traced(model := Calling(_Inverse.apply)) as traced:
        model(torch.zeros(4)).sum().backward()

    first = traced.origins[0]
    assert first.derivative_of == ""
    assert linecache.getline(*_split(first.source)).strip() == "return gradient / x"


def test_slices_that_were_written_in_place_have_no_line_of_another_op() -> None:
    """Their node is numbered after the op, as that of the next one."""
    model = Calling(lambda x: x)
    with Traced(model) as traced:
        out = model(torch.zeros(4)).clone()
        out[1:3].sqrt_()
        out.cos().sum().backward()

    first = next(o for o in traced.origins if o.phase is Phase.BACKWARD)
    assert first.derivative_of == ""
    assert "backward()" in linecache.getline(*_split(first.source))


def test_what_another_thread_has_made_has_no_line_of_an_op_of_this_one() -> None:
    """Each thread counts its nodes from zero: two have the same numbers."""
    model = Calling(lambda x: x)

    def train(another: Executor) -> Traced:
        with Traced(model) as traced:
            kept = [model(torch.ones(4)).tanh() for _ in range(4)]
            root = another.submit(lambda: torch.sqrt(model.weight * 0.0)).result()
            (root + kept[0]).sum().backward()
        return traced

    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as another:
        traced = one.submit(train, another).result()

    first = next(o for o in traced.origins if o.phase is Phase.BACKWARD)
    assert first.derivative_of == "sqrt"
    assert "backward()" in linecache.getline(*_split(first.source))


def _split(source: str) -> tuple[str, int]:
    file, _, line = source.rpartition(":")
    return file, int(line)


HIDING = {
    "a hook of a tensor": "hidden",
    "a hook of parameters": "parameters",
    "a hook after they are added up": "accumulated",
    "code between backward and the step": "between",
}


def _mend(parameter: torch.Tensor) -> None:
    parameter.grad.nan_to_num_(0.0, 0.0, 0.0)


def _hiding(how: str, scale: float) -> list[tuple[str, str, str, str]]:
    """Train with a scale that backward of the last layer overflows with, or not, and hide infinities."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    with torch.no_grad():
        model[2].weight.mul_(40)
    parameters = list(model.parameters())
    for parameter in parameters:
        if how == "parameters":
            parameter.register_hook(lambda g: torch.nan_to_num(g, 0.0, 0.0, 0.0))
        if how == "accumulated":
            parameter.register_post_accumulate_grad_hook(_mend)
    optimizer = torch.optim.SGD(parameters, 1e-6)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    with ampwatch.monitor(model, scaler, optimizer=optimizer, level="deep", serve=False) as watch:
        for _ in range(6):
            with torch.autocast("cpu", dtype=torch.float16):
                hidden = model[1](model[0](torch.randn(8, 8)))
                if how == "hidden":
                    hidden.register_hook(lambda g: g.clamp(-1e3, 1e3))
                loss = (model[2](hidden).float() - 2).square().mean()
            scaler.scale(loss).backward()
            if how == "known":
                scaler.unscale_(optimizer)
            if how in ("between", "known"):
                for parameter in parameters:
                    parameter.grad.nan_to_num_(0.0, 0.0, 0.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=how != "zeroed")
    return [(f.kind, f.where, f.op, f.phase) for f in watch.findings if f.root and f.op]


@pytest.mark.parametrize(("who", "op"), [("the program", "add_"), ("an optimizer", "")])
def test_the_op_that_writes_gradients_into_weights_is_named(who: str, op: str) -> None:
    """With its line, where it is the program's: the ascent of SAM, before the scaler has looked at them."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    with ampwatch.monitor(model, scaler, optimizer=optimizer, level="deep", serve=False) as watch:
        for factor in (1.0, 2.0**100, 1.0):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = factor * model(torch.ones(4, 4)).float().square().mean()
            scaler.scale(loss).backward()
            if who == "an optimizer":
                torch.optim.SGD(model.parameters(), 0.1).step()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(parameter.grad)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    (finding,) = (f for f in watch.findings if f.kind == "param_nonfinite")
    lines = Path(__file__).read_text().splitlines()
    line = next(i for i, code in enumerate(lines, 1) if "parameter.add_(parameter.grad)" in code)
    assert (finding.op, finding.source) == (op, f"{__file__}:{line}" if op else "")


@pytest.mark.rotating
@pytest.mark.parametrize("how", HIDING.values(), ids=HIDING)
def test_an_overflow_of_backward_that_is_hidden_from_the_scaler_is_named(how: str) -> None:
    """With its op and the module whose gradient it is: no step is skipped for it."""
    assert _hiding(how, 2.0**15)[0] == ("silent_overflow", "2", "mm", "backward")
    assert _hiding(how, 2.0**8) == []


@pytest.mark.rotating
@pytest.mark.parametrize("how", ["known", "zeroed", "left alone"])
def test_what_the_scaler_has_seen_is_not_hidden(how: str) -> None:
    """What becomes of gradients after it knows, and that they are zeroed, is nobody's failure."""
    assert _hiding(how, 2.0**15) == []
