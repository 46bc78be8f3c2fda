"""Contents of a deployment: the shipped files, with the options put into them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import ampwatch
from ampwatch.errors import DeployError
from ampwatch.operate.deploy import kubernetes
from ampwatch.report import pages
from ampwatch.settings import DEFAULT_PORT
from ampwatch.shipped import shipped

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ampwatch.operate.deploy.options import DeployOptions

RUNBOOKS = "https://github.com/ampwatch/ampwatch/blob/main/docs/runbooks/"
WEBHOOK = "&webhook http://127.0.0.1:5001/alerts"
SCRAPE_SECONDS = 10
SCRAPE_TIMEOUT_SECONDS = 10

DISCOVERY = "refresh_interval: 1m\n"
"""Last line of the discovery of the daemon of this machine, once in each of the files below."""

_WITH_TOKEN = ("deploy/prometheus/agent.yml", "deploy/prometheus/prometheus.yml")
"""Configurations for a Prometheus on the machine of the daemon, outside of containers."""

TARGETS = "deploy/prometheus/targets/ampwatch.yml"
ALERTMANAGER = "deploy/alertmanager/alertmanager.yml"
ALERTS = "dashboards/alerts/"

STAMP = "# ampwatch "
"""First words of a rule file that was written here; its version follows."""

_INTERVALS = {
    "deploy/compose/prometheus.yml": ("scrape_interval", "evaluation_interval"),
    "deploy/compose/grafana/provisioning/datasources/ampwatch.yaml": ("timeInterval",),
    "deploy/kubernetes/podmonitor.yaml": ("interval",),
    "deploy/prometheus/agent.yml": ("scrape_interval",),
    "deploy/prometheus/prometheus.yml": ("scrape_interval", "evaluation_interval"),
}
"""Files and keys under which the scrape interval is written."""

_NOT_SHIPPED = {"__pycache__", "_shipped", "targets", "data"}
"""Caches; and what is there once somebody has started a Prometheus in a checkout: whom it scrapes, what it stores."""

_WITH_PORT = (
    "deploy/compose/compose.yaml",
    "deploy/compose/prometheus.yml",
    "deploy/container/Dockerfile",
    "deploy/kubernetes/daemonset/daemonset.yaml",
    "deploy/kubernetes/daemonset/service.yaml",
    "deploy/kubernetes/training/job.yaml",
    "deploy/prometheus/agent.yml",
    "deploy/prometheus/prometheus.yml",
    "deploy/systemd/ampwatch.service",
)
"""Files by which a daemon, a training or Prometheus comes to know the port."""

_DEFAULT_PORT_STAYS = ("ampwatch/", "dashboards/alerts/", "docs/settings.md")

_TIMEOUTS = {
    "deploy/compose/prometheus.yml": "scrape_timeout",
    "deploy/kubernetes/podmonitor.yaml": "scrapeTimeout",
    "deploy/prometheus/agent.yml": "scrape_timeout",
    "deploy/prometheus/prometheus.yml": "scrape_timeout",
}


def tree(options: DeployOptions) -> dict[str, str]:
    """Return the text of every file of a deployment, by its path in it.

    Raises:
        DeployError: If what is shipped cannot be read, or is not what this version shipped.
        AmpwatchError: If the installation is incomplete.

    Cost:
        Some 400 files of 4 MB in all are read.
    """
    files = dict(_shipped_files())
    _put_runbooks(files, options.runbooks or RUNBOOKS)
    if options.webhook:
        # JSON's strings are YAML's; an anchor stays in front of what it names.
        _put(files, ALERTMANAGER, WEBHOOK, f"&webhook {json.dumps(options.webhook)}")
    if options.scrape_seconds:
        _put_interval(files, options.scrape_seconds)
    if options.port != DEFAULT_PORT:
        _put_port(files, options.port)
    if options.token_file:
        _put_token(files, options.token_file)
    if options.targets:
        files[TARGETS] = _targets(options.targets)
    return dict(sorted(files.items()))


def rules_of(files: Mapping[str, str]) -> dict[str, str]:
    """Return the rule files among ``files``, by their names."""
    return {
        path.removeprefix(ALERTS): text
        for path, text in files.items()
        if path.startswith(ALERTS) and path.endswith(".rules.yml")
    }


def _shipped_files() -> Iterator[tuple[str, str]]:
    dashboards = shipped("dashboards")
    yield from _under(dashboards, "dashboards", "*.json", "kustomization.yaml", "alerts/*.yml")
    yield from _under(shipped("deploy"), "deploy", "**/*")
    yield from ((path, page.text) for path, page in pages.by_path().items())
    # The images are built of this very version, wherever it was installed from.
    yield from _under(Path(ampwatch.__file__).parent, "ampwatch", "**/*")


def _under(directory: Path, place: str, *patterns: str) -> Iterator[tuple[str, str]]:
    for pattern in patterns:
        for path in directory.glob(pattern):
            name = path.relative_to(directory)
            # The C part is of this machine, and no text: a daemon does without.
            if _NOT_SHIPPED & set(name.parts) or path.suffix == ".so" or not path.is_file():
                continue
            try:
                yield f"{place}/{name.as_posix()}", path.read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                msg = f"expected to read {path}, as it was installed, got: {error}; install ampwatch again"
                raise DeployError(msg) from error


def _put_runbooks(files: dict[str, str], base: str) -> None:
    """Point the alerts to ``base``, and say in the rules which version they are of."""
    for path in [path for path in files if path.startswith(ALERTS)]:
        files[path] = files[path].replace(RUNBOOKS, base)
    rules = rules_of(files)
    if not any(base in text for text in rules.values()):
        msg = f"expected rules with addresses that begin with {RUNBOOKS} among {', '.join(rules) or 'none'}; install ampwatch again"
        raise DeployError(msg)
    files[kubernetes.PATH] = kubernetes.prometheus_rules(rules)
    for name, text in rules.items():
        files[ALERTS + name] = f"{STAMP}{ampwatch.__version__}\n{text}"


def _put_interval(files: dict[str, str], seconds: int) -> None:
    for path, keys in _INTERVALS.items():
        for key in keys:
            _put(files, path, f" {key}: {SCRAPE_SECONDS}s", f" {key}: {seconds}s")
    timeout = min(SCRAPE_TIMEOUT_SECONDS, seconds)
    for path, key in _TIMEOUTS.items():
        _put(files, path, f" {key}: {SCRAPE_TIMEOUT_SECONDS}s", f" {key}: {timeout}s")


def _put_port(files: dict[str, str], port: int) -> None:
    """Put the port into every file that names it.

    The code has it as a default, its guide of settings says so, and tests of rules have it in names
    of instances: those stay.
    """
    for path in _WITH_PORT:
        if str(DEFAULT_PORT) not in files.get(path, ""):
            msg = f"expected port {DEFAULT_PORT} in the {path} that was installed, found none; install ampwatch again"
            raise DeployError(msg)
    for path, text in files.items():
        if not path.startswith(_DEFAULT_PORT_STAYS):
            files[path] = re.sub(rf"\b{DEFAULT_PORT}\b", str(port), text)


def _put_token(files: dict[str, str], token_file: str) -> None:
    """Have Prometheus send the token: to find out who is to be scraped, and to scrape.

    The file is named and not copied: Prometheus reads it each time, so that a new token is no news
    to it, and the secret is in one place.
    """
    # The type is the default by the documents, but discovery over HTTP sends none without it
    # (2.42).
    file = f"authorization: {{type: Bearer, credentials_file: {json.dumps(token_file)}}}\n"
    for path in _WITH_TOKEN:
        _put(files, path, DISCOVERY, f"{DISCOVERY}        {file}    {file}")


def _targets(targets: tuple[str, ...]) -> str:
    lines = [f"    - {json.dumps(target)}\n" for target in dict.fromkeys(targets)]
    return (
        "# Daemons to scrape. Prometheus reads this again as soon as it changes.\n"
        f"- targets:\n{''.join(lines)}"
    )


def _put(files: dict[str, str], path: str, old: str, new: str) -> None:
    text = files.get(path, "")
    if text.count(old) != 1:
        msg = f"expected {old.strip()!r} once in the {path} that was installed, found it {text.count(old)} times; install ampwatch again"
        raise DeployError(msg)
    files[path] = text.replace(old, new)
