"""`ampwatch completion`: the scripts of argcomplete, run by the shells that are here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ampwatch.cli import VERBS, main
from ampwatch.cli.completion import SHELLS
from ampwatch.diagnosis.kinds.registry import ROWS

BASH = """
eval "$(ampwatch completion bash)"
ask() {
  COMP_LINE="$1"; COMP_POINT=${#COMP_LINE}; COMP_TYPE=9
  _python_argcomplete ampwatch; printf '%s\\n' "${COMPREPLY[@]}"
}
"""

# zsh completes on a terminal only: here its script is asked for what it would offer.
ZSH = """
compdef() { : }
_describe() { print -rl -- ${(P)2} }
eval "$(ampwatch completion zsh)"
ask() { words=(ampwatch) BUFFER="$1" CURSOR=$#1; _python_argcomplete ampwatch }
"""

FISH = """
ampwatch completion fish | source
function ask; complete -C "$argv[1]"; end
"""


def complete(shell: str, *lines: str) -> list[set[str]]:
    """Return what a shell offers for the last word of each line."""
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    code = {"bash": BASH, "zsh": ZSH, "fish": FISH}[shell]
    code += "".join(f'ask "{line}"; echo end\n' for line in lines)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [program, "-c", code],
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    # zsh and fish say what a word is for after a colon or a tab; bash ends a whole word with a blank.
    found = [re.split("[\t: ]", line)[0] for line in done.stdout.splitlines()]
    ends = [place for place, word in enumerate(found) if word == "end"]
    return [set(found[a + 1 : b]) for a, b in zip([-1, *ends], ends, strict=False)]


@pytest.mark.parametrize("shell", SHELLS)
def test_commands_their_options_values_and_names(shell: str) -> None:
    """The names of pages are no choices of a parser: a key of a finding may stand there as well."""
    verbs, values, names, name, options = complete(
        shell,
        "ampwatch ",
        "ampwatch ops --by ",
        "ampwatch explain ",
        "ampwatch explain forward_o",
        "ampwatch daemon --",
    )

    assert set(VERBS) <= verbs
    assert {"op", "module", "dtype"} <= values
    assert {row.slug for row in ROWS} | {"AmpwatchRunFailed", "settings"} <= names
    assert name == {"forward_overflow"}
    assert "--machine" in options
    assert "--lock-fd" not in options  # --help does not show it either


def test_without_argcomplete_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is an extra."""
    monkeypatch.setitem(sys.modules, "argcomplete", None)

    assert main(["completion", "bash"]) == 1
    assert "pip install 'ampwatch[ui]'" in capsys.readouterr().err
