"""The part of the played device that PyTorch wants in C++, compiled once for each version of both."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

import torch
from torch.utils import cpp_extension

SOURCE = Path(__file__).with_name("backend.cpp")
COMPILER = os.environ.get("CXX", "g++")


def load() -> ctypes.CDLL:
    """Return the library, compiled if need be (10 s), and register the backend with PyTorch."""
    return ctypes.CDLL(str(_compiled()))


def _compiled() -> Path:
    key = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"ampwatch-played-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    # What is loaded from a folder that others write to may be theirs.
    assert folder.stat().st_uid == os.getuid(), f"expected {folder} to be yours"
    library = folder / f"{key}.so"
    if not library.exists():
        # Other workers may compile at the same time: what is in place is always whole.
        own = library.with_suffix(f".{os.getpid()}")
        include = [f"-I{path}" for path in cpp_extension.include_paths()]
        links = [f"-L{path}" for path in cpp_extension.library_paths()]
        subprocess.run(
            [
                *(COMPILER, "-std=c++20", "-O1", "-w", "-fPIC", "-shared", str(SOURCE)),
                *("-o", str(own), *include, *links, "-ltorch_cpu", "-lc10"),
                f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
            ],
            check=True,
        )
        own.rename(library)
    return library
