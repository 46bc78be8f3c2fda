"""The command line as a whole, and `ampwatch daemon`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from ampwatch import __version__, cli
from ampwatch.cli import main
from ampwatch.errors import DaemonError
from ampwatch.host.daemon.site import Request, Site
from ampwatch.host.fleet import Fleet
from ampwatch.settings import DEFAULT_PORT, Settings
from tests.host.daemon.parts import ROOT

if TYPE_CHECKING:
    import argparse
    from pathlib import Path


class Verb:
    """A verb that does as it is told."""

    DESCRIPTION = "act"

    def __init__(self, outcome: int | BaseException) -> None:
        self.outcome = outcome

    def add_arguments(self, _: argparse.ArgumentParser) -> None:
        """It has none."""

    def run(self, _: argparse.Namespace) -> int:
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


@pytest.mark.parametrize(
    ("outcome", "status"),
    [(0, 0), (3, 3), (DaemonError("expected a, got b"), 1), (KeyboardInterrupt(), 130)],
)
def test_the_exit_status_says_how_it_went(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    outcome: int | BaseException,
    status: int,
) -> None:
    """An error of ours is one line, without a traceback."""
    monkeypatch.setattr(cli, "VERBS", {"act": "act"})
    monkeypatch.setitem(sys.modules, "ampwatch.cli.act", Verb(outcome))

    assert main(["act"]) == status

    said = capsys.readouterr().err
    assert said == ("ampwatch: expected a, got b\n" if status == 1 else "")


def test_an_error_that_is_not_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug must not look like a wrong argument."""
    monkeypatch.setattr(cli, "VERBS", {"act": "act"})
    monkeypatch.setitem(sys.modules, "ampwatch.cli.act", Verb(ZeroDivisionError()))

    with pytest.raises(ZeroDivisionError):
        main(["act"])


def test_without_a_command_it_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """The first thing to know is that nothing has to be started."""
    assert main([]) == 0

    said = capsys.readouterr().out
    assert "ampwatch.monitor(model, scaler)" in said
    for verb in ("daemon", "demo", "doctor", "ops"):
        assert verb in said


def test_the_version_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """The version is printed as every program prints it."""
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])

    assert exit_.value.code == 0
    assert capsys.readouterr().out == f"ampwatch {__version__}\n"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("dance", "'daemon'"),
        ("reports", "'url'); did you mean 'report'?"),
        ("grafana pushes", "did you mean 'push'?"),
        ("daemon --log-level warnings", "did you mean 'warning'?"),
        ("demo --steps 0", "--steps: expected a whole number of steps >= 1, got '0'"),
        (
            "demo --fault-after-steps 2.5",
            "--fault-after-steps: expected a whole number of steps >= 1, got '2.5'",
        ),
        ("demo --seconds nan", "--seconds: expected a number of seconds > 0, got 'nan'"),
        ("demo --fault-after soon", "--fault-after: expected a number of seconds > 0, got 'soon'"),
        ("demo --healthy --fault-after 3", "not allowed with argument --healthy"),
        ("trace trace.txt", "expected FILE.json or FILE.json.gz, got 'trace.txt'"),
        ("trace --iterations 4 x.json", "invalid choice: 4"),
        ("trace --timeout 0 x.json", "expected a number of seconds > 0, got '0'"),
        ("trace", "OUTPUT"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(
    line: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Words say what was expected and what was given, before anything is done."""
    with pytest.raises(SystemExit) as exit_:
        main(line.split())

    assert exit_.value.code == 2
    assert told in capsys.readouterr().err


def test_the_help_of_the_daemon_lists_all_that_it_serves(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every path but those of the parts of the page."""
    with pytest.raises(SystemExit):
        main(["daemon", "--help"])

    listed = set(
        re.findall(r"(?<!\S)/[\w./]*(?=[\s,])", capsys.readouterr().out.split("options:")[0])
    )
    nowhere = Site(Fleet(Settings())).answer(Request("/nowhere", {}, "", "", ""))
    served = nowhere.body.decode().partition("serves ")[2].rstrip(".\n").split(", ")
    assert listed == {path for path in served if not path.startswith("/static/")}


def test_a_setting_that_is_not_usable_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Words of the error are those of monitor()."""
    assert main(["daemon", "--port", "70000"]) == 1

    said = capsys.readouterr().err
    assert "from 0 to 65535" in said
    assert "Traceback" not in said


def test_the_arguments_of_the_daemon_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options over environment over defaults."""
    served: list[tuple[object, ...]] = []
    monkeypatch.setattr("ampwatch.cli.daemon.serve", lambda *given: served.append(given))
    monkeypatch.setenv("AMPWATCH_PORT", "12345")
    monkeypatch.setenv("AMPWATCH_HOST", "::1")

    arguments = ["--host", "0.0.0.0", "--machine", "--web.config.file", "w", "--auto"]
    arguments += ["--external-url", "https://h/a", "--alertmanager", "http://h:9093"]
    assert main(["daemon", *arguments, "--web.external-address", "h:1", "--lock-fd", "9"]) == 0

    ((settings, options, lock_fd),) = served
    assert isinstance(settings, Settings)
    assert (settings.host, settings.port) == ("0.0.0.0", 12345)
    assert settings.port != DEFAULT_PORT
    assert (options.machine, options.auto, options.web_config_file) == (True, True, "w")
    assert (options.external_address, lock_fd) == ("h:1", 9)
    assert (settings.external_url, settings.grafana_url) == ("https://h/a/", "")
    assert settings.alertmanager_url == "http://h:9093/"


@pytest.mark.parametrize("words", [("explain", "settings"), ("deploy",)], ids=lambda w: w[0])
def test_a_reader_that_has_read_enough_is_no_trouble(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    """It may stop early, as `head` does."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "ampwatch", *words]
    if words == ("deploy",):
        command.append(str(tmp_path))
    with os.fdopen(write, "wb") as closed:
        done = subprocess.run(command, cwd=ROOT, stdout=closed, stderr=subprocess.PIPE, check=False)

    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("words", "loaded"),
    [("['--help']", {"torch", "prometheus_client", "http.server", "msgspec"}), ("None", {"torch"})],
    ids=["help", "all"],
)
def test_the_command_line_does_not_load_what_it_does_not_need(words: str, loaded: set[str]) -> None:
    """`ampwatch --help` is quick, and of no verb is torch needed to say what its arguments are."""
    code = (
        f"import sys; from ampwatch.cli import make_parser; make_parser({words});"
        f"print({loaded!r} & sys.modules.keys())"
    )

    said = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)

    assert said == "set()\n"
