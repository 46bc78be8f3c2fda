"""The real pynvml on a stand-in for the driver's library, compiled from ``nvml_standin.c``."""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ampwatch.host.gpu import gpm
from ampwatch.host.gpu.nvml import LIBRARY, Nvml, open_nvml
from ampwatch.host.gpu.source import NvmlSource

if TYPE_CHECKING:
    from ampwatch.host.fleet.gpus import Pass
    from ampwatch.host.gpu.xid import Report

SOURCE = Path(__file__).with_name("nvml_standin.c")

_times = count(1_700_000_000_000_000_000, 1_000_000_000)


@functools.cache
def directory_of_library(*, old: bool = False) -> Path:
    """Compile the library; return the directory that it is in, for ``LD_LIBRARY_PATH``."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler to make the stand-in for libnvidia-ml.so.1 with")
    directory = tempfile.mkdtemp(prefix="ampwatch-nvml-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    options = ["-DOLD_DRIVER"] if old else []
    output = Path(directory) / LIBRARY
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", *options]
    subprocess.run([*command, "-o", str(output), str(SOURCE), "-lm", "-lpthread"], check=True)
    return Path(directory)


def write(path: Path, settings: dict[str, object]) -> None:
    """Say what the stand-in plays; a change is seen whatever the clock of the file system."""
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    time = next(_times)
    os.utime(path, ns=(time, time))


class Standin:
    """A driver for this process.

    Args:
        file: Where its settings are kept.
        monkeypatch: Puts pynvml back afterwards.
        old: Play a driver that lacks the newer functions.
    """

    def __init__(self, file: Path, monkeypatch: pytest.MonkeyPatch, *, old: bool = False) -> None:
        pynvml = pytest.importorskip("pynvml")
        self._file = file
        self._settings: dict[str, object] = {}
        self.library = ctypes.CDLL(str(directory_of_library(old=old) / LIBRARY))
        self.library.standin_reset()
        monkeypatch.setattr(pynvml, "CDLL", lambda _name: self.library)
        monkeypatch.setattr(pynvml, "nvmlLib", None)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        monkeypatch.setenv("NVML_STANDIN", str(file))
        # What is read here is read at once; the rule itself is tested with a clock.
        monkeypatch.setattr(gpm, "MIN_SECONDS", 0.0)
        self.plays()

    def plays(self, **settings: object) -> None:
        """Change what it plays from now on; ``None`` takes a setting back."""
        merged = self._settings | settings
        self._settings = {key: value for key, value in merged.items() if value is not None}
        write(self._file, self._settings)

    def nvml(self) -> Nvml | Pass:
        return open_nvml(find=lambda _name: None)

    def source(self, report: Report | None = None) -> NvmlSource:
        nvml = self.nvml()
        assert isinstance(nvml, Nvml), nvml
        return NvmlSource(nvml, report)

    @property
    def leftovers(self) -> tuple[int, int, int]:
        """Samples and event sets that were not given back, and whether NVML is open."""
        library = self.library
        return (
            library.standin_open_samples(),
            library.standin_open_sets(),
            library.standin_initialised(),
        )
