"""Two runs held against each other: what was planted is found where it was, and formats alone are silent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from ampwatch.lab.difference.ranks import compare_runs
from ampwatch.lab.difference.verdict import compare
from ampwatch.lab.difference.words import render_difference
from ampwatch.lab.tape.files import Tape
from ampwatch.lab.tape.rows import RowKind
from tests.lab.difference.two_runs import Planted, Transformer, train


@pytest.fixture(autouse=True)
def as_many_threads_as_before() -> Iterator[None]:
    """A run that was given two threads leaves one to the next."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tape_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Planted], Tape]:
    """Return the tape of a run, which is trained when it is first asked for: many differ from one."""
    trained: dict[str, Tape] = {}

    def tape(planted: Planted) -> Tape:
        # By its text, in which functions have their addresses: it has a mapping, so it has no hash.
        key = repr(planted)
        if key not in trained:
            trained[key] = train(tmp_path_factory.mktemp("run"), planted)
        return trained[key]

    return tape


def half(model: Transformer) -> None:
    """Compute one part in float16, in a run of float32."""
    part = model.blocks[1].mlp[0]
    part.forward = lambda x: functional.linear(
        x.half(), part.weight.half(), part.bias.half()
    ).float()


def eps(model: Transformer) -> None:
    """Give one LayerNorm another eps."""
    model.blocks[1].norm2.eps = 1e-3


def dropped_cast(model: Transformer) -> None:
    """Compute a softmax in float16 that was computed in float32."""
    model.blocks[1].attention.keeps_float32 = False


def reduction(model: Transformer) -> None:
    """Add up the products of one matmul in another order."""
    part = model.blocks[2].mlp[2]
    part.forward = lambda x: (
        x[..., 32:] @ part.weight[:, 32:].t() + x[..., :32] @ part.weight[:, :32].t() + part.bias
    )


def kernel(model: Transformer) -> None:
    """Let one activation be computed by another kernel, which is off by 2e-4 here and there."""
    part = model.blocks[0].mlp[1]
    part.forward = lambda x: functional.gelu(x, approximate="tanh")


def seed(model: Transformer) -> None:
    """Draw the weights of one layer with another seed."""
    torch.manual_seed(7)
    nn.init.kaiming_uniform_(model.blocks[1].mlp[0].weight)


def dropout(model: Transformer) -> None:
    """Leave one dropout on."""
    model.blocks[2].drop.train()


def swapped(step: int) -> int:
    """Exchange the batches of steps 1 and 2."""
    return {1: 2, 2: 1}.get(step, step)


FLOAT16 = torch.float16

PLANTED: dict[str, tuple[Planted, Planted, RowKind, str, str, int]] = {
    "a dtype": (Planted(), Planted(model=half), RowKind.OP, "blocks.1.mlp.0", "addmm", 0),
    "eps": (Planted(), Planted(model=eps), RowKind.OP, "blocks.1.norm2", "native_layer_norm", 0),
    "a dropped cast": (
        Planted(FLOAT16),
        Planted(FLOAT16, model=dropped_cast),
        RowKind.OP,
        "blocks.1.attention",
        "_softmax",
        0,
    ),
    "a kernel": (Planted(), Planted(model=kernel), RowKind.OP, "blocks.0.mlp.1", "gelu", 0),
    "a seed": (
        Planted(),
        Planted(model=seed),
        RowKind.WEIGHT,
        "blocks.1.mlp.0",
        "blocks.1.mlp.0.weight",
        0,
    ),
    "dropout": (
        Planted(),
        Planted(model=dropout),
        RowKind.OUTPUT,
        "blocks.2.drop",
        "blocks.2.drop",
        0,
    ),
    "batches": (Planted(), Planted(batch=swapped), RowKind.INPUT, "", "", 1),
    "dropout, across formats": (
        Planted(),
        Planted(FLOAT16, model=dropout),
        RowKind.OUTPUT,
        "blocks.2.drop",
        "blocks.2.drop",
        0,
    ),
    "a learning rate": (
        Planted(),
        Planted(learning_rate=2e-3),
        RowKind.NEW_WEIGHT,
        "embedding",
        "embedding.weight",
        0,
    ),
}
"""Per difference both runs, and the kind of row, module, op or parameter, and step to be named."""


@pytest.mark.rotating
@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_difference_is_found_where_it_was_planted(
    what: str, tape_of: Callable[[Planted], Tape]
) -> None:
    """The first departure is of the step, module and op that were changed."""
    one, other, kind, module, name, step = PLANTED[what]

    found = compare(tape_of(one), tape_of(other))

    first = found.departures[0]
    assert (first.step, first.kind, first.module, first.name) == (step, kind, module, name), first
    assert first.distance > first.allowed


@pytest.mark.rotating
def test_another_order_of_adding_up_is_explained_and_its_place_is_named(
    tape_of: Callable[[Planted], Tape],
) -> None:
    """What float32 rounds differs by no more than it may; the first output that does is said."""
    found = compare(tape_of(Planted()), tape_of(Planted(model=reduction)))

    assert found.is_explained
    assert not found.is_same
    assert found.first_apart is not None
    assert (found.first_apart.step, found.first_apart.module) == (0, "blocks.2.mlp.2")


def two_threads(_model: Transformer) -> None:
    """Let ops add up in two threads."""
    torch.set_num_threads(2)


SILENT: dict[str, tuple[Planted, Planted]] = {
    "float32, float16": (Planted(), Planted(FLOAT16)),
    "float32, bfloat16": (Planted(), Planted(torch.bfloat16)),
    "float16, bfloat16": (Planted(FLOAT16), Planted(torch.bfloat16)),
    "two threads": (Planted(), Planted(model=two_threads)),
    "another loss scale": (Planted(FLOAT16), Planted(FLOAT16, scale=8192.0)),
    "dropout in both": (Planted(drops=True), Planted(FLOAT16, drops=True)),
    "images": (Planted(images=True), Planted(FLOAT16, images=True)),
}
"""Pairs of runs that differ by their formats, or by the order in which sums are added up."""


@pytest.mark.rotating
@pytest.mark.parametrize(
    "what",
    ["float32, float16"]
    + [pytest.param(what, marks=pytest.mark.nightly) for what in [*SILENT][1:]],
)
def test_formats_alone_are_no_difference(what: str, tape_of: Callable[[Planted], Tape]) -> None:
    """No departure is named where rounding explains all, though losses are not the same."""
    one, other = SILENT[what]

    found = compare(tape_of(one), tape_of(other))

    assert found.is_explained, [found.departures[0]]
    assert len(found.steps) == one.steps


@pytest.mark.each_commit
def test_the_same_run_twice_is_the_same(tmp_path: Path, tape_of: Callable[[Planted], Tape]) -> None:
    """Not one sum of one tensor differs, and the words say so."""
    one, other = tape_of(Planted()), train(tmp_path / "again")

    found = compare(one, other)

    assert found.is_same
    runs = compare_runs({0: one.path}, {0: other.path})
    assert "the same: no sum of any tensor differs" in render_difference(runs)


@pytest.mark.rotating
def test_the_words_say_where_and_why(tape_of: Callable[[Planted], Tape]) -> None:
    """The text has the op, the module, the option that differs, and the table of steps."""
    one, other = tape_of(Planted()), tape_of(Planted(model=eps))

    text = render_difference(compare_runs({0: one.path}, {0: other.path}))

    assert "op native_layer_norm in blocks.1.norm2, forward of step 0" in text
    assert "blocks.1.norm2: eps is 1e-05 in A, 0.001 in B" in text
    assert "> blocks.1.norm2" in text


@pytest.mark.rotating
def test_another_order_of_batches_is_recognised(tape_of: Callable[[Planted], Tape]) -> None:
    """The step that has the batch in the other run is named."""
    found = compare(tape_of(Planted()), tape_of(Planted(batch=swapped)))

    assert found.causes[0] == "A's batch of step 1 is B's batch of step 2: another order"
