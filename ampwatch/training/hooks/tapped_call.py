"""What a tap runs in place of the callable that it has replaced: the call, between its listeners.

It runs eight times in a quiet step, in the middle of which the caches have forgotten our code. So it
is a part of the extension module (`native/taps.c`), and stands here a second time for where that is
not built.
"""

from __future__ import annotations

import copyreg
from typing import TYPE_CHECKING, Any

import torch

from ampwatch.training.devices import captures, is_ignored
from ampwatch.training.hooks.compiling import is_exporting, never_compiled, set_compiler
from ampwatch.training.native import core
from ampwatch.training.private import (
    IS_COMPILING,
    SEES_COMPILED,
    graph_task,
    num_function_modes,
    tracing_state,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.training.hooks.channel import Channel

    Called = Callable[..., None]
    Plan = tuple[
        tuple[tuple[Called, Channel | None, object | None], ...],
        tuple[tuple[Called | None, Called | None, Channel | None, object | None], ...],
        tuple[tuple[Called, None, object | None], ...],
    ]

NOT_TAKEN = object()
"""What a listener returns that was asked to make a call in its own way, and leaves it to the tap."""


class PythonTappedCall:
    """Calls what was replaced, and tells the listeners before and after.

    Attributes:
        plan: What is called before it, after it, and where it has raised: each with the channel without
            whose subscribers it is not called, and with the one instance that is listened to, or ``None``.
            Of what is called after it, the first does not get the result.
        around: Asked to make the call in its own way, or ``None``.
        also_in_capture: Also while a capture writes down what is done.

    Cost: 0.1 us in C, 0.3 us in Python, each a few times that where the caches have forgotten it.
    """

    __slots__ = ("also_in_capture", "around", "plan")

    plan: Plan
    around: Callable[..., Any] | None
    also_in_capture: bool

    @never_compiled
    def call(  # noqa: C901, PLR0912 - in line: it runs in each step
        self, original: Callable[..., Any], /, *given: Any
    ) -> Any:
        """Make the call: of ``original``, for an instance if that is given, with ``args`` and ``kwargs``.

        Raises:
            BaseException: What the original raises.
        """
        *of, args, kwargs = given
        if not self.also_in_capture and is_exporting():
            return original(*of, *args, **kwargs)
        # What is captured into a graph of an accelerator is not done now: whatever a listener
        # computed would be done again at each replay.
        if not self.also_in_capture and captures and is_ignored():
            return original(*of, *args, **kwargs)
        if self.around is not None:
            result = self.around(original, *of, args, kwargs)
            if result is not NOT_TAKEN:
                return result
        # Read once: who comes during the call must not get an `after` without its `before`.
        begins, afters, fails = self.plan
        # Between two graphs of compiled code whatever is called is compiled, listeners as well.
        compiler = set_compiler(None)
        try:
            for before, channel, only in begins:
                if (only is None or of[0] is only) and (channel is None or channel.subscribers):
                    before(*of, args, kwargs)
            if compiler is not None:
                set_compiler(compiler)
            try:
                result = original(*of, *args, **kwargs)
            except BaseException:  # of an interrupt as well: who counts depth would stay inside
                if compiler is not None:
                    set_compiler(None)
                for failed, _, only in fails:
                    if only is None or of[0] is only:
                        failed(*of)
                raise
            if compiler is not None:
                set_compiler(None)
            for after, returned, channel, only in afters:
                if (only is None or of[0] is only) and (channel is None or channel.subscribers):
                    if after is not None:
                        after(*of, args, kwargs)
                    if returned is not None:
                        returned(*of, result, args, kwargs)
        finally:
            if compiler is not None:
                set_compiler(compiler)
        return result


class _Untold:
    """What is left of it in another process: who pickles a class by value takes its methods along."""

    def call(self, original: Callable[..., Any], /, *given: Any) -> Any:
        """Make the call."""
        *of, args, kwargs = given
        return original(*of, *args, **kwargs)


if TYPE_CHECKING or core is None:
    TappedCall = PythonTappedCall
else:
    core.prepare_taps(
        captures,
        is_ignored,
        set_compiler if SEES_COMPILED else None,
        NOT_TAKEN,
        vars(torch.compiler),
        IS_COMPILING,
    )
    core.prepare_timed(graph_task, tracing_state, num_function_modes, torch.Tensor, NOT_TAKEN)
    TappedCall = core.TappedCall


def _reduced(_call: object) -> tuple[type, tuple[()]]:
    return _Untold, ()


for kind in {PythonTappedCall, TappedCall}:
    copyreg.pickle(kind, _reduced)
