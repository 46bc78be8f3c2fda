"""Two runs of several ranks: whose difference it is, and what cannot be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from ampwatch.errors import DiffError
from ampwatch.lab.difference.ranks import RunsDifference, compare_runs
from ampwatch.lab.difference.words import difference_document, render_difference
from ampwatch.lab.tape.files import find_tapes
from ampwatch.lab.tape.rows import RowKind, TapeStep
from tests.workshop.tapes import HEAD, row, step, write_tape

NUM_RANKS = 4


def run(
    directory: Path,
    others: Mapping[int, Sequence[TapeStep]] | None = None,
    *,
    ranks: Sequence[int] = range(NUM_RANKS),
    num_ranks: int = NUM_RANKS,
    divided: Sequence[str] = (),
) -> Path:
    """Leave the tapes of a run, some of whose ranks have other steps than two like all others."""
    directory.mkdir()
    steps = {r: [step(0), step(1)] for r in ranks} | dict(others or {})
    for rank in ranks:
        head = replace(HEAD, rank=rank, world_size=num_ranks, divided=list(divided))
        write_tape(directory / f"run-rank{rank}.tape", steps[rank], head)
    return directory


def compared(a: Path, b: Path) -> tuple[RunsDifference, str]:
    """Return what two runs say, and the same in words, on as few lines as they have labels."""
    found = compare_runs(find_tapes(a), find_tapes(b))
    return found, " ".join(render_difference(found).split())


def with_state(kind: RowKind, value: float, at: int = 0) -> list[TapeStep]:
    """Return two steps, in one of which a second parameter has some value."""
    steps = [step(0), step(1)]
    steps[at] = replace(steps[at], rows=[*steps[at].rows, row(kind, "second.weight", value)])
    return steps


def all_ranks(steps: Sequence[TapeStep]) -> dict[int, Sequence[TapeStep]]:
    """Return the same steps for each rank."""
    return dict.fromkeys(range(NUM_RANKS), steps)


def test_the_first_departure_of_all_ranks_leads(tmp_path: Path) -> None:
    """Rank 3 departs a step before rank 1: it is the place, and rank 1 is said to come later."""
    a = run(tmp_path / "a")
    b = run(tmp_path / "b", {1: [step(0), step(1, 1.01)], 3: [step(0, 1.01), step(1)]})

    found, words = compared(a, b)

    assert found.pairs[0].b == 3
    assert "forward of step 0, rank 3" in words
    assert "ranks 0 and 2 differ as their formats explain" in words
    assert "rank 1 differs by more from op addmm in first, forward of step 1 on" in words


def test_what_all_ranks_have_is_said_of_all(tmp_path: Path) -> None:
    """One fault in the program is in each process."""
    a = run(tmp_path / "a")
    b = run(tmp_path / "b", all_ranks([step(0, 1.01), step(1)]))

    assert "forward of step 0, in all 4 ranks" in compared(a, b)[1]


def test_the_document_has_every_rank(tmp_path: Path) -> None:
    """A program finds each rank with its verdict, and the first departure at the top."""
    a = run(tmp_path / "a")
    b = run(tmp_path / "b", {2: [step(0), step(1, 1.01)]})

    document = difference_document(compared(a, b)[0])

    assert document["b"]["rank"] == 2
    assert [rank["verdict"] for rank in document["ranks"]] == ["same", "same", "differ", "same"]
    assert document["ranks"][2]["first"]["name"] == "addmm"
    assert document["parted"] == []


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (RowKind.WEIGHT, "parameter second.weight, before step 1"),
        (RowKind.GRADIENT, "gradient of second.weight after its sum, in step 1"),
        (RowKind.NEW_WEIGHT, "parameter second.weight, as step 1 has left it"),
    ],
)
def test_weights_that_part_between_the_ranks_of_one_run_are_found(
    kind: RowKind, words: str, tmp_path: Path
) -> None:
    """By less than formats explain: ranks of one run have the same bits. The minority is named."""
    healthy, parted = (with_state(kind, value, at=1) for value in (1.0, 1.0 + 1e-9))
    a = run(tmp_path / "a", all_ranks(healthy))
    b = run(tmp_path / "b", all_ranks(healthy) | {0: parted})

    found, said = compared(a, b)

    assert all(pair.found.is_explained for pair in found.pairs)
    assert f"in B, {words}: rank 0 of 4 has other values than the rest, 1e-09 apart" in said
    assert not found.is_explained


def test_a_rank_that_came_less_far_has_no_say(tmp_path: Path) -> None:
    """Of three ranks one was killed before the step in which the other two part: no value has a majority."""
    healthy, parted = (with_state(RowKind.WEIGHT, value, at=1) for value in (1.0, 1.0 + 1e-9))
    own = {0: healthy, 1: parted, 2: healthy[:1]}
    a = run(tmp_path / "a", {0: healthy}, ranks=[0], num_ranks=1)
    b = run(tmp_path / "b", own, ranks=range(3), num_ranks=3)

    (parting,) = compared(a, b)[0].partings

    assert (parting.ranks, parting.num_ranks) == ((0, 1), 2)


def test_one_rank_is_held_against_every_rank_of_the_other_run(tmp_path: Path) -> None:
    """A weight that is off in one of four ranks is found with its rank."""
    one = with_state(RowKind.WEIGHT, 1.0)
    a = run(tmp_path / "a", {0: one}, ranks=[0], num_ranks=1)
    b = run(
        tmp_path / "b",
        all_ranks(one) | {3: with_state(RowKind.WEIGHT, 1.5)},
    )

    found, words = compared(a, b)

    assert (found.pairs[0].a, found.pairs[0].b) == (0, 3)
    assert "parameter second.weight, state of step 0, rank 3" in words
    assert "rank 3 of 4 has other values than the rest" in words
    assert "A has 1 ranks and B 4: each rank sees another part of the batch" in words


def test_what_each_rank_of_both_runs_has_for_itself_is_left_alone(tmp_path: Path) -> None:
    """Experts of a rank, or weights that are averaged every other step."""
    own = {r: with_state(RowKind.WEIGHT, 1.0 + r) for r in range(NUM_RANKS)}

    found, _ = compared(run(tmp_path / "a", own), run(tmp_path / "b", own))

    assert found.is_same


def test_parameters_of_which_each_rank_has_a_part_do_not_part(tmp_path: Path) -> None:
    """Shards are other elements in each rank, and are compared rank by rank."""
    own = {r: with_state(RowKind.WEIGHT, 1.0 + r) for r in range(NUM_RANKS)}
    other = own | {1: with_state(RowKind.WEIGHT, 9.0)}
    a = run(tmp_path / "a", own, divided=["second.weight"])
    b = run(tmp_path / "b", other, divided=["second.weight"])

    found, words = compared(a, b)

    assert found.partings == []
    assert "parameter second.weight, state of step 0, rank 1" in words


def test_parameters_that_are_divided_in_one_run_alone_are_named(tmp_path: Path) -> None:
    """One rank against four of FSDP: what is whole is compared, and the rest is said to be left out."""
    steps = with_state(RowKind.WEIGHT, 1.0)
    whole = [replace(s, rows=[row(RowKind.WEIGHT, "third.weight"), *s.rows]) for s in steps]
    a = run(tmp_path / "a", {0: whole}, ranks=[0], num_ranks=1)
    b = run(
        tmp_path / "b",
        all_ranks(whole),
        divided=["first.weight", "second.weight"],
    )

    found, words = compared(a, b)

    assert found.is_explained
    assert "2 parameters, 'first.weight' for one, are divided between ranks (FSDP" in words


def test_nothing_but_shards_on_one_side_is_a_sentence(tmp_path: Path) -> None:
    """There is nothing to compare between one rank and four that each have a part."""
    a = run(tmp_path / "a", ranks=[0], num_ranks=1)
    b = run(tmp_path / "b", divided=["first.weight"])

    with pytest.raises(DiffError, match="record both with the same number of ranks"):
        compared(a, b)


def test_a_rank_without_a_tape_is_named(tmp_path: Path) -> None:
    """What is there is compared; what to do is said."""
    found, words = compared(run(tmp_path / "a", ranks=[0, 1, 3]), run(tmp_path / "b"))

    assert [pair.a for pair in found.pairs] == [0, 1, 3]
    assert "A has no tape of rank 2 of 4" in words
    assert "put the tapes of all ranks into one directory" in words


def test_a_rank_that_was_killed_is_compared_as_far_as_it_came(tmp_path: Path) -> None:
    """Its tape ends within a record; the note has its rank, and another has recorded no step in both."""
    a = run(tmp_path / "a")
    b = run(tmp_path / "b", {3: [step(5)]})
    cut = b / "run-rank1.tape"
    cut.write_bytes(cut.read_bytes()[:-200])

    found, words = compared(a, b)

    assert found.is_same
    assert {pair.b: pair.found.steps for pair in found.pairs} == {0: [0, 1], 1: [0], 2: [0, 1]}
    assert "rank 1: B ends within a record" in words
    assert "rank 3 could not be compared: expected runs that recorded the same steps" in words


def test_batches_of_another_shape_in_one_rank_are_a_sentence_with_the_rank(tmp_path: Path) -> None:
    """That is no difference between two runs of the same batches, but another experiment."""
    a = run(tmp_path / "a")
    rows = [row(RowKind.WEIGHT, "first.weight"), row(RowKind.INPUT, "", shape=[8, 4])]
    b = run(tmp_path / "b", {2: [replace(step(0), rows=rows)]})

    with pytest.raises(DiffError, match="rank 2: expected two runs of the same batches"):
        compared(a, b)


def test_runs_without_a_common_rank_are_a_sentence(tmp_path: Path) -> None:
    """Tapes of other machines: nothing is guessed."""
    with pytest.raises(DiffError, match="ranks 0 and 1 in A and ranks 2 and 3 in B"):
        compared(run(tmp_path / "a", ranks=[0, 1]), run(tmp_path / "b", ranks=[2, 3]))


def test_two_ranks_of_one_run_can_be_named(tmp_path: Path) -> None:
    """Whoever names two files means these: their weights are compared, and their batches are not."""
    a = run(tmp_path / "a")

    found, words = compared(a / "run-rank0.tape", a / "run-rank2.tape")

    assert found.is_same
    assert "A is rank 0 and B rank 2: each rank sees another part of the batch" in words
