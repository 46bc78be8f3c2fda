"""A training whose gradients are all zero, from PyTorch to every way out: they say the same of it.

A real training in float16 on the CPU, whose scale collapses by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest
import torch
from torch import nn

import ampwatch
from ampwatch.host.fleet import Fleet
from ampwatch.host.page.figures import figures
from ampwatch.host.page.page import Feed
from ampwatch.host.page.range_state import HISTOGRAM_COLUMNS, MODULE_COLUMNS
from ampwatch.settings import Settings
from ampwatch.training import outlet
from ampwatch.training.launcher import DaemonStatus
from ampwatch.wire.records import RangeRecord, SamplingRecord, Severity, Topic
from ampwatch.wire.ring import RingReader
from tests.host.metrics.test_prometheus import samples
from tests.workshop.clocks import Clock
from tests.workshop.fleets import put

if TYPE_CHECKING:
    from pathlib import Path

    from ampwatch.wire.records import Finding, Record, RunIdentity

STEPS = 120
COLLAPSE = 30
"""Step from which something is different."""

TINY = 2.0**-40


class Body(nn.Module):
    """Two layers, and a head on top of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.last = nn.Linear(32, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        code = self.last(torch.tanh(self.first(x)))
        return code.float() - x, self.head(code).float()


class Told(NamedTuple):
    """What a daemon knows of a training that is still running, and what the training found.

    Attributes:
        identity: Who trained.
        records: All records of the ring.
        findings: The findings of the training process.
        numel: Elements of the gradients.
        reported: Kind and severity each time that a finding was new.
    """

    identity: RunIdentity
    records: list[Record]
    findings: list[Finding]
    numel: int
    reported: list[tuple[str, Severity]]

    def fleet(self, records: list[Record]) -> Fleet:
        fleet = Fleet(Settings(), Clock(self.identity.started_ns / 1e9 + 5))
        put(fleet, "ring", self.identity, records)
        return fleet

    def of(self, name: str, records: list[Record] | None = None, *labels: str) -> float | None:
        """Return the sample of a metric, as Prometheus scrapes it."""
        scraped = samples(self.fleet(self.records if records is None else records))
        found = [v for k, v in scraped.items() if k[0] == name and set(labels) <= set(k)]
        return found[0] if found else None

    @property
    def late(self) -> list[Record]:
        """The records that a daemon finds which was started late: of ranges only the newest."""
        newest = {(r.topic, r.module): r for r in self.records if isinstance(r, RangeRecord)}
        ring = [r for r in self.records if not isinstance(r, RangeRecord)]
        return [*ring[:-1], *newest.values(), ring[-1]]


def train(rings: Path, level: str = "deep") -> Told:
    torch.manual_seed(0)
    model = Body()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    reported: list[tuple[str, Severity]] = []
    # Everything in each iteration, so that nothing depends on how long one takes.
    with ampwatch.monitor(model, scaler, level=level, sample_every=1) as watch:
        watch._session._context.governor._turns = (frozenset(Topic),)
        watch.on_finding(lambda finding: reported.append((finding.kind, finding.severity)))
        (path,) = rings.rglob("*.ring")
        reader = RingReader(path)
        records = []
        for step in range(STEPS):
            if step == COLLAPSE:
                scaler.update(TINY)
            with torch.autocast("cpu", dtype=torch.float16):
                error, head = model(torch.randn(64, 16))
            optimizer.zero_grad()
            scaler.scale(error.square().mean() + head.square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            records += reader.poll()
    reader.close()
    numel = sum(p.numel() for p in model.parameters())
    return Told(reader.identity, records, watch.findings, numel, reported)


def lost_since(told: Told, step: int) -> tuple[int, int]:
    """Return the elements that the counters say were lost, and those that were seen, since a step."""
    totals = {r.step: r for r in told.records if isinstance(r, SamplingRecord)}
    last, before = totals[max(totals)], totals[step - 1]
    return (
        last.gradient_underflow - before.gradient_underflow,
        last.gradient_elements - before.gradient_elements,
    )


@pytest.fixture
def serving(own_places: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rings are written as always, but no daemon is started; returns where the rings are."""
    monkeypatch.setattr(
        outlet, "ensure_daemon", lambda _settings: DaemonStatus("", "unavailable", "")
    )
    return own_places / "rings"


def test_a_scale_that_has_collapsed_is_the_same_everywhere(serving: Path) -> None:
    """All is lost: finding, counter, ratio of each module, tiles, what-if, window of scales.

    Also where the daemon has read nothing of the time before.
    """
    told = train(serving)

    (finding,) = told.findings
    assert (finding.kind, finding.severity) == ("grad_underflow", Severity.CRITICAL)
    assert finding.evidence["lost_share"] == 1.0
    assert "nothing is learnt since step 30" in finding.summary
    assert [s for k, s in told.reported if k == "grad_underflow"] == [
        Severity.WARNING,
        Severity.CRITICAL,
    ]
    lost, seen = lost_since(told, COLLAPSE)
    assert lost == seen == told.numel * (STEPS - COLLAPSE)

    for records in (told.records, told.late):
        _is_lost_to_whoever_reads(told, records)


def _is_lost_to_whoever_reads(told: Told, records: list[Record]) -> None:
    fleet = told.fleet(records)
    for module in ("first", "last", "head"):
        name = "ampwatch_module_gradient_underflow_ratio"
        assert told.of(name, records, module) == 1.0
    shown = figures(fleet.ranks()[0])
    assert shown["Underflow"][:2] == ("100 %", "of the gradients in float16")
    assert shown["Headroom"].note.endswith("as they were in step 29")

    low = told.of("ampwatch_loss_scale_window_low", records)
    high = told.of("ampwatch_loss_scale_window_high", records)
    assert low is not None
    assert high is not None
    assert TINY < low <= 2.0**16 <= high  # the scale that worked before the collapse

    (run,) = Feed(fleet, Clock(0)).full()["runs"].values()
    state = run["ranks"]["0"]["ranges"]
    row = dict(zip(HISTOGRAM_COLUMNS, state["gradients"], strict=True))
    assert (row["flushed"], row["before"]) == (told.numel, 29)
    assert sum(row["counts"]) + row["zeros"] == told.numel
    for cells in state["modules"].values():
        module = dict(zip(MODULE_COLUMNS, cells, strict=True))
        assert (module["lost"], module["why"]) == (1.0, "lost")


@pytest.mark.nightly
def test_a_collapse_by_hand_is_found_in_steps_too_quick_to_pay_for_samples(serving: Path) -> None:
    """The fall itself asks for a sample of the gradients: nothing else is alarming about it."""
    told = train(serving, "standard")

    (finding,) = told.findings
    assert (finding.kind, finding.evidence["lost_share"]) == ("grad_underflow", 1.0)
