"""The moment before compiled code runs, heard at the functions that it is entered by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.nn.modules import module

from ampwatch.training.hooks.compiling import may_compile
from ampwatch.training.hooks.events import CompiledEntering
from ampwatch.training.hooks.taps import listen_to_function
from ampwatch.training.private import ASKS_FOR_HOOKS, ENTERS_COMPILED, SEES_COMPILED, eval_frame

if TYPE_CHECKING:
    from ampwatch.training.hooks.bus import Bus


class Entrance:
    """Tells the sensors of a bus, once, that compiled code is about to run.

    Once only: what is compiled while hooks are on modules, and called when they are gone, or the
    other way round, is compiled twice. So they go before it is compiled, and for good.

    Args:
        bus: The bus.
        handles: Gets what takes the taps off.
    """

    def __init__(self, bus: Bus, handles: list[Any]) -> None:
        self._bus = bus
        self._handles = handles
        self._channel = bus.channel(CompiledEntering)
        self._is_heard = False
        if not self.hear() and (not SEES_COMPILED or eval_frame() is not None):
            bus.runs_compiled = bus.runs_compiled or may_compile()

    def hear(self) -> bool:
        """Listen where compiled code is entered; return whether that can be heard."""
        # Whoever calls torch.compile has imported it; importing it here would take a second.
        frames = eval_frame()
        if not (
            SEES_COMPILED and hasattr(frames, ENTERS_COMPILED) and hasattr(module, ASKS_FOR_HOOKS)
        ):
            return False
        if not self._is_heard:
            self._is_heard = True
            # Not the module's __call__: compiled autograd would compile what replaces that.
            self._handles.append(
                listen_to_function(module, ASKS_FOR_HOOKS, before=self._before_module)
            )
            self._handles.append(
                listen_to_function(frames, ENTERS_COMPILED, before=self._before_code)
            )
        return True

    def compile_called(self, _backend: Any, _args: Any, _kwargs: Any) -> None:
        """Listen from now on, or expect the worst: ``torch.compile`` has made a backend."""
        if not self.hear():
            self._enter()

    def _before_module(self, _args: Any, _kwargs: Any) -> None:
        self._enter()

    def _before_code(self, args: tuple[Any, ...], _kwargs: Any) -> None:
        if args and callable(args[0]):
            self._enter()

    def _enter(self) -> None:
        if not self._bus.runs_compiled:
            self._bus.runs_compiled = True
            self._channel.emit(CompiledEntering())
