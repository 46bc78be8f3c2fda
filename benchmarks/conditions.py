"""The machine that measurements are made on, and what is set so that they can be compared."""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import time
from contextlib import contextmanager
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import ampwatch
from ampwatch.runtime import SHARED_MEMORY
from ampwatch.settings import Settings
from ampwatch.training.launcher import daemon_is_running
from tools.cost.code import ROOT, origin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

QUIET_ENVIRONMENT = {
    # Activations lie at glibc's threshold for mmap and would be page-faulted anew in
    # every step; without these, identical processes differ by up to 20 %.
    "MALLOC_MMAP_THRESHOLD_": "33554432",
    "MALLOC_TRIM_THRESHOLD_": "2000000000",
    "MALLOC_TOP_PAD_": "67108864",
    # Which physical pages a process gets decides which of them share lines of a cache: identical
    # processes differ by 4 to 12 % all their life. Huge pages leave 1 %.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "OMP_NUM_THREADS": "1",
}


def restart_in_quiet_environment() -> None:
    """Start the program again with glibc's tunables, which are read only at the start."""
    if any(os.environ.get(name) != value for name, value in QUIET_ENVIRONMENT.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **QUIET_ENVIRONMENT})


@contextmanager
def own_places() -> Iterator[None]:
    """Give ampwatch rings and a daemon of its own, and wait for that daemon's end."""
    with tempfile.TemporaryDirectory(prefix="ampwatch-benchmark-", dir=SHARED_MEMORY) as place:
        os.environ |= {
            "AMPWATCH_RUNTIME_DIR": f"{place}/runtime",
            "AMPWATCH_RING_DIR": f"{place}/rings",
            "AMPWATCH_PORT": "0",
            "AMPWATCH_GRACE_SECONDS": "0",
        }
        yield
        while daemon_is_running(Settings.resolve()):
            time.sleep(0.1)  # it ends by itself, a second after the last run


class Parts:
    """Parts of a measurement, each kept in a file, so that an interrupted run goes on where it was.

    A file holds for the code and the conditions that it was measured with.

    Args:
        name: Of the measurement.
        conditions: What else a part depends on.

    Attributes:
        code: Where the measured code comes from.
    """

    def __init__(self, name: str, *conditions: object) -> None:
        self.code = origin()
        self._used: list[Path] = []
        words = [name, self.code["digest"][:12], *map(str, conditions)]
        self._place = ROOT / "build" / "bench" / "-".join(words)

    def get(self, part: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return a part as it was kept, or measure it and keep it."""
        file = self._place / f"{part}.json"
        self._used.append(file)
        if not file.exists():
            print(f"==> {part}: measuring ...", flush=True)
            began = time.monotonic()
            write(file, measure())
            print(f"==> {part}: {time.monotonic() - began:.0f} s", flush=True)
        else:
            print(f"==> {part}: kept from before an interruption, in {file}", flush=True)
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return found

    def clear(self) -> None:
        """Forget the parts: all were measured, and are written where they belong."""
        for file in self._used:
            file.unlink(missing_ok=True)


def kept(
    results: list[dict[str, Any]], device: str, packages: Sequence[str] = (), **conditions: Any
) -> dict[str, Any]:
    """Return results together with date, machine, versions and conditions."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": _machine(device),
        "versions": {
            "ampwatch": ampwatch.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            **{name: found for name in packages if (found := version_of(name))},
        },
        "conditions": {"device": device, **conditions},
        "results": results,
    }


def version_of(package: str) -> str:
    """Return the version of a package, empty if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def write(path: Path, results: dict[str, Any]) -> None:
    """Write results as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def read(path: Path) -> list[dict[str, Any]]:
    """Return the results that ``write`` has written, without what is around them."""
    results: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["results"]
    return results


def _machine(device: str) -> dict[str, str]:
    cpus = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    ]
    facts = {"cpu": cpus[0] if cpus else platform.machine(), "cores": str(os.cpu_count())}
    if device == "cuda":
        facts["gpu"] = torch.cuda.get_device_name()
    return facts
