"""Trainings of other controllers with the daemon as a sidecar, alerts for the Prometheus Operator, and Compose's Prometheus.

They are made of ``deploy/kubernetes/training``, ``deploy/alertmanager`` and ``deploy/prometheus``.
"""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Any

import yaml

from tools.manifests.parts import BASE, MADE, ROOT, replaced

if TYPE_CHECKING:
    from pathlib import Path

JOBSET = """\
# The training of ../training for JobSet, which has names of pods and a Service of its own. Of that directory it needs the
# ConfigMap with the script.
# {made}
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: training
spec:
  failurePolicy:
    maxRestarts: 4
  replicatedJobs:
    - name: node
      template:
        spec:
{job}"""

TRAINJOB = """\
# The training of ../training for Kubeflow Trainer, which says by itself how many nodes there are and where they meet.
# A TrainJob can add no container, so the sidecar is in the runtime. Of that directory it needs the ConfigMap with the script.
# {made}
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata:
  name: torch-ampwatch
  labels:
    trainer.kubeflow.org/framework: torch
spec:
  mlPolicy:
    numNodes: 2
    torch:
      numProcPerNode: 1
  template:
    spec:
      replicatedJobs:
        - name: node
          template:
            metadata:
              labels:
                trainer.kubeflow.org/trainjob-ancestor-step: trainer
            spec:
{job}---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  name: training
spec:
  runtimeRef:
    apiGroup: trainer.kubeflow.org
    kind: TrainingRuntime
    name: torch-ampwatch
"""

RAYJOB = """\
# A sidecar beside each worker of a RayJob: ampwatch.monitor() is called in the function that TorchTrainer runs there. The
# head trains nothing, and has none. Put your image and script in.
# {made}
apiVersion: ray.io/v1
kind: RayJob
metadata:
  name: training
spec:
  entrypoint: python train.py
  shutdownAfterJobFinishes: true
  rayClusterSpec:
    headGroupSpec:
      rayStartParams:
        num-cpus: "0"
      template:
        spec:
          containers:
            - name: ray-head
              image: registry.example.com/training-ray:0.2.0
    workerGroupSpecs:
      - groupName: workers
        replicas: 2
        minReplicas: 2
        maxReplicas: 2
        rayStartParams: {{}}
        template:
          metadata:
            labels:
              ampwatch/scrape: "true" # the PodMonitor looks for it
          spec:
            securityContext:
              # That of Ray's images, and the same for both containers: rings can be read by the one who writes them alone.
              runAsUser: 1000
              runAsGroup: 100
{sidecar}            containers:
              - name: ray-worker
                image: registry.example.com/training-ray:0.2.0
                env:
                  - name: AMPWATCH_RUNTIME_DIR # where the sidecar has its lock, by which it is found
                    value: /dev/shm/ampwatch
                  - name: AMPWATCH_RUN
                    value: training # the same for all ranks, and after a restart
                volumeMounts:
                  - name: shared-memory
                    mountPath: /dev/shm
            volumes:
              # Rings of 2 MiB a rank, and what Ray, NCCL and the workers of a DataLoader put there.
              - name: shared-memory
                emptyDir:
                  medium: Memory
                  sizeLimit: 8Gi
              - name: tmp
                emptyDir: {{}}
"""

ALERTMANAGER = """\
# ../../alertmanager/alertmanager.yml for the Prometheus Operator, without its template, which an AlertmanagerConfig cannot
# bring. Its Alertmanager needs alertmanagerConfigMatcherStrategy: {{type: None}}, or it takes only alerts of this namespace.
# {made}
"""


COMPOSE = """\
# Prometheus of compose.yaml. As ../prometheus/prometheus.yml but for the addresses: here the others are found by the names of
# their services. One on this machine itself is host.docker.internal:10917 from here, and has to listen where that arrives.
# {made}

global:
"""


def examples() -> dict[Path, str]:
    """Return the examples, by file."""
    made = {**_trainings(), "alertmanagerconfig": _alertmanager()}
    files = {BASE / "examples" / f"{name}.yaml": text for name, text in made.items()}
    return {ROOT / "deploy" / "compose" / "prometheus.yml": _compose(), **files}


def _compose() -> str:
    text = (ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
    text = re.sub(
        r"    # The daemon of this machine names itself(\n    #|.)*?\n(?=    http)", "", text
    )
    changes = (
        ("[targets/", "[../prometheus/targets/"),
        ("localhost:9093", "alertmanager:9093"),
        ("127.0.0.1:10917", "daemon:10917"),
    )
    return COMPOSE.format(made=MADE) + replaced(text, changes).partition("\nglobal:\n")[2]


def _trainings() -> dict[str, str]:
    job = (BASE / "training" / "job.yaml").read_text(encoding="utf-8").partition("\nspec:\n")[2]
    job = re.sub(r"(image: )(\S+)", r"\1registry.example.com/\2:0.2.0", job)
    job = replaced(
        job,
        (
            ("      subdomain: training # the headless Service\n", ""),
            (", training-0 and training-1.", "."),
        ),
    )
    jobset = replaced(job, (("training-0.training:", "training-node-0-0.training:"),))
    # How many nodes there are, and where they meet, is in variables that torchrun reads.
    runtime = job[job.index("  # torchrun starts ranks again") :]
    runtime = re.sub(r" +- --(nnodes|nproc|rdzv).*\n", "", runtime)
    runtime = replaced(runtime, (("        - name: training\n", "        - name: node\n"),))
    sidecar = job[job.index("      initContainers:\n") : job.index("      containers:\n")]
    return {
        "jobset": JOBSET.format(made=MADE, job=textwrap.indent(jobset, " " * 8)),
        "trainjob": TRAINJOB.format(made=MADE, job=textwrap.indent(runtime, " " * 12)),
        "rayjob": RAYJOB.format(made=MADE, sidecar=textwrap.indent(sidecar, " " * 6)),
    }


def _alertmanager() -> str:
    path = ROOT / "deploy" / "alertmanager" / "alertmanager.yml"
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    # It is one of many: alerts of others are not its own.
    config["route"]["matchers"] = ['alertname=~"Ampwatch.+"']
    thing = {
        "apiVersion": "monitoring.coreos.com/v1alpha1",
        "kind": "AlertmanagerConfig",
        "metadata": {"name": "ampwatch", "labels": {"release": "kube-prometheus-stack"}},
        "spec": _as_operator(
            {part: config[part] for part in ("route", "receivers", "inhibit_rules")}
        ),
    }
    return ALERTMANAGER.format(made=MADE) + yaml.safe_dump(thing, sort_keys=False, width=200)


def _as_operator(value: Any) -> Any:
    """Return a part of Alertmanager's configuration in the words of an AlertmanagerConfig."""
    if isinstance(value, list):
        return [_as_operator(each) for each in value]
    if not isinstance(value, dict):
        return value
    found = {}
    for name, each in value.items():
        if name.endswith("matchers"):
            found[name.replace("_matchers", "Match")] = [_matcher(matcher) for matcher in each]
        else:
            camel = re.sub(r"_(\w)", lambda match: match[1].upper(), name)
            found[camel] = _as_operator(each)
    return found


def _matcher(text: str) -> dict[str, str]:
    match = re.fullmatch(r'(\w+)(=~|!=|!~|=)"(.*)"', text)
    if match is None:
        msg = f'expected a matcher like alertname=~"...", got {text!r}'
        raise SystemExit(msg)
    return {"name": match[1], "matchType": match[2], "value": match[3]}
