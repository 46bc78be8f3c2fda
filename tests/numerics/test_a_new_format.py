"""A format is one row: what follows once two rows are added to a copy of the package.

One is E3M4, a plain format of 8 bits; PyTorch has no dtype for it, so its elements are handed over
as the bytes they are. The other is block-scaled: the same elements, 8 of which share a scale.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import ampwatch
from tests.workshop.alone import python

pytestmark = pytest.mark.nightly

PACKAGE = Path(ampwatch.__file__).parent
AFTER = "    _E4M3,\n"
ROW = """
    FloatFormat(
        name="uint8",
        family=FormatFamily.FLOAT8,
        exponent_bits=3,
        mantissa_bits=4,
        torch_name="uint8",
        alignment=16,
        kernel_words=("e3m4",),
        cpp_types=("float_e3m4_t",),
        is_offered=True,
        is_candidate=True,
    ),
"""
BLOCK_ROW = """
    FloatFormat(
        name="mxfp8_e3m4",
        family=FormatFamily.FLOAT8,
        exponent_bits=3,
        mantissa_bits=4,
        alignment=16,
        kernel_words=("mxe3m4",),
        block=ScaleBlock(8, E8M0),
    ),
"""
QUESTIONS = """
import json
import torch

from ampwatch.diagnosis.performance.op_shares import ITEM_BYTES
from ampwatch.host.fleet.ranges import CANDIDATES
from ampwatch.host.metrics.scopes import dtype_label
from ampwatch.host.metrics.labels import LABELS
from ampwatch.host.page.range_state import formats
from ampwatch.numerics.formats import FORMATS
from ampwatch.numerics.units.kernels.classifier import classify
from ampwatch.numerics.units.ops import ALIGNMENT, FP8_DTYPES, HALF_DTYPES, TENSOR_DTYPES
from ampwatch.numerics.whatif import cast
from ampwatch.report.op_shares import LOW_PRECISION, by_peak
from tests.training.kernels import reference
from ampwatch.training.kernels.admission import admit
from ampwatch.training.kernels.eager import EagerKernel
from ampwatch.training.kernels.native import load
from ampwatch.training.kernels.rows import ROW_BYTES, ROW_WORDS, decode
from ampwatch.training.sensors.rounding.fp8_casts import FP8

every = torch.arange(256, dtype=torch.uint8)


def measured(kernel):
    (piece,), reason = admit(every)
    rows = torch.zeros((1, ROW_WORDS), dtype=torch.int32)
    kernel.measure([piece], rows)
    histogram = decode(rows.numpy().tobytes()[:ROW_BYTES], "uint8", every.numel())
    others = (histogram.zeros, histogram.nans, histogram.infs, histogram.amax, histogram.amin)
    return {"bins": histogram.by_exponent(), "others": others, "refused": reason}


def outcome(name):
    result = cast(reference.histogram(torch.tensor([0.001, 0.01, 0.1, 5.0, 100.0])), FORMATS[name])
    return [result.underflow, result.subnormal, result.overflow_low, result.overflow_high]


def limits(name):
    fmt = FORMATS[name]
    numbers = [fmt.max, fmt.overflow_from, fmt.min_normal, fmt.min_subnormal, fmt.flush_at, fmt.eps]
    return numbers + [fmt.bits, fmt.bias]


print(json.dumps({
    "limits": {name: limits(name) for name in ("uint8", "mxfp8_e3m4")},
    "outcome": {name: outcome(name) for name in ("uint8", "mxfp8_e3m4")},
    "kernels": [measured(kernel) for kernel in (EagerKernel(), load()) if kernel is not None],
    "page": list(formats()),
    "candidates": CANDIDATES,
    "labels": [LABELS["format"], LABELS["dtype"]],
    "label": [dtype_label("uint8"), dtype_label("mxfp8_e3m4")],
    "lists": ["uint8" in names for names in
              (FP8_DTYPES, TENSOR_DTYPES, LOW_PRECISION, HALF_DTYPES)],
    "cast_to": torch.uint8 in FP8,
    "alignment": ALIGNMENT["uint8"],
    "item_bytes": ITEM_BYTES["uint8"],
    "by_peak": by_peak({"uint8": 2, "float8_e5m2": 3}),
    "kernel_names": [classify(name).dtype for name in (
        "bmm_E3m4_E3m4E3m4_Fp32_t128x8",
        "cutlass_75_tensorop_e3m4_s16816gemm_e3m4",
        "void cutlass::Kernel<OpClassTensorOp, cutlass::float_e3m4_t>()",
        "cutlass_100_tensorop_mxe3m4_gemm",
        "nvjet_sm100_qqtst_128x64_vec8UE_TNT",
    )],
}))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Answers of a copy of the package in which one file has two rows more."""
    place = tmp_path_factory.mktemp("copy")
    left_out = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, place / "ampwatch", ignore=left_out)
    table = place / "ampwatch" / "numerics" / "formats.py"
    text = table.read_text()
    assert text.count(AFTER) == 1
    table.write_text(text.replace(AFTER, AFTER + ROW + BLOCK_ROW))
    answers: dict[str, Any] = json.loads(python("-c", QUESTIONS, place=place).stdout)
    return answers


def test_the_limits_follow_from_the_bits(told: dict[str, Any]) -> None:
    """The limits are of E3M4 as IEEE would lay it out: bias 3, and the top exponent is inf and NaN."""
    expected = [15.5, 15.75, 2.0**-2, 2.0**-6, 2.0**-7, 2.0**-4, 8, 3]
    assert told["limits"] == {"uint8": expected, "mxfp8_e3m4": expected}


def test_a_what_if_is_answered_in_either_format(told: dict[str, Any]) -> None:
    """0.001 is flushed, 0.01 and 0.1 become subnormal, 5 fits and 100 does not."""
    assert told["outcome"] == {"uint8": [1, 2, 1, 1], "mxfp8_e3m4": [1, 2, 1, 1]}


def test_kernels_count_exponents_and_all_that_is_not_finite(told: dict[str, Any]) -> None:
    """Every bit pattern is counted by the table that C and PyTorch use for 8 bits."""
    magnitudes = [k * 2.0**-6 for k in range(1, 16)]
    magnitudes += [(16 + k) * 2.0 ** (e - 6) for e in range(6) for k in range(16)]
    bins: dict[str, int] = {}
    for magnitude in magnitudes:
        exponent = next(e for e in range(-6, 5) if magnitude <= 2.0**e)
        bins[str(exponent)] = bins.get(str(exponent), 0) + 2
    assert told["kernels"]
    for kernel in told["kernels"]:
        assert kernel["bins"] == bins
        assert kernel["others"] == [2, 30, 2, 15.5, 2.0**-6]
        assert kernel["refused"] == ""


def test_page_and_metrics_offer_it_where_its_row_says_so(told: dict[str, Any]) -> None:
    """By range on the page, by row in the metrics; the block-scaled one asks for neither."""
    assert told["page"][-3:] == ["float8_e4m3fn", "float8_e4m3fnuz", "uint8"]
    assert told["candidates"] == ["float16", "bfloat16", "float8_e4m3fn", "uint8", "float8_e5m2"]
    assert "`uint8` or `float8_e5m2`; of block-scaled formats `mxfp8_e3m4`, " in told["labels"][0]


def test_label_values_contain_it_and_not_what_no_op_computes_in(told: dict[str, Any]) -> None:
    """An op's dtype has a label of its own; the block-scaled formats of kernels share one."""
    assert told["label"] == ["uint8", "other"]
    assert "`uint8`" in told["labels"][1]
    assert "mxfp8_e3m4" not in told["labels"][1]


def test_lists_of_formats_contain_it(told: dict[str, Any]) -> None:
    """FP8, tensor cores, low precision; not the formats autocast casts to."""
    assert told["lists"] == [True, True, True, False]
    assert told["cast_to"]
    assert (told["alignment"], told["item_bytes"]) == (16, 1)
    assert told["by_peak"] == {"float8": 5}


def test_names_of_kernels_are_read(told: dict[str, Any]) -> None:
    """Spellings are read, and the number of elements that share a scale in nvjet's names."""
    assert told["kernel_names"] == ["float8", "float8", "float8", "mx", "mx"]
