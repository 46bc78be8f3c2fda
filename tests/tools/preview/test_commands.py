"""Tests of what the two commands of the preview say to somebody who has got something wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.prometheus import free_port
from tools.preview.__main__ import main as preview
from tools.preview.panel import data_of
from tools.preview.scene import main as scene

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.nightly


def said(capsys: pytest.CaptureFixture[str]) -> str:
    output = capsys.readouterr()
    assert output.out == ""
    return output.err


def test_a_prometheus_that_does_not_answer_is_reported_with_its_address(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is written."""
    url = f"http://127.0.0.1:{free_port()}"

    assert preview(["--prometheus", url, "--out", f"{tmp_path / 'out'}"]) == 1

    assert f"expected a Prometheus at {url}, got: " in said(capsys)
    assert not (tmp_path / "out").exists()


def test_a_dashboard_that_does_not_exist_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """With the way its name is written."""
    assert preview(["--prometheus", "http://127.0.0.1:1", "--only", "run"]) == 1

    assert "as ampwatch-run, got run" in said(capsys)


def test_a_choice_without_its_dashboard_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """Rather than left out."""
    assert preview(["--prometheus", "http://127.0.0.1:1", "--set", "run=gpt"]) == 1

    assert "expected --set DASHBOARD.VARIABLE=VALUE, got 'run=gpt'" in said(capsys)


def test_a_machine_without_prometheus_shows_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before a training is started."""
    monkeypatch.setenv("PATH", str(tmp_path))

    assert scene([str(tmp_path / "scene")]) == 1

    assert "apt-get install prometheus" in said(capsys)
    assert not (tmp_path / "scene").exists()


def test_a_figure_cannot_end_the_script_that_it_stands_in() -> None:
    """A module or a run may be called anything."""
    assert "</script>" not in data_of('{"name": "</script>"}')
