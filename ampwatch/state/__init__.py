"""The state of one rank: its stream of records, folded, in the training process and in the daemon.

``RankState`` holds the newest of each record, the totals and the findings; ``facts.py`` has every
number of it in a row with its ways out. ``Recorder`` keeps the evidence around findings besides, for
reports. No torch here, and no Prometheus.
"""

from __future__ import annotations

from ampwatch.state.rank import RankState
from ampwatch.state.recorder import Recorder

__all__ = ["RankState", "Recorder"]
