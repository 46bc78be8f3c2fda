"""The black box in the training process: only where it may, and never in the way."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

import ampwatch
from ampwatch.state.recorder import Recorder
from ampwatch.training.session import Session
from ampwatch.wire.blackbox import files
from ampwatch.wire.blackbox.document import from_json
from ampwatch.wire.records import RunState
from tests.trainings import Run, build

COLLAPSE = "fp16-foreach"


def watched(run: Run, **settings: object) -> ampwatch.Monitor:
    with ampwatch.monitor(run.models, run.scaler, run="box", **settings) as watch:
        run.loop()
    return watch


def reports(directory: Path) -> list[Path]:
    return list(files.paths(directory))


def test_without_serve_nothing_leaves_the_process(own_places: Path) -> None:
    """Not even when something is found: findings only."""
    watch = watched(build(COLLAPSE), serve=False)

    assert watch.findings
    assert not (own_places / "state").exists()


def test_a_directory_that_is_named_gets_the_report_and_the_training_is_the_same(
    own_places: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Bit for bit, with no daemon; a disk that refuses is logged once, and counted in the report."""
    bare = build(COLLAPSE)
    bare.loop()
    (own_places / "full").write_text("in the way")
    with caplog.at_level(logging.WARNING, "ampwatch"):
        for place in ("here", "full"):
            run = build(COLLAPSE)
            watch = watched(run, serve=False, report_dir=str(own_places / place))
            assert run.digest() == bare.digest()

    ((box,),) = map(files.read, reports(own_places / "here"))
    assert box.state is RunState.FINISHED
    assert [f.kind for f in box.findings] == ["scale_collapse"]
    assert "2 reports could not be written to disk" in watch.report()
    assert sum("cannot write the report" in r.message for r in caplog.records) == 1


def test_an_error_of_its_own_switches_it_off_and_nothing_else(
    own_places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding is made anyway."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Recorder, "box", fail)
    watch = watched(build(COLLAPSE), serve=False, report_dir=str(own_places / "here"))

    assert [f.kind for f in watch.findings] == ["scale_collapse"]
    assert "sensor black box failed and was switched off" in watch.report()
    assert json.loads(watch.report(format="json"))["ranks"][0]["findings"]


def test_a_training_that_could_not_be_watched_leaves_none(
    own_places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A set-up error leaves nothing behind."""

    def fail(_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Session, "install", fail)
    run = build(COLLAPSE)
    with pytest.raises(ZeroDivisionError):
        ampwatch.monitor(run.models, run.scaler, serve=False, report_dir=str(own_places / "here"))

    assert not (own_places / "here").exists()


@pytest.mark.parametrize("level", ["off", "deep"])
def test_a_report_can_be_had_as_text_as_json_and_as_a_page(level: str) -> None:
    """Also at level off, from a run that goes on and from one that is closed."""
    run = build(COLLAPSE)
    watch = ampwatch.monitor(run.models, run.scaler, serve=False, run="three", level=level)
    run.loop()
    for _ in range(2):
        (box,) = from_json(watch.report(format="json"), "x")
        assert box.identity.run == "three"
        assert len(box.steps) == (0 if level == "off" else 12)
        assert repr(box.findings) == repr(watch.findings)
        assert watch.report(format="html").startswith("<!doctype html>")
        assert watch.report() == watch.report(format="text")
        watch.close()
    with pytest.raises(ValueError, match="text, json or html, got 'pdf'"):
        watch.report(format="pdf")
