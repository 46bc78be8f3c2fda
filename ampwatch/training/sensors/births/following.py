"""Births of non-finite values, followed on the host or on a device, wherever the values lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.training.devices import is_capturing
from ampwatch.training.kernels.choice import finite_checks
from ampwatch.training.ops.events import OpSensor
from ampwatch.training.sensors.births.birth_log import BirthLog
from ampwatch.training.sensors.births.births import BirthListener
from ampwatch.training.sensors.births.surroundings import Surroundings

if TYPE_CHECKING:
    import torch

    from ampwatch.guard import Guard
    from ampwatch.training.hooks.events import DevicesKnown, IterationClosed
    from ampwatch.training.iteration.context import Context
    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.ops.events import Op, OpsBegan, OpsEnded
    from ampwatch.training.ops.info import OpInfo


class BirthSensor(OpSensor):
    """Reads values at once as long as all are in host memory; from the first on a device, later.

    Args:
        context: Shared parts of the training.
    """

    name = "births"
    is_thread_safe = True
    waking = frozenset({"ops_began", "devices_known"})
    is_dormant = True

    def __init__(self, context: Context) -> None:
        self.guard: Guard = context.bus.guard(self.name, is_thread_safe=True)
        around = Surroundings(context)
        self._at_once = BirthListener(around, finite_checks)
        self._later = BirthLog(around)
        context.memory.add("transfer", self._later.held_bytes)
        self._home = context.home
        self._is_host = is_host(context.home.device)
        self._is_following = self._is_reading = False
        self._active: BirthListener | BirthLog = self._at_once if self._is_host else self._later

    @property
    def in_flight(self) -> int:
        """Number of followed iterations that are on their way to the host."""
        return self._later.in_flight

    @property
    def dropped(self) -> int:
        """Number of iterations that were to be followed, and could not be."""
        return self._later.dropped

    def ops_began(self, event: OpsBegan) -> None:
        """Follow the values of an iteration, if that is asked for."""
        self._is_following = event.follows
        self.is_dormant = not (event.follows or self._later.in_flight)
        if event.follows:
            self._is_reading = self._is_host
            self._active = self._at_once if self._is_host else self._later
            self._active.begin(event.step)

    def wants_op(self, info: OpInfo, *, in_backward: bool) -> bool:  # noqa: ARG002 - of all
        """Whether an op makes values: each one does."""
        return True

    def glance(self, call: OpCall) -> bool:
        """Whether all that an op has made is finite, as it was before, or is not followed."""
        return not self._is_following or (self._is_reading and self._at_once.glance(call))

    def op(self, event: Op) -> None:
        """Follow the operands of an op."""
        if not self._is_following:
            return
        if self._is_host or self._active is self._later:
            self._active.note(event.call, event.place)
            if self._at_once.meets_device and self._is_host:
                # Ops that were read at once are not in the log: this iteration is lost.
                self._is_host = False
                self._later.give_up()

    def devices_known(self, event: DevicesKnown) -> None:
        """Pin memory, and follow values where they are from the next iteration on."""
        self._is_host = is_host(self._home.device)
        if event.has_accelerator:
            self._later.prepare()

    def ops_ended(self, _event: OpsEnded) -> None:
        """Hand on the trace of the iteration, or send it on its way."""
        if self._is_following:
            self._is_following = False
            if self._active is self._later and is_capturing():
                # The graph of an accelerator is being captured: sending would be part of it.
                self._later.give_up()
            else:
                self._active.end()
        self.is_dormant = not self._later.in_flight

    def iteration_closed(self, _event: IterationClosed) -> None:
        """Take in the values of earlier iterations that have reached the host."""
        self.poll()

    def poll(self) -> None:
        """Take in the values that have reached the host. Never waits."""
        if self._later.in_flight:
            self._later.poll()
            self.is_dormant = not self._is_following and not self._later.in_flight


def is_host(device: torch.device | None) -> bool:
    """Whether values on a device can be read at once; assumed where no device is known."""
    return device is None or device.type == "cpu"
