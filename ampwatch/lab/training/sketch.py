"""Sketches: a few sums of a tensor, from which the norm of a difference to another tensor is known.

A sketch has ``NUM_BUCKETS`` sums. Element ``i`` of the flattened tensor is added to sum ``i modulo
NUM_BUCKETS``, with a sign that depends on ``i`` alone. Sketching is linear: the sketch of ``a - b`` is
the difference of the sketches, and the sum of its squares estimates the square of the norm of
``a - b`` without bias, whatever ``a`` and ``b`` are.

Source: Charikar, Chen and Farach-Colton, "Finding frequent items in data streams" (2002), section 3;
with buckets in turn instead of hashed, since nobody chooses elements against these signs.
"""

from __future__ import annotations

import torch

from ampwatch.lab.tape.rows import NUM_BUCKETS

CHUNK = 2**20
"""Elements that are widened to float64 at a time: 8 MB."""

_PRIME = 0x9E3779B1
_MIX = 0x85EBCA6B
_MASK = 0xFFFFFFFF


class Sketcher:
    """Makes sketches. Keeps a table of signs for each device: 2 MB."""

    def __init__(self) -> None:
        self._signs: dict[torch.device, torch.Tensor] = {}

    def clear(self) -> None:
        """Let go of the tables."""
        self._signs.clear()

    def sketch(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sums of a tensor, and the square of its norm; what is not finite counts as 0.

        Args:
            tensor: An ordinary tensor of any dtype but a quantized one. Read only.

        Returns:
            float64, of shape (NUM_BUCKETS + 1,), on the device of the tensor.

        Cost: four passes over the elements, widened to float64 some at a time; no sync, no random number.
        """
        with torch.no_grad():
            flat = tensor.detach()
            if flat.is_complex():
                flat = torch.view_as_real(flat.resolve_conj())
            flat = flat.reshape(-1)
            out = torch.zeros(NUM_BUCKETS + 1, dtype=torch.float64, device=flat.device)
            signs = self._table(flat.device)
            for number, begin in enumerate(range(0, flat.numel(), CHUNK)):
                part = flat[begin : begin + CHUNK].to(torch.float64)
                if tensor.is_floating_point() or tensor.is_complex():
                    part = part.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
                out[NUM_BUCKETS] += part.dot(part)
                # Each chunk has signs of its own: another stretch of the table.
                start = _mixed(number) % CHUNK if number else 0
                part = part * signs[start : start + part.numel()]
                short = -part.numel() % NUM_BUCKETS
                if short:
                    part = torch.cat([part, part.new_zeros(short)])
                out[:NUM_BUCKETS] += part.view(-1, NUM_BUCKETS).sum(0)
            return out

    def _table(self, device: torch.device) -> torch.Tensor:
        table = self._signs.get(device)
        if table is None:
            table = self._signs[device] = _signs(2 * CHUNK, device)
        return table


def _signs(count: int, device: torch.device) -> torch.Tensor:
    """Return pseudo-random signs, int8: the same on each device and in each version of PyTorch."""
    x = torch.arange(1, count + 1, dtype=torch.int64, device=device)
    # A mixer of 32 bits, in int64: only the low half of a product is kept.
    x = (x * _PRIME) & _MASK
    x = ((x ^ (x >> 15)) * _MIX) & _MASK
    x = ((x ^ (x >> 13)) * _PRIME) & _MASK
    x = x ^ (x >> 16)
    return (1 - 2 * (x & 1)).to(torch.int8)


def _mixed(number: int) -> int:
    x = (number * _PRIME) & _MASK
    return ((x ^ (x >> 15)) * _MIX) & _MASK
