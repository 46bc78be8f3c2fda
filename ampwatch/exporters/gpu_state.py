"""The part of the page's state that is about GPUs: plain numbers and words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ampwatch.aggregate.gpus import NOTHING_WRONG, Answers, Reason
from ampwatch.aggregate.text import encodable
from ampwatch.exporters.gpu_samples import users

if TYPE_CHECKING:
    from ampwatch.aggregate import Fleet
    from ampwatch.aggregate.gpus import Gpu

    State = dict[str, Any]


REASONS = {reason.value: reason.text for reason in Reason}


def gpu_state(fleet: Fleet) -> State:
    """Return what the page shows of GPUs.

    ``host`` says how NVML itself stands, ``gpus`` holds one entry per uuid: ``values`` by
    feature and part (the part is empty where there is one value), ``capabilities`` with
    [state, reason] by feature, whose reasons ``reasons`` puts into words, ``xids`` with [count, Unix time of the newest] by code, those
    that have happened, ``users`` with the watched ranks on it as [run, rank, memory or null].
    """
    host = fleet.gpus.host
    on_gpu: dict[str, list[list[Any]]] = {}
    for rank, gpu, used in users(fleet):
        on_gpu.setdefault(gpu.uuid, []).append([rank.run, rank.identity.rank, used])
    return {
        "host": {
            "state": host.state,
            "reason": host.value,
            "text": host.text,
            "fine": host in NOTHING_WRONG,
        },
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
        "facts": {name: encodable(value) for name, value in gpu.facts.items()},
        "values": _values(gpu.answers),
        "capabilities": {
            feature: [reason.state, reason.value] for feature, reason in gpu.capabilities()
        },
        "xids": {code: [xids.counts[code], seen] for code, seen in xids.seen.items()},
        "users": ranks,
        "instances": {
            str(instance.number): {
                "devices": [
                    [encodable(d.uuid), d.compute_instance, encodable(d.profile)]
                    for d in instance.devices
                ],
                "values": _values(instance.answers),
            }
            for instance in gpu.instances
        },
    }


def _values(answers: Answers) -> dict[str, dict[str, float]]:
    """Return the numbers that are known; ten digits, so that counters stay whole on the way."""
    known = {
        feature.value: {
            part: float(f"{answer:.10g}")
            for part, answer in parts.items()
            if not isinstance(answer, Reason)
        }
        for feature, parts in answers.items()
    }
    return {feature: parts for feature, parts in known.items() if parts}
