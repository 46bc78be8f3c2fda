"""Records in, state out: what the daemon knows about the runs of this machine.

``Fleet`` holds one ``RankView`` per ring; a ``RankView`` folds the records of one
training process. No torch, no network, no Prometheus here.
"""

from ampwatch.host.fleet.fleet import Fleet
from ampwatch.host.fleet.history import Bucket, History
from ampwatch.host.fleet.rank import RankView

__all__ = ["Bucket", "Fleet", "History", "RankView"]
