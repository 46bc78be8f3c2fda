"""``torch.played``: the played device as PyTorch and its users see it, in the shape of ``torch.cuda``."""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from tests.played import build
from tests.played.machine import DEVICES, Graph, StreamKey, machine
from tests.played.ops import NAME, fallback

_kept: list[Any] = []


class Stream:
    """A stream of a device, the same for the same number."""

    def __init__(self, device: Any = None, *, key: StreamKey | None = None) -> None:
        self.key = key or machine.new_stream(_index(device))
        self.device = torch.device(NAME, self.key[0])
        self.stream_id = self.key[1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def wait_stream(self, other: Stream) -> None:
        """Wait for what was given to the other one so far."""
        machine.block(machine.record(0, other.key), self.key)


class Event:
    """A mark on a stream."""

    def __init__(self, *, enable_timing: bool = False) -> None:
        self._number = 0
        self._is_timing = enable_timing

    def record(self, stream: Stream | None = None) -> None:
        """Mark the position of a stream, the current one if none is given."""
        self._number = machine.record(self._number, (stream or current_stream()).key)

    def query(self) -> bool:
        """Whether the device has got there."""
        return machine.query(self._number)

    def elapsed_time(self, end: Event) -> float:
        """Return some time. Unit: ms."""
        for event in (self, end):
            assert event._is_timing, "expected an event that takes the time"
            assert machine.query(event._number), "expected an event that has passed"
        return 0.01


def _index(device: Any) -> int:
    if device is None:
        return machine.current_device()
    index = device if isinstance(device, int) else torch.device(device).index
    return machine.current_device() if index is None else int(index)


def current_stream(device: Any = None) -> Stream:
    """Return the stream that the calling thread uses on a device."""
    return Stream(key=machine.current_stream(_index(device)))


@contextmanager
def stream(which: Stream) -> Iterator[None]:
    """Use a stream, and its device, in the block."""
    index, number = which.key
    with device(index):
        _, before = machine.current_stream(index)
        machine.library.played_set_stream(index, ctypes.c_int64(number))
        try:
            yield
        finally:
            machine.library.played_set_stream(index, ctypes.c_int64(before))


@contextmanager
def device(which: Any) -> Iterator[None]:
    """Use a device in the block."""
    before = machine.current_device()
    machine.library.played_set_device(_index(which))
    try:
        yield
    finally:
        machine.library.played_set_device(before)


@contextmanager
def graph(captured: Graph, on: Stream | None = None) -> Iterator[None]:
    """Capture the block on a stream of its own, or on a given one, as ``torch.cuda.graph`` does."""
    synchronize()
    with stream(on or Stream()):
        captured.capture_begin()
        try:
            yield
        finally:
            captured.capture_end()


def synchronize(_device: Any = None) -> None:
    """Wait for the devices."""
    machine.wait("synchronize")


def is_current_stream_capturing() -> bool:
    """Whether the current stream is being captured."""
    return machine.current_stream() in machine.captures


def get_device_properties(_device: Any = None) -> Any:
    """Return what is known of a device."""
    return SimpleNamespace(
        name="Played 1", multi_processor_count=4, total_memory=2**30, major=0, minor=0
    )


def get_rng_state(device: Any = None) -> torch.Tensor:
    """Return what the random numbers of a device go on from."""
    return torch.tensor(machine.random_state(_index(device))).view(torch.uint8)


def set_rng_state(state: torch.Tensor, device: Any = None) -> None:
    """Go on with the random numbers of a device from there."""
    seed, draws = state.view(torch.int64).tolist()
    machine.set_random_state(_index(device), (seed, draws))


def _module() -> Any:
    return SimpleNamespace(
        Stream=Stream,
        Event=Event,
        CUDAGraph=Graph,
        stream=stream,
        device=device,
        graph=graph,
        synchronize=synchronize,
        current_stream=current_stream,
        is_current_stream_capturing=is_current_stream_capturing,
        get_device_properties=get_device_properties,
        get_device_name=lambda _device=None: "Played 1",
        is_available=lambda: True,
        is_initialized=lambda: True,
        device_count=lambda: DEVICES,
        current_device=machine.current_device,
        set_device=machine.library.played_set_device,
        get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16],
        manual_seed_all=machine.seed,
        _initialized=True,
        _is_in_bad_fork=lambda: False,
        get_rng_state=get_rng_state,
        set_rng_state=set_rng_state,
        memory_allocated=lambda _device=None: machine.allocated,
        max_memory_allocated=lambda _device=None: machine.peak,
        memory_reserved=lambda _device=None: machine.allocated,
    )


def register() -> None:
    """Make ``played`` a device of PyTorch, in this process for good.

    It has to come before the first backward of the process: autograd starts a thread for each
    device then, and none later.
    """
    if _kept:
        return
    machine.library = library = build.load()
    library.played_stream.restype = library.played_returned.restype = ctypes.c_int64
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _module())
    torch.utils.generate_methods_for_privateuse1_backend()
    callbacks = [
        _callback(ctypes.c_void_p, machine.allocate, ctypes.c_size_t, ctypes.c_int, ctypes.c_int64),
        _callback(ctypes.c_void_p, machine.pin, ctypes.c_size_t),
        _callback(ctypes.c_int, lambda p: machine.pinned(p or 0) is not None, ctypes.c_void_p),
        _callback(
            ctypes.c_int64,
            lambda event, index, number: machine.record(event, (index, number)),
            *(ctypes.c_int64, ctypes.c_int, ctypes.c_int64),
        ),
        _callback(
            None,
            lambda event, index, number: machine.block(event, (index, number)),
            *(ctypes.c_int64, ctypes.c_int, ctypes.c_int64),
        ),
        _callback(ctypes.c_int, machine.query, ctypes.c_int64),
        _callback(
            None,
            lambda _event, _index: machine.wait("an event or a device"),
            *(ctypes.c_int64, ctypes.c_int),
        ),
    ]
    table = (ctypes.c_void_p * len(callbacks))(
        *(ctypes.cast(c, ctypes.c_void_p) for c in callbacks)
    )
    library.played_install(table)
    atexit.register(library.played_uninstall)
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(fallback, "PrivateUse1")
    _kept.extend([callbacks, table, everything])


def _callback(result: Any, function: Any, *arguments: Any) -> Any:
    return ctypes.CFUNCTYPE(result, *arguments)(function)
