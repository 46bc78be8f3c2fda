"""The open iteration: what the sensors have seen since the last update of the scaler.

The sensors tell the ledger what happened; the ledger gives it a number, sends
the values that are still on the device through the readback, and delivers each
``Iteration`` once everything about it is on the host, in order.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ampwatch.diagnosis.evidence import Iteration, ScalerSettings
from ampwatch.sensors.readback import Readback, Row, host_scalar, is_plain_scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.optim import Optimizer

    from ampwatch.sensors.optimizers import OptimizerRegistry

SCALE, TRACKER, LOSS, FOUND_INF = 0, 1, 2, 3
MAX_FOUND_INF = 32
"""found_inf tensors taken per iteration: one per optimizer and device."""

ROW_WIDTH = FOUND_INF + MAX_FOUND_INF

BATCH_SECONDS = 0.25
"""How long an iteration without news may wait to be judged together with others. Between
two steps of a training the caches forget our code: judged one by one, iterations cost
several times as much."""

_NOT_AN_OPTIMIZER = -1


@dataclass(slots=True)
class Clock:
    """Where the time comes from; tests inject their own.

    Attributes:
        monotonic_ns: For durations. Unit: ns.
        unix_ns: For the time of day. Unit: ns.
    """

    monotonic_ns: Callable[[], int] = time.perf_counter_ns
    unix_ns: Callable[[], int] = time.time_ns


class IterationSink(Protocol):
    """Where iterations go."""

    def deliver(self, iteration: Iteration) -> None:
        """Take an iteration that is complete; they come in order."""

    def announce(self, step: int, skipped: frozenset[int]) -> None:
        """Take the verdict on an iteration whose values are still on their way.

        Comes only where the host knows it already: no optimizer of it is fused.
        """


@dataclass(slots=True)
class _Draft:
    """What the host knows of the open iteration."""

    losses: float = 0.0
    num_losses: int = 0
    device_loss: torch.Tensor | None = None
    found_inf_of: list[int] = field(default_factory=list)
    applied: list[int] = field(default_factory=list)
    known: dict[int, bool] = field(default_factory=dict)
    scheduler_stepped: set[int] = field(default_factory=set)


class IterationLedger:
    """Puts iterations together.

    Args:
        readback: Brings device values to the host; at least ``ROW_WIDTH`` wide.
        registry: Numbers the optimizers.
        sink: Where iterations go.
        scheduler_moved: Asked once per optimizer step whether its scheduler was
            stepped since the step before.
        clock: Where the time comes from.

    Attributes:
        step: Index of the open iteration.
        thread: Identity of the thread that trains, as of the last iteration.
    """

    def __init__(
        self,
        readback: Readback,
        registry: OptimizerRegistry,
        sink: IterationSink,
        scheduler_moved: Callable[[Optimizer], bool],
        clock: Clock,
    ) -> None:
        self.step = 0
        self.thread = 0
        self._readback = readback
        self._registry = registry
        self._sink = sink
        self._scheduler_moved = scheduler_moved
        self._clock = clock
        self._draft = _Draft()
        self._row: Row | None = None
        self._stepping: Optimizer | None = None
        self._ended_ns = 0
        self._delivered_ns = 0
        self._sums: dict[torch.device, torch.Tensor] = {}

    def add_losses(self, outputs: object) -> None:
        """Take the loss or losses that the user hands to ``scaler.scale``.

        Only one-element tensors are losses; an iterator is left alone, it can be
        consumed only once. Cost on a device: one small kernel per loss.
        """
        if isinstance(outputs, torch.Tensor):
            self._add_loss(outputs)
        elif isinstance(outputs, (list, tuple)):
            for output in outputs:
                self.add_losses(output)

    def _add_loss(self, loss: torch.Tensor) -> None:
        if not is_plain_scalar(loss) or not loss.is_floating_point():
            return
        draft = self._draft
        if loss.device.type == "cpu":
            draft.losses += host_scalar(loss)
        elif _capturing(loss):
            return
        else:
            self._add_device_loss(loss)
        draft.num_losses += 1

    def _add_device_loss(self, loss: torch.Tensor) -> None:
        total = self._sums.get(loss.device)
        with torch.no_grad():
            if total is None:
                total = torch.zeros((), dtype=torch.float32, device=loss.device)
                self._sums[loss.device] = total
            if self._draft.device_loss is None:
                total.copy_(loss.detach().reshape(()))
            else:
                total.add_(loss.detach().reshape(()))
        self._draft.device_loss = total

    def begin_scaled_step(self, optimizer: Optimizer) -> None:
        """``scaler.step(optimizer)`` begins."""
        index = self._registry.admit(optimizer)
        self._stepping = optimizer
        if not getattr(optimizer, "_step_supports_amp_scaling", False):
            # Such an optimizer is only called when its step is not skipped.
            self._draft.known[index] = True
        if self._scheduler_moved(optimizer):
            self._draft.scheduler_stepped.add(index)

    def end_scaled_step(self) -> None:
        """``scaler.step`` has returned."""
        self._stepping = None

    def optimizer_stepped(self, optimizer: Optimizer, *, scaler_enabled: bool) -> None:
        """``optimizer.step`` has run, called by the scaler or by the user."""
        index = self._registry.index_of(optimizer)
        if optimizer is self._stepping:
            if index in self._draft.known:
                self._draft.known[index] = False
            if scaler_enabled:
                return
        if index is None:
            return
        if index in self._draft.applied:
            # Twice without an end between: neither the scaler nor optimizer 0 is in use.
            self.close_unscaled()
        self._draft.applied.append(index)
        if not scaler_enabled and index == 0:
            self.close_unscaled()

    def take_found_inf(
        self, scale: torch.Tensor, found_inf: Iterable[tuple[int, torch.Tensor]]
    ) -> None:
        """Take the verdicts as they stand before ``scaler.update`` sums them in place.

        Args:
            scale: The scaler's scale.
            found_inf: Number of the optimizer (``-1`` if it was not stepped) and its
                verdict on one device.
        """
        self._draft.found_inf_of.clear()
        if self._row is None and not _capturing(scale):
            self._row = self._readback.open()
        if self._row is None:
            return
        for column, (index, value) in enumerate(found_inf):
            if column == MAX_FOUND_INF:
                break
            self._readback.put(self._row, FOUND_INF + column, value)
            self._draft.found_inf_of.append(index)

    def close_scaled(
        self,
        scale: torch.Tensor,
        tracker: torch.Tensor,
        scaler: ScalerSettings,
        *,
        scale_given: bool,
    ) -> None:
        """``scaler.update`` has returned: the iteration ends."""
        row = self._row
        if row is not None:
            self._readback.put(row, SCALE, scale)
            self._readback.put(row, TRACKER, tracker)
        self._close(row, scaler, scale_given=scale_given)

    def close_unscaled(self) -> None:
        """The leading optimizer has stepped without an enabled scaler: the iteration ends."""
        row = self._row or self._readback.open()
        if row is not None:
            row.values[SCALE] = math.nan
            row.values[TRACKER] = -1
        self._close(row, None, scale_given=False)

    def _close(self, row: Row | None, scaler: ScalerSettings | None, *, scale_given: bool) -> None:
        draft, now = self._draft, self._clock.monotonic_ns()
        frame = Iteration(
            step=self.step,
            time_ns=self._clock.unix_ns(),
            duration_s=(now - self._ended_ns) / 1e9 if self._ended_ns else math.nan,
            loss=math.nan,
            num_losses=draft.num_losses,
            loss_scale=math.nan,
            growth_tracker=-1,
            scaler=scaler,
            scale_given=scale_given,
            found_inf={},
            other_found_inf=False,
            applied_directly=tuple(draft.applied),
            scheduler_stepped=frozenset(draft.scheduler_stepped),
        )
        if row is not None:
            if draft.device_loss is not None:
                self._readback.put(row, LOSS, draft.device_loss)
            else:
                row.values[LOSS] = 0.0
            self._readback.seal(row, (frame, draft))
        self._row, self._stepping = None, None
        self._draft, self._ended_ns = _Draft(), now
        self.step += 1
        self.thread = get_ident()
        if row is None or not self._can_wait(row, draft):
            self.deliver_arrived()
            self._announce(frame.step, draft)

    def _can_wait(self, row: Row, draft: _Draft) -> bool:
        """Whether all is well in the iteration that has just ended, and known on the host."""
        return (
            not row.marked
            and math.isfinite(draft.losses)
            and not any(row.values[FOUND_INF : FOUND_INF + len(draft.found_inf_of)])
            and self._ended_ns - self._delivered_ns < BATCH_SECONDS * 1e9
            and not self._readback.half_full
        )

    def _announce(self, step: int, draft: _Draft) -> None:
        """Announce the verdict if it is still on its way and the host knows it all the same."""
        if (
            draft.known
            and self._readback.in_flight
            and len(draft.known) == len(set(draft.found_inf_of) - {_NOT_AN_OPTIMIZER})
        ):
            skipped = frozenset(i for i, skipped in draft.known.items() if skipped)
            self._sink.announce(step, skipped)

    def deliver_arrived(self) -> None:
        """Deliver what has reached the host. Never waits."""
        self._delivered_ns = self._ended_ns
        for values, (frame, draft) in self._readback.arrived():
            self._sink.deliver(_complete(frame, draft, values))


def _complete(frame: Iteration, draft: _Draft, values: list[float]) -> Iteration:
    """Fill in what came from the device."""
    verdicts: dict[int, bool] = {}
    for column, index in enumerate(draft.found_inf_of):
        verdicts[index] = verdicts.get(index, False) or values[FOUND_INF + column] > 0
    frame.found_inf = verdicts
    frame.other_found_inf = verdicts.pop(_NOT_AN_OPTIMIZER, False)
    if draft.num_losses:
        frame.loss = (draft.losses + values[LOSS]) / draft.num_losses
    frame.loss_scale = values[SCALE]
    frame.growth_tracker = int(values[TRACKER])
    return frame


def _capturing(value: Any) -> bool:
    """Whether the stream is being captured into a CUDA graph, where nothing may be added."""
    return bool(value.is_cuda) and torch.cuda.is_current_stream_capturing()
