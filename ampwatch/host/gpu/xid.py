"""Waits for XID errors, which the driver reports when a GPU, or a program on it, goes wrong."""

from __future__ import annotations

import ctypes
import logging
import threading
from typing import TYPE_CHECKING, Any

from ampwatch.host.fleet.gpus import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ampwatch.host.gpu.nvml import Nvml

    Report = Callable[[str, int], None]
    """Takes the uuid of a GPU and the code of an error."""

XID_EVENTS = 0x8
"""``nvmlEventTypeXidCriticalError``."""

WAIT_MS = 1000
BACK_OFF_SECONDS = (1.0, 30.0)
"""The shortest and the longest wait after an error of the driver. Unit: s."""

STOP_SECONDS = 5.0

logger = logging.getLogger(__name__)


class XidWatcher:
    """Listens for XID errors of all GPUs, in a thread of its own once it is started.

    Args:
        handles: Handles of the GPUs by uuid.
        report: Called for each error.
        pause: Waits for the seconds it is given; returns whether to end. By default until ``stop``.

    Attributes:
        states: Whether each GPU is listened to, by uuid.
    """

    def __init__(
        self,
        nvml: Nvml,
        handles: Mapping[str, Any],
        report: Report,
        pause: Callable[[float], bool] | None = None,
    ) -> None:
        self._nvml = nvml
        self._handles = handles
        self._names = {_address(handle): uuid for uuid, handle in handles.items()}
        self._report = report
        self._stopping = threading.Event()
        self._pause = pause or self._stopping.wait
        self._thread: threading.Thread | None = None
        self._events: Any = None
        self.states = dict.fromkeys(handles, Reason.WAITING)
        self._register()

    def start(self) -> None:
        """Begin to listen."""
        self._thread = threading.Thread(target=self.run, name="ampwatch-xid", daemon=True)
        self._thread.start()

    def stop(self) -> bool:
        """End listening; return whether the thread is gone, so that NVML may be shut down."""
        # NVML must not be shut down under a call that still waits in it.
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)
            if self._thread.is_alive():
                return False
        self._release()
        return True

    def run(self) -> None:
        """Listen until stopped."""
        shortest, longest = BACK_OFF_SECONDS
        back_off = shortest
        while not self._stopping.is_set():
            answer = self._wait()
            if answer is Reason.OK or answer is Reason.TIMEOUT:
                back_off = shortest
                continue
            if self._pause(back_off):
                return
            # Whatever made the wait fail, the set of events may be of no use any more: make it anew.
            back_off = min(2 * back_off, longest)
            self._release()
            self._register()

    def _wait(self) -> Reason:
        """Wait for one event, a second at most; ``OK`` if there was one."""
        if self._events is None:
            return Reason.NOT_SUPPORTED
        # A second at most: nothing else ends the wait when the thread is to end.
        event = self._nvml.call("nvmlEventSetWait_v2", self._events, WAIT_MS)
        if isinstance(event, Reason):
            return event
        uuid = self._names.get(_address(event.device))
        if event.eventType & XID_EVENTS:
            logger.warning("XID %d on %s", event.eventData, uuid or "a GPU that has no name")
            if uuid is not None:
                self._report(uuid, int(event.eventData))
        return Reason.OK

    def _register(self) -> None:
        events = self._nvml.call("nvmlEventSetCreate")
        if isinstance(events, Reason):
            self.states = dict.fromkeys(self._handles, events)
            return
        self._events = events
        self.states = {
            uuid: self._register_one(handle, events) for uuid, handle in self._handles.items()
        }
        # A set without events only times out, which counts as health: nothing would register anew.
        if Reason.OK not in self.states.values():
            self._release()

    def _register_one(self, handle: Any, events: Any) -> Reason:
        types = self._nvml.call("nvmlDeviceGetSupportedEventTypes", handle)
        if isinstance(types, Reason):
            return types
        if not types & XID_EVENTS:
            return Reason.NOT_SUPPORTED
        answer = self._nvml.call("nvmlDeviceRegisterEvents", handle, XID_EVENTS, events)
        return answer if isinstance(answer, Reason) else Reason.OK

    def _release(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            self._nvml.call("nvmlEventSetFree", events)


def _address(handle: Any) -> int | None:
    """Return the address in a handle: pynvml makes a new pointer object each time."""
    return ctypes.cast(handle, ctypes.c_void_p).value
