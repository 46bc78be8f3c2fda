"""Which module an amount is about."""

from __future__ import annotations

import pytest

from ampwatch.diagnosis.performance.op_shares import place

ENCODER = {"encoder": 10}


@pytest.mark.parametrize(
    ("amounts", "others", "where"),
    [
        ({"decoder.0": 11, "decoder.1": 89}, ENCODER, "decoder"),
        ({"decoder.1": 89}, {"decoder.0": 11}, "decoder.1"),
        ({"a.ff.0": 50, "a.ff.2": 50, "b.ff.0": 60, "b.ff.2": 60}, {"a": 90, "b": 90}, "b.ff"),
        ({"a.b.c": 1}, {}, "a.b.c"),
        ({"": 5, "a": 5}, {}, ""),
        ({"": 60, "a": 5}, {"a": 90}, ""),
        ({"decoder.0": 9_999, "decoder.1": 9_999, "loss": 1}, ENCODER, "decoder"),
        ({"block1.x": 4, "block10.x": 5}, {"block1.y": 9, "block10.y": 9}, "block10.x"),
    ],
    ids=[
        "all of a container",
        "one child of it",
        "the same part of each block",
        "one module",
        "all of the model",
        "the model's own forward",
        "next to nothing elsewhere",
        "a name that begins like another",
    ],
)
def test_it_is_the_innermost_module_that_is_affected_as_a_whole(
    amounts: dict[str, int], others: dict[str, int], where: str
) -> None:
    """A region drawn around a container names the container, and one in each block a block."""
    totals = {name: amounts.get(name, 0) + others.get(name, 0) for name in {**amounts, **others}}

    assert place(amounts, totals) == where
