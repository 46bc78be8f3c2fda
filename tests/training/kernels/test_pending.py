"""Memory that a collective has yet to write."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from ampwatch.training.kernels import admission, pending
from ampwatch.training.kernels.admission import admit, is_pending
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


def test_a_handle_that_nobody_holds_does_not_count(known: Pending) -> None:
    """Nor is it kept alive."""
    result = torch.ones(4)
    known.begin(Work(), [result])
    gc.collect()

    assert not is_pending(result)


def test_a_collective_that_has_failed_has_written_nothing(known: Pending) -> None:
    """Its handle raises; no reader does."""
    result, work = torch.ones(4), FailedWork()
    known.begin(work, [result])

    assert is_pending(result)


def test_a_number_of_results_that_never_end_is_remembered(
    known: Pending, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that come on top are not; handles that are gone make room."""
    monkeypatch.setattr(pending, "MAX_PENDING", 2)
    work: Any = Work()
    results = [torch.ones(1) for _ in range(3)]
    known.begin(work, results)
    assert [is_pending(result) for result in results] == [True, True, False]
    del work
    gc.collect()
    new = Work()
    known.begin(new, results[2:])

    assert is_pending(results[2])


def test_a_sparse_tensor_has_no_memory_to_ask_for(known: Pending) -> None:
    """It is measured as ever."""
    work, sparse = Work(), torch.eye(3).to_sparse()
    known.begin(work, [torch.ones(4), sparse])

    assert admit(sparse)[1] == ""
