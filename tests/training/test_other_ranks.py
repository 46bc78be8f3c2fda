"""Ranks of one machine that tell one another whose gradient is not finite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from torch import nn

from ampwatch.training.model.names import Names
from ampwatch.training.other_ranks import OtherRanks
from ampwatch.training.said import Said

if TYPE_CHECKING:
    from pathlib import Path

MODEL = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
for one in MODEL.parameters():
    one._fsdp_flattened = True  # type: ignore[attr-defined]


@pytest.fixture
def ranks(tmp_path: Path) -> list[OtherRanks]:
    """Three ranks that share a file."""
    path = tmp_path / "ranks.said"
    names = Names([MODEL])
    files = [Said(path, rank) for rank in range(3)]
    return [OtherRanks(3, lambda said=said: said, names) for said in files]  # type: ignore[misc]


def test_the_others_learn_the_parameter_and_the_ranks(ranks: list[OtherRanks]) -> None:
    """In whatever order the ranks come."""
    ranks[2].note("1.weight", 7)
    ranks[1].note("1.weight", 7)

    assert ranks[0].ask(7) == ("1.weight", [1, 2])


def test_where_every_rank_has_the_gradient_nothing_is_written(tmp_path: Path) -> None:
    """As in DDP: nobody would ask, and a long training would fill the file."""
    said = Said(tmp_path / "ranks.said", 0)
    before = said.path.read_bytes()
    OtherRanks(2, lambda: said, Names([nn.Linear(2, 2)])).note("weight", 7)

    assert said.path.read_bytes() == before


def test_word_of_other_skips_is_not_of_these(ranks: list[OtherRanks]) -> None:
    """A gradient that was infinite a thousand steps ago explains nothing."""
    ranks[1].note("1.weight", 7)
    ranks[1].note("no such parameter", 1007)

    assert ranks[0].ask(1007) == ("", [])


def test_without_a_file_nothing_is_known() -> None:
    """As between machines."""
    alone = OtherRanks(2, lambda: None, Names([MODEL]))
    alone.note("1.weight", 0)

    assert alone.ask(0) == ("", [])


def test_a_file_that_is_gone_is_no_error(tmp_path: Path) -> None:
    """A training step never raises because of it."""
    directory = tmp_path / "there"
    directory.mkdir()
    said = Said(directory / "ranks.said", 0)
    (directory / "ranks.said").unlink()
    directory.rmdir()
    rank = OtherRanks(2, lambda: said, Names([MODEL]))
    rank.note("1.weight", 0)

    assert rank.ask(0) == ("", [])


def test_a_flat_parameter_has_the_names_of_those_in_it(ranks: list[OtherRanks]) -> None:
    """Also of those of which this rank's shard has nothing."""
    model = nn.Linear(2, 2)
    model.weight._fqns = ("a.weight", "b.weight")  # type: ignore[assignment]
    said = ranks[0]._said()
    assert said is not None
    said.found("gradient not finite since 3: a.weight")

    assert OtherRanks(2, lambda: said, Names([model])).ask(3) == ("a.weight", [0])
