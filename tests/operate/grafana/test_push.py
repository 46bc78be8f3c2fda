"""`ampwatch grafana push`: what it writes, what it leaves alone, what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ampwatch import __version__
from tests.operate.grafana.conftest import PROMETHEUS, Command, small, write
from tests.operate.grafana.standin import TOKEN, Grafana

MIMIR = {"uid": "P8E8", "name": "Mimir", "type": "prometheus"}


def test_the_first_push_makes_what_a_dry_run_names(ampwatch: Command, grafana: Grafana) -> None:
    """In that order; each request is what Grafana's documentation asks for."""
    options = (*PROMETHEUS, "--scrape-interval", "30s", "--org-id", "3")
    dry = ampwatch("push", *options, "--dry-run")
    assert (dry.status, dry.err, grafana.writes) == (0, "", [])

    said = ampwatch("push", *options)

    assert (said.status, said.err) == (0, "")
    assert dry.out.replace("would create", "created     ") == said.out
    assert said.out.splitlines() == [
        "created       folder ampwatch",
        "created       datasource ampwatch-prometheus: for Prometheus at http://prometheus:9090",
        "created       dashboard ampwatch-overview",
        "created       dashboard ampwatch-run",
    ]
    folder, datasource, overview, run = grafana.writes
    assert (folder.path, datasource.path) == ("/api/folders", "/api/datasources")
    assert folder.body == {"uid": "ampwatch", "title": "ampwatch"}
    uid, name, url = "ampwatch-prometheus", "ampwatch Prometheus", "http://prometheus:9090"
    known = {"uid": uid, "name": name, "type": "prometheus", "access": "proxy", "url": url}
    assert datasource.body == {**known, "jsonData": {"httpMethod": "POST", "timeInterval": "30s"}}
    current = {"selected": False, "text": name, "value": uid}
    shipped = small("overview", id=None)
    shipped["templating"]["list"][0]["current"] = current
    message = overview.body.pop("message")
    assert overview.body == {"dashboard": shipped, "folderUid": "ampwatch", "overwrite": False}
    assert re.fullmatch(rf"ampwatch {__version__} sha256:[0-9a-f]{{16}}", message)
    assert run.body["message"] != message
    for asked in grafana.asked:
        assert asked.headers["Authorization"] == f"Bearer {TOKEN}"
        assert asked.headers["X-Grafana-Org-Id"] == "3"
        assert asked.headers["User-Agent"] == f"ampwatch/{__version__}"


@pytest.mark.parametrize("version", ["10.4.0", "11.6.2", "13.2.0-4711"])
def test_the_second_push_writes_nothing(ampwatch: Command, grafana: Grafana, version: str) -> None:
    """Nor is there a difference to it; also where Grafana has rewritten what it stored."""
    grafana.version, grafana.rewrites = version, version != "10.4.0"
    ampwatch("push", *PROMETHEUS)
    grafana.asked.clear()

    said = ampwatch("push", *PROMETHEUS)

    assert (said.status, said.err, grafana.writes) == (0, "", [])
    assert {line.split()[0] for line in said.out.splitlines()} == {"unchanged"}
    assert ampwatch("diff", *PROMETHEUS) == said


def test_a_new_release_is_pushed(ampwatch: Command, grafana: Grafana, dashboards: Path) -> None:
    """Without --force, only what has changed, and of the dashboards only those that are named."""
    grafana.rewrites = True
    ampwatch("push", *PROMETHEUS)
    grafana.asked.clear()
    write(dashboards, small("overview", title="ampwatch / All"))
    write(dashboards, small("run", title="ampwatch / Training"))

    said = ampwatch("push", "run", "ampwatch-run.json")

    assert said.status == 0
    (saved,) = grafana.writes
    assert saved.body["dashboard"]["version"] == 1
    assert grafana.dashboards["ampwatch-run"]["title"] == "ampwatch / Training"
    assert f"updated       dashboard ampwatch-run: from ampwatch {__version__}" in said.out


def test_what_is_by_hand_is_kept(ampwatch: Command, grafana: Grafana, dashboards: Path) -> None:
    """Nothing is written at all; the difference is shown, who saved it and when is told."""
    ampwatch("push", *PROMETHEUS)
    grafana.by_hand("ampwatch-run", title="Mine")
    write(dashboards, small("overview", title="ampwatch / All runs"))
    grafana.asked.clear()

    said = ampwatch("push")

    assert (said.status, grafana.writes) == (1, [])
    assert '-  "title": "Mine",\n+  "title": "ampwatch / Run",\n' in said.out
    by_hand = "dashboard ampwatch-run: it was saved by hand: version 2 by ada on 2026-10-01 12:30"
    assert f"nothing was written, because:\n  {by_hand}; --force" in said.err
    grafana.history["ampwatch-run"].clear()
    assert "by hand, or its history cannot be read: version 2" in ampwatch("push").err

    assert ampwatch("push", "--force").status == 0
    assert grafana.dashboards["ampwatch-run"]["title"] == "ampwatch / Run"
    assert grafana.writes[-1].body["overwrite"] is True

    grafana.meta["ampwatch-run"]["format"] = "v2"
    assert "newer format (v2)" in ampwatch("push").err
    grafana.meta["ampwatch-run"] = {"provisioned": True, "provisionedExternalId": "run.json"}
    grafana.dashboards["ampwatch-run"]["title"] = "Theirs"
    said = ampwatch("push", "--force")
    assert (said.status, "provisioned from run.json: change it there" in said.err) == (1, True)


def test_who_saves_meanwhile_is_kept(ampwatch: Command, grafana: Grafana, dashboards: Path) -> None:
    """Grafana is told which version was looked at; it may refuse one that is from a file, too."""
    ampwatch("push", *PROMETHEUS)
    write(dashboards, small("run", title="ampwatch / Training"))
    grafana.before_save = lambda: grafana.by_hand("ampwatch-run", title="Mine")

    said = ampwatch("push")

    assert said.status == 1
    assert "got 412: The dashboard has been changed by someone else" in said.err
    assert "run it again and look at the diff" in said.err
    assert grafana.dashboards["ampwatch-run"]["title"] == "Mine"
    reply = json.dumps({"message": "Cannot save provisioned dashboard"})
    grafana.replies["/api/dashboards/db"] = (400, "application/json", reply)
    assert "provisioned from a file: change it there" in ampwatch("push", "--force").err


def test_the_dashboards_open_on_the_datasource(ampwatch: Command, grafana: Grafana) -> None:
    """It is only read and tried; an editor of a free Grafana may not even read it."""
    grafana.datasources["P8E8"] = MIMIR

    assert ampwatch("push", "--datasource", "P8E8").status == 0

    variable = grafana.dashboards["ampwatch-run"]["templating"]["list"][0]
    assert variable["current"] == {"selected": False, "text": "Mimir", "value": "P8E8"}
    assert {one.path for one in grafana.writes} == {"/api/folders", "/api/dashboards/db"}
    assert "/api/datasources/uid/P8E8/health" in [one.path for one in grafana.asked]
    grafana.allowed.remove("datasources:read")
    assert ampwatch("push", "--datasource", "P8E8").status == 0
    assert "got 404: not found" in ampwatch("push", "--datasource", "nope").err
    assert "the token may not read datasources" in ampwatch("push", *PROMETHEUS).err


def test_a_datasource_gets_another_address(ampwatch: Command, grafana: Grafana) -> None:
    """When it reaches no Prometheus, which may only be late; what else is set there stays."""
    grafana.healthy = False
    said = ampwatch("push", *PROMETHEUS)
    assert (said.status, len(grafana.dashboards)) == (1, 2)
    assert "the dashboards are in place, but empty" in said.err
    assert "dial tcp 10.0.0.7:9090: refused; check its address as Grafana sees it" in said.err
    grafana.healthy = True
    kept = grafana.datasources["ampwatch-prometheus"]
    kept["jsonData"] = {"httpMethod": "POST", "tlsSkipVerify": True}
    grafana.asked.clear()

    said = ampwatch("push", "--prometheus-url", "http://mimir/prometheus")

    changes = "url http://prometheus:9090 -> http://mimir/prometheus, timeInterval unset -> 10s\n"
    assert f"updated       datasource ampwatch-prometheus: {changes}" in said.out
    (changed,) = grafana.writes
    assert changed.body["url"] == "http://mimir/prometheus"
    assert changed.body["jsonData"]["tlsSkipVerify"] is True


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            (),
            "there is no datasource of that uid; of that type there are P8E8 (Mimir), F11E (File)",
        ),
        (("--datasource", "L0K1"), "it is a datasource of type loki, not prometheus"),
        (
            ("--datasource", "F11E", *PROMETHEUS),
            "file, where this has to be changed: url unset -> ",
        ),
    ],
)
def test_a_wrong_datasource_is_refused(
    ampwatch: Command, grafana: Grafana, options: tuple[str, ...], told: str
) -> None:
    """With what to do, also to one who only asks for the difference."""
    logs = {"uid": "L0K1", "name": "Logs", "type": "loki"}
    file = {"uid": "F11E", "name": "File", "type": "prometheus", "readOnly": True}
    grafana.datasources.update(P8E8=MIMIR, L0K1=logs, F11E=file)

    for said in ampwatch("push", *options), ampwatch("diff", *options):
        assert (said.status, grafana.writes) == (1, [])
        assert told in said.out + said.err
        assert "name one with --datasource UID" in said.out + said.err


@pytest.mark.parametrize("what", ["folders:create", "datasources:create", "dashboards:write"])
def test_a_missing_permission_is_named(ampwatch: Command, grafana: Grafana, what: str) -> None:
    """With what Grafana said, and a role that has it."""
    grafana.allowed.remove(what)

    said = ampwatch("push", *PROMETHEUS)

    assert said.status == 1
    assert f"Permissions needed: {what}" in said.err
    assert f"the role Editor (Admin for datasources) or the permission {what}" in said.err
