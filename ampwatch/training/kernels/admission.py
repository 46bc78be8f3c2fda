"""Tensors that can be measured, as pieces of memory."""

from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import torch

from ampwatch.training.kernels.dtypes import FLOATS, MEASURED
from ampwatch.training.kernels.pending import PENDING
from ampwatch.training.kernels.rows import MAX_NUMEL
from ampwatch.training.private import (
    ASYNC_RESULT,
    HAS_COME,
    LOCAL_TENSOR,
    NoFunctionSubclass,
    is_functorch_wrapped,
    is_zero_tensor,
    sparse_values,
    unwrap,
)

if TYPE_CHECKING:
    from torch import Tensor

_LAYOUTS = frozenset(
    {
        torch.strided,
        torch.sparse_coo,
        torch.sparse_csr,
        torch.sparse_csc,
        torch.sparse_bsr,
        torch.sparse_bsc,
    }
)
_PLAIN = (torch.Tensor, torch.nn.Parameter)

is_wrapped = is_functorch_wrapped
"""Whether a transform of ``torch.func`` hands out a tensor in place of the one with the elements.

Its class is that of any other tensor, and it has no memory: to ask for an address raises. Nor may it
be kept, since it means nothing once the transform is over.
"""

_PARTS = "__tensor_flatten__"
"""Method by which a class says which tensors one of it is made of (``torch/utils/_python_dispatch.py``)."""

MAX_ZERO_BYTES, FIRST_BYTES = 4096, 64
"""Bytes that are read to see that a tensor is zero; and first of all, as nearly every other one is not zero there."""

MAX_COPIED = 2**26
"""Largest copy of a view with gaps. Gradients and outputs have none; a copy at the peak of
backward's memory must not be what exceeds it. Unit: bytes."""


def admit(tensor: Tensor) -> tuple[list[Tensor], str]:
    """Return the parts of ``tensor`` that a kernel may read.

    Args:
        tensor: Anything. What is stored is measured: of a sparse tensor its values, of an
            expanded one each element once, of a DTensor the local shard.

    Returns:
        The pieces, dense in memory (``base.Kernel.measure``), none if there are no elements;
        and a word, empty if the tensor can be measured: ``integer``, ``complex``, ``dtype``
        (another that cannot be), ``meta``, ``quantized``, ``nested``, ``functorch``, ``fake``,
        ``subclass`` (one that hides its memory), ``layout`` (one without strides), ``freed``
        (its storage was resized, as FSDP does between uses), ``pending`` (a collective has yet to
        write it) or ``gaps`` (a large view that is not dense: it would have to be copied).

    Cost:
        About 1 us and no ATen op for an ordinary tensor. A view with gaps or overlaps is
        copied, if it is small. No communication, no host sync.
    """
    if type(tensor) not in _PLAIN:
        with NoFunctionSubclass():
            return _admit_subclass(tensor)
    return _admit(tensor)


def unwrapped(tensor: Tensor) -> Tensor:
    """Return the tensor that one handed out by a transform stands for, also after its end."""
    while is_wrapped(tensor):
        tensor = unwrap(tensor)
    return tensor


def is_ordinary(value: object) -> TypeGuard[Tensor]:
    """Whether ``value`` is a tensor or parameter itself: no subclass, and none of a transform.

    Ops of a subclass (DTensor, FakeTensor) run code that is not PyTorch's, and where its memory is
    it hides.
    """
    # Not isinstance: that is true of subclasses.
    return type(value) in _PLAIN and not is_wrapped(cast("Tensor", value))


def local_part(tensor: Tensor) -> Tensor | None:
    """Return the tensor in whose memory this process has the elements of another one.

    Returns:
        The tensor itself, of a DTensor the local shard, of the result of a functional collective
        the memory that it comes to lie in; ``None`` of one whose memory is hidden by another
        subclass, or by a transform of ``torch.func``: to read it would run code that is not
        PyTorch's, or raise.
    """
    if is_wrapped(tensor):
        return None
    if type(tensor) in _PLAIN:
        return tensor
    with NoFunctionSubclass():
        inner = _inner(tensor)
        if inner is not None:
            return local_part(inner)
        if type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__:
            return tensor
    return None


def whole_part(tensor: Tensor) -> Tensor | None:
    """Return a tensor of this process that holds all that another one stands for.

    Returns:
        The tensor itself, of a DTensor the local one if each process has all of it; ``None`` where
        the elements are spread over processes, are still to be added up, or have yet to arrive.
    """
    if is_wrapped(tensor) or is_pending(tensor):
        return None
    if type(tensor) in _PLAIN:
        return tensor
    if is_dtensor(tensor) and not all(p.is_replicate() for p in _placements(tensor)):
        return None
    return local_part(tensor)


def is_pending(tensor: Tensor) -> bool:
    """Whether the memory of a tensor is still to be written by a collective. Never waits.

    Cost: 0.1 us for an ordinary tensor while no collective is under way.
    """
    if type(tensor) in _PLAIN:
        return bool(PENDING) and tensor in PENDING
    with NoFunctionSubclass():
        inner = _inner(tensor)
        if inner is None:
            is_in_memory = type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
            return bool(PENDING) and is_in_memory and tensor in PENDING
        # A functional collective has no handle: its result itself knows whether it was waited for.
        return not getattr(tensor, HAS_COME, True) or is_pending(inner)


def is_there(tensor: Tensor) -> bool:
    """Whether the memory of an ordinary tensor holds its elements.

    It does not before a collective has written them, nor after they were freed.
    FSDP frees the weights that it has gathered by resizing their storage to 0; graphs of autograd
    still refer to them, with their shape as it was.

    Cost: 0.3 us for an ordinary tensor while no collective is under way.
    """
    return tensor.untyped_storage().nbytes() > 0 and not is_pending(tensor)


def is_dtensor(tensor: Tensor) -> bool:
    """Whether a tensor is spread over processes by PyTorch itself."""
    return _is_a(tensor, "torch.distributed.tensor", "DTensor")


def is_bare(tensor: Tensor) -> bool:
    """Whether a tensor is of no other class than PyTorch's own two, so that it has no parts."""
    return type(tensor) in _PLAIN


def is_fake_class(kind: type) -> bool:
    """Whether the tensors of a class are PyTorch's fake ones, which compute nothing."""
    loaded = sys.modules.get("torch._subclasses.fake_tensor")
    return loaded is not None and issubclass(kind, loaded.FakeTensor)


def has_parts(tensor: Tensor) -> bool:
    """Whether a tensor of another class is made of tensors that are in memory, and its class says so.

    It says so by PyTorch's protocol of wrapper subclasses, which ``torch.compile`` goes by as well: a
    ``DTensor`` names its shard, a tensor in FP8 its numbers and their scale. Its ops compute with ops
    on those. False of fake tensors, and of all whose parts hold nothing.

    Raises:
        Exception: What the code of the class raises.

    Cost: 1 to 3 us.
    """
    if type(tensor) in _PLAIN:
        return not tensor.is_meta
    flatten = getattr(tensor, _PARTS, None)
    if flatten is None:
        return False
    names, _ = flatten()
    # Among them may be what is no tensor: a ``DTensor`` of PyTorch 2.13 names its mesh as well.
    parts = [part for name in names if isinstance(part := getattr(tensor, name), torch.Tensor)]
    return bool(parts) and all(map(has_parts, parts))


_MADE_OF = {
    ("torch.distributed.tensor", "DTensor"): LOCAL_TENSOR,
    ("torch.distributed._functional_collectives", "AsyncCollectiveTensor"): ASYNC_RESULT,
}
"""Classes of PyTorch's own whose tensors lie in another tensor, and its attribute.

By attribute: ``to_local()`` is a node of the graph, and what an ``AsyncCollectiveTensor`` is asked
for it waits for.
"""


def _inner(tensor: Tensor) -> Tensor | None:
    """Return the tensor that another one lies in; ``None`` if it lies in memory itself."""
    for (module, name), attribute in _MADE_OF.items():
        if _is_a(tensor, module, name):
            inner = getattr(tensor, attribute, None)
            return inner if isinstance(inner, torch.Tensor) else None
    return None


def _placements(tensor: Any) -> tuple[Any, ...]:
    return tuple(tensor.placements)


def _admit_subclass(tensor: Tensor) -> tuple[list[Tensor], str]:
    if is_pending(tensor):
        return [], "pending"
    inner = _inner(tensor)
    if inner is not None:
        return admit(inner)
    if tensor.is_nested:
        return [], "nested"
    if _is_a(tensor, "torch._subclasses.fake_tensor", "FakeTensor"):
        return [], "fake"
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return [], "subclass"
    # What only overrides __torch_function__ has its elements in memory like any other.
    return _admit(tensor.as_subclass(torch.Tensor))


def _is_a(tensor: Tensor, module: str, name: str) -> bool:
    """Whether ``tensor`` is of a class of PyTorch's, without loading its module for that."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(tensor, getattr(loaded, name, ()))


def _admit(tensor: Tensor) -> tuple[list[Tensor], str]:
    reason = _refusal(tensor)
    if reason or (PENDING and tensor in PENDING):
        return [], reason or "pending"
    if tensor.layout is not torch.strided:
        return admit(_stored_values(tensor))
    numel = tensor.numel()
    if numel == 0:
        return [], ""
    # Of a contiguous tensor the extent is known without a loop over its dimensions.
    is_contiguous = tensor.is_contiguous()
    if not _is_in_storage(tensor, numel if is_contiguous else _extent(tensor)):
        return [], "freed"
    # The negative bit of a view is not in memory: kernels would read the signs the other way round.
    if tensor.is_neg():
        tensor = tensor.detach().resolve_neg()
    if not is_contiguous and not is_gapless(tensor):
        tensor = _made_dense(tensor.detach())
        if not is_gapless(tensor):
            return [], "gaps"
    return _cut(tensor), ""


def _cut(tensor: Tensor) -> list[Tensor]:
    """Return pieces of at most ``MAX_NUMEL`` elements of a tensor that is dense."""
    numel = tensor.numel()
    if numel <= MAX_NUMEL:
        return [tensor]
    # as_strided and not view(-1): a dense tensor may be transposed, and the order is of no account.
    flat = tensor.detach().as_strided((numel,), (1,))
    return [flat[begin : begin + MAX_NUMEL] for begin in range(0, numel, MAX_NUMEL)]


def _made_dense(tensor: Tensor) -> Tensor:
    """Return what is stored of an expanded tensor; a copy of what has gaps, if it is small."""
    tensor = stored(tensor)
    small = tensor.numel() * tensor.element_size() <= MAX_COPIED
    return tensor.contiguous() if small and not is_gapless(tensor) else tensor


def stored(tensor: Tensor) -> Tensor:
    """Return the elements of a dense tensor once each, contiguous if no gaps are between them.

    Reductions of PyTorch copy a tensor that is expanded or transposed first, as large as it seems
    to be: 8.6 GB for a mask of 32x32x2048x2048 in bfloat16 of which 8 MB are stored.

    Args:
        tensor: With strides, and at least one element.

    Cost: 1 us for one that is contiguous; no copy.
    """
    if tensor.is_contiguous():
        return tensor
    for dimension in reversed(range(tensor.dim())):
        if tensor.stride(dimension) == 0:
            tensor = tensor.select(dimension, 0)
    if tensor.is_contiguous() or not is_gapless(tensor):
        return tensor
    return tensor.as_strided((tensor.numel(),), (1,))


def _refusal(tensor: Tensor) -> str:
    """Return why a tensor of no special class cannot be measured; empty if it can."""
    if is_wrapped(tensor):
        return "functorch"
    if tensor.is_nested:
        return "nested"
    if tensor.is_quantized:
        return "quantized"
    if tensor.dtype not in MEASURED:
        return _refusal_of_dtype(tensor.dtype)
    if tensor.is_meta:
        return "meta"
    return "" if tensor.layout in _LAYOUTS else "layout"


def _refusal_of_dtype(dtype: torch.dtype) -> str:
    if dtype.is_complex:
        return "complex"
    return "dtype" if dtype.is_floating_point else "integer"


def _stored_values(tensor: Tensor) -> Tensor:
    if tensor.layout is torch.sparse_coo:
        return sparse_values(tensor)
    return tensor.detach().values()


def _extent(tensor: Tensor) -> int:
    """Return the elements of memory from the first to the last."""
    strided = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in strided)


def _is_in_storage(tensor: Tensor, extent: int) -> bool:
    # FSDP resizes the storage of a parameter to 0 between uses and leaves the shape as it is: a
    # kernel that goes by the shape would read memory that is somebody else's, or nobody's.
    end = (tensor.storage_offset() + extent) * tensor.element_size()
    return end <= tensor.untyped_storage().nbytes()


def is_gapless(tensor: Tensor) -> bool:
    """Whether the elements lie one after another, whatever the order of the dimensions."""
    expected = 1
    strided = sorted(zip(tensor.stride(), tensor.shape, strict=True))
    for stride, size in strided:
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def is_dense(tensor: Tensor) -> bool:
    """Whether a tensor has elements that can be read, each at a place of its own in memory."""
    has_places = tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_meta
    # Zeros of forward-mode AD have no memory: to read them ends the process.
    return has_places and not is_zero_tensor(tensor)


def is_plain(value: object) -> bool:
    """Whether ``value`` is an ordinary tensor that ``has_values``."""
    return is_ordinary(value) and has_values(value)


def has_values(tensor: Tensor) -> bool:
    """Whether a tensor that lies in memory is dense, holds something, and holds it already."""
    return is_dense(tensor) and tensor.numel() > 0 and is_there(tensor)


def is_of_floats(value: Any) -> TypeGuard[Tensor]:
    """Whether ``value`` is an ordinary dense tensor of a dtype in ``FLOATS``, of which norms can be taken."""
    return is_plain(value) and value.dtype in FLOATS


def is_zero_on_host(tensor: Tensor) -> bool:
    """Whether a contiguous tensor in host memory is zero in the bytes that are read. No op, no sync."""
    if not is_plain(tensor) or not tensor.is_cpu or not tensor.is_contiguous() or tensor.is_neg():
        return False
    # Read where it lies: an op would show up in the user's profiles and dispatch modes.
    address, count = tensor.data_ptr(), min(tensor.numel() * tensor.element_size(), MAX_ZERO_BYTES)
    if ctypes.string_at(address, min(count, FIRST_BYTES)).strip(b"\0"):
        return False
    return not ctypes.string_at(address, count).strip(b"\0")
