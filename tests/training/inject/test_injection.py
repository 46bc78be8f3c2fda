"""A fault that is planted is found where it was planted, and leaves nothing behind."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as module_state
from torch.optim import optimizer as optimizer_state

import ampwatch
from ampwatch.training.hooks import taps
from ampwatch.wire.records import Severity
from tests.trainings import Net, Run, adamw, scaler


@pytest.fixture(autouse=True)
def comparable(one_thread: None) -> None:
    """Runs are compared bit for bit."""


def healthy(*, steps: int = 40, model: nn.Module | None = None, scaled: bool = True) -> Run:
    torch.manual_seed(0)
    model = model or Net()
    made = scaler(init_scale=1024.0, growth_interval=1000) if scaled else None
    dtype = torch.float16 if scaled else torch.bfloat16
    return Run([model], [adamw(model)], made, steps=steps, dtype=dtype)


def watched(run: Run, **settings: Any) -> ampwatch.Monitor:
    return ampwatch.monitor(run.models, run.scaler, serve=False, **settings)


def hooks() -> tuple[Any, ...]:
    return (
        len(module_state._global_forward_hooks),
        len(optimizer_state._global_optimizer_pre_hooks),
        len(optimizer_state._global_optimizer_post_hooks),
        dict(taps._taps),
    )


@pytest.mark.rotating
@pytest.mark.parametrize("kind", ["inf_grad", "nan_grad"])
def test_a_gradient_is_broken_in_one_element_in_its_iterations_only(kind: str) -> None:
    """The scaler skips those steps and no other; the finding names the parameter and says that it was planted."""
    run = healthy()
    broken: list[tuple[int, int]] = []
    told: list[str] = []
    run.after_step = lambda step: skipped.append(step) if watch.last_step.skipped else None
    skipped: list[int] = []
    with watched(run) as watch:
        watch.on_finding(lambda f: told.append(f.summary), kinds=["scale_collapse"])
        run.models[0].first.weight.register_post_accumulate_grad_hook(
            lambda p: broken.append((len(run.scales), int((~p.grad.isfinite()).sum())))
        )
        injection = ampwatch.inject(watch, kind, parameter="first.weight", step=22, steps=8)
        run.loop()

    assert skipped == list(range(22, 30))
    assert broken == [(step, 1 if 22 <= step < 30 else 0) for step in range(40)]
    assert (injection.planted, injection.active) == (8, False)
    (found,) = [f for f in watch.findings if f.kind == "scale_collapse"]
    assert f"ampwatch.inject had planted a fault: {kind} in first.weight" in found.summary
    assert found.summary.count("ampwatch.inject") == told[0].count("ampwatch.inject") == 1
    assert found.first_step == 22
    assert found.evidence["injected"] == 1.0
    assert all("injected" not in f.evidence for f in watch.findings if f.first_step < 22)


@pytest.mark.rotating
def test_a_finding_long_after_a_planted_fault_is_not_marked() -> None:
    """Findings that come later have another reason."""
    run = healthy(steps=80)
    run.poison = tuple(range(60, 70))
    with watched(run) as watch:
        ampwatch.inject(watch, "inf_grad", parameter="first.weight", step=22)
        run.loop()

    (found,) = [f for f in watch.findings if f.kind == "scale_collapse"]
    assert found.first_step == 60
    assert "injected" not in found.evidence


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("fault", "kind"),
    [("inf_activation", "forward_overflow"), ("nan_activation", "forward_nan_underflow")],
)
@pytest.mark.parametrize(
    ("level", "steps", "module", "scaled"),
    [
        ("deep", 1, "norm", True),
        ("deep", 1, "last", False),
        ("deep", 4, "", True),
        ("standard", 4, "norm", True),
        ("standard", 4, "last", False),
    ],
)
def test_a_planted_activation_is_found_in_its_module(
    fault: str, kind: str, level: str, steps: int, module: str, *, scaled: bool
) -> None:
    """The diagnosis names the module, the iteration and an op: that is what is to be proven."""
    run = healthy(steps=30, scaled=scaled)
    # Each step is looked at, whatever that costs on a busy host.
    with watched(run, level=level, sample_every=1) as watch:
        ampwatch.inject(watch, fault, module=module, step=22, steps=steps)
        run.loop()

    (found,) = [f for f in watch.findings if f.kind == kind]
    assert found.where == module
    assert found.op
    # Below deep a busy host may rest in the first of them.
    assert 22 <= found.first_step < (23 if level == "deep" else 22 + steps)
    assert found.evidence["injected"] == 1.0
    if steps > 1:
        assert found.severity is Severity.CRITICAL


def test_evaluation_is_not_broken() -> None:
    """A validation pass within the iteration keeps its numbers."""
    run, outputs = healthy(steps=1), []
    with watched(run) as watch:
        ampwatch.inject(watch, "nan_activation", module="norm")
        run.models[0].eval()
        with torch.no_grad():
            outputs.append(run.models[0](torch.ones(4, 8)))
        run.models[0].train()
        run.loop()

    assert bool(outputs[0].isfinite().all())
    assert math.isnan(run.losses[0])


def test_a_collapsed_scale_is_one_that_the_scaler_itself_has_halved() -> None:
    """Only a scale halved by the scaler fires the alert, and is known to the diagnosis."""
    run = healthy()
    with watched(run) as watch:
        ampwatch.inject(watch, "collapsed_scale", step=25)
        run.loop()

    assert run.scales[-1] == 1024.0 / 2**12
    assert {"scale_collapse", "scale_below_one"} <= {f.kind for f in watch.findings}


@pytest.mark.parametrize("scaled", [True, False])
def test_a_stalled_step_waits_once_before_it(*, scaled: bool) -> None:
    """For the time asked for, by the clock that was handed in; nothing else changes."""
    alone = healthy(steps=12, scaled=scaled)
    alone.loop()
    run = healthy(steps=12, scaled=scaled)
    waits: list[tuple[int, float]] = []
    with watched(run) as watch:
        ampwatch.inject(
            watch,
            "stalled_step",
            step=4,
            steps=2,
            seconds=7.5,
            sleep=lambda s: waits.append((len(run.losses), s)),
        )
        run.loop()

    assert waits == [(5, 7.5), (6, 7.5)]
    assert run.digest() == alone.digest()


def test_waiting_for_its_iteration_changes_nothing() -> None:
    """Bit for bit, until the fault is planted."""
    alone = healthy(steps=10)
    alone.loop()
    run = healthy(steps=10)
    with watched(run) as watch:
        ampwatch.inject(watch, "inf_grad", parameter="first.weight", step=50)
        ampwatch.inject(watch, "nan_activation", module="norm", step=50)
        ampwatch.inject(watch, "collapsed_scale", step=50)
        run.loop()

    assert run.digest() == alone.digest()


def test_nothing_is_left_when_it_is_over_and_nothing_is_ever_on_the_model() -> None:
    """No hook, no tap; a copy or pickle that is made meanwhile is not broken."""
    run = healthy()
    model = run.models[0]
    before = hooks()
    with watched(run, level="light") as watch:
        during = hooks()
        with ampwatch.inject(watch, "nan_activation", module="norm", steps=30):
            ampwatch.inject(watch, "inf_grad", parameter="first.weight", steps=30)
            twins = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
            run.steps = 3
            run.loop()
            for twin in twins:
                twin.train()
                loss = twin(torch.ones(4, 8)).square().sum()
                loss.backward()
                assert bool(loss.isfinite())
                assert bool(twin.first.weight.grad.isfinite().all())
            assert not model.norm._forward_hooks
            assert not model.first.weight._backward_hooks
        forward_hooks = hooks()[0]
    assert forward_hooks == during[0]
    assert hooks() == before
    out = model(torch.ones(4, 8)).square().sum()
    out.backward()
    assert bool(out.isfinite())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"kind": "inf_gard", "parameter": "first.weight"}, "did you mean 'inf_grad'"),
        ({"kind": "inf_grad"}, "`parameter`: expected the name of a parameter"),
        ({"kind": "inf_grad", "parameter": "first.wait"}, "did you mean 'first.weight'"),
        ({"kind": "inf_grad", "parameter": "last.weight"}, "requires_grad is False"),
        ({"kind": "nan_activation", "module": "nrm"}, "did you mean 'norm'"),
        ({"kind": "stalled_step", "module": "norm"}, "`module`: expected none"),
        ({"kind": "stalled_step", "seconds": math.nan}, "expected a number >= 0"),
        ({"kind": "collapsed_scale", "seconds": 2.0}, "`seconds`: expected none"),
        ({"kind": "stalled_step", "steps": 0}, ">= 1"),
        ({"kind": "stalled_step", "steps": 1.5}, "`steps`: expected a whole number >= 1, got 1.5"),
        ({"kind": "stalled_step", "step": -1}, ">= 0"),
    ],
)
def test_what_cannot_be_planted_is_refused_and_leaves_nothing(
    arguments: dict[str, Any], words: str
) -> None:
    """With the names that there are."""
    run = healthy()
    run.models[0].last.weight.requires_grad_(requires_grad=False)
    with watched(run) as watch:
        before = hooks()
        with pytest.raises(ampwatch.SettingsError, match=words):
            ampwatch.inject(watch, **arguments)

        assert hooks() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"kind": "inf_gard", "parameter": "first.weight"}, "did you mean 'inf_grad'"),
        ({"kind": "inf_grad", "parameter": "zzz"}, "; there are 'first.weight', 'first.bias', "),
        ({"kind": "stalled_step", "step": 0}, "`step`: expected 3 or later"),
    ],
)
def test_a_slip_in_the_middle_of_a_training_does_not_end_it(
    arguments: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A rehearsal of hours goes on; nothing is planted, and the log says why."""
    alone = healthy(steps=3)
    alone.loop()
    alone.loop()
    run = healthy(steps=3)
    with watched(run) as watch:
        run.loop()
        before = hooks()
        injection = ampwatch.inject(watch, **arguments)
        assert hooks() == before
        with injection:
            run.loop()

    assert (injection.active, injection.planted) == (False, 0)
    assert repr(injection) == f"<ampwatch.Injection {arguments['kind']}, over>"
    assert run.digest() == alone.digest()
    (line,) = [m for m in caplog.messages if "no fault is planted" in m]
    assert words in line


def test_a_scale_cannot_collapse_without_a_scaler() -> None:
    """Said at once, rather than never planted."""
    run = healthy(scaled=False)
    with watched(run) as watch, pytest.raises(ampwatch.SettingsError, match="GradScaler"):
        ampwatch.inject(watch, "collapsed_scale")


def test_what_is_no_monitor_is_refused() -> None:
    """The model is a likely slip."""
    with pytest.raises(ampwatch.SettingsError, match="expected what ampwatch"):
        ampwatch.inject(Net(), "collapsed_scale")  # type: ignore[arg-type]


def test_a_closed_monitor_takes_no_fault() -> None:
    """Nothing would take it off again."""
    run = healthy()
    watch = watched(run)
    watch.close()
    with pytest.raises(ampwatch.StateError, match="expected an open monitor"):
        ampwatch.inject(watch, "collapsed_scale")
