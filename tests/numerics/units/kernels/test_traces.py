"""The share of tensor-core kernels in traces of real GPUs is bracketed, and not trivially."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ampwatch.numerics.units.kernels.classifier import Unit
from ampwatch.numerics.units.kernels.kernel_tally import KernelTally

TRACES = Path(__file__).resolve().parents[5] / "shared" / "traces"

pytestmark = pytest.mark.skipif(
    not TRACES.is_dir(), reason="the traces of real GPUs are not beside this repository"
)


@cache
def tallied(name: str) -> KernelTally:
    """Add up the kernels of a trace with what it says of the ops that launched them."""
    with gzip.open(TRACES / f"{name}.json.gz", "rt", encoding="utf-8") as file:
        trace: dict[str, Any] = json.load(file)
    events = trace["traceEvents"]
    ops = {
        event["args"]["External id"]: event
        for event in events
        if str(event.get("cat")).lower() in ("cpu_op", "operator")
        and "External id" in event.get("args", {})
    }
    (device, *_) = trace["deviceProperties"]
    capability = (device["computeMajor"], device["computeMinor"])
    tally = KernelTally(capability=None if "AMD" in device.get("name", "") else capability)
    for event in events:
        if str(event.get("cat")).lower() != "kernel":
            continue
        arguments = event["args"]
        op = ops.get(arguments.get("External id", arguments.get("external id")), {})
        said = op.get("args", {})
        inputs = said.get("Input type", ())
        tally.add(event["name"], round(event["dur"] * 1000), inputs, op.get("name", ""))
    return tally


def on(tally: KernelTally, unit: Unit) -> int:
    """Return the time on a unit, in all dtypes."""
    return sum(duration for (where, _), duration in tally.by_unit.items() if where is unit)


def share(tally: KernelTally) -> tuple[float, float]:
    """The share of tensor-core kernels, if no unknown kernel is one, and if all of them are."""
    total = sum(tally.by_unit.values())
    lower = on(tally, Unit.TENSOR) / total
    return lower, lower + on(tally, Unit.UNKNOWN) / total


@pytest.mark.parametrize(
    ("name", "known", "widest"),
    [
        ("v100-resnet50-fp32", 0.0, 0.0),
        ("a100-alexnet-tf32", 0.170, 0.07),
        ("h100-bert-small-bf16", 0.765, 0.02),
        ("h100-vit-bf16", 0.783, 0.02),
    ],
)
def test_the_bracket_holds_the_share_found_by_hand(name: str, known: float, widest: float) -> None:
    """To the precision of that share, a tenth of a per cent."""
    lower, upper = share(tallied(name))

    assert lower - 0.0006 <= known <= upper + 0.0006
    assert upper - lower <= widest


def test_float32_training_on_a_v100_has_no_tensor_core_kernel() -> None:
    """Exactly, and its matmuls are found anyway: half of the time and more."""
    tally = tallied("v100-resnet50-fp32")

    assert share(tally) == (0.0, 0.0)
    assert on(tally, Unit.UNKNOWN) == 0
    assert on(tally, Unit.CUDA) > 0.5 * sum(tally.by_unit.values())
    assert {dtype for unit, dtype in tally.by_unit if unit is Unit.CUDA} == {"float32"}


def test_tf32_and_float32_are_kept_apart_on_an_a100() -> None:
    """Convolutions in TF32 beside sgemm, in one program."""
    tally = tallied("a100-alexnet-tf32")

    assert tally.by_unit[Unit.TENSOR, "tf32"] == on(tally, Unit.TENSOR) > 0
    assert tally.by_unit[Unit.CUDA, "float32"] > on(tally, Unit.TENSOR)
    assert tally.lagging_ns == 0


@pytest.mark.parametrize("name", ["h100-bert-small-bf16", "h100-vit-bf16"])
def test_old_kernels_are_found_on_an_h100(name: str) -> None:
    """All in bfloat16, and more than a third of their time by the instructions of sm80."""
    tally = tallied(name)

    assert {dtype for unit, dtype in tally.by_unit if unit is Unit.TENSOR} == {"bfloat16"}
    assert 0.33 < tally.lagging_ns / on(tally, Unit.TENSOR) < 1.0


def test_a_misaligned_matmul_is_found() -> None:
    """The output layer over an odd vocabulary, 30522, aligned to 2 elements."""
    tally = tallied("h100-bert-small-bf16")

    assert tally.by_alignment["align2"] > 0.1 * sum(tally.by_unit.values())


@pytest.mark.parametrize("name", ["mi300-bert-small-bf16", "compile-triton"])
def test_on_amd_only_named_matrix_instructions_count(name: str) -> None:
    """The attention of AOTriton does not say, so the bracket is as wide as its share."""
    tally = tallied(name)

    assert set(tally.unknown_names) == {"attn_fwd"}
    assert all("_MI16x16x1_" in kernel for kernel in tally.by_name if kernel.startswith("Cijk"))
    assert tally.by_unit[Unit.TENSOR, "bfloat16"] == on(tally, Unit.TENSOR)
    lower, upper = share(tally)
    assert 0.4 < lower < upper < 1.0
    assert tally.lagging_ns == 0


def test_generated_pointwise_kernels_are_no_matmul() -> None:
    """Kernels that TorchInductor generates for a norm or an activation are of neither unit."""
    tally = tallied("compile-triton")

    triton_ns = sum(ns for kernel, ns in tally.by_name.items() if kernel.startswith("triton_"))
    assert on(tally, Unit.OTHER) == triton_ns > 0
