"""What the ranks of one machine tell one another of gradients that are not finite.

Where parameters are sharded the ranks agree on the verdict and on nothing else: all of them skip the
step, and one of them has the gradient. It leaves the name in the small file that the ranks of a
machine share (`said.py`), and the others look there. No collective is begun, and nobody waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.guard import Suppress
from ampwatch.training.kernels.admission import is_dtensor
from ampwatch.training.model.flat import is_in_flat, names_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.training.model.names import Names
    from ampwatch.training.said import Said


class OtherRanks:
    """One rank's end. Never raises.

    Args:
        world_size: Number of ranks of the run.
        said: Returns the file that the ranks of this machine share; ``None`` without one.
        names: Names of the parameters, which are the same in each rank.
    """

    def __init__(self, world_size: int, said: Callable[[], Said | None], names: Names) -> None:
        self.are_there = world_size > 1
        self._said = said
        self._names = names

    def is_sharded(self) -> bool:
        """Whether parameters are spread over ranks: else all have the gradient, and nobody asks."""
        return any(is_dtensor(p) or is_in_flat(p) for _, p in self._names.parameters())

    def note(self, parameter: str, since: int) -> None:
        """Leave word that a gradient of this rank is not finite, if another rank may not have it.

        Args:
            parameter: Name of the parameter.
            since: The first of the steps that were skipped in a row; the same in each rank.
        """
        said = self._said()
        if said is not None and self.is_sharded():
            with Suppress(OSError):
                said.found(_line(parameter, since))

    def ask(self, since: int) -> tuple[str, list[int]]:
        """Return a parameter whose gradient another rank has found, and the ranks that have.

        Args:
            since: As of ``note``.

        Returns:
            An empty name where no rank of this machine has left word yet.

        Cost: one read of a small file, and 2 us a parameter.
        """
        said = self._said()
        if said is None:
            return "", []
        lines = {
            _line(name, since): name
            for whole, parameter in self._names.parameters()
            for name in names_of(whole, parameter)
        }
        with Suppress(OSError):
            for line, ranks in said.finders_among(lines).items():
                return lines[line], ranks
        return "", []


def _line(parameter: str, since: int) -> str:
    return f"gradient not finite since {since}: {parameter}"
