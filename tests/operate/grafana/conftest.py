"""The command line in the environment that has grafana-client, and a small dashboard."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.host.daemon.parts import ROOT
from tests.operate.grafana.standin import TOKEN, Grafana, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Said(NamedTuple):
    """Output of a command."""

    status: int
    out: str
    err: str


class Commands:
    """Runs ``ampwatch``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(self, *argv: str, **environment: str) -> Said:
        asked = json.dumps({"argv": argv, "environment": environment})
        print(asked, file=self._process.stdin, flush=True)
        told = Said(**json.loads(self._process.stdout.readline()))
        # Of all of them: never a traceback, never the token.
        assert told.status != 99, told.err
        assert TOKEN not in told.out + told.err
        return told


def grafana_python() -> str:
    """Return the Python of the environment with grafana-client; without one, skip or fail."""
    python = os.environ.get("AMPWATCH_GRAFANA_PYTHON") or str(ROOT / ".venv-grafana/bin/python")
    if not Path(python).exists():
        outcome = pytest.fail if os.environ.get("AMPWATCH_REQUIRE_SERVICES") == "1" else pytest.skip
        outcome(f"there is no environment with grafana-client at {python}; `make test` makes it")
    return python


@pytest.fixture(scope="module")
def commands() -> Iterator[Commands]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GRAFANA_")}
    with subprocess.Popen(
        [grafana_python(), "-m", "tests.operate.grafana.commands"],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Commands(process)
        process.stdin.close()


@pytest.fixture
def dashboards(tmp_path: Path) -> Path:
    """A directory with two dashboards, in place of the shipped ones."""
    directory = tmp_path / "dashboards"
    directory.mkdir()
    for topic in ("overview", "run"):
        write(directory, small(topic))
    return directory


def small(topic: str, **changes: Any) -> dict[str, Any]:
    """Return a dashboard with what a push looks at."""
    variable: dict[str, Any] = {"type": "datasource", "name": "datasource", "query": "prometheus"}
    if topic == "run":
        variable["current"] = {}
    return {
        "id": None,
        "uid": f"ampwatch-{topic}",
        "title": f"ampwatch / {topic.title()}",
        "tags": ["ampwatch"],
        "schemaVersion": 39,
        "templating": {"list": [variable]},
        "panels": [{"id": 1, "title": "Is it well?", "fieldConfig": {"decimals": 1.0}}],
        **changes,
    }


def write(directory: Path, dashboard: dict[str, Any]) -> None:
    text = json.dumps(dashboard, indent=2) + "\n"
    (directory / f"{dashboard['uid']}.json").write_text(text, encoding="utf-8")


@pytest.fixture
def grafana() -> Grafana:
    return Grafana()


@pytest.fixture
def ampwatch(
    commands: Commands, grafana: Grafana, dashboards: Path
) -> Iterator[Callable[..., Said]]:
    """``ampwatch grafana`` with the stand-in as its Grafana and small dashboards."""
    with serving(grafana) as url:

        def run(verb: str, *argv: str, **environment: str) -> Said:
            ours = () if "--dashboards" in argv else ("--dashboards", str(dashboards))
            access = {"GRAFANA_URL": url, "GRAFANA_TOKEN": TOKEN}
            return commands("grafana", verb, *argv, *ours, **(access | environment))

        yield run


PROMETHEUS = ("--prometheus-url", "http://prometheus:9090")
