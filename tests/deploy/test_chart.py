"""The Helm chart makes the objects that Kustomize makes, and the values change what they say."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jinja2
import jsonschema
import kubernetes_validate
import pytest
import yaml

from ampwatch import __version__
from ampwatch.operate.deploy.options import DeployOptions
from ampwatch.operate.deploy.tree import tree
from tests.deploy.parts import DEPLOY, containers, kustomized, loaded, only, pod

CHART = "deploy/helm/ampwatch/"


def rendered(files: dict[str, str], values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the objects of the chart in a deployment.

    Args:
        files: Text by path.
        values: What replaces defaults, at the first level.
    """
    given = {
        "Values": yaml.safe_load(files[f"{CHART}values.yaml"]) | values,
        "Release": {"Namespace": "ampwatch"},
        "Files": {path.removeprefix(CHART): text for path, text in files.items()},
    }
    environment = jinja2.Environment()
    environment.filters |= {
        "toJson": json.dumps,
        "fromYaml": yaml.safe_load,
        "default": lambda value, other: value or other,
        "printf": lambda value, form: form % value,
        "required": lambda value, _: value,
        "trimSuffix": lambda text, end: text.removesuffix(end),
    }
    return [
        thing
        for path, text in files.items()
        if path.startswith(f"{CHART}templates/")
        for thing in yaml.safe_load_all(environment.from_string(_as_jinja(text)).render(given))
    ]


def _as_jinja(text: str) -> str:
    opened = list[str]()

    def tag(match: re.Match[str]) -> str:
        what, _, rest = match[1].partition(" ")
        if what == "/*":
            return ""
        if what == "end":
            return f"{{%- end{opened.pop()} %}}"
        if what == "if":
            opened.append("if")
            return f"{{%- if {_expression(rest)} %}}"
        if what == "range":
            opened.append("for")
            names, _, over = rest.rpartition(" := ")
            each = "name, value in %s | dictsort" if names else "it in %s"
            return f"{{%- for {each % _expression(over)} %}}"
        return f"{{{{ {_expression(match[1])} }}}}"

    return re.sub(r"\{\{-? (.*?) ?\}\}", tag, text)


def _expression(text: str) -> str:
    """Return a pipeline: a value, and functions that take it with arguments of their own."""
    value, *functions = re.split(r" \| (?![^(]*\))", text)
    calls = []
    for function in functions:
        name, *given = re.findall(r'\(.*\)|"[^"]*"|\S+', function)
        given = [f"({_expression(g[1:-1])})" if g[0] == "(" else g for g in given]
        calls.append(f" | {name}({', '.join(given)})")
    value = re.sub(r'^\.Files\.Get (".*")$', r"Files[\1]", value)
    return ("it" if value == "." else value.lstrip(".$")) + "".join(calls)


KUBERNETES = DEPLOY / "kubernetes"
HELM = DEPLOY / "helm" / "ampwatch"
SWITCHES = [name for name, value in loaded(HELM / "values.yaml").items() if "enabled" in str(value)]
CONTROLLERS = ("jobset", "trainjob", "rayjob")
EXAMPLE = {"enabled": True, "image": f"registry.example.com/ampwatch-training:{__version__}"}


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return tree(DeployOptions())


def by_name(things: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(thing["kind"], thing["metadata"]["name"]): thing for thing in things}


def test_by_default_it_makes_what_kustomize_makes(files: dict[str, str]) -> None:
    """But for the namespace, which is Helm's to make; the training is there if it is wanted."""
    made = by_name(rendered(files, {"example": EXAMPLE}))
    wanted = [
        thing
        for directory in (KUBERNETES, KUBERNETES / "daemonset", KUBERNETES / "training")
        for thing in kustomized(directory)
        if thing["kind"] != "Namespace"
    ]
    for thing in wanted:
        thing["metadata"].setdefault("namespace", "ampwatch")
        if thing["kind"] == "ConfigMap":  # what the API takes
            assert len(str(thing["data"]).encode()) < 1_000_000
    assert pod(made["DaemonSet", "ampwatch"])["spec"].pop("imagePullSecrets") == []

    assert made == by_name(wanted)


def test_each_part_can_be_left_out(files: dict[str, str]) -> None:
    off = {name: {**loaded(HELM / "values.yaml")[name], "enabled": False} for name in SWITCHES}
    assert rendered(files, off) == []
    for name in SWITCHES:
        values = loaded(HELM / "values.yaml")[name] | {"enabled": True}
        assert rendered(files, off | {name: values}) != []


def test_values_are_in_the_daemonset(files: dict[str, str]) -> None:
    """A daemon with TLS and a password, on all nodes; still valid for Kubernetes."""
    values = yaml.safe_load("""
        args: [daemon, --machine, --web.config.file, /etc/ampwatch/web.yml]
        extraVolumes: [{name: web, secret: {secretName: web}}]
        extraVolumeMounts: [{name: web, mountPath: /etc/ampwatch}]
        probe: {tcpSocket: {port: ampwatch}}
        settings: {AMPWATCH_GPU: "off"}
        runtimeClassName: ""
    """)
    things = rendered(files, values)
    for kind in ("DaemonSet", "NetworkPolicy"):
        kubernetes_validate.validate(only(things, kind), "1.37", strict=True)
    (container,) = containers(only(things, "DaemonSet"))

    assert container["args"] == values["args"]
    assert values["extraVolumeMounts"][0] in container["volumeMounts"]
    assert "runtimeClassName" not in pod(only(things, "DaemonSet"))["spec"]
    assert {"name": "AMPWATCH_GPU", "value": "off"} in container["env"]
    assert container["livenessProbe"]["tcpSocket"] == {"port": "ampwatch"}


def test_alerts_link_to_the_grafana_of_the_daemon(files: dict[str, str]) -> None:
    url = "https://example.com/grafana/"
    things = rendered(files, {"settings": {"AMPWATCH_GRAFANA_URL": url}})
    alerts = by_name(things)["PrometheusRule", "ampwatch"]["spec"]["groups"]
    links = [r["annotations"]["dashboard"] for g in alerts for r in g["rules"] if "alert" in r]

    assert len(links) > 17
    assert all(link.startswith(f"{url}d/ampwatch-") for link in links)


def test_the_schema_takes_the_defaults_and_refuses_what_would_not_work() -> None:
    schema = json.loads((HELM / "values.schema.json").read_text(encoding="utf-8"))
    values, faults = loaded(HELM / "values.yaml"), jsonschema.Draft7Validator(schema).iter_errors
    wrong = {
        "port": 0,
        "image": "ampwatch",
        "scrapeInterval": "2m",
        "settings": {"AMPWATCH_GRAFANA_URL": "g.example.com"},
        "podMonitor": {"enable": True},
    }

    assert list(faults(values)) == []
    assert {fault.path[0] for fault in faults(values | wrong)} == wrong.keys()
    assert len(list(faults(values | {"daemonSet": {}}))) == 1


def test_the_chart_is_of_this_version_and_wants_its_files(files: dict[str, str]) -> None:
    """In a checkout it has none: that of a deployment is to be installed."""
    chart = yaml.safe_load(files[f"{CHART}Chart.yaml"])
    read = {name for text in files.values() for name in re.findall(r'Files\.Get "(.*?)"', text)}

    assert chart["version"] == chart["appVersion"] == __version__
    assert loaded(HELM / "values.yaml")["image"].endswith(f":{__version__}")
    assert {f"{CHART}{name}" for name in read} == {
        p for p in files if p.startswith(f"{CHART}files/")
    }


def pods_with_init_containers(thing: Any) -> Iterator[dict[str, Any]]:
    if isinstance(thing, dict) and "initContainers" in thing.get("spec", ()):
        yield thing
    for each in thing.values() if isinstance(thing, dict) else thing:
        if isinstance(each, (dict, list)):
            yield from pods_with_init_containers(each)


@pytest.mark.parametrize("name", ["training/job", *(f"examples/{n}" for n in CONTROLLERS)])
def test_the_sidecar_of_a_training_shares_user_and_memory_with_it(name: str) -> None:
    """In a pod that Kubernetes takes; the PodMonitor finds it, and no training starts before it has answered."""
    things = yaml.safe_load_all((KUBERNETES / f"{name}.yaml").read_text(encoding="utf-8"))
    (template,) = pods_with_init_containers(list(things))
    head = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}
    kubernetes_validate.validate({**head, "spec": template["spec"]}, "1.29", strict=True)
    sidecar, training = containers({"spec": {"template": template}})

    assert template["metadata"]["labels"]["ampwatch/scrape"] == "true"
    assert (sidecar["restartPolicy"], "startupProbe" in sidecar) == ("Always", True)
    assert "runAsUser" in template["spec"]["securityContext"]
    memory = next(v for v in template["spec"]["volumes"] if v["name"] == "shared-memory")
    assert memory["emptyDir"]["medium"] == "Memory"
    for container in (sidecar, training):
        assert {"name": "shared-memory", "mountPath": "/dev/shm"} in container["volumeMounts"]
        assert "runAsUser" not in container.get("securityContext", {})


def test_an_alertmanager_of_the_operator_has_the_same_routes_and_silences() -> None:
    """For the alerts of ampwatch alone: it is one configuration of many."""
    ours = loaded(DEPLOY / "alertmanager" / "alertmanager.yml")
    theirs = loaded(KUBERNETES / "examples" / "alertmanagerconfig.yaml")["spec"]

    def written(matchers: list[dict[str, str]]) -> list[str]:
        return [f'{m["name"]}{m["matchType"]}"{m["value"]}"' for m in matchers]

    assert written(theirs["route"]["matchers"]) == ['alertname=~"Ampwatch.+"']
    assert len(theirs["route"]["routes"]) == len(ours["route"]["routes"])
    for old, new in zip(ours["inhibit_rules"], theirs["inhibitRules"], strict=True):
        assert old["source_matchers"] == written(new["sourceMatch"])
        assert old["target_matchers"] == written(new["targetMatch"])
        assert old["equal"] == new["equal"]
