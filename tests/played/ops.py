"""Every op of the played device: its outputs are there at once, their elements when it gets there."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from tests.played.machine import POISON, Entry, blocks_of, machine

WAITING = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "is_nonzero", "unique")
"""Beginnings of the ops whose result the host needs before it can go on."""

NAME = "played"


def on_device(value: object) -> bool:
    """Whether a value is a tensor of a played device."""
    return isinstance(value, torch.Tensor) and value.device.type == NAME


def alias(tensor: Tensor) -> Tensor:
    """Return the elements of a device tensor as a tensor of the host that owns nothing."""
    return at(tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes(), tensor)


def at(address: int, nbytes: int, like: Tensor) -> Tensor:
    """Return a tensor of the host over memory, with the dtype and the strides of another."""
    count = nbytes // like.element_size()
    if not count or not like.numel():
        return torch.empty(like.shape, dtype=like.dtype)
    memory = (ctypes.c_uint8 * nbytes).from_address(address)
    # The device writes to it in its own time, when the mode of the host is over.
    is_inference = torch.is_inference_mode_enabled()
    with torch.inference_mode(mode=False) if is_inference else nullcontext():
        typed = torch.frombuffer(memory, dtype=like.dtype, count=count)
        return typed.as_strided(like.shape, like.stride(), like.storage_offset())


def mapped(function: Callable[[Any], Any], values: Any) -> Any:
    """Return arguments or results mapped: tuples, lists and dictionaries, which is all that ops have.

    ``tree_map`` knows any container; here it would look for them several times an op.
    """
    if isinstance(values, tuple | list):
        return type(values)([mapped(function, value) for value in values])
    if isinstance(values, dict):
        return {name: mapped(function, value) for name, value in values.items()}
    return function(values)


def flat(values: Any) -> Iterator[Any]:
    """Yield what arguments or results hold."""
    if isinstance(values, tuple | list):
        for value in values:
            yield from flat(value)
    elif isinstance(values, dict):
        yield from flat(tuple(values.values()))
    else:
        yield values


def fallback(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an op: enqueue it, or wait where its result is wanted by the host."""
    if op.overloadpacket is torch.ops.aten._copy_from:
        return _copy(*args, **kwargs)
    given = [value for value in flat((args, kwargs)) if on_device(value)]
    name = op.overloadpacket.__name__
    if name == "record_stream":
        return None
    if name.startswith(WAITING):
        machine.wait(name)
        out = op(*mapped(_now, args), **mapped(_now, kwargs))
        return mapped(lambda t: t.to(given[0].device) if isinstance(t, torch.Tensor) else t, out)
    _refuse_host_tensors(op, args, kwargs)
    if len({tensor.device for tensor in given}) > 1:
        msg = f"expected all tensors of {op} on one device, got {[t.device for t in given]}"
        raise RuntimeError(msg)
    return _enqueue(op, args, kwargs, given)


def _refuse_host_tensors(op: Any, args: Any, kwargs: Any) -> None:
    for value in flat((args, kwargs)):
        is_host = isinstance(value, torch.Tensor) and value.device.type == "cpu"
        # Steps of an optimizer may be on the host, and single numbers always may.
        if is_host and value.ndim and not op.overloadpacket.__name__.startswith("_foreach"):
            msg = f"expected all tensors of {op} on the device, got one of the host: {value.shape}"
            raise RuntimeError(msg)


def _now(value: object) -> object:
    return alias(value).clone() if on_device(value) else value


def _enqueue(op: Any, args: Any, kwargs: Any, given: Sequence[Tensor]) -> Any:
    written = _written(op, args, kwargs)
    _resize(op, args, kwargs)
    returns = op._schema.returns
    returns_written = bool(returns) and all(r.alias_info is not None for r in returns)
    outs: Any = None
    if returns and not returns_written:
        outs = _outputs(op, args, kwargs, given[0].device)
    fresh = [value for value in flat(outs) if isinstance(value, torch.Tensor)]
    late_args = mapped(_late, args)
    late_kwargs = mapped(_late, kwargs)
    targets = [alias(tensor) for tensor in fresh]
    is_random = torch.Tag.nondeterministic_seeded in op.tags
    drawn = nullcontext() if not is_random else machine.draw(given[0].device.index)

    def run() -> None:
        with drawn:
            result = op(*late_args, **late_kwargs)
        computed = [value for value in flat(result) if isinstance(value, torch.Tensor)]
        for target, value in zip(targets, computed if targets else (), strict=bool(targets)):
            target.copy_(value)

    memory = [t.untyped_storage().data_ptr() for t in (*given, *fresh) if t.numel()]
    device = given[0].device.index
    machine.put(Entry(op.name(), run, blocks_of(memory)), machine.current_stream(device))
    if not returns:
        return None
    if returns_written:
        return written[0] if len(returns) == 1 else tuple(written[: len(returns)])
    return outs


def _resize(op: Any, args: Any, kwargs: Any) -> None:
    """Give outputs that are handed in empty the shape of the result."""
    outs = [a.name for a in op._schema.arguments if a.is_out]
    if any(not kwargs[name].numel() for name in outs if on_device(kwargs.get(name))):
        meta = {name: _meta(value) for name, value in kwargs.items()}
        op(*mapped(_meta, args), **meta)
        for name in outs:
            if kwargs[name].shape != meta[name].shape:
                kwargs[name].resize_(meta[name].shape)


def _late(value: object) -> object:
    """Return an argument as the device will find it when it gets there."""
    if on_device(value):
        return alias(value)  # type: ignore[arg-type]
    if isinstance(value, torch.device) and value.type == NAME:
        return torch.device("cpu")
    if isinstance(value, torch.Tensor) and value.dtype not in (torch.float64, torch.int64):
        return value.clone()  # passed by value at the launch; numbers of Python never change
    return value


def _meta(value: object) -> object:
    if on_device(value):
        tensor: Any = value
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    if isinstance(value, torch.device):
        return torch.device("meta")
    return value


def _outputs(op: Any, args: Any, kwargs: Any, device: torch.device) -> Any:
    """Return new tensors of the shapes and strides that PyTorch infers."""
    inferred = op(*mapped(_meta, args), **mapped(_meta, kwargs))

    def made(value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)

    return mapped(made, inferred)


def _written(op: Any, args: Any, kwargs: Any) -> list[Any]:
    arguments = op._schema.arguments
    named = dict(zip((a.name for a in arguments), args, strict=False)) | kwargs
    return [named.get(a.name) for a in arguments if a.alias_info and a.alias_info.is_write]


def _copy(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:  # noqa: FBT001, FBT002
    """Copy between host and device, or from one device to another."""
    if on_device(source) and on_device(target):
        _copy_on_device(source, target)
    elif on_device(target):
        _to_device(source, target, non_blocking=non_blocking)
    else:
        _to_host(source, target, non_blocking=non_blocking)
    return target


def _copy_on_device(source: Tensor, target: Tensor) -> None:
    read, write = alias(source), alias(target)
    memory = [t.untyped_storage().data_ptr() for t in (source, target) if t.numel()]
    ours = machine.current_stream(source.device.index)
    theirs = machine.current_stream(target.device.index)
    if ours != theirs:
        machine.block(machine.record(0, theirs), ours)
    machine.put(Entry("copy", lambda: write.copy_(read), blocks_of(memory)), ours)
    if ours != theirs:
        machine.block(machine.record(0, ours), theirs)


def _to_device(source: Tensor, target: Tensor, *, non_blocking: bool) -> None:
    pinned = machine.pinned(source.data_ptr()) if source.numel() else None
    if not (non_blocking and pinned is not None):
        machine.wait("a copy to the device that blocks, or from memory that is not pinned")
    if not source.numel():
        return
    write, was = alias(target), source.clone()
    read = at(source.untyped_storage().data_ptr(), source.untyped_storage().nbytes(), source)
    if pinned is None:
        read = was

    # What the device itself writes to it before, it does in its turn.
    is_known = pinned is None or not machine.is_arriving(pinned)
    if pinned is not None:
        machine.copying(pinned, 1)

    def run() -> None:
        if is_known and not torch.equal(
            read.view(-1).view(torch.uint8), was.view(-1).view(torch.uint8)
        ):
            machine.faults.append("pinned memory was overwritten before the device had read it")
        write.copy_(read)
        if pinned is not None:
            machine.copying(pinned, -1)

    memory = [target.untyped_storage().data_ptr()]
    machine.put(Entry("copy to the device", run, blocks_of(memory)), _stream_of(target))


def _to_host(source: Tensor, target: Tensor, *, non_blocking: bool) -> None:
    pinned = machine.pinned(target.data_ptr()) if target.numel() else None
    if not (non_blocking and pinned is not None):
        machine.wait("a copy to the host that blocks, or into memory that is not pinned")
        if source.numel():
            target.copy_(alias(source))
        return
    read = alias(source)
    write = at(target.untyped_storage().data_ptr(), target.untyped_storage().nbytes(), target)
    # Nobody may read it before the event has passed.
    write.view(-1).view(torch.uint8).fill_(POISON)
    machine.copying(pinned, 1)
    machine.arriving(pinned, 1)

    def run() -> None:
        write.copy_(read)
        machine.copying(pinned, -1)
        machine.arriving(pinned, -1)

    memory = [source.untyped_storage().data_ptr()]
    machine.put(Entry("copy to the host", run, blocks_of(memory)), _stream_of(source))


def _stream_of(tensor: Tensor) -> tuple[int, int]:
    return machine.current_stream(tensor.device.index)
