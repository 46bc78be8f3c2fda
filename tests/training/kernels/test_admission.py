"""Admission of tensors: the measured ones, and the part of memory that is read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ampwatch.numerics.exponents import merged
from ampwatch.training.kernels import admission
from ampwatch.training.kernels.admission import (
    admit,
    is_ordinary,
    is_wrapped,
    local_part,
)
from ampwatch.training.kernels.base import Kernel
from tests.training.kernels import oracle, reference


@pytest.mark.parametrize(
    "view",
    [
        torch.randn(3, 4).t(),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(2, 3, 4, 5, 6).permute(3, 1, 0, 4, 2),
        torch.randn(4, 1, 3)[:, :, :].transpose(0, 2),
        torch.randn(10)[3:7],
        torch.tensor(3.0),
    ],
    ids=["transposed", "channels_last", "permuted", "one", "slice", "scalar"],
)
def test_dense_views_are_taken_in_the_order_of_memory(view: torch.Tensor, kernel: Kernel) -> None:
    """Whatever the order of the dimensions; the histogram is that of the view."""
    ((piece,), reason) = admit(view)

    assert (piece.data_ptr(), piece.numel(), reason) == (view.data_ptr(), view.numel(), "")
    assert oracle.measured(kernel, [piece]) == [reference.histogram(view)]


@pytest.mark.parametrize(
    "view",
    [
        torch.randn(6, 6)[:, ::2],
        torch.randn(6, 6)[::2].t(),
        torch.randn(12).unfold(0, 4, 2),
        torch.tensor([1 + 2j, 3 - 4j]).real,
    ],
    ids=["gaps", "gaps transposed", "overlaps", "real part"],
)
def test_views_with_gaps_or_overlaps_are_measured_element_by_element(
    view: torch.Tensor, kernel: Kernel
) -> None:
    """A small copy is measured."""
    ((piece,), reason) = admit(view)

    assert reason == ""
    assert oracle.measured(kernel, [piece]) == [reference.histogram(view)]


@pytest.mark.parametrize("base", [torch.randn(1, 4), torch.randn(())], ids=["row", "scalar"])
def test_of_an_expanded_tensor_what_is_stored_is_measured(
    base: torch.Tensor, kernel: Kernel
) -> None:
    """The gradient of a mean is expanded; written out it could be larger than the memory."""
    ((piece,), reason) = admit(base.expand(2**40, 4))

    assert reason == ""
    assert oracle.measured(kernel, [piece]) == [reference.histogram(base)]


def test_a_large_view_with_gaps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy at the peak of backward's memory could be what exceeds it."""
    view = torch.randn(64, 64)[:, ::2]
    small = admit(view)
    monkeypatch.setattr(admission, "MAX_COPIED", 1000)

    assert small[1] == ""
    assert admit(view) == ([], "gaps")


@pytest.mark.parametrize("stride", [1, 2])
def test_a_lazily_negated_view_has_its_infinities_negated(stride: int, kernel: Kernel) -> None:
    """The memory of the imaginary part of a conjugate has the other sign."""
    pair = torch.view_as_complex(torch.tensor([[1.0, float("inf")], [2.0, 3.0]])).conj()
    view = pair.imag[::stride] if stride > 1 else torch._neg_view(torch.tensor([float("inf")]))

    ((piece,), _) = admit(view)

    assert oracle.measured(kernel, [piece])[0].negative_infs == 1


@pytest.mark.parametrize("tensor", [torch.zeros(0), torch.zeros(3, 0, 2).to(torch.float16)])
def test_an_empty_tensor_has_no_pieces_and_is_not_refused(tensor: torch.Tensor) -> None:
    """There is nothing to measure, and nothing wrong."""
    assert admit(tensor) == ([], "")


def test_parameters_are_admitted() -> None:
    """Parameters that require gradients are, and those of lazy modules that have no shape yet."""
    parameter = torch.nn.Parameter(torch.ones(3))

    ((piece,), reason) = admit(parameter)

    assert (piece.data_ptr(), reason) == (parameter.data_ptr(), "")
    assert admit(torch.nn.parameter.UninitializedParameter()) == ([], "")


class Tagged(torch.Tensor):
    """A subclass that sees each call on it."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        msg = "the user's code was called"
        raise AssertionError(msg)


def test_a_subclass_with_its_elements_in_memory_is_read_behind_its_back() -> None:
    """``__torch_function__`` is not called, then or later."""
    with torch._C.DisableTorchFunctionSubclass():
        tagged = torch.ones(3).as_subclass(Tagged)

    ((piece,), reason) = admit(tagged)

    assert type(piece) is torch.Tensor
    assert (piece.tolist(), reason) == ([1.0, 1.0, 1.0], "")


class Hidden(torch.Tensor):
    """A subclass that keeps its elements to itself."""

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        raise NotImplementedError


def _hidden() -> torch.Tensor:
    return torch.Tensor._make_wrapper_subclass(Hidden, (2,))


def _fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(2)


def _freed() -> torch.Tensor:
    tensor = torch.ones(4)[1:]
    tensor.untyped_storage().resize_(0)
    return tensor


def _nested(layout: torch.layout) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)


@pytest.mark.filterwarnings("ignore")  # PyTorch calls nested and quantized tensors prototypes
@pytest.mark.parametrize(
    ("reason", "make"),
    [
        ("integer", lambda: torch.ones(2, dtype=torch.int64)),
        ("integer", lambda: torch.ones(2, dtype=torch.bool)),
        ("complex", lambda: torch.ones(2, dtype=torch.complex64)),
        ("dtype", lambda: torch.ones(2, dtype=torch.uint8).view(torch.float8_e8m0fnu)),
        ("meta", lambda: torch.ones(2, device="meta")),
        ("quantized", lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)),
        ("nested", lambda: _nested(torch.strided)),
        ("nested", lambda: _nested(torch.jagged)),
        ("fake", _fake),
        ("subclass", _hidden),
        ("layout", lambda: torch.ones(2, 2).to_mkldnn()),
        ("freed", _freed),
    ],
)
def test_what_cannot_be_measured_is_refused_with_the_reason(reason: str, make: Any) -> None:
    """In one word, and without an exception."""
    assert admit(make()) == ([], reason)


@pytest.mark.parametrize("transform", [torch.func.vmap, torch.func.grad, torch.func.functionalize])
def test_tensors_inside_a_function_transform_are_refused(transform: Any) -> None:
    """Tensors inside a transform stand for others, and have no memory of their own."""
    seen = []

    def function(tensor: torch.Tensor) -> torch.Tensor:
        seen.append((admit(tensor), local_part(tensor), is_ordinary(tensor), is_wrapped(tensor)))
        return tensor.sum()

    transform(function)(torch.ones(3))

    assert seen == [(([], "functorch"), None, False, True)]


@pytest.mark.filterwarnings("ignore:Sparse")  # PyTorch calls compressed layouts a beta
@pytest.mark.parametrize("layout", ["coo", "uncoalesced", "csr", "csc", "bsr", "bsc"])
def test_of_a_sparse_tensor_the_stored_values_are_measured(layout: str, kernel: Kernel) -> None:
    """Zeros that are not stored are not counted."""
    matrix = torch.diag(torch.tensor([1.0, 2.0, 4.0, 8.0]))
    if layout == "uncoalesced":
        sparse = torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (3,))
    elif layout == "coo":
        sparse = matrix.to_sparse()
    else:
        block = {"blocksize": (1, 1)} if layout.startswith("b") else {}
        sparse = getattr(matrix, f"to_sparse_{layout}")(**block)

    (pieces, reason) = admit(sparse)

    assert reason == ""
    (histogram,) = oracle.measured(kernel, pieces)
    assert histogram.zeros == 0
    assert set(histogram.by_exponent()) == ({0, 1} if layout == "uncoalesced" else {0, 1, 2, 3})


@contextlib.contextmanager
def _process_group() -> Iterator[None]:
    distributed = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch without distributed")
def test_of_a_dtensor_the_local_shard_is_measured() -> None:
    """Without communication, as FSDP's parameters are."""
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh  # noqa: PLC0415

    with _process_group():
        mesh = init_device_mesh("cpu", (1,))
        whole = torch.nn.Parameter(torch.randn(4, 4))
        shard = torch.nn.Parameter(distribute_tensor(whole.detach(), mesh, [Shard(0)]))

        ((piece,), reason) = admit(shard)

        assert type(piece) is torch.Tensor
        assert (piece.tolist(), reason) == (whole.tolist(), "")


@pytest.mark.parametrize("transposed", [0, 1])
def test_a_tensor_longer_than_a_row_can_count_comes_in_pieces(
    transposed: int, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together they are the tensor; each is within the limit."""
    monkeypatch.setattr(admission, "MAX_NUMEL", 40)
    tensor = torch.nn.Parameter(torch.randn(10, 9))
    view = tensor.t() if transposed else tensor

    (pieces, reason) = admit(view)

    assert ([p.numel() for p in pieces], reason) == ([40, 40, 10], "")
    assert not any(p.requires_grad for p in pieces)
    assert merged(oracle.measured(kernel, pieces)) == reference.histogram(tensor)
