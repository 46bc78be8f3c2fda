"""``python -m ampwatch.operate.deploy``: the manifests of the rules, as a checkout has them."""

from __future__ import annotations

import sys

from ampwatch.operate.deploy.kubernetes import prometheus_rules
from ampwatch.shipped import shipped

sys.stdout.write(
    prometheus_rules(
        {
            path.name: path.read_text(encoding="utf-8")
            for path in (shipped("dashboards") / "alerts").glob("*.rules.yml")
        }
    )
)
