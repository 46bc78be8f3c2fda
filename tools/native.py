"""Builds the extension module of `ampwatch/training/native`: a hook of hatchling, and a program.

A wheel gets it, and says so by its tag: one for every Python from 3.10 on (abi3), for one kind of processor. In a
checkout it is put beside its sources, by ``pip install -e`` or by ``python -m tools.native``, unless it is newer than
they are. Where there is no C compiler, or no header of Python, there is no module, and ampwatch works without.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parents[1]
PLACE = Path("ampwatch", "training", "native")
MODULE = PLACE / "_core.abi3.so"

KERNELS = "histogram.c"

FLAGS = ("-std=c11", "-O3", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unused-parameter")  # fmt: skip
SSE4 = ("-msse4.2", "-mpopcnt")
AVX2 = (*SSE4, "-mavx2", "-mbmi", "-mbmi2", "-mfma")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512cd", "-mavx512dq", "-mavx512vl")
LEVELS = {"x86_64": {"avx512": AVX512, "avx2": AVX2, "sse4": SSE4}}
"""What ``KERNELS`` is compiled for, by the machine. `core.c` chooses, when it is loaded."""

OLDEST_GLIBC = 17
"""Of 2.17, the oldest that wheels are made for (PEP 599)."""


class BuildError(Exception):
    """The module cannot be built here."""


def build(root: Path) -> Path:
    """Build the module in ``root`` unless it is newer than all it is made of, and return its path.

    Raises:
        BuildError: If it cannot be built here, with what is missing.
    """
    module = root / MODULE
    sources = sorted((root / PLACE).glob("*.[ch]"))
    newest = max(path.stat().st_mtime for path in [*sources, Path(__file__)])
    if module.exists() and module.stat().st_mtime >= newest:
        return module
    compiler = _compiler()
    headers = Path(sysconfig.get_paths()["include"])
    if not sys.platform.startswith("linux"):
        msg = f"expected Linux, got {sys.platform}"
        raise BuildError(msg)
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        msg = "expected a Python with the GIL, which has a limited API; this one has none"
        raise BuildError(msg)
    if not (headers / "Python.h").exists():
        msg = f"expected Python.h in {headers}, got none; install the headers of this Python (Debian: python3-dev)"
        raise BuildError(msg)
    with tempfile.TemporaryDirectory(prefix="ampwatch-") as scratch:
        made = Path(scratch, MODULE.name)
        _compile(compiler, root / PLACE, headers, made)
        # Atomic: another process may be loading the one that is there.
        part = module.with_suffix(f".{os.getpid()}")
        shutil.copy(made, part)
        part.replace(module)
    return module


def _compiler() -> list[str]:
    named = shlex.split(os.environ.get("CC", ""))
    for command in (named, ["cc"], ["gcc"], ["clang"]):
        if command and shutil.which(command[0]):
            return command
    msg = "expected a C compiler, got none; install gcc or clang, or name one in CC"
    raise BuildError(msg)


def _compile(compiler: list[str], sources: Path, headers: Path, made: Path) -> None:
    scratch = made.parent
    objects = []
    for source in sorted({*sources.glob("*.c")} - {sources / KERNELS}):
        objects.append(str(scratch / f"{source.stem}.o"))
        _run(*compiler, *FLAGS, f"-I{headers}", "-c", source.name, "-o", objects[-1], at=sources)
    for level, flags in LEVELS.get(platform.machine(), {"any": ()}).items():
        objects.append(str(scratch / f"{level}.o"))
        options = (*FLAGS, *flags, f"-DKERNELS=kernels_{level}")
        _run(*compiler, *options, "-c", KERNELS, "-o", objects[-1], at=sources)
    _run(*compiler, "-shared", "-s", *objects, "-o", str(made), at=sources)


def _run(*command: str, at: Path) -> None:
    done = subprocess.run(  # noqa: S603 - the compiler, on our own sources
        command, cwd=at, capture_output=True, text=True, check=False
    )
    if done.returncode:
        msg = f"expected {shlex.join(command)} to succeed, got status {done.returncode}:\n{done.stderr}"
        raise BuildError(msg)


def tag(module: Path) -> str:
    """Return the tag of a wheel with this module: by the newest version of glibc that it names."""
    machine = platform.machine()
    named = [int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", module.read_bytes())]
    libc = f"manylinux_2_{max([OLDEST_GLIBC, *named])}" if named else "linux"
    return f"cp310-abi3-{libc}_{machine}"


class NativeHook(BuildHookInterface[Any]):
    """Puts the module into a wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build it; a wheel without it is one for every machine."""
        root = Path(self.root)
        try:
            module = build(root)
        except BuildError as error:
            self.app.display_warning(f"ampwatch is built without its C part: {error}")
            return
        if version == "standard":
            build_data["pure_python"] = False
            build_data["tag"] = tag(module)
            build_data["artifacts"].append(str(MODULE))


def main() -> int:
    """Build it in this checkout; return the exit status."""
    try:
        build(ROOT)
    except BuildError as error:
        print(f"==> ampwatch works without its C part, measuring with PyTorch: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
