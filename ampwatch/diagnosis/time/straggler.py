"""Kind of the finding that one rank makes the others wait; the daemon makes it."""

from __future__ import annotations
