"""Effects of a forward pass on what is not its own, as far as its code shows them.

A replay sees every op before it runs. It does not see Python: a counter on a class, a generator of random
numbers at the top of a module, a queue. So the code of the modules' methods, and of the functions that
they call by a global name, is gone through for what such effects need.
"""

from __future__ import annotations

import dis
import queue
import random
from collections import ChainMap, deque
from collections.abc import Iterator
from contextlib import suppress
from inspect import getattr_static
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from torch import nn

MAX_FUNCTIONS = 2000
"""Functions that are gone through of one class. A class with more is taken for one with effects."""

FOREIGN = ("torch", "numpy", "math", "builtins", "typing", "collections", "functools")
"""Packages whose functions are known to have no such effects, or to have them in what is put back."""

STORES_GLOBAL = ("STORE_GLOBAL", "DELETE_GLOBAL")

LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF")

CONTAINERS = (dict, list, set, deque)

MUTATORS = frozenset(
    {"append", "extend", "insert", "add", "update", "setdefault", "pop", "popleft", "popitem"}
    | {"remove", "discard", "clear", "appendleft"}
)
"""Methods that change a container."""

WITH_STATE = (random.Random, queue.Queue, queue.SimpleQueue, Iterator, torch.Generator)
"""Types of objects that another call finds changed."""


def effect_of(model: nn.Module) -> str:
    """Return what the forward of a model changes besides its own state; empty if nothing is seen.

    Gone through are ``forward``, the methods that it names, and the functions and functions of autograd
    that it names and that are of the same Python module.

    Cost: some 10 us a function. Before a replay.
    """
    for kind in {type(module) for module in model.modules()}:
        waiting = [] if _is_foreign(kind) else _methods(kind, {"forward", "__call__"})
        known = set(map(id, waiting))
        while waiting:
            if len(known) > MAX_FUNCTIONS:
                return f"it calls more than {MAX_FUNCTIONS} functions, too many to go through"
            function = waiting.pop()
            names = _names_of(function)
            for code in _codes_of(function.__code__):
                instructions = list(dis.get_instructions(code))
                effect = _effect(instructions, names)
                if effect:
                    return f"{effect} ({function.__qualname__})"
                for called in _called(kind, function, names, instructions):
                    if id(called) not in known:
                        known.add(id(called))
                        waiting.append(called)
    return ""


def _names_of(function: FunctionType) -> Mapping[str, Any]:
    """Return what the names of a function stand for that are not its own."""
    closed: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with suppress(ValueError):  # a cell that is empty still
            closed[name] = cell.cell_contents
    return ChainMap(closed, function.__globals__)


def _is_foreign(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).partition(".")[0] in FOREIGN


def _methods(kind: type, names: Collection[str]) -> list[FunctionType]:
    """Return the functions that a class has under some names, those of its bases included."""
    found = [getattr_static(kind, name, None) for name in names]
    functions = [getattr(value, "__func__", getattr(value, "fget", value)) for value in found]
    return [f for f in functions if isinstance(f, FunctionType) and not _is_foreign(f)]


def _codes_of(code: CodeType) -> Iterable[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes_of(constant)


def _effect(instructions: Sequence[dis.Instruction], names: Mapping[str, Any]) -> str:
    plain = [i for i in instructions if i.opname not in ("CACHE", "PRECALL", "NOP", "RESUME")]
    for place, instruction in enumerate(plain):
        name = instruction.argval
        if instruction.opname in STORES_GLOBAL:
            return f"changes the global name {name!r}"
        if instruction.opname in LOADS:
            value = names.get(name)
            held = value if isinstance(value, (list, tuple)) else (value,)
            if any(isinstance(v, WITH_STATE) or _is_generator(v) for v in held):
                return f"uses {name!r}, which another call finds changed"
            if isinstance(value, CONTAINERS) and _is_written(plain[place + 1 : place + 4]):
                return f"changes what is in {name!r}"
        if _puts_class(instruction, names) and _is_changed(plain[place + 1 : place + 3]):
            return "changes an attribute of a class"
    return ""


def _is_written(following: Sequence[dis.Instruction]) -> bool:
    """Whether a container on the stack is written to: by a key, or by one of its methods."""
    if following and following[0].opname in ("LOAD_ATTR", "LOAD_METHOD"):
        return following[0].argval in MUTATORS
    return any(i.opname in ("STORE_SUBSCR", "DELETE_SUBSCR") for i in following)


def _puts_class(instruction: dis.Instruction, names: Mapping[str, Any]) -> bool:
    """Whether an instruction puts a class on the stack, or what ``type`` may have returned."""
    if instruction.opname in LOADS:
        return isinstance(names.get(instruction.argval), type)
    return instruction.argval == "__class__" or instruction.opname in ("CALL", "CALL_FUNCTION")


def _is_changed(following: Sequence[dis.Instruction]) -> bool:
    """Whether what is on the stack has an attribute set, or one that is added to."""
    names = [instruction.opname for instruction in following]
    return names[:1] == ["STORE_ATTR"] or names in (["COPY", "LOAD_ATTR"], ["DUP_TOP", "LOAD_ATTR"])


def _is_generator(value: Any) -> bool:
    return type(value).__module__.startswith("numpy.random")


def _called(
    kind: type,
    function: FunctionType,
    names: Mapping[str, Any],
    instructions: Sequence[dis.Instruction],
) -> Iterable[FunctionType]:
    attributes = {i.argval for i in instructions if i.opname in ("LOAD_ATTR", "LOAD_METHOD")}
    yield from _methods(kind, attributes)
    for name in {i.argval for i in instructions if i.opname in LOADS}:
        value = names.get(name)
        if getattr(value, "__module__", None) != function.__module__:
            continue
        if isinstance(value, FunctionType):
            yield value
        elif isinstance(value, type) and issubclass(value, torch.autograd.Function):
            yield from _methods(value, {"forward", "backward", "setup_context"})
