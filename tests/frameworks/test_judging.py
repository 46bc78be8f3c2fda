"""The judge of the support matrix, on outcomes that are made up."""

from __future__ import annotations

from typing import Any

import pytest

from tests.frameworks.judging import NO, PARTLY, YES, Outcomes, judge
from tests.frameworks.running import Fault, Outcome

SAMPLES = {
    "ampwatch_loss_scale": ({}, 2.0),
    "ampwatch_loss_scale_growths_total": ({}, 0.0),
    "ampwatch_steps_total": ({}, 2.0),
    "ampwatch_optimizer_steps_skipped_total": ({"class": "storm"}, 1.0),
    "ampwatch_census_iterations_total": ({}, 5.0),
    "ampwatch_op_calls_total": ({"op_kind": "matmul", "dtype": "float16"}, 3.0),
    "ampwatch_samples_total": ({"topic": "gradient"}, 5.0),
    "ampwatch_module_gradient_amax": ({"module": "layer"}, 1.0),
    "ampwatch_sensor_errors_total": ({"sensor": "births"}, 0.0),
}
"""What ``/metrics`` says where all is well; samples of activations are added below."""

SYMPTOM = {"kind": "scale_collapse", "where": "optimizer:0", "root": False}
FOUND = {
    Fault.NONE: [],
    Fault.OVERFLOW: [{"kind": "forward_overflow", "where": "layer", "root": True}, SYMPTOM],
    Fault.GRADIENT: [
        {"kind": "backward_nonfinite_any_scale", "where": "param:layer.weight", "root": True},
        SYMPTOM,
    ],
}


def finding(**fields: Any) -> dict[str, Any]:
    return {"severity": "critical", "summary": "", "advice": "", **fields}


def outcome(
    fault: Fault,
    samples: dict[str, tuple[dict[str, str], float]] | None = None,
    findings: list[dict[str, Any]] | None = None,
    **fields: Any,
) -> Outcome:
    told = {
        "weights": "abc",
        "scales": [4.0, 2.0],
        "skipped": [1],
        "growths": 0,
        "first": 0,
        "names": {
            "modules": ["", "layer"],
            "parameters": ["layer.weight"],
            "trained": ["layer.weight"],
        },
        "expected": {"overflow": "layer", "gradient": "layer.weight"},
    }
    found = FOUND[fault] if findings is None else findings
    report = {
        "identity": {"rank": 0},
        "findings": [finding(**f) for f in found],
        "steps": {"columns": ["step", "loss_scale"], "rows": [[0, 4.0], [1, 2.0]]},
    }
    seen = SAMPLES | (samples or {})
    series = [(name, {"rank": "0", **labels}, value) for name, (labels, value) in seen.items()]
    series.append(("ampwatch_samples_total", {"rank": "0", "topic": "activation"}, 5.0))
    made = {"code": 0, "stdout": "x\n", "stderr": "", "ranks": [told], **fields}
    return Outcome(samples=series, reports=[report] if found else [], **made)


def outcomes(**fields: Any) -> Outcomes:
    return {fault: outcome(fault, **fields) for fault in Fault}


def judged(leftovers: tuple[str, ...] = (), **fields: Any) -> dict[str, str]:
    cells = judge(outcomes(), outcomes(**fields), list(leftovers))
    return {column: cell.answer for column, cell in cells.items() if cell.answer != YES}


def test_where_all_is_well_every_cell_is_a_yes() -> None:
    assert judged() == {}


def samples(**changed: tuple[dict[str, str], float]) -> dict[str, Any]:
    return {"samples": {f"ampwatch_{name}": sample for name, sample in changed.items()}}


@pytest.mark.parametrize(
    ("fields", "worse"),
    [
        (samples(loss_scale=({}, 4.0)), {"scale and skips": NO}),
        (samples(steps_total=({}, 1.0)), {"scale and skips": PARTLY}),
        (samples(optimizer_steps_skipped_total=({}, 0.0)), {"scale and skips": PARTLY}),
        (samples(census_iterations_total=({}, 1.0)), {"ops": NO}),
        (samples(op_calls_total=({"op_kind": "matmul", "dtype": "float32"}, 3.0)), {"ops": PARTLY}),
        (samples(samples_total=({"topic": "gradient"}, 1.0)), {"ranges": NO}),
        (
            samples(module_gradient_amax=({"module": "module.layer"}, 1.0)),
            {"names": NO, "ranges": PARTLY},
        ),
        (samples(sensor_errors_total=({"sensor": "births"}, 1.0)), {"clean exit": NO}),
        (
            {"findings": [{"kind": "forward_overflow", "where": "layer", "root": False}]},
            {"gradient found": NO, "quiet": NO},
        ),
        (
            {"findings": [{"kind": "divergence", "where": "loss", "root": True}]},
            {"overflow found": NO, "gradient found": NO, "quiet": NO},
        ),
        ({"code": 1}, {"clean exit": NO}),
        ({"code": None}, {"clean exit": NO}),
        ({"stderr": "Traceback (most recent call last):"}, {"clean exit": NO}),
        ({"stdout": "x\nampwatch\n"}, {"clean exit": NO}),
        ({"leftovers": ("a.ring",)}, {"clean exit": NO}),
    ],
)
def test_what_is_wrong_costs_the_cells_that_rest_on_it(
    fields: dict[str, Any], worse: dict[str, str]
) -> None:
    assert judged(**fields) == worse
