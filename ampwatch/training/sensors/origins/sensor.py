"""The sensor that has the origins of non-finite values followed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.training.devices import is_capturing
from ampwatch.training.kernels.choice import finite_checks
from ampwatch.training.ops.events import OpSensor
from ampwatch.training.private import SEES_COMPILED
from ampwatch.training.sensors.origins.follower import OriginFollower, Surroundings

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from ampwatch.guard import Guard
    from ampwatch.training.hooks.events import DevicesKnown, IterationClosed
    from ampwatch.training.iteration.context import Context
    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.ops.events import Op, OpsBegan, OpsEnded
    from ampwatch.training.ops.info import OpInfo


class OriginSensor(OpSensor):
    """Has non-finite values followed where they are: in host memory, or on a device."""

    name = "births"
    is_thread_safe = True
    waking = frozenset({"ops_began", "devices_known"})
    is_dormant = True

    def __init__(self, context: Context) -> None:
        self._context = context
        self.guard: Guard = context.bus.guard(self.name, is_thread_safe=True)
        self._origins = OriginFollower(Surroundings(context), finite_checks)
        context.memory.add("transfer", self._origins.held_bytes)
        self._home = context.home
        self._is_following = False

    @property
    def in_flight(self) -> int:
        """Number of followed iterations that are on their way to the host."""
        return self._origins.in_flight

    @property
    def dropped(self) -> int:
        """Number of iterations that were to be followed, and could not be."""
        return self._origins.dropped

    def ops_began(self, event: OpsBegan) -> None:
        """Follow the values of an iteration, if that is asked for."""
        self._is_following = event.follows
        self.is_dormant = not (event.follows or self._origins.in_flight)
        if event.follows:
            self._origins.begin(event.step, is_late=not is_host(self._home.device))

    def wants_op(self, info: OpInfo, *, in_backward: bool) -> bool:  # noqa: ARG002 - of all
        """Whether an op makes values: each one does."""
        return True

    def prefilter(self, call: OpCall) -> bool:
        """Whether all that an op has made is finite, as it was before, or is not followed."""
        return not self._is_following or self._origins.prefilter(call)

    def op(self, event: Op) -> None:
        """Follow the operands of an op."""
        if self._is_following:
            self._origins.note(event.call, event.place)

    def devices_known(self, event: DevicesKnown) -> None:
        """Pin memory."""
        if event.has_accelerator:
            self._origins.prepare()

    def ops_ended(self, _event: OpsEnded) -> None:
        """Hand on the trace of the iteration, or send it on its way."""
        if self._is_following:
            self._is_following = False
            if is_capturing():
                # The graph of an accelerator is being captured: sending would be part of it.
                self._origins.give_up()
            else:
                self._origins.end()
        self.is_dormant = not self._origins.in_flight

    def refused(self) -> None:
        """Hand on the trace of an iteration that a function has ended which refuses what is not finite."""
        if self._is_following:
            self._is_following = False
            self._origins.end(is_refused=True)

    def iteration_closed(self, _event: IterationClosed) -> None:
        """Take in the values of earlier iterations that have reached the host."""
        self.poll()

    def poll(self) -> None:
        """Take in the values that have reached the host. Never waits."""
        if self._origins.in_flight:
            self._origins.poll()
            self.is_dormant = not self._is_following and not self._origins.in_flight

    def not_seen(self) -> Iterator[str]:
        """Yield, in sentences, in which iterations values were not followed."""
        if self.dropped:
            yield (
                f"in {self.dropped} iterations non-finite values were not followed from op to op: a"
                " CUDA graph was captured, there were too many ops, or the host fell behind"
            )
        if self._context.counts_around_compiled:
            yield (
                "non-finite values are followed through compiled code from op to op, not inside of"
                " what is fused: there the first op that reads them is named"
                if SEES_COMPILED
                else "non-finite values are not followed from op to op: compiled code runs, and"
                " before PyTorch 2.10 it would run otherwise"
            )


def is_host(device: torch.device | None) -> bool:
    """Whether values on a device can be read at once; assumed where no device is known."""
    return device is None or device.type == "cpu"
