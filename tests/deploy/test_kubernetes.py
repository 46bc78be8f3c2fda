"""The manifests: valid for Kubernetes, and of one another's opinion."""

from __future__ import annotations

import re
import runpy
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from ampwatch import __version__
from ampwatch.cli import make_parser
from ampwatch.settings import DEFAULT_PORT, Settings
from tests.deploy.parts import DEPLOY, ROOT, containers, kustomized, loaded, only, pod
from tests.integration.prometheus import free_port
from tests.services import require

DIRECTORIES = {
    "monitoring": DEPLOY / "kubernetes",
    "daemonset": DEPLOY / "kubernetes" / "daemonset",
    "training": DEPLOY / "kubernetes" / "training",
}
OF_KUBERNETES = ("daemonset", "training")
"""Manifests that need no custom resource of the Prometheus Operator."""

OLDEST, NEWEST = "1.29", "1.37"
"""Sidecars have been on by default since the first; the last is the newest schema here."""


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", OF_KUBERNETES)
def test_every_object_is_valid(name: str, version: str) -> None:
    """By the schema that Kubernetes publishes; a key that it does not know is refused."""
    for thing in kustomized(DIRECTORIES[name]):
        kubernetes_validate.validate(thing, version, strict=True)


def test_the_pod_monitor_finds_what_runs_a_daemon() -> None:
    """By label and by the name of the port, wherever a daemon is in a pod."""
    monitor = only(kustomized(DIRECTORIES["monitoring"]), "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    wanted = monitor["spec"]["selector"]["matchLabels"]

    for name, kind in (("daemonset", "DaemonSet"), ("training", "Job")):
        workload = only(kustomized(DIRECTORIES[name]), kind)
        assert wanted.items() <= pod(workload)["metadata"]["labels"].items()
        ports = [port for c in containers(workload) for port in c.get("ports", [])]
        assert ports == [{"name": endpoint["port"], "containerPort": DEFAULT_PORT}]
    assert monitor["spec"]["namespaceSelector"] == {"any": True}
    job = [r["replacement"] for r in endpoint["relabelings"] if r["targetLabel"] == "job"]
    assert job == ["ampwatch"]


@pytest.mark.parametrize(
    ("kind", "instance"),
    [("DaemonSet", "node-7"), ("Job", "training-0-x2x"), ("", "training-0-x2x")],
)
def test_an_instance_is_named_after_what_outlives_a_restart(kind: str, instance: str) -> None:
    """The relabelling, done as Prometheus does it: a regex that does not match changes nothing."""
    monitor = only(kustomized(DIRECTORIES["monitoring"]), "PodMonitor")
    labels = {
        "__meta_kubernetes_pod_name": "training-0-x2x",
        "__meta_kubernetes_pod_node_name": "node-7",
        "__meta_kubernetes_pod_controller_kind": kind,
    }
    for rule in monitor["spec"]["podMetricsEndpoints"][0]["relabelings"]:
        value = ";".join(labels[name] for name in rule.get("sourceLabels", []))
        if match := re.fullmatch(rule.get("regex", "(.*)"), value):
            template = rule.get("replacement", "$1").replace("$1", r"\1")
            labels[rule["targetLabel"]] = match.expand(template)

    assert labels["instance"] == instance


def test_the_daemon_of_a_node_has_one_right_and_sees_the_rings() -> None:
    """Rights that ``--machine`` asks for, and nothing that Kubernetes gives besides."""
    daemons = only(kustomized(DIRECTORIES["daemonset"]), "DaemonSet")
    spec = pod(daemons)["spec"]
    (container,) = containers(daemons)
    security = container["securityContext"]

    assert security["capabilities"] == {"drop": ["ALL"], "add": ["DAC_OVERRIDE"]}
    assert security["runAsUser"] == 0  # another user would not get the capability
    assert not security["allowPrivilegeEscalation"]
    assert security["readOnlyRootFilesystem"]
    assert not {"privileged", "hostNetwork", "hostIPC"} & {*security, *spec}
    paths = {volume["name"]: volume.get("hostPath", {}).get("path") for volume in spec["volumes"]}
    mounts = {paths[m["name"]]: m["mountPath"] for m in container["volumeMounts"]}
    assert mounts.get("/dev/shm") == "/dev/shm"
    assert not spec["automountServiceAccountToken"]


def test_prometheus_alone_reaches_the_daemon_of_a_node() -> None:
    """The policy and the namespace fit the DaemonSet."""
    things = kustomized(DIRECTORIES["daemonset"])
    labels = pod(only(things, "DaemonSet"))["metadata"]["labels"].items()
    policy = only(things, "NetworkPolicy")

    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels
    assert policy["spec"]["ingress"][0]["ports"] == [{"protocol": "TCP", "port": "ampwatch"}]
    names = {t["metadata"].get("namespace", t["metadata"]["name"]) for t in things}
    assert names == {"ampwatch"}


def test_a_training_finds_its_sidecar_by_the_lock() -> None:
    """In a directory of the /dev/shm that both have."""
    spec = pod(only(kustomized(DIRECTORIES["training"]), "Job"))["spec"]
    places = [
        next(e["value"] for e in container["env"] if e["name"] == "AMPWATCH_RUNTIME_DIR")
        for container in (*spec["initContainers"], *spec["containers"])
    ]

    assert len(places) == 2
    assert {place.rpartition("/")[0] for place in places} == {"/dev/shm"}
    assert len(set(places)) == 1


@pytest.mark.parametrize("name", OF_KUBERNETES)
def test_the_daemon_takes_the_arguments_and_settings_it_is_given(name: str) -> None:
    """Read by the command line itself; images are of this version."""
    for container in (c for thing in kustomized(DIRECTORIES[name]) for c in containers(thing)):
        environment = {e["name"]: e["value"] for e in container.get("env", [])}
        ours = {k: v for k, v in environment.items() if k.startswith("AMPWATCH_")}
        settings = Settings.resolve({}, environ=ours)
        assert container["image"].rpartition(":")[2] == __version__
        if container["name"] == "ampwatch":
            args = make_parser().parse_args(container["args"])
            assert args.host == "0.0.0.0"
            assert args.machine == (name == "daemonset")
            assert settings.gpu == ("auto" if name == "daemonset" else "off")


def test_torchrun_meets_on_the_first_pod_of_the_job() -> None:
    """Read by torchrun itself: as many nodes as pods, at a name that the Service gives."""
    from torch.distributed.run import get_args_parser  # noqa: PLC0415 - slow, and of this test only

    things = kustomized(DIRECTORIES["training"])
    job, service = only(things, "Job"), only(things, "Service")
    training = containers(job)[1]
    args = get_args_parser().parse_args(training["command"][1:])

    assert training["command"][0] == "torchrun"
    assert int(args.nnodes) == job["spec"]["completions"] == job["spec"]["parallelism"]
    assert job["spec"]["completionMode"] == "Indexed"  # without it pods have no lasting names
    name, subdomain = job["metadata"]["name"], service["metadata"]["name"]
    assert args.rdzv_endpoint == f"{name}-0.{subdomain}:{service['spec']['ports'][0]['port']}"
    assert pod(job)["spec"]["subdomain"] == subdomain
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() <= pod(job)["metadata"]["labels"].items()
    (script,) = only(things, "ConfigMap")["data"]
    mounts = {m["name"]: m["mountPath"] for m in training["volumeMounts"]}
    assert args.training_script == f"{mounts['script']}/{script}"


def test_the_script_trains_and_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, which is told what torchrun tells a rank that is alone."""
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    places = {
        f"AMPWATCH_{name}_DIR": str(tmp_path / name) for name in ("RUNTIME", "RING", "REPORT")
    }
    short = {"AMPWATCH_PORT": "0", "AMPWATCH_GRACE_SECONDS": "0"}
    for name, value in (
        ranks | meeting | places | short | {"STEPS": "3", "AMPWATCH_LEVEL": "light"}
    ).items():
        monkeypatch.setenv(name, value)

    runpy.run_path(str(DIRECTORIES["training"] / "train.py"), run_name="__main__")

    assert "rank 0" in capsys.readouterr().out


PROMETHEUS = DEPLOY / "prometheus"
FLEET = ROOT / "dashboards" / "alerts" / "ampwatch.fleet.rules.yml"


def checked(*command: str) -> str:
    """Return what a checker said; fail with it if it found something."""
    done = subprocess.run([*command], check=False, capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


@pytest.mark.services
@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("prometheus/prometheus.yml", ()),
        ("compose/prometheus.yml", ()),
        ("prometheus/remote-write.yml", ()),
        ("prometheus/agent.yml", ("--agent",)),
    ],
)
def test_prometheus_takes_a_configuration(path: str, options: tuple[str, ...]) -> None:
    """With the rules that it names."""
    said = checked(require("promtool"), "check", "config", *options, str(DEPLOY / path))

    assert ("rules found" in said) == ("rule_files" in (DEPLOY / path).read_text(encoding="utf-8"))


def kept(labels: dict[str, str], rules: list[dict[str, Any]]) -> bool:
    """Tell whether a series passes, by the meaning of ``keep``: the whole value matches."""
    for rule in rules:
        assert rule["action"] == "keep"
        value = rule["separator"].join(labels.get(name, "") for name in rule["source_labels"])
        if not re.fullmatch(rule["regex"], value):
            return False
    return True


def test_a_fleet_sends_its_aggregates_and_nothing_else() -> None:
    """To each of three destinations the same."""
    records = [r["record"] for group in loaded(FLEET)["groups"] for r in group["rules"]]
    aggregates = [r for r in records if r.startswith(("run:", "instance_run:"))]
    sent = [{"__name__": name, "job": "ampwatch", "run": "a"} for name in aggregates]
    sent += [{"__name__": "up", "job": "ampwatch"}]
    sent += [{"__name__": "ALERTS", "alertname": "AmpwatchTrainingStalled", "job": "ampwatch"}]
    held = [
        {"__name__": "ampwatch_loss_scale", "job": "ampwatch", "rank": "7"},
        {"__name__": "run_rank:ampwatch_loss_scale:min", "job": "ampwatch"},
        {"__name__": "up", "job": "node"},
        {"__name__": "ALERTS", "alertname": "NodeDown", "job": "ampwatch"},
    ]
    destinations = loaded(PROMETHEUS / "remote-write.yml")["remote_write"]

    assert len(aggregates) > 30
    assert [d["name"] for d in destinations] == ["mimir", "thanos", "victoriametrics"]
    for destination in destinations:
        rules = destination["write_relabel_configs"]
        assert all(kept(labels, rules) for labels in sent)
        assert not any(kept(labels, rules) for labels in held)


def test_an_agent_scrapes_what_a_prometheus_scrapes() -> None:
    """It evaluates nothing, so it has no rules."""
    agent, full = (loaded(PROMETHEUS / name) for name in ("agent.yml", "prometheus.yml"))

    assert agent["scrape_configs"] == full["scrape_configs"]
    assert not {"rule_files", "alerting"} & agent.keys()
