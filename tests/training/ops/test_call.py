"""Counts of ops by dtype, held against a log of the same ops; bytes by hand; places in memory, referred to weakly."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ampwatch.numerics.units.ops import Fallback, OpKind, Phase
from ampwatch.training.hooks.events import ForwardBegan, ForwardEnded
from ampwatch.training.native import core
from ampwatch.training.ops import call
from ampwatch.training.ops.call import OpCall, OpCounts
from ampwatch.training.ops.info import op_info
from ampwatch.training.ops.storage import Finalizer, PythonFinalizer, WeakStorage
from tests.training.sensors.counting import Counted, Log
from tests.trainings import Net

aten = torch.ops.aten


def run(call: Callable[[], Any]) -> Counted:
    """Count what runs inside one module in a bfloat16 region."""

    class Caller(nn.Module):
        def forward(self) -> Any:
            return call()

    model = Caller()
    with Counted(model) as counted, torch.autocast("cpu", dtype=torch.bfloat16):
        model()
    return counted


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [{"foreach": True}, {"foreach": False}, {"fused": True}])
def test_ops_dtypes_and_casts_are_those_of_an_independent_log(
    dtype: torch.dtype, options: dict[str, bool]
) -> None:
    """The log covers forward, backward, unscaling, clipping and optimizer, but views and allocations."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    x = torch.randn(16, 8)
    with Counted(model) as counted:
        counted.sensor.forward_began(ForwardBegan(model, ()))  # so that both see the same ops
        counted.sensor.forward_ended(ForwardEnded(model))
        with Log() as log:
            with torch.autocast("cpu", dtype=dtype):
                loss = model(x).float().square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()

    nothing = ("empty", "_unsafe_view", "detach", "_local_scalar_dense", "lift_fresh")
    logged = Counter(
        (op, out.removeprefix("torch."))
        for name, _, out in log.ops
        if not (op := name.partition("::")[2]).startswith(nothing) and "profiler" not in name
    )
    seen: Counter[tuple[str, str]] = Counter()
    for key, tally in counted.tallies:
        seen[key.op, key.out_dtype] += tally.calls
    writes_lists = {op for op, out in logged if not out}
    assert {k: n for k, n in seen.items() if k[0] not in writes_lists} == {
        k: n for k, n in logged.items() if k[0] not in writes_lists
    }
    assert writes_lists
    for op in writes_lists:
        assert counted.sum(op=op) == sum(n for k, n in logged.items() if k[0] == op)
    half = str(dtype).removeprefix("torch.")
    casts = [
        (ins[0], out) for name, ins, out in log.ops if name == "aten::_to_copy" and ins[0] != out
    ]
    assert counted.sum(kind=OpKind.CAST) == len(casts)
    assert counted.sum(kind=OpKind.CAST, dtype="float32", out_dtype=half) == casts.count(
        ("torch.float32", f"torch.{half}")
    )


@pytest.mark.parametrize(
    "cast",
    [
        lambda x: x.to(torch.float16),
        lambda x: x.half(),
        lambda x: x.type(torch.float16),
        lambda x: torch.empty(4, 8, dtype=torch.float16).copy_(x),
    ],
)
def test_a_cast_reads_what_is_there_and_writes_half_of_it(cast: Any) -> None:
    """By whichever name; 32 elements of 4 bytes, and of 2."""
    counted = run(lambda: cast(torch.ones(4, 8)))

    ((key, tally),) = counted.of(kind=OpKind.CAST)
    assert (key.inputs, key.dtype, key.out_dtype) == (("float32",), "float32", "float16")
    assert (tally.calls, tally.bytes) == (1, 32 * 4 + 32 * 2)
    assert key.fallback is Fallback.NONE


def test_a_copy_within_a_dtype_is_no_cast() -> None:
    """A copy to another device or layout is no cast either."""
    x = torch.ones(4, 8)
    counted = run(lambda: (x.new_empty(4, 8).copy_(x), x.to("meta"), x.clone(), x.half().float()))

    assert counted.by("op", kind=OpKind.CAST) == {"_to_copy": 2}
    assert counted.by("op", kind=OpKind.COPY) == {"copy_": 1, "_to_copy": 1, "clone": 1}
    assert counted.sum("bytes", op="copy_") == 2 * 4 * 8 * 4


def test_the_casts_of_a_multi_tensor_copy_are_cast_as_one() -> None:
    """Optimizers with master weights copy in this way."""
    halves = [torch.ones(8, dtype=torch.float16), torch.ones(4, dtype=torch.float16)]
    counted = run(lambda: torch._foreach_copy_(halves, [torch.ones(8), torch.ones(4)]))

    ((key, tally),) = counted.of(kind=OpKind.CAST)
    assert (key.dtype, key.out_dtype, tally.bytes) == ("float32", "float16", 12 * (4 + 2))


def test_bytes_are_those_read_and_those_written() -> None:
    """An op in place reads what it changes; so does a multi-tensor one, which returns nothing."""
    x, y = torch.ones(4, 8), torch.ones(4, 8)
    counted = run(
        lambda: (
            x + y,
            x.mul_(y),
            torch._foreach_sub_([x, x], [y, y]),
            torch.sub(x, y, out=torch.empty(4, 8)),
        )
    )

    size = 4 * 8 * 4
    assert counted.by("op", "bytes", kind=OpKind.POINTWISE) == {
        "add": 3 * size,
        "mul_": 3 * size,
        "_foreach_sub_": 6 * size,
        "sub": 3 * size,
    }


def test_an_op_without_floating_point_numbers_has_no_dtype_to_compute_in() -> None:
    """Indices and masks."""
    counted = run(lambda: (torch.arange(4) + 1, torch.ones(3) > 0))

    assert {(k.op, k.inputs, k.dtype, k.out_dtype) for k, _ in counted.tallies} == {
        ("arange", (), "", "int64"),
        ("add", (), "", "int64"),
        ("ones", (), "float32", "float32"),
        ("gt", ("float32",), "float32", "bool"),
    }


def test_inputs_of_several_dtypes_are_promoted_and_named() -> None:
    """Below autocast, where nothing was cast."""
    low, high = torch.ones(8, dtype=torch.bfloat16), torch.ones(8)
    counted = run(lambda: low + high)

    ((key, _),) = counted.of(op="add")
    assert (key.inputs, key.dtype, key.fallback) == (
        ("bfloat16", "float32"),
        "float32",
        Fallback.PROMOTED,
    )


@pytest.mark.parametrize(
    ("shape", "aligned"),
    [((16, 32, 24), True), ((15, 32, 24), True), ((16, 33, 24), False), ((16, 32, 20), False)],
)
def test_flops_are_for_tensor_cores_where_rows_are_multiples_of_16_bytes(
    shape: tuple[int, int, int], *, aligned: bool
) -> None:
    """An odd number of rows of the first operand is harmless."""
    m, k, n = shape
    counted = run(lambda: torch.ones(m, k) @ torch.ones(k, n))

    ((key, tally),) = counted.of(kind=OpKind.MATMUL)
    assert (key.dtype, tally.flops) == ("bfloat16", 2 * m * n * k)
    assert tally.tensor_flops == tally.flops * aligned
    assert tally.unaligned_flops == tally.flops * (not aligned)
    assert tally.shape == (1, m, n, k)


def test_float32_on_a_cpu_is_for_no_tensor_core() -> None:
    """However well it is aligned."""
    with torch.autocast("cpu", enabled=False):
        x = torch.ones(16, 16)
    model = nn.Linear(16, 16)
    with Counted(model) as counted:
        model(x)

    assert counted.sum("flops") > 0
    assert counted.sum("tensor_flops") == counted.sum("unaligned_flops") == 0


def test_the_shape_is_that_of_the_largest_call_and_an_unaligned_one_if_there_is_any() -> None:
    """All of one key."""
    a, b, odd = torch.ones(8, 8), torch.ones(8, 64), torch.ones(8, 9)
    aligned = run(lambda: (a @ a, a @ b, a @ a))
    mixed = run(lambda: (a @ a, a @ odd, a @ b))

    assert [t.shape for _, t in aligned.of(kind=OpKind.MATMUL)] == [(1, 8, 64, 8)]
    assert [t.shape for _, t in mixed.of(kind=OpKind.MATMUL)] == [(1, 8, 9, 8)]


@pytest.mark.parametrize("last", [False, True])
def test_convolutions_of_contiguous_pictures_are_told_from_channels_last(*, last: bool) -> None:
    """Tensor cores want the second."""
    model = nn.Conv2d(8, 8, 3)
    x = torch.randn(2, 8, 6, 6)
    if last:
        model, x = (
            model.to(memory_format=torch.channels_last),
            x.to(memory_format=torch.channels_last),
        )
    with Counted(model) as counted, torch.autocast("cpu", dtype=torch.bfloat16):
        model(x)

    assert counted.sum("nchw_flops") == (0 if last else counted.sum("flops"))
    assert counted.sum("flops") > 0


def test_a_product_of_float8_is_computed_in_float8_whatever_its_scales_are() -> None:
    """The scales are float32, the result is not."""
    a = torch.ones(16, 16).to(torch.float8_e4m3fn)
    one = torch.ones(())
    counts = OpCounts(lambda *_: Fallback.NONE)
    func = aten._scaled_mm.default
    out = torch.empty(16, 16, dtype=torch.bfloat16)
    counts.count(OpCall(func, op_info(func), (a, a.t(), one, one), {}, out), Phase.FORWARD, "m")

    ((key, tally),) = counts.tallies.items()
    assert (key.dtype, key.out_dtype) == ("float8_e4m3fn", "bfloat16")
    assert tally.tensor_flops == tally.flops == 2 * 16**3


def test_copies_of_weights_and_activations_are_weighed_apart() -> None:
    """Tensors that autocast keeps for backward are weighed, each once."""
    model = nn.Linear(16, 8, bias=False)
    x = torch.randn(4, 16)
    with Counted(model) as counted, torch.autocast("cpu", dtype=torch.bfloat16):
        model(x)
        model(x)

    assert counted.census is not None
    assert counted.census.weight_cast_bytes == 2 * 16 * 8
    # The input is cast for each call: autocast keeps copies of leaves only.
    assert counted.census.activation_bytes == 2 * (2 * 4 * 16)


def _odd_tensors() -> dict[str, Callable[[], Any]]:
    x = torch.ones(4, 4)
    return {
        "sparse": lambda: x.to_sparse() + x.to_sparse(),
        "sparse times dense": lambda: torch.sparse.mm(x.to_sparse(), x),
        "complex": lambda: x.to(torch.complex64) @ x.to(torch.complex64),
        "nested": lambda: torch.nested.nested_tensor([x, x]) * 2,
        "quantized": lambda: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8).dequantize(),
        "empty": lambda: torch.ones(0, 4) @ x,
        "no dimensions": lambda: torch.ones(()) * 2,
        "nothing": torch.cuda.is_available,
        "written by name": lambda: torch._foreach_copy_(self=[x], src=[x * 2]),
        "strings": lambda: torch.einsum("ij,jk->ik", x, x),
    }


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", _odd_tensors())
def test_odd_tensors_do_not_end_the_census(name: str) -> None:
    """Tensors without strides, storage or a size in bytes are counted as far as possible."""
    model = nn.Linear(4, 4)
    call = _odd_tensors()[name]

    class Caller(nn.Module):
        def forward(self) -> Any:
            return call()

    caller = Caller()
    with Counted(caller, model) as counted:
        caller()
        model(torch.ones(2, 4))

    assert counted.sum("flops", module="1") == 2 * 2 * 4 * 4


def test_no_more_signatures_are_kept_than_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences of all lengths come along in a run."""
    monkeypatch.setattr(call, "MAX_SHAPES", 3)
    monkeypatch.setattr(call, "MAX_VARIANTS", 2)
    counts = OpCounts(lambda *_: Fallback.NONE)
    for length in range(1, 9):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            a = torch.ones(length, 8, dtype=dtype)
            info = op_info(aten.mm.default)
            out = a @ a.t()
            counts.count(OpCall(aten.mm.default, info, (a, a.t()), {}, out), Phase.EVAL, "")

    assert len(counts._products) <= 3
    assert len(counts._variants) <= 2
    assert sum(t.flops for t in counts.tallies.values()) == 3 * sum(
        2 * n * n * 8 for n in range(1, 9)
    )


def test_a_storage_is_referred_to_for_as_long_as_it_is_there() -> None:
    tensor = torch.ones(3)
    weak = WeakStorage(tensor.untyped_storage())
    view = tensor[1:]
    del tensor
    assert not weak.expired()
    del view

    assert weak.expired()


@pytest.mark.parametrize("kind", [PythonFinalizer, Finalizer])
def test_a_finalizer_calls_once_it_is_let_go_of(kind: Any) -> None:
    """Also while an error is on its way, which stays the error."""
    called: list[object] = []

    def fail() -> None:
        end = kind(called.append, 1)
        assert end is not None
        raise KeyError

    with pytest.raises(KeyError):
        fail()

    assert called == [1]


@pytest.mark.skipif(core is None, reason="the extension module is not built")
def test_no_python_runs_where_a_reference_ends() -> None:
    """There a Ctrl-C would be lost: Python reports what is raised in a `__del__`, and goes on."""
    weak: Any = WeakStorage(torch.ones(3).untyped_storage())
    calls = []
    sys.setprofile(lambda frame, event, _: calls.append(frame) if event == "call" else None)
    del weak
    sys.setprofile(None)

    assert calls == []
