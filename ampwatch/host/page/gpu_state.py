"""The part of the page's state that is about GPUs: plain numbers and words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ampwatch.host.fleet.gpus import Answers, Feature, Reason, users
from ampwatch.host.page.as_json import digits
from ampwatch.state.text import encodable

if TYPE_CHECKING:
    from ampwatch.host.fleet import Fleet
    from ampwatch.host.fleet.gpus import Gpu
    from ampwatch.host.page.rows import State

REASONS = {reason.value: reason.text for reason in Reason}

SHOWN = (
    Feature.UTILIZATION,
    Feature.TENSOR_ACTIVE,
    Feature.MEMORY,
    Feature.POWER,
    Feature.POWER_LIMIT,
    Feature.CLOCK,
    Feature.CLOCK_MAX,
    Feature.TEMPERATURE,
    Feature.THROTTLE,
    Feature.XID,
    Feature.ECC,
    Feature.REMAPPED_ROWS,
)
"""Features that the page has room for; Prometheus gets all."""


def gpu_state(fleet: Fleet) -> State:
    """Return what the page shows of GPUs.

    ``host`` says in words how NVML itself stands, ``gpus`` holds one entry per uuid: ``values``
    by feature and part (the part is empty where there is one value), ``capabilities`` with the
    reason by feature, which ``reasons`` puts into words, ``xids`` with [count, Unix time of the
    newest] by code, those that have happened, ``users`` with the watched ranks on it as [run,
    rank, bytes of memory or null], ``instances`` with the profiles of their MIG devices.
    """
    on_gpu: dict[str, list[list[Any]]] = {}
    for use in users(fleet.ranks(), fleet.gpus):
        on_gpu.setdefault(use.gpu.uuid, []).append(
            [use.rank.run, use.rank.identity.rank, use.memory]
        )
    return {
        "host": fleet.gpus.newest.text,
        "reasons": REASONS,
        "gpus": {
            encodable(gpu.uuid): _gpu(fleet, gpu, on_gpu.get(gpu.uuid, []))
            for gpu in fleet.gpus.all()
        },
    }


def _gpu(fleet: Fleet, gpu: Gpu, ranks: list[list[Any]]) -> State:
    xids = fleet.gpus.xids(gpu.uuid)
    return {
        "index": gpu.index,
        "up": gpu.is_up,
        "gone": gpu.gone.value,
        "name": encodable(gpu.facts.get("name", "")),
        "synthetic": gpu.facts.get("synthetic") == "true",
        "values": _values(gpu.answers),
        "capabilities": {
            feature: reason.value for feature, reason in gpu.capabilities() if feature in SHOWN
        },
        "xids": {code: [xids.counts[code], seen] for code, seen in xids.seen.items()},
        "users": ranks,
        "instances": {
            str(instance.number): {
                "profiles": [encodable(device.profile) for device in instance.devices],
                "values": _values(instance.answers),
            }
            for instance in gpu.instances
        },
    }


def _values(answers: Answers) -> dict[str, dict[str, float | str]]:
    """Return the numbers that are known; ten digits, so that counters stay whole on the way."""
    known = {
        feature.value: {
            part: digits(answer, 10)
            for part, answer in parts.items()
            if not isinstance(answer, Reason)
        }
        for feature, parts in answers.items()
        if feature in SHOWN
    }
    return {feature: parts for feature, parts in known.items() if parts}
