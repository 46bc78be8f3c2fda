"""Failed iterations, made again: the op that failed in that very one, and the remedy that cures it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ampwatch.diagnosis.forward.culprit_words import remedies_for
from ampwatch.diagnosis.forward.kinds import BACKWARD_NONFINITE_ANY_SCALE, NONFINITE_INPUT
from ampwatch.diagnosis.forward.origins import diagnose
from ampwatch.training.devices import HOST
from ampwatch.training.kernels.choice import finite_checks
from ampwatch.training.kernels.dtypes import name_of
from ampwatch.training.memory import HeldBytes
from ampwatch.training.model.names import canonical
from ampwatch.training.replay.kept_calls import ReplayRefusedError
from ampwatch.training.replay.replay import replay_of
from ampwatch.training.sensors.origins.follower import OriginFollower, Surroundings
from ampwatch.training.sensors.origins.sensor import is_host
from ampwatch.training.transfer.readback import host_scalar
from ampwatch.wire.records import Tried

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from torch import Tensor

    from ampwatch.diagnosis.evidence.origins import OpTrace
    from ampwatch.training.iteration.context import Context
    from ampwatch.training.replay.kept_calls import KeptCall
    from ampwatch.training.replay.raised import Ending
    from ampwatch.training.replay.replay import Replay
    from ampwatch.wire.records import Remedy

REST = 64
"""Iterations after a replay that has named an op in which nothing is replayed: what goes on is the
same incident."""


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


class ReplicaSurroundings(Surroundings):
    """Facts of a replay besides its ops, and the trace of it.

    Attributes:
        replay: The replay that runs; ``None`` without one.
        trace: What was seen, once that is known.
        scale: What the loss is multiplied by; ``None`` without backward.
        is_stepping: No optimizer steps in a replay.
    """

    is_stepping = False
    scale: Tensor | None = None

    def __init__(self) -> None:
        self.let_go()

    def let_go(self) -> None:
        """Forget the replica."""
        self.replay: Replay | None = None
        self.trace: OpTrace | None = None
        self.scale = None
        self._largest: Tensor | None = None

    def begin(self, replay: Replay, scale: float) -> None:
        """Take in the replay that begins, and what its loss is multiplied by; NaN without backward."""
        self.let_go()
        self.replay = replay
        self.scale = None if math.isnan(scale) else torch.tensor(scale)

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield name and tensor of each parameter."""
        if self.replay is not None:
            for name, parameter in self.replay.replica.parameters.items():
                yield self.replay.prefix + name, parameter

    def buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield name and tensor of each buffer."""
        if self.replay is not None:
            model = self.replay.replica.model
            for name, buffer in model.named_buffers():
                yield self.replay.prefix + canonical(name, model), buffer

    def take(self, outputs: Sequence[Tensor]) -> None:
        """Take in what the replica has returned."""
        with torch.no_grad():
            # The largest element is NaN if any is; a mask of negative infinity is not to show in it.
            each = [tensor.detach().amax().float() for tensor in outputs if tensor.numel()]
            self._largest = torch.stack(each).amax().clamp(min=0.0) if each else None

    @property
    def loss_parts(self) -> tuple[float | None, Tensor | None]:
        """The largest output: on the host and on a device, ``None`` for what it is not."""
        largest = self._largest
        if largest is None:
            return None, None
        is_here = largest.device.type == HOST
        return (host_scalar(largest), None) if is_here else (None, largest)

    def deliver(self, trace: OpTrace) -> None:
        """Take the trace of a replay."""
        self.trace = trace


class Inquiry:
    """Makes the calls of a failed iteration again, one iteration at a time, and hands on what it finds.

    Attributes:
        pace: Which iterations are replayed.
        suspect: What the graph of a loss has reported of an iteration; ``None`` without one.
        withholds: Whether what a replay finds is kept until it is known whether weights have broken by it.
        withheld: What is kept.
        ending: How the training has ended, in the iteration that is made again last; ``None`` before.
    """

    def __init__(self, context: Context) -> None:
        self.pace = Pace()
        self.suspect: OpTrace | None = None
        self.withholds = False
        self.withheld: OpTrace | None = None
        self.ending: Ending | None = None
        self._context = context
        self._around = ReplicaSurroundings()
        self._origins = OriginFollower(self._around, finite_checks)
        self._has_accelerator = False
        self._running: Generator[None, None, None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether an iteration is being made again, or its values have yet to arrive."""
        return self._running is not None

    def prepare(self) -> None:
        """Pin memory for values that reach the host later."""
        self._has_accelerator = True
        self._origins.prepare()

    def held_bytes(self) -> HeldBytes:
        """Return the bytes of the replica, and of values on their way."""
        replay = self._around.replay
        copies = 0 if replay is None else replay.replica.nbytes
        rows = self._origins.held_bytes()
        if is_host(self._context.home.device):
            return HeldBytes(rows.host + copies, rows.device)
        return HeldBytes(rows.host, rows.device + copies)

    def begin(
        self, step: int, calls: Sequence[KeptCall], scale: float, *, goes_back: bool = False
    ) -> None:
        """Make the calls of an iteration again; see ``advance``.

        Args:
            step: The iteration.
            calls: Its calls, in order; none where only the graph of its loss says something.
            scale: The loss scale; NaN without one.
            goes_back: Whether backward is run as well, where all of forward is finite.
        """
        scale = 1.0 if math.isnan(scale) else scale
        self._running = self._inquire(step, calls, scale, goes_back=goes_back)
        self.advance()

    def advance(self) -> None:
        """Go on as far as values have arrived. Never waits.

        Raises:
            ReplayRefusedError: If a call cannot be made again.
            torch.OutOfMemoryError: If there is no memory for it.
        """
        if self._running is None:
            return
        self._origins.poll()
        try:
            next(self._running)
        except StopIteration:
            self._end()
        except ReplayRefusedError:
            self._end()
            raise

    def _end(self) -> None:
        self._running = None
        self._around.let_go()

    def stop(self) -> None:
        """Forget everything."""
        self.suspect = self.withheld = self.ending = None
        if self._running is not None:
            self._running.close()
        self._end()

    def _inquire(
        self, step: int, calls: Sequence[KeptCall], scale: float, *, goes_back: bool
    ) -> Generator[None, None, None]:
        """Replay the calls of an iteration in order, up to the one that fails, and try remedies.

        Where all of it is finite, it is backward that has failed. What the loss has handed to it is
        gone, so it runs with gradients of one: what is not finite then in spite of any scale, as the
        derivative of a root at zero is, is named; what has overflowed is the scaler's business.
        """
        explained, is_finite, is_model_finite = False, True, bool(calls)
        try:
            for call in calls:
                trace = yield from self._trace(step, call, scale, None)
                found = None if trace is None else diagnose(trace)
                is_data = call is calls[0] and not call.is_fed
                if found is not None and found.kind is NONFINITE_INPUT and not is_data:
                    found = None  # what another model, or a part of one, may have computed
                is_finite = is_finite and trace is not None and not trace.loss_nonfinite
                # A mask of negative infinity ends within the model.
                is_handled = trace is not None and all(o.absorbed_by for o in trace.origins)
                is_model_finite = is_model_finite and is_finite and is_handled
                if trace is not None and found is not None:
                    explained = True
                    dtypes = [name_of(region.dtype) for region in call.autocast]
                    trace.tried = yield from self._try_all(
                        step, call, scale, remedies_for(found, dtypes)
                    )
                    self._hand_on(trace)
                    return
            # First what has lines: nodes of a graph have none.
            explained = yield from self._follow_ending(step, calls)
            explained = explained or self._blame_loss(step, is_model_finite=is_model_finite)
            if explained or not (is_finite and goes_back):
                return
            for call in calls:
                trace = yield from self._trace(step, call, 1.0, None, goes_back=True)
                found = None if trace is None else diagnose(trace)
                if (
                    trace is not None
                    and found is not None
                    and found.kind is BACKWARD_NONFINITE_ANY_SCALE
                ):
                    explained = True
                    self._hand_on(trace)
                    return
        finally:
            if self.ending is None:
                self.pace.replayed(step, explained=explained)

    def _follow_ending(self, step: int, calls: Sequence[KeptCall]) -> Generator[None, None, bool]:
        """Make the calls outside of the models again that have ended the training; return whether that explains it."""
        if self.ending is None or not self.ending.is_of_nonfinite:
            return False
        regions = calls[-1].autocast if calls else ()
        watched = {id(module) for _, module in self._context.names.modules()}
        seen: dict[tuple[str, str], OpTrace] = {}
        for call in self.ending.calls(regions, self._context.home.devices):
            if id(call.outside) in watched:
                continue
            try:
                trace = yield from self._trace(step, call, 1.0, None)
            except ReplayRefusedError:
                continue
            found = None if trace is None or not trace.is_refused else diagnose(trace)
            # What it has read may have been computed: it is no data.
            if trace is not None and found is not None and found.kind is not NONFINITE_INPUT:
                seen.setdefault((found.origin.op, found.origin.out.dtype), trace)
        if len(seen) != 1:
            return False  # nothing, or it depends on whether autocast was on
        self._hand_on(*seen.values())
        return True

    def _hand_on(self, trace: OpTrace) -> None:
        if self.withholds:
            self.withheld = trace
        else:
            self._context.observe(trace)

    def _blame_loss(self, step: int, *, is_model_finite: bool) -> bool:
        """Hand on what the graph of the loss showed, unless it may have come from the model."""
        suspect, self.suspect = self.suspect, None
        if suspect is None or suspect.step != step:
            return False
        if not is_model_finite and not suspect.origins[0].inputs:
            return False  # nobody knows whether what the op was given was finite
        suspect.is_scaled, suspect.has_trained = self._context.is_scaled, self.ending is None
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
            replay = self._around.replay
            if trace is None or replay is None or not replay.applies:
                continue
            then = diagnose(trace)
            cures = then is None and not trace.loss_nonfinite
            failed = () if then is None else (then.origin.op, then.origin.module)
            tried.append(Tried(*remedy, step, cures, *failed))
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
        context, around, origins = self._context, self._around, self._origins
        replay = replay_of(call, context, remedy, goes_back=goes_back)
        around.begin(replay, scale if call.returns_loss else math.nan)
        origins.begin(step, is_late=self._has_accelerator and not is_host(context.home.device))
        is_refused = False
        try:
            outcome = replay.run(origins.note, scale)
            around.take(outcome)
        except BaseException as error:
            ending = self.ending if isinstance(error, ReplayRefusedError) else None
            if ending is None or not ending.is_same(error.__cause__):
                origins.give_up()
                raise
            is_refused = ending.is_of_nonfinite
        dropped = origins.dropped
        origins.end(is_refused=is_refused)
        while around.trace is None and origins.dropped == dropped and origins.in_flight:
            yield
        trace = around.trace
        if trace is not None:
            trace.is_replay = not (call.returns_loss or goes_back)
            if goes_back and not call.returns_loss:
                trace.loss_nonfinite = None  # it is computed from what was replayed
            trace.has_trained = self.ending is None
            trace.is_scaled = context.is_scaled
            trace.of_compiled = context.bus.runs_compiled
        return trace
