"""The phases of steps, of trainings in which each part takes a time that is known."""

from __future__ import annotations

import logging
import math
import threading
import time
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import ampwatch
from ampwatch.training import native
from ampwatch.training.hooks import events as on
from ampwatch.training.sensors.time.call_notes import PythonNotes
from ampwatch.training.sensors.time.device_clock import DeviceClock
from ampwatch.training.sensors.time.phases import FOLDED, PhaseSensor
from ampwatch.training.sensors.time.splitting import (
    KEEPS_GRADIENTS,
    SUMS_GRADIENTS,
    TRAINS,
    Splitter,
)
from ampwatch.wire.records import NO_PHASES, StepPhase
from tests.training.sensors.time.test_device_clock import PlayedLink
from tests.workshop.played_time import play_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ampwatch.training.monitor import Monitor
    from tests.workshop.played_time import PlayedTime

DATA, FORWARD, LOSS, BACKWARD, UNSCALE, CLIP, OPTIMIZER, LOGGING = (
    0.001 * 2**exponent for exponent in range(8)
)
"""Time of each part: any sum of them says which parts it is of. Unit: s."""


class Timed(torch.autograd.Function):
    """Takes a time in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, time: PlayedTime) -> torch.Tensor:
        ctx.time = time
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ctx.time.take(BACKWARD)
        return gradients[0], None


class Model(nn.Module):
    """Takes a time in forward and in backward."""

    def __init__(self, time: PlayedTime) -> None:
        super().__init__()
        self.time = time
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.time.take(FORWARD)
        out: torch.Tensor = Timed.apply(self.layer(x), self.time)
        return out


class Optimizer(torch.optim.SGD):
    """Takes a time in each step."""

    def __init__(self, model: Model, parameters: Any = None) -> None:
        super().__init__(parameters or model.parameters(), lr=1e-2)
        self.time = model.time

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        self.time.take(OPTIMIZER)
        return super().step(closure)


class Scaler(torch.amp.GradScaler):
    """Takes a time to unscale."""

    time: PlayedTime

    def _unscale_grads_(self, *given: Any) -> Any:
        self.time.take(UNSCALE)
        return super()._unscale_grads_(*given)


class Samples(Dataset[torch.Tensor]):
    """A sample takes a time."""

    def __init__(self, time: PlayedTime, seconds: float = DATA, number: int = 1000) -> None:
        self.time, self.seconds, self.number = time, seconds, number

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> torch.Tensor:
        self.time.take(self.seconds)
        return torch.randn(4)


class Training:
    """A training whose parts take their times; each step is called for by name."""

    def __init__(self, time: PlayedTime, *, level: str = "light", model: bool = True) -> None:
        torch.manual_seed(0)
        self.time = time
        self.model = Model(time)
        self.optimizer = Optimizer(self.model)
        self.scaler = Scaler("cpu", init_scale=1024.0)
        self.scaler.time = time
        watched = self.model if model else None
        self.watch: Monitor = ampwatch.monitor(watched, self.scaler, level=level, serve=False)

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = self.model(x).float().square().mean()
        self.time.take(LOSS)
        return loss

    def backward(self, x: torch.Tensor) -> None:
        self.scaler.scale(self.loss(x)).backward()

    def update(self, *, clips: bool = False) -> None:
        if clips:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def step(self, x: torch.Tensor, *, clips: bool = False) -> None:
        self.backward(x)
        self.update(clips=clips)
        self.time.take(LOGGING)

    def phases(self, index: int = -1) -> dict[str, float]:
        """Return the phases of a step that were seen, to a microsecond."""
        record = self.watch.box().steps[index]
        seen = zip(StepPhase, record.phases, strict=True)
        return {phase.label: pytest.approx(s, abs=1e-6) for phase, s in seen if s > 1e-6}


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[PlayedTime]:
    yield play_time(monkeypatch)
    for watch in tuple(ampwatch.training.monitor._open):
        watch.close()


PLAIN = {
    "forward": FORWARD + LOSS,
    "backward": BACKWARD,
    "unscale_and_clip": UNSCALE,
    "optimizer": OPTIMIZER,
    "rest": LOGGING,
}


def test_each_part_of_a_step_is_the_time_that_it_took(played: PlayedTime) -> None:
    """Their sum is the duration; nothing that was not there has any time."""
    training = Training(played)
    for x in DataLoader(Samples(played, number=8), batch_size=2):
        training.step(x)

    assert training.phases() == {**PLAIN, "data": 2 * DATA}
    record = training.watch.box().steps[-1]
    assert sum(record.phases) == pytest.approx(record.duration_s, abs=1e-12)


@pytest.mark.rotating
@pytest.mark.parametrize("level", ["light", "standard", "deep"])
def test_at_every_level_each_step_is_split(played: PlayedTime, level: str) -> None:
    """Also where sensors rest, at which nothing else is heard of a step."""
    training = Training(played, level=level)
    for _ in range(80):
        training.step(torch.randn(2, 4))

    assert all(training.phases(index) == PLAIN for index in range(-70, 0))


def test_what_lies_between_unscaling_and_the_step_is_part_of_them(played: PlayedTime) -> None:
    """A norm that is printed; what is printed after a norm that nobody clips by is the rest."""
    training = Training(played)
    for _ in range(2):
        training.backward(torch.randn(2, 4))
        training.scaler.unscale_(training.optimizer)
        played.take(CLIP)
        training.update()
        nn.utils.get_total_norm([p.grad for p in training.model.parameters() if p.grad is not None])
        played.take(LOGGING)

    assert training.phases() == {**PLAIN, "unscale_and_clip": UNSCALE + CLIP}


def test_batches_that_are_accumulated_are_added(played: PlayedTime) -> None:
    """Three times forward, backward and a wait; one step."""
    training = Training(played)
    batches = iter(DataLoader(Samples(played), batch_size=1))
    for _ in range(3):
        for _ in range(3):
            training.backward(next(batches))
        training.update()

    expected = {
        **PLAIN,
        "data": 3 * DATA,
        "forward": 3 * (FORWARD + LOSS),
        "backward": 3 * BACKWARD,
    }
    del expected["rest"]
    assert training.phases() == expected


def test_gradients_that_an_optimizer_calls_for_are_not_its_own_time(played: PlayedTime) -> None:
    """LBFGS: forward and backward lie within its step, and are what they are."""
    torch.manual_seed(0)
    model = Model(played)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, tolerance_change=0.0)
    watch = ampwatch.monitor(model, level="light", serve=False)
    x = torch.randn(8, 4)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        played.take(OPTIMIZER)  # as if it were the optimizer's
        return loss

    for _ in range(2):
        calls = optimizer.state_dict()["state"].get(0, {}).get("func_evals", 0)
        optimizer.step(closure)  # type: ignore[arg-type] # as PyTorch's own examples do
    calls = optimizer.state_dict()["state"][0]["func_evals"] - calls

    phases = watch.box().steps[-1].phases
    assert calls > 1
    assert phases[StepPhase.FORWARD] == pytest.approx(calls * FORWARD, abs=1e-6)
    assert phases[StepPhase.BACKWARD] == pytest.approx(calls * BACKWARD, abs=1e-6)
    assert phases[StepPhase.OPTIMIZER] == pytest.approx(calls * OPTIMIZER, abs=1e-6)
    watch.close()


def test_an_evaluation_in_between_is_a_phase_of_its_own(played: PlayedTime) -> None:
    """Its waits for data and what is done between its batches belong to it, not to training."""
    training = Training(played)
    batches = iter(DataLoader(Samples(played), batch_size=1))
    training.step(next(batches))
    training.model.eval()
    for x in DataLoader(Samples(played, number=3), batch_size=1):
        with torch.no_grad():
            training.model(x)
        played.take(LOSS)
    training.model.train()
    training.step(next(batches))

    assert training.phases() == {
        **PLAIN,
        "data": DATA,
        "evaluation": 3 * (DATA + FORWARD + LOSS),
    }


def test_a_long_evaluation_is_added_up_as_it_goes(played: PlayedTime) -> None:
    """Nothing of it is lost, and what is kept of it does not grow with it."""
    training = Training(played)
    batches = iter(DataLoader(Samples(played), batch_size=1))
    training.step(next(batches))
    training.model.eval()
    sensor = next(s for s in training.watch._session.bus.sensors if isinstance(s, PhaseSensor))
    kept = []
    for x in DataLoader(Samples(played, number=FOLDED), batch_size=1):
        with torch.no_grad():
            training.model(x)
        kept.append(len(sensor._notes))
    training.model.train()
    training.step(next(batches))

    evaluation = training.watch.box().steps[-1].phases[StepPhase.EVALUATION]
    assert evaluation == pytest.approx(FOLDED * (DATA + FORWARD), rel=1e-4)
    assert training.phases()["data"] == DATA
    assert max(kept) < FOLDED


def test_a_device_is_asked_when_it_comes_to_what_the_host_has_noted(played: PlayedTime) -> None:
    """In one iteration of four; a device that is never behind takes as long as the host."""

    class Link(PlayedLink):
        def make_timer(self, device: torch.device) -> Any:
            timer = super().make_timer(device)
            timer.record = lambda stream: setattr(timer, "at_ms", played.now_ns / 1e6)
            return timer

    training = Training(played)
    sensor = next(s for s in training.watch._session.bus.sensors if isinstance(s, PhaseSensor))
    link = Link()
    link.passed_ms = math.inf
    sensor._time_on(DeviceClock(torch.device("meta"), link))
    batches = iter(DataLoader(Samples(played, number=40), batch_size=2))
    training.step(next(batches))
    for step in range(1, 9):
        if step == 7:
            training.model.eval()
            with torch.no_grad():
                training.model(next(batches))
            training.model.train()
        training.step(next(batches))

    box = training.watch.box()
    by_host = {record.step: record.phases for record in box.steps}
    assert [timed.step for timed in box.device_phases] == [3, 7]
    for timed in box.device_phases:
        assert timed.phases == pytest.approx(by_host[timed.step], abs=1e-5)


def test_a_device_that_fails_to_mark_is_asked_no_more(
    played: PlayedTime, caplog: pytest.LogCaptureFixture
) -> None:
    """Said once; the host's phases go on."""

    class Broken(DeviceClock):
        places: ClassVar[list[int]] = []

        def mark(self, place: int) -> None:
            self.places.append(place)
            if place == 1:
                raise RuntimeError

    training = Training(played)
    sensor = next(s for s in training.watch._session.bus.sensors if isinstance(s, PhaseSensor))
    broken = Broken(torch.device("meta"), PlayedLink())
    sensor._time_on(broken)
    for _ in range(16):
        training.step(torch.randn(2, 4))

    assert training.phases() == PLAIN
    assert ["phases_of_device" in text for text in caplog.messages] == [True]
    assert training.watch.box().device_phases == []
    assert broken.places[-1] == 1


def test_a_course_that_is_known_is_split_as_it_was_the_first_time() -> None:
    """Also where what one iteration leaves behind differs: whether gradients are summed."""
    course = (TRAINS, on.BackwardBegan, on.BackwardEnded, on.StepBegan, on.StepEnded)
    sums = (SUMS_GRADIENTS, *course[1:])
    splitter = Splitter(communicates=True)

    found = [splitter.split_whole(kinds) for kinds in (course, sums, course, course, sums)]

    backwards = [StepPhase(split.phases[1]).name for split in found]
    assert backwards == ["BACKWARD", *["BACKWARD_WITH_REDUCTION"] * 4]
    assert found[2] is found[3]
    assert found[0].runs == (
        (StepPhase.FORWARD, 0, 1),
        (StepPhase.BACKWARD, 1, 2),
        (StepPhase.UNSCALE_AND_CLIP, 3, 4),
    )


def test_a_wait_for_gradients_that_a_program_sums_is_reduction() -> None:
    """And a backward within ``no_sync`` is apart from the one that sums."""
    course = (
        *(KEEPS_GRADIENTS, on.BackwardBegan, on.BackwardEnded),
        *(TRAINS, on.BackwardBegan, on.BackwardEnded),
        *(on.CommunicationAwaited, on.CommunicationArrived, on.StepBegan, on.StepEnded),
    )

    phases = Splitter(communicates=True).split_whole(course).phases

    names = "FORWARD BACKWARD REST FORWARD BACKWARD REST REDUCTION REST UNSCALE_AND_CLIP REST"
    assert [StepPhase(phase).name for phase in phases] == names.split()


def test_iterations_that_are_split_together_have_each_their_own(played: PlayedTime) -> None:
    """Times, and counts of the program: many quick steps are judged at once."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    watch = ampwatch.monitor(model, scaler, level="light", serve=False)
    sensor = next(s for s in watch._session.bus.sensors if isinstance(s, PhaseSensor))
    kept = []
    for step in range(9):
        watch.batch(samples=step)
        loss = scaler.scale(model(torch.randn(2, 4)).sum())
        played.take(1e-3 * step)
        loss.backward()
        scaler.step(optimizer)
        scaler.update()
        kept.append(len(sensor._notes))

    records = watch.box().steps
    assert kept[2] < kept[5] < kept[8]  # they waited
    assert [record.total_samples for record in records] == [0, 1, 3, 6, 10, 15, 21, 28, 36]
    forward = [record.phases[StepPhase.FORWARD] for record in records[1:]]
    assert forward == pytest.approx([1e-3 * step for step in range(1, 9)], abs=1e-6)
    watch.close()


def test_who_begins_to_clip_late_has_it_timed_from_then_on(played: PlayedTime) -> None:
    """Also after iterations enough to say that nobody unscales by hand."""
    training = Training(played)
    for _ in range(75):
        training.step(torch.randn(2, 4))
    for _ in range(40):
        training.step(torch.randn(2, 4), clips=True)

    assert training.phases() == PLAIN


def test_a_second_forward_without_gradients_while_training_is_forward(played: PlayedTime) -> None:
    """Self-conditioning, a teacher: the model is in training mode."""
    training = Training(played)
    for _ in range(2):
        x = torch.randn(2, 4)
        with torch.no_grad():
            training.model(x)
        training.step(x)

    assert training.phases() == {**PLAIN, "forward": 2 * FORWARD + LOSS}


def test_a_loader_that_raises_ends_the_wait(played: PlayedTime) -> None:
    """The program catches it and goes on."""

    class Broken(Samples):
        def __getitem__(self, index: int) -> torch.Tensor:
            super().__getitem__(index)
            raise OSError(index)

    training = Training(played)
    training.step(torch.randn(2, 4))
    with pytest.raises(OSError, match="0"):
        next(iter(DataLoader(Broken(played), batch_size=1)))
    played.take(CLIP)
    training.step(torch.randn(2, 4))

    assert training.phases() == {**PLAIN, "data": DATA, "rest": LOGGING + CLIP}


def test_a_loader_that_reads_another_one_is_one_wait(played: PlayedTime) -> None:
    """What follows it is the program's own."""

    class Outer(Samples):
        def __getitem__(self, index: int) -> torch.Tensor:
            inner: torch.Tensor = next(iter(DataLoader(Samples(self.time), batch_size=1)))
            return inner[0]

    training = Training(played)
    for x in DataLoader(Outer(played, number=3), batch_size=1):
        played.take(CLIP)
        training.step(x)

    assert training.phases() == {**PLAIN, "data": DATA, "rest": LOGGING + CLIP}


def test_an_optimizer_within_backward_leaves_the_rest_of_it_backward(played: PlayedTime) -> None:
    """Stepped as soon as a gradient is there, before backward is done."""
    torch.manual_seed(0)
    model = Model(played)
    early = Optimizer(model, [model.layer.weight])
    late = torch.optim.SGD([model.layer.bias], lr=0.0)
    model.layer.weight.register_post_accumulate_grad_hook(lambda _: early.step())

    watch = ampwatch.monitor(model, optimizer=late, level="light", serve=False)
    start = torch.nn.Parameter(torch.randn(2, 4))
    for _ in range(3):
        x: torch.Tensor = Timed.apply(start, played)
        model(x).square().mean().backward()
        late.step()

    phases = watch.box().steps[-1].phases
    assert phases[StepPhase.BACKWARD] == pytest.approx(2 * BACKWARD, abs=1e-6)
    watch.close()


def test_what_follows_a_skipped_step_is_the_rest(played: PlayedTime) -> None:
    """As it is after one that was taken; there is no time of an optimizer."""
    training = Training(played)
    training.step(torch.randn(2, 4))
    training.backward(torch.full((2, 4), float("inf")))
    training.scaler.step(training.optimizer)
    played.take(CLIP)
    training.scaler.update()

    taken = {k: v for k, v in PLAIN.items() if k != "optimizer"}
    assert training.phases() == {**taken, "rest": LOGGING + CLIP}


def test_a_loader_in_another_thread_is_not_waited_for(played: PlayedTime) -> None:
    """A prefetcher of the program's own: the training waits for its queue, which is the rest."""
    training = Training(played)
    training.step(torch.randn(2, 4))
    fetched: list[torch.Tensor] = []
    loader = iter(DataLoader(Samples(played), batch_size=1))
    other = threading.Thread(target=lambda: fetched.append(next(loader)))
    other.start()
    other.join()
    training.step(fetched[0])

    assert training.phases() == {**PLAIN, "rest": LOGGING + DATA}


def test_without_a_model_forward_is_part_of_the_rest(played: PlayedTime) -> None:
    """monitor(None, scaler): nobody knows what is called."""
    training = Training(played, model=False)
    for _ in range(2):
        training.step(torch.randn(2, 4))

    expected = {**PLAIN, "rest": LOGGING + FORWARD + LOSS}
    del expected["forward"]
    assert training.phases() == expected


def test_a_step_of_which_neither_forward_nor_backward_is_seen_is_one_phase(
    played: PlayedTime,
) -> None:
    """Gradients that come from elsewhere, as from a function that is compiled whole."""
    training = Training(played, model=False)
    for _ in range(3):
        training.scaler.scale(torch.ones(()))
        for parameter in training.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        played.take(BACKWARD)
        training.update()

    assert training.phases() == {
        "step": BACKWARD,
        "unscale_and_clip": UNSCALE,
        "optimizer": OPTIMIZER,
    }


def test_a_clock_that_goes_back_makes_no_negative_time(played: PlayedTime) -> None:
    """The record is one that the ring takes."""
    training = Training(played)
    training.step(torch.randn(2, 4))
    training.backward(torch.randn(2, 4))
    played.take(-0.05)
    training.update()
    played.take(1.0)
    training.step(torch.randn(2, 4))

    assert all(seconds >= 0.0 for record in training.watch.box().steps for seconds in record.phases)


@pytest.mark.rotating
def test_a_compiled_model_is_heard_where_it_is_called(played: PlayedTime) -> None:
    """Forward and backward of it are phases as those of any model."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    compiled: Any = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    watch = ampwatch.monitor(model, level="light", serve=False)
    for _ in range(8):
        optimizer.zero_grad()
        compiled(torch.randn(2, 4)).square().mean().backward()
        optimizer.step()

    phases = watch.box().steps[-1].phases
    assert phases[StepPhase.FORWARD] > 0.0
    assert phases[StepPhase.BACKWARD] > 0.0
    assert phases[StepPhase.STEP] == 0.0


def test_samples_and_tokens_are_those_that_the_program_tells(played: PlayedTime) -> None:
    """Sums so far; -1 before a word of it."""
    training = Training(played)
    training.step(torch.randn(2, 4))
    for _ in range(3):
        training.watch.batch(samples=2, tokens=100)
        training.step(torch.randn(2, 4))

    records = training.watch.box().steps
    assert records[0].phases == NO_PHASES  # nobody has seen it begin
    assert [r.total_samples for r in records] == [-1, 2, 4, 6]
    assert [r.total_tokens for r in records] == [-1, 100, 200, 300]


@pytest.mark.parametrize("given", [-1, 2.5, "64", True, torch.tensor(3)])
def test_a_batch_that_is_no_number_is_a_sentence_and_no_error(
    played: PlayedTime, given: object, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, however often it comes; nothing is counted."""
    training = Training(played)
    with caplog.at_level(logging.WARNING, logger="ampwatch"):
        for _ in range(3):
            training.watch.batch(samples=given)
            training.step(torch.randn(2, 4))

    assert [r.total_samples for r in training.watch.box().steps] == [-1, -1, -1]
    assert caplog.text.count("expected `samples` to be a whole number from 0 on") == 1


@pytest.mark.parametrize(
    "kind", [PythonNotes, *([] if native.timed is None else [native.timed.Notes])]
)
def test_notes_keep_moments_in_order_and_lose_the_oldest(kind: type[PythonNotes]) -> None:
    """Compared with a list, over random notes and drops; of more than the limit the newest stay."""
    notes, expected = kind(300), []
    random = Random(3)
    for step in range(2000):
        told = (step, object()) if random.random() < 0.3 else 0
        notes.note(on.Scaled if told else on.Updated, told, step)
        expected.append((step, threading.get_ident(), on.Scaled if told else on.Updated, told))
        if random.random() < 0.005:
            num = random.randrange(len(notes) + 1)
            expected = expected[-len(notes) :][num:]
            notes.drop(num)

        assert 200 <= len(notes) <= 300 or len(notes) == len(expected)

    found = list(zip(*notes.columns(), strict=True))
    assert found == expected[-len(found) :]
    notes.drop(len(notes))
    assert (len(notes), notes.columns()) == (0, ((), (), (), ()))
    before = time.perf_counter_ns()
    notes.note(on.Updated)
    ((at,), _, _, (told,)) = notes.columns()
    assert (before <= at <= time.perf_counter_ns(), told) == (True, 0)
