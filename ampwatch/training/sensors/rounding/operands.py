"""Factors and tensors of ops that average or add up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ampwatch.training.ops.values import is_plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.training.ops.call import OpCall


def number_of(value: Any) -> float | None:
    """Return a factor that is known on the host, ``None`` for every other."""
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, (list, tuple)) and value and len(set(map(type, value))) == 1:
        numbers = {number_of(item) for item in value}
        return numbers.pop() if len(numbers) == 1 else None
    if is_plain(value) and value.numel() == 1 and value.device.type == "cpu":
        return float(value.detach().reshape(-1).tolist()[0])
    return None


def listed(value: Any) -> Sequence[Any]:
    """Return a list as it is, and anything else as the only one of a list."""
    return value if isinstance(value, (list, tuple)) else [value]


def rows_of(call: OpCall, *places: int) -> list[tuple[Any, ...]]:
    """Return the tensors of an op in rows, one for each place in its lists.

    With a second list the result comes last in a row; of a copy it is the first already.
    """
    columns = [listed(call.args[place]) for place in places]
    if len(places) > 1 and call.info.name not in ("copy_", "_foreach_copy_"):
        in_place = call.info.name.endswith("_")
        columns.append(columns[0] if in_place else listed(call.out))
    longest = max(map(len, columns))
    columns = [list(c) * longest if len(c) == 1 else c for c in columns]
    return [row for row in zip(*columns, strict=False) if is_plain(row[0])]
