"""Choice of the measurement that shows what a finding is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.wire.records import ALL_MODULES, OUTSIDE, Topic

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ampwatch.wire.records import Finding, RangeRecord

_TOPICS = {
    "forward": (Topic.ACTIVATION,),
    "eval": (Topic.ACTIVATION,),
    "backward": (Topic.GRADIENT, Topic.ACTIVATION_GRADIENT),
    "optimizer": (Topic.WEIGHT, Topic.UPDATE, Topic.GRADIENT),
}
"""Topics to show, the best first, by the phase in which it happened."""


def module_of(where: str) -> str:
    """Return the module that ``where`` of a finding is in; ``ALL_MODULES`` if it is in none."""
    prefix, colon, name = where.partition(":")
    if colon and prefix in ("param", "buffer"):
        return name.rpartition(".")[0]
    if where in OUTSIDE or (colon and prefix == "optimizer"):
        return ALL_MODULES
    return where


def about(finding: Finding, ranges: Iterable[RangeRecord]) -> RangeRecord | None:
    """Return the measurement that shows best what ``finding`` is about, if there is one.

    That of its module, of the topic that its phase suggests, taken as soon as possible after
    it began; else the last one before.

    Args:
        finding: The finding.
        ranges: All measurements there are.
    """
    module = module_of(finding.where)
    topics = _TOPICS.get(finding.phase, ())
    if finding.where.startswith("buffer:"):
        topics = (Topic.BUFFER, *topics)
    those = [r for r in ranges if r.module == module and r.topic in topics]
    return min(
        those,
        key=lambda r: (
            topics.index(r.topic),
            r.step < finding.first_step,
            abs(r.step - finding.first_step),
        ),
        default=None,
    )
