"""Description of an exception that has ended a training, from its traceback."""

from __future__ import annotations

import ast
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from ampwatch.diagnosis.calls.known_errors import refuses_nonfinite
from ampwatch.diagnosis.evidence.calls import Raised
from ampwatch.training.hooks.sources import is_users_file, line_of
from ampwatch.training.kernels.admission import is_of_floats
from ampwatch.training.kernels.dtypes import name_of
from ampwatch.wire.blackbox.exception import chain_of, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType, TracebackType

    from ampwatch.training.model.names import Names
    from ampwatch.training.model.optimizers import OptimizerRegistry

MAX_FRAMES = 400
"""Innermost frames of a traceback that are examined."""

BETWEEN = ("ampwatch.", "torch.utils._", "torch._", "torch.overrides")
"""Beginnings of the names of modules whose frames call ops for others."""

OPERATORS = {
    ast.MatMult: "matmul",
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.Pow: "pow",
}
"""PyTorch's names of Python's operators."""


def describe(
    error: BaseException | None,
    step: int,
    names: Names,
    registry: OptimizerRegistry,
    autocast_dtypes: Sequence[str],
) -> Iterator[Raised]:
    """Yield a description of an exception, and of each that it was raised from.

    Args:
        error: The exception. Neither it nor its frames are kept.
        step: Index of the open iteration.
        names: Names of modules and parameters.
        registry: Numbers of optimizers.
        autocast_dtypes: Names of the autocast dtypes seen.
    """
    half = (torch.float16, torch.bfloat16)
    in_half = bool(autocast_dtypes) or any(p.dtype in half for _, p in names.parameters())
    modules = {id(module): name for name, module in names.modules()}
    for seen in chain_of(error):
        if isinstance(seen, Exception):
            yield _describe(seen, step, modules, names, registry)._replace(in_half=in_half)


def _describe(
    error: Exception,
    step: int,
    modules: dict[int, str],
    names: Names,
    registry: OptimizerRegistry,
) -> Raised:
    trail = _trail(error.__traceback__)
    frames = [link.tb_frame for link in trail]
    # Not by its truth: an empty ModuleList is false, and a module that torch.compile has wrapped raises.
    owners = (_module_of(frame, modules) for frame in reversed(frames))
    module = next((owner for owner in owners if owner is not None), None)
    optimizer = next((o for f in reversed(frames) if (o := _optimizer_of(f)) is not None), None)
    index = -1 if optimizer is None else registry.admit(optimizer)
    lacking, count = ((), 0) if optimizer is None else _without_gradient(optimizer, index, names)
    own = next(
        (link for link in reversed(trail) if is_users_file(link.tb_frame.f_code.co_filename)), None
    )
    text = text_of(error)
    return Raised(
        step=step,
        type_name=type(error).__name__,
        message=text,
        module=None if module is None else modules[id(module)],
        module_type="" if module is None else type(module).__name__,
        op=next((op for link in reversed(trail) if (op := _op_of(link))), ""),
        optimizer=index,
        in_backward=any(_goes_back(frame) for frame in frames),
        without_gradient=lacking,
        parameters=count,
        source="" if own is None else f"{own.tb_frame.f_code.co_filename}:{own.tb_lineno}",
        in_float16=() if optimizer is None else _in_float16(optimizer, index, names),
        in_function=own is not None and _is_function(own.tb_frame.f_back),
        variables=() if own is None or not refuses_nonfinite(text) else _held(own.tb_frame),
    )


def _trail(traceback: TracebackType | None) -> list[TracebackType]:
    trail = []
    while traceback is not None:
        trail.append(traceback)
        traceback = traceback.tb_next
    return trail[-MAX_FRAMES:]


def _held(frame: FrameType) -> tuple[tuple[str, str, bool], ...]:
    """Return name, dtype and whether all elements are finite, of the tensors of a frame."""
    return tuple(
        (name, name_of(value.dtype), bool(value.detach().isfinite().all()))
        for name, value in frame.f_locals.items()
        if is_of_floats(value)
    )


def _module_of(frame: FrameType, modules: dict[int, str]) -> nn.Module | None:
    # f_locals copies the values of the frame's variables: nothing of the user's runs.
    owner = frame.f_locals.get("self")
    return owner if isinstance(owner, nn.Module) and id(owner) in modules else None


def _optimizer_of(frame: FrameType) -> Optimizer | None:
    """Return the optimizer that a method of ``GradScaler`` was called with."""
    if frame.f_globals.get("__name__", "").partition(".")[0] != "torch":
        return None
    optimizer = frame.f_locals.get("optimizer")
    return optimizer if isinstance(optimizer, Optimizer) else None


def _goes_back(frame: FrameType) -> bool:
    is_torchs = frame.f_globals.get("__name__", "") in ("torch.autograd", "torch.autograd.graph")
    return is_torchs and frame.f_code.co_name in ("backward", "_engine_run_backward")


def _is_function(frame: FrameType | None) -> bool:
    """Whether a frame calls the ``backward`` of a function as it is, without ``custom_bwd``."""
    function = None if frame is None else frame.f_locals.get("self")
    return isinstance(function, torch.autograd.function.BackwardCFunction)


def _without_gradient(
    optimizer: Optimizer, index: int, names: Names
) -> tuple[tuple[tuple[str, tuple[str, ...]], ...], int]:
    """Return the parameters without a gradient by reason, and the number of all parameters."""
    named = names.of_optimizer(optimizer, index)
    frozen = tuple(name for name, p in named if not p.requires_grad)
    unused = tuple(name for name, p in named if p.requires_grad and p.grad is None)
    reasons = (
        ("frozen, requires_grad is False", frozen),
        ("unused or detached in this backward", unused),
    )
    return tuple((reason, found) for reason, found in reasons if found), len(named)


def _in_float16(optimizer: Optimizer, index: int, names: Names) -> tuple[str, ...]:
    named = names.of_optimizer(optimizer, index)
    return tuple(name for name, p in named if p.dtype is torch.float16)


def _op_of(link: TracebackType) -> str:
    """Return the name of the function, method or operator that a frame was calling."""
    # A dispatch mode, the user's or ours, stands between the call and the op.
    if link.tb_frame.f_globals.get("__name__", "").startswith(BETWEEN):
        return ""
    text = _text_of(link)
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        return ""
    return _name_of(tree)


def _name_of(tree: ast.AST) -> str:
    if isinstance(tree, ast.Call):
        if isinstance(tree.func, ast.Attribute):
            return tree.func.attr
        return tree.func.id if isinstance(tree.func, ast.Name) else ""
    if isinstance(tree, ast.BinOp):
        return OPERATORS.get(type(tree.op), "")
    return "index_put_" if isinstance(tree, ast.Subscript) else ""


def _text_of(link: TracebackType) -> str:
    """Return the expression that a frame was computing; before Python 3.11 its whole line."""
    code: Any = link.tb_frame.f_code
    name = code.co_filename
    line = link.tb_lineno
    if not hasattr(code, "co_positions"):
        return line_of(name, line).strip().removeprefix("return ")
    # tb_lasti counts bytes; positions are listed per code unit of two bytes.
    position = next(islice(code.co_positions(), link.tb_lasti // 2, None), None)
    if position is None or None in position:
        return ""
    first, last, begin, end = position
    # Columns are offsets into UTF-8, so the lines are cut as bytes; the last one first, as it may
    # be the first as well.
    lines = [line_of(name, number).encode() for number in range(first, last + 1)]
    if not any(lines):
        return ""
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]
    return b"".join(lines).decode(errors="replace")
