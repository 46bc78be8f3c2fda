"""What ends a training: an exception, or an exit, shows the op that made what was not finite."""

from __future__ import annotations

import random
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

import ampwatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ampwatch import Finding

FAULTY = 40
"""The step that ends the training, after the opening; no sample falls on it."""

ENDS = (AssertionError, KeyError, RuntimeError, ValueError, SystemExit)


def scaled(scores: Tensor, amax: float) -> Tensor:
    return scores.abs() / scores.abs().amax() * amax


def probabilities(scores: Tensor) -> Tensor:
    weights = scores.exp()  # the op
    return weights / weights.sum(-1, keepdim=True)


class Net(nn.Module):
    def __init__(self, end: str) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 4)
        self.end, self.factor = end, 1.0

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x).relu())
        if self.end not in ("draw", "check", "exit"):
            return out
        found = probabilities(scaled(out, self.factor))
        if self.end == "draw":
            torch.multinomial(found.float(), 1)
        if self.end == "check" and not torch.isfinite(found).all():
            # The condition says why, and the exception nothing.
            raise ValueError
        return found


class Matcher(nn.Module):
    @torch.no_grad()
    def forward(self, scores: Tensor) -> Tensor:
        scores = scores - 0.0
        return torch.multinomial(probabilities(scores).float(), 1)


def matched(scores: Tensor) -> None:
    Matcher()(scores)


def wrapped(scores: Tensor) -> None:
    """Frameworks wrap what was raised in one of their own."""
    try:
        matched(scores)
    except RuntimeError as error:
        raise KeyError from error


def drawn(scores: Tensor) -> None:
    with torch.no_grad():
        found = probabilities(scores)
        torch.multinomial(found.float(), 1)


def looked_up(scores: Tensor) -> None:
    masked = scores.masked_fill(scores > -1.0, -torch.inf).logsumexp(-1).amax()
    if scores.amax() > 1.0:
        {"label": masked}["labels"].sum()


def finished(scores: Tensor) -> None:
    if scores.log().sub(torch.inf).amax() and scores.amax() > 1.0:
        sys.exit(0)


def leave() -> None:
    with suppress(SystemExit):
        sys.exit(1)


def left_by_a_thread(scores: Tensor) -> None:
    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    looked_up(scores)


def train(
    end: str = "",
    after: Callable[[Tensor], None] = lambda scores: None,
    *,
    dtype: torch.dtype = torch.float16,
    level: str = "standard",
) -> tuple[list[Finding], BaseException | None]:
    torch.manual_seed(0)
    net = Net(end)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled=dtype is torch.float16)
    watch = ampwatch.monitor(net, scaler, level=level, serve=False, sample_every=1000)
    ended: BaseException | None = None
    try:
        with watch:
            for step in range(FAULTY + 1):
                net.factor = 1.0 if step < FAULTY else 30.0 if dtype is torch.float16 else 100.0
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype):
                    out = net(torch.rand(8, 4))
                    after(scaled(out, net.factor))
                if end == "exit" and out.isnan().any():
                    sys.exit(1)
                scaler.scale(out.float().square().mean()).backward()
                scaler.step(optimizer)
                scaler.update()
    except ENDS as error:
        ended = error
    return [f for f in watch.findings if f.severity is ampwatch.Severity.CRITICAL], ended


THE_OP = next(
    f"{__file__}:{number}"
    for number, text in enumerate(Path(__file__).read_text().splitlines(), 1)
    if text.endswith("# the op")
)


@pytest.mark.parametrize(
    ("end", "dtype"),
    [("draw", torch.float16), ("check", torch.bfloat16), ("exit", torch.bfloat16)],
)
def test_the_op_in_the_model_is_named_with_what_cures_it(end: str, dtype: torch.dtype) -> None:
    findings, ended = train(end, dtype=dtype)
    assert isinstance(ended, ENDS)
    [root] = [f for f in findings if f.root]
    assert (root.kind, root.where, root.op) == ("forward_overflow", "", "exp")
    assert (root.source, root.first_step, root.count) == (THE_OP, FAULTY, 1)
    # exp(30) is above float16 and below float32, exp(100) above both.
    assert any(tried.cures for tried in root.tried) is (dtype is torch.float16)
    others = [(f.kind, f.caused_by) for f in findings if not f.root]
    assert others == ([("api_error", root.key)] if end == "draw" else [])


@pytest.mark.parametrize("after", [matched, wrapped])
def test_the_op_in_a_module_outside_of_the_model_is_named(after: Callable[[Tensor], None]) -> None:
    findings, _ended = train(after=after)
    [root] = [f for f in findings if f.root]
    assert (root.kind, root.where, root.op) == ("forward_overflow", "loss", "exp")
    assert (root.source, root.first_step) == (THE_OP, FAULTY)
    # Whether autocast was on where the exception came from is not known.
    assert "utocast is off" not in root.summary + root.advice


def test_of_what_no_module_has_computed_the_variables_are_named() -> None:
    [error], _ended = train(after=drawn)
    assert error.kind == "api_error"
    assert "found (float16)" in error.summary
    assert "all finite: scores (float16)" in error.summary


@pytest.mark.parametrize("after", [looked_up, finished, left_by_a_thread])
def test_nothing_is_named_where_no_number_has_ended_it(after: Callable[[Tensor], None]) -> None:
    findings, ended = train(after=after)
    assert (findings, isinstance(ended, ENDS)) == ([], True)


@pytest.mark.parametrize(
    ("end", "after"), [("draw", drawn), ("exit", left_by_a_thread), ("", matched)]
)
def test_random_numbers_and_the_exception_are_those_without_ampwatch(
    end: str, after: Callable[[Tensor], None]
) -> None:
    seen = []
    for level in ("off", "standard"):
        _findings, ended = train(end, after, level=level)
        seen.append((torch.get_rng_state().tolist(), random.getstate(), type(ended), str(ended)))
    assert seen[0] == seen[1]


def train_until(limit: float, rate: float, error: type[BaseException] = ValueError) -> list[str]:
    """Train at a rate that is wrong from step 100 on, until a loss is above a limit; return the kinds found."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    inputs = torch.randn(32, 8)
    with suppress(error), ampwatch.monitor(model, serve=False) as watch:
        for step in range(140):
            if step == 100:
                optimizer.param_groups[0]["lr"] = rate
            loss = model(inputs).square().mean()
            if loss.item() > limit:
                raise error
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        raise error
    return [finding.kind for finding in watch.findings]


def test_a_training_that_ends_itself_as_its_loss_rises_has_diverged() -> None:
    """Nothing was infinite, and three losses, each larger than all before, say so only as nothing follows."""
    assert train_until(1e6, 1.5) == ["divergence"]


@pytest.mark.parametrize(
    ("limit", "rate", "error"),
    [(1e6, 0.1, ValueError), (2.0, 1.5, ValueError), (1e6, 1.5, KeyboardInterrupt)],
    ids=["it learns", "a low limit", "it is stopped by hand"],
)
def test_what_ends_otherwise_has_not(limit: float, rate: float, error: type[BaseException]) -> None:
    """An exception is no divergence, and a loss that rises less may fall again."""
    assert train_until(limit, rate, error) == []
