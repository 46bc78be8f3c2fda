"""Raw events of a recording, walked once and added up.

``events()`` of the profiler object and ``key_averages()`` make an object of each event and cost
ten times as much. Only methods of events are called that torch 2.6 has already.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct, field

from ampwatch.training.private import DeviceType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

COMPILED = ("Torch-Compiled Region", "CompiledFunction")
"""Beginnings of the names of events for compiled code, whose ops are not recorded one by one."""

NOT_OPS = ("autograd::", "torch::autograd::")
"""Beginnings of the names of events with a namespace that stand for no op."""

# By number: pybind searches its enumerations one by one for a name.
ON_CPU = DeviceType.CPU.value
DEVICES = (DeviceType.CUDA.value, DeviceType.HIP.value)

LAUNCHES = ("LaunchKernel", "LaunchCooperativeKernel")
GRAPH_LAUNCH = "GraphLaunch"
WAITS = ("StreamSynchronize", "DeviceSynchronize", "EventSynchronize")
"""Parts of the names of the calls of CUDA's and HIP's runtime and driver that start kernels, and of those
in which the host waits for them."""

CALLS = ("_runtime", "_driver")
"""Ends of the kinds that Kineto gives to calls of a device's library (``cuda_runtime``)."""

MIN_RECORDED = 0.9
"""Share of the launched kernels that a recording must have."""

MIN_LINKED = 0.5
"""Share of the kernels whose op must be known, where no CUDA graph is replayed."""

Inputs = tuple[str, ...]


class Spent(Struct):
    """Runs of one kernel or op.

    Attributes:
        calls: Number of runs.
        nanoseconds: Time of all; for ops without the time of the ops they call. Unit: ns.
    """

    calls: int = 0
    nanoseconds: int = 0

    def add(self, nanoseconds: int) -> None:
        """Count one more run."""
        self.calls += 1
        self.nanoseconds += nanoseconds


class KernelLaunch(NamedTuple):
    """A kernel as launched by an op; its runs are added up.

    Attributes:
        name: Name of the kernel, demangled.
        op: Innermost op that launched it (``aten::mm``); empty if it is not known.
        inputs: Dtypes of that op's inputs, as the profiler writes them (``c10::Half``).
    """

    name: str
    op: str
    inputs: Inputs


class DeviceWork(Struct):
    """Work of GPUs in a recording.

    Attributes:
        kernels: Kernels, copies and fills.
        runs: Number of their runs.
        linked: Number of runs whose op is known.
        launches: Calls of the runtime that launch a kernel.
        graphs: Calls that launch a graph of kernels, whose ops are not known.
        busy_ns: Time in which at least one kernel ran, on the watched device. Unit: ns.
        waited_ns: Time in which the host waited for a device. Unit: ns.
    """

    kernels: dict[KernelLaunch, Spent] = field(default_factory=dict)
    runs: int = 0
    linked: int = 0
    launches: int = 0
    graphs: int = 0
    busy_ns: int = 0
    waited_ns: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether nothing was lost, as far as the counts show."""
        linked = self.graphs or self.linked >= MIN_LINKED * self.runs
        return bool(self.runs and linked and self.runs >= MIN_RECORDED * self.launches)


def device_work(events: Iterable[Any], device_index: int) -> DeviceWork:
    """Add up the work of GPUs.

    Args:
        events: The raw events.
        device_index: Index of the device whose busy time is taken.
    """
    work = DeviceWork()
    host = _HostSide()
    on_device: list[Any] = []
    for event in events:
        if event.device_type().value in DEVICES:
            # A user's annotation is repeated on the device for as long as its kernels ran; it would
            # count as work.
            if not event.is_user_annotation():
                on_device.append(event)
            continue
        name = event.name()
        if GRAPH_LAUNCH in name:
            work.graphs += 1
        elif "::" not in name and name.endswith(WAITS):
            work.waited_ns += max(event.duration_ns(), 0)
        elif "::" not in name and any(part in name for part in LAUNCHES):
            work.launches += 1
            if event.linked_correlation_id():  # else it is in no op, and might be taken for one
                host.add(event)
        else:
            host.add(event)
    names: dict[int, tuple[str, Inputs]] = {}
    for event in on_device:
        link = event.linked_correlation_id()
        if link not in names:
            op = host.op_of(event)
            names[link] = ("", ()) if op is None else (op.name(), tuple(op.dtypes()))
        work.runs += 1
        work.linked += bool(names[link][0])
        launch = KernelLaunch(event.name(), *names[link])
        work.kernels.setdefault(launch, Spent()).add(max(event.duration_ns(), 0))
    work.busy_ns = _union(
        (event.start_ns(), event.start_ns() + event.duration_ns())
        for event in on_device
        if event.device_index() == device_index
    )
    return work


class _HostSide:
    """Events on the CPU by their numbers: ops, and calls of the device's library.

    PyTorch numbers ops and CUPTI numbers calls, both from one on, so that an op and a call may have
    the same number. What tells them apart is that a call made in an op has a link to that op, and
    an op has none. A call made outside of all ops has no link either: it is known by its kind
    where this PyTorch says kinds, else by when it was made.

    Cost: of most events only the number is asked for; the rest is for those that kernels link to.
    """

    def __init__(self) -> None:
        self._first: dict[int, Any] = {}
        self._all: dict[int, list[Any]] = {}

    def add(self, event: Any) -> None:
        """Take in an op or a call."""
        number = event.correlation_id()
        first = self._first.setdefault(number, event)
        if first is not event:
            self._all.setdefault(number, [first]).append(event)

    def op_of(self, kernel: Any) -> Any:
        """Return the op that launched a kernel, ``None`` if it is not known for certain."""
        link = kernel.linked_correlation_id()
        if not link:  # events without a number, of Kineto itself, have 0
            return None
        ops = [event for event in self._of(link) if not _is_call(event)]
        if len(ops) > 1:
            # A kernel has the number of the call that launched it, and its op went on meanwhile.
            number = kernel.correlation_id()
            calls = [event for event in self._of(number) if event.linked_correlation_id() == link]
            ops = [event for event in ops if any(_encloses(event, call) for call in calls)]
        return ops[0] if len(ops) == 1 else None

    def _of(self, number: int) -> list[Any]:
        if number in self._all:
            return self._all[number]
        return [self._first[number]] if number in self._first else []


def _is_call(event: Any) -> bool:
    return bool(event.linked_correlation_id()) or _kind(event).endswith(CALLS)


def _kind(event: Any) -> str:
    """Return what Kineto calls this sort of event; empty where PyTorch does not say (2.6)."""
    kind = getattr(event, "activity_type", None)
    return "" if kind is None else kind()


def _encloses(event: Any, call: Any) -> bool:
    start: int = event.start_ns()
    is_meanwhile: bool = start <= call.start_ns() <= start + event.duration_ns()
    return is_meanwhile and bool(event.start_thread_id() == call.start_thread_id())


def _union(intervals: Iterable[tuple[int, int]]) -> int:
    """Return the time that is in at least one of the intervals."""
    total = until = 0
    for start, end in sorted(intervals):
        total += max(0, end - max(start, until))
        until = max(until, end)
    return total


class Node:
    """An event on the CPU, and its place among the calls of its thread.

    Attributes:
        event: The raw event.
        name: Name of the event.
        parent: Event that it was called from, ``None`` for the outermost.
        self_ns: Time without that of the events it called. Unit: ns.
    """

    __slots__ = ("end_ns", "event", "name", "parent", "self_ns")

    def __init__(self, event: Any, parent: Node | None, start_ns: int, duration_ns: int) -> None:
        self.event = event
        self.name: str = event.name()
        self.parent = parent
        self.end_ns = start_ns + duration_ns
        self.self_ns = duration_ns

    @property
    def ancestors(self) -> Iterator[Node]:
        """The events that it was called from, the innermost first."""
        node = self.parent
        while node is not None:
            yield node
            node = node.parent


def call_tree(events: Iterable[Any]) -> list[Node]:
    """Return the events on the CPU, each after the one that called it."""
    threads: dict[int, list[tuple[int, int, Any]]] = {}
    for event in events:
        if event.device_type().value == ON_CPU:
            duration = max(event.duration_ns(), 0)
            row = (event.start_ns(), -duration, event)
            threads.setdefault(event.start_thread_id(), []).append(row)
    nodes: list[Node] = []
    for rows in threads.values():
        # By start, the longer one first: it is the caller where both start at once.
        rows.sort(key=itemgetter(0, 1))
        parent: Node | None = None
        for start, minus_duration, event in rows:
            while parent is not None and parent.end_ns <= start:
                parent = parent.parent
            node = Node(event, parent, start, -minus_duration)
            if parent is not None:
                parent.self_ns -= -minus_duration
            if minus_duration:  # an event that takes no time calls nothing
                parent = node
            nodes.append(node)
    return nodes


def cpu_work(nodes: Sequence[Node]) -> dict[tuple[str, Inputs], Spent]:
    """Add up ops, by name and dtypes of inputs; each without the ops it called."""
    ops: dict[tuple[str, Inputs], Spent] = {}
    for node in nodes:
        name = op_name(node.name)
        if name:
            key = (name, tuple(node.event.dtypes()))
            ops.setdefault(key, Spent()).add(max(node.self_ns, 0))
    return ops


def op_name(name: str) -> str:
    """Return the base name of an op, or of compiled code; empty for an event that is neither."""
    if name.startswith(COMPILED):
        return COMPILED[0]
    if name.startswith(NOT_OPS) or " " in name:
        return ""
    namespace, _, base = name.rpartition("::")
    return base if namespace else ""
