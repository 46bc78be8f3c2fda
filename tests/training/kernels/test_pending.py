"""Memory that a collective has yet to write."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from ampwatch.training.kernels import admission, pending
from ampwatch.training.kernels.admission import admit, is_pending, whole_part
from ampwatch.training.kernels.pending import Pending


class Work:
    """A handle, as far as it is asked."""

    def __init__(self, *, is_over: bool = False) -> None:
        self.is_over = is_over

    def is_completed(self) -> bool:
        return self.is_over


class FailedWork(Work):
    """The handle of a collective that has failed."""

    def is_completed(self) -> bool:
        raise RuntimeError


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Pending:
    """What is under way, in place of that of this process."""
    made = Pending()
    monkeypatch.setattr(admission, "PENDING", made)
    return made


def test_views_of_a_result_are_pending_until_somebody_has_waited(known: Pending) -> None:
    """By memory and not by tensor."""
    result, other, work = torch.ones(4), torch.ones(4), Work()
    known.begin(work, [result])
    assert admit(result[1:3]) == ([], "pending")
    assert not is_pending(other)
    known.end(work)

    assert [is_pending(result), bool(known)] == [False, False]


def _over(work: Work) -> None:
    work.is_over = True


def test_one_that_is_over_is_read(known: Pending) -> None:
    """Nobody need wait for it in this process's code."""
    result, work = torch.ones(4), Work()
    known.begin(work, [result])
    _over(work)

    assert admit(result)[1] == ""


def test_a_handle_that_the_program_lets_go_of_still_counts(known: Pending) -> None:
    """It may have kept the future: until the collective is over, its memory is written."""
    result = torch.ones(4)
    known.begin(work := Work(), [result])
    reference = weakref.ref(work)
    del work
    gc.collect()
    assert is_pending(result)
    assert whole_part(result) is None
    kept = reference()
    assert kept is not None
    _over(kept)

    assert whole_part(result) is result


@pytest.mark.parametrize("which", ["let_go", "let_go_of_oldest"])
@pytest.mark.parametrize("kind", [Work, FailedWork])
def test_the_handle_of_a_collective_that_is_over_is_not_kept(
    which: str, kind: type[Work], known: Pending
) -> None:
    """It holds what was written; nor is that of one that has failed."""
    results = [torch.ones(1) for _ in range(3)]
    works = [kind(is_over=True), Work()]
    known.begin(works[0], results[:2])
    known.begin(works[1], results[2:])
    references = [weakref.ref(work) for work in works]
    works.clear()
    getattr(known, which)()

    assert [reference() is not None for reference in references] == [False, True]
    assert [is_pending(result) for result in results] == [False, False, True]


def test_one_that_is_never_over_keeps_no_others_alive(known: Pending) -> None:
    """As a message that nobody sends."""
    results = [torch.ones(1) for _ in range(2)]
    known.begin(Work(), results[:1])
    known.begin(work := Work(is_over=True), results[1:])
    reference = weakref.ref(work)
    del work
    known.let_go_of_oldest()
    assert reference() is not None
    known.let_go()

    assert reference() is None
    assert is_pending(results[0])


def test_memory_that_is_written_again_is_pending_for_the_newer(known: Pending) -> None:
    """The older one being over says nothing."""
    result = torch.ones(1)
    known.begin(Work(is_over=True), [result])
    known.begin(Work(), [result])
    known.let_go()

    assert is_pending(result)


def test_a_collective_that_has_failed_has_written_nothing(known: Pending) -> None:
    """Its handle raises; no reader does."""
    result, work = torch.ones(4), FailedWork()
    known.begin(work, [result])

    assert is_pending(result)


def test_a_number_of_results_that_never_end_is_remembered(
    known: Pending, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that come on top are not; handles that are over make room."""
    monkeypatch.setattr(pending, "MAX_PENDING", 2)
    work = Work()
    results = [torch.ones(1) for _ in range(3)]
    known.begin(work, results)
    assert [is_pending(result) for result in results] == [True, True, False]
    _over(work)
    known.let_go()
    known.begin(Work(), results[2:])

    assert is_pending(results[2])


def test_a_sparse_tensor_has_no_memory_to_ask_for(known: Pending) -> None:
    """It is measured as ever."""
    work, sparse = Work(), torch.eye(3).to_sparse()
    known.begin(work, [torch.ones(4), sparse])

    assert admit(sparse)[1] == ""
