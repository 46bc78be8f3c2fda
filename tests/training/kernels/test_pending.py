"""Memory that a collective has yet to write, and lists of tensors cut into units of work."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from ampwatch.training.kernels import admission, pending
from ampwatch.training.kernels.admission import admit, is_pending, whole_part
from ampwatch.training.kernels.pending import Pending
from ampwatch.training.kernels.work_units import MAX_KEPT_BYTES, LaunchTable, WorkUnits


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


CPU = torch.device("cpu")
STEP = 64


def _units(per_processor: int = 4) -> WorkUnits:
    return WorkUnits(STEP, per_processor)


def _bytes_by_row(launches: Sequence[LaunchTable]) -> dict[int, list[int]]:
    """Every byte address that the units of a row cover, in order."""
    covered: dict[int, list[int]] = {}
    for dtype, units in launches:
        size = getattr(torch, dtype).itemsize
        for address, begin, end, row in units.tolist():
            covered.setdefault(row, []).extend(range(address + begin * size, address + end * size))
    return covered


def test_units_cover_every_piece_once_and_nothing_else() -> None:
    """Byte for byte, whatever lengths, dtypes and alignments; empty pieces have no unit."""
    pieces: list[Tensor] = [
        torch.empty(n + off, dtype=dtype)[off:]
        for dtype in (torch.float32, torch.float16, torch.float64, torch.float8_e5m2)
        for n in (1, 63, 64, 65, 1000, 0)
        for off in (0, 1, 3)
    ]
    covered = _bytes_by_row(_units().of(pieces, CPU))

    assert covered == {
        row: list(range(p.data_ptr(), p.data_ptr() + p.nbytes))
        for row, p in enumerate(pieces)
        if p.numel()
    }


def test_the_table_is_made_again_only_when_an_address_a_length_or_a_dtype_changes() -> None:
    """A known list costs no upload, in whatever order lists take turns."""
    units = _units()
    memory = torch.zeros(200)
    first = units.of([memory[:100]], CPU)
    other = units.of([memory[4:104]], CPU)

    assert units.of([memory[:100]], CPU) is first
    assert units.of([memory[4:104]], CPU) is other
    assert units.of([memory[:99]], CPU) is not first
    assert units.of([memory[:100].view(torch.float16)[:100]], CPU) is not first


@pytest.mark.rotating
def test_what_is_remembered_is_bounded() -> None:
    """A training whose addresses change with every step does not fill the device, nor the host."""
    for per_processor, pieces in ((1000, 1), (1, 500)):
        units = _units(per_processor)
        memory = torch.zeros(100_000)
        for i in range(1000):
            recent = units.of([memory[i:]] * pieces, CPU)

        tables = sum(launch.units.nbytes for known in units._known.values() for launch in known)
        fingerprints = sum(len(fingerprint) for _, fingerprint in units._known)
        assert tables + 200 * fingerprints < MAX_KEPT_BYTES
        assert len(units._known) > 50
        assert units.of([memory[999:]] * pieces, CPU) is recent


@pytest.mark.rotating
def test_a_list_that_alone_is_more_than_the_bound_is_measured_all_the_same() -> None:
    """And remembered until another comes."""
    units = _units(per_processor=1)
    memory = torch.zeros(MAX_KEPT_BYTES // 200 + 1)
    huge = list(memory.split(1))
    table = units.of(huge, CPU)

    assert units.of(huge, CPU) is table
    units.of([memory], CPU)
    assert units.of(huge, CPU) is not table
