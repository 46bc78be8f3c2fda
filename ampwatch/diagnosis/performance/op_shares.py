"""Sums over an op census, the module that a sum is about, and the time that better kernels would save."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ampwatch.numerics.formats import PLAIN, kernel_label
from ampwatch.numerics.units.ops import FP8_DTYPES, HALF_DTYPES, OpKind, Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ampwatch.diagnosis.evidence.ops import Machine, OpCensus, OpKey, OpTally


LOW_DTYPES = HALF_DTYPES | FP8_DTYPES
"""The dtypes of low precision."""

FORWARD = frozenset({Phase.FORWARD})

TRAINING = frozenset({Phase.FORWARD, Phase.BACKWARD})
"""The phases that mixed precision is about: optimizers compute in the dtype of the weights."""

NEGLIGIBLE = 0.001
"""Modules with less than this share of a sum have no say in where it is."""

ATTAINABLE = 0.75
"""The share of the peak that the best kernels reach in practice: 77 % were measured for cuBLASLt on
an H100, and DCGM's diagnostics take 75 % of tensor-pipe cycles for a saturated GPU."""

NEARLY_ALL = 0.9
"""Share of a module's FLOPs from which it is reported that the module does it, and not a part of it."""


def ops_in(census: OpCensus, phases: frozenset[Phase]) -> Iterator[tuple[OpKey, OpTally]]:
    """Yield the ops of some phases."""
    return ((key, tally) for key, tally in census.tallies.items() if key.phase in phases)


def by_module(
    census: OpCensus,
    phases: frozenset[Phase],
    amount: Callable[[OpKey, OpTally], int],
) -> Counter[str]:
    """Return an amount by module, without those where there is none of it."""
    amounts: Counter[str] = Counter()
    for key, tally in ops_in(census, phases):
        if found := amount(key, tally):
            amounts[key.module] += found
    return amounts


def flops_of(key: OpKey, tally: OpTally) -> int:
    """Return the FLOPs that tensor cores could do."""
    return tally.flops if key.kind.has_flops else 0


def low_flops_of(key: OpKey, tally: OpTally) -> int:
    """Return the FLOPs done in low precision."""
    return flops_of(key, tally) if key.dtype in LOW_DTYPES else 0


def heaviest(amounts: Mapping[str, int]) -> str:
    """Return the module with most; of two alike the first one by name."""
    return min(amounts, key=lambda module: (-amounts[module], module))


def place(amounts: Mapping[str, int], totals: Mapping[str, int]) -> str:
    """Return the module that an amount is about.

    The innermost module that holds all of it, where nearly all of what that module does is
    part of it: a decoder that runs in float32. Else the part of it, and of that part again,
    with the largest amount, until it is so.

    Args:
        amounts: By module, in its own forward and not in its children's.
        totals: What each module does in all, likewise.
    """
    least = NEGLIGIBLE * sum(amounts.values())
    name = _common([module for module, amount in amounts.items() if amount >= least])
    while _within(amounts, name) < NEARLY_ALL * _within(totals, name):
        parts: Counter[str] = Counter()
        for module, amount in amounts.items():
            if is_within(module, name):
                parts[_child(module, name)] += amount
        child = heaviest(parts)
        if child == name:
            break
        name = child
    return name


def _common(modules: list[str]) -> str:
    paths = [module.split(".") if module else [] for module in modules]
    common: list[str] = []
    for names in zip(*paths, strict=False):
        if len(set(names)) > 1:
            break
        common.append(names[0])
    return ".".join(common)


def _within(amounts: Mapping[str, int], name: str) -> float:
    return sum(amount for module, amount in amounts.items() if is_within(module, name))


def is_within(module: str, name: str) -> bool:
    """Return whether a module is that of a name, or in it; the empty name is the root's."""
    return not name or module == name or module.startswith(f"{name}.")


def _child(module: str, name: str) -> str:
    """Return the child of ``name`` that ``module`` is or is in; ``name`` for itself."""
    start = len(name) + 1 if name else 0
    end = module.find(".", start)
    return module if end < 0 or len(module) < start else module[:end]


ITEM_BYTES = {
    label: fmt.stored_bits // 8
    for fmt in PLAIN
    if fmt.alignment
    for label in (fmt.name, fmt.kernel_label)
}
"""Size of an element of what tensor cores multiply, as dtypes of ops and of kernels are called."""


def saving(
    ops: Iterable[tuple[OpKey, OpTally, float]], machine: Machine, low_dtype: str
) -> float | None:
    """Return how much of the time of some ops the best kernels for their shapes would save.

    A matmul is limited by arithmetic or by memory, by its shape: what 632 TFLOP/s elsewhere in a model
    promise to a matmul with an inner dimension of 64, memory does not let it keep.

    Args:
        ops: The ops, and the time that each takes now. Unit: s.
        machine: Where they run.
        low_dtype: What float32 would be computed in instead.

    Returns:
        ``None`` unless it is known of each op: one limit without the other could promise what
        memory, or arithmetic, does not let it keep.
    """
    saved = [_saving_of(key, tally, seconds, machine, low_dtype) for key, tally, seconds in ops]
    known = [seconds for seconds in saved if seconds is not None]
    return sum(known) if known and len(known) == len(saved) else None


def _saving_of(
    key: OpKey, tally: OpTally, seconds: float, machine: Machine, low_dtype: str
) -> float | None:
    dtype = low_dtype if key.dtype == "float32" else key.dtype
    if key.kind is not OpKind.MATMUL or not tally.shape or dtype not in ITEM_BYTES:
        return None
    batch, rows, columns, inner = tally.shape
    flops = 2 * batch * rows * columns * inner
    peak, bandwidth = machine.peak_flops.get(kernel_label(dtype)), machine.memory_bandwidth
    if not (flops and peak and bandwidth):
        return None
    # The least that has to be read and written: each matrix once.
    elements = rows * inner + inner * columns + rows * columns
    traffic = batch * elements * ITEM_BYTES[dtype]
    best = max(flops / (ATTAINABLE * peak), traffic / bandwidth)
    return max(0.0, seconds - max(1, round(tally.flops / flops)) * best)
