"""Contents of a deployment: the shipped files, with the options put into them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import ampwatch
from ampwatch.errors import DeployError
from ampwatch.operate.deploy.options import DeployOptions
from ampwatch.report import pages
from ampwatch.settings import DEFAULT_PORT
from ampwatch.shipped import shipped

RUNBOOKS = f"{pages.REPOSITORY}docs/runbooks/"
WEBHOOK = r"http://127\.0\.0\.1:5001/alerts"
TARGETS = "deploy/prometheus/targets/ampwatch.yml"
CHART = "deploy/helm/ampwatch/"

SCRAPE_TIMEOUT_SECONDS = 10

STAMP = "# ampwatch "
"""First words of a rule file that was written here; its version follows."""

_NOT_SHIPPED = {"__pycache__", "_shipped", "targets", "data"}
"""Caches; and what is there once somebody has started a Prometheus in a checkout: whom it scrapes, what it stores."""

_RULES = r"dashboards/alerts/.*|deploy/kubernetes/prometheusrule\.yaml"
_FOR_THE_CHART = r"dashboards/[^/]*\.json|.*\.rules\.yml|.*/train\.py"
"""Files that the templates of the chart read; a chart can read what is in its own directory alone."""

_ON_THE_MACHINE = r"deploy/prometheus/(agent|prometheus)\.yml"
"""Configurations for a Prometheus on the machine of the daemon, outside of containers."""

_SCRAPERS = (
    r"deploy/(compose|prometheus)/\w+\.yml|deploy/kubernetes/podmonitor\.yaml"
    r"|deploy/compose/grafana/provisioning/datasources/.*|deploy/helm/ampwatch/values\.yaml"
)
"""Files in which the scrape interval is written."""

_SAYS_THE_PORT = r"(?!ampwatch/|dashboards/alerts/|docs/settings\.md).*"
"""Files in which another port is written. Not in the code, where it is the default, in the guide of settings,
which says so, and in tests of rules, where it is part of the names of instances."""


class Substitution(NamedTuple):
    """A change to the shipped files."""

    files: str  # pattern of the paths in which it is made
    old: str  # pattern of what is replaced; its first group, if it has one, stays in front
    new: str  # what is put there


def tree(options: DeployOptions) -> dict[str, str]:
    """Return the text of every file of a deployment, by its path in it.

    Raises:
        DeployError: If what is shipped cannot be read, or is not what this version shipped.
        AmpwatchError: If the installation is incomplete.

    Cost:
        Some 400 files of 4 MB in all are read.
    """
    files = dict(_shipped_files())
    for change in _substitutions(options):
        _make(change, files)
    for path in [path for path in files if re.fullmatch(_FOR_THE_CHART, path)]:
        if path.endswith(".rules.yml"):
            files[path] = f"{STAMP}{ampwatch.__version__}\n{files[path]}"
        files[f"{CHART}files/{path.rpartition('/')[2]}"] = files[path]
    if options.targets:
        files[TARGETS] = _targets(options.targets)
    return dict(sorted(files.items()))


def _shipped_files() -> Iterator[tuple[str, str]]:
    dashboards = shipped("dashboards")
    yield from _under(dashboards, "dashboards", "*.json", "kustomization.yaml", "alerts/*.yml")
    yield from _under(shipped("deploy"), "deploy", "**/*")
    yield from ((path, pages.portable(page)) for path, page in pages.by_path().items())
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


def _substitutions(options: DeployOptions) -> Iterator[Substitution]:
    """Yield what the options change."""
    if options.runbooks:
        yield Substitution(_RULES, re.escape(RUNBOOKS), options.runbooks)
    if options.webhook:
        # JSON's strings are YAML's; an anchor stays in front of what it names.
        files, old = r"deploy/.*/alertmanager(config)?\.ya?ml", rf"(url: (?:&webhook )?){WEBHOOK}"
        yield Substitution(files, old, json.dumps(options.webhook))
    if options.grafana:
        yield Substitution(_RULES, r"(\s)/d/(?=ampwatch-)", f"{options.grafana}d/")
    if options.alertmanager:
        new = json.dumps(options.alertmanager)
        yield Substitution(r"deploy/alertmanager/.*\.tmpl", r'(\$alertmanager := )""', new)
    for name in ("grafana", "alertmanager", "external"):
        if url := getattr(options, name):
            variable = rf"(AMPWATCH_{name.upper()}_URL(?:=|: |\n +value: ))\S*"
            yield Substitution(r"deploy/.*\.yaml", variable, url)
            # To systemd a percent sign begins a specifier.
            yield Substitution(r"deploy/systemd/.*\.service", variable, url.replace("%", "%%"))
    if seconds := options.scrape_seconds:
        interval = r"(?m)((?:^| )(?:scrape_interval|evaluation_interval|timeInterval|interval|scrapeInterval): )10s"
        yield Substitution(_SCRAPERS, interval, f"{seconds}s")
        timeout = min(SCRAPE_TIMEOUT_SECONDS, seconds)
        yield Substitution(
            _SCRAPERS, r"(?m)((?:^| )(?:scrape_timeout|scrapeTimeout): )10s", f"{timeout}s"
        )
    if options.port != DEFAULT_PORT:
        yield Substitution(_SAYS_THE_PORT, rf"\b{DEFAULT_PORT}\b", str(options.port))
    if options.token_file:
        # Prometheus sends the token to discover targets and to scrape them. The file is named and not copied:
        # Prometheus reads it each time, so a new token needs no restart, and the secret is in one place.
        # Bearer is the documented default, but HTTP discovery sends no token without it (Prometheus 2.42).
        file = (
            f"authorization: {{type: Bearer, credentials_file: {json.dumps(options.token_file)}}}\n"
        )
        old = r"(refresh_interval: 1m\n)"
        yield Substitution(_ON_THE_MACHINE, old, f"        {file}    {file}")


def _make(change: Substitution, files: dict[str, str]) -> None:
    pattern, count = re.compile(change.old), 0
    for path in [path for path in files if re.fullmatch(change.files, path)]:
        files[path], made = pattern.subn(
            lambda match: "".join(match.groups()) + change.new, files[path]
        )
        count += made
    if not count:
        msg = f"expected {change.old} in the {change.files} that were installed, found none; install ampwatch again"
        raise DeployError(msg)


def _targets(targets: tuple[str, ...]) -> str:
    lines = [f"    - {json.dumps(target)}\n" for target in dict.fromkeys(targets)]
    return (
        "# Daemons to scrape. Prometheus reads this again as soon as it changes.\n"
        f"- targets:\n{''.join(lines)}"
    )
