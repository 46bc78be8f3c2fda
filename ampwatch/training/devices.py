"""What is asked of devices: the one place that knows what PyTorch's backends can do.

CUDA and ROCm (``cuda``), XPU (``xpu``) and a backend that registers itself with PyTorch
(``PrivateUse1``) each have a module in ``torch`` of the same shape: events, streams, a current
stream for each thread. Nothing here waits for a device, and nothing else in ampwatch asks for a
backend by its name, but where something exists on one alone: kernels in Triton, the kernels that
torch.profiler records, the facts of NVIDIA's GPUs.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

HOST = "cpu"

_BUILT_IN = ("cuda", "xpu")
"""Accelerators that PyTorch itself brings, and that have streams and events."""

PROFILED = ("cuda",)
"""Types of devices, CUDA's and ROCm's, whose kernels are recorded and known by their names."""

_NEEDED = ("Event", "current_stream", "stream")
"""Names in the module of a backend without which no value can be read later."""


class Event(Protocol):
    """The two calls of ``torch.cuda.Event`` that are used; neither waits."""

    def record(self, stream: Any) -> None:
        """Mark the current position of ``stream``."""

    def query(self) -> bool:
        """Whether everything before the mark has run."""


class Timer(Protocol):
    """The two calls of a timing ``torch.cuda.Event`` that are used; neither waits here."""

    def record(self, stream: Any) -> None:
        """Mark the current position of ``stream``."""

    def elapsed_time(self, end: Any) -> float:
        """Return the time to ``end``, another timer; both must have passed. Unit: ms."""


def accelerators() -> tuple[str, ...]:
    """Return the types of the accelerators that PyTorch brings, and of one that was registered."""
    name = str(torch._C._get_privateuse1_backend_name())  # noqa: SLF001 - no public name for it
    return (*_BUILT_IN, name) if hasattr(torch, name) else _BUILT_IN


def autocast_types() -> tuple[str, ...]:
    """Return the types of devices for which autocast is followed."""
    return (HOST, *accelerators())


def autocast_key(device_type: str) -> Any:
    """Return the dispatch key under which autocast acts for a type of device."""
    is_own = device_type in (HOST, *_BUILT_IN)
    name = device_type.upper() if is_own else "PrivateUse1"
    return getattr(torch._C.DispatchKey, f"Autocast{name}")  # noqa: SLF001 - no public name for it


@cache
def is_readable(device_type: str) -> bool:
    """Whether values of a type of device can reach the host without a wait."""
    if device_type == HOST:
        return True
    return device_type in accelerators() and all(
        hasattr(torch.get_device_module(device_type), name) for name in _NEEDED
    )


def limitation(device_type: str) -> str:
    """Return, in a sentence, what cannot be observed on a type of device; empty if everything can."""
    if not is_readable(device_type):
        return (
            f"values on {device_type} are not read: PyTorch's backend for it has no streams and"
            " events, and reading would wait for the device"
        )
    if device_type in (HOST, *PROFILED):
        return ""
    return (
        f"kernels on {device_type} are not recorded: their names, and what they run on, are known"
        " of CUDA's and ROCm's alone"
    )


@cache
def _capturing() -> tuple[Any, ...]:
    """Return the modules of the accelerators that are here and capture graphs, at most one."""
    here = [torch.get_device_module(name) for name in accelerators() if _is_built(name)]
    wanted = ("is_current_stream_capturing", "is_initialized")
    return tuple(module for module in here if all(hasattr(module, name) for name in wanted))


def _is_built(device_type: str) -> bool:
    if device_type == "cuda":
        return bool(torch.backends.cuda.is_built())  # type: ignore[no-untyped-call] # PyTorch's is not typed
    if device_type == "xpu":
        return bool(torch.xpu._is_compiled())  # noqa: SLF001 - no public name for it
    return True


def _is_capturing() -> bool:
    # A loop and not any(): this is asked at each call of each tap.
    for module in _capturing():
        # Asked before it is in use, a backend would start up.
        if module.is_initialized() and module.is_current_stream_capturing():
            return True
    return False


is_capturing: Callable[[], bool] = _is_capturing if _capturing() else bool
"""Whether what this thread gives its accelerator is captured into a graph, and not done.

Costs 0.3 us; nothing worth the name where PyTorch was built without an accelerator."""


def graph_classes() -> tuple[type, ...]:
    """Return the classes of the graphs that accelerators capture, with a ``capture_begin`` each."""
    modules = [getattr(torch, name, None) for name in accelerators()]
    named = [getattr(module, n, None) for module in modules for n in ("CUDAGraph", "XPUGraph")]
    return tuple({kind for kind in named if isinstance(kind, type)})


def current_stream(device: torch.device) -> Any:
    """Return the stream that this thread uses on a device; equal and of equal hash if the same."""
    return torch.get_device_module(device).current_stream(device)


def on(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which a device is the current one of its type."""
    context: AbstractContextManager[Any] = torch.get_device_module(device).device(device)
    return context


def processors(device: torch.device) -> int:
    """Return the number of multiprocessors, 1 where that is not known."""
    if device.type == HOST:
        return 1
    known = torch.get_device_module(device).get_device_properties(device)
    return int(getattr(known, "multi_processor_count", 1))


def product_name(device: torch.device) -> str:
    """Return the product name of a device, its type where its backend has none."""
    named = getattr(torch.get_device_module(device), "get_device_name", None)
    return str(named(device)) if named is not None else device.type


class Link:
    """Way of a value from its device to the host.

    Attributes:
        reads_in_place: Whether values in host memory are read where they lie; tests play a
            device in host memory.
    """

    reads_in_place = True

    def is_host(self, device: torch.device) -> bool:
        """Whether values on a device can be read in place."""
        return self.reads_in_place and device.type == HOST

    def may_ask(self, devices: Sequence[torch.device]) -> bool:
        """Whether events may be asked now: asking one breaks the capture of a graph."""
        # The question is one to the backend, and is not put where no value comes from there.
        return not devices or not is_capturing()

    def landing_place(self, numel: int) -> torch.Tensor:
        """Return pinned float32 memory of ``numel`` elements."""
        return torch.zeros(numel, dtype=torch.float32, device=HOST, pin_memory=True)

    def make_event(self, device: torch.device) -> Event:
        """Return an event of the backend that ``device`` belongs to."""
        event: Event = torch.get_device_module(device).Event()
        return event

    def make_timer(self, device: torch.device) -> Timer:
        """Return an event that also takes the time."""
        timer: Timer = torch.get_device_module(device).Event(enable_timing=True)
        return timer

    def stream(self, device: torch.device) -> Any:
        """Return the stream that the training currently uses on ``device``."""
        return current_stream(device)

    def using(self, device: torch.device, stream: Any) -> AbstractContextManager[Any]:
        """Return a context in which kernels and copies run on ``stream``."""
        context: AbstractContextManager[Any] = torch.get_device_module(device).stream(stream)
        return context
