"""pynvml, with every call returning the answer of NVML or the reason why there is none.

The one place that knows return codes, missing symbols and how the library is found.
"""

from __future__ import annotations

import ctypes
import logging
import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampwatch.host.fleet.gpus import Pass, Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Load = Callable[[str], Any]
    """Imports a module by name, as ``importlib.import_module`` does."""

LIBRARY = "libnvidia-ml.so.1"

CONTROL_DEVICE = "dev/nvidiactl"
"""File that is there where the driver is loaded and this container was given a GPU."""

# Return codes of nvml.h, group nvmlReturn_t.
SUCCESS = 0
UNINITIALIZED = 1
TIMEOUT = 10

REASONS = {
    2: Reason.NOT_IN_DRIVER,  # it does not know what it is asked for
    3: Reason.NOT_SUPPORTED,
    4: Reason.NO_PERMISSION,
    6: Reason.NO_DATA,  # nothing at this index
    9: Reason.DRIVER_NOT_LOADED,
    TIMEOUT: Reason.TIMEOUT,
    12: Reason.LIBRARY_NOT_FOUND,
    13: Reason.NOT_IN_DRIVER,
    15: Reason.GPU_LOST,
    16: Reason.RESET_REQUIRED,
    17: Reason.NO_PERMISSION,  # the cgroup of a container keeps the devices from it
    18: Reason.VERSION_MISMATCH,
    21: Reason.NO_DATA,
    22: Reason.NOT_SUPPORTED,  # ECC of a virtual GPU
    24: Reason.NOT_SUPPORTED,  # a clock domain
    25: Reason.NOT_IN_DRIVER,  # the version of a structure
    26: Reason.NOT_IN_DRIVER,  # deprecated, and taken out
    27: Reason.NO_DATA,  # not ready yet
    28: Reason.GPU_LOST,  # not found any more
}

_VALUE_FIELDS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of ``nvmlValue_t`` in the order of ``nvmlValueType_t``."""

logger = logging.getLogger(__name__)


class Nvml:
    """An open NVML.

    Thread-safe. Nothing that NVML reports is raised.

    Args:
        module: The module pynvml, initialised.

    Attributes:
        is_lost: NVML has reported that it is not initialised: it was shut down by somebody
            else in this process, or the driver was taken away.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        self.is_lost = False
        self._reported: set[int] = set()

    def call(self, name: str, *args: Any) -> Any:
        """Call a function of pynvml, by a name with a version where there are several.

        Those without one raise what is no ``NVMLError`` if the driver is older than pynvml.

        Returns:
            What it returns, or the ``Reason`` why it does not.
        """
        function = getattr(self.module, name, None)
        if function is None:
            return Reason.NOT_IN_BINDING
        try:
            return function(*args)
        except self.module.NVMLError as error:
            return self.reason(name, error.value)
        except UnicodeDecodeError:  # a name from a damaged board
            return Reason.ERROR

    def first(self, names: Sequence[str], *args: Any) -> Any:
        """Call the first of several functions that this driver and this pynvml have."""
        answer: Any = Reason.NOT_IN_DRIVER
        for name in names:
            answer = self.call(name, *args)
            if answer is not Reason.NOT_IN_DRIVER and answer is not Reason.NOT_IN_BINDING:
                break
        return answer

    def constant(self, name: str) -> Any:
        """Return a constant of pynvml, ``None`` if this release does not have it."""
        return getattr(self.module, name, None)

    def reason(self, what: str, code: int) -> Reason:
        """Return the reason for a return code; one that has no name here is logged once."""
        if code == UNINITIALIZED:
            self.is_lost = True
        reason = REASONS.get(code, Reason.ERROR)
        if reason is Reason.ERROR and code not in self._reported:
            self._reported.add(code)
            logger.warning("%s: NVML returned %d, %s", what, code, self.module.NVMLError(code))
        return reason

    def fields(self, handle: Any, ids: Sequence[int]) -> list[float | Reason]:
        """Read several fields at once, each with a status of its own."""
        got = self.call("nvmlDeviceGetFieldValues", handle, list(ids))
        if isinstance(got, Reason):
            return [got] * len(ids)
        return [self._field(value) for value in got]

    def _field(self, value: Any) -> float | Reason:
        if value.nvmlReturn != SUCCESS:
            return self.reason(f"field {value.fieldId}", value.nvmlReturn)
        if not 0 <= value.valueType < len(_VALUE_FIELDS):
            return Reason.NOT_IN_BINDING
        return float(getattr(value.value, _VALUE_FIELDS[value.valueType]))

    def close(self) -> None:
        """Let go of NVML; the library stays loaded, and ``open_nvml`` starts afresh."""
        self.call("nvmlShutdown")


def open_nvml(
    load: Load = import_module,
    find: Callable[[str], Any] = ctypes.CDLL,
    root: Path = Path("/"),
) -> Nvml | Pass:
    """Return an initialised NVML, or a pass without GPUs that says why there is none.

    Args:
        load: Imports pynvml.
        find: Loads a shared library, raises OSError where that fails.
        root: Where the devices and the processes are looked up.

    Cost:
        Without the library next to nothing: pynvml, of eight thousand lines, is not even
        imported. With it some 50 ms.
    """
    try:
        find(LIBRARY)
    except OSError as error:
        # Images keep empty copies of the library; that is nothing wrong on a machine without a GPU.
        has_driver = (root / CONTROL_DEVICE).exists()
        reason = Reason.LIBRARY_UNUSABLE if has_driver else Reason.LIBRARY_NOT_FOUND
        return Pass(reason, detail=str(error))
    try:
        module = load("pynvml")
    except ImportError as error:
        return Pass(Reason.BINDING_NOT_FOUND, detail=str(error))
    nvml = Nvml(module)
    answer = nvml.call("nvmlInit")
    if not isinstance(answer, Reason):
        return nvml
    return Pass(answer, detail=_versions(root) if answer is Reason.VERSION_MISMATCH else "")


def _versions(root: Path) -> str:
    """Return which library was loaded and which driver it found; empty where the system hides it."""
    try:
        maps = (root / "proc/self/maps").read_text(errors="replace")
        driver = (root / "proc/driver/nvidia/version").read_text(errors="replace")
    except OSError:
        return ""
    # The name of the file ends in its version: links are resolved in this list.
    library = re.search(r"/\S*/libnvidia-ml\.so\S*", maps)
    loaded = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", driver)
    return f"{library[0]} was loaded, the driver is {loaded[1]}" if library and loaded else ""
