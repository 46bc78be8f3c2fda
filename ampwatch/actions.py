"""Ready answers to a finding, for ``watch.on_finding``: log, webhook, checkpoint, stop.

The public name of `ampwatch.training.actions.ready`, which documents them.
"""

from __future__ import annotations

from ampwatch.training.actions.ready import checkpoint, log, stop, webhook

__all__ = ["checkpoint", "log", "stop", "webhook"]
