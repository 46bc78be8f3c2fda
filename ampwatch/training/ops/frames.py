"""The place of an op where no hook may be on modules: read off the frames that it was called from."""

from __future__ import annotations

import inspect
import re
import sys
from bisect import bisect_right
from enum import Enum
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.training.hooks.sources import GENERATED
from ampwatch.training.kernels.admission import is_dense
from ampwatch.training.model.module_stack import ACCUMULATES, MAX_MARKS
from ampwatch.training.ops.call import tensors_among
from ampwatch.training.ops.graphs import (
    CapturedGraph,
    KnownModules,
    assigned,
    common,
    generated_line,
    nodes_of,
)
from ampwatch.training.ops.storage import WeakStorage
from ampwatch.training.private import (
    ENGINE,
    MODULE_CALLS,
    current_node,
    next_sequence_number,
    sequence_number,
    storage_key,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import CodeType, FrameType

    from torch import Tensor

    from ampwatch.numerics.units.ops import OpKind
    from ampwatch.training.model.names import Names
    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.ops.graphs import GraphNode, Line

MAX_CODES = 8192
"""Code objects whose kind is remembered."""

MAX_GRAPHS = 1024
"""Graphs whose nodes are remembered. A training that compiles more has other worries."""

COMPILED = "__compiled_fn"
"""How the names begin by which PyTorch's rewritten bytecode calls a compiled graph."""

_GIVEN = re.compile(r"(?:primals|arg|tangents)_?\d")


def runs_elsewhere() -> bool:
    """Whether another thread is in a module.

    Cost: 2 us, and 0.05 us a frame of the other threads.
    """
    frames = sys._current_frames()  # noqa: SLF001 - documented, and the only way
    # A frame that refers to itself is freed by the collector alone, and so are the locals of all its
    # callers: the loss, and the graph behind it.
    del frames[get_ident()]
    for frame in frames.values():
        above: FrameType | None = frame
        while above is not None:
            if above.f_code in MODULE_CALLS:
                return True
            above = above.f_back
    return False


def _is_forward_of_function(code: CodeType) -> bool:
    """Whether code is the forward of a ``torch.autograd.Function``.

    Not by the frame of ``apply``, which is no Python from torch 2.15 on. Not by the code of what
    the forward is decorated with either, for that code may decorate anything: an evaluation in
    ``torch.no_grad``, say.

    Cost: some 20 us, once for each code.
    """
    kinds: list[type] = [torch.autograd.Function]
    while kinds:
        kind = kinds.pop()
        forward = inspect.unwrap(getattr(vars(kind).get("forward"), "__func__", _nothing))
        if getattr(forward, "__code__", None) is code:
            return True
        kinds.extend(type.__subclasses__(kind))
    return False


def _nothing() -> None:
    """Stand for the forward of a class that inherits it."""


class _Kind(Enum):
    """What a frame with a code object is."""

    OTHER = 0
    MODULE = 1
    FUNCTION = 2
    ENTRY = 3
    GRAPH = 4
    GENERATED = 5
    ENGINE = 6


class _Code(NamedTuple):
    """A code object, held so that its identity is not given to another one, and what it is."""

    code: CodeType  # the code object
    kind: _Kind  # what it is
    graph: str = ""  # of an entry the name of the compiled graph
    nodes: Mapping[str, GraphNode] | None = None  # of a graph its nodes


class _Stack(NamedTuple):
    """The frames that an op was called from, as far as they matter."""

    # name of the innermost watched module that Python has called; ``None`` without one
    root: str | None
    is_function: bool  # whether a function of autograd runs inside of it
    entry: str  # name of the innermost compiled graph that was entered inside of it
    inner: FrameType | None  # the innermost frame of a graph, or of generated code
    code: _Code | None  # what is known of its code


class _Mark(NamedTuple):
    """The place of the op that came after a node of autograd was made."""

    module: str
    root: str | None
    graph: str


class FramePlace(NamedTuple):
    """The place of an op.

    Attributes:
        module: Qualified name of its module; empty for the root and outside of all.
        is_inside: Whether a watched module was running, or is what was compiled.
        has_grad: Whether gradients are recorded, in the function of autograd around it as well.
        source: ``file:line`` of the user's code it was compiled from; empty without.
        unseen: Those of its inputs that fused code has made: nobody has seen it write them.
        is_compiled: Whether compiled code has called it, in which autocast is explicit casts.
    """

    module: str = ""
    is_inside: bool = False
    has_grad: bool = False
    source: str = ""
    unseen: tuple[Tensor, ...] = ()
    is_compiled: bool = False


class FramePlaces:
    """Tells the module of each op from the frames of the thread, for compiled code as well.

    A module that is called from Python has a frame. Inside of compiled code there are no modules;
    there the graph, or the generated code, that calls the op says which node it computes, and the
    graph that was captured says which module that node is of. In backward the module of a node of
    autograd is that of the op that ran after the node was made; an op of generated code is one of
    the module that has read the same saved tensor in forward.

    Args:
        names: The qualified names of the watched modules.

    Attributes:
        is_fused: Whether code that computes without ops has run since ``begin``.
    """

    def __init__(self, names: Names) -> None:
        self._known = KnownModules(names)
        self._codes: dict[int, _Code] = {}
        self._graphs: dict[str, CapturedGraph] = {}
        self.clear()

    def clear(self) -> None:
        """Forget the iteration."""
        self.is_fused = False
        self._thread = 0
        self._number = 0
        self._numbers: list[int] = []
        self._marks: list[_Mark] = []
        self._readers: dict[int, _Readers] = {}

    def forget(self) -> None:
        """Forget everything, the graphs as well."""
        self.clear()
        self._known.clear()
        self._codes.clear()
        self._graphs.clear()

    def begin(self) -> None:
        """Begin an iteration, in the thread that trains."""
        self.clear()
        self._known.learn()
        self._thread = get_ident()
        self._number = next_sequence_number()

    def learn(self, graph: Any) -> None:
        """Take in a graph, in the call that captures it."""
        name = graph.meta.get("backend_id") if len(self._graphs) < MAX_GRAPHS else None
        if not isinstance(name, str):
            return
        self._known.learn()
        root = self._stack(sys._getframe(1)).root  # noqa: SLF001 - documented, and the only way
        self._graphs[name] = CapturedGraph(root, nodes_of(graph.graph, self._known, root))

    def place(self, call: OpCall, *, is_backward: bool) -> FramePlace:
        """Return the place of an op that has returned.

        Cost: 50 ns a frame; 1 to 2 us for a module, some more in compiled code.
        """
        stack = self._stack(sys._getframe(1))  # noqa: SLF001 - documented, and the only way
        if is_backward:
            return self._backward(call, stack)
        place = self._forward(call, stack)
        self._mark(place.module, stack)
        return place

    def _forward(self, call: OpCall, stack: _Stack) -> FramePlace:
        graph = self._graphs.get(stack.entry)
        line = self._line(stack)
        node = self._node(stack, graph, line)
        module, source = stack.root, ""
        if node is not None and node.module is not None:
            module = node.module if graph is None else graph.renamed(node.module, stack.root)
            source = node.source
        if line is not None and module is not None:
            self._note_readers(call, line, module)
        return FramePlace(
            module or "",
            module is not None,
            torch.is_grad_enabled() or stack.is_function,
            source,
            _unseen(call, line),
            bool(stack.entry) or stack.inner is not None,
        )

    def _backward(self, call: OpCall, stack: _Stack) -> FramePlace:
        if stack.root is not None:
            # A forward pass that backward repeats (checkpointing) runs in its modules.
            return self._forward(call, stack)
        mark = self._mark_of_node()
        if stack.inner is None:
            return FramePlace(mark.module)
        graph = self._graphs.get(mark.graph)
        line = self._line(stack)
        module, source = mark.root or "", ""
        if line is not None:
            module = self._reader(call, line) or module
        else:
            node = self._node(stack, graph, line)
            if node is not None and node.module is not None:
                renamed = graph.renamed(node.module, mark.root) if graph else node.module
                module, source = renamed or "", node.source
        unseen = _unseen(call, line)
        return FramePlace(module, source=source, unseen=unseen, is_compiled=True)

    def _line(self, stack: _Stack) -> Line | None:
        """Return the call of generated code that the op is made by; ``None`` without."""
        if stack.inner is None or stack.code is None or stack.code.kind is not _Kind.GENERATED:
            return None
        self.is_fused = True
        return generated_line(stack.code.code.co_filename, stack.inner.f_lineno)

    def _node(
        self, stack: _Stack, graph: CapturedGraph | None, line: Line | None
    ) -> GraphNode | None:
        """Return the node of a graph that the op computes, if it says its module."""
        if line is not None:
            found = [graph.nodes.get(name) for name in line.nodes] if graph is not None else []
            return next(
                (n for n in reversed(found) if n is not None and n.module is not None), None
            )
        if stack.inner is None or stack.code is None:
            return None
        nodes = stack.code.nodes
        if nodes is None:
            root = graph.root if graph is not None else stack.root
            nodes = self._nodes_of(stack.inner, root)
            self._codes[id(stack.code.code)] = stack.code._replace(nodes=nodes)
        return nodes.get(assigned(stack.code.code.co_filename, stack.inner.f_lineno))

    def _nodes_of(self, frame: FrameType, root: str | None) -> Mapping[str, GraphNode]:
        # Once for each graph, since before Python 3.13 the frame keeps what it is asked for, and
        # with it tensors that its code is about to let go.
        graph = getattr(frame.f_locals.get("self"), "graph", None)
        return {} if graph is None else nodes_of(graph, self._known, root)

    def _stack(self, frame: FrameType | None) -> _Stack:
        """Walk from a frame to the innermost call of a watched module, or to that of backward."""
        codes = self._codes
        inner: FrameType | None = None
        inner_code: _Code | None = None
        is_function, entry = False, ""
        while frame is not None:
            code = codes.get(id(frame.f_code)) or self._classify(frame)
            kind = code.kind
            if kind is _Kind.MODULE:
                name = self._known.name_of(frame.f_locals.get("self"))
                if name is not None:
                    return _Stack(name, is_function, entry, inner, inner_code)
            elif kind is _Kind.FUNCTION:
                is_function = True
            elif kind is _Kind.ENGINE:
                break  # who has called backward does not run its nodes
            elif kind is _Kind.ENTRY:
                entry = entry or code.graph
            elif kind is not _Kind.OTHER and inner is None:
                inner, inner_code = frame, code
            frame = frame.f_back
        return _Stack(None, is_function, entry, inner, inner_code)

    def _classify(self, frame: FrameType) -> _Code:
        # By identity: code objects compare by value, and not by the name of their file.
        code = frame.f_code
        kind, graph = _Kind.OTHER, ""
        if code in MODULE_CALLS:
            kind = _Kind.MODULE
        elif _is_forward_of_function(code):
            kind = _Kind.FUNCTION
        elif code is ENGINE:
            kind = _Kind.ENGINE
        elif code.co_filename.startswith("<eval_with_key>"):
            kind = _Kind.GRAPH
        elif str(frame.f_globals.get("__name__", "")).startswith(GENERATED):
            kind = _Kind.GENERATED
        elif names := [name for name in code.co_names if name.startswith(COMPILED)]:
            kind, graph = _Kind.ENTRY, names[0]
        if len(self._codes) >= MAX_CODES:
            self._codes.clear()
        known = self._codes[id(code)] = _Code(code, kind, graph)
        return known

    def _mark(self, module: str, stack: _Stack) -> None:
        """Note which place the nodes belong to that were made since the op before."""
        # Autograd makes the node of an op before it runs the op, and numbers nodes by thread.
        if get_ident() != self._thread or len(self._numbers) >= MAX_MARKS:
            return
        number = next_sequence_number()
        if number > self._number:
            self._numbers.append(self._number)
            self._marks.append(_Mark(module, stack.root, stack.entry))
            self._number = number

    def _mark_of_node(self) -> _Mark:
        """Return the mark of the node of autograd that is running."""
        node = current_node()
        number = ACCUMULATES if node is None else sequence_number(node)
        index = bisect_right(self._numbers, number) - 1
        if index < 0 or number >= min(self._number, ACCUMULATES):
            return _Mark("", None, "")
        return self._marks[index]

    def _note_readers(self, call: OpCall, line: Line, module: str) -> None:
        """Note which module reads the tensors that an op of a forward pass is given."""
        for variable, tensor in _operands(call, line):
            storage = tensor.untyped_storage()
            key: int = storage_key(storage)
            readers = self._readers.get(key)
            if readers is None or readers.variable != variable:
                # Another variable is other values in the same memory. The weak reference keeps the
                # identity, not the memory, from being given to another storage.
                held = WeakStorage(storage) if readers is None else readers.storage
                readers = self._readers[key] = _Readers(held, variable, {})
            readers.modules.setdefault(call.info.kind, []).append(module)

    def _reader(self, call: OpCall, line: Line) -> str:
        """Return the module that has read a saved tensor, by an op of the same kind, in forward."""
        names: list[str] = []
        for variable, tensor in _operands(call, line):
            if not variable.startswith("buf"):
                readers = self._readers.get(storage_key(tensor.untyped_storage()))
                found = readers.modules.get(call.info.kind) if readers else None
                names += [common(found)] if found else []
        # The module that says most: an input of several linear layers is one of their parent's.
        return max(names, key=len, default="")


class _Readers(NamedTuple):
    """The modules that have read a storage in forward."""

    storage: WeakStorage  # a weak reference to it
    variable: str  # the variable of the generated code
    modules: dict[OpKind, list[str]]  # their names by the kind of op


def _operands(call: OpCall, line: Line) -> Iterator[tuple[str, Tensor]]:
    """Yield the variable and the tensor of each operand, where a call of generated code says both."""
    # A function of inductor's own may hand its arguments on in another order.
    if line.target != call.info.name:
        return
    for variable, tensor in zip(line.arguments, call.args, strict=False):
        if variable and isinstance(tensor, torch.Tensor) and is_dense(tensor):
            yield variable, tensor


def _unseen(call: OpCall, line: Line | None) -> tuple[Tensor, ...]:
    """Return the operands that generated code has made, and was not given."""
    if line is None:
        return ()
    given = {id(tensor) for variable, tensor in _operands(call, line) if _GIVEN.match(variable)}
    return tuple(t for t in tensors_among(call.args) if id(t) not in given)
