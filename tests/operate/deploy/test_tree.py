"""Contents of a deployment: what was asked for, where it belongs, and nothing else changed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import yaml

import ampwatch
from ampwatch import shipped
from ampwatch.errors import AmpwatchError, DeployError
from ampwatch.operate.deploy import options as checks
from ampwatch.operate.deploy.options import DeployOptions
from ampwatch.operate.deploy.tree import CHART, RUNBOOKS, STAMP, TARGETS, tree
from ampwatch.operate.deploy.writing import plan, write
from ampwatch.report.pages import GUIDES, REPOSITORY, by_path
from tests.alerts.texts import rendered
from tests.deploy.parts import ROOT, loaded
from tests.report.links import dead_links
from tests.services import require

ASKED = DeployOptions(
    targets=("node-a:10917", "[2001:db8::1]:9000"),
    runbooks="https://wiki.example.com/runbooks/",
    webhook="https://chat.example.com/hook?team=a&x=#b",
    scrape_seconds=5,
    grafana="https://example.com/grafana/",
    alertmanager="https://alerts.example.com/",
    external="https://train.example.com/a%20b/",
)


@pytest.fixture(scope="module")
def plain() -> dict[str, str]:
    return tree(DeployOptions())


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree with everything that can be asked for, written."""
    directory = tmp_path_factory.mktemp("asked")
    write(plan(directory, tree(ASKED)))
    return directory


def test_without_options_the_files_are_those_of_the_checkout(plain: dict[str, str]) -> None:
    """But for the version that rules are of, pictures of pages, and addresses of pages that are not among them."""
    without = 0
    for path, text in plain.items():
        if path.startswith(f"{CHART}files/"):
            continue  # copies of others, which the chart alone can read
        stamp = f"{STAMP}{ampwatch.__version__}\n" if path.endswith(".rules.yml") else ""
        paragraphs = (ROOT / path).read_text(encoding="utf-8").split("\n\n")
        said = [p for p in paragraphs if not (path.endswith(".md") and p.startswith("!["))]
        without += len(paragraphs) - len(said)
        pair = (text, stamp + "\n\n".join(said))
        if path in by_path():
            pair = tuple(
                re.sub(rf"\]\({REPOSITORY}docs/|\]\((\.\./)*", "](", each) for each in pair
            )
        assert pair[0] == pair[1], path

    guides = [(ROOT / f"docs/{name}.md").read_text(encoding="utf-8") for name in GUIDES]
    of_kinds = len(list((ROOT / "docs/images/kinds").glob("*.png")))
    assert without == of_kinds + sum(text.count("\n![") for text in guides)


def test_a_scrape_interval_is_put_wherever_there_is_one() -> None:
    interval = re.compile(r"\b(?:scrape_?[iI]nterval|evaluation_interval|timeInterval): 10s")

    assert [
        path
        for path, text in tree(ASKED).items()
        if path.startswith("deploy/") and interval.search(text)
    ] == []


def test_everything_is_there_that_is_started_or_read(plain: dict[str, str]) -> None:
    """No code of dashboards, no test of Python, no cache is handed on."""
    assert {path.split("/")[0] for path in plain} == {"ampwatch", "dashboards", "deploy", "docs"}
    shipped_here = {
        path.relative_to(ROOT).as_posix()
        for pattern in ("deploy/**/*", "dashboards/*.json", "dashboards/alerts/*.yml")
        for path in ROOT.glob(pattern)
        if path.is_file() and not {"__pycache__", "targets", "data"} & set(path.parts)
    }
    assert shipped_here <= plain.keys()
    assert {"ampwatch/cli/deploy.py", "ampwatch/host/page/static/index.html"} <= plain.keys()
    assert not [path for path in plain if "/source/" in path or "_shipped" in path]


def test_no_page_leads_to_a_file_that_is_not_there(plain: dict[str, str]) -> None:
    """Runbooks lead to the pages about kinds, these to guides; the web has what is not written."""
    assert by_path().keys() <= plain.keys()
    assert list(dead_links(plain)) == []


def test_a_port_is_the_same_everywhere(plain: dict[str, str]) -> None:
    """Where the daemon listens, where it is looked for, and in every sentence about it."""
    asked = DeployOptions(port=12345, targets=(checks.checked_target("node-a", 12345),))
    files = tree(asked)

    assert files.pop(TARGETS).endswith('node-a:12345"\n')
    assert {p: re.sub(r"\b12345\b", "10917", text) for p, text in files.items()} == plain
    still = {path for path, text in files.items() if "10917" in text}
    tests = {path for path in still if path.endswith(".test.yml")}
    assert still - tests == {"ampwatch/settings.py", "ampwatch/cli/deploy.py", "docs/settings.md"}


def test_prometheus_sends_the_token_to_the_daemon_of_its_machine_and_to_nobody_else() -> None:
    """To discover it and to scrape it; in no file but those, and no file has the secret."""
    place = '/run/user/1000/a "b"/daemon.token'
    plain, files = tree(DeployOptions()), tree(DeployOptions(token_file=place))

    changed = {path for path, text in files.items() if text != plain[path]}
    assert changed == {"deploy/prometheus/agent.yml", "deploy/prometheus/prometheus.yml"}
    for path in changed:
        ours, *others = yaml.safe_load(files[path])["scrape_configs"]
        sent = {"type": "Bearer", "credentials_file": place}
        assert ours["authorization"] == sent
        assert [discovery["authorization"] for discovery in ours["http_sd_configs"]] == [sent]
        assert "file_sd_configs" not in ours
        assert not any("authorization" in str(job) for job in others)
        assert "relabel_configs" in others[0]


def test_alertmanager_sends_every_severity_to_the_webhook(asked: Path) -> None:
    """To the very address, whatever characters are in it."""
    receivers = loaded(asked / "deploy/alertmanager/alertmanager.yml")["receivers"]

    urls = [hook["url"] for receiver in receivers for hook in receiver["webhook_configs"]]
    theirs = loaded(asked / "deploy/kubernetes/examples/alertmanagerconfig.yaml")["spec"]
    urls += [hook["url"] for receiver in theirs["receivers"] for hook in receiver["webhookConfigs"]]
    assert urls == [ASKED.webhook] * 6


@pytest.mark.services
def test_messages_and_daemons_link_to_what_was_given(asked: Path) -> None:
    """To the dashboard of an alert, to a silence for a message; nowhere where nothing was given."""
    (group, *_) = loaded(asked / "dashboards/alerts/ampwatch.rules.yml")["groups"]
    links = [rule["annotations"]["dashboard"] for rule in group["rules"] if "alert" in rule]
    alert = {
        "labels": {"alertname": "AmpwatchRunBroken", "run": "a:b"},
        "annotations": {"dashboard": links[0].partition("?")[0]},
    }
    said = rendered([alert], template=asked / "deploy/alertmanager/ampwatch.tmpl")
    url = re.search(r"^Silence it: (.*)$", said, re.MULTILINE)
    assert url is not None
    address, _, fragment = url[1].partition("#")

    assert all(link.startswith(f"{ASKED.grafana}d/ampwatch-") for link in links)
    assert f"\nOn your Grafana: {ASKED.grafana}d/ampwatch-run\n" in said
    assert (address, unquote(fragment)) == (ASKED.alertmanager, '/silences/new?filter={run="a:b"}')
    assert "Silence" not in rendered([alert])
    for file, written in (
        ("compose/compose.yaml", f"AMPWATCH_EXTERNAL_URL: {ASKED.external}\n"),
        (
            "kubernetes/daemonset/daemonset.yaml",
            f"_GRAFANA_URL\n              value: {ASKED.grafana}\n",
        ),
        ("systemd/ampwatch.service", "AMPWATCH_EXTERNAL_URL=https://train.example.com/a%%20b/\n"),
        ("helm/ampwatch/values.yaml", f"AMPWATCH_ALERTMANAGER_URL: {ASKED.alertmanager}\n"),
    ):
        assert written in (asked / "deploy" / file).read_text()


def test_alerts_lead_to_the_runbooks_that_were_named(asked: Path) -> None:
    """In the rule files, their tests, and the rules for the Operator."""
    for path in [*(asked / "dashboards").rglob("*.yml"), *(asked / "deploy").rglob("*.yaml")]:
        assert RUNBOOKS not in path.read_text(encoding="utf-8")
    groups = loaded(asked / "dashboards/alerts/ampwatch.rules.yml")["groups"]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    assert len(alerts) > 17
    for rule in alerts:
        assert rule["annotations"]["runbook_url"] == f"{ASKED.runbooks}{rule['alert']}.md"


def test_the_scrape_interval_is_the_same_everywhere(asked: Path, plain: dict[str, str]) -> None:
    """Grafana's shortest step as well; no time-out is longer than it."""
    keys = r" (scrape_?(?:interval|timeout)|evaluation_interval|timeInterval|interval): (\d+)s\n"
    for path, text in plain.items():
        if re.search(
            r"prometheus/\w+\.yml|/prometheus\.yml|podmonitor|datasources|values\.yaml", path
        ):
            found = re.findall(keys, text, re.IGNORECASE)
            assert {seconds for _, seconds in found} <= {"10"}
            again = re.findall(keys, (asked / path).read_text(encoding="utf-8"), re.IGNORECASE)
            assert again == [(key, "5") for key, _ in found]


@pytest.mark.services
@pytest.mark.parametrize("name", ["prometheus", "compose"])
def test_prometheus_takes_what_was_written(asked: Path, name: str) -> None:
    """Rules and targets included, which are where it looks."""
    assert loaded(asked / TARGETS) == [{"targets": ["node-a:10917", "[2001:db8::1]:9000"]}]
    example = (asked / "deploy/prometheus/file_sd.example.yml").read_text()
    (asked / TARGETS).with_name("ampwatch-example.yml").write_text(example)
    file = asked / "deploy" / name / "prometheus.yml"
    command = [require("promtool"), "check", "config", str(file)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert (
        "ampwatch*.yml" not in done.stderr
    )  # which would be the warning that there are no targets


def test_a_target_has_the_port_of_the_daemon_unless_given_one() -> None:
    """The address is as Prometheus wants it."""
    checked = [
        checks.checked_target(text) for text in ("node-a", "a.b:9000", "192.0.2.7:1", "[::1]")
    ]
    assert checked == ["node-a:10917", "a.b:9000", "192.0.2.7:1", "[::1]:10917"]


@pytest.mark.parametrize(
    ("check", "wrong", "what"),
    [
        (checks.checked_port, "0|65536|-1|http|1.5| 1", "`--port`: expected 1 to 65535"),
        (checks.checked_target, "|http://a:1|a:0|a:65536|a b|a:1/x|::1|-a", "`--target`: expected"),
        (checks.checked_seconds, "|15|4s|61s|2m|1h|-5s|5.5s", "expected 5s to 60s"),
    ],
)
def test_what_is_not_usable_is_refused(check: Any, wrong: str, what: str) -> None:
    """In words, with what was given."""
    for text in wrong.split("|"):
        with pytest.raises(DeployError, match=f"{what}.*{re.escape(repr(text))}"):
            check(text)


@pytest.mark.parametrize(("text", "seconds"), [("5s", 5), ("30s", 30), ("60s", 60), ("1m", 60)])
def test_a_scrape_interval_is_in_seconds(text: str, seconds: int) -> None:
    """Or the minute that the rules hold for at most."""
    assert checks.checked_seconds(text) == seconds


def test_an_incomplete_installation_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing shipped at all; files that somebody has emptied."""
    monkeypatch.setattr(shipped, "_PACKAGE", tmp_path / "ampwatch")
    with pytest.raises(AmpwatchError, match="install ampwatch again"):
        tree(DeployOptions())

    for name in ("dashboards/alerts", "deploy", "docs"):
        (tmp_path / name).mkdir(parents=True)
    with pytest.raises(AmpwatchError, match=r"expected to read .*callbacks.md"):
        tree(DeployOptions())

    for name in GUIDES:
        (tmp_path / f"docs/{name}.md").write_text("# x\n")
    with pytest.raises(DeployError, match=r"expected .* found none; install ampwatch again"):
        tree(ASKED)


def test_what_a_prometheus_was_given_and_has_stored_in_a_checkout_is_not_handed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Targets are somebody's hosts, and the database is no text."""
    place = tmp_path / "_shipped"
    for name in ("dashboards", "deploy", "docs"):
        shutil.copytree(shipped.shipped(name), place / name)
    for left in ("deploy/prometheus/targets/ampwatch.yml", "deploy/prometheus/data/wal/00000000"):
        (place / left).parent.mkdir(parents=True)
        (place / left).write_bytes(b"\xff\xfe")
    monkeypatch.setattr(shipped, "_PACKAGE", tmp_path)

    paths = tree(DeployOptions()).keys()

    assert "deploy/prometheus/prometheus.yml" in paths
    assert not [path for path in paths if "/targets/" in path or "/data/" in path]
