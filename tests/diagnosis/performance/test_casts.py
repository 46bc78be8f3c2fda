"""Cost of casts, matmuls in float32, dtypes without instructions, switches that are off, and lines at which the host waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from ampwatch.diagnosis.book import FindingBook
from ampwatch.diagnosis.detector import Shared
from ampwatch.diagnosis.evidence.ops import HostWaits, LayerShape, Machine, WaitingLine, Window
from ampwatch.diagnosis.performance.syncs import WINDOW, SyncsInStep
from ampwatch.numerics.units.ops import Fallback, OpKind, Phase
from ampwatch.wire.records import CensusSource, Finding, Severity
from tests.diagnosis.words import Known, complaints_of
from tests.workshop.censuses import CPU, HOPPER, Watched, cast, convolution, matmul, op
from tests.workshop.iterations import TAKEN, iteration
from tests.workshop.replay import Replay

LAYERS = 4


def stack(*, up: int = 0, relus: int = LAYERS, cast_bytes: int = 400, other: int = 600) -> list:
    """Return a stack of Linear and ReLU; ``up`` of its layers are followed by ``.float()``.

    Autocast casts a weight and a bias of each layer, the input, and what was cast up.
    """
    down = 2 * LAYERS + 1 + up
    ops = [
        *(matmul(f"net.{i}", 250, bytes=other // LAYERS) for i in range(LAYERS)),
        op("relu", OpKind.POINTWISE, "net", "bfloat16", calls=relus),
        cast("net", down, "float32", "bfloat16", bytes=cast_bytes // 2),
    ]
    if up:
        ops.append(cast("net.act", up, "bfloat16", "float32", bytes=cast_bytes // 2))
    return ops


def kinds(watched: Watched) -> list[str]:
    return [kind for kind, _ in watched.named]


def test_the_casts_of_weights_are_the_price_of_autocast_and_not_named() -> None:
    """Nine casts beside four matmuls and nothing else: a plain stack of Linear layers."""
    assert kinds(Watched().take(*stack(relus=0))) == []


def test_leaving_low_precision_after_each_layer_is_named_where_most_bytes_are_cast_up() -> None:
    """Once, and counted after that."""
    watched = Watched().take(*stack(up=4)).take(*stack(up=4))

    finding = watched.only("cast_overhead")
    assert (finding.where, finding.op, finding.count) == ("net.act", "_to_copy", 2)
    assert finding.evidence["casts"] == 17
    assert finding.evidence["casts_per_op"] == 17 / 8
    assert finding.evidence["avoidable_casts"] == 3
    assert finding.evidence["cast_bytes_share"] == 0.4
    assert "torch.compile" in finding.advice


def test_casts_in_no_submodule_are_not_said_to_be_of_the_model() -> None:
    """A loss and a matcher run outside of it."""
    ops = [(k._replace(module="") if k.kind is OpKind.CAST else k, t) for k, t in stack(up=4)]
    finding = Watched().take(*ops).only("cast_overhead")

    assert (finding.where, "most in no submodule" in finding.summary) == ("step", True)


@pytest.mark.parametrize(
    "ops",
    [
        stack(up=1),
        stack(up=2),
        [k if k[1].flops else (k[0]._replace(dtype="float8_e4m3fn"), k[1]) for k in stack(up=4)],
        stack(up=4)[LAYERS:],
        stack(up=4, cast_bytes=100),
        stack(up=3, relus=40),
        [*stack(up=4), op("rms", OpKind.NORMALIZATION, "n", "float32", calls=4, fallback=Fallback.FP32_LIST)],
        [*stack(up=4), op("cat", OpKind.OTHER, "n", "float32", calls=4, fallback=Fallback.PROMOTED)],
    ],
    ids=["the loss", "two outputs", "float8", "no matmul", "few bytes", "many other ops", "norms", "promoted"],
)  # fmt: skip
def test_casts_that_autocast_asks_for_or_that_cost_little_are_not_named(ops: list) -> None:
    """Norms and softmax run in float32 on a GPU: their casts are part of the bargain."""
    assert kinds(Watched().take(*ops)) == []


def test_a_round_trip_for_nearly_every_matmul_is_named_whatever_else_runs() -> None:
    """Many pointwise ops hide them from the ratio of casts to ops."""
    assert kinds(Watched().take(*stack(up=4, relus=40))) == ["cast_overhead"]


def recast(calls: int, casts: int) -> list:
    return [
        matmul("cell", 100, calls=calls, bytes=100),
        cast("cell", casts, "float32", "bfloat16", bytes=500),
    ]


@pytest.mark.parametrize(
    ("casts", "losses", "layer", "named"),
    [
        (20, 1, "cell", True),
        (13, 1, "cell", True),
        (12, 1, "cell", False),
        (20, 5, "cell", False),
        (20, 0, "cell", False),
        (20, 1, "other", False),
    ],
    ids=["each call", "one more", "once", "micro-batches", "losses unknown", "no layer"],
)
def test_a_weight_that_is_cast_more_than_once_a_micro_batch_is_named(
    *, casts: int, losses: int, layer: str, named: bool
) -> None:
    """Ten calls cast ten inputs, a weight and a bias; whatever is not certain is not said."""
    layers = [LayerShape(layer, OpKind.MATMUL, (64, 64), 4096, "float32", "cpu")]
    watched = Watched(layers=layers).take(*recast(10, casts), num_losses=losses)

    assert kinds(watched) == ["cast_overhead"] * named
    if named:
        finding = watched.only("cast_overhead")
        assert (finding.where, finding.evidence["avoidable_casts"]) == ("cell", casts - 12)
        assert "cache_enabled" in finding.advice


def test_casts_outside_of_all_layers_may_be_those_of_another_model() -> None:
    """A model that is a single layer has no name to tell them by."""
    layers = [LayerShape("", OpKind.MATMUL, (64, 64), 4096, "float32", "cpu")]
    ops = [(key._replace(module=""), tally) for key, tally in recast(10, 20)]

    assert kinds(Watched(layers=layers).take(*ops, num_losses=1)) == []


def test_casts_of_the_optimizer_are_none_of_autocast() -> None:
    """Master weights are copied once a step."""
    ops = stack()
    ops.append(cast("", 90, "bfloat16", "float32", phase=Phase.OPTIMIZER, bytes=9000))

    assert kinds(Watched().take(*ops)) == []


@pytest.mark.parametrize(
    ("copies", "activations", "named"),
    [
        (2**20, 2**20 - 1, True),
        (2**20, 2**20, False),
        (2**15, 0, False),
        (0, 2**20, False),
    ],
    ids=["heavier weights", "a draw", "next to nothing", "low-precision weights"],
)
def test_copies_of_weights_that_outweigh_the_halved_activations_are_reported(
    *, copies: int, activations: int, named: bool
) -> None:
    """float32 keeps twice the activations and no copies."""
    watched = Watched().take(matmul("m", 1), weight_cast_bytes=copies, activation_bytes=activations)

    assert watched.named == [("no_memory_gain", "")] * named
    if named:
        finding = watched.only("no_memory_gain")
        assert finding.phase == "config"
        assert finding.evidence["bytes_more_than_float32"] == copies - activations


REGION = Fallback.DISABLED_REGION


@pytest.mark.parametrize(("machine", "has_tf32"), [(HOPPER, True), (CPU, False)])
def test_a_container_in_a_disabled_region_is_named_once_and_counted(
    machine: Machine, *, has_tf32: bool
) -> None:
    """The children have the matmuls; the region was drawn around their parent. TF32 is a GPU's."""
    watched = Watched(machine)
    for _ in range(3):
        watched.take(
            matmul("encoder", 100),
            matmul("decoder.0", 100, "float32", REGION),
            matmul("decoder.1", 800, "float32", REGION),
        )

    finding = watched.only("fp32_matmul")
    assert (finding.where, finding.phase, finding.op) == ("decoder", "forward", "addmm")
    assert (finding.count, finding.severity) == (3, Severity.INFO)
    assert finding.evidence["float32_share"] == 0.9
    assert "autocast(enabled=False)" in finding.summary
    assert ("set_float32_matmul_precision" in finding.advice) is has_tf32


@pytest.mark.parametrize(("float32", "named"), [(50, False), (51, True)])
def test_half_of_the_flops_is_the_threshold(*, float32: int, named: bool) -> None:
    """A run that computes everything in both precisions to compare them is not one."""
    watched = Watched().take(matmul("a", 100 - float32), matmul("b", float32, "float32", REGION))

    assert bool(watched.named) is named


@pytest.mark.parametrize(
    "large",
    [
        matmul("big", 900, "tf32"),
        matmul("big", 900, "float32", phase=Phase.EVAL),
        matmul("big", 900, "float32", phase=Phase.OPTIMIZER),
        matmul("", 900, "float32", Fallback.OUTSIDE_REGION),
    ],
    ids=["TF32", "an evaluation", "an optimizer that multiplies matrices", "another model"],
)
def test_what_is_no_float32_matmul_of_the_forward_pass_does_not_count(large: object) -> None:
    """Tensor cores run TF32; the others are not what autocast is for."""
    assert Watched().take(matmul("a", 100), large).named == []


def test_the_reason_that_has_most_flops_says_where() -> None:
    """The place of another reason would lead astray."""
    watched = Watched().take(
        matmul("head", 30, "float32", Fallback.OUTSIDE_REGION),
        matmul("ff", 70, "float32", Fallback.CUSTOM_FUNCTION),
    )

    finding = watched.only("fp32_matmul")
    assert finding.where == "ff"
    assert "autograd.Function" in finding.summary
    assert finding.evidence["reason_share"] == 0.7


@pytest.mark.parametrize("reason", [Fallback.OTHER_THREAD, Fallback.DEVICE_TYPE])
def test_autocast_that_is_elsewhere_is_another_finding(reason: Fallback) -> None:
    """One incident is one finding."""
    watched = Watched().take(matmul("m", 100, "float32", reason))

    assert watched.named == [("autocast_inactive", "m")]


def test_float32_without_autocast_is_advised_of_tf32_only_where_there_is_some() -> None:
    """On a CPU float32 is the user's choice, and so it is where TF32 is on."""
    op = matmul("m", 100, "float32")
    finding = Watched(HOPPER, dtypes=()).take(op).only("fp32_matmul")

    assert "TF32 is off" in finding.summary
    for machine in (CPU, HOPPER._replace(matmul_tf32=True), HOPPER._replace(capability=(7, 5))):
        assert Watched(machine, dtypes=()).take(op).book.of_kind("fp32_matmul") == []


def test_the_gain_is_what_the_roofline_of_a_known_gpu_leaves() -> None:
    """4096 cubed: 2.29 ms at least at 60 TFLOP/s, and 0.18 ms at 75 % of 1000 TFLOP/s."""
    flops = 2 * 4096**3
    op = matmul("m", flops, "float32", REGION, shape=(1, 4096, 4096, 4096))
    finding = Watched(HOPPER).take(op, duration_s=0.01).only("fp32_matmul")

    expected = flops / 60e12 - flops / 750e12
    assert finding.evidence["recoverable_seconds"] == pytest.approx(expected)
    assert finding.evidence["gain_ratio"] == pytest.approx(expected / 0.01)


def test_a_gain_that_is_not_known_is_not_a_number() -> None:
    """Neither of an unknown GPU nor where one of two limits is unknown."""
    op = matmul("m", 2 * 64**3, "float32", REGION, shape=(1, 64, 64, 64))
    for machine in (CPU, HOPPER._replace(memory_bandwidth=0.0), HOPPER._replace(peak_flops={})):
        finding = Watched(machine).take(op, duration_s=0.01).only("fp32_matmul")
        assert not {"recoverable_seconds", "gain_ratio"} & finding.evidence.keys()


def test_a_census_from_a_profiler_window_is_judged_with_the_autocast_that_is_known() -> None:
    """The profiler does not see it: else float32 would be blamed on TF32 that is off."""
    ops = matmul("", 100), matmul("", 900, "float32", phase=Phase.FORWARD)

    watched = Watched(HOPPER).take(*ops, source=CensusSource.PROFILER, autocast_dtypes=())

    summary = watched.only("fp32_matmul").summary
    assert "although autocast is bfloat16" in summary
    assert "no autocast is used" not in summary


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
