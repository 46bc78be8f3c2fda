"""Replicas of the watched training in this process: models that train in lockstep.

Data parallelism without a process group: several copies of a model, in a loop or in threads, each
with an optimizer and a scaler of its own. Nothing declares them as replicas. They are taken for
replicas as long as they agree: in optimizer, settings, and the shapes and values of parameters,
before each step.
"""

from __future__ import annotations

import ctypes
import weakref
import zlib
from collections import deque
from threading import Lock, get_ident
from typing import TYPE_CHECKING, NamedTuple

import torch

from ampwatch.diagnosis.evidence.scaler import ReplicaVerdicts
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.kernels.admission import is_plain
from ampwatch.training.model.names import parameters_of
from ampwatch.training.private import scale_tensor, states_of_optimizers
from ampwatch.training.transfer.readback import host_scalar

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

    from ampwatch.training.hooks.events import StepBegan, Updating
    from ampwatch.training.iteration.context import Context

SAMPLED_BYTES = 256
"""Bytes of each parameter that are compared: at its beginning and at its end."""

MIN_VALUES = 3
"""Different bytes that parameters must hold: two models of zeros are no replicas yet."""

MAX_REPLICAS = 16
"""Scalers that are compared."""

MAX_PARAMETERS = 4096
"""Parameters of an optimizer up to which its values are compared before each step."""

REMEMBERED = 4
"""Newest steps of each replica that are compared with those of the others."""

STEPS_ALONE = 4
"""Steps of the watched optimizer without any other replica, after which comparing ends."""


class _Step(NamedTuple):
    """One step of one replica."""

    number: int  # steps that the replica had taken before
    weights: int  # sample of the parameters before the step
    scale: float  # scale of the scaler
    found_inf: bool  # verdict of the scaler
    iteration: int  # iteration that was open


class _Replica:
    """One scaler with one optimizer.

    Attributes:
        optimizer: The optimizer, held weakly.
        kind: Optimizer, shapes and settings, which are equal for replicas.
        first: Sample of the parameters before the first step.
        pending: Sample of the parameters before the open step; ``None`` without one.
        steps: Newest steps.
        count: Steps so far.
    """

    __slots__ = ("__weakref__", "count", "first", "kind", "optimizer", "pending", "steps")

    def __init__(self, optimizer: Optimizer, kind: object, first: int) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.kind = kind
        self.first = first
        self.pending: int | None = None
        self.steps: deque[_Step] = deque(maxlen=REMEMBERED)
        self.count = 0


class ReplicaSensor(Sensor):
    """Compares the verdicts of scalers whose optimizers hold the same weights.

    Two replicas disagree if one skips a step that the other takes, with the same weights and the
    same scale before it, after steps that have changed the weights of both alike. Models that
    only began alike, or are alike by chance, differ after the first step. CPU only: elsewhere
    comparing would be a sync.
    """

    name = "replicas"
    is_thread_safe = True
    any_scaler = True

    def __init__(self, context: Context) -> None:
        self._scaler = context.some_scaler
        self._iteration = context.iteration
        self._registry = context.registry
        self._observe = context.observe
        self._lock = Lock()
        # By scaler; ``None`` for one that steps several optimizers, which is no replica.
        self._replicas: weakref.WeakKeyDictionary[torch.amp.GradScaler, _Replica | None] = (
            weakref.WeakKeyDictionary()
        )
        self._pending: ReplicaVerdicts | None = None

    def removed(self) -> None:
        """Report a disagreement that was held back; forget all replicas."""
        pending = self._pending
        self._pending = None
        if pending is not None:
            self._observe(pending)
        self._replicas.clear()

    def step_began(self, event: StepBegan) -> None:
        """Sample the weights before a step of any scaler."""
        scaler, optimizer = event
        if not scaler.is_enabled():
            return
        self._report()
        with self._lock:
            replica = self._replicas.get(scaler)
            if scaler not in self._replicas:
                replica = self._replicas[scaler] = self._new(optimizer)
            elif replica is not None and replica.optimizer() is not optimizer:
                replica = self._replicas[scaler] = None
            if replica is not None:
                replica.pending = _sample(optimizer)

    def _new(self, optimizer: Optimizer) -> _Replica | None:
        parameters = parameters_of(optimizer)
        plain = len(parameters) <= MAX_PARAMETERS and all(_is_on_host(p) for p in parameters)
        if not plain or len(self._replicas) >= MAX_REPLICAS:
            return None
        if len({byte for p in parameters for byte in _bytes(p)}) < MIN_VALUES:
            return None
        shapes = tuple((tuple(p.shape), p.dtype) for p in parameters)
        options = tuple(
            repr(sorted((k, v) for k, v in group.items() if k != "params"))
            for group in optimizer.param_groups
        )
        return _Replica(optimizer, (type(optimizer), shapes, options), _sample(optimizer))

    def updating(self, event: Updating) -> None:
        """Compare the verdict that a scaler is about to forget with those of its replicas."""
        with self._lock:
            self._note(event.scaler)
        self._report()

    def _note(self, scaler: torch.amp.GradScaler) -> None:
        replica = self._replicas.get(scaler)
        if replica is None or replica.pending is None:
            if scaler is self._scaler and scaler in self._replicas:
                self.is_dormant = replica is None
            return
        step = _step_of(scaler, replica, self._iteration.step)
        replica.pending = None
        if step is None:
            return
        replica.count += 1
        replica.steps.append(step)
        self._compare(scaler, step)

    def _compare(self, scaler: torch.amp.GradScaler, step: _Step) -> None:
        watched = self._replicas.get(self._scaler)
        if watched is None:
            return
        others = [
            r
            for s, r in self._replicas.items()
            if r is not None
            and s is not self._scaler
            and r.kind == watched.kind
            and r.first == watched.first
        ]
        if not others:
            self.is_dormant = watched.count >= STEPS_ALONE and scaler is self._scaler
            return
        same = [
            s
            for r in (watched, *others)
            for s in r.steps
            if (s.number, s.weights, s.scale) == (step.number, step.weights, step.scale)
        ]
        optimizer = watched.optimizer()
        here = [s for s in watched.steps if any(s is x for x in same)]
        # Weights that have not moved yet prove nothing.
        if not here or optimizer is None or step.weights == watched.first:
            return
        skipping = sum(s.found_inf for s in same)
        if 0 < skipping < len(same):
            self._pending = ReplicaVerdicts(
                step=here[0].iteration,
                optimizer=self._registry.admit(optimizer),
                here=here[0].found_inf,
                replicas=len(others) + 1,
                skipping=skipping,
                common_steps=step.number,
                loss_scale=step.scale,
            )

    def _report(self) -> None:
        # Findings are made in the thread that trains the watched replica, and without the lock:
        # what the user does with one may step a scaler.
        if self._pending is not None and get_ident() == self._iteration.thread:
            pending = self._pending
            self._pending = None
            self._observe(pending)


def _step_of(scaler: torch.amp.GradScaler, replica: _Replica, iteration: int) -> _Step | None:
    """Return the step that is about to end; ``None`` if its values are not on the host."""
    scale = scale_tensor(scaler)
    optimizer = replica.optimizer()
    # A defaultdict: asked with ``in``, since reading would create an entry.
    states = states_of_optimizers(scaler)
    if scale is None or scale.device.type != "cpu" or id(optimizer) not in states:
        return None
    verdicts = list(states[id(optimizer)]["found_inf_per_device"].values())
    if not verdicts or replica.pending is None or any(v.device.type != "cpu" for v in verdicts):
        return None
    found_inf = any(host_scalar(v) > 0 for v in verdicts)
    return _Step(replica.count, replica.pending, host_scalar(scale), found_inf, iteration)


def _is_on_host(parameter: torch.Tensor) -> bool:
    return parameter.device.type == "cpu" and is_plain(parameter) and parameter.is_contiguous()


def _bytes(parameter: torch.Tensor) -> bytes:
    # Read in place: an op would show up in the user's profiles and dispatch modes.
    size = parameter.numel() * parameter.element_size()
    address = parameter.data_ptr()
    if not size or not address:
        return b""
    if size <= 2 * SAMPLED_BYTES:
        return ctypes.string_at(address, size)
    end = address + size - SAMPLED_BYTES
    return ctypes.string_at(address, SAMPLED_BYTES) + ctypes.string_at(end, SAMPLED_BYTES)


def _sample(optimizer: Optimizer) -> int:
    """Return a checksum of a part of each parameter."""
    checksum = 0
    for parameter in parameters_of(optimizer):
        if _is_on_host(parameter):
            checksum = zlib.crc32(_bytes(parameter), checksum)
    return checksum
