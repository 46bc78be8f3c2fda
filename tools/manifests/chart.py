"""Rules for the Prometheus Operator, and the templates of the Helm chart.

A template is a file of the kustomizations in ``deploy/kubernetes`` in which some lines are replaced by
what ``values.yaml`` has, whose defaults are what was replaced.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from tools.manifests.parts import BASE, MADE, ROOT, replaced

if TYPE_CHECKING:
    from pathlib import Path

TEMPLATES = ROOT / "deploy" / "helm" / "ampwatch" / "templates"
DASHBOARDS = ROOT / "dashboards"

RULE = """\
---
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: {name}
  labels:
    app.kubernetes.io/name: ampwatch
    # The Prometheus of kube-prometheus-stack looks at what has the label of its release only.
    release: kube-prometheus-stack
spec:
"""

DASHBOARD = """\
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: {name}
  labels:
    grafana_dashboard: "1"
  annotations:
    grafana_folder: ampwatch
data:
"""

COMPLETE = 'required "expected the chart as `ampwatch deploy DIR` writes it, with its files; got the one of a checkout"'

GRAFANA = '(.Values.settings.AMPWATCH_GRAFANA_URL | default "" | trimSuffix "/" | printf " %s/d/ampwatch-")'
"""Where the dashboards in the annotations of alerts are, which the rule files name by their paths alone."""


def each(values: str, indent: int, line: str) -> str:
    """Return a line for each entry of a mapping of ``values.yaml``."""
    begin, end = f"{{{{- range $name, $value := .Values.{values} }}}}", "{{- end }}"
    return "\n".join(f"{' ' * indent}{text}" for text in (begin, *line.splitlines(), end))


def all_of(values: str, indent: int) -> str:
    """Return the entries of a list of ``values.yaml``, to stand before others."""
    begin = f"{{{{- range .Values.{values} }}}}"
    return "\n".join(
        f"{' ' * indent}{text}" for text in (begin, "- {{ . | toJson }}", "{{- end }}")
    )


PORT = ("10917", "{{ .Values.port }}")
IMAGE = ("image: ampwatch\n", "image: {{ .Values.image | toJson }}\n")
LABELS = (
    "    release: kube-prometheus-stack",
    each("monitoring.labels", 4, "{{ $name }}: {{ $value | toJson }}"),
)

DAEMONSET = (
    PORT,
    IMAGE,
    (
        'nodeSelector:\n        nvidia.com/gpu.present: "true"',
        "nodeSelector: {{ .Values.nodeSelector | toJson }}",
    ),
    (
        "tolerations:\n        - key: nvidia.com/gpu\n          operator: Exists\n          effect: NoSchedule",
        "tolerations: {{ .Values.tolerations | toJson }}",
    ),
    (
        "      runtimeClassName: nvidia\n",
        "      {{- if .Values.runtimeClassName }}\n      runtimeClassName: {{ .Values.runtimeClassName | toJson }}\n      {{- end }}\n",
    ),
    (
        "      containers:\n",
        "      imagePullSecrets: {{ .Values.imagePullSecrets | toJson }}\n      containers:\n",
    ),
    ("args: [daemon, --machine, --host, 0.0.0.0]", "args: {{ .Values.args | toJson }}"),
    (
        '            - name: AMPWATCH_ALERTMANAGER_URL\n              value: ""\n            - name: AMPWATCH_GRAFANA_URL\n              value: ""',
        each("settings", 12, "- name: {{ $name }}\n  value: {{ $value | toJson }}"),
    ),
    (
        "            httpGet: {path: /healthz, port: ampwatch}",
        each("probe", 12, "{{ $name }}: {{ $value | toJson }}"),
    ),
    (
        "resources:\n            requests: {cpu: 50m, memory: 128Mi}\n            limits: {memory: 512Mi}",
        "resources: {{ .Values.resources | toJson }}",
    ),
    (
        "          volumeMounts:\n",
        "          volumeMounts:\n" + all_of("extraVolumeMounts", 12) + "\n",
    ),
    ("      volumes:\n", "      volumes:\n" + all_of("extraVolumes", 8) + "\n"),
)

MONITOR = (
    LABELS,
    ("interval: 10s", "interval: {{ .Values.scrapeInterval }}"),
    ("scrapeTimeout: 10s", "scrapeTimeout: {{ .Values.scrapeTimeout }}"),
)

POLICY = (
    (
        "kubernetes.io/metadata.name: monitoring",
        "kubernetes.io/metadata.name: {{ .Values.monitoring.namespace | toJson }}",
    ),
)

TRAINING = (
    PORT,
    IMAGE,
    ("image: ampwatch-training", "image: {{ .Values.example.image | toJson }}"),
)


def templated(text: str, changes: tuple[tuple[str, str], ...], switch: str, namespace: str) -> str:
    """Return a template of objects.

    Args:
        text: The objects.
        changes: What stands there, and what is put in its place.
        switch: The value that says whether these objects are wanted.
        namespace: Of the objects, as the template has it.
    """
    text = replaced(text, changes)
    text = text.replace(
        "\nmetadata:\n", f"\nmetadata:\n  namespace: {{{{ {namespace} | toJson }}}}\n"
    )
    head = f"{{{{- /* {MADE} */}}}}"
    return f"{head}\n{{{{- if .Values.{switch}.enabled }}}}\n{text}{{{{- end }}}}\n"


def chart() -> dict[Path, str]:
    """Return the templates of the chart, and the rules that one of them has as well, by file."""
    rules = sorted((DASHBOARDS / "alerts").glob("*.rules.yml"))
    heads = {
        path: RULE.format(name=path.name[: -len(".rules.yml")].replace(".", "-")) for path in rules
    }
    operator = "".join(
        heads[path] + textwrap.indent(path.read_text(encoding="utf-8"), "  ") for path in rules
    )
    from_files = "".join(
        heads[path].replace(
            "spec:\n",
            f'spec: {{{{ .Files.Get "files/{path.name}" | {COMPLETE} | replace " /d/ampwatch-" {GRAFANA} | fromYaml | toJson }}}}\n',
        )
        for path in rules
    )
    dashboards = "".join(
        DASHBOARD.format(name=path.stem)
        + f'  {path.name}: {{{{ .Files.Get "files/{path.name}" | {COMPLETE} | toJson }}}}\n'
        for path in sorted(DASHBOARDS.glob("*.json"))
    )
    script = (
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: training-script\ndata:\n"
        f'  train.py: {{{{ .Files.Get "files/train.py" | {COMPLETE} | toJson }}}}\n'
    )

    def base(*names: str) -> str:
        return "---\n".join((BASE / name).read_text(encoding="utf-8") for name in names)

    release, monitoring = ".Release.Namespace", ".Values.monitoring.namespace"
    daemon, training = "daemonset/", "training/"
    made = {
        "daemonset": templated(base(f"{daemon}daemonset.yaml"), DAEMONSET, "daemonset", release),
        "networkpolicy": templated(
            base(f"{daemon}networkpolicy.yaml"), POLICY, "networkPolicy", release
        ),
        "podmonitor": templated(base("podmonitor.yaml"), MONITOR, "podMonitor", monitoring),
        "prometheusrule": templated(from_files, (LABELS,), "prometheusRule", monitoring),
        "dashboards": templated(
            dashboards,
            (
                (
                    '    grafana_dashboard: "1"',
                    each("dashboards.labels", 4, "{{ $name }}: {{ $value | toJson }}"),
                ),
                (
                    "    grafana_folder: ampwatch",
                    each("dashboards.annotations", 4, "{{ $name }}: {{ $value | toJson }}"),
                ),
            ),
            "dashboards",
            monitoring,
        ),
        "example": templated(
            base(f"{training}job.yaml", f"{training}service.yaml") + script,
            TRAINING,
            "example",
            release,
        ),
    }
    head = f"# Of dashboards/alerts/*.rules.yml, which change instead.\n# {MADE}\n"
    return {
        BASE / "prometheusrule.yaml": head + operator,
        **{TEMPLATES / f"{name}.yaml": text for name, text in made.items()},
    }
