"""Promise 1, of tracebacks: an exception of the program's is the same object, with the frames of before."""

from __future__ import annotations

import signal
import sys
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ampwatch
from ampwatch.guard import is_of_a_signal, leave_out_own_frames
from tests.promises.conftest import ahead

pytestmark = ahead

OURS, TORCHS = (str(Path(str(package.__file__)).parent) for package in (ampwatch, torch))

MOST = 0 if sys.version_info >= (3, 11) else 1
"""Frames of ampwatch: before Python 3.11 the outermost one cannot be left out."""


class Failing(nn.Module):
    """Raises at a place that is chosen, in the second step."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.layer, self.place, self.error = nn.Linear(4, 4), place, ValueError(place)
        self.is_due = False

    def at(self, place: str) -> None:
        if self.is_due and place == self.place:
            raise self.error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.at("forward")
        if self.is_due and self.place == "op":
            torch.mm(x, x)
        out: torch.Tensor = self.layer(x)
        out.register_hook(lambda _: self.at("backward"))
        return out


def _train(model: Failing, scaler: torch.amp.GradScaler, watch: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.register_step_pre_hook(lambda *_: model.at("optimizer"))
    with watch:
        for step in range(2):
            model.is_due = step == 1
            loss = model(torch.ones(3, 4)).sum()
            if model.is_due and model.place == "loss":
                torch.mm(loss, loss)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()


def _raised(place: str, level: str) -> BaseException:
    model, scaler = Failing(place), torch.amp.GradScaler("cpu")
    watch: Any = nullcontext()
    if level:
        watch = ampwatch.monitor(model, scaler, level=level, serve=False)
    with pytest.raises((ValueError, RuntimeError)) as caught:
        _train(model, scaler, watch)
    assert (caught.value is model.error) is (place not in ("op", "loss"))
    return caught.value


def _frames(error: BaseException, *, but: tuple[str, ...]) -> list[traceback.FrameSummary]:
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if not frame.filename.startswith(but)]


@pytest.mark.parametrize("level", ["light", "deep"])
@pytest.mark.parametrize("place", ["forward", "op", "loss", "backward", "optimizer"])
def test_a_traceback_has_no_frame_of_ampwatch(place: str, level: str) -> None:
    """Where the program, or an op that it has called, raises; deep sees each op."""
    bare, watched = _raised(place, ""), _raised(place, level)
    names = [frame.name for frame in _frames(bare, but=(TORCHS,))]

    assert [f.name for f in _frames(watched, but=(OURS, TORCHS))] == names
    assert len(_frames(watched, but=())) - len(_frames(watched, but=(OURS,))) <= MOST
    # PyTorch has a frame more for hooks on modules, and one for an op that a mode calls.
    assert 0 <= len(_frames(watched, but=(OURS,))) - len(_frames(bare, but=())) <= 2


def _made(name: str, line: str, **known: Any) -> Any:
    """Return a function of a module of that name."""
    space: dict[str, Any] = {"__name__": name, **known}
    exec(f"def passing():\n    {line}", space)
    return space["passing"]


def _names(call: Any) -> list[str]:
    with pytest.raises(ValueError, match="of this test") as caught:
        call()
    leave_out_own_frames(caught.value)
    at, names = caught.value.__traceback__, []
    while at is not None:
        names.append(at.tb_frame.f_globals["__name__"])
        at = at.tb_next
    return names[1:]


def test_what_ampwatch_has_raised_itself_keeps_its_frames() -> None:
    """Those within the last frame of somebody else; those around that one are left out."""
    inner = _made("ampwatch.training.b", "raise ValueError('of this test')")
    theirs = _made("theirs", "call()", call=_made("ampwatch.training.a", "call()", call=inner))
    outer = _made("ampwatch.training.c", "call()", call=theirs)

    assert _names(outer) == ["theirs", "ampwatch.training.a", "ampwatch.training.b"]


def test_a_time_limit_is_still_known_by_its_frames() -> None:
    """Or a guard outside would take what the program's handler has raised for an error of a sensor."""

    def limit(_number: int, _frame: object) -> None:
        msg = "of this test"
        raise ValueError(msg)

    before = signal.signal(signal.SIGUSR1, limit)
    try:
        line = f"raise_it({int(signal.SIGUSR1)})"
        call = _made("ampwatch.training.a", line, raise_it=signal.raise_signal)
        with pytest.raises(ValueError, match="of this test") as caught:
            call()
    finally:
        signal.signal(signal.SIGUSR1, before)
    leave_out_own_frames(caught.value)

    assert is_of_a_signal(caught.value)
