"""Records in, state out: what the daemon knows about the runs of this machine.

``Fleet`` holds one ``RankView`` per ring; a ``RankView`` folds the records of one
training process. No torch, no network, no Prometheus here.
"""

from ampwatch.host.fleet.fleet import Fleet
from ampwatch.host.fleet.gradients import GradientColumn
from ampwatch.host.fleet.histogram import Histogram
from ampwatch.host.fleet.history import Bucket, History
from ampwatch.host.fleet.ranges import Ranges
from ampwatch.host.fleet.rank import RankView

__all__ = [
    "Bucket",
    "Fleet",
    "GradientColumn",
    "Histogram",
    "History",
    "Ranges",
    "RankView",
]
