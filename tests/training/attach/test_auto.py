"""Trainings are watched without a line in them, one monitor each, and end in the same bits, with one report of all."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from msgspec import structs
from torch import nn

import ampwatch
from ampwatch.settings import Settings
from ampwatch.training import announcement
from ampwatch.training import monitor as monitoring
from ampwatch.training.attach.auto import Attacher, models_of
from ampwatch.training.attach.last_word import MAX_SECONDS, last_word
from ampwatch.training.hooks import taps
from ampwatch.wire.blackbox import Box, files
from ampwatch.wire.records import Finding, RunState, Severity
from tests.trainings import RECIPES, Net, Run, adamw, build, scaler
from tests.workshop.records import identity


@pytest.fixture(autouse=True)
def comparable(one_thread: None) -> None:
    """Runs are compared bit for bit."""


@pytest.fixture
def attacher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Attacher]:
    """Armed, as in a process of its own."""
    monkeypatch.setattr(monitoring.Monitor, "num_asked_for", 0)
    made = Attacher(serve=False)
    made.install()
    yield made
    made.remove()
    for watch in made.watches:
        watch.close()


def zeroing_first(run: Run) -> Run:
    """The other common order: ``zero_grad`` before the forward."""
    forward = run.forward

    def zeroed(step: int, micro: int) -> torch.Tensor:
        if micro == 0:
            for optimizer in run.optimizers:
                optimizer.zero_grad()
        return forward(step, micro)

    run.forward = zeroed  # type: ignore[method-assign]
    return run


@pytest.mark.rotating
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.filterwarnings("ignore:Detected call of:UserWarning")
def test_each_recipe_has_one_monitor_and_the_same_bits(recipe: str, attacher: Attacher) -> None:
    """However many optimizers, with and without a scaler; every iteration but the first is seen."""
    attacher.remove()
    bare = build(recipe)
    bare.loop()
    attacher.install()
    run = build(recipe)
    run.loop()

    (watch,) = attacher.watches
    assert run.digest() == bare.digest()
    assert watch.models == run.models
    assert watch.last_step.step == run.steps - 1
    assert watch._scaler is (run.scaler if run.scaler and run.scaler.is_enabled() else None)


def test_an_iteration_that_begins_with_zero_grad_is_seen_from_the_first_on(
    attacher: Attacher,
) -> None:
    """Attached before its forward."""
    run = zeroing_first(build("fp16-foreach"))
    run.poison = ()
    run.steps = 1
    run.loop()

    (watch,) = attacher.watches
    assert watch.last_step.step == 0
    assert watch._diagnosis.iterations == 1


def test_two_scalers_are_two_monitors_that_do_not_mistake_each_other(attacher: Attacher) -> None:
    """A GAN has one for each player, and each player has its own optimizer."""
    torch.manual_seed(0)
    players = [Net(), Net()]
    optimizers = [adamw(player) for player in players]
    scalers = [scaler(1024.0), scaler(2048.0)]
    for _ in range(6):
        for player, optimizer, own in zip(players, optimizers, scalers, strict=True):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = player(torch.randn(16, 8)).float().square().mean()
            optimizer.zero_grad()
            own.scale(loss).backward()
            own.step(optimizer)
            own.update()

    first, second = attacher.watches
    assert [first.models, second.models] == [[players[0]], [players[1]]]
    assert [w.last_step.step for w in (first, second)] == [5, 5]
    assert all(f.severity.value == "info" for w in (first, second) for f in w.findings)


def test_backward_is_listened_to_only_while_something_is_unwatched(attacher: Attacher) -> None:
    """It is as it was once all that is trained is watched, until another optimizer is made."""
    attacher.remove()
    own = torch.autograd.backward
    attacher.install()
    assert torch.autograd.backward is not own
    run = build("fp16-foreach")
    run.poison = ()
    run.loop()
    (watch,) = attacher.watches
    watch.close()
    assert torch.autograd.backward is own
    adamw(Net())

    assert torch.autograd.backward is not own


def test_trainings_that_are_over_are_forgotten(
    attacher: Attacher, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search that trains a thousand small models does not collect monitors, nor lines."""
    monkeypatch.setattr(announcement, "_announced", set())
    for _ in range(3):
        run = build("fp16-foreach")
        run.poison, run.steps = (), 3
        run.loop()
        del run
        gc.collect()

    assert len(attacher.watches) == 1
    assert capsys.readouterr().err.count("watching run") == 1


@pytest.mark.parametrize("new", ["optimizer", "scaler"])
def test_a_further_part_of_the_same_training_joins_its_monitor(
    attacher: Attacher, new: str
) -> None:
    """Fine-tuning in two phases with one scaler; a scaler for each epoch."""
    run = build("fp16-foreach")
    run.poison = ()
    run.loop()
    if new == "optimizer":
        run.optimizers = [torch.optim.SGD(run.models[0].parameters(), lr=1e-3)]
    else:
        run.scaler = scaler()
    run.loop()

    (watch,) = attacher.watches
    assert watch.last_step.step == 23


def test_a_program_that_asks_for_a_monitor_itself_is_left_alone(
    attacher: Attacher, caplog: pytest.LogCaptureFixture
) -> None:
    """Before the first step, and also afterwards: ours goes without a word."""
    run = build("fp16-foreach")
    run.poison = ()
    with ampwatch.monitor(run.models, run.scaler, serve=False) as asked:
        run.loop()
    assert attacher.watches == []
    assert asked.last_step.step == 11

    monitoring.Monitor.num_asked_for = 0
    attacher.remove()
    attacher.install()
    late = build("fp16-fused")
    late.poison = ()
    late.loop()
    (unasked,) = attacher.watches
    with ampwatch.monitor(late.models, late.scaler, serve=False) as asked:
        assert unasked.closed
        late.loop()
    assert asked.last_step.step == 11
    assert attacher.watches == [unasked]
    assert "was watching this" not in caplog.text


def test_nothing_is_left_of_it(attacher: Attacher) -> None:
    """Taps come off, also those on the step of an optimizer that never stepped."""
    attacher.remove()
    before = dict(taps._taps)
    step = torch.optim.Adagrad.step
    attacher.install()
    torch.optim.Adagrad(Net().parameters())
    attacher.remove()

    assert taps._taps == before
    assert getattr(torch.optim.Adagrad.step, "hooked", False) or torch.optim.Adagrad.step is step


def test_a_variable_that_is_not_usable_is_one_warning(
    attacher: Attacher, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And training goes on unwatched."""
    monkeypatch.setenv("AMPWATCH_LEVEL", "loud")
    run = build("fp16-foreach")
    run.loop()

    assert attacher.watches == []
    assert caplog.text.count("this training runs unwatched") == 1
    assert len(run.losses) == run.steps


class Holder(nn.Module):
    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = nn.ModuleList(inner)


def test_the_models_of_an_optimizer_are_the_outermost_ones() -> None:
    """Containers included; of two that hold the same, the smaller; bare tensors have none."""
    first, second, other = Net(), Net(), Net()
    whole = Holder(first, second)
    bigger = Holder(whole, nn.Identity(), nn.Identity())
    bigger.inner[0] = first  # holds a part of what `whole` holds
    optimizers: list[Any] = [adamw(second), adamw(first)]

    assert models_of(optimizers) == [whole]
    assert models_of([adamw(other)]) == [other]
    assert models_of([torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=1.0)]) == []


def test_parameters_without_a_module_are_watched_through_their_optimizer(
    attacher: Attacher,
) -> None:
    """Style transfer, adversarial examples: what is trained is a tensor."""
    image = nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([image], lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        (image - 1).square().sum().backward()
        optimizer.step()

    (watch,) = attacher.watches
    assert watch.last_step.step == 4


class DeepSpeedEngine:
    """Steps an optimizer over copies of its model's parameters, for the first time while it is made."""

    def __init__(self, model: nn.Module) -> None:
        copies = [nn.Parameter(p.detach().clone()) for p in model.parameters()]
        self.inner = torch.optim.SGD(copies, lr=0.1)
        for copy in copies:
            copy.grad = torch.zeros_like(copy)
        self.inner.step()
        self.module = model
        self.global_steps = self.skipped_steps = 0
        self.cur_scale = 8.0
        self.optimizer = self

    def fp16_enabled(self) -> bool:
        return True

    def step(self) -> None:
        self.global_steps += 1
        self.skipped_steps += 1
        self.cur_scale /= 2.0


def test_an_engine_that_steps_copies_is_found_when_it_is_whole(
    attacher: Attacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at the step of its own optimizer, whose parameters no model holds."""
    module = ModuleType("deepspeed.runtime.engine")
    module.DeepSpeedEngine = DeepSpeedEngine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    gc.collect()
    model = nn.Linear(4, 4)
    engine = DeepSpeedEngine(model)
    assert not attacher.watches

    for _ in range(3):
        (model(torch.ones(2, 4)).sum() * engine.cur_scale).backward()  # type: ignore[no-untyped-call]
        engine.step()

    (watch,) = attacher.watches
    assert watch.models == [model]
    assert (watch.last_step.step, watch.last_step.skipped) == (2, True)
    assert watch.last_step.loss_scale == engine.cur_scale == 1.0


RANKS = 4
BEGAN_NS = identity().started_ns
END_S = 100.0


def box(
    rank: int,
    *places: str,
    error: str = "",
    severity: Severity = Severity.WARNING,
    at_s: float = END_S,
) -> Box:
    who = identity(run="gpt", rank=rank, local_rank=rank, world_size=RANKS, pid=100 + rank)
    state = RunState.FAILED if error else RunState.FINISHED
    findings = [
        Finding("scale_collapse", severity, place, "It broke", "Mend it") for place in places
    ]
    return Box(who, state, error, ended_ns=BEGAN_NS + int(at_s * 1e9), findings=findings)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.resolve({"report_dir": str(tmp_path)})


def told(settings: Settings, *boxes: Box) -> dict[int, str]:
    """Return what each rank prints, if all of them write their boxes before they print."""
    for each in boxes:
        files.write(files.report_directory(settings.report_dir), each, 64)
    waited: list[int] = []
    texts = {b.identity.rank: last_word(b, settings, lambda: waited.append(1)) for b in boxes}
    assert len(waited) == len(boxes)
    return texts


def test_ranks_that_end_together_print_one_report_of_all(settings: Settings) -> None:
    """The one that has ended first does; also when nobody else has come that far."""
    order = {2: 0.0, 1: 0.1, 3: 0.2, 0: MAX_SECONDS / 2}
    texts = told(settings, *(box(r, "optimizer:0", at_s=END_S + s) for r, s in order.items()))

    assert [rank for rank, text in texts.items() if text] == [2]
    assert texts[2].startswith("ampwatch report: run gpt, 4 of 4 ranks\n")
    assert texts[2].count("WARNING  scale_collapse") == 1
    assert "ranks 0-3" in texts[2]


@pytest.mark.parametrize(
    ("late", "adds"),
    [
        (box(0, "optimizer:0", at_s=200), ""),
        (box(0, "optimizer:0", "optimizer:7", at_s=200), "optimizer 7"),
        (box(0, "optimizer:0", severity=Severity.CRITICAL, at_s=200), "CRITICAL  scale_collapse"),
        (box(0, "optimizer:0", error="ValueError: boom", at_s=200), "boom"),
    ],
)
def test_a_rank_that_comes_later_adds_what_differs_alone(
    late: Box, adds: str, settings: Settings
) -> None:
    """A further finding, a worse one, a failure of its own. It may have evaluated for an hour."""
    text = told(settings, *(box(rank, "optimizer:0") for rank in (1, 2, 3)), late)[0]

    assert text.startswith("ampwatch report: run gpt, rank 0, on ") == bool(adds)
    assert adds in text
    assert "WARNING  scale_collapse  optimizer 0" not in text


def test_a_connection_that_a_failed_rank_has_closed_is_nothing_to_add(settings: Settings) -> None:
    """The failure has been reported, and theirs follows from it."""
    lost = "RuntimeError: Connection closed by peer"
    texts = told(
        settings,
        box(3, "optimizer:0", error="ValueError: boom"),
        *(box(rank, "optimizer:0", error=lost, at_s=END_S + 1 + rank) for rank in range(3)),
    )

    assert [rank for rank, text in texts.items() if text] == [3]


def test_what_a_rank_alone_has_found_is_in_the_report(settings: Settings) -> None:
    """Whether it ends first or last; one that has raised an exception has no word of its own."""
    texts = told(settings, box(1, "optimizer:0"), box(3, "optimizer:1", at_s=END_S + 0.2))
    assert "optimizer 1" in texts[1]
    assert texts[3] == ""


def test_a_rank_that_was_killed_is_in_the_report_if_a_daemon_has_noticed(
    settings: Settings,
) -> None:
    """It has no time of its end, and prints nothing."""
    dead = replace(box(0, "optimizer:0", error="killed"), ended_ns=0, written_ns=2**62)
    files.write(files.report_directory(settings.report_dir), dead, 64)
    text = told(settings, box(1, "optimizer:0"))[1]

    assert text.startswith("ampwatch report: run gpt, 2 of 4 ranks\n")
    assert "killed" in text


def test_what_an_earlier_start_or_another_run_has_left_is_not_of_this_one(
    settings: Settings,
) -> None:
    """Nor what another machine has, in a directory that they share."""
    old = box(1, "optimizer:0", at_s=-1)
    others = [
        replace(old, identity=structs.replace(old.identity, started_ns=BEGAN_NS - 10**11)),
        replace(box(2, "optimizer:0"), identity=structs.replace(box(2).identity, host="elsewhere")),
        replace(box(3, "optimizer:0"), identity=structs.replace(box(3).identity, world_size=2)),
        replace(box(3, "optimizer:0", at_s=1), state=RunState.RUNNING, ended_ns=0),
    ]
    for other in others:
        files.write(files.report_directory(settings.report_dir), other, 64)
    (files.run_directory(files.report_directory(settings.report_dir), "gpt") / "x.json").touch()

    assert told(settings, box(0, "optimizer:0"))[0].startswith("ampwatch report: run gpt, rank 0")


def test_two_jobs_of_one_name_each_print_theirs(settings: Settings) -> None:
    """Whose the other ranks are nobody knows; twice is better than never."""
    mine, other = box(0, "optimizer:0"), box(0, "optimizer:0", at_s=99)
    other = replace(other, identity=structs.replace(other.identity, pid=7))
    files.write(files.report_directory(settings.report_dir), other, 64)

    assert told(settings, mine)[0].startswith("ampwatch report: run gpt, rank 0")


@pytest.mark.parametrize("ranks", [1, RANKS])
def test_a_rank_that_leaves_no_box_waits_for_nobody(ranks: int, settings: Settings) -> None:
    """The only one of a run; one of several whose box could not be written, or with serve=False."""
    mine = box(0, "optimizer:0")
    mine = replace(mine, identity=structs.replace(mine.identity, world_size=ranks))
    if ranks == 1:
        files.write(files.report_directory(settings.report_dir), mine, 64)
    text = last_word(mine, settings, lambda: pytest.fail("it waits"))

    assert text.startswith("ampwatch report: run gpt, rank 0")
