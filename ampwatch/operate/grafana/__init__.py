"""Puts the shipped dashboards into a Grafana, reports what differs there, and takes them out again.

``place`` is where it is and how to get in, ``server`` its HTTP API, ``boards`` what is shipped,
``plan`` what there is to do (no HTTP, no client), ``work`` the verbs of the command line.
Only ``server`` needs the package grafana-client, which it loads when it is used.
"""

from __future__ import annotations

from ampwatch.operate.grafana.boards import Board, load
from ampwatch.operate.grafana.place import GrafanaPlace, find_place
from ampwatch.operate.grafana.work import BoardWishes, diff, export, push

__all__ = ["Board", "BoardWishes", "GrafanaPlace", "diff", "export", "find_place", "load", "push"]
