"""Whether ``torch.compile`` is at work in this process."""

from __future__ import annotations

import sys


def has_compiled() -> bool:
    """Whether ``torch.compile`` has compiled anything in this process."""
    # Importing it only to ask takes a second; whoever compiles has imported it.
    dynamo = sys.modules.get("torch._dynamo.utils")
    return bool(dynamo is not None and dynamo.counters["frames"])


def may_compile() -> bool:
    """Whether ``torch.compile`` was called in this process, even if nothing has run yet.

    What runs for the first time while its ops are watched one by one is not compiled, then or
    later. PyTorch keeps each backend that ``torch.compile`` was called with.
    """
    frames = sys.modules.get("torch._dynamo.eval_frame")
    if frames is None:
        return False
    backends = getattr(frames, "cached_backends", None)
    if backends is None:  # a version that keeps them elsewhere
        return True
    return any(callable(backend) for backend in list(backends.values())) or has_compiled()
