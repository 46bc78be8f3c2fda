"""The command line in the environment that has grafana-client, and small dashboards."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.host.daemon.parts import ROOT
from tests.operate.grafana.standin import TOKEN, Grafana, serving

PROMETHEUS = ("--prometheus-url", "http://prometheus:9090")


class Said(NamedTuple):
    """Output of a command."""

    status: int
    out: str
    err: str


Command = Callable[..., Said]


@pytest.fixture(scope="module")
def commands() -> Iterator[Command]:
    """``ampwatch``, where grafana-client is; without that, skip or fail."""
    python = os.environ.get("AMPWATCH_GRAFANA_PYTHON") or str(ROOT / ".venv-grafana/bin/python")
    if not Path(python).exists():
        outcome = pytest.fail if os.environ.get("AMPWATCH_REQUIRE_SERVICES") == "1" else pytest.skip
        outcome(f"there is no environment with grafana-client at {python}; `make test` makes it")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GRAFANA_")}
    with subprocess.Popen(
        [python, "-m", "tests.operate.grafana.commands"],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:

        def run(*argv: str, **environment: str) -> Said:
            print(json.dumps([argv, environment]), file=process.stdin, flush=True)
            told = Said(*json.loads(process.stdout.readline()))
            # Of all of them: never a traceback, never the token.
            assert told.status != 99, told.err
            assert TOKEN not in told.out + told.err
            return told

        yield run
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
    variable = {"type": "datasource", "name": "datasource", "query": "prometheus"}
    titles = {"uid": f"ampwatch-{topic}", "title": f"ampwatch / {topic.title()}"}
    panels = [{"id": 1, "title": "Is it well?"}]
    return {**titles, "templating": {"list": [variable]}, "panels": panels, **changes}


def write(directory: Path, dashboard: dict[str, Any]) -> None:
    (directory / f"{dashboard['uid']}.json").write_text(json.dumps(dashboard), encoding="utf-8")


@pytest.fixture
def grafana() -> Grafana:
    return Grafana()


@pytest.fixture
def ampwatch(commands: Command, grafana: Grafana, dashboards: Path) -> Iterator[Command]:
    """``ampwatch grafana`` with the stand-in as its Grafana and small dashboards."""
    with serving(grafana) as url:

        def run(verb: str, *argv: str, **environment: str) -> Said:
            takes = verb != "export" and "--dashboards" not in argv
            ours = ("--dashboards", str(dashboards)) if takes else ()
            access = {"GRAFANA_URL": url, "GRAFANA_TOKEN": TOKEN}
            return commands("grafana", verb, *argv, *ours, **(access | environment))

        yield run
