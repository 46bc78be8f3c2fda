"""The native kernel: what it says with each set of instructions, and what it does not do."""

from __future__ import annotations

import math
import runpy
import sys
import threading
import time
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import ampwatch.training.native
from ampwatch.report.html_report import render_html
from ampwatch.training.kernels import native
from ampwatch.training.kernels.base import BLOCK
from ampwatch.training.kernels.dtypes import FLOATS
from ampwatch.training.kernels.rows import BLOCK_ROW_BYTES, ROW_WORDS
from ampwatch.training.native import core
from ampwatch.training.sensors import facts
from tests.training.kernels import oracle, reference
from tests.trainings import build


class OpCounter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.ops.append(func.name())
        return func(*args, **(kwargs or {}))


def test_measuring_calls_no_op(native_kernel: native.NativeKernel) -> None:
    """Nothing shows up in the user's profiles, flop counts and dispatch modes."""
    tensors = [torch.randn(100), torch.zeros(3, 3, dtype=torch.float16)]
    rows = torch.empty((2, ROW_WORDS), dtype=torch.int32)

    with OpCounter() as counter:
        native_kernel.measure(tensors, rows, stride=[1, 2])

    assert counter.ops == []
    assert int(rows[0].sum()) != 0


@pytest.mark.parametrize("dtype", sorted(FLOATS, key=str), ids=str)
def test_a_check_finds_what_is_not_finite_wherever_it_lies(
    native_kernel: native.NativeKernel, dtype: torch.dtype
) -> None:
    """At each place around the ends of blocks and vectors, and nothing where all is finite."""
    check = native_kernel.finite_checks[dtype]
    limits = torch.finfo(dtype)
    numel = 2 * BLOCK + 35
    tensor = (torch.linspace(-1, 1, numel, dtype=torch.float64) * limits.max).to(dtype)
    tensor[::7] = limits.smallest_normal / 2
    tensor[3] = -0.0
    expected = []
    found = [check(tensor.data_ptr(), numel), check(tensor.data_ptr(), 0)]
    for place in (0, 1, 31, BLOCK - 1, BLOCK, 2 * BLOCK + 34):
        for value in (math.inf, -math.inf, math.nan, -math.nan):
            before = tensor[place].clone()
            tensor[place] = value
            expected.append(bool(tensor.isfinite().all()))
            found.append(check(tensor.data_ptr(), numel))
            tensor[place] = before

    assert found == [1, 1, *map(int, expected)]
    assert not any(expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_check_says_of_each_pattern_what_torch_says(
    native_kernel: native.NativeKernel, dtype: torch.dtype
) -> None:
    """All 65536 of them, one at a time."""
    patterns = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)
    check = native_kernel.finite_checks[dtype]
    found = [check(patterns.data_ptr() + 2 * place, 1) for place in range(65536)]

    assert found == patterns.isfinite().int().tolist()


def test_where_there_is_no_memory_nothing_is_known_to_be_finite(
    native_kernel: native.NativeKernel,
) -> None:
    """An address of nothing is not read."""
    assert not any(check(0, 8) for check in native_kernel.finite_checks.values())


def test_other_threads_run_while_it_measures(native_kernel: native.NativeKernel) -> None:
    """Another thread counts during a call, though the interpreter switches between two by itself never."""
    counted, measured = [0], threading.Event()

    def count() -> None:
        while not measured.is_set():
            counted[0] += 1
            time.sleep(0)  # gives the lock back

    tensor, rows = torch.randn(1_000_000), torch.empty((1, ROW_WORDS), dtype=torch.int32)
    thread = threading.Thread(target=count)
    interval = sys.getswitchinterval()
    thread.start()
    try:
        sys.setswitchinterval(1000.0)
        calls = {"measure": 0, "squares": 0, "measure_blocks": 0}
        blocks = torch.empty((1, BLOCK_ROW_BYTES // 4), dtype=torch.int32)
        norms = torch.empty(1)
        for _ in range(10_000):
            for name, call in (
                ("measure", lambda: native_kernel.measure([tensor], rows)),
                ("squares", lambda: native_kernel.norms([tensor], norms)),
                (
                    "measure_blocks",
                    lambda: native_kernel.measure_blocks([tensor], rows, blocks),
                ),
            ):
                before = counted[0]
                call()
                calls[name] += counted[0] > before
            if all(calls.values()):
                break
    finally:
        sys.setswitchinterval(interval)
        measured.set()
        thread.join()

    assert all(calls.values()), calls


def test_too_few_rows_are_refused(native_kernel: native.NativeKernel) -> None:
    """Rather than written beyond."""
    rows = torch.empty((1, ROW_WORDS), dtype=torch.int32)

    with pytest.raises(ValueError, match="a row for each of 2 tensors, got 1"):
        native_kernel.measure([torch.ones(1), torch.ones(1)], rows)


def test_the_counts_are_the_same_with_other_instructions(
    native_kernel: native.NativeKernel,
) -> None:
    """With all that this processor has, from the widest vectors to those that each of its kind has."""
    pieces = [
        torch.full((5000,), 1.5),
        torch.randn(10_000) * 1e-3,
        oracle.bits(range(0, 2**32, 2**32 // 9001), "float32"),
        oracle.all_patterns("float16"),
        oracle.all_patterns("bfloat16"),
    ]
    expected = list(map(reference.histogram, pieces))
    names = core.instructions()
    try:
        for name in names:
            core.choose(name)
            assert oracle.measured(native_kernel, pieces) == expected, name
            for dtype, check in native_kernel.finite_checks.items():
                numbers = torch.ones(100, dtype=dtype)
                assert check(numbers.data_ptr(), 100), name
                numbers[97] = math.inf
                assert not check(numbers.data_ptr(), 100), name
    finally:
        core.choose(names[0])

    assert names


def test_arguments_that_are_none_are_refused() -> None:
    """By an exception and never by a crash: what a caller within ampwatch got wrong."""
    with pytest.raises(TypeError, match="expected 2 arguments, got 1"):
        core.is_finite_float32(0)
    with pytest.raises(TypeError):
        core.squares(1, "address", 0, 0, 0)
    with pytest.raises(ValueError, match="instructions"):
        core.choose("MMX")


def test_without_the_module_there_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch measures where ampwatch was installed without its C part."""
    monkeypatch.setattr(native, "core", None)

    assert native.load() is None


@pytest.mark.parametrize("is_there", [False, True])
def test_a_report_says_of_a_run_that_it_was_watched_without(
    monkeypatch: pytest.MonkeyPatch, *, is_there: bool
) -> None:
    """At its foot, and only there."""
    monkeypatch.setattr(facts, "core", core if is_there else None)
    run = build("fp16-foreach")
    with ampwatch.monitor(run.models, run.scaler, serve=False) as watch:
        run.loop()
        box = watch._outlet.evidence()

    assert box is not None
    assert ("without its C part" in render_html([box])) is not is_there


@pytest.mark.parametrize("is_replaced", [False, True])
def test_what_reads_the_clock_is_python_where_the_clock_is_another(
    monkeypatch: pytest.MonkeyPatch, *, is_replaced: bool
) -> None:
    """C would go by the clock of the system, whatever a program has put in its place."""
    if is_replaced:
        monkeypatch.setattr(time, "perf_counter_ns", lambda: 0)

    made = runpy.run_path(ampwatch.training.native.__file__)

    assert made["timed"] is (None if is_replaced else core)
    assert made["core"] is core
