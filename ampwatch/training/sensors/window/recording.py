"""Recording of torch.profiler; no other module touches its private parts.

``torch.autograd.profiler.profile`` is what ``torch.profiler.profile`` drives itself; taken
directly it does not import TorchInductor, which is a second and 70 MB.

A recording belongs to the thread that began it, and only that thread can end it. Two at a time
in one process end in a segmentation fault, whoever began the second (torch 2.13): hence
``OtherProfilers``. A recording that is still open when the interpreter ends crashes it as well.
"""

from __future__ import annotations

import atexit
import os
import threading
from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import profiler

from ampwatch.training.hooks.compiling import may_compile
from ampwatch.training.hooks.place import before_any_forward
from ampwatch.training.private import is_kineto_stopped, prepare_trace, start_trace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from torch import nn

    from ampwatch.guard import Guard
    from ampwatch.training.hooks.place import Handle

LOG_LEVEL = "KINETO_LOG_LEVEL"
"""Environment variable from which Kineto reads its log level."""

SILENT = "99"
"""Level above all messages."""


class Recording:
    """Events of the thread that makes it, from ``begin`` to ``close``.

    Args:
        gpu: Device of CUDA or ROCm whose kernels are recorded as well; ``None`` records the host.

    Attributes:
        profile: PyTorch's object.
        thread: Identity of the thread that it belongs to.
        is_stolen: Whether another thread has begun a recording meanwhile.
    """

    def __init__(self, gpu: torch.device | None = None) -> None:
        self.profile: Any = profiler.profile(
            use_kineto=True,
            use_device=None if gpu is None else gpu.type,
            record_shapes=True,  # without it events have no dtypes either
            with_flops=True,
        )
        self._gpu = gpu
        self._is_prepared = False
        self._has_begun = False
        self._pid = os.getpid()
        self.thread = get_ident()
        self.is_stolen = False

    def prepare(self) -> None:
        """Have the profiler loaded and the device's activities switched on; nothing is recorded."""
        with _silence():
            prepare_trace(self.profile)
        self._is_prepared = True

    def begin(self) -> None:
        """Record from here on."""
        self._is_prepared = False
        start_trace(self.profile)
        self._has_begun = True

    def wait(self) -> None:
        """Wait until the device has done all its work, if kernels are recorded."""
        if self._gpu is not None:
            torch.cuda.synchronize(self._gpu)

    @property
    def has_stopped_early(self) -> bool:
        """Whether the buffers of the device were full before the end."""
        return self._gpu is not None and is_kineto_stopped()

    def close(self) -> None:
        """End the recording. Waits for the device if kernels are recorded. Idempotent.

        A recording that has not begun must not be ended: the process would crash, or somebody
        else's recording would end. A child must not end one that was begun before the fork.
        """
        if os.getpid() != self._pid:
            return
        if self.is_stolen:
            # The other recording has ended ours in Kineto, which crashes if there is none to end:
            # so it gets a new one.
            session: Any = profiler.profile(use_kineto=True)
            prepare_trace(session)
        elif self._is_prepared:
            # Only a recording that has begun can be ended.
            self.begin()
        if self._has_begun:
            self._has_begun = False
            self.profile.__exit__(None, None, None)

    @property
    def events(self) -> Sequence[Any]:
        """The raw events; empty before ``close``."""
        results: Any = self.profile.kineto_results
        return () if results is None else results.events()

    def save(self, path: Path) -> None:
        """Write the Chrome trace; works only once.

        Raises:
            OSError: If it cannot be written.
        """
        results: Any = self.profile.kineto_results
        results.save(str(path))
        if not path.stat().st_size:
            msg = f"expected a Chrome trace in {str(path)!r}, got an empty file"
            raise OSError(msg)


def close_soon(recording: Recording, guard: Guard) -> None:
    """Have the thread that began a recording close it, as no other thread can.

    The thread does so at its next call of a module, else when the program ends. Where code is
    compiled it does so only at the end, as hooks would have the code compiled again.

    Args:
        recording: An open recording of the main thread.
        guard: Keeps faults of closing from the call of the module.
    """
    # A recording that is open when the interpreter ends crashes the process.
    atexit.register(recording.close)
    if may_compile():
        return

    def close(_module: nn.Module, _args: Any) -> None:
        if recording.thread == get_ident() and not torch.compiler.is_compiling():
            guard.run(end)

    def end() -> None:
        # PyTorch walks over a copy of the hooks before modules: one may remove itself.
        for handle in handles:
            handle.remove()
        if not recording.is_stolen:
            recording.close()
            atexit.unregister(recording.close)

    # A call of a module may come before the handle is there: then the next one removes it.
    handles: list[Handle] = []
    handles.append(before_any_forward(close))


_loaded = False


@contextmanager
def _silence() -> Iterator[None]:
    """Keep Kineto from writing lines on stderr for every recording, unless the user asks for them.

    Kineto reads the level once, when it is used for the first time. The environment belongs to the
    whole process: it is changed for that moment only, and by the main thread only.
    """
    global _loaded  # noqa: PLW0603 - as long as the library in the process
    is_main = get_ident() == threading.main_thread().ident
    if _loaded or LOG_LEVEL in os.environ or not is_main:
        yield
        return
    os.environ[LOG_LEVEL] = SILENT
    try:
        yield
    finally:
        del os.environ[LOG_LEVEL]
        _loaded = True
