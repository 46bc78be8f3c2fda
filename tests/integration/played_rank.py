"""A rank without a model: it writes the records of a training into a ring, of which a line on its standard input says how it goes.

Run as ``python -m tests.integration.played_rank RINGS RUN RANK WORLD_SIZE FIRST_STEP DTYPE``. A line is the name of one of
the methods of ``Rank`` that play an iteration, or of an end: ``finish``, ``fail``.
"""

from __future__ import annotations

import math
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

from ampwatch.diagnosis.kinds.registry import row_of
from ampwatch.wire.records import (
    GONE_STEP,
    FactsRecord,
    Finding,
    FindingRecord,
    Phases,
    RunState,
    Severity,
    SkipClass,
)
from ampwatch.wire.ring import RingWriter
from tests.workshop import records

STEP_SECONDS = 0.4
GROWTH_INTERVAL = 20
FULL_SCALE = 2.0**16
ELEMENTS = 100_000

USUAL = (0.02, 0.12, 0.2, 0.0, 0.01, 0.01, 0.03, 0.0, 0.01, 0.0)
STARVED = (0.28, 0.03, 0.05, 0.0, 0.01, 0.01, 0.01, 0.0, 0.01, 0.0)
"""Time by ``StepPhase``: of a step, and of one that waits for its batch. Unit: s."""


class Rank:
    """A rank that is played, from its first step on; its scale grows and is found too large, as a healthy one does.

    Args:
        writer: Its ring.
        step: The first step.
        dtype: Of autocast; with ``float16`` it has a GradScaler.
    """

    def __init__(self, writer: RingWriter, step: int, dtype: str) -> None:
        self.writer, self.step, self.begun = writer, step, step
        self.scale = FULL_SCALE if dtype == "float16" else math.nan
        self.drift = self.tracker = self.in_row = self.growths = self.backoffs = self.bad_losses = 0
        self.skipped = [0, 0, 0, 0]
        self.zeros = self.nans = self.bad_weights = 0
        self.found: dict[str, Finding] = {}
        facts = {"autocast_dtype": dtype, "torch": "2.13.0", "device": "cpu"}
        if dtype == "float16":
            facts |= {"scaler": "GradScaler", "init_scale": f"{FULL_SCALE}"}
            facts |= {"growth_interval": str(GROWTH_INTERVAL)}
        writer.put(FactsRecord(facts))

    def healthy(self) -> None:
        """Train; what was found is over."""
        for finding in self.found.values():
            finding.evidence[GONE_STEP] = self.step
            self.writer.put(FindingRecord(finding))
        self.found = {}
        self._put(skip=SkipClass.PROBE if self.scale > FULL_SCALE else SkipClass.NONE)

    def collapses(self) -> None:
        """Skip a step because an op overflows in the forward pass."""
        severity = Severity.CRITICAL if self.in_row >= 5 else Severity.WARNING
        cause = self._find("forward_overflow", "decoder.3.ffn", phase="forward", op="mm")
        effect = self._find("scale_collapse", "optimizer:0", root=False, caused_by=cause.key)
        cause.severity = effect.severity = severity
        self._put(skip=SkipClass.STORM)

    def storms(self) -> None:
        """Skip three steps in a row, as often as the scale can make up for."""
        in_storm = self.step % (3 + 3 * GROWTH_INTERVAL) < 3
        self._put(skip=SkipClass.STORM if in_storm else SkipClass.NONE)

    def lies_low(self) -> None:
        """Train with a scale at which every gradient is zero."""
        self.scale, self.tracker = 2.0**-30, 0
        self._put(zeros=ELEMENTS)

    def has_nan_weights(self) -> None:
        """Train with weights that are NaN."""
        self.bad_weights = 4096
        self._find("param_nonfinite", "param:head.weight")
        self._put(loss=math.nan)

    def has_nan_gradients(self) -> None:
        """Step with NaN gradients, of which no scaler keeps the weights."""
        self._find("forward_overflow", "decoder.3.ffn", phase="forward", op="mm")
        self._put(nans=12)

    def is_set_right(self) -> None:
        """Train with the scale that somebody has set again."""
        self.scale = FULL_SCALE
        self.healthy()

    def drifts(self) -> None:
        """Train with other weights than other ranks have."""
        self.drift = 1
        self.healthy()

    def starves(self) -> None:
        """Wait for data for most of the step."""
        self._put(phases=STARVED)

    def creeps(self) -> None:
        """Keep the graph of a loss."""
        self._find("memory_creep", "step", severity=Severity.WARNING)
        self.writer.put(records.memory(time.time_ns()))
        self._put()

    def dies_broken(self) -> None:
        """Be killed in the step in which gradients are NaN."""
        self.has_nan_gradients()
        os.kill(os.getpid(), signal.SIGKILL)

    def hangs(self) -> None:
        """End no step."""

    def finish(self) -> None:
        """End well."""
        self._end(RunState.FINISHED)

    def fail(self) -> None:
        """Raise."""
        self._end(RunState.FAILED, "ValueError: expected 16 samples, got 0")

    def _end(self, state: RunState, reason: str = "") -> None:
        self.writer.close(records.end(state, reason, time.time_ns()), keep=True)
        sys.exit()

    def _find(self, kind: str, where: str, **known: Any) -> Finding:
        if kind not in self.found:
            known |= {"kind_advice": row_of(kind).advice, "first_step": self.step, "count": 0}
            self.found[kind] = records.alarm(kind, where, **known)
        finding = self.found[kind]
        finding.last_step, finding.count = self.step, finding.count + 1
        self.writer.put(FindingRecord(finding))
        return finding

    def _put(
        self,
        *,
        skip: SkipClass = SkipClass.NONE,
        loss: float = 2.0,
        zeros: int = 100,
        nans: int = 0,
        phases: Phases = USUAL,
    ) -> None:
        if skip:
            self.scale, self.tracker = self.scale / 2, 0
            self.backoffs, self.in_row = self.backoffs + 1, self.in_row + 1
            self.skipped[skip - 1] += 1
        elif not math.isnan(self.scale):
            self.tracker, self.in_row = self.tracker + 1, 0
            if self.tracker == GROWTH_INTERVAL:
                self.scale, self.tracker, self.growths = self.scale * 2, 0, self.growths + 1
        self.zeros, self.nans = self.zeros + zeros, self.nans + nans
        self.bad_losses += math.isnan(loss)
        trained = self.step - self.begun + 1
        self.writer.put(
            records.step(
                self.step,
                time_ns=time.time_ns(),
                duration_s=math.nan if trained == 1 else STEP_SECONDS,
                loss=loss,
                loss_scale=self.scale,
                growth_tracker=-1 if math.isnan(self.scale) else self.tracker,
                skip_class=skip,
                consecutive_skips=self.in_row,
                total_growths=self.growths,
                total_backoffs=self.backoffs,
                total_nonfinite_losses=self.bad_losses,
                phases=phases,
            ),
            records.optimizer(
                step=self.step,
                skipped=bool(skip),
                total_steps=trained,
                total_skipped=tuple(self.skipped),
            ),
            records.sampling(
                step=self.step,
                samples=(trained, 0, 0, trained, 0, 0),
                gradient_elements=trained * ELEMENTS,
                gradient_zeros=self.zeros,
                gradient_nans=self.nans,
                parameter_nonfinite=self.bad_weights,
                buffer_nonfinite=0,
            ),
            records.checksum(self.step, checksum=self.step * 7919 % 2**40 + self.drift),
        )
        self.step += 1


def main(rings: str, run: str, rank: str, world_size: str, first: str, dtype: str) -> None:
    """Play a rank until a line says that it ends."""
    number = int(rank)
    who = records.identity(
        run=run,
        rank=number,
        local_rank=number,
        world_size=int(world_size),
        started_ns=time.time_ns(),
    )
    player = Rank(RingWriter.create([Path(rings)], who, slots=512), int(first), dtype)
    play = player.healthy
    while True:
        play()
        if select.select([sys.stdin], [], [], STEP_SECONDS)[0]:
            play = getattr(player, sys.stdin.readline().strip() or "finish")


if __name__ == "__main__":
    main(*sys.argv[1:])
