"""The ranks that compute on each GPU. No NVML here, no torch, no network."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ampwatch.host.fleet.fleet import Fleet
    from ampwatch.host.fleet.gpus import Gpu
    from ampwatch.host.fleet.rank import RankView


def gpu_of(rank: RankView, gpus: Iterable[Gpu]) -> Gpu | None:
    """Return the GPU that ``rank`` computes on, ``None`` if that is not known or not one.

    It is the one that PyTorch says the model is on, else the only one that has its process. A
    synthetic GPU is nobody's: its readings say nothing of a training.
    """
    real = [gpu for gpu in gpus if not _is_synthetic(gpu)]
    named = [gpu for gpu in real if _names(rank, gpu)]
    # The name first: in a container the daemon may know a pid that is another process's.
    found = named or [gpu for gpu in real if rank.pid and rank.pid in gpu.processes]
    return found[0] if len(found) == 1 else None


def users(fleet: Fleet) -> Iterator[tuple[RankView, Gpu, int | None]]:
    """Yield the watched ranks that compute on a GPU, and how much of its memory they have.

    They are matched by their pid as the daemon sees it, or by the GPU that PyTorch says the
    model is on; where neither is known, a rank is on no GPU. A synthetic GPU is given to the
    ranks whose local rank is its number, so that the join can be tried. Unit: bytes.
    """
    for rank in fleet.ranks():
        for gpu in fleet.gpus.all():
            if rank.pid and rank.pid in gpu.processes:
                yield rank, gpu, gpu.processes[rank.pid]
            elif _names(rank, gpu) or _tries(rank, gpu):
                yield rank, gpu, None


def _names(rank: RankView, gpu: Gpu) -> bool:
    return not rank.ended and rank.facts.get("gpu_uuid") == gpu.uuid


def _tries(rank: RankView, gpu: Gpu) -> bool:
    return not rank.ended and _is_synthetic(gpu) and gpu.index == rank.identity.local_rank


def _is_synthetic(gpu: Gpu) -> bool:
    return gpu.facts.get("synthetic") == "true"
