"""Kind of the finding that views of the tensor cores contradict one another; the daemon makes it."""

from __future__ import annotations
