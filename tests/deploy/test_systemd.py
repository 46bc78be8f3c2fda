"""The unit of a machine's daemon, read by systemd."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ampwatch.cli import make_parser
from tests.deploy.parts import DEPLOY
from tests.services import require

UNIT = DEPLOY / "systemd" / "ampwatch.service"
DROP_IN = DEPLOY / "systemd" / "ampwatch.service.d" / "tls.conf.example"
PROGRAM = "/opt/ampwatch/bin/ampwatch"

MAX_EXPOSED = 25
"""Tenths of systemd's points; what is left is the one capability, the GPUs and the network."""


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a program that is there, for systemd looks."""
    program = tmp_path / "ampwatch"
    shutil.copy("/bin/true", program)
    file = tmp_path / UNIT.name
    file.write_text(UNIT.read_text(encoding="utf-8").replace(PROGRAM, str(program)))
    return file


def add_drop_in(unit: Path) -> None:
    place = unit.parent / "ampwatch.service.d"
    place.mkdir()
    text = DROP_IN.read_text(encoding="utf-8").replace(PROGRAM, str(unit.parent / "ampwatch"))
    (place / "tls.conf").write_text(text)


def verified(unit: Path) -> subprocess.CompletedProcess[str]:
    command = [require("systemd-analyze"), "verify", "--man=no", str(unit)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


@pytest.mark.services
@pytest.mark.parametrize("with_tls", [False, True])
def test_systemd_finds_nothing_to_say(unit: Path, *, with_tls: bool) -> None:
    """Of every directive it knows the name and takes the value."""
    if with_tls:
        add_drop_in(unit)

    done = verified(unit)

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.services
@pytest.mark.parametrize(("line", "replaced", "status"), [("", "", 0), ("User=ampwatch", "", 1)])
def test_little_is_open_to_the_daemon(unit: Path, line: str, replaced: str, status: int) -> None:
    """By systemd's own measure; as root it would be more."""
    unit.write_text(unit.read_text().replace(line, replaced))
    command = [require("systemd-analyze"), "security", "--offline=yes", "--no-pager"]
    command += [f"--threshold={MAX_EXPOSED}", str(unit)]

    done = subprocess.run(command, check=False, capture_output=True, text=True)

    assert done.returncode == status, done.stdout


@pytest.mark.parametrize("path", [UNIT, DROP_IN], ids=["unit", "drop-in"])
def test_the_daemon_takes_the_arguments(path: Path) -> None:
    """Read by the command line itself."""
    (command,) = re.findall(r"^ExecStart=(.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    program, *words = shlex.split(command)
    args = make_parser().parse_args(words)

    assert program == PROGRAM
    assert args.machine
    assert bool(args.web_config_file) == (path == DROP_IN)


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not on this machine")
def test_the_one_capability_is_the_one_that_the_daemon_asks_for() -> None:
    """Not root, but with what the unit gives, ``--machine`` is granted; without it refused."""
    (given,) = re.findall(r"^AmbientCapabilities=CAP_(\w+)$", UNIT.read_text("utf-8"), re.MULTILINE)
    (bound,) = re.findall(
        r"^CapabilityBoundingSet=CAP_(\w+)$", UNIT.read_text("utf-8"), re.MULTILINE
    )
    code = "from ampwatch.host.daemon.discovery import check_may_tidy_all as f; f()"

    def allowed(capability: str) -> bool:
        only = f"-all,+{capability}" if capability else "-all"
        limits = [f"--{kind}={only}" for kind in ("inh-caps", "ambient-caps", "bounding-set")]
        who = ["setpriv", "--reuid=65533", "--regid=65533", "--clear-groups", *limits]
        done = subprocess.run(
            [*who, sys.executable, "-c", code], check=False, capture_output=True, text=True
        )
        if "setpriv:" in done.stderr:
            pytest.skip("giving rights up needs root, and a machine that lets it")
        return done.returncode == 0

    assert given == bound
    assert allowed(given.lower())
    assert not allowed("")
    assert not allowed("dac_read_search")
