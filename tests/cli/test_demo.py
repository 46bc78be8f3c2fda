"""`ampwatch demo`, as a user runs it."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from ampwatch.cli import main, make_parser
from ampwatch.cli.demo import ending, schedule_of
from ampwatch.demo.schedule import DemoSchedule, Limit
from ampwatch.wire.rendezvous.token import read_token
from tests.host.daemon.parts import Place, ask, eventually
from tests.workshop.boxes import box

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A place whose daemon, if the demo has started one, is ended after the test."""
    place = Place(tmp_path)
    yield place
    if (info := place.info()) is not None:
        os.kill(info.pid, signal.SIGTERM)
        eventually(lambda: place.info() is None, "the end of the daemon")


@pytest.mark.nightly
def test_it_breaks_reports_and_the_page_still_shows_it(place: Place) -> None:
    """Exit status 0, the finding in words, and the finished run on the daemon it started."""
    demo = place.command("demo", "--steps", "28", "--fault-after-steps", "4")
    said, complained = demo.communicate(timeout=200)

    assert (demo.returncode, complained) == (0, "")
    info = place.info()
    assert info is not None
    page = f"Page     {info.url}  (in a new browser: `ampwatch url`)\n"
    assert f"{page}Metrics  {info.url}metrics\n" in said
    assert "\nhealthy phase   0% over  step 0  loss " in said
    assert "\nfaulty phase " in said
    ending = said[said.index("\ndemo: ") :]
    assert len(ending.splitlines()) <= 20
    assert ending.startswith("\ndemo: broken, ended at step 27")
    assert "in trouble since step " in ending
    assert "\nwhere     module blocks.2.mlp" in ending
    assert "\nexplains  1 finding: scale_collapse\n" in ending
    assert f"\n  {info.url}  the page, for another 10 min" in ending
    assert "\n  ampwatch explain forward_overflow --run demo " in ending
    assert "\n  watch = ampwatch.monitor(model, scaler)\n" in ending

    def metrics() -> str:
        known = f"Bearer {read_token(place.runtime)}"
        return ask((info.host, info.port), "/metrics", Authorization=known).text

    finished = 'ampwatch_run_state{rank="0",run="demo",state="finished"} 1.0'
    eventually(lambda: finished in metrics(), "the end of the run in the metrics")
    for kind in ("forward_overflow", "scale_collapse"):
        assert f'ampwatch_findings{{kind="{kind}"' in metrics()


@pytest.mark.rotating
def test_ctrl_c_ends_it_with_the_report(place: Place) -> None:
    """Politely: exit status 0, no traceback, and a healthy run has nothing that is wrong."""
    demo = place.command("demo", "--healthy")
    assert demo.stdout is not None
    said = ""
    while "healthy phase   0% over  step 0" not in said:
        line = demo.stdout.readline()
        assert line, f"the demo ended early: {said}{demo.communicate()[1]}"
        said += line

    demo.send_signal(signal.SIGINT)
    rest, complained = demo.communicate(timeout=200)

    assert (demo.returncode, complained) == (0, "")
    assert "Interrupted; here is the report so far." in rest
    # Some CPUs have no instructions for the dtype, which is worth an info.
    assert "\ndemo: finished at step " in rest
    assert "ampwatch explain" not in rest
    assert "WARNING" not in rest
    assert "CRITICAL" not in rest


def test_without_torch_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence and exit status 1."""
    monkeypatch.setitem(sys.modules, "torch", None)

    assert main(["demo"]) == 1

    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert f"{sys.executable} has no torch; install it" in said.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], DemoSchedule(Limit(seconds=120.0), Limit(seconds=60.0))),
        (["--healthy"], DemoSchedule(Limit(seconds=120.0), Limit())),
        (["--seconds", "20"], DemoSchedule(Limit(seconds=20.0), Limit(seconds=10.0))),
        (["--fault-after", "90"], DemoSchedule(Limit(seconds=120.0), Limit(seconds=90.0))),
        (
            ["--steps", "9", "--fault-after-steps", "3"],
            DemoSchedule(Limit(9, 120.0), Limit(steps=3)),
        ),
    ],
)
def test_the_options_set_the_course(arguments: list[str], expected: DemoSchedule) -> None:
    """When it breaks and when it is over."""
    assert schedule_of(make_parser().parse_args(["demo", *arguments])) == expected


@pytest.mark.parametrize(
    ("found", "heading"), [("/bin/ampwatch", ":"), (None, ", after `. venv/bin/activate`:")]
)
def test_the_commands_at_the_end_run_in_the_shell_that_reads_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found: str | None, heading: str
) -> None:
    """`make demo` runs it from an environment that is not active."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.setattr("shutil.which", lambda _: found)

    assert f"\nRead more{heading}\n" in ending(box(), 0.0, url="http://a/")
