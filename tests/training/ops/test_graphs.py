"""What compiled graphs and generated code say about themselves, and what they do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn

from ampwatch.training.model.names import Names
from ampwatch.training.ops.graphs import (
    CapturedGraph,
    KnownModules,
    assigned,
    common,
    generated_line,
    nodes_of,
)

GENERATED = """
def call(args):
    primals_1, primals_2 = args
    # Topologically Sorted Source Nodes: [linear], Original ATen: [aten._to_copy, aten.addmm]
    extern_kernels.addmm(buf2, buf0, reinterpret_tensor(primals_1, (8, 4), (1, 8), 0), out=buf3)
    buf4 = empty_strided_cpu((8, 64), (64, 1), torch.bfloat16)
    cpp_fused_gelu_1(buf3, buf4)
    buf5 = empty_strided_cpu((8, 64), (64, 1), torch.bfloat16)
    # Topologically Sorted Source Nodes: [view, attention], Original ATen: [aten.view]
    buf6 = torch.ops.aten.bmm.default(buf4, primals_2)
    extern_kernels.mm(buf6, buf4, out=buf5)
    extern_kernels.mm(buf6,
        buf4, out=buf5)
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Code as inductor writes it."""
    path = tmp_path / "generated.py"
    path.write_text(GENERATED, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("number", "nodes", "target", "arguments"),
    [
        (5, ("linear",), "addmm", ("buf2", "buf0", "primals_1")),
        (10, ("view", "attention"), "bmm", ("buf4", "primals_2")),
        (11, (), "mm", ("buf6", "buf4")),
        (12, (), "", ()),
        (99, (), "", ()),
    ],
    ids=["with a comment", "with a result", "without a comment", "of two lines", "of no line"],
)
def test_a_call_of_generated_code_says_what_it_computes_and_of_what(
    file: str, number: int, nodes: tuple[str, ...], target: str, arguments: tuple[str, ...]
) -> None:
    """The comment before it, unless another call lies between them."""
    line = generated_line(file, number)

    assert (line.nodes, line.target, line.arguments) == (nodes, target, arguments)


def test_a_line_of_a_graph_assigns_a_node(tmp_path: Path) -> None:
    """With an annotation or without one."""
    path = tmp_path / "graph.py"
    path.write_text("  x = f(y);  y = None\n  z : int = g(x)\n  return x\n", encoding="utf-8")

    assert [assigned(str(path), number) for number in (1, 2, 3, 4)] == ["x", "z", "", ""]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a.b.c", "a.b.d"], "a.b"),
        (["a.b", "c"], ""),
        (["a.bc", "a.bd"], "a"),
    ],
)
def test_modules_have_a_parent_in_common(names: list[str], expected: str) -> None:
    """By parts of names, not by characters."""
    assert common(names) == expected


@pytest.mark.parametrize(
    ("captured_for", "module", "runs_for", "expected"),
    [
        ("blocks.0", "blocks.0.up", "blocks.3", "blocks.3.up"),
        ("blocks.0", "blocks.0", "blocks.3", "blocks.3"),
        ("blocks.0", "elsewhere", "blocks.3", "elsewhere"),
        ("", "up", "blocks.3", "blocks.3.up"),
        (None, "blocks.0.up", "blocks.3", "blocks.0.up"),
        ("blocks.1", "blocks.10.up", "blocks.3", "blocks.10.up"),
        ("blocks.0", None, "blocks.3", None),
    ],
)
def test_one_graph_serves_several_modules(
    captured_for: str | None, module: str | None, runs_for: str, expected: str | None
) -> None:
    """Its nodes are those of the module it runs for, not of the one that it was captured with."""
    assert CapturedGraph(captured_for, {}).renamed(module, runs_for) == expected


def graph_with(**meta: Any) -> fx.Graph:
    """A graph of one node that computes."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    node = graph.call_function(torch.relu, (x,))
    node.meta.update(meta)
    graph.output(node)
    return graph


def test_a_node_says_its_module_by_identity_or_else_by_its_path() -> None:
    """Versions of PyTorch write down either; and the module is the innermost that is watched."""
    net = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))
    known = KnownModules(Names([net]))
    known.learn()
    inner, foreign = net[0][0], nn.Linear(2, 2)  # type: ignore[index]
    by_identity = {str(id(net[0])): ("?", 0), str(id(inner)): ("?", 0), str(id(foreign)): ("?", 0)}
    by_path = {"L__self___0": ("L['self'].0", nn.Linear)}
    found = [
        nodes_of(graph_with(nn_module_stack=by_identity), known, None)["relu"].module,
        nodes_of(graph_with(fwd_nn_module_stack=by_identity), known, None)["relu"].module,
        nodes_of(graph_with(nn_module_stack=by_path), known, "0")["relu"].module,
        nodes_of(graph_with(nn_module_stack=by_path), known, None)["relu"].module,
        nodes_of(graph_with(), known, "0")["relu"].module,
    ]

    assert found == ["0.0", "0.0", "0.0", None, "0"]


def test_a_node_says_the_innermost_line_of_the_user() -> None:
    """Frames of PyTorch are passed over."""
    trace = f'  File "{__file__}", line 7, in f\n  File "{torch.__file__}", line 9, in g\n'
    known = KnownModules(Names([]))

    assert nodes_of(graph_with(stack_trace=trace), known, None)["relu"].source == f"{__file__}:7"
    assert nodes_of(graph_with(), known, None)["relu"].source == ""


def test_what_the_compiler_wraps_a_module_in_has_the_name_of_the_module() -> None:
    """As long as it is there."""
    net = nn.Sequential(nn.Linear(2, 2))
    known = KnownModules(Names([net]))
    known.learn()

    assert known.name_of(torch.compile(net[0], backend="eager")) == "0"
    assert known.name_of(torch.compile(nn.Linear(2, 2), backend="eager")) is None
    assert known.name_at(id(net[0])) == "0"
    known.clear()
    assert known.name_at(id(net[0])) is None
