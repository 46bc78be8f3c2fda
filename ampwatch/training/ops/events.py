"""The events of the ops of an iteration that is observed op by op."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ampwatch.training.hooks.sensor import Sensor

if TYPE_CHECKING:
    from torch import Tensor

    from ampwatch.numerics.units.ops import Phase
    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.ops.info import OpInfo


class OpPlace(NamedTuple):
    """The place where an op ran.

    Attributes:
        phase: The part of the iteration.
        module: Qualified name of the innermost watched module that was running, or, in backward,
            of the one whose forward made the node; empty for the root and outside of all.
        is_inside: Whether a watched module was running in this thread.
        source: ``file:line`` of the user's code that it was compiled from; empty where it is
            the line that is running.
        follows_fused: Whether code has run in this iteration that computes without ops.
        unseen: Those of its inputs that such code may have written.
        hides_autocast: Whether it is not known if autocast was on: compiled code has called it, in which autocast
            is explicit casts, or it is run again from a traceback.
    """

    phase: Phase
    module: str
    is_inside: bool
    source: str = ""
    follows_fused: bool = False
    unseen: tuple[Tensor, ...] = ()
    hides_autocast: bool = False


class OpsBegan(NamedTuple):
    """The beginning of the observation of ops, for an iteration or for what is left of it.

    Attributes:
        step: Its index.
        follows: Whether non-finite values are to be followed from op to op.
    """

    step: int
    follows: bool = True


class Op(NamedTuple):
    """The return of an op. Inside of a handler no dispatch mode is on; nothing of it is recorded.

    Ops that compute nothing (views, ``empty``, ``detach``) make no event. Tensors may be read
    and must not be kept.

    Attributes:
        call: The op, what it was given and what it has returned.
        place: Where it ran.
    """

    call: OpCall
    place: OpPlace


class HostRead(NamedTuple):
    """The host has read a number of a tensor: ``item()``, ``float(tensor)``, ``if tensor:``.

    Nothing is computed, so it is no op that is counted; where the tensor is on an accelerator the host
    has waited for it.

    Attributes:
        call: The op.
    """

    call: OpCall


class OpsEnded(NamedTuple):
    """The end of the observation of ops, with the iteration or before it."""


class OpSensor(Sensor):
    """A sensor that the calls of some ops concern, and not of others."""

    @property
    def follows_all(self) -> bool:
        """Whether the calls of all ops concern it for the time being. Asked at each call."""
        return False

    def wants_op(self, info: OpInfo, *, in_backward: bool) -> bool:
        """Whether the calls of an op are events for this sensor. Asked once, not at each call.

        Args:
            info: The op.
            in_backward: Whether it is called by backward, or outside of it.
        """
        raise NotImplementedError

    def prefilter(self, _call: OpCall) -> bool:
        """Take in a call of an op that it wants, if nothing more than the call has to be known.

        Asked outside of the guard, before the place of the call is worked out, which takes longer
        than most sensors do. Calls no op and places nothing. May be followed by the event, if
        another sensor wants that. What it raises counts as no.

        Returns:
            Whether the event is not wanted.
        """
        return False


OP_EVENTS = (OpsBegan, Op, HostRead, OpsEnded)
"""Events for a bus to know besides those of torch's callables."""
