"""The ring: one file in shared memory per training process, written there, read by the daemon.

What is in the file, byte by byte: ``layout.py``. No torch here, and no Prometheus.
"""

from __future__ import annotations

from ampwatch.wire.ring.reader import RingReader
from ampwatch.wire.ring.writer import RingWriter

__all__ = ["RingReader", "RingWriter"]
