"""Nothing that is shipped opens a user's daemon to all without saying so."""

from __future__ import annotations

import re

from ampwatch.host.daemon.access import OPEN_PATHS
from tests.deploy.parts import DEPLOY, loaded


def test_what_is_open_to_all_is_told_so_where_it_is_started() -> None:
    """The demo of Compose and the sidecar of a pod, whose images ask for a token by themselves."""
    files = [path for path in DEPLOY.rglob("*") if path.suffix in {".yaml", ".yml", ".service", ""}]
    names = {path: path.relative_to(DEPLOY).as_posix() for path in files if path.is_file()}
    told = {name for path, name in names.items() if "AMPWATCH_READERS" in path.read_text()}
    sidecars = {f"kubernetes/examples/{name}.yaml" for name in ("jobset", "trainjob", "rayjob")}
    sidecars |= {"kubernetes/training/job.yaml", "helm/ampwatch/templates/example.yaml"}

    assert told == {"compose/compose.yaml", *sidecars}
    daemon = loaded(DEPLOY / "compose/compose.yaml")["services"]["daemon"]
    assert daemon["environment"]["AMPWATCH_READERS"] == "all"
    # Only for this machine: the port is on loopback.
    assert all(port.startswith("127.0.0.1:") for port in daemon["ports"])


def test_probes_need_no_token() -> None:
    """A kubelet has none, and would end a daemon that is well."""
    asked = {
        match
        for path in DEPLOY.rglob("*.yaml")
        for match in re.findall(r"httpGet: \{path: (\S+),", path.read_text(encoding="utf-8"))
    }

    assert asked == OPEN_PATHS
