"""Rules as the Prometheus Operator takes them: the rule files, each in a PrometheusRule."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

PATH = "deploy/kubernetes/prometheusrule.yaml"

_HEAD = """\
# Generated from dashboards/alerts/*.rules.yml, which change instead; then
# python -m ampwatch.operate.deploy > deploy/kubernetes/prometheusrule.yaml
"""

_OBJECT = """\
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


def prometheus_rules(rules: Mapping[str, str]) -> str:
    """Return the manifests of rule files.

    A rule file is what ``spec`` holds, so it is indented and not parsed: comments stay.

    Args:
        rules: Text by file name, ``ampwatch.rules.yml``.
    """
    objects = [
        _OBJECT.format(name=name.removesuffix(".rules.yml").replace(".", "-"))
        + textwrap.indent(text, "  ")
        for name, text in sorted(rules.items())
    ]
    return _HEAD + "".join(objects)
