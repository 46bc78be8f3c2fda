"""Files, names and addresses of what `docker compose up` starts, without a container engine; and who may read."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from ampwatch import __version__
from ampwatch.cli import make_parser
from ampwatch.host.daemon.access import OPEN_PATHS
from ampwatch.settings import DEFAULT_PORT, Settings
from tests.deploy.parts import DEPLOY, ROOT, loaded

COMPOSE = DEPLOY / "compose"
SERVICES: dict[str, dict[str, Any]] = loaded(COMPOSE / "compose.yaml")["services"]

GRAFANA = COMPOSE / "grafana" / "provisioning"


def mounts(service: str) -> dict[PurePosixPath, Path]:
    """Return what is mounted from here, by its place in the container."""
    pairs = (volume.split(":") for volume in SERVICES[service].get("volumes", []))
    return {
        PurePosixPath(pair[1]): (COMPOSE / pair[0]).resolve()
        for pair in pairs
        if pair[0].startswith(".")
    }


def here(service: str, path: str) -> Path:
    """Return the file here that is at ``path`` in the container."""
    parts: list[str] = []
    for part in PurePosixPath(path).parts:
        parts = parts[:-1] if part == ".." else [*parts, part]
    place = PurePosixPath(*parts)
    for inside, outside in mounts(service).items():
        if place.is_relative_to(inside):
            return outside / place.relative_to(inside)
    message = f"{place} is not mounted in {service}"
    raise AssertionError(message)


@pytest.mark.skipif(
    importlib.util.find_spec("check_jsonschema") is None,
    reason="check-jsonschema, which has Compose's schema, wants Python 3.11",
)
@pytest.mark.parametrize("mistake", ["", "health_check"])
def test_it_is_valid_by_the_schema_of_compose(mistake: str, tmp_path: Path) -> None:
    """A key that Compose does not know is found."""
    text = (COMPOSE / "compose.yaml").read_text(encoding="utf-8")
    file = tmp_path / "compose.yaml"
    file.write_text(text.replace("healthcheck:", f"{mistake}:", 1) if mistake else text)
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*command, str(file)], check=False, capture_output=True, text=True)

    assert (done.returncode == 0) == (not mistake), done.stdout
    assert mistake in done.stdout


@pytest.mark.parametrize("service", SERVICES)
def test_every_image_is_built_here_or_pinned(service: str) -> None:
    """Images that are built here are of this version."""
    image = SERVICES[service]["image"]
    name, tag = image.rsplit(":", 1)
    if build := SERVICES[service].get("build"):
        context = (COMPOSE / build["context"]).resolve()
        stages = re.findall(
            r"^FROM .* AS (\w+)$", (context / build["dockerfile"]).read_text(), re.MULTILINE
        )
        assert context == ROOT
        assert build["target"] in stages
        assert (name, tag) == (f"ampwatch-{service}", __version__)
    else:
        assert re.fullmatch(r"v?\d+\.\d+\.\d+", tag)


@pytest.mark.parametrize("service", SERVICES)
def test_only_this_machine_can_connect(service: str) -> None:
    """Nobody gains a right inside."""
    content = SERVICES[service]

    assert all(port.startswith("127.0.0.1:") for port in content.get("ports", []))
    assert content["cap_drop"] == ["ALL"]
    assert content["security_opt"] == ["no-new-privileges:true"]
    assert content["restart"] == "unless-stopped"
    assert not {"privileged", "cap_add", "pid", "devices"} & content.keys()


@pytest.mark.parametrize("service", SERVICES)
def test_whatever_is_mounted_or_named_is_there(service: str) -> None:
    """Files and directories read-only; volumes and services that exist."""
    content = SERVICES[service]
    volumes = loaded(COMPOSE / "compose.yaml")["volumes"]

    assert all(path.exists() for path in mounts(service).values())
    for volume in content.get("volumes", []):
        source, _, mode = (*volume.split(":"), "")[:3]
        assert mode == "ro" if source.startswith(".") else source in volumes
    named = [*content.get("depends_on", {})]
    named += [content[key].partition(":")[2] for key in ("network_mode",) if key in content]
    named += re.findall(r"service:(\w+)", content.get("ipc", ""))
    assert {*named} <= SERVICES.keys()
    for other, wait in content.get("depends_on", {}).items():
        assert wait == {"condition": "service_healthy"}
        assert "healthcheck" in SERVICES[other]


def test_the_configurations_are_where_the_programs_look() -> None:
    """Files that they name are mounted as well: rules, targets, the words of messages."""
    command = dict(c.removeprefix("--").split("=", 1) for c in SERVICES["prometheus"]["command"])
    file = PurePosixPath(command["config.file"])
    config = loaded(here("prometheus", str(file)))
    (pattern,) = config["rule_files"]
    rules = here("prometheus", f"{file.parent}/{PurePosixPath(pattern).parent}")
    assert {p.name for p in rules.glob(PurePosixPath(pattern).name)} >= {"ampwatch.rules.yml"}
    for job in config["scrape_configs"]:
        for place in (f for sd in job.get("file_sd_configs", []) for f in sd["files"]):
            assert here("prometheus", f"{file.parent}/{place}").is_relative_to(
                DEPLOY / "prometheus"
            )

    command = dict(c.removeprefix("--").split("=", 1) for c in SERVICES["alertmanager"]["command"])
    file = PurePosixPath(command["config.file"])
    for template in loaded(here("alertmanager", str(file)))["templates"]:
        assert here("alertmanager", f"{file.parent}/{template}").is_file()


def test_addresses_are_names_of_services_with_the_ports_they_listen_on() -> None:
    """A container reaches another one by its service's name."""
    files = (COMPOSE / "prometheus.yml", GRAFANA / "datasources" / "ampwatch.yaml")
    found = [pair for f in files for pair in re.findall(r'["/]([a-z]+):(\d+)\b', f.read_text())]

    assert {name for name, _ in found} == {"daemon", "alertmanager", "prometheus"}
    for name, port in found:
        assert [published.rsplit(":", 1)[1] for published in SERVICES[name]["ports"]] == [port]


def test_grafana_is_provisioned_as_everything_else_expects() -> None:
    """The uid and the folder that dashboards, links and `ampwatch grafana` name."""
    (source,) = loaded(GRAFANA / "datasources" / "ampwatch.yaml")["datasources"]
    (provider,) = loaded(GRAFANA / "dashboards" / "ampwatch.yaml")["providers"]
    prometheus = loaded(COMPOSE / "prometheus.yml")
    settings = SERVICES["grafana"]["environment"]

    assert (source["uid"], source["type"], source["editable"]) == (
        "ampwatch-prometheus",
        "prometheus",
        False,
    )
    assert source["jsonData"]["timeInterval"] == prometheus["global"]["scrape_interval"]
    assert (provider["folder"], provider["folderUid"]) == ("ampwatch", "ampwatch")
    assert provider["allowUiUpdates"] is False
    assert here("grafana", "/etc/grafana/provisioning") == GRAFANA
    assert here("grafana", provider["options"]["path"]) == ROOT / "dashboards"
    home = here("grafana", settings["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert home == ROOT / "dashboards" / "ampwatch-overview.json"
    assert settings["GF_AUTH_ANONYMOUS_ENABLED"] == "false"


def test_the_training_is_where_the_daemon_looks() -> None:
    """In its network and its /dev/shm; both of one user, for that is the image's."""
    daemon, training = SERVICES["daemon"], SERVICES["training"]
    loop = re.search(r"python -m ampwatch (demo [^;]*);", training["command"][0])
    assert loop is not None
    demo = make_parser().parse_args(loop[1].split())
    (gpu,) = re.findall(r":-(\w+)}", daemon["environment"]["AMPWATCH_GPU"])

    assert (training["network_mode"], training["ipc"]) == ("service:daemon", "service:daemon")
    assert daemon["ipc"] == "shareable"
    dockerfile = (DEPLOY / "container" / "Dockerfile").read_text(encoding="utf-8")
    assert "AMPWATCH_RUNTIME_DIR=/dev/shm/" in dockerfile  # the lock, by which it is found
    assert not {"user"} & {*daemon, *training}
    assert daemon["ports"] == [f"127.0.0.1:{DEFAULT_PORT}:{DEFAULT_PORT}"]
    assert demo.fault_after < demo.seconds
    assert Settings.resolve({"gpu": gpu}).gpu == "demo"


def test_an_image_has_the_versions_that_are_tested() -> None:
    """Packages of constraints.txt, the code and the pages that lie beside the Dockerfile, nothing else."""
    text = (DEPLOY / "container" / "Dockerfile").read_text(encoding="utf-8")
    ignored = (DEPLOY / "container" / "Dockerfile.dockerignore").read_text(encoding="utf-8")
    pins = re.findall(r"([\w-]+==[\w.]+)", text)
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    plain = {c.partition(";")[0].lower().replace("_", "-") for c in constraints}

    assert len(pins) >= 5
    assert {pin.lower() for pin in pins} <= plain
    copied = re.findall(r"^COPY (\S+) ", text, re.MULTILINE)
    assert copied == ["ampwatch", "docs"]
    taken = [line for line in ignored.splitlines() if not line.startswith("#")]
    assert taken[:3] == ["*", "!ampwatch", "!docs"]
    assert re.findall(r"^USER (\S+)$", text, re.MULTILINE)[-1] == "10001:10001"
    assert f":{__version__} ." in text


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
