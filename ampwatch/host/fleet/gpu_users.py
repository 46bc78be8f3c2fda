"""The ranks that compute on each GPU. No NVML here, no torch, no network."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.host.fleet.gpus import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ampwatch.host.fleet.gpus import Gpu, Gpus, Instance
    from ampwatch.host.fleet.rank import RankView


class Use(NamedTuple):
    """A watched rank on a GPU.

    Attributes:
        rank: The rank.
        gpu: The GPU.
        instance: The GPU instance (MIG) that it computes on; ``None`` if there is none, or if
            nobody knows which.
        memory: What it uses of the GPU's memory, ``None`` if that is not known. Unit: bytes.
    """

    rank: RankView
    gpu: Gpu
    instance: Instance | None
    memory: int | None


def gpu_of(rank: RankView, gpus: Iterable[Gpu]) -> Gpu | None:
    """Return the GPU that ``rank`` computes on, ``None`` if that is not known or not one.

    It is the one that PyTorch says the model is on, else the only one that has its process. A
    synthetic GPU is nobody's: its readings say nothing of a training.
    """
    real = [gpu for gpu in gpus if not _is_synthetic(gpu)]
    named = [gpu for gpu in real if gpu.shows(_name(rank))]
    # The name first: in a container the daemon may know a pid that is another process's.
    found = named or [gpu for gpu in real if rank.pid and rank.pid in gpu.processes]
    return found[0] if len(found) == 1 else None


def users(ranks: Iterable[RankView], gpus: Gpus) -> Iterator[Use]:
    """Yield the watched ranks that compute on a GPU.

    They are matched by their pid as the daemon sees it, or by the device that PyTorch says the
    model is on; where neither is known, a rank is on no GPU. A synthetic GPU is given to the
    ranks whose local rank is its number, so that the join can be tried.
    """
    for rank in ranks:
        name = _name(rank)
        for gpu in gpus.all():
            inside = [i for i in gpu.instances if rank.pid and rank.pid in i.processes]
            for instance in inside:
                yield Use(rank, gpu, instance, instance.processes[rank.pid])
            if inside:
                continue
            if rank.pid and rank.pid in gpu.processes:
                yield Use(rank, gpu, gpu.instance_of(name), gpu.processes[rank.pid])
            elif gpu.shows(name) or (
                not rank.ended and _is_synthetic(gpu) and gpu.index == rank.identity.local_rank
            ):
                yield Use(rank, gpu, gpu.instance_of(name), None)


def unseen(ranks: Iterable[RankView], gpus: Gpus) -> dict[str, Reason]:
    """Return the devices that ranks compute on and NVML does not show, with that as the reason."""
    known = replace(gpus.newest, gpus=gpus.all())
    names = sorted({_name(rank) for rank in ranks})
    return {name: Reason.NOT_SHOWN for name in names if known.hides(name)}


def _name(rank: RankView) -> str:
    """Return the uuid of the device that PyTorch says the model is on; empty once the rank ended."""
    return "" if rank.ended else rank.facts.get("gpu_uuid", "")


def _is_synthetic(gpu: Gpu) -> bool:
    return gpu.facts.get("synthetic") == "true"
