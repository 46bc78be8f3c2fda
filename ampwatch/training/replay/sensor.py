"""The sensor of replays: which calls are kept, and when they are made again."""

from __future__ import annotations

import math
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch

from ampwatch.training.devices import HOST
from ampwatch.training.hooks import events as on
from ampwatch.training.hooks.compiling import SETTLED
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.kernels.admission import whole_part
from ampwatch.training.memory import HeldBytes
from ampwatch.training.model.names import module_of
from ampwatch.training.model.tensors import tensors_in
from ampwatch.training.private import graph_task, next_sequence_number
from ampwatch.training.replay.inquiry import Inquiry
from ampwatch.training.replay.keeping import CallKeeper
from ampwatch.training.replay.kept_calls import ReplayRefusedError
from ampwatch.training.replay.raised import Ending
from ampwatch.training.replay.replay import loss_in, replay_of
from ampwatch.training.replay.witnesses import Witnesses
from ampwatch.training.sensors.origins.loss_graph import loss_trace
from ampwatch.training.sensors.origins.reading import adds_up
from ampwatch.training.sensors.origins.sensor import is_host
from ampwatch.training.sensors.ranges.weights import STATE
from ampwatch.training.transfer.measuring import OUTPUT, Item
from ampwatch.training.transfer.readback import host_scalar, is_plain_scalar
from ampwatch.wire.records import Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from ampwatch.guard import Guard
    from ampwatch.training.iteration.context import Context
    from ampwatch.training.ops.events import OpsBegan, OpsEnded
    from ampwatch.training.replay.kept_calls import KeptCall

OF_WHAT_IS_WELL = frozenset({"scaled", "iteration_closing", "iteration_closed", "iteration_opened"})
"""Events of iterations in which nothing fails."""


class ReplaySensor(Sensor):
    """Keeps what the models are called with, and makes the calls of a failed step again on a replica.

    A step that was skipped has left the weights as they were. Where no scaler skips steps, a loss that
    is in host memory is read before backward begins, and some gradients before the step (``Witnesses``), and the
    replay comes before the weights break. On a device the verdict arrives some iterations later; their
    calls are kept meanwhile, and the weights are those of now.

    Attributes:
        calls: The calls that are kept.
        why_not: Why none is kept any more; empty where they are.

    Cost:
        8 us a call of a watched model in a loop, some 50 between the kernels of a training (110 where
        random numbers are drawn), and the memory of its inputs until its step is judged. A replay takes
        0.4 to 1.1 times as long as a step on a CPU, and so does each remedy; they come at most once in
        ``REST`` iterations where they find something, ever more seldom where not.
    """

    name = "replay"

    def __init__(self, context: Context) -> None:
        if context.is_scaled:
            self.deaf_to = frozenset({"backward_began", "optimizer_stepping", "optimizer_stepped"})
        self._context = context
        self.guard: Guard = context.bus.guard(self.name)
        self._bus = context.bus
        self._home = context.home
        context.memory.add("replay", self.held_bytes)
        self._is_wanted = context.settings.replay != "off"
        self._samples = context.settings.replay == "sampled"
        self.calls = CallKeeper(context.home, context.memory, self._count)
        self._inquiry = Inquiry(context)
        self._listening_since = 0
        self._was_settled = False
        self._is_listening = False
        self._arrived = self._newest_failed = -1
        self._loss_begins_at = 0
        self._witnesses = Witnesses(context.registry, context.names)
        self._endangered: tuple[tuple[str, Tensor], ...] = ()
        self._hooked_at = -1
        self._is_followed = False
        self._is_known = False
        self._num_received = self._thread = 0
        self._refusals: dict[str, int] = {}
        self.why_not = ""

    @property
    def batched(self) -> frozenset[str]:
        """What does not concern it where nothing fails; a replay goes on from one iteration to the next."""
        return frozenset() if self._inquiry.is_running else OF_WHAT_IS_WELL

    def installed(self) -> None:
        """Begin to hear the calls of the models."""
        self.calls.update_room()
        self._listen()

    def held_bytes(self) -> HeldBytes:
        """Return the bytes that are held for replays, and that nobody else holds."""
        calls, replay = self.calls.own_bytes(), self._inquiry.held_bytes()
        return HeldBytes(calls.host + replay.host, calls.device + replay.device)

    def iteration_planned(self, _event: on.IterationPlanned) -> None:
        """Take note of what memory is left: samples may take more, or less."""
        self.calls.update_room()

    def removed(self) -> None:
        """Forget everything."""
        self._stop()

    def failed(self) -> None:
        """Forget everything: nothing is replayed any more."""
        self._stop()

    def _listen(self) -> None:
        if self._is_wanted and not self.why_not and not self._is_listening:
            self._listening_since = self._context.iteration.step
            self._bus.listen(self, on.RootCalled)
            self._bus.listen(self, on.RootReturned)
            self._is_listening = True  # not before: both are listened to, or are once more

    def _ignore(self) -> None:
        if self._is_listening:
            self._is_listening = False
            self._bus.ignore(self, on.RootCalled)
            self._bus.ignore(self, on.RootReturned)

    def _stop(self) -> None:
        self._ignore()
        self.calls.clear()
        self._inquiry.stop()
        self._witnesses.clear()
        self._endangered = ()

    def compile_called(self, _event: on.CompileCalled) -> None:
        """Have the calls tapped anew in the next iteration: nothing of ours is to be compiled."""
        self._ignore()

    def devices_known(self, event: on.DevicesKnown) -> None:
        """Pin memory for values that reach the host later."""
        if event.has_accelerator and self._is_wanted:
            self._inquiry.prepare()

    def root_called(self, event: on.RootCalled) -> None:
        """Keep a call that records gradients."""
        self._num_received += 1
        self._thread = get_ident()
        is_backward = graph_task() != -1
        if not torch.is_grad_enabled() or is_backward or self.why_not:
            return
        try:
            self.calls.keep(self._context.iteration.step, event)
        except ReplayRefusedError as refusal:
            self._refuse(refusal)

    def _count(self, why: str) -> None:
        self._refusals[why] = self._refusals.get(why, 0) + 1

    def root_returned(self, event: on.RootReturned) -> None:
        """Note whether a model has returned its loss."""
        # Numbers of nodes ascend in the order in which a thread makes them.
        self._loss_begins_at = next_sequence_number()
        call = self.calls.last
        if call is not None and call.model is event.module:
            call.returns_loss = loss_in(event.output) is not None

    def iteration_closing(self, event: on.IterationClosing) -> None:
        """Measure outputs of modules on a replica, where they are inside of compiled code."""
        wanted = self._samples and Topic.ACTIVATION in self._context.governor.wanted
        is_inside = wanted and self._bus.runs_compiled
        call = self.calls.first
        if not is_inside or event.has_nonfinite or call is None or self._inquiry.is_running:
            return
        if not self.calls.random.knows(call.draws):
            return
        self._go_on(partial(self._sample, call))

    def _sample(self, call: KeptCall) -> None:
        replay = replay_of(call, self._context, returned=self._measure)
        replay.run(lambda _call, _place: None, 1.0)

    def _measure(self, name: str, output: Any) -> None:
        items = [Item(name, name, t.detach()) for t in tensors_in(output) if t.is_floating_point()]
        self._context.measuring.measure(Topic.ACTIVATION, items, OUTPUT)

    def iteration_closed(self, event: on.IterationClosed) -> None:
        """Keep the calls until it is known whether the iteration has failed."""
        self.calls.close(event.iteration.step)

    def iteration_arrived(self, event: on.IterationArrived) -> None:
        """Take note of what is known by now."""
        self._arrived = event.iteration.step

    def iteration_opened(self, event: on.IterationOpened) -> None:
        """Replay an iteration that has failed, or go on with that; let go of those that were well."""
        attention = event.attention
        self._is_known = attention.is_known
        is_new = attention.failed > self._newest_failed
        if is_new:
            self._newest_failed = attention.failed
        if is_new and not self._inquiry.is_running and self._may_replay(attention.failed):
            calls = self.calls.of(attention.failed)
            self._begin(
                attention.failed,
                calls,
                attention.failed_scale,
                goes_back=attention.is_unexplained,
            )
        elif self._inquiry.is_running:
            self._go_on(self._inquiry.advance)
        # On the host an iteration that has failed is judged at once; the others need not be kept.
        self.calls.let_go(event.step if is_host(self._home.device) else self._arrived)
        if self._bus.may_compile:
            self._follow_compiled(event.step)
        if not self._is_listening:
            self._listen()

    def _follow_compiled(self, step: int) -> None:
        """Have the calls tapped anew once what is compiled has been traced; or give up."""
        is_settled = self._bus.is_compiling_settled
        if is_settled != self._was_settled:
            self._was_settled, self._listening_since = is_settled, step
            # Not ignored and listened to again: what others listen to as well stays in place meanwhile.
            self._bus.place_again(on.RootCalled)
        elif is_settled and step - self._listening_since > SETTLED and not self._num_received:
            self._end_for_good(
                "only compiled functions call the model, and their calls are not observed"
            )

    def ops_began(self, event: OpsBegan) -> None:
        """Take note that this iteration is followed from op to op as it runs."""
        self._is_followed = event.follows

    def ops_ended(self, _event: OpsEnded) -> None:
        """Take note that it is not, or not any more."""
        self._is_followed = False

    def tensors_swapping(self, _event: on.TensorsSwapping) -> None:
        """Refer to no parameter: PyTorch swaps none that is referred to weakly."""
        self._witnesses.clear()
        self._endangered = ()

    def saved_tensors_hooked(self, _event: on.SavedTensorsHooked) -> None:
        """Leave the graphs of this iteration alone: what they have saved may be computed when it is read."""
        self._hooked_at = self._context.iteration.step

    def scaled(self, event: on.Scaled) -> None:
        """Go through the graph of a loss that is known not to be finite."""
        outputs = event.outputs
        if self._is_followed or not self._is_listening:
            return
        self._check_loss(outputs if isinstance(outputs, (list, tuple)) else (outputs,))

    def backward_began(self, event: on.BackwardBegan) -> None:
        """Without a scaler: go through the loss, and replay before the weights break."""
        step = self._context.iteration.step
        if (
            not self._inquiry.is_running
            and self._check_loss(event.tensors)
            and self._may_replay(step)
        ):
            self._begin(step, self.calls.take_open(), 1.0)

    def optimizer_stepping(self, event: on.OptimizerStepping) -> None:
        """Without a scaler: replay before a gradient breaks the weights that the program has left as it was."""
        optimizer, step = event.optimizer, self._context.iteration.step
        self._witnesses.know(optimizer)
        self._inquiry.withheld, self._inquiry.withholds = None, False  # of a step that has raised
        if self._is_seen or not self._is_listening or self._witnesses.are_finite(optimizer):
            return
        if self._inquiry.is_running or not self._may_replay(step):
            return
        self._endangered = self._witnesses.broken(optimizer)
        if self._endangered:
            self._inquiry.withholds = True
            self._begin(step, self.calls.take_open(), 1.0, goes_back=True)

    def optimizer_stepped(self, _event: on.OptimizerStepped) -> None:
        """Report what was found before the step, if it has broken weights: hooks may have mended the gradients."""
        if not self._endangered:
            return
        trace, self._inquiry.withheld, self._inquiry.withholds = self._inquiry.withheld, None, False
        endangered, self._endangered = self._endangered, ()
        broken = [(name, p) for name, p in endangered if not adds_up(p.detach())]
        if not broken:
            self._inquiry.stop()  # on a device it may still be under way
        elif trace is not None:
            self._context.observe(trace)
        else:  # of gradients that autograd.grad has computed no loss tells
            items = [Item(name, module_of(name), p.detach()) for name, p in broken]
            self._context.measuring.measure(Topic.WEIGHT, items, STATE)

    def exit_called(self, _event: on.ExitCalled) -> None:
        """Replay what is left open: many a training ends so when its loss is not finite."""
        if get_ident() == self._thread:
            self.ended(Ending.by(None))

    def ended(self, ending: Ending) -> None:
        """Replay the iteration that the end of the training has left open, and wait for what that shows.

        On a device each replay waits for it; ``DRAIN_SECONDS`` do not apply, as the program ends here.
        """
        if self._is_followed or self._is_known or not self._is_listening:
            return
        step = self._context.iteration.step
        self._inquiry.stop()
        suspects = ending.suspects()
        if suspects and self._hooked_at != step:
            self._inquiry.suspect = loss_trace(suspects, self._loss_begins_at, step)
        self._inquiry.ending = ending
        try:
            self._begin(step, self.calls.take_open(), 1.0, goes_back=ending.is_of_nonfinite)
            while self._inquiry.is_running:
                for device in self._home.devices:
                    if device.type != HOST:
                        torch.get_device_module(device).synchronize(device)
                self._go_on(self._inquiry.advance)
        finally:
            self._inquiry.ending = None

    def _check_loss(self, losses: Sequence[Any]) -> bool:
        """Keep what the graph of a loss says that is known not to be finite; return whether one is, and is to be replayed."""
        # A loop, as in nearly every step there is one loss, and it is finite.
        bad = []
        for loss in losses:
            if _is_known_bad(loss):
                bad.append(loss)  # noqa: PERF401
        step = self._context.iteration.step
        if not bad or self._is_seen or not self._is_listening or not self._may_replay(step):
            return False
        if self._hooked_at != step and not self._is_followed:
            self._inquiry.suspect = loss_trace(bad, self._loss_begins_at, step)
        return True

    @property
    def _is_seen(self) -> bool:
        """Whether each op of this iteration is followed, and none is fused with others by a compiler."""
        return self._is_followed and not self._bus.runs_compiled

    def _may_replay(self, step: int) -> bool:
        return not self._is_known and self._inquiry.pace.allows(step)

    def _begin(
        self, step: int, calls: Sequence[KeptCall], scale: float, *, goes_back: bool = False
    ) -> None:
        if not all(self.calls.random.knows(call.draws) for call in calls):
            self._count("the random numbers that it has drawn are not known")
            calls = ()
        inquiry = self._inquiry
        has_more = inquiry.suspect is not None or inquiry.ending is not None
        if (calls or has_more) and not self.why_not:
            self._go_on(partial(inquiry.begin, step, calls, scale, goes_back=goes_back))

    def _go_on(self, replay: Callable[[], None]) -> None:
        """Make calls again, and take in why that was not possible."""
        try:
            replay()
        except ReplayRefusedError as refusal:
            self._refuse(refusal)
        except (torch.OutOfMemoryError, MemoryError):
            self._end_for_good("there was no memory for a replay")

    def _refuse(self, refusal: ReplayRefusedError) -> None:
        why = str(refusal)
        if refusal.is_lasting:
            self._end_for_good(why)
        self._count(why)

    def _end_for_good(self, why: str) -> None:
        self.why_not = why
        self._stop()

    @property
    def _is_sampling(self) -> bool:
        """Whether outputs of modules are measured on a replica."""
        return self._samples and self._is_listening and self._num_received > 0

    def not_seen(self) -> Iterator[str]:
        """Yield, in sentences, why failed steps were not replayed, or outputs not measured."""
        if self._bus.runs_compiled:
            yield (
                "outputs of modules are measured on a replica of the model that runs eagerly: compiled"
                " code keeps more of what it computes in float32, and may overflow later"
                if self._is_sampling
                else "outputs of modules are not measured: compiled code runs, and hooks that come"
                ' and go would have it compiled again; replay="sampled" measures them on a replica'
            )
        if not self._is_wanted:
            return
        if self.why_not:
            yield f"failed steps are not replayed: {self.why_not}"
        for why, times in self._refusals.items():
            if why != self.why_not:
                yield f"{times} {'step was' if times == 1 else 'steps were'} not kept or replayed: {why}"


def _is_known_bad(root: Any) -> bool:
    """Whether backward begins with a scalar in host memory that is not finite."""
    if isinstance(root, torch.Tensor):
        root = whole_part(root)
    return (
        is_plain_scalar(root)
        and root.is_cpu
        and root.is_floating_point()
        and not math.isfinite(host_scalar(root))
    )
