"""The fault of the demo: the scale of one residual branch drifts away until float16 overflows.

As with a warm-up schedule of residual multipliers that nobody ends: every weight stays
finite, and so does every input of the module; only its float16 output does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.demo.model import MLP, CharacterGPT

FAULTY_MODULE = "blocks.2.mlp"
DRIFT_PER_STEP = 4.0

MAX_BRANCH_SCALE = 2.0**24
"""End of the drift: far above the largest float16, far below the largest float32."""


def drift(model: CharacterGPT, say: Callable[[str], None]) -> None:
    """Raise the scale of the faulty branch by one step's worth, and say so the first time."""
    mlp = cast("MLP", model.get_submodule(FAULTY_MODULE))
    if mlp.branch_scale == 1.0:
        say(
            f"A fault is planted now: the branch scale of {FAULTY_MODULE} grows by a factor of"
            f" {DRIFT_PER_STEP:g} a step.\nSoon its output is beyond 65504, the largest float16."
        )
    mlp.branch_scale = min(mlp.branch_scale * DRIFT_PER_STEP, MAX_BRANCH_SCALE)
