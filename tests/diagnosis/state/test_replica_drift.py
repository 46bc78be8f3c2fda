"""Weights that were the same on several ranks, and are not any more."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from ampwatch.diagnosis.book import FindingBook
from ampwatch.diagnosis.detector import Shared
from ampwatch.diagnosis.evidence.scaler import CheckedWeights
from ampwatch.diagnosis.state.replica_drift import PATIENCE, ReplicaDrift
from ampwatch.wire.records import ChecksumRecord, Finding
from tests.workshop.records import checksum

PERIOD = 257
GROUPS = 3
PLACES = (("a.weight", "a.weight"), ("b.weight", "b.bias"), ("c.weight", "c.bias"))


class Job:
    """Ranks whose weights are any function of rank, group and iteration; sums are of their repr.

    Every check is of part 0, of one part, unless there are more.
    """

    def __init__(self, ranks: Sequence[int], parts: int = 1) -> None:
        self._ranks = ranks
        self._parts = parts
        self._checks: dict[int, list[ChecksumRecord]] = {rank: [] for rank in ranks}
        self.book = FindingBook(lambda _: None)
        self._drift = ReplicaDrift(Shared(self.book))

    def check(self, number: int, weights: Callable[[int, int, int], object]) -> None:
        step = number * PERIOD
        for rank in self._ranks:
            sums = [
                tuple(hash((repr(weights(rank, group, s)), group)) for group in range(GROUPS))
                for s in (step, step + 1)
            ]
            part = number % self._parts
            made = checksum(step, part, 0, *sums, parts=self._parts, places=PLACES)
            self._checks[rank] = [*self._checks[rank], made][-4:]
        self._drift.observe(CheckedWeights(step + 16, self._checks))

    @property
    def findings(self) -> list[Finding]:
        return self.book.findings


def lockstep(_rank: int, _group: int, step: int) -> object:
    return step


def test_replicas_that_stay_the_same_are_left_alone() -> None:
    """However long."""
    job = Job(range(8))
    for number in range(3 * PATIENCE):
        job.check(number, lockstep)

    assert job.findings == []


def test_one_group_of_weights_that_parts_is_found_at_the_next_check() -> None:
    """Two ranks suffice: in the other weights they are in lockstep."""
    job = Job([0, 1])
    job.check(0, lockstep)
    for number in (1, 2):
        job.check(number, lambda rank, group, step: (step, rank if group == 1 else 0))

    (found,) = job.findings
    assert (found.kind, found.where, found.severity) == ("replica_drift", "", "critical")
    assert (found.first_step, found.last_step, found.count) == (257, 514, 2)
    assert found.summary == (
        "Ranks 0, 1 no longer have the same weights: parameters b.weight to b.bias were"
        " bit-identical at step 1 and are not at step 257"
    )


@pytest.mark.parametrize("parts", [1, 2])
def test_a_drift_is_gone_once_all_weights_that_parted_are_the_same_again(parts: int) -> None:
    """Each part of the weights has a check of its own."""
    job = Job([0, 1], parts)
    for number in range(parts):
        job.check(number, lockstep)
    for number in range(parts, 2 * parts):
        job.check(number, lambda rank, group, step: (step, rank if group == 1 else 0))
    gone = [job.findings[0].is_gone]
    for number in range(2 * parts, 3 * parts):
        job.check(number, lockstep)
        gone.append(job.findings[0].is_gone)

    assert gone == [*[False] * parts, True]


def test_the_rank_that_differs_from_most_is_named() -> None:
    """Also where all of its weights differ, as after another learning rate."""
    job = Job([0, 1, 2, 3])
    job.check(0, lockstep)
    job.check(1, lambda rank, _, step: (step, rank == 3))

    (found,) = job.findings
    assert found.summary.startswith("Rank 3 no longer has the weights of ranks 0, 1, 2: ")
    assert ": parameters a.weight to c.bias were bit-identical at step 1 " in found.summary
    assert found.where == ""
    assert found.evidence == {
        "ranks_compared": 4.0,
        "ranks_apart": 1.0,
        "rank": 3.0,
        "last_equal_step": 1.0,
    }


def test_two_ranks_that_part_in_everything_are_told_from_local_sgd_by_never_meeting() -> None:
    """After ``PATIENCE`` checks."""
    job = Job([0, 1])
    job.check(0, lockstep)
    for number in range(1, PATIENCE):
        job.check(number, lambda rank, _, step: (rank, step))
    assert job.findings == []
    job.check(PATIENCE, lambda rank, _, step: (rank, step))

    (found,) = job.findings
    assert (found.kind, found.where) == ("replica_drift", "")
    assert ": parameters a.weight to c.bias were bit-identical at step 1 " in found.summary


def test_a_parameter_that_parts_alone_is_the_place() -> None:
    """The others are in lockstep."""
    job = Job([0, 1])
    job.check(0, lockstep)
    job.check(1, lambda rank, group, step: (step, rank if group == 0 else 0))

    (found,) = job.findings
    assert found.where == "param:a.weight"


@pytest.mark.parametrize("period", [2, 3, 4, 8, 16, 31, 32])
@pytest.mark.parametrize("warm_up", [0, 3])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_local_sgd_is_left_alone(period: int, warm_up: int, ranks: int) -> None:
    """From the start, and after gradients were averaged; whatever the period."""
    job = Job(range(ranks))

    def weights(rank: int, _group: int, step: int) -> object:
        is_together = step < warm_up * PERIOD or step % period == 0
        return (step, 0 if is_together else rank)

    for number in range(4 * PATIENCE):
        job.check(number, weights)

    assert job.findings == []


@pytest.mark.parametrize(
    "weights",
    [
        lambda rank, _, step: (rank, step),
        # Zeros, and what is frozen, are the same everywhere and prove nothing.
        lambda rank, _, step: (rank, step) if step > PERIOD else 0,
        # Tensor parallel: some weights are whole on each rank, others are shards.
        lambda rank, group, step: (step, rank if group else 0),
        # Two pairs of replicas, of shards each.
        lambda rank, _, step: (step, rank % 2),
        # Equal by chance, once, in one of two iterations.
        lambda rank, _, step: (step, rank if step else 0),
    ],
)
def test_ranks_that_were_never_in_lockstep_are_left_alone(
    weights: Callable[[int, int, int], object],
) -> None:
    """Shards, stages, other trainings of the same name."""
    job = Job(range(4))
    for number in range(2 * PATIENCE):
        job.check(number, weights)

    assert job.findings == []


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("shift", [-1, 1])
def test_a_rank_that_counts_one_iteration_more_is_left_alone(ranks: int, shift: int) -> None:
    """Or less; and two, later: its weights are those of the others, an iteration before or after."""
    job = Job(range(ranks))

    def weights(rank: int, _group: int, step: int) -> object:
        if rank or step < PERIOD:
            return step
        return step + shift * (1 if step < 9 * PERIOD else 2)

    for number in range(2 * PATIENCE):
        job.check(number, weights)

    assert job.findings == []


def test_a_drift_beside_a_rank_that_is_shifted_is_found() -> None:
    """And names who differs, not who counts otherwise."""
    job = Job(range(5))
    job.check(0, lockstep)
    job.check(1, lambda rank, _, step: (step + (rank == 0), rank == 4))

    (found,) = job.findings
    assert found.summary.startswith("Rank 4 no longer has the weights of ranks 0, 1, 2, 3: ")


def test_ranks_that_were_shifted_and_are_in_lockstep_again_are_compared() -> None:
    """As after a restart of the count."""
    job = Job([0, 1])
    job.check(0, lockstep)
    job.check(1, lambda rank, _, step: step + rank)
    job.check(2, lockstep)
    job.check(3, lambda rank, group, step: (step, rank if group == 1 else 0))

    assert [f.first_step for f in job.findings] == [3 * PERIOD]


def test_weights_that_are_checked_in_turns_are_held_against_their_own_last_check() -> None:
    """Part 1 is of shards, which part 0 being in lockstep says nothing about."""
    job = Job([0, 1], parts=2)
    for number in range(20):
        job.check(number, lambda rank, _, step: (step, rank if step // PERIOD % 2 else 0))
    assert job.findings == []
    job.check(20, lambda rank, group, step: (step, rank if group == 0 else 0))

    (found,) = job.findings
    assert found.first_step == 20 * PERIOD
    assert found.evidence["last_equal_step"] == 18 * PERIOD + 1


def test_a_rank_that_is_late_is_waited_for_until_the_next_check() -> None:
    """What it then has is judged, once."""
    book = FindingBook(lambda _: None)
    drift = ReplicaDrift(Shared(book))

    def made(step: int, first: tuple[int, ...], then: tuple[int, ...]) -> ChecksumRecord:
        return checksum(step, 0, 0, first, then, parts=1, places=PLACES)

    whole = made(0, (1, 2, 3), (4, 5, 6)), made(257, (7, 8, 9), (10, 11, 12))
    other = made(257, (7, 0, 9), (10, 0, 12))
    drift.observe(CheckedWeights(16, {0: whole[:1], 1: whole[:1]}))
    drift.observe(CheckedWeights(273, {0: whole, 1: whole[:1]}))
    assert book.findings == []
    drift.observe(CheckedWeights(530, {0: whole, 1: [whole[0], other]}))

    assert [f.first_step for f in book.findings] == [257]
