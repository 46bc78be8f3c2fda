"""Contents of a deployment: what was asked for, where it belongs, and nothing else changed."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
import yaml

import ampwatch
from ampwatch import shipped
from ampwatch.errors import AmpwatchError, DeployError
from ampwatch.operate.deploy import options as checks
from ampwatch.operate.deploy.options import DeployOptions
from ampwatch.operate.deploy.tree import RUNBOOKS, STAMP, TARGETS, tree
from ampwatch.report.pages import GUIDES
from tests.deploy.parts import ROOT, loaded
from tests.report.links import dead_links
from tests.services import require

if TYPE_CHECKING:
    from pathlib import Path

ASKED = DeployOptions(
    targets=("node-a:10917", "[2001:db8::1]:9000"),
    runbooks="https://wiki.example.com/runbooks/",
    webhook="https://chat.example.com/hook?team=a&x=#b",
    scrape_seconds=5,
)


@pytest.fixture(scope="module")
def plain() -> dict[str, str]:
    return tree(DeployOptions())


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree with everything that can be asked for, written."""
    directory = tmp_path_factory.mktemp("asked")
    for path, text in tree(ASKED).items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text, encoding="utf-8")
    return directory


def test_without_options_the_files_are_those_of_the_checkout(plain: dict[str, str]) -> None:
    """But for the line that says which version rules are of, and for the pictures of pages."""
    without = 0
    for path, text in plain.items():
        stamp = f"{STAMP}{ampwatch.__version__}\n" if path.endswith(".rules.yml") else ""
        paragraphs = (ROOT / path).read_text(encoding="utf-8").split("\n\n")
        said = [p for p in paragraphs if not (path.endswith(".md") and p.startswith("!["))]
        without += len(paragraphs) - len(said)
        assert text == stamp + "\n\n".join(said), path

    guides = [(ROOT / f"docs/{name}.md").read_text(encoding="utf-8") for name in GUIDES]
    of_kinds = len(list((ROOT / "docs/images/kinds").glob("*.png")))
    assert without == of_kinds + sum(text.count("\n![") for text in guides)


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
    pages = [path for path in plain if path.endswith(".md")]

    assert {"docs/diagnoses/forward_overflow.md", "docs/diagnosis.md"} <= set(pages)
    assert len(pages) > 100
    assert list(dead_links(plain)) == []


def test_a_port_is_the_same_everywhere() -> None:
    """Where the daemon listens, where it is looked for, and in every sentence about it."""
    asked = DeployOptions(port=12345, targets=(checks.checked_target("node-a", 12345),))
    files = tree(asked)

    named = {path for path, text in files.items() if re.search(r"\b12345\b", text)}
    assert {path for path, text in tree(DeployOptions()).items() if "10917" in text} - named == {
        path for path in files if path.endswith(".test.yml") and "10917" in files[path]
    } | {"ampwatch/settings.py", "ampwatch/cli/deploy.py", "docs/settings.md"}
    assert TARGETS in named
    for name in ("prometheus/prometheus.yml", "prometheus/agent.yml", "compose/prometheus.yml"):
        (job, *_) = yaml.safe_load(files[f"deploy/{name}"])["scrape_configs"]
        assert urlsplit(job["http_sd_configs"][0]["url"]).port == 12345
    daemon = yaml.safe_load(files["deploy/compose/compose.yaml"])["services"]["daemon"]
    assert daemon["ports"] == ["127.0.0.1:12345:12345"]
    assert re.search(
        r"^ENV AMPWATCH_PORT=12345 ", files["deploy/container/Dockerfile"], re.MULTILINE
    )
    assert "\nEnvironment=AMPWATCH_PORT=12345\n" in files["deploy/systemd/ampwatch.service"]
    for name in ("daemonset/daemonset.yaml", "training/job.yaml"):
        spec = yaml.safe_load(files[f"deploy/kubernetes/{name}"])["spec"]["template"]["spec"]
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            assert {"name": "AMPWATCH_PORT", "value": "12345"} in container["env"]
            assert {port["containerPort"] for port in container.get("ports", [])} <= {12345}
    service = yaml.safe_load(files["deploy/kubernetes/daemonset/service.yaml"])
    assert service["spec"]["ports"][0]["port"] == 12345


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


def test_targets_go_where_prometheus_looks(asked: Path) -> None:
    """In the file that both configurations match."""
    assert loaded(asked / TARGETS) == [{"targets": ["node-a:10917", "[2001:db8::1]:9000"]}]
    for name in ("prometheus", "compose"):
        directory = asked / "deploy" / name
        patterns = [
            pattern
            for job in loaded(directory / "prometheus.yml")["scrape_configs"]
            if job["job_name"] == "ampwatch-targets"
            for discovery in job["file_sd_configs"]
            for pattern in discovery["files"]
        ]
        found = [path.resolve() for pattern in patterns for path in directory.glob(pattern)]
        assert found == [asked / TARGETS]


def test_alertmanager_sends_every_severity_to_the_webhook(asked: Path) -> None:
    """To the very address, whatever characters are in it."""
    receivers = loaded(asked / "deploy/alertmanager/alertmanager.yml")["receivers"]

    urls = [hook["url"] for receiver in receivers for hook in receiver["webhook_configs"]]
    assert urls == [ASKED.webhook] * 3


def test_alerts_lead_to_the_runbooks_that_were_named(asked: Path) -> None:
    """In the rule files, their tests, and the rules for the Operator."""
    for path in [*(asked / "dashboards/alerts").iterdir(), asked / "deploy/kubernetes"]:
        texts = path.rglob("*.yaml") if path.is_dir() else [path]
        assert not any(RUNBOOKS in text.read_text(encoding="utf-8") for text in texts)
    groups = loaded(asked / "dashboards/alerts/ampwatch.rules.yml")["groups"]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    assert len(alerts) > 17
    for rule in alerts:
        assert rule["annotations"]["runbook_url"] == f"{ASKED.runbooks}{rule['alert']}.md"
    objects = yaml.safe_load_all((asked / "deploy/kubernetes/prometheusrule.yaml").read_text())
    assert groups in [thing["spec"]["groups"] for thing in objects]


def test_the_scrape_interval_is_the_same_everywhere(asked: Path) -> None:
    """Grafana's shortest step as well; no time-out is longer than it."""
    for path in ("compose/prometheus.yml", "prometheus/prometheus.yml", "prometheus/agent.yml"):
        settings = loaded(asked / "deploy" / path)["global"]
        assert settings["scrape_interval"] == "5s"
        assert settings["scrape_timeout"] == "5s"
        assert settings.get("evaluation_interval", "5s") == "5s"
    provisioning = asked / "deploy/compose/grafana/provisioning/datasources/ampwatch.yaml"
    assert loaded(provisioning)["datasources"][0]["jsonData"]["timeInterval"] == "5s"
    monitor = loaded(asked / "deploy/kubernetes/podmonitor.yaml")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert (endpoint["interval"], endpoint["scrapeTimeout"]) == ("5s", "5s")


@pytest.mark.services
@pytest.mark.parametrize("name", ["prometheus", "compose"])
def test_prometheus_takes_what_was_written(asked: Path, name: str) -> None:
    """Rules and targets included."""
    file = asked / "deploy" / name / "prometheus.yml"
    command = [require("promtool"), "check", "config", str(file)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert (
        "ampwatch*.yml" not in done.stderr
    )  # which would be the warning that there are no targets


@pytest.mark.parametrize(
    ("text", "checked"),
    [
        ("node-a", "node-a:10917"),
        ("node-a.example.com:9000", "node-a.example.com:9000"),
        ("192.0.2.7:1", "192.0.2.7:1"),
        ("[::1]", "[::1]:10917"),
    ],
    ids=["name", "port", "number", "six"],
)
def test_a_target_has_the_port_of_the_daemon_unless_given_one(text: str, checked: str) -> None:
    """The address is as Prometheus wants it."""
    assert checks.checked_target(text) == checked


@pytest.mark.parametrize("text", ["0", "65536", "-1", "http", "1.5", " 1"])
def test_what_is_no_port_is_refused(text: str) -> None:
    """0 is one for a daemon, which takes any, and none for whoever looks for it."""
    with pytest.raises(DeployError, match=r"`--port`: expected 1 to 65535"):
        checks.checked_port(text)


@pytest.mark.parametrize(
    "text",
    ["", "http://node-a:1", "node-a:0", "node-a:65536", "a b", "node-a:1/metrics", "::1", "-a"],
    ids=["nothing", "url", "zero", "high", "space", "path", "bare six", "option"],
)
def test_what_is_no_target_is_refused(text: str) -> None:
    """In words, with what was given."""
    with pytest.raises(DeployError, match=re.escape(repr(text))):
        checks.checked_target(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "chat",
        "ftp://a/b",
        "http://",
        "http://a:b/",
        "http://a/b c",
        'http://a/"',
        "http://a/{{",
    ],
    ids=["nothing", "word", "ftp", "no host", "port", "space", "quote", "template"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """It would break a file, or be expanded as a template."""
    with pytest.raises(DeployError, match=r"`--webhook`: expected an address"):
        checks.checked_url("--webhook", text)


def test_a_base_of_runbooks_ends_with_a_slash_and_has_no_query() -> None:
    """The name of the page is added to it."""
    assert checks.checked_base("--runbooks", "http://a/b") == "http://a/b/"
    assert checks.checked_base("--runbooks", "http://a/b/") == "http://a/b/"
    with pytest.raises(DeployError, match=r"leave out what begins with \? or #"):
        checks.checked_base("--runbooks", "http://a/?page=")


@pytest.mark.parametrize(("text", "seconds"), [("5s", 5), ("30s", 30), ("60s", 60), ("1m", 60)])
def test_a_scrape_interval_is_in_seconds(text: str, seconds: int) -> None:
    """Or the minute that the rules hold for at most."""
    assert checks.checked_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "15", "4s", "61s", "2m", "1h", "-5s", "5.5s"])
def test_an_interval_that_the_rules_do_not_hold_for_is_refused(text: str) -> None:
    """Their shortest range is five minutes."""
    with pytest.raises(DeployError, match="expected 5s to 60s"):
        checks.checked_seconds(text)


def test_an_incomplete_installation_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing shipped at all; files that somebody has emptied."""
    monkeypatch.setattr(shipped, "_PACKAGE", tmp_path / "ampwatch")
    with pytest.raises(AmpwatchError, match="install ampwatch again"):
        tree(DeployOptions())

    for name in ("dashboards/alerts", "deploy/alertmanager", "docs/runbooks"):
        (tmp_path / name).mkdir(parents=True)
    with pytest.raises(AmpwatchError, match=r"expected to read .*callbacks.md"):
        tree(DeployOptions())

    for name in GUIDES:
        (tmp_path / f"docs/{name}.md").write_text("# x\n")
    with pytest.raises(DeployError, match=r"expected rules .* install ampwatch again"):
        tree(DeployOptions())

    rules = tmp_path / "dashboards/alerts/ampwatch.rules.yml"
    rules.write_text(f"groups: []  # {RUNBOOKS}\n")
    (tmp_path / "deploy/alertmanager/alertmanager.yml").write_text("receivers: []\n")
    with pytest.raises(DeployError, match=r"once in the deploy/alertmanager/alertmanager.yml"):
        tree(ASKED)
    deploy = "expected port 10917 in the deploy/compose/compose.yaml"
    with pytest.raises(DeployError, match=deploy):
        tree(DeployOptions(port=1))
    rules.write_bytes(b"\xff\xfe")
    with pytest.raises(DeployError, match=r"expected to read .* install ampwatch again"):
        tree(DeployOptions())


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
