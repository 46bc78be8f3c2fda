"""Checksums of weights: one bit makes a difference, and how they are laid out does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from ampwatch.diagnosis.evidence.scaler import GROUPS
from ampwatch.training.hooks.events import IterationClosing
from ampwatch.training.sensors.state import checksums
from tests.training.bench import Bench

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn)


def sums(*weights: torch.Tensor) -> list[tuple[int, ...]]:
    """The checksums of each part, as another rank would compare them."""
    named = [(f"{number}", weight) for number, weight in enumerate(weights)]
    found = []
    for part in checksums._plan(named).parts:
        totals = [checksums._sum(named, group) for group in part]
        limbs = checksums._limbs(torch.stack(totals)).tolist()
        found.append(
            tuple(sum(int(limbs[i][g]) << 16 * i for i in range(3)) for g in range(len(part)))
        )
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_bit_of_each_element_counts(dtype: torch.dtype) -> None:
    """The sign as well as the last bit, in exactly one group."""
    weight = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    before = sums(weight)
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    width = 8 * weight.element_size()
    for element in range(weight.numel()):
        for bit in range(width):
            changed = weight.clone()
            bits = changed.view(integers[weight.element_size()]).view(-1)
            bits[element] ^= 1 << bit if bit < width - 1 or dtype.itemsize == 1 else -(1 << bit)
            after = sums(changed)
            assert sum(a != b for a, b in zip(before[0], after[0], strict=True)) == 1, (
                element,
                bit,
            )


def test_what_moves_in_opposite_directions_does_not_cancel() -> None:
    """A plain sum of the bits would not see it."""
    weight = torch.ones(8)
    weight[1] = 2.0
    moved = weight.clone()
    moved.view(torch.int32)[0] += 1
    moved.view(torch.int32)[1] -= 1

    assert sums(weight) != sums(moved)


def test_views_that_lie_elsewhere_in_memory_have_the_same_checksum() -> None:
    """An offset into a flat buffer, as of a bucket, is of no account."""
    weight = torch.randn(6, 4)
    flat = torch.cat([torch.zeros(7), weight.view(-1), torch.ones(3)])

    assert sums(weight) == sums(flat[7:31].view(6, 4))


def test_every_element_is_in_one_part_and_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many parameters there are and however large: no gap, no overlap, bounded parts."""
    monkeypatch.setattr(checksums, "HOST_BYTES", 512)
    named = [(f"{n}", torch.empty(n, dtype=DTYPES[n % 3])) for n in (1, 300, 7, 64, 0, 1025)]
    plan = checksums._plan(named)

    spans = [span for part in plan.parts for group in part for span in group]
    for number, (name, weight) in enumerate(named):
        mine = sorted((s.begin, s.end) for s in spans if (s.name, s.number) == (name, number))
        covered = [i for begin, end in mine for i in range(begin, end)]
        assert covered == list(range(weight.numel()))
    sizes = [sum((s.end - s.begin) * 4 for g in part for s in g) for part in plan.parts]
    assert max(sizes) <= 2 * 512
    assert all(1 <= len(part) <= GROUPS for part in plan.parts)


def summed(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch, *, any_device: bool = False
) -> list[str]:
    """The parameters that a check of a model sums."""
    found: list[str] = []

    def noted(weights: list[tuple[str, torch.Tensor]], group: list[checksums._Span]) -> object:
        found.extend(weights[span.number][0] for span in group)
        return torch.zeros((), dtype=torch.int64)

    monkeypatch.setattr(checksums, "_sum", noted)
    if any_device:
        monkeypatch.setattr(checksums, "is_plain", lambda _: True)
    bench = Bench([model])
    bench.out.ring_path = Path("of this rank")  # without one nobody would read the sums
    bench.iteration.step = 0
    checksums.ChecksumSensor(bench.context).iteration_closing(IterationClosing(has_nonfinite=False))
    return list(dict.fromkeys(found))


def test_weights_on_several_devices_are_not_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    """To bring the sums together would wait for a device; a meta tensor stands for one there."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    assert summed(model, monkeypatch) == ["0.weight", "1.weight"]
    model[1].to("meta")

    assert summed(model, monkeypatch, any_device=True) == []


def test_flat_parameters_and_their_views_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are of the class of any other parameter, and another part in each rank."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight._fsdp_flattened = True  # type: ignore[assignment]

    assert summed(model, monkeypatch) == ["0.weight"]
