"""Facts about an ATen op that hold for every call: its kind, its name, how its FLOPs are counted."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.numerics.units.ops import OpKind
from ampwatch.training.devices import autocast_key, autocast_types
from ampwatch.training.private import DispatchKey, OpOverload, has_kernel, schema_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


RECURRENT = frozenset(
    name + direction
    for name in ("_cudnn_rnn", "miopen_rnn", "mkldnn_rnn_layer")
    for direction in ("", "_backward")
)
"""Whole recurrent networks in one op, called with their weights."""

_MATMULS = RECURRENT | frozenset(
    {"mm", "addmm", "bmm", "baddbmm", "addbmm", "linear", "matmul", "mv", "addmv", "dot"}
    | {"mkldnn_linear", "_scaled_mm", "_grouped_mm", "_scaled_grouped_mm", "_addmm_activation"}
    | {"_scaled_mm_v2", "_scaled_grouped_mm_v2"}
)
_PARTS = (
    (OpKind.ATTENTION, "attention attn"),
    (OpKind.CONVOLUTION, "convolution cudnn_conv mkldnn_conv conv_depthwise"),
    (OpKind.NORMALIZATION, "norm"),
    (OpKind.LOSS, "loss cross_entropy kl_div"),
    (OpKind.REDUCTION, "softmax logsumexp cumsum cumprod pool argmax topk sum mean"),
    (
        OpKind.COPY,
        (
            "copy clone cat stack fill zero ones empty full arange index gather scatter embedding"
            " pad roll flip repeat"
        ),
    ),
    (OpKind.POINTWISE, "_foreach_ _fused_ add mul div sub threshold dropout where lerp backward"),
)
"""Parts of the names of ops by kind, tried in this order."""

_TAGS = {"pointwise": OpKind.POINTWISE, "reduction": OpKind.REDUCTION}
"""Tags that PyTorch itself gives ops (``torch.Tag``); a name that says more comes first."""

_CASTS = frozenset({"_to_copy", "to", "copy_", "copy", "_foreach_copy_"})

_IGNORED = frozenset(
    {"detach", "lift_fresh", "_unsafe_view", "_local_scalar_dense", "is_same_size", "sym_size"}
    | {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
)
"""Ops that compute nothing."""

VERSIONS = DispatchKey.ADInplaceOrView
"""The part of the dispatcher that keeps views and versions."""

_HANDLE = ".c10d.Work"
"""Ending of the name of the type of a handle on a collective that was begun."""

_FUNCTIONAL = frozenset({"_c10d_functional", "c10d_functional", "_c10d_functional_autograd"})
"""Namespaces of collectives that return tensors, without a handle."""

_PREPARES = frozenset({"fsdp::all_gather_copy_in"})
"""Ops that return the buffer of a collective, of which they have written their own part."""

_WAITS = frozenset({"wait_tensor", "_wrap_tensor_autograd"})
"""Ops among them that begin nothing and compute nothing: the result of a collective is theirs."""

_NOT_TENSORS = frozenset({"prim", "profiler"})
"""Namespaces of ops that are about something else."""

_ALIASES = {
    "linalg_vector_norm": "norm",
    "_cdist_forward": "cdist",
    "_euclidean_dist": "cdist",
    "nll_loss2d_forward": "nll_loss",
    "_ctc_loss": "ctc_loss",
    "_fused_rms_norm": "rms_norm",
}
"""Names under which autocast knows what the dispatcher calls otherwise further down."""


class OpInfo(NamedTuple):
    """Facts about one overload of an op.

    Attributes:
        name: Base name (``addmm``).
        kind: The kind of op; one that may cast is ``CAST``, and each call says whether it does.
        count_flops: Counts its FLOPs as ``flop_registry`` does, ``None`` if that has no formula.
        arguments: Names of its arguments.
        written: Places of the arguments that it changes, if it returns nothing.
        is_ignored: Whether it is a view, or computes nothing.
        is_own: Whether it is one of PyTorch's own (``aten``).
        has_fp32_policy: Per type of device: whether autocast knows the op although tensor cores
            cannot run it, so that it must be one that it runs in float32 or promotes.
        is_collective: Whether the op has only begun when it returns. Until it was waited for,
            the memory of its results holds anything.
        may_copy: Whether only a call tells if it is a view: one that had to copy, or to cast,
            returns memory of its own (``reshape``, ``to``). With gradients these arrive as the ops
            that they consist of; inside of a tensor subclass, and in inference mode, as they are.
    """

    name: str
    kind: OpKind
    count_flops: Callable[..., int] | None
    arguments: tuple[str, ...]
    written: tuple[int, ...]
    is_ignored: bool
    is_own: bool
    has_fp32_policy: Callable[[str], bool]
    is_collective: bool = False
    may_copy: bool = False


@cache
def flop_formulas() -> Mapping[Any, Callable[..., int]]:
    """Return PyTorch's formulas for FLOPs, by op; users may add to them.

    Cost: at the first call 0.1 s where there is Triton.
    """
    # PyTorch imports all of Triton with it, only to know the class of its kernels.
    from torch.utils.flop_counter import flop_registry  # noqa: PLC0415 - where ops are counted

    return flop_registry


def op_info(func: OpOverload) -> OpInfo:
    """Return the facts about ``func``.

    Cost: some 20 us; ask once per op.
    """
    schema = schema_of(func)
    space, _, full = schema.name.partition("::")
    count_flops = flop_formulas().get(func.overloadpacket)
    is_view = _is_view(func)
    may_copy = is_view and _consists_of_ops(func)
    kind = _kind(full, func, has_flops=count_flops is not None)
    known: dict[str, bool] = {}

    def has_fp32_policy(device_type: str) -> bool:
        if device_type not in known:
            known[device_type] = space == "aten" and _autocast_knows(full, device_type)
        return known[device_type]

    return OpInfo(
        name=full,
        kind=OpKind.COPY if may_copy and kind is not OpKind.CAST else kind,
        count_flops=count_flops,
        arguments=tuple(argument.name for argument in schema.arguments),
        written=() if schema.returns else _written(schema.arguments),
        is_ignored=full in _IGNORED
        or space in _NOT_TENSORS
        or _is_wait(schema, space)
        or (is_view and not may_copy),
        is_own=space == "aten",
        has_fp32_policy=has_fp32_policy,
        is_collective=_is_collective(schema, space),
        may_copy=may_copy,
    )


def _is_collective(schema: Any, space: str) -> bool:
    """Whether an op returns a handle to wait for, or tensors that are to be waited for."""
    if space in _FUNCTIONAL:
        return not _is_wait(schema, space)
    if schema.name in _PREPARES:
        return True
    return any(str(value.type).endswith(_HANDLE) for value in schema.returns)


def _is_wait(schema: Any, space: str) -> bool:
    """Whether an op returns what a collective has made, once that is over."""
    return space in _FUNCTIONAL and schema.name.rpartition("::")[2] in _WAITS


def _kind(name: str, func: OpOverload, *, has_flops: bool) -> OpKind:
    if name in _CASTS:
        return OpKind.CAST
    if name in _MATMULS:
        return OpKind.MATMUL
    # A formula in flop_registry means a product of matrices, whatever the name says.
    named = next((kind for kind, parts in _PARTS if any(p in name for p in parts.split())), None)
    if has_flops:
        return named if named is not None and named.has_flops else OpKind.MATMUL
    if named in (OpKind.NORMALIZATION, OpKind.LOSS, OpKind.COPY):
        return named
    tagged = next((_TAGS[tag.name] for tag in func.tags if tag.name in _TAGS), None)
    return tagged or named or OpKind.OTHER


def _written(arguments: Iterable[Any]) -> tuple[int, ...]:
    return tuple(
        place
        for place, argument in enumerate(arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def _is_view(func: OpOverload) -> bool:
    """Whether all outputs share memory with inputs that are not written to."""
    # squeeze_, for one, writes to the shape of its input and to no element.
    if torch.Tag.inplace_view in func.tags:
        return True
    returns = schema_of(func).returns
    aliases = [value.alias_info for value in returns]
    return bool(aliases) and all(a is not None and not a.is_write for a in aliases)


def _consists_of_ops(func: OpOverload) -> bool:
    """Whether an op has one kernel for all devices, which calls other ops."""
    schema = schema_of(func)
    full = f"{schema.name}.{schema.overload_name}".rstrip(".")
    return bool(has_kernel(full, "CompositeImplicitAutograd"))


@cache
def _autocast_knows(name: str, device_type: str) -> bool:
    """Whether a kernel of autocast is registered for an op of ATen, by the name users call it by.

    Cost: some 20 us at the first call; there are as many answers as ops.
    """
    # The dispatcher is asked and no list is kept: the lists of autocast_mode.h change with each
    # version, and users register kernels of their own.
    key = f"Autocast{device_type.upper()}"
    plain = name.rstrip("_").removeprefix("_").removeprefix("native_").removesuffix("_forward")
    for candidate in (name, plain, _ALIASES.get(name, plain)):
        packet = getattr(torch.ops.aten, candidate, None)
        for overload in packet.overloads() if packet is not None else ():
            full = f"aten::{candidate}" + ("" if overload == "default" else f".{overload}")
            try:
                if has_kernel(full, key):
                    return True
            except RuntimeError:  # a type of device that autocast has no key for
                return False
    return False


def keys_passed(func: Any) -> tuple[Any, ...]:
    """Return the dispatch keys that ``func`` passes without a kernel: they apply to what it calls.

    Those of autocast: for ops of users, and ops of PyTorch that autocast has no kernel for, matrix
    products in their kernels are cast. What surely calls no other op is left out. That of views and
    versions, for ops of users and ops on lists (``_foreach_mul_``): what they write to gets its new version
    in what they call, and by the version autograd knows of a write to a view. And autograd's, for ops
    of users without a formula.
    """
    if not isinstance(func, OpOverload):
        return ()
    keys = [autocast_key(device) for device in _lets_autocast_through(func)]
    full, is_of_user = func.name(), func.namespace != "aten"
    if (is_of_user or schema_of(func).is_mutable) and not has_kernel(full, VERSIONS.name):
        keys.append(VERSIONS)
    if is_of_user:
        own = [
            key.name.replace("Autocast", "Autograd") for key in map(autocast_key, autocast_types())
        ]
        if not any(has_kernel(full, key) for key in ("Autograd", "AutogradOther", *own)):
            # The first stands for all types of devices: a set of keys has one place for them.
            keys += [DispatchKey.AutogradCPU, DispatchKey.AutogradOther]
    return tuple(keys)


def _lets_autocast_through(func: Any) -> tuple[str, ...]:
    space, _, name = schema_of(func).name.partition("::")
    if space != "aten":
        return autocast_types()
    if torch.Tag.pointwise in func.tags or name in _IGNORED or name in _CASTS or _is_view(func):
        return ()
    return tuple(device for device in autocast_types() if not _autocast_knows(name, device))


class Dims(NamedTuple):
    """The dimensions of one call that tensor cores care about.

    Attributes:
        shape: ``(B, M, N, K)`` of the matmul, or of what a convolution is as one; of attention
            the shape of the query.
        leading: How many elements the rows of its operands are apart, the channels of a
            convolution, the size of a head: multiples of 16 bytes for full-speed kernels.
            Empty if tensor cores cannot help, or the call is not understood.
    """

    shape: tuple[int, ...] = ()
    leading: tuple[int, ...] = ()


def dims_of(info: OpInfo, tensors: Sequence[torch.Tensor], args: Sequence[Any], out: Any) -> Dims:
    """Return the dimensions of a call with FLOPs."""
    if info.name in RECURRENT:
        return _recurrent(tensors[0], recurrent_weights(info, args))
    if info.kind is OpKind.MATMUL:
        return _matmul(operands_of(info, tensors), out)
    if info.kind is OpKind.CONVOLUTION:
        return _convolution(tensors, args, out)
    return Dims(tuple(tensors[0].shape), (int(tensors[0].shape[-1]),))


def operands_of(info: OpInfo, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Return the two tensors that a matmul multiplies."""
    first = 1 if "add" in info.name else 0
    return tensors[first : first + 2]


def _matmul(operands: Sequence[torch.Tensor], out: Any) -> Dims:
    if len(operands) < 2 or not isinstance(out, torch.Tensor):
        return Dims()
    a, b = operands
    if a.ndim < 2 or b.ndim < 2 or out.ndim < 2:
        return Dims()
    shape = (prod(out.shape[:-2]), int(out.shape[-2]), int(out.shape[-1]), int(a.shape[-1]))
    # A product with a vector does not run on tensor cores, however it is padded.
    return Dims(shape, tuple(map(_row, (a, b, out))) if min(shape[1:]) > 1 else ())


def _row(matrix: torch.Tensor) -> int:
    """Return how many elements the rows of a matrix are apart in memory, or its columns."""
    rows, columns = matrix.stride()[-2:]
    if columns == 1:
        return int(rows)
    return int(columns) if rows == 1 else 1


def recurrent_weights(info: OpInfo, args: Sequence[Any]) -> list[torch.Tensor]:
    """Return the matrices that a recurrent network multiplies by."""
    given = [x for name, x in zip(info.arguments, args, strict=False) if "weight" in name]
    flat = [x for value in given for x in (value if isinstance(value, (list, tuple)) else [value])]
    return [x for x in flat if isinstance(x, torch.Tensor) and x.ndim == 2]


def _recurrent(inputs: torch.Tensor, weights: Sequence[torch.Tensor]) -> Dims:
    if len(weights) < 2:
        return Dims()
    (outputs, features), hidden = weights[0].shape, int(weights[1].shape[1])
    steps = inputs.numel() // max(int(inputs.shape[-1]), 1)
    return Dims((1, steps, int(outputs), int(features)), (int(features), hidden))


def _convolution(tensors: Sequence[torch.Tensor], args: Sequence[Any], out: Any) -> Dims:
    # In backward the gradient of the output comes before image and weight, and several gradients
    # are returned.
    backward = not isinstance(out, torch.Tensor)
    weight = tensors[2] if backward else tensors[1]
    image = tensors[0] if backward else out
    outputs, inputs = int(weight.shape[0]), int(weight.shape[1])
    pixels = prod(image.shape[2:]) * int(image.shape[0])
    # With groups each group is a matmul of its own; a depthwise one is none. In the schemas
    # of convolutions `groups` is the last argument that is an integer.
    numbers = [a for a in args if isinstance(a, int) and not isinstance(a, bool)]
    groups = max(numbers[-1] if numbers else 1, 1)
    shape = (groups, pixels, max(outputs // groups, 1), inputs * prod(weight.shape[2:]))
    return Dims(shape, (inputs, outputs // groups) if inputs > 1 else ())
