"""Nothing that is shipped opens a user's daemon to all without saying so."""

from __future__ import annotations

import re

from ampwatch.host.daemon.access import OPEN_PATHS
from tests.deploy.parts import DEPLOY, loaded


def test_what_is_open_to_all_is_told_so_where_it_is_started() -> None:
    """The demo of Compose and the sidecar of a pod, whose images ask for a token by themselves."""
    texts = {
        path.relative_to(DEPLOY).as_posix(): path.read_text(encoding="utf-8")
        for path in DEPLOY.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    told = {path for path, text in texts.items() if "AMPWATCH_READERS" in text}
    compose = loaded(DEPLOY / "compose/compose.yaml")["services"]
    (sidecar,) = loaded(DEPLOY / "kubernetes/training/job.yaml")["spec"]["template"]["spec"][
        "initContainers"
    ]

    sidecars = {f"kubernetes/examples/{name}.yaml" for name in ("jobset", "trainjob", "rayjob")}
    sidecars |= {"kubernetes/training/job.yaml", "helm/ampwatch/templates/example.yaml"}

    assert told == {"compose/compose.yaml", *sidecars}
    assert compose["daemon"]["environment"]["AMPWATCH_READERS"] == "all"
    assert {"name": "AMPWATCH_READERS", "value": "all"} in sidecar["env"]
    assert "--machine" not in sidecar["args"]
    # Only for this machine: the port is on loopback.
    assert all(port.startswith("127.0.0.1:") for port in compose["daemon"]["ports"])


def test_probes_need_no_token() -> None:
    """A kubelet has none, and would end a daemon that is well."""
    asked = {
        match
        for path in DEPLOY.rglob("*.yaml")
        for match in re.findall(r"httpGet: \{path: (\S+),", path.read_text(encoding="utf-8"))
    }

    assert asked == OPEN_PATHS
