"""Which dtypes autocast regions ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ampwatch.training.hooks.taps import Listener, listen

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.guard import Guard


class AutocastSensor:
    """Notes the dtype of every enabled ``torch.autocast`` region that gradients are recorded in.

    A region inside a compiled function is not entered by Python and is not seen.

    Args:
        guard: The fail-open boundary.
        changed: Called when a dtype is seen for the first time.

    Attributes:
        dtypes: Names of the dtypes seen so far (``float16``), in order.
    """

    name = "autocast"

    def __init__(self, guard: Guard, changed: Callable[[], None]) -> None:
        self.dtypes: list[str] = []
        self._guard = guard
        self._changed = changed
        self._last: torch.dtype | None = None
        self._listener: Listener | None = None

    def install(self) -> None:
        """Listen to ``torch.autocast.__enter__``."""
        self._listener = listen(torch.autocast, "__enter__", before=self._enter)

    def remove(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._listener.remove()
            self._listener = None

    def _enter(self, region: Any, _args: Any, _kwargs: Any) -> None:
        self._guard.run(self.entered, region)

    def entered(self, region: Any) -> None:
        """An autocast region begins."""
        dtype = region.fast_dtype
        # Evaluation and teachers may run in another dtype than the training does.
        if dtype is self._last or not region._enabled or not torch.is_grad_enabled():  # noqa: SLF001 - no public name for it
            return
        self._last = dtype
        name = str(dtype).removeprefix("torch.")
        if name not in self.dtypes:
            self.dtypes.append(name)
            self._changed()
