"""Replays of failed steps: the op that failed in that very step, and the remedy that cures it."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.diagnosis.evidence.remedies import Tried
from ampwatch.diagnosis.forward.births import diagnose
from ampwatch.diagnosis.forward.kinds import BACKWARD_NONFINITE_ANY_SCALE, NONFINITE_INPUT
from ampwatch.diagnosis.forward.remedies import remedies_for
from ampwatch.errors import SettingsError
from ampwatch.guard import Account, is_of_a_signal
from ampwatch.report.error_budget import ErrorBudget, records_of, to_json
from ampwatch.training.hooks.compiling import SETTLED
from ampwatch.training.hooks.events import RootCalled, RootReturned
from ampwatch.training.hooks.roots import unwrapped
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.kernels.admission import whole_part
from ampwatch.training.kernels.choice import finite_checks
from ampwatch.training.memory import HeldBytes
from ampwatch.training.model.dtypes import name_of
from ampwatch.training.model.tensors import tensors_in
from ampwatch.training.private import graph_task, next_sequence_number
from ampwatch.training.sensors.births.budgets import (
    NO_PLAN,
    OF_COMPILED,
    Asked,
    NewestCalls,
    all_in,
    budget_of,
    by_plan,
)
from ampwatch.training.sensors.births.following import is_host
from ampwatch.training.sensors.births.kept_calls import (
    KeptCall,
    RandomNumbers,
    ReplayRefusedError,
    own_bytes,
)
from ampwatch.training.sensors.births.loss_graph import loss_trace
from ampwatch.training.sensors.births.origins import OriginFollower
from ampwatch.training.sensors.births.replay import Replay, loss_in
from ampwatch.training.sensors.births.twin_surroundings import TwinSurroundings
from ampwatch.training.transfer.measuring import OUTPUT, Item
from ampwatch.training.transfer.readback import host_scalar, is_plain_scalar
from ampwatch.wire.records import BY_PLAN, Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from torch import nn

    from ampwatch.diagnosis.evidence.births import OpTrace
    from ampwatch.diagnosis.evidence.plans import PlanMade
    from ampwatch.diagnosis.evidence.remedies import Remedy
    from ampwatch.training.hooks.events import (
        BackwardBegan,
        CompileCalled,
        DevicesKnown,
        ErrorsAsked,
        IterationArrived,
        IterationClosed,
        IterationClosing,
        IterationOpened,
        IterationPlanned,
        SavedTensorsHooked,
        Scaled,
    )
    from ampwatch.training.iteration.context import Context
    from ampwatch.training.ops.events import OpsBegan, OpsEnded

REST = 64
"""Iterations after a replay that has named an op in which nothing is replayed: what goes on is the
same incident."""

MAX_CALLS = 64
"""Calls of models that are kept of one iteration. One with more is not replayed."""


class _Kept(NamedTuple):
    """The calls of one iteration, and the bytes that they keep from being freed."""

    step: int
    calls: Sequence[KeptCall]
    nbytes: int


class Pace:
    """Decides which failed steps are replayed: not every one of a storm.

    After a replay that has found nothing, as where it is backward that fails, twice as many
    iterations go by as the last time.
    """

    def __init__(self) -> None:
        self._next = 0
        self._wait = 1

    def allows(self, step: int) -> bool:
        """Whether iteration ``step`` may be replayed."""
        if step >= self._next + 32 * REST:
            self._wait = 1  # calm for so long: this is something new
        return step >= self._next

    def replayed(self, step: int, *, explained: bool) -> None:
        """Take in that iteration ``step`` was replayed, and whether that has named an op."""
        self._wait = 1 if explained else min(2 * self._wait, REST)
        self._next = step + (REST if explained else self._wait)


class ReplaySensor(Sensor):
    """Keeps what the models are called with, and makes the calls of a failed step again on a twin.

    A step that was skipped has left the weights as they were. Where no scaler skips steps, a loss that
    is in host memory is read before backward begins, and the replay comes before the weights break.
    On a device the verdict arrives some iterations later; their calls are kept meanwhile, and the
    weights are those of now.

    Args:
        context: Shared parts of the training.
        newest_plan: Returns the newest precision plan, in whose formats an error budget may be asked for;
            ``None`` before the first.

    Cost:
        8 us a call of a watched model in a loop, some 50 between the kernels of a training (110 where
        random numbers are drawn), and the memory of its inputs until its step is judged. A replay takes
        0.4 to 1.1 times as long as a step on a CPU, and so does each remedy (benchmarks/replays.py); they
        come at most once in ``REST`` iterations where they find something, ever more seldom where not.
    """

    name = "replay"

    def __init__(self, context: Context, newest_plan: Callable[[], PlanMade | None]) -> None:
        if context.is_scaled:
            self.deaf_to = frozenset({"backward_began"})
        self._context = context
        self._bus = context.bus
        self._home = context.home
        self._random = RandomNumbers()
        self._memory = context.memory
        self._memory.add("replay", self.held_bytes)
        self._room = 0
        self._is_wanted = context.settings.replay != "off"
        self._samples = context.settings.replay == "sampled"
        self._around = TwinSurroundings()
        self._origins = OriginFollower(self._around, finite_checks)
        self._has_accelerator = False
        self._open: list[KeptCall] = []
        self._open_bytes = self._kept_bytes = 0
        self._is_over = False
        self._kept: deque[_Kept] = deque()
        self._newest = NewestCalls()
        # An account of its own: as a debt it would end all sampling.
        self._budgeting = context.bus.guard(
            "error_budget", account=Account(context.bus.account.modes)
        )
        self._pace = Pace()
        self._inquiry: Generator[None, None, None] | None = None
        self._listening_since = 0
        self._was_settled = False
        self._is_listening = False
        self._arrived = self._newest_failed = -1
        self._loss_begins_at = 0
        self._hooked_at = -1
        self._is_followed = False
        self._is_known = False
        self._suspect: OpTrace | None = None
        self._num_heard = 0
        self._refusals: dict[str, int] = {}
        self._newest_plan = newest_plan
        self.why_not = ""

    # What is kept.

    def installed(self) -> None:
        """Begin to hear the calls of the models."""
        self._room = min(self._memory.left())
        self._listen()

    def held_bytes(self) -> HeldBytes:
        """Return the bytes that are held for replays, and that nobody else holds."""
        calls = own_bytes(
            [*(call for kept in self._kept for call in kept.calls), *self._open, *self._newest]
        )
        replay = self._around.names.replay
        copies = 0 if replay is None else replay.twin.nbytes
        is_here = is_host(self._home.device)
        rows = self._origins.held_bytes()
        return HeldBytes(
            calls.host + rows.host + (copies if is_here else 0),
            calls.device + rows.device + (0 if is_here else copies),
        )

    def iteration_planned(self, _event: IterationPlanned) -> None:
        """Take note of what memory is left: samples may take more, or less."""
        self._room = min(self._memory.left())

    def removed(self) -> None:
        """Forget everything."""
        self._stop()

    def failed(self) -> None:
        """Forget everything: nothing is replayed any more."""
        self._stop()

    def _listen(self) -> None:
        if self._is_wanted and not self.why_not and not self._is_listening:
            self._listening_since = self._context.iteration.step
            self._bus.listen(self, RootCalled)
            self._bus.listen(self, RootReturned)
            self._is_listening = True  # not before: both are listened to, or are once more

    def _ignore(self) -> None:
        if self._is_listening:
            self._is_listening = False
            self._bus.ignore(self, RootCalled)
            self._bus.ignore(self, RootReturned)

    def _stop(self) -> None:
        self._ignore()
        self._open.clear()
        self._kept.clear()
        self._newest.let_go()
        self._open_bytes = self._kept_bytes = 0
        self._suspect = (
            None  # it refers to nothing of the training's, but nobody asks for it any more
        )
        if self._inquiry is not None:
            self._inquiry.close()
            self._inquiry = None
        self._around.let_go()

    def compile_called(self, _event: CompileCalled) -> None:
        """Have the calls tapped anew in the next iteration: nothing of ours is to be compiled."""
        self._ignore()

    def devices_known(self, event: DevicesKnown) -> None:
        """Pin memory for values that reach the host later."""
        if event.has_accelerator and self._is_wanted:
            self._has_accelerator = True
            self._origins.prepare()

    def root_called(self, event: RootCalled) -> None:
        """Keep a call that records gradients."""
        self._num_heard += 1
        is_backward = graph_task() != -1
        if not torch.is_grad_enabled() or is_backward or self.why_not:
            return
        try:
            draws = self._random.at_call(self._home.devices)
            call = KeptCall(event.module, event.args, event.kwargs, draws)
        except ReplayRefusedError as refusal:
            self._refuse(refusal)
            return
        self._newest.keep(self._context.iteration.step, call, event.module)
        if not self._is_over:
            self._open.append(call)
            self._open_bytes += call.nbytes
            if self._kept_bytes + self._open_bytes > self._room or len(self._open) > MAX_CALLS:
                self._keep_within_budget()

    def _keep_within_budget(self) -> None:
        """Let go of the oldest calls, and of those of this iteration if they alone are too many.

        What the training holds anyway, as its loop holds the batch, does not count.
        """
        if not self._memory.is_kept():
            self._newest.let_go("its inputs take more than the setting `memory_bytes`")
        while self._kept and not self._memory.is_kept():
            self._let_go_of_oldest()
            self._count("the device was too far behind for the setting `memory_bytes`")
        if len(self._open) > MAX_CALLS or not self._memory.is_kept():
            self._is_over = True
            self._open.clear()
            self._count("its calls take more than the setting `memory_bytes`, or are too many")
        else:
            # Asked once for as many bytes: a loop may hold a large batch in each iteration.
            self._room = max(self._room, self._kept_bytes + self._open_bytes)

    def _let_go_of_oldest(self) -> None:
        self._kept_bytes -= self._kept.popleft().nbytes

    def _count(self, why: str) -> None:
        self._refusals[why] = self._refusals.get(why, 0) + 1

    def root_returned(self, event: RootReturned) -> None:
        """Note whether a model has returned its loss."""
        # Numbers of nodes ascend in the order in which a thread makes them.
        self._loss_begins_at = next_sequence_number()
        if self._open and self._open[-1].model is event.module:
            self._open[-1].returns_loss = loss_in(event.output) is not None

    def iteration_closing(self, event: IterationClosing) -> None:
        """Measure outputs of modules on a twin, where they are inside of compiled code."""
        wanted = self._samples and Topic.ACTIVATION in self._context.governor.wanted
        is_inside = wanted and self._bus.runs_compiled
        if not is_inside or event.has_nonfinite or not self._open or self._inquiry is not None:
            return
        call = self._open[0]
        if not self._random.knows(call.draws):
            return
        try:
            replay = Replay(call, self._prefix_of(call.model), self._left(), returned=self._measure)
            replay.run(lambda _call, _place: None, 1.0)
        except ReplayRefusedError as refusal:
            self._refuse(refusal)
        except (torch.OutOfMemoryError, MemoryError):
            self._end_for_good("there was no memory for a replay")

    def _measure(self, name: str, output: Any) -> None:
        items = [Item(name, name, t.detach()) for t in tensors_in(output) if t.is_floating_point()]
        self._context.measuring.measure(Topic.ACTIVATION, items, OUTPUT)

    def iteration_closed(self, event: IterationClosed) -> None:
        """Keep the calls until it is known whether the iteration has failed."""
        if self._open:
            self._kept.append(_Kept(event.iteration.step, tuple(self._open), self._open_bytes))
            self._kept_bytes += self._open_bytes
        self._open.clear()
        self._open_bytes = 0
        self._is_over = False

    def iteration_arrived(self, event: IterationArrived) -> None:
        """Take note of what is known by now."""
        self._arrived = event.iteration.step

    def iteration_opened(self, event: IterationOpened) -> None:
        """Replay an iteration that has failed, or go on with that; let go of those that were well."""
        attention = event.attention
        self._is_known = attention.is_known
        is_new = attention.failed > self._newest_failed
        if is_new:
            self._newest_failed = attention.failed
        if is_new and self._inquiry is None and self._may_replay(attention.failed):
            calls = next((kept.calls for kept in self._kept if kept.step == attention.failed), ())
            self._begin(
                attention.failed,
                calls,
                attention.failed_scale,
                goes_back=attention.is_unexplained,
            )
        elif self._inquiry is not None:
            self._advance()
        # On the host an iteration that has failed is judged at once; the others need not be kept.
        judged = event.step if is_host(self._home.device) else self._arrived
        while self._kept and self._kept[0].step <= judged:
            self._let_go_of_oldest()
        if self._bus.may_compile:
            self._follow_compiled(event.step)
        if not self._is_listening:
            self._listen()

    def _follow_compiled(self, step: int) -> None:
        """Have the calls tapped anew once what is compiled has been traced; or give up."""
        is_settled = self._bus.is_compiling_settled
        if is_settled != self._was_settled:
            self._was_settled = is_settled
            self._ignore()
        elif is_settled and step - self._listening_since > SETTLED and not self._num_heard:
            self._end_for_good(
                "nobody calls the model but functions that are compiled, and their calls are not heard"
            )

    def ops_began(self, event: OpsBegan) -> None:
        """Take note that this iteration is followed from op to op as it runs."""
        self._is_followed = event.follows

    def ops_ended(self, _event: OpsEnded) -> None:
        """Take note that it is not, or not any more."""
        self._is_followed = False

    def saved_tensors_hooked(self, _event: SavedTensorsHooked) -> None:
        """Leave the graphs of this iteration alone: what they have saved may be computed when it is read."""
        self._hooked_at = self._context.iteration.step

    def scaled(self, event: Scaled) -> None:
        """Go through the graph of a loss that is known not to be finite."""
        outputs = event.outputs
        if self._is_followed or not self._is_listening:
            return
        self._check_loss(outputs if isinstance(outputs, (list, tuple)) else (outputs,))

    def backward_began(self, event: BackwardBegan) -> None:
        """Without a scaler: go through the loss, and replay before the weights break."""
        if self._inquiry is not None:
            return
        step = self._context.iteration.step
        if self._check_loss(event.tensors) and self._may_replay(step):
            calls, self._open, self._open_bytes = tuple(self._open), [], 0
            self._begin(step, calls, 1.0)

    def _check_loss(self, losses: Sequence[Any]) -> bool:
        """Keep what the graph of a loss says that is known not to be finite; return whether one is."""
        # A loop, as in nearly every step there is one loss, and it is finite.
        bad = []
        for loss in losses:
            if _is_known_bad(loss):
                bad.append(loss)  # noqa: PERF401
        step = self._context.iteration.step
        if not bad or self._is_followed or not self._is_listening or not self._may_replay(step):
            return False
        if self._hooked_at != step:
            self._suspect = loss_trace(bad, self._loss_begins_at, step)
        return True

    # What is replayed.

    def _may_replay(self, step: int) -> bool:
        return not self._is_known and self._pace.allows(step)

    def _begin(
        self, step: int, calls: Sequence[KeptCall], scale: float, *, goes_back: bool = False
    ) -> None:
        if not all(self._random.knows(call.draws) for call in calls):
            self._count("the random numbers that it has drawn are not known")
            calls = ()
        if (calls or self._suspect is not None) and not self.why_not:
            scale = 1.0 if math.isnan(scale) else scale
            self._inquiry = self._inquire(step, calls, scale, goes_back=goes_back)
            self._advance()

    def _advance(self) -> None:
        """Go on as far as values have arrived. Never waits."""
        inquiry = self._inquiry
        if inquiry is None:
            return
        self._origins.poll()
        try:
            next(inquiry)
        except StopIteration:
            self._inquiry = None
            self._around.let_go()
        except ReplayRefusedError as refusal:
            self._inquiry = None
            self._around.let_go()
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
        self._inquiry = None
        self._stop()

    def _inquire(
        self, step: int, calls: Sequence[KeptCall], scale: float, *, goes_back: bool
    ) -> Generator[None, None, None]:
        """Replay the calls of an iteration in order, up to the one that fails, and try remedies.

        Where all of it is finite, it is backward that has failed. What the loss has handed to it is
        gone, so it runs with gradients of one: what is not finite then in spite of any scale, as the
        derivative of a root at zero is, is named; what has overflowed is the scaler's business.
        """
        explained, is_finite = False, True
        try:
            for call in calls:
                trace = yield from self._trace(step, call, scale, None)
                found = None if trace is None else diagnose(trace)
                is_data = call is calls[0] and not call.is_fed
                if found is not None and found.kind is NONFINITE_INPUT and not is_data:
                    found = None  # what another model, or a part of one, may have computed
                is_finite = is_finite and trace is not None and not trace.loss_nonfinite
                if trace is not None and found is not None:
                    explained = True
                    dtypes = [name_of(region.dtype) for region in call.autocast]
                    trace.tried = yield from self._try_all(
                        step, call, scale, remedies_for(found, dtypes)
                    )
                    self._context.observe(trace)
                    return
            explained = self._blame_loss(step, is_model_finite=is_finite and bool(calls))
            if explained or not (is_finite and goes_back):
                return
            for call in calls:
                trace = yield from self._trace(step, call, 1.0, None, goes_back=True)
                found = None if trace is None else diagnose(trace)
                if found is not None and found.kind is BACKWARD_NONFINITE_ANY_SCALE:
                    explained = True
                    self._context.observe(trace)
                    return
        finally:
            self._pace.replayed(step, explained=explained)

    def _blame_loss(self, step: int, *, is_model_finite: bool) -> bool:
        """Hand on what the graph of the loss said, unless it may have come from the model."""
        suspect, self._suspect = self._suspect, None
        if suspect is None or suspect.step != step:
            return False
        if not is_model_finite and not suspect.births[0].inputs:
            return False  # nobody knows whether what the op was given was finite
        suspect.is_scaled = self._context.is_scaled
        self._context.observe(suspect)
        return True

    def _try_all(
        self, step: int, call: KeptCall, scale: float, remedies: Sequence[Remedy]
    ) -> Generator[None, None, list[Tried]]:
        tried: list[Tried] = []
        for remedy in remedies:
            try:
                trace = yield from self._trace(step, call, scale, remedy)
            except ReplayRefusedError:
                continue  # the model does not run that way: nothing was tried
            replay = self._around.names.replay
            if trace is None or replay is None or not replay.applies:
                continue
            then = diagnose(trace)
            if then is not None:
                tried.append(
                    Tried(remedy, cures=False, then_op=then.birth.op, then_module=then.birth.module)
                )
            else:
                tried.append(Tried(remedy, cures=not trace.loss_nonfinite))
        return tried

    def _trace(
        self,
        step: int,
        call: KeptCall,
        scale: float,
        remedy: Remedy | None,
        *,
        goes_back: bool = False,
    ) -> Generator[None, None, OpTrace | None]:
        """Replay one call, and wait for its values where they are on a device."""
        around = self._around
        replay = Replay(
            call, self._prefix_of(call.model), self._left(), remedy, goes_back=goes_back
        )
        around.begin(replay, scale if call.returns_loss else math.nan)
        origins = self._origins
        origins.begin(step, is_late=self._has_accelerator and not is_host(self._home.device))
        try:
            outcome = replay.run(origins.note, scale)
            around.take(outcome)
        except BaseException:
            origins.give_up()
            raise
        dropped = origins.dropped
        origins.end()
        while around.trace is None and origins.dropped == dropped and origins.in_flight:
            yield
        trace = around.trace
        if trace is not None:
            trace.is_replay = not (call.returns_loss or goes_back)
            trace.has_trained = True
            trace.is_scaled = self._context.is_scaled
            trace.of_compiled = self._bus.runs_compiled
        return trace

    def error_budget(self, asked: Asked) -> ErrorBudget:
        """Return the error budget of the newest call, or why there is none. Never raises."""
        found = self._budgeting.run(self._budget, asked)
        budget = found or ErrorBudget(why_not="it has failed, as the log says")
        self._context.out.put(*records_of(budget))
        return budget

    def errors_asked(self, event: ErrorsAsked) -> None:
        """Write the error budget of the newest call to a file."""
        budget = self._asked_from_outside(event.layers_in)
        why_not = budget.why_not
        if not why_not:
            try:
                event.path.write_text(to_json(budget))
            except OSError as error:
                if is_of_a_signal(error):
                    raise
                why_not = f"it could not be written: {error}"
        event.answer(why_not)

    def _asked_from_outside(self, layers_in: str) -> ErrorBudget:
        if layers_in != BY_PLAN:
            try:
                return self.error_budget(Asked(layers_in=(layers_in and all_in(layers_in)) or None))
            except SettingsError as error:
                return ErrorBudget(why_not=str(error))
        plan = self._newest_plan()
        if plan is None:
            return ErrorBudget(why_not=NO_PLAN)
        return self.error_budget(Asked(layers_in=by_plan(plan)))

    def _budget(self, asked: Asked) -> ErrorBudget:
        found = self._newest.of(None if asked.model is None else unwrapped(asked.model))
        step = -1 if found is None else found[0]
        why_not = self._why_no_budget(found)
        if found is None or why_not:
            return ErrorBudget(step=step, why_not=why_not)
        call = found[1]
        scaler = self._context.scaler
        scale = scaler.get_scale() if scaler is not None and scaler.is_enabled() else 1.0
        try:
            prefix = self._prefix_of(call.model)
            budget = budget_of(call, step=step, prefix=prefix, scale=scale, asked=asked)
        except ReplayRefusedError as refusal:
            return ErrorBudget(step=step, why_not=f"the batch cannot be run again: {refusal}")
        except (torch.OutOfMemoryError, MemoryError):
            why_not = "there was no memory for it; a smaller batch needs less"
            return ErrorBudget(step=step, why_not=why_not)
        return (
            replace(budget, notes=(*budget.notes, OF_COMPILED))
            if self._bus.runs_compiled
            else budget
        )

    def _why_no_budget(self, found: tuple[int, KeptCall] | None) -> str:
        if graph_task() != -1:
            return "backward is running; ask between two iterations"
        if not self._is_wanted:
            return 'calls are not kept with the setting replay="off"; leave it as it is by default'
        if found is None:
            return self.why_not or self._newest.why_none
        if not self._random.knows(found[1].draws):
            return "the random numbers of the batch are not known any more; ask right after a step"
        return ""

    def _left(self) -> int:
        """Return what a twin may take where the model is. Unit: B."""
        left = self._memory.left()
        return left.host if is_host(self._home.device) else left.device

    def _prefix_of(self, model: nn.Module) -> str:
        """Return what the names of a model's modules begin with; wrappers are not part of a name."""
        named = self._context.names.modules()
        name = next((name for name, module in named if unwrapped(module) is model), "")
        return f"{name}." if name else ""

    @property
    def is_sampling(self) -> bool:
        """Whether outputs of modules are measured on a twin."""
        return self._samples and self._is_listening and self._num_heard > 0

    def not_replayed(self) -> Iterator[str]:
        """Yield, in sentences, why failed steps were not replayed."""
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
