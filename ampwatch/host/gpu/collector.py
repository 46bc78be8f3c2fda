"""The thread that reads the GPUs: when it reads, when it starts over, when it has fallen silent."""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from ampwatch.host.fleet.fleet import CollectorPass
from ampwatch.host.fleet.gpus import NOTHING_WRONG, Pass, Reason, unseen
from ampwatch.host.gpu.source import NvmlSource, open_source
from ampwatch.host.gpu.synthetic import SyntheticSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.host.fleet import Fleet
    from ampwatch.settings import Settings

NAME = "gpu"
"""Value of the label ``collector``."""

POLL_SECONDS = 5.0
"""Time from one pass to the next: a pass of eight GPUs takes up to 0.1 s. Unit: s."""

ABSENT_SECONDS = 60.0
"""Time after which NVML is searched for again where there was none: a driver may be loaded later.
Unit: s."""

REOPEN_SECONDS = (10.0, 600.0)
"""First and longest wait until NVML is opened anew because a GPU is missing. A GPU that comes
back is not seen otherwise; the others lose a value of GPM each time. Unit: s."""

SILENT_SECONDS = 60.0
"""A pass that takes longer hangs in the driver. Eight GPUs that have to wake up take 20 s. Unit: s."""

STOP_SECONDS = 2.0

Source = NvmlSource | SyntheticSource
"""What reads GPUs, in one thread. ``close`` returns whether a new one may be opened in this process."""

ANSWERS = (Reason.OK, Reason.SWITCHED_OFF)
"""States of NVML in which an open source need not be opened anew; synthetic GPUs have it off."""

logger = logging.getLogger(__name__)


class GpuCollector:
    """Keeps ``fleet.gpus`` up to date.

    Args:
        fleet: Where the readings go, and how each pass went.
        open_source: Opens the GPUs, or returns a pass that says why it cannot.
        poll_seconds: Time between two passes. Unit: s.
        clock: A clock that never goes back. Unit: s.
    """

    def __init__(
        self,
        fleet: Fleet,
        open_source: Callable[[], Source | Pass],
        poll_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._open_source = open_source
        self._poll_seconds = poll_seconds
        self._clock = clock
        self._source: Source | None = None
        self._opens_at: float | None = clock()
        self._reopen_wait = REOPEN_SECONDS[0]
        self._read_at = clock()
        self._logged = ""
        self._gone: dict[str, Reason] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ampwatch-gpu", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._read_at = self._clock()
        self._thread.start()

    def stop(self) -> None:
        """End reading; a thread that hangs in the driver is left behind."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    def update(self) -> None:
        """Read all GPUs once, having opened them if it is time to."""
        begin = self._clock()
        # A source that cannot be closed is read on as it is: NVML must not be shut down under a
        # thread that waits in it.
        if self._opens_at is not None and begin >= self._opens_at and self.close():
            self._opens_at = None
        elif self._source is None:
            self._read_at = begin
            return
        # Without the lock: a driver that hangs must not stall the rings or a scrape.
        found = self._read()
        now = self._clock()
        with self._fleet.lock:
            self._read_at = now
            success = self._fleet.gpus.apply(found)
            self._fleet.passes[NAME] = CollectorPass(success, now - begin)
            gone = {gpu.uuid: gpu.gone for gpu in self._fleet.gpus.all() if not gpu.is_up}
            gone |= unseen(self._fleet.ranks(), self._fleet.gpus)
        self._plan(now, success=success and found.host in ANSWERS)
        self._report(found, gone)

    def check(self) -> None:
        """Take back what was read if the newest pass hangs; called by another thread."""
        with self._fleet.lock:
            # While a pass hangs, the fleet would go on to show the values of the pass before.
            silent = self._clock() - self._read_at
            if silent > max(SILENT_SECONDS, 3 * self._poll_seconds):
                self._fleet.gpus.silence(Reason.TIMEOUT)
                self._fleet.passes[NAME] = CollectorPass(success=False, duration_seconds=silent)

    def close(self) -> bool:
        """Let go of the GPUs; return whether that was possible."""
        if self._source is not None and not self._source.close():
            return False
        self._source = None
        return True

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.update()
            self._stopping.wait(self._poll_seconds)
        self.close()

    def _read(self) -> Pass:
        try:
            if self._source is None:
                opened = self._open_source()
                if isinstance(opened, Pass):
                    return opened
                self._source = opened
            return self._source.read()
        except Exception:
            # A boundary: nothing may end the thread, which nobody would start again. NVML's own
            # errors never come so far; what does is a fault of ours or of pynvml.
            logger.exception("the GPUs could not be read")
            return Pass(Reason.ERROR)

    def _plan(self, now: float, *, success: bool) -> None:
        """Decide when NVML is opened the next time, if at all."""
        if self._source is None:
            self._opens_at = now + ABSENT_SECONDS
        elif success:
            self._opens_at, self._reopen_wait = None, REOPEN_SECONDS[0]
        # Not while a reopening is due: every pass that fails would push it further away.
        elif self._opens_at is None or self._opens_at <= now:
            self._opens_at = now + self._reopen_wait
            self._reopen_wait = min(2 * self._reopen_wait, REOPEN_SECONDS[1])

    def _report(self, found: Pass, gone: dict[str, Reason]) -> None:
        """Log what has changed since the pass before."""
        if found.text != self._logged:
            level = logging.INFO if found.host in NOTHING_WRONG else logging.WARNING
            logger.log(level, "NVML: %s", found.text)
        for uuid, reason in gone.items():
            if self._gone.get(uuid) is not reason:
                logger.warning("%s: %s", uuid, reason.text)
        for uuid in self._gone.keys() - gone.keys():
            logger.info("%s is back", uuid)
        self._logged, self._gone = found.text, gone


def gpu_collector(fleet: Fleet, settings: Settings) -> GpuCollector | None:
    """Return the collector that the settings ask for, ``None`` if they ask for none.

    Its GPUs are those of the machine, or some that do not exist.
    """
    if settings.gpu == "off":
        fleet.gpus.newest = Pass(Reason.SWITCHED_OFF)
        return None

    def count(uuid: str, code: int) -> None:
        with fleet.lock:
            fleet.gpus.xids(uuid).add(code, time.time())

    source = SyntheticSource if settings.gpu == "demo" else open_source
    return GpuCollector(fleet, partial(source, count), POLL_SECONDS)
