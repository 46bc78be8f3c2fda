"""The black box: what a run leaves behind that went wrong, to be read after it is gone.

``Box`` is what is left behind, ``document.py`` says how a box stands in a file, ``files.py`` where the file is and how it
gets there. No torch here, and no Prometheus: a box is read on any machine.
"""

from __future__ import annotations

from ampwatch.wire.blackbox.box import Box

__all__ = ["Box"]
