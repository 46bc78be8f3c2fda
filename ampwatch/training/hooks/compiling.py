"""Questions about ``torch.compile``: whether it is at work in this process, or in this thread."""

from __future__ import annotations

import sys

import torch

from ampwatch.training.devices import captures

BACKENDS = ("_TorchCompileInductorWrapper", "_TorchCompileWrapper")
"""Names of the classes in ``torch`` of which ``torch.compile`` makes one object at each call."""


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
    if backends is None:
        return True  # a version that keeps them elsewhere: better no census than no compiled code
    # A copy, for another thread may be compiling. torch._dynamo.reset() clears the dictionary, and
    # what was compiled before that shows in the counters only.
    return any(callable(backend) for backend in list(backends.values())) or has_compiled()


def is_traced() -> bool:
    """Whether what this thread does is written down, and not done.

    By a compiler, by ``torch.jit.trace``, or by the capture of a graph.
    """
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None  # noqa: SLF001 - no public name for it
        or bool(captures)
    )


class ForcedEager:
    """Has whatever was compiled run eagerly, from now on until ``end``."""

    def __init__(self) -> None:
        # set_stance acts at construction already (torch/_dynamo/decorators.py), and its __exit__ sets
        # the stance of before. There is one stance per process, not one per thread.
        self._stance = torch.compiler.set_stance("force_eager")
        self._set = _stance()

    def end(self) -> None:
        """Have it run compiled again, unless the user has set another stance meanwhile.

        Nothing has to be compiled anew.
        """
        # By identity: a stance that the user has set meanwhile may be equal, and is not ours to end.
        if _stance() is self._set:
            self._stance.__exit__(None, None, None)


def _stance() -> object:
    return getattr(sys.modules.get("torch._dynamo.eval_frame"), "_stance", None)
