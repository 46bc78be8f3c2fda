"""The kernel of PyTorch's own operations: what it leaves alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ampwatch.numerics.encodings import DTYPES
from ampwatch.training.kernels import eager
from ampwatch.training.kernels.rows import ROW_WORDS
from tests.training.kernels import oracle, reference


class Watcher(TorchDispatchMode):
    """Notes reads of the host, and the largest tensor that an op returns."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.largest = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.reads += func.name() in {"aten::_local_scalar_dense", "aten::item", "aten::nonzero"}
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.largest = max(self.largest, result.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("odd", [0.0, float("inf")])
def test_nothing_is_read_by_an_op_that_would_wait_for_a_device(dtype: str, odd: float) -> None:
    """Host memory is read where it lies, also when a chunk is done again."""
    tensor = torch.full((1000,), odd).to(oracle.TORCH_DTYPES[dtype])
    rows = torch.empty((1, ROW_WORDS), dtype=torch.int32)
    kernel = eager.EagerKernel()

    with Watcher() as watcher:
        kernel.measure([tensor], rows)

    assert watcher.reads == 0
    assert watcher.largest > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_memory_does_not_grow_with_the_tensor(dtype: str) -> None:
    """Scratch memory is that of a chunk, whatever the number of elements."""
    tensor = torch.zeros(3 * eager.CHUNK + 1, dtype=oracle.TORCH_DTYPES[dtype])
    rows = torch.empty((1, ROW_WORDS), dtype=torch.int32)
    kernel = eager.EagerKernel()
    kernel.measure([tensor[:1].clone()], rows)
    own_bytes = tensor.untyped_storage().nbytes()

    with Watcher() as watcher:
        kernel.measure([tensor], rows)

    assert watcher.largest == max(own_bytes, 4 * eager.CHUNK)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "float8_e5m2"])
def test_chunks_are_put_together(dtype: str) -> None:
    """Odd elements in one chunk, ordinary ones in the others."""
    tensor = torch.randn(2 * eager.CHUNK + 100).to(oracle.TORCH_DTYPES[dtype])
    tensor.view(-1)[eager.CHUNK + 5] = float("inf")

    assert oracle.measured(eager.EagerKernel(), [tensor]) == [reference.histogram(tensor)]
