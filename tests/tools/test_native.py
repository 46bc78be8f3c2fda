"""The C part is built once, and where it cannot be the reason is said."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tools import native
from tools.native import BuildError, build, tag


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The sources alone, as they are in a fresh checkout."""
    to = tmp_path / "checkout" / native.PLACE
    to.mkdir(parents=True)
    for source in (native.ROOT / native.PLACE).glob("*.[ch]"):
        shutil.copy(source, to)
    return tmp_path / "checkout"


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that writes down what it is called with, and makes what it is asked for."""
    script, calls = tmp_path / "compiler", tmp_path / "calls"
    script.write_text(f'#!/bin/sh\necho "$@" >>"{calls}"\nfor out; do :; done\n: >"$out"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    return calls


def test_it_is_built_once_and_again_when_a_source_is_newer(checkout: Path, compiler: Path) -> None:
    """For each set of instructions with a name of its own, and all of it linked."""
    module = build(checkout)
    calls = compiler.read_text().splitlines()
    build(checkout)
    assert compiler.read_text().splitlines() == calls

    os.utime(checkout / native.PLACE / "core.c", (2**31, 2**31))
    build(checkout)
    assert len(compiler.read_text().splitlines()) == 2 * len(calls)
    assert module == checkout / native.MODULE
    num_sources = len(list(module.parent.glob("*.c")))
    assert sum(native.KERNELS in call for call in calls) == len(calls) - num_sources
    assert "-shared" in calls[-1]
    assert {path.suffix for path in module.parent.iterdir()} == {".c", ".h", ".so"}


def test_what_is_missing_is_said(
    checkout: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The compiler, the headers, a Python with a limited API; or what the compiler says."""
    with monkeypatch.context() as patch:
        patch.setenv("CC", "")
        patch.setenv("PATH", str(tmp_path / "nowhere"))
        with pytest.raises(BuildError, match="expected a C compiler, got none; install gcc"):
            build(checkout)
    with monkeypatch.context() as patch:
        patch.setattr(native.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
        with pytest.raises(BuildError, match=r"expected Python\.h in .*python3-dev"):
            build(checkout)
    with monkeypatch.context() as patch:
        patch.setattr(native.sysconfig, "get_config_var", lambda _: 1)
        with pytest.raises(BuildError, match="expected a Python with the GIL"):
            build(checkout)
    monkeypatch.setenv("CC", "sh -c 'echo what it says >&2; exit 3' cc")
    with pytest.raises(BuildError, match=r"got status 3:\nwhat it says"):
        build(checkout)
    assert not (checkout / native.MODULE).exists()
    assert not compiler.exists()


@pytest.mark.parametrize(
    ("names", "libc"),
    [
        (b"GLIBC_2.2.5\0GLIBC_2.14\0", "manylinux_2_17"),
        (b"GLIBC_2.14\0GLIBC_2.34\0", "manylinux_2_34"),
        (b"", "linux"),
    ],
)
def test_a_wheel_says_which_glibc_it_needs(names: bytes, libc: str, tmp_path: Path) -> None:
    """The newest version that the module names; nothing of it where it is built for another libc."""
    module = tmp_path / "_core.abi3.so"
    module.write_bytes(b"\x7fELF\0" + names)

    assert tag(module).startswith(f"cp310-abi3-{libc}_")
