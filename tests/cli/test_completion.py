"""`ampwatch completion`: the scripts, run by the shells that are here."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from ampwatch.cli import VERBS, main, make_parser
from ampwatch.cli.completion import SHELLS
from ampwatch.cli.completion_scripts import commands_of, script
from ampwatch.diagnosis.kinds.registry import ROWS

if TYPE_CHECKING:
    from pathlib import Path

BASH = """
source {script}
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _ampwatch
printf '%s\\n' "${{COMPREPLY[@]}}"
"""

ZSH = """
compdef() {{ : }}
_files() {{ print files }}
_describe() {{ (( ${{#${{(P)2}}}} )) && print -rl -- ${{(P)2}} }}
source {script}
words=({words}); CURRENT=$#words; _ampwatch
"""

FISH = "source {script}; complete -C {words}"


@pytest.fixture
def scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A directory with the script of each shell."""
    for shell in SHELLS:
        assert main(["completion", shell]) == 0
        (tmp_path / shell).write_text(capsys.readouterr().out)
    return tmp_path


def complete(scripts: Path, shell: str, *words: str) -> set[str]:
    """Return what a shell offers for the last of ``words``."""
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    quoted = " ".join(f"'{word}'" for word in words)
    if shell == "fish":
        quoted = f"'{' '.join(words)}'"
    code = {"bash": BASH, "zsh": ZSH, "fish": FISH}[shell].format(
        script=scripts / shell, words=quoted
    )
    done = subprocess.run(
        [program, "-c", code], cwd=scripts, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    # zsh and fish say what a word is for after a colon or a tab.
    return {line.partition("\t")[0].partition(":")[0] for line in done.stdout.splitlines()}


@pytest.mark.parametrize("shell", SHELLS)
def test_commands_come_first(scripts: Path, shell: str) -> None:
    """All of them: the script is made from the parsers."""
    assert set(VERBS) <= complete(scripts, shell, "ampwatch", "")


@pytest.mark.parametrize("shell", SHELLS)
def test_commands_of_commands_options_and_their_values(scripts: Path, shell: str) -> None:
    """As far as the parsers know them."""
    assert {"push", "diff", "export"} <= complete(scripts, shell, "ampwatch", "grafana", "")
    assert complete(scripts, shell, "ampwatch", "ops", "--by", "") >= {"op", "module", "dtype"}
    assert {"--run", "--rank", "--by"} <= complete(scripts, shell, "ampwatch", "ops", "--")
    assert "--by" not in complete(scripts, shell, "ampwatch", "url", "--")


@pytest.mark.parametrize("shell", SHELLS)
def test_kinds_alerts_and_guides_are_names_that_can_be_explained(scripts: Path, shell: str) -> None:
    """Which they are is no choice of the parser: a key of a finding may stand there as well."""
    offered = complete(scripts, shell, "ampwatch", "explain", "")

    assert {row.slug for row in ROWS} <= offered
    assert {"AmpwatchSkipStorm", "settings"} <= offered


def test_a_word_that_has_begun_goes_on(scripts: Path) -> None:
    """And nothing else is offered."""
    assert complete(scripts, "bash", "ampwatch", "explain", "forward_o") == {"forward_overflow"}
    assert complete(scripts, "bash", "ampwatch", "tr") == {"trace"}


def test_where_any_value_may_stand_files_are_offered(scripts: Path) -> None:
    """No word of ours is in their way."""
    assert complete(scripts, "bash", "ampwatch", "report", "--html", "") == {""}


def test_every_command_and_option_of_the_parsers_is_there() -> None:
    """But those that --help does not show either."""
    commands = {command.path: command for command in commands_of(make_parser(), {})}

    assert commands["ops"].options["--run"].startswith("name of the run")
    assert commands["ops"].values["--by"] == ("op", "module", "dtype")
    assert commands["demo"].options["--seconds"].endswith("(default: 120)")
    assert "--lock-fd" not in commands["daemon"].options
    assert "--json" not in commands["report"].values
    assert "grafana push" in commands


@pytest.mark.parametrize("shell", SHELLS)
def test_words_of_help_cannot_end_a_string(shell: str, tmp_path: Path) -> None:
    """Quotes, dollars and backquotes in them are text."""
    parser = argparse.ArgumentParser("ampwatch")
    parser.add_subparsers().add_parser("it", help="it's $(touch x)")
    parser.add_argument("--odd", help='it\'s $HOME, `touch x`: "so" \\ 100%%')
    (tmp_path / shell).write_text(script(shell, commands_of(parser, {})))

    assert "--odd" in complete(tmp_path, shell, "ampwatch", "--")
    assert not (tmp_path / "x").exists()
