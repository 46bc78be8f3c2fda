"""`ampwatch grafana push`: what it writes, what it leaves alone, what it refuses."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from ampwatch import __version__
from tests.operate.grafana.conftest import PROMETHEUS, Said, small, write
from tests.operate.grafana.standin import TOKEN, Grafana

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Command = Callable[..., Said]

CURRENT = {"selected": False, "text": "ampwatch Prometheus", "value": "ampwatch-prometheus"}


def test_the_first_push_makes_folder_datasource_and_dashboards(
    ampwatch: Command, grafana: Grafana
) -> None:
    """In that order, and each request is what Grafana's documentation asks for."""
    said = ampwatch("push", *PROMETHEUS, "--scrape-interval", "30s", "--org-id", "3")

    assert (said.status, said.err) == (0, "")
    assert said.out.splitlines() == [
        "created       folder ampwatch",
        "created       datasource ampwatch-prometheus: for Prometheus at http://prometheus:9090",
        "created       dashboard ampwatch-overview",
        "created       dashboard ampwatch-run",
    ]
    folder, datasource, overview, run = grafana.writes
    assert [(one.method, one.path) for one in grafana.writes] == [
        ("POST", "/api/folders"),
        ("POST", "/api/datasources"),
        ("POST", "/api/dashboards/db"),
        ("POST", "/api/dashboards/db"),
    ]
    assert folder.body == {"uid": "ampwatch", "title": "ampwatch"}
    assert datasource.body == {
        "uid": "ampwatch-prometheus",
        "name": "ampwatch Prometheus",
        "type": "prometheus",
        "access": "proxy",
        "url": "http://prometheus:9090",
        "jsonData": {"httpMethod": "POST", "timeInterval": "30s"},
    }
    shipped = small("overview")
    shipped["templating"]["list"][0]["current"] = CURRENT
    assert overview.body["dashboard"] == shipped
    assert overview.body["folderUid"] == "ampwatch"
    assert overview.body["overwrite"] is False
    assert re.fullmatch(rf"ampwatch {__version__} sha256:[0-9a-f]{{16}}", overview.body["message"])
    assert run.body["message"] != overview.body["message"]
    for asked in grafana.asked:
        assert asked.headers["Authorization"] == f"Bearer {TOKEN}"
        assert asked.headers["X-Grafana-Org-Id"] == "3"
        assert asked.headers["User-Agent"] == f"ampwatch/{__version__}"


@pytest.mark.parametrize(
    ("version", "keeping"),
    [("10.4.0", "as it came"), ("11.6.2", "rewritten"), ("13.2.0-4711", "rewritten")],
)
def test_the_second_push_writes_nothing(
    ampwatch: Command, grafana: Grafana, version: str, keeping: str
) -> None:
    """Also where Grafana has rewritten what it stored."""
    grafana.version, grafana.rewrites = version, keeping == "rewritten"
    ampwatch("push", *PROMETHEUS)
    grafana.asked.clear()

    said = ampwatch("push", *PROMETHEUS)

    assert (said.status, said.err, grafana.writes) == (0, "", [])
    assert {line.split()[0] for line in said.out.splitlines()} == {"unchanged"}


def test_a_dry_run_says_the_same_and_writes_nothing(ampwatch: Command, grafana: Grafana) -> None:
    """Line by line, in the conditional."""
    dry = ampwatch("push", *PROMETHEUS, "--dry-run")
    assert (dry.status, grafana.writes) == (0, [])

    done = ampwatch("push", *PROMETHEUS)
    assert dry.out.replace("would create", "created     ") == done.out


def test_a_new_release_replaces_what_the_last_one_has_pushed(
    ampwatch: Command, grafana: Grafana, dashboards: Path
) -> None:
    """Without --force, and only where something has changed."""
    grafana.rewrites = True
    ampwatch("push", *PROMETHEUS)
    grafana.asked.clear()
    write(dashboards, small("run", title="ampwatch / Training"))

    said = ampwatch("push")

    assert said.status == 0
    (saved,) = grafana.writes
    assert saved.body["dashboard"]["version"] == 1
    assert grafana.dashboards["ampwatch-run"]["title"] == "ampwatch / Training"
    assert f"updated       dashboard ampwatch-run: from ampwatch {__version__}" in said.out


def test_only_the_named_ones_are_pushed(ampwatch: Command, grafana: Grafana) -> None:
    """With ampwatch- in front or without; a name that is none is answered with those that are."""
    assert ampwatch("push", "run", *PROMETHEUS).status == 0
    assert set(grafana.dashboards) == {"ampwatch-run"}

    said = ampwatch("push", "ampwatch-rum")
    assert said.status == 1
    assert (
        "ampwatch-overview, ampwatch-run, got 'ampwatch-rum'; did you mean ampwatch-run?"
        in said.err
    )


def test_a_dashboard_changed_by_hand_is_not_overwritten(
    ampwatch: Command, grafana: Grafana, dashboards: Path
) -> None:
    """Nothing is written at all; the difference is shown, who saved it and when is told."""
    ampwatch("push", *PROMETHEUS)
    grafana.by_hand("ampwatch-run", title="Mine")
    write(dashboards, small("overview", title="ampwatch / All runs"))
    grafana.asked.clear()

    said = ampwatch("push")

    assert (said.status, grafana.writes) == (1, [])
    assert '-  "title": "Mine"' in said.out
    assert '+  "title": "ampwatch / Run"' in said.out
    assert "nothing was written" in said.err
    assert (
        "dashboard ampwatch-run: it was saved by hand: version 2 by ada on 2026-10-01 12:30"
        in said.err
    )
    assert "--force" in said.err

    assert ampwatch("push", "--force").status == 0
    assert grafana.dashboards["ampwatch-run"]["title"] == "ampwatch / Run"
    assert grafana.writes[-1].body["overwrite"] is True
    assert ampwatch("push").out.count("unchanged") == 4


def test_a_dashboard_of_that_uid_that_no_push_has_saved_is_not_overwritten(
    ampwatch: Command, grafana: Grafana
) -> None:
    """Imported at the page, for one, and whether its history can be read or not."""
    grafana.folders["ampwatch"] = "ampwatch"
    grafana.save(small("run", title="Imported"), "ampwatch", "")

    assert "it was saved by hand: version 1" in ampwatch("push", *PROMETHEUS).err
    grafana.history["ampwatch-run"].clear()
    said = ampwatch("push", *PROMETHEUS)
    assert "it was saved by hand, or its history cannot be read: version 1" in said.err
    assert grafana.writes == []


def test_a_dashboard_in_the_newer_format_is_replaced_only_by_force(
    ampwatch: Command, grafana: Grafana
) -> None:
    """Grafana does not give it out through this API, so there is no difference to show."""
    ampwatch("push", *PROMETHEUS)
    grafana.meta["ampwatch-run"]["format"] = "v2"

    assert "newer format (v2)" in ampwatch("push").err
    assert ampwatch("push", "--force").status == 0


def test_somebody_who_saves_at_the_same_moment_is_not_overwritten(
    ampwatch: Command, grafana: Grafana, dashboards: Path
) -> None:
    """Grafana is told which version was looked at."""
    ampwatch("push", *PROMETHEUS)
    write(dashboards, small("run", title="ampwatch / Training"))
    grafana.before_save = lambda: grafana.by_hand("ampwatch-run", title="Mine")

    said = ampwatch("push")

    assert said.status == 1
    assert "got 412: The dashboard has been changed by someone else" in said.err
    assert "run it again and look at the diff" in said.err
    assert grafana.dashboards["ampwatch-run"]["title"] == "Mine"


@pytest.mark.parametrize(("told", "file"), [("when read", "run.json"), ("when saved", "a file")])
def test_a_dashboard_from_a_file_is_left_to_the_file(
    ampwatch: Command, grafana: Grafana, told: str, file: str
) -> None:
    """Whether Grafana says so when it is read or only when it is saved; --force is no help."""
    grafana.folders["ampwatch"] = "ampwatch"
    grafana.save(small("run", title="Old"), "ampwatch", "")
    if told == "when read":
        grafana.meta["ampwatch-run"].update(provisioned=True, provisionedExternalId="run.json")
    else:
        reply = json.dumps({"message": "Cannot save provisioned dashboard"})
        grafana.replies["/api/dashboards/db"] = (400, "application/json", reply)

    said = ampwatch("push", "run", *PROMETHEUS, "--force")

    assert said.status == 1
    assert f"provisioned from {file}" in said.err
    assert grafana.dashboards["ampwatch-run"]["title"] == "Old"
