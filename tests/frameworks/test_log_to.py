"""Real loggers are read back: what they have is what ampwatch says, and what the daemon serves.

And beside ``wandb.watch``: what each says of the same gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.frameworks.running import Fault, Programs, has
from tests.host.daemon.parts import Daemon, eventually

pytestmark = pytest.mark.nightly

STEPS, EVERY = 44, 5
LOGGED = [*range(EVERY - 1, STEPS, EVERY), STEPS - 1]
"""Steps of the points: as often as asked, and the last."""

SERVED = {
    "amp/loss_scale": "ampwatch_loss_scale",
    "amp/skipped_steps": "ampwatch_optimizer_steps_skipped_total",
    "amp/growths": "ampwatch_loss_scale_growths_total",
    "amp/backoffs": "ampwatch_loss_scale_backoffs_total",
    "amp/loss": "ampwatch_loss",
    "amp/grad_norm": "ampwatch_gradient_norm",
    "amp/scaled_grad_amax": "ampwatch_scaled_gradient_amax",
    "amp/nonfinite_elements": "ampwatch_gradient_nonfinite_elements",
    "amp/findings": "ampwatch_findings",
}
"""Metrics of the daemon that have the number of a key, where all their series are added."""


@pytest.fixture
def programs(python: str, tmp_path: Path) -> Programs:
    needs = ("tensorboard", "tensorboardX", "mlflow", "wandb", "trackio", "lightning")
    if not has(python, needs):
        pytest.fail(f"expected {', '.join(needs)} in the environment of {python}")
    return Programs(python, tmp_path)


def served(daemon: Daemon, run: str) -> dict[str, float]:
    """Return the numbers of a run that has ended, from the daemon's ``/metrics``."""

    def sums() -> dict[str, float] | None:
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(daemon.ask("/metrics").text):
            for sample in family.samples:
                if sample.labels.get("run") == run:
                    found[sample.name] = found.get(sample.name, 0.0) + sample.value
                    if sample.name == "ampwatch_run_state" and sample.value == 1:
                        found[sample.labels["state"]] = 1.0
        return found if found.get("finished") else None

    metrics: dict[str, float] = eventually(sums, "the end of the run")
    return {key: metrics[name] for key, name in SERVED.items() if name in metrics}


def points_of(kept: dict[str, Any]) -> dict[str, dict[int, float]]:
    """Return the numbers that a logger has, by key and iteration."""
    if "numbers" in kept:
        return {
            key: {int(step): value for step, value in points.items()}
            for key, points in kept["numbers"].items()
        }
    points: dict[str, dict[int, float]] = {}
    for row in kept["rows"]:
        for key in row.keys() & {k for k in row if k.startswith("amp/")}:
            points.setdefault(key, {})[int(row["amp/step"])] = row[key]
    return points


def same(one: float, other: float) -> bool:
    """Whether two numbers are one, in float32 at least: TensorBoard keeps no more."""
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return math.isclose(one, other, rel_tol=1e-6)


def differing(kept: dict[str, float], told: dict[str, float]) -> dict[str, tuple[float, float]]:
    """Return the numbers that a logger has otherwise, or not at all."""
    # What watching costs goes on between the point and the moment at which the program asks.
    compared = told.keys() - {"amp/overhead_seconds", "amp/overhead_share"}
    return {
        key: (kept.get(key, math.inf), told[key])
        for key in sorted(compared)
        if key not in kept or not same(float(kept[key]), told[key])
    }


@pytest.mark.parametrize(
    "logger",
    [
        "tensorboard",
        "tensorboardX",
        "mlflow",
        "wandb",
        "trackio",
        "lightning_tensorboard",
        "lightning_csv",
    ],
)
def test_a_logger_has_the_numbers_of_the_training_and_of_the_daemon(
    programs: Programs, logger: str
) -> None:
    """Every number of every point, findings as text, the summary; and no bit of the training differs.

    Of a file of numbers, the numbers.
    """
    with programs.place.daemon("--no-gpu") as daemon:
        bare, told = programs.train("none", logger)
        metrics = served(daemon, logger)
    assert {k: told[k] for k in bare} == bare

    kept = programs.kept(logger)
    points = points_of(kept)
    steps = sorted(points["amp/loss_scale"])
    # Of several points between two rows of the program, W&B keeps the newest: on a busy machine not all are there.
    assert steps == LOGGED or (logger == "wandb" and {STEPS - 1} <= set(steps) <= set(LOGGED))
    for number in steps[:-1]:
        at = {key: values[number] for key, values in points.items() if number in values}
        assert not differing(at, told["seen"][number]["metrics"]), f"at step {number}"
    assert metrics.keys() >= {"amp/loss_scale", "amp/skipped_steps", "amp/loss"}
    for key, value in metrics.items():
        assert same(points[key][STEPS - 1], value), key
        assert same(told["summary"][key], value), key
    if logger == "wandb":
        assert kept["axes"] == {"amp/step": "", "amp/*": "amp/step"}
        rows = [row["_step"] for row in kept["rows"] if "loss" in row]
        assert rows == [10 * step for step in range(1, STEPS + 1)], "the program's own rows"
        texts = [text for _, _, text in kept["alerts"]]
        assert not differing(kept["summary"], told["summary"])
        tag = "amp/gradient_exponents/head"
        of_head = [
            (row["amp/sample_step"], row[f"{tag}/bins"][1:], row[f"{tag}/values"])
            for row in kept["rows"]
            if f"{tag}/bins" in row
        ]
    elif logger in {"mlflow", "trackio"}:
        if logger == "mlflow":
            found = kept["texts"].items()
            texts = [text for name, text in found if name.startswith("amp/finding/")]
            assert kept["texts"]["amp/kind/forward_overflow"] == "critical"
            assert kept["found"] == 1, "a search by the kind"
        else:
            texts = [text for _, text in kept["alerts"]]
            of_head = kept["histograms"]["amp/gradient_exponents/head"]
        last = {key: values[STEPS - 1] for key, values in points.items() if STEPS - 1 in values}
        assert not differing(last, told["summary"])
    elif logger == "lightning_csv":
        return  # a file of numbers
    else:
        texts = kept["texts"]["amp/findings/text_summary"]
        (summary,) = kept["texts"]["amp/summary/text_summary"]
        said = (line.split() for line in summary.splitlines())
        assert not differing({key: float(value) for key, value in said}, told["summary"])
        assert kept["files"] == 1
        assert kept["histograms"]["amp/gradient_exponents"]
        of_head = kept["histograms"]["amp/gradient_exponents/head"]
    assert any("forward_overflow in module blocks.1.boost" in text for text in texts)
    if logger != "mlflow":
        assert of_head
        for step, edges, counts in of_head:
            bins = {round(edge): count for edge, count in zip(edges, counts, strict=True) if count}
            by_hand = told["seen"][int(step)]["exponents"]
            assert bins == {int(e): count for e, count in by_hand.items()}, f"at step {step}"


def test_beside_wandb_watch(
    programs: Programs, record_property: Callable[[str, object], None]
) -> None:
    """Its gradients are those times the loss scale; the norms of ampwatch are those without."""
    programs.store("wandb").mkdir()
    told = programs.run(
        "log_to.py", "wandb", str(programs.store("wandb")), "beside", fault=Fault.NONE, name="wandb"
    )
    kept = programs.kept("wandb")
    compared = 0
    lines = []
    for number, moment in enumerate(told["seen"]):
        name, scale = "head.weight", moment["scale"]
        if moment["metrics"].get("amp/sample_step") != number:
            continue
        # Gradients join the row that the iteration before has begun.
        row = next(r for r in kept["rows"] if r["_step"] == 10 * number)
        edge = max(map(abs, row[f"gradients/{name}/bins"]))
        true, norm = moment["true"][name], moment["norms"][name]
        assert math.isclose(norm, true, rel_tol=1e-5)
        whole = math.sqrt(sum(value**2 for value in moment["true"].values()))
        assert math.isclose(moment["metrics"]["amp/grad_norm"], whole, rel_tol=1e-5)
        # The largest element of a gradient is no larger than its norm: what W&B shows is.
        assert edge > true
        assert edge / scale <= true * 1.001
        compared += 1
        lines.append(f"step {number}: scale {scale:g}, norm {norm:.6g}, by hand {true:.6g}, largest of wandb.watch {edge:.6g}")  # fmt: skip
    assert compared >= 3, "at most ten measurements a second are recorded"
    record_property("norms", lines)
