"""What is asked of devices: the one place that knows what PyTorch's backends can do.

CUDA and ROCm (``cuda``), XPU (``xpu``) and a backend that registers itself with PyTorch
(``PrivateUse1``) each have a module in ``torch`` of the same shape: events, streams, a current
stream for each thread. Nothing here waits for a device, and nothing else in ampwatch asks for a
backend by its name, but where something exists on one alone: kernels in Triton, TF32, the kernels
that torch.profiler records, the facts of NVIDIA's GPUs, whether a region for CUDA was meant.
"""

from __future__ import annotations

import os
import sys
import weakref
from contextlib import nullcontext, suppress
from importlib import import_module
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from ampwatch.guard import Suppress, unbroken
from ampwatch.training.private import DispatchKey, privateuse1_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

resource: Any = None
with suppress(ImportError):  # not on every system
    resource = import_module("resource")

HOST = "cpu"

_BUILT_IN = ("cuda", "xpu")
"""Accelerators that PyTorch itself brings, and that have streams and events."""

PROFILED = ("cuda",)
"""Types of devices, CUDA's and ROCm's, whose kernels are recorded and known by their names."""

_NEEDED = ("Event", "current_stream", "stream")
"""Names in the module of a backend without which no value can be read later."""


class Event(Protocol):
    """The calls of ``torch.cuda.Event`` that are used; none waits."""

    def record(self, stream: Any) -> None:
        """Mark the current position of ``stream``."""

    def query(self) -> bool:
        """Whether everything before the mark has run."""

    def elapsed_time(self, end: Any) -> float:
        """Return the time to ``end``, another event that takes the time; both must have passed. Unit: ms."""


class PinningError(RuntimeError):
    """Host memory could not be pinned."""


def accelerators() -> tuple[str, ...]:
    """Return the types of the accelerators that PyTorch brings, and of one that was registered."""
    name = str(privateuse1_name())
    # Not `hasattr`: what torch lacks it looks for in Python, and this is asked at each call of a model.
    return (*_BUILT_IN, name) if name in vars(torch) else _BUILT_IN


def autocast_types() -> tuple[str, ...]:
    """Return the types of devices for which autocast is followed."""
    return (HOST, *accelerators())


def autocast_key(device_type: str) -> Any:
    """Return the dispatch key under which autocast acts for a type of device."""
    is_own = device_type in (HOST, *_BUILT_IN)
    name = device_type.upper() if is_own else "PrivateUse1"
    return getattr(DispatchKey, f"Autocast{name}")


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


captures: dict[int, weakref.ref[Any]] = {}
"""The graphs that are being captured now, in whichever thread, by identity.

While it is not empty, what a thread gives its accelerator may be captured and not done, and a
question to an event, of any thread, would end the capture. Kept by the taps on ``graph_classes``:
the backends can be asked as well, but of the calling thread's stream only, and a device that has
died raises. While ampwatch makes a call of the user's again (``Replaying``) an entry is there as well,
so that taps and hooks have one thing to look at.
"""

_replays: dict[int, int] = {}
"""The threads of those entries that are replays: what they do is done, and events may be asked."""


def is_ignored() -> bool:
    """Whether what the calling thread does is to go by unseen: it is captured, or made again.

    To be asked where ``captures`` is not empty.
    """
    return len(captures) > len(_replays) or get_ident() in _replays.values()


def is_capturing() -> bool:
    """Whether a graph of an accelerator is being captured. Costs nothing worth the name."""
    return len(captures) > len(_replays)


class Replaying:
    """Has the taps and hooks of all monitors pass on what its thread calls until it ends."""

    def begin(self) -> None:
        """Begin."""
        _replays[id(self)] = get_ident()
        captures[id(self)] = weakref.ref(self)

    def end(self) -> None:
        """End. Idempotent."""
        captures.pop(id(self), None)
        _replays.pop(id(self), None)


def capture_began(graph: object) -> None:
    """Take note of a capture; it is over at the latest when the graph is freed."""
    key = id(graph)
    captures[key] = weakref.ref(graph, lambda _: captures.pop(key, None))


def capture_ended(graph: object) -> None:
    """Take note that a capture is over, or has not begun after all."""
    captures.pop(id(graph), None)


def graph_classes() -> tuple[type, ...]:
    """Return the classes of graphs that accelerators capture, from ``capture_begin`` to ``capture_end``.

    By their names, which end in ``Graph``: a backend from outside has one of its own.
    """
    modules = [getattr(torch, name, None) for name in (*accelerators(), "accelerator")]
    named = [
        value
        for module in modules
        if module is not None
        for name, value in vars(module).items()
        if name.endswith("Graph") and isinstance(value, type)
    ]
    ends = ("capture_begin", "capture_end")
    return tuple(kind for kind in dict.fromkeys(named) if all(hasattr(kind, end) for end in ends))


def current_stream(device: torch.device) -> Any:
    """Return the stream that this thread uses on a device; equal and of equal hash if the same."""
    return torch.get_device_module(device).current_stream(device)


def on(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which a device is the current one of its type; the host always is."""
    if device.type == HOST:
        return nullcontext()
    context: AbstractContextManager[Any] = torch.get_device_module(device).device(device)
    return context


def processors(device: torch.device) -> int:
    """Return the number of multiprocessors, 1 where that is not known."""
    if device.type == HOST:
        return 1
    known = torch.get_device_module(device).get_device_properties(device)
    return int(getattr(known, "multi_processor_count", 1))


class MemoryUse(NamedTuple):
    """Memory that the process has of a device, or of its host.

    Attributes:
        allocated: What is in use now. On a host the resident set. Unit: B.
        peak: The most that was in use so far. Unit: B.
        reserved: What the allocator holds, in use or not; -1 on a host, where nobody says. Unit: B.
        allocations: Live allocations; -1 where they are not counted.
    """

    allocated: int
    peak: int
    reserved: int = -1
    allocations: int = -1


def memory_of(device: torch.device) -> MemoryUse | None:
    """Return what PyTorch's allocator has handed out of an accelerator; ``None`` if nobody counts.

    Counters of the host: nothing waits for the device. Cost: 10 us.
    """
    module = torch.get_device_module(device)
    # One call for all counters. Those with a name of their own flatten it, which takes ten times as long.
    read = getattr(module, "memory_stats_as_nested_dict", None)
    stats = read(device) if read is not None else None
    if stats:
        in_use, count = stats["allocated_bytes"]["all"], stats["allocation"]["all"]["current"]
        reserved = stats["reserved_bytes"]["all"]["current"]
        return MemoryUse(in_use["current"], in_use["peak"], reserved, count)
    named = ("memory_allocated", "max_memory_allocated", "memory_reserved")
    if not all(hasattr(module, name) for name in named):
        return None
    return MemoryUse(*(int(getattr(module, name)(device)) for name in named))


def memory_limit_of(device: torch.device) -> int:
    """Return the memory of an accelerator, 0 where that is not known. Unit: B."""
    known = torch.get_device_module(device).get_device_properties(device)
    return int(getattr(known, "total_memory", 0))


STATM = Path("/proc/self/statm")
"""Sizes of the process in pages, the resident set second. Source: proc(5)."""

CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""What a container may have, of versions 2 and 1. Source: Linux, admin-guide/cgroup-v2 and -v1."""

MAX_CGROUP = 2**60
"""Limit in bytes from which version 1 means that there is none."""


def host_memory() -> MemoryUse | None:
    """Return what the process has of its host; ``None`` where the system does not say.

    Without ``/proc`` the peak stands for what is in use: it grows with it, and never falls.

    Cost: 20 us.
    """
    if resource is None:
        return None
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage(2) of each
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    resident = resident_bytes() or peak
    return MemoryUse(resident, max(peak, resident))


def resident_bytes() -> int:
    """Return the memory of the process; 0 where the system does not show it. Unit: B."""
    with Suppress(OSError, IndexError), STATM.open("rb", buffering=0) as statm:
        return int((statm.read(128) or b"").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def host_memory_limit() -> int:
    """Return what the process may have of its host at most, 0 where that is not known. Unit: B."""
    limits = [text for text in map(_text_of, CGROUP_LIMITS) if text.strip().isdigit()]
    known = [int(text) for text in limits if int(text) < MAX_CGROUP]
    names = getattr(os, "sysconf_names", {})
    if "SC_PHYS_PAGES" in names and "SC_PAGE_SIZE" in names:
        known.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min((limit for limit in known if limit > 0), default=0)


@unbroken
def _text_of(path: Path) -> str:
    # Unbroken: the TimeoutError of a program's time limit is an OSError as well.
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):  # another system, another version, or not to be read
        return ""


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
        return not (devices and is_capturing())

    def landing_place(self, numel: int) -> torch.Tensor:
        """Return pinned float32 memory of ``numel`` elements.

        Raises:
            PinningError: If the backend has none to spare, or pins nothing.
        """
        try:
            return torch.zeros(numel, dtype=torch.float32, device=HOST, pin_memory=True)
        except RuntimeError as error:
            words = str(error).strip().partition("\n")[0]
            msg = f"no memory could be pinned, without which no value reaches the host: {words}"
            raise PinningError(msg) from error

    def make_event(self, device: torch.device) -> Event:
        """Return an event of the backend that ``device`` belongs to."""
        event: Event = torch.get_device_module(device).Event()
        return event

    def make_timer(self, device: torch.device) -> Event:
        """Return an event that also takes the time."""
        timer: Event = torch.get_device_module(device).Event(enable_timing=True)
        return timer

    def stream(self, device: torch.device) -> Any:
        """Return the stream that the training currently uses on ``device``."""
        return current_stream(device)

    def using(self, device: torch.device, stream: Any) -> AbstractContextManager[Any]:
        """Return a context in which kernels and copies run on ``stream``."""
        context: AbstractContextManager[Any] = torch.get_device_module(device).stream(stream)
        return context
