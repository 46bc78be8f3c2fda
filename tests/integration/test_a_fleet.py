"""Two hosts of one run, scraped by a real Prometheus with the shipped recording rules.

What goes wrong in a fleet: a daemon that is killed and started again.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.host.daemon.parts import ROOT, Daemon, Place, eventually
from tests.integration.browsing import Trainer
from tests.integration.prometheus import free_port
from tests.integration.prometheus import prometheus as run_prometheus
from tests.services import require
from tests.workshop.records import ranges, sampling

pytestmark = [pytest.mark.nightly, pytest.mark.services]

RULES = ROOT / "dashboards" / "alerts" / "ampwatch.fleet.rules.yml"
CONFIG = """
global: {{scrape_interval: 200ms, evaluation_interval: 200ms}}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: ampwatch
    static_configs: [{{targets: [{targets}]}}]
"""


def target(daemon: Daemon) -> str:
    return f"{daemon.info.host}:{daemon.info.port}"


def test_a_fleet_goes_on_when_parts_of_it_vanish(tmp_path: Path) -> None:
    """Counters continue after a daemon's restart."""
    require("prometheus")
    places = [Place(tmp_path / name) for name in ("a", "b")]
    ports = [str(free_port()) for _ in places]
    running = 'run:ampwatch_run_state:sum{run="gpt",state="running"}'
    with ExitStack() as stack:
        ranks = []
        for host, place in enumerate(places):
            place.rings.parent.mkdir()
            for rank in (2 * host, 2 * host + 1):
                trainer = Trainer(place, "gpt", rank, world_size=4)
                stack.callback(trainer.finish)
                trainer.train(20 + rank)
                trainer.write(ranges("fc", step=rank))
                trainer.write(sampling(step=rank))
                ranks.append(trainer)
        # One Prometheus has one token for a job, and each machine has another.
        for place in places:
            place.environment["AMPWATCH_READERS"] = "all"
        first = stack.enter_context(places[0].daemon(AMPWATCH_PORT=ports[0]))
        stack.enter_context(second := ExitStack())
        daemon = second.enter_context(places[1].daemon(AMPWATCH_PORT=ports[1]))
        targets = ", ".join(f'"{address}"' for address in map(target, (first, daemon)))
        rules = RULES.read_text(encoding="utf-8").replace("interval: 1m", "interval: 200ms")
        (tmp_path / "rules.yml").write_text(rules)
        config = CONFIG.format(rules=tmp_path / "rules.yml", targets=targets)
        prometheus = stack.enter_context(run_prometheus(tmp_path, config))

        eventually(lambda: prometheus.value(running) == 4.0, "four ranks run", 30)
        speakers = prometheus.query('ampwatch_module_gradient_amax{module="fc"}')
        scale = prometheus.value('run:ampwatch_loss_scale:median{run="gpt"}')

        daemon.process.kill()
        second.close()
        eventually(lambda: prometheus.value(running) == 2.0, "only one host is left", 30)
        ranks[3].train(10)
        second.enter_context(places[1].daemon(AMPWATCH_PORT=ports[1]))
        eventually(lambda: prometheus.value(running) == 4.0, "four ranks run again", 30)
        steps = prometheus.value('ampwatch_steps_total{rank="3"}')
        resets = prometheus.value('max(resets(ampwatch_steps_total{run="gpt"}[2m]))')

    assert sorted(found["metric"]["rank"] for found in speakers) == ["0", "2"]
    assert scale == 65536.0
    assert steps == 33.0
    assert resets == 0.0
