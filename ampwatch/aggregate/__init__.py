"""Records in, state out: what the daemon knows about the runs of this machine.

``Fleet`` holds one ``RankView`` per ring; a ``RankView`` folds the records of one
training process. No torch, no network, no Prometheus here.
"""

from ampwatch.aggregate.fleet import Fleet
from ampwatch.aggregate.gradients import GradientColumn
from ampwatch.aggregate.histogram import Histogram
from ampwatch.aggregate.history import Bucket, Cursor, History, SkipEvent, Update
from ampwatch.aggregate.ranges import Ranges
from ampwatch.aggregate.rank import RankView

__all__ = [
    "Bucket",
    "Cursor",
    "Fleet",
    "GradientColumn",
    "Histogram",
    "History",
    "Ranges",
    "RankView",
    "SkipEvent",
    "Update",
]
