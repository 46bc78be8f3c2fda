"""A C compiler that keeps what it has compiled, for the hundreds of processes that tests have watched.

Each compiles the kernel for tensors of the host, the same one, in a second: ampwatch keeps no library.
"""

from __future__ import annotations

import os
import shlex
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """\
#!/bin/sh
# Compile a source that comes by stdin, or copy what came of the same one with the same options.
case " $* " in *" - "*) ;; *) exec {compiler} "$@" ;; esac
set -e
own=$(mktemp -d {kept}/XXXXXX)
trap 'rm -rf "$own"' EXIT
cat >"$own/source"
# The options but for the output, which is another each time.
left=$#
while [ "$left" -gt 0 ]; do
  if [ "$1" = -o ]; then out=$2; shift 2; left=$((left - 2)); else set -- "$@" "$1"; shift; left=$((left - 1)); fi
done
kept={kept}/$(printf '%s\\n' "$@" | cat - "$own/source" | sha256sum | cut -c -64)
# Others may compile the same meanwhile: what is under its name is whole.
[ -e "$kept" ] || {{ {compiler} "$@" -o "$own/built" <"$own/source" && mv "$own/built" "$kept"; }}
cp "$kept" "$out"
"""


def put_in_front(directory: Path) -> None:
    """Have ``cc`` of this process, and of those that it starts, keep what it compiles in a directory."""
    compiler = shutil.which("cc")
    if compiler is None:
        return
    directory.mkdir(exist_ok=True)
    script = directory / "cc"
    # Another worker may be running it.
    if not script.exists():
        part = directory / f"cc.{os.getpid()}"
        words = {"kept": shlex.quote(str(directory)), "compiler": shlex.quote(compiler)}
        part.write_text(SCRIPT.format(**words))
        part.chmod(0o755)
        part.rename(script)
    os.environ["PATH"] = f"{directory}{os.pathsep}{os.environ['PATH']}"
