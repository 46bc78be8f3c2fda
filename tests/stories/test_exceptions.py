"""Programs that raise, and programs that only a machine makes slow."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import ampwatch
from ampwatch.training.model import machine
from ampwatch.training.monitor import Monitor
from tests.stories import autocast
from tests.stories.collection import ERRORS
from tests.stories.stage import (
    ALARMS,
    Program,
    Story,
    alarms,
    at_each_level,
    bare_digest,
    once,
    ops,
    seed,
    watch,
)

# torch says so where the first step of a training is skipped; that is as it should be.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Detected call of:UserWarning"),
    pytest.mark.usefixtures("one_thread", "samples_in_one_piece"),
]


def fail(story: Story, level: str | None) -> tuple[Program, Monitor | None, Exception]:
    """Run a program that raises, watched if a level is given."""
    seed()
    program = story.build(sick=True)
    watched = program.models[0] if len(program.models) == 1 else program.models
    monitor = None
    try:
        if level is None:
            program.run()
        else:
            with ampwatch.monitor(watched, program.scaler, level=level, serve=False) as monitor:
                program.run()
    except (RuntimeError, ValueError, AssertionError) as error:
        return program, monitor, error
    raise LookupError(story)


@pytest.mark.parametrize(("story", "level"), at_each_level(ERRORS))
def test_an_exception_is_explained_and_reaches_the_user_as_it_is(story: Story, level: str) -> None:
    """Type and text are as without ampwatch; one finding says where it came from."""
    bare, _, expected = fail(story, None)
    program, monitor, error = fail(story, level)

    assert monitor is not None
    assert (type(error), str(error)) == (type(expected), str(expected))
    assert alarms(monitor.findings) == [("api_error", story.where, story.phase)]
    assert ops(monitor.findings, "api_error") == [story.op]
    assert program.digest() == bare.digest()


@pytest.mark.rotating
@pytest.mark.parametrize(("story", "level"), once(ERRORS))
def test_the_twin_of_an_exception_is_left_alone(story: Story, level: str) -> None:
    """It ends, and there is nothing to say."""
    program, monitor = watch(partial(story.build, sick=False), level)

    assert len(program.trace) == program.steps
    assert [(f.kind, f.where) for f in monitor.findings if f.severity in ALARMS] == []


@pytest.mark.parametrize(("story", "level"), at_each_level(autocast.OF_THE_MACHINE))
@pytest.mark.parametrize("sick", [True, False])
def test_a_dtype_without_instructions_is_an_info(
    story: Story, level: str, *, sick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU that has none: only where autocast asks for the dtype."""
    monkeypatch.setattr(machine, "cpu_dtypes", lambda _=None: frozenset())

    program, monitor = watch(partial(story.build, sick=sick), level)

    found = [
        (f.kind, f.where, f.phase, f.severity) for f in monitor.findings if f.kind == story.kind
    ]
    assert found == ([(story.kind, story.where, story.phase, "info")] if sick else [])
    assert alarms(monitor.findings) == []
    assert program.digest() == bare_digest(story.build, sick=sick)


@pytest.mark.parametrize("overflows", [True, False])
def test_what_a_matcher_refuses_has_its_origin_in_the_op_that_made_it(*, overflows: bool) -> None:
    """It runs beside the model, without gradients, and no loss follows; else the message says all there is."""
    model = torch.nn.Linear(16, 8)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train() -> None:
        for step in range(4):
            x = torch.randn(32, 16) * (1e3 if step == 3 and overflows else 1.0)
            with torch.autocast("cpu", dtype=torch.float16):
                out = model(x)
                with torch.no_grad():
                    cost = torch.matmul(out.T, out)
            if step == 3:
                msg = "cost matrix is infeasible"
                raise ValueError(msg)
            scaler.scale((out.float() * cost.float().mean()).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    watch = ampwatch.monitor(model, scaler, level="deep", serve=False)
    with pytest.raises(ValueError, match="infeasible"), watch:
        train()

    named = [(f.kind, f.where, f.op) for f in watch.findings if f.root and f.severity in ALARMS]
    error = ("api_error", "loss", "linear_sum_assignment")
    assert named == ([("forward_overflow", "loss", "mm")] if overflows else [error])
    assert [f.caused_by for f in watch.findings if f.kind == "api_error"] == [
        "forward_overflow@loss" if overflows else ""
    ]
