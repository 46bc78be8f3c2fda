"""Dtypes that the machine has no instructions for, switches that are off, and lines at which the host waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from ampwatch.diagnosis.book import FindingBook
from ampwatch.diagnosis.detector import Shared
from ampwatch.diagnosis.evidence.ops import HostWaits, Machine, WaitingLine, Window
from ampwatch.diagnosis.performance.syncs import WINDOW, SyncsInStep
from ampwatch.numerics.units.ops import Phase
from ampwatch.wire.records import Finding, Severity
from tests.diagnosis.words import Known, complaints_of
from tests.workshop.censuses import HOPPER, Watched, convolution, matmul
from tests.workshop.iterations import TAKEN, iteration
from tests.workshop.replay import Replay

AVX512_BF16 = Machine(device_type="cpu", cpu_dtypes=frozenset({"bfloat16"}))
TURING = Machine(device_type="cuda", device_name="Tesla T4", capability=(7, 5))


def iterations(watched: Watched, count: int = 3) -> None:
    """Hand over iterations without a census."""
    replay = Replay()
    for _ in range(count):
        watched.performance.detect(replay.take().last, TAKEN)


@pytest.mark.parametrize(("dtype", "named"), [("float16", True), ("bfloat16", False)])
def test_an_autocast_dtype_without_instructions_is_reported_once_without_a_census(
    *, dtype: str, named: bool
) -> None:
    """It is known as soon as a region is entered, and stays as it is."""
    watched = Watched(AVX512_BF16, dtypes=())
    iterations(watched)
    watched.dtypes.append(dtype)
    iterations(watched)

    assert watched.named == [("cpu_isa_missing", "env")] * named
    if named:
        finding = watched.only("cpu_isa_missing")
        assert (finding.phase, finding.dtype, finding.count) == ("config", "float16", 1)
        assert finding.severity is Severity.INFO
        assert "it has them for bfloat16" in finding.summary


def test_weights_in_such_a_dtype_are_reported_from_the_census() -> None:
    """``model.half()`` enters no region; an optimizer's own dtype does not count."""
    watched = Watched(AVX512_BF16, dtypes=())
    watched.take(matmul("m", 1, "float16", phase=Phase.OPTIMIZER))
    before = watched.named
    watched.take(matmul("m", 1, "float16"))

    assert (before, watched.named) == ([], [("cpu_isa_missing", "env")])


def test_a_gpu_computes_what_its_host_cannot() -> None:
    """The CPU's instructions say nothing of it."""
    watched = Watched(HOPPER, dtypes=("float16",))
    iterations(watched)
    watched.take(matmul("m", 64, "float16"))

    assert watched.named == []


@pytest.mark.parametrize(
    ("capability", "dtype", "named"),
    [((7, 5), "bfloat16", True), ((7, 5), "float16", False), ((8, 0), "bfloat16", False)],
)
def test_bfloat16_before_ampere_is_a_warning(
    *, capability: tuple[int, int], dtype: str, named: bool
) -> None:
    """It is emulated there; nothing in PyTorch says so."""
    watched = Watched(TURING._replace(capability=capability), dtypes=(dtype,))
    iterations(watched)

    assert watched.named == [("cpu_isa_missing", "env")] * named
    if named:
        finding = watched.only("cpu_isa_missing")
        assert finding.severity is Severity.WARNING
        assert finding.evidence["compute_capability"] == 7.5
        assert "Tesla T4" in finding.summary


def test_a_scaler_beside_emulated_bfloat16_is_advised_to_stay_with_float16() -> None:
    """Taking it away would be the wrong half of the mistake."""
    watched = Watched(TURING)
    watched.book.make(
        Finding("scaler_with_bf16", Severity.INFO, "api", "A scaler is on.", "Take it off.")
    )
    iterations(watched)
    watched.take(matmul("m", 8))

    finding = watched.only("scaler_with_bf16")
    assert finding.advice.startswith("Take it off. This GPU")
    assert finding.advice.count("float16 autocast") == 1
    assert finding.evidence["compute_capability"] == 7.5


SLOW = HOPPER._replace(cudnn_benchmark=False)


def of_sizes(*sizes: int, dtype: str = "bfloat16") -> list:
    return [convolution("c", 100, dtype, shape=(1, size, 64, 64)) for size in sizes]


def test_a_search_is_advised_where_convolutions_keep_their_sizes() -> None:
    """Two censuses have to agree, for a search costs more than it gains where sizes change."""
    steady, changing = Watched(SLOW), Watched(SLOW)
    for first, second in zip(of_sizes(64, 64, 64), of_sizes(64, 72, 80), strict=True):
        steady.take(first)
        changing.take(second)

    finding = steady.only("backend_flags")
    assert (finding.where, finding.phase, finding.severity) == ("env", "config", Severity.INFO)
    assert (finding.first_step, finding.count) == (1, 2)
    assert "cudnn.benchmark = True" in finding.summary
    assert "matmul_precision" not in finding.summary
    assert changing.named == []


@pytest.mark.parametrize(
    ("machine", "matmuls"),
    [(HOPPER, 0), (SLOW, 401), (SLOW._replace(device_type="cpu", capability=None), 0)],
    ids=["searched already", "few convolutions", "no GPU"],
)
def test_a_search_is_not_advised_where_it_gains_nothing(machine: Machine, matmuls: int) -> None:
    """A fifth of the FLOPs is the threshold."""
    watched = Watched(machine)
    for conv in of_sizes(64, 64):
        watched.take(conv, matmul("m", matmuls))

    assert watched.book.of_kind("backend_flags") == []


@pytest.mark.parametrize(("flops", "named"), [(5, True), (4, False)])
def test_tf32_is_advised_for_the_float32_matmuls_that_remain(*, flops: int, named: bool) -> None:
    """A twentieth of the FLOPs is the threshold; much of them is another finding."""
    ops = matmul("m", 100 - flops), matmul("head", flops, "float32")
    watched = Watched(HOPPER).take(*ops)
    older = Watched(HOPPER._replace(capability=(7, 5))).take(matmul("h", 9, "float32"))

    assert watched.named == [("backend_flags", "env")] * named
    assert ("backend_flags", "env") not in older.named
    if named:
        finding = watched.only("backend_flags")
        assert "set_float32_matmul_precision('high')" in finding.summary
        assert "allow_tf32" not in finding.summary
        assert finding.evidence["float32_share"] == 0.05


def test_tf32_of_convolutions_has_a_switch_of_its_own() -> None:
    """It is on by default, and off only if somebody switched it off."""
    machine = HOPPER._replace(matmul_tf32=True, convolution_tf32=False)
    watched = Watched(machine).take(matmul("m", 90), convolution("c", 10, "float32"))

    assert "cudnn.allow_tf32" in watched.only("backend_flags").summary
    assert "matmul_precision" not in watched.only("backend_flags").summary


def test_tf32_is_not_reported_twice() -> None:
    """Where most matmuls are float32, that finding names the switch."""
    watched = Watched(HOPPER).take(matmul("m", 1), matmul("n", 99, "float32"))

    assert watched.named == [("fp32_matmul", "n")]


LOSS = WaitingLine("/home/me/train.py:20", "item")
MASK = WaitingLine("/home/me/model.py:7", "index by a mask")
BATCH = WaitingLine("/home/me/train.py:12", "copy to the device")


class Seen(NamedTuple):
    """A training of which each iteration is observed."""

    lines: Callable[[int], dict[WaitingLine, int]]
    steps: int = 40


def found(seen: Seen, *windows: Window) -> list[Finding]:
    """Return what is found; the windows end before the first iteration."""
    book = FindingBook(lambda _news: None)
    syncs = SyncsInStep(Shared(book))
    for window in windows:
        syncs.detect(iteration(window=window), TAKEN)
    for step in range(seen.steps):
        syncs.observe(HostWaits(step, seen.lines(step)))
    assert [why for f in book.findings for why in complaints_of(f, Known())] == []
    return book.findings


SILENT = {
    "never": Seen(lambda _step: {}),
    "each 100 steps": Seen(lambda step: {LOSS: 1} if step % 100 == 0 else {}, 400),
    "each other step": Seen(lambda step: {LOSS: 1} if step % 2 else {}),
    "at the beginning": Seen(lambda step: {LOSS: 1} if step < 10 else {}),
    "in too few steps to know": Seen(lambda _step: {LOSS: 1}, WINDOW - 1),
    "at a line of its own in each step": Seen(
        lambda step: {WaitingLine(f"generated.py:{step}", "item"): 1}
    ),
}


@pytest.mark.parametrize("seen", SILENT.values(), ids=SILENT.keys())
def test_a_line_that_does_not_wait_in_most_steps_is_left_alone(seen: Seen) -> None:
    assert found(seen) == []


@pytest.mark.parametrize(
    ("seen", "waits", "source", "words"),
    [
        (Seen(lambda _step: {LOSS: 1}), 1.0, LOSS.source, "once: item at 'train.py:20' (once)"),
        (
            Seen(lambda _step: {LOSS: 1, MASK: 3}),
            4.0,
            MASK.source,
            "4 times: index by a mask at 'model.py:7' (3 times), item at 'train.py:20' (once)",
        ),
        (
            Seen(lambda step: {LOSS: 1} if step % 8 else {}),
            14 / 16,
            LOSS.source,
            "0.875 times: item at 'train.py:20'",
        ),
        (Seen(lambda _step: {WaitingLine("", "item"): 1}), 1.0, "", "once: item (once)"),
        (
            Seen(lambda _s: {LOSS._replace(source=f"t.py:{n}"): n for n in range(1, 6)}),
            15.0,
            "t.py:5",
            "'t.py:5' (5 times), item at 't.py:4' (4 times), item at 't.py:3' (3 times) and more, at 5 lines in all",
        ),
    ],
)
def test_lines_that_wait_are_named_with_how_often(
    seen: Seen, waits: float, source: str, words: str
) -> None:
    """The one that waits most comes first, and is that of the finding."""
    (finding,) = found(seen)

    assert (finding.kind, finding.where, finding.severity) == ("sync_in_step", "api", "info")
    assert finding.evidence["waits_per_iteration"] == pytest.approx(waits)
    assert finding.source == source
    assert words in finding.summary


def window(waited: float, busy: float) -> Window:
    """Return a window of ten iterations in one second."""
    return Window(0, 10, 1.0, busy, (), waited)


@pytest.mark.parametrize(
    ("lines", "measured", "severity"),
    [
        ({LOSS: 1, MASK: 1}, window(0.4, 0.5), "warning"),
        ({LOSS: 1}, window(0.4, 0.5), "info"),
        ({LOSS: 1, MASK: 1}, window(0.1, 0.5), "info"),
        ({LOSS: 1, MASK: 1}, window(0.9, 0.95), "info"),
    ],
    ids=["dear", "one a step", "short", "a device that is busy"],
)
def test_waits_are_a_warning_where_they_leave_the_device_idle(
    lines: dict[WaitingLine, int], measured: Window, severity: str
) -> None:
    """Several in a step, long ones, and a device that has nothing to do: all three."""
    (finding,) = found(Seen(lambda _step: lines), measured)

    assert finding.severity == severity
    assert finding.evidence["waiting_share"] == pytest.approx(measured.waited_s)
    assert finding.evidence["idle_share"] == pytest.approx(1.0 - measured.busy_s)


def test_a_wait_that_is_mended_is_not_counted_any_more() -> None:
    """Once most of the iterations that are looked at are without."""
    (finding,) = found(Seen(lambda step: {BATCH: 1} if step < 40 else {}, 200))

    assert finding.last_step < 40 + WINDOW / 2
