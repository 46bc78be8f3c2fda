"""Two devices that work late: their queues, their memory, and what they punish.

Whatever is given to a device waits in the queue of its stream. It runs when the device gets there:
some time after it was given, in the order of its stream, and never because the host reads memory.
The host learns of it by events alone. What a real device answers with garbage, a crash or a
broken capture is raised here, and kept in ``faults``, since a library that swallows exceptions
would hide it.
"""

from __future__ import annotations

import ctypes
import gc
import queue
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch

import ampwatch

DEVICES = 2

LAG = 400
"""Entries that a device is behind the host while that goes on."""

PER_QUESTION = 4
"""Entries that a device gets done between two questions of the host whether it is done."""

GRAIN = 512
"""Allocations are multiples of as many bytes."""

POISON = 0xFF
"""Byte of memory that holds nothing: NaN in every format."""

PASSED_THROUGH = ("ops/mode.py", "hooks/taps.py")
"""Ends of the names of files of ampwatch from which what the user has called is called."""

OURS = str(ampwatch.__path__[0])

StreamKey = tuple[int, int]
"""Device and number of a stream."""


class PlayedError(RuntimeError):
    """The host did what a real device punishes."""


@dataclass(frozen=True)
class Wait:
    """A synchronisation: the host waited for the device.

    Attributes:
        name: Name of what waited.
        is_ours: Whether ampwatch waited.
        where: Innermost lines of Python.
    """

    name: str
    is_ours: bool
    where: str


@dataclass
class Block:
    """A stretch of device memory, from its allocation until it is given back."""

    address: int
    nbytes: int
    stream: StreamKey
    is_of_graph: bool = False


@dataclass
class Entry:
    """Something that a stream does in its turn.

    Attributes:
        name: What it is, for faults.
        run: Does it.
        blocks: Memory that it uses.
        waits_for: An event and its version that have to pass first.
    """

    name: str
    run: Callable[[], Any] = lambda: None
    blocks: tuple[Block, ...] = ()
    waits_for: tuple[int, int] | None = None


@dataclass
class Graph:
    """What was captured of a stream, and can be replayed.

    Attributes:
        entries: The work.
        stream: Stream that is captured.
        nodes: Names of the work, in order.
    """

    stream: StreamKey = (0, 0)
    entries: list[Entry] = field(default_factory=list)

    @property
    def nodes(self) -> list[str]:
        """The names of what was captured."""
        return [entry.name for entry in self.entries]

    def capture_begin(self) -> None:
        """Capture the current stream from now on."""
        self.stream = machine.current_stream()
        machine.captures[self.stream] = self

    def capture_end(self) -> None:
        """Let the stream run again, and those that have joined it."""
        for stream, graph in list(machine.captures.items()):
            if graph is self:
                del machine.captures[stream]

    def replay(self) -> None:
        """Do once more what was captured."""
        for entry in self.entries:
            machine.put(entry)


class Machine:
    """The devices and the host's side of them.

    Attributes:
        faults: What was punished so far, in words.
        waits: Synchronisations so far.
        is_error_to_wait: Whether a synchronisation raises, as with ``set_sync_debug_mode``.
        is_hanging: Whether the devices do nothing any more.
        pinned_by: For each time that new memory was pinned, the lines that asked for it.
        compiled: Variants of kernels that were compiled so far, which takes seconds each.
        refuses: Says of an allocation of so many bytes whether there is no memory for it.
        captures: Graphs that are being captured, by stream.
        lag: Entries that a device may be behind.
    """

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.waits: list[Wait] = []
        self.is_error_to_wait = False
        self.is_hanging = False
        self.pinned_by: list[str] = []
        self.compiled: list[str] = []
        self._variants: set[str] = set()
        self._free_pinned: dict[int, list[Any]] = {}
        self._copying: dict[int, int] = {}
        self._arriving: dict[int, int] = {}
        self._random = [(0, 0)] * DEVICES
        self._unpinned: dict[int, tuple[Any, int]] = {}
        self.refuses: Callable[[int], bool] = lambda _nbytes: False
        self.captures: dict[StreamKey, Graph] = {}
        self.lag = LAG
        self.library: Any = None
        self.allocated = 0
        self.peak = 0
        self._streams: dict[StreamKey, deque[Entry]] = {}
        self._blocks: dict[int, Block] = {}
        self._live: dict[int, Block] = {}
        self._free: dict[tuple[StreamKey, int], list[int]] = {}
        self._memory: dict[int, Any] = {}
        self._pinned: dict[int, tuple[Any, int]] = {}
        self._next_event = 1
        self._next_stream = 1
        self._recorded: dict[int, int] = {}
        self._captured_events: dict[int, Graph | None] = {}
        self._passed: dict[int, int] = {}
        self._turn = threading.Lock()
        self._worker = Worker()

    # Devices and streams of the calling thread.

    def current_device(self) -> int:
        """Return the device of the calling thread."""
        return int(self.library.played_device())

    def current_stream(self, device: int = -1) -> StreamKey:
        """Return the stream of the calling thread on a device, the current one if not said."""
        index = self.current_device() if device < 0 else device
        return index, int(self.library.played_stream(index))

    def new_stream(self, device: int) -> StreamKey:
        """Return a stream that nobody has used."""
        self._next_stream += 1
        return device, self._next_stream

    # Work.

    def put(self, entry: Entry, stream: StreamKey | None = None) -> None:
        """Give a stream something to do; the device gets on a little."""
        key = stream or self.current_stream()
        self._take_back()
        self._give(entry, key)

    def _give(self, entry: Entry, key: StreamKey) -> None:
        graph = self.captures.get(key)
        if graph is not None:
            graph.entries.append(entry)
        else:
            self._queue(entry, key)

    def _queue(self, entry: Entry, key: StreamKey) -> None:
        self._streams.setdefault(key, deque()).append(entry)
        if self._behind > self.lag:
            self._work(until=3 * self.lag // 4)

    @property
    def _behind(self) -> int:
        return sum(map(len, self._streams.values()))

    def _work(self, until: int) -> None:
        """Have the devices work until they are this many entries behind."""
        # Whoever finds the turn taken leaves: the device is at work already.
        if self.is_hanging or not self._turn.acquire(blocking=False):
            return
        try:
            self._worker.run(lambda: self._run(until))
        finally:
            self._turn.release()

    def _run(self, until: int) -> None:
        while self._behind > until and self._step():
            pass

    def _step(self) -> bool:
        """Run the next entry of a stream that is not blocked; return whether there was one."""
        # The newest stream first: what does not wait for another one runs too early, and shows.
        for key in sorted(self._streams, key=lambda key: -key[1]):
            entries = self._streams[key]
            if entries and self._may_run(entries[0]):
                self._execute(entries.popleft(), key)
                return True
        return False

    def _may_run(self, entry: Entry) -> bool:
        if entry.waits_for is None:
            return True
        event, version = entry.waits_for
        return self._passed.get(event, 0) >= version

    def _execute(self, entry: Entry, key: StreamKey) -> None:
        for block in entry.blocks:
            if self._live.get(block.address) is not block:
                self.faults.append(
                    f"{entry.name} on stream {key} used {block.nbytes} bytes that had been given back,"
                    " or were not its own yet"
                )
        try:
            entry.run()
        except Exception:  # noqa: BLE001 - a device raises nothing, and goes on
            self.faults.append(f"{entry.name} failed on the device: {traceback.format_exc()}")

    # Events.

    def record(self, event: int, stream: StreamKey) -> int:
        """Mark the position of a stream by an event, a new one if 0; return its number."""
        if event == 0:
            event, self._next_event = self._next_event, self._next_event + 1
        if stream in self.captures and is_ours():
            self.punish("an event was recorded in a capture")
        version = self._recorded[event] = self._recorded.get(event, 0) + 1
        self._captured_events[event] = self.captures.get(stream)

        def passed() -> None:
            self._passed[event] = version

        self.put(Entry("event", passed), stream)
        return event

    def block(self, event: int, stream: StreamKey) -> None:
        """Have a stream wait for the newest mark of an event."""
        graph = self._captured_events.get(event)
        if graph is not None:
            self.captures[stream] = graph  # it joins the capture, and is captured from here on
        else:
            self.put(Entry("wait", waits_for=(event, self._recorded.get(event, 0))), stream)

    def query(self, event: int) -> bool:
        """Return whether an event has passed; time goes on a little."""
        if self.captures:
            self.punish("an event was asked in a capture")
        self._work(until=max(self._behind - PER_QUESTION, 0))
        return self._passed.get(event, 0) >= self._recorded.get(event, 0)

    def wait(self, name: str) -> None:
        """Have the host wait for everything, which is an error if so set."""
        self.waits.append(Wait(name, is_ours(), "".join(traceback.format_stack(limit=12))))
        if self.captures:
            self.punish(f"{name} waited in a capture")
        if self.is_error_to_wait:
            self.punish(f"{name} waited for the device")
        if self.is_hanging:
            self.punish(f"{name} would have waited for ever for a device that hangs")
        self.finish()

    def finish(self) -> None:
        """Have the devices do all that they were given."""
        with self._turn:
            self._worker.run(lambda: self._run(until=0))
        left = [entry.name for entries in self._streams.values() for entry in entries]
        if left:
            self.punish(f"streams wait for what never comes: {left[:5]}")

    # Memory.

    def allocate(self, nbytes: int, device: int, stream: int) -> int:
        """Return the address of device memory, 0 if there is none."""
        key = (device, stream)
        self._take_back()
        if is_ours() and key in self.captures:
            self.faults.append(f"{nbytes} bytes were allocated in a capture\n{_where()}")
        if self.refuses(nbytes):
            return 0
        size = -(-nbytes // GRAIN) * GRAIN
        held = self._free.get((key, size))
        address = held.pop() if held else self._memory_of(size)
        block = Block(address, size, key, is_of_graph=key in self.captures)
        self._blocks[address] = block
        self.allocated += size
        self.peak = max(self.peak, self.allocated)
        if block.is_of_graph:
            self._live[address] = block
        else:
            self.put(Entry("allocation", lambda: self._live.update({address: block})), key)
        return address

    def _memory_of(self, nbytes: int) -> int:
        memory = (ctypes.c_uint8 * (nbytes + GRAIN))()
        address = -(-ctypes.addressof(memory) // GRAIN) * GRAIN
        self._memory[address] = memory
        return address

    def _take_back(self) -> None:
        """Take back the memory that was given back since the last time."""
        while address := int(self.library.played_returned()):
            if address in self._pinned:
                self._release_pinned(address)
            else:
                self._release(address)

    def _release_pinned(self, address: int) -> None:
        memory, size = self._pinned.pop(address)
        # Others get it when the copies that were asked for before have been made.
        if self._copying.get(address):
            self._unpinned[address] = (memory, size)
        else:
            self._free_pinned.setdefault(size, []).append(memory)

    def copying(self, memory: Any, count: int) -> None:
        """Count a copy from or to pinned memory that was asked for (1) or has been made (-1)."""
        address = ctypes.addressof(memory)
        self._copying[address] = self._copying.get(address, 0) + count
        if not self._copying[address] and address in self._unpinned:
            held, size = self._unpinned.pop(address)
            self._free_pinned.setdefault(size, []).append(held)

    def arriving(self, memory: Any, count: int) -> None:
        """Count a copy to pinned memory that was asked for (1) or has been made (-1)."""
        address = ctypes.addressof(memory)
        self._arriving[address] = self._arriving.get(address, 0) + count

    def is_arriving(self, memory: Any) -> bool:
        """Return whether a copy to pinned memory was asked for and has not been made."""
        return self._arriving.get(ctypes.addressof(memory), 0) > 0

    def _release(self, address: int) -> None:
        # Others get it at once, in the order of its stream.
        block = self._blocks.get(address)
        if block is None or block.is_of_graph:
            return
        self.allocated -= block.nbytes

        def give_away() -> None:
            if self._live.get(address) is block:
                del self._live[address]
            ctypes.memset(address, POISON, block.nbytes)

        # Not part of a graph that is captured: what is freed meanwhile is freed now.
        self._queue(Entry("release", give_away), block.stream)
        self._free.setdefault((block.stream, block.nbytes), []).append(address)

    def block_of(self, address: int) -> Block:
        """Return the block that an address lies in, as the host knows it."""
        for begin in range(address // GRAIN * GRAIN, 0, -GRAIN):
            block = self._blocks.get(begin)
            if block is not None:
                assert address < begin + block.nbytes, "an address of nobody's"
                return block
        msg = f"expected an address of the device, got {address:#x}"
        raise AssertionError(msg)

    def pin(self, nbytes: int) -> int:
        """Return the address of pinned host memory, 0 in a capture."""
        if self.captures:
            self.faults.append(f"{nbytes} bytes were pinned in a capture\n{_where()}")
            return 0
        self._take_back()
        # As PyTorch does: rounded up to a power of two, and kept when it is given back.
        size = 1 << (nbytes - 1).bit_length()
        held = self._free_pinned.get(size)
        if held:
            memory = held.pop()
        else:
            self.pinned_by.append(_where())
            memory = (ctypes.c_uint8 * size)()
        address = ctypes.addressof(memory)
        self._pinned[address] = (memory, size)
        return address

    def pinned(self, address: int) -> Any:
        """Return the pinned memory that an address lies in, ``None`` if it is pageable."""
        for begin, (memory, nbytes) in self._pinned.items():
            if begin <= address < begin + nbytes:
                return memory
        return None

    # Random numbers: drawn when the work is given, whenever it is done.

    def seed(self, seed: int) -> None:
        """Begin the numbers of all devices anew."""
        self._random = [(seed, 0)] * DEVICES

    def random_state(self, device: int) -> tuple[int, int]:
        """Return the seed of a device, and the draws since."""
        return self._random[device]

    def set_random_state(self, device: int, state: tuple[int, int]) -> None:
        """Go on with the numbers of a device from there."""
        self._random[device] = state

    def draw(self, device: int) -> Drawn:
        """Return the numbers that a device draws next."""
        seed, draws = self._random[device]
        self._random[device] = (seed, draws + 1)
        return Drawn(seed * 1_000_003 + draws)

    # Faults.

    def punish(self, what: str) -> None:
        """Raise, and keep it.

        Raises:
            PlayedError: Always.
        """
        self.faults.append(f"{what}\n{_where()}")
        raise PlayedError(what)

    def compile(self, variant: str) -> None:
        """Compile a variant of a kernel, unless it is compiled already."""
        if variant not in self._variants:
            self._variants.add(variant)
            self.compiled.append(variant)

    def start_peak(self) -> int:
        """Measure the peak of device memory from now on; return what is allocated now."""
        self._take_back()
        self.peak = self.allocated
        return self.allocated

    def abandon(self) -> None:
        """Forget what was not done, and what was punished: a test that was to fail has failed."""
        self.captures.clear()
        self._streams.clear()
        self.reset()

    def reset(self) -> None:
        """Begin a new test: nothing is running, nothing was wrong."""
        self.is_hanging = self.is_error_to_wait = False
        self.refuses = lambda _nbytes: False
        self.captures.clear()
        self.lag = LAG
        gc.collect()
        self._take_back()
        self.finish()
        self._arriving.clear()
        self._free_pinned.clear()  # else the next test would find pinned what it has to pin
        self._variants.clear()
        self.faults.clear()
        self.waits.clear()
        self.peak = self.allocated


class Drawn:
    """Numbers of a device, in a block; those of the host go on after it as if nothing had been.

    Args:
        seed: Which numbers.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed % 2**63
        self._host = torch.empty(0)

    def __enter__(self) -> None:
        self._host = torch.default_generator.get_state()
        torch.default_generator.manual_seed(self._seed)

    def __exit__(self, *_: object) -> None:
        torch.default_generator.set_state(self._host)


class Worker:
    """A thread in which the devices compute: no mode, no autocast and no gradients of the host's."""

    def __init__(self) -> None:
        self._given: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, what: Callable[[], None]) -> None:
        """Run it there and come back when it is done."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="played device", daemon=True)
            self._thread.start()
        self._given.put(what)
        self._done.get()

    def _loop(self) -> None:
        while True:
            self._given.get()()
            self._done.put(None)


def is_ours() -> bool:
    """Whether ampwatch asks, and not the user's op that it lets through."""
    for frame in _frames():
        name = frame.f_code.co_filename
        if name.startswith(OURS):
            return not name.endswith(PASSED_THROUGH)
        if "/torch/" not in name and not name.startswith(str(__file__).rpartition("/")[0]):
            return False
    return False


def _frames() -> Iterable[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _where() -> str:
    return "".join(traceback.format_stack(limit=14))


def blocks_of(addresses: Sequence[int]) -> tuple[Block, ...]:
    """Return the blocks of device memory that addresses lie in."""
    return tuple({id(b): b for b in (machine.block_of(a) for a in addresses)}.values())


machine = Machine()
