"""The scripts: what is trained in each state, what goes wrong when, and when somebody looks.

Nothing here needs torch: what a script does to its model is in ``training``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from tests.states.clock import START

STEP_SECONDS = 2.0
"""Scripted time of a step. Unit: s."""

WAIT_SECONDS = 0.1
"""Of that, spent waiting for a batch where nothing else is said. Unit: s."""

FORWARD_SECONDS, BACKWARD_SECONDS, OPTIMIZER_SECONDS = 0.15, 0.3, 0.05
"""Of that, spent in each of these. Unit: s."""

Look = Literal["running", "ended", "silent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """A training and its fate.

    Attributes:
        name: Name of the state.
        run: Name of the run, that of the state unless two share one.
        first: Index of the first step: that of the checkpoint it goes on from.
        steps: Index of the step before which it ends.
        look: When somebody looks: after the last step while it still runs, after its end, or
            after it has been silent for long.
        later: Scripted time from the last step until then. Unit: s.
        world_size: Ranks, joined by gloo where they are several.
        nodes: Machines that they run on, as many on each. Somebody looks at the first.
        starts: Scripted seconds after ``clock.START``. Unit: s.
        dtype: Of autocast.
        scaler: Arguments of the GradScaler; ``None`` for none.
        lr: Learning rate of SGD.
        overflow: Steps in which a batch makes ``encoder.gate`` overflow in its forward pass.
        weights_of_loss: From which step on the loss is multiplied by what.
        diverges: Step from which on the learning rate is absurd.
        breaks: Step before which an element of a weight becomes NaN.
        raises: Rank and step at which a ``ValueError`` ends a rank.
        killed: Rank and step at which a rank kills itself.
        level: What is watched.
        waits: Scripted time for which each step waits for its batch. Unit: s.
        daemon_restarts: Scripted time after the start at which the daemon is away. Unit: s.
        beside: Another training on the same machine, at the same time.
    """

    name: str
    run: str = ""
    first: int = 0
    steps: int = 300
    look: Look = "running"
    later: float = 4.0
    world_size: int = 1
    nodes: int = 1
    starts: float = 0.0
    dtype: str = "float16"
    scaler: dict[str, Any] | None = field(default_factory=dict)
    lr: float = 0.05
    overflow: tuple[range, ...] = ()
    weights_of_loss: dict[int, float] = field(default_factory=dict)
    diverges: int | None = None
    breaks: int | None = None
    raises: tuple[int, int] | None = None
    killed: tuple[int, int] | None = None
    level: Literal["light", "standard"] = "standard"
    waits: float = WAIT_SECONDS
    daemon_restarts: float | None = None
    beside: Act | None = None

    @property
    def trainings(self) -> list[Act]:
        """All that is trained: this script's own, and the one beside it."""
        return [self] if self.beside is None else [self, self.beside]

    @property
    def run_name(self) -> str:
        """Name of the run as its user gave it."""
        return self.run or self.name.replace("_", "-")

    def time_of(self, step: int) -> float:
        """Return the Unix time at which a step begins. Unit: s."""
        return START + self.starts + (step - self.first + 1) * STEP_SECONDS

    @property
    def last_step(self) -> int:
        """The last step that ends as it should."""
        ends = [self.steps, *(step for _, step in filter(None, (self.raises, self.killed)))]
        return min(ends) - 1


BURST = range(60, 104)
"""44 skips bring the scale from 2^15 to 2^-29."""

_SAW_TOOTH = {"growth_interval": 20}

_ALL = (
    Act(name="healthy", steps=200),
    Act(name="calibrating", steps=9, scaler={"init_scale": 2.0**30}),
    Act(name="saw_tooth", scaler=_SAW_TOOTH),
    Act(
        name="storm",
        steps=320,
        scaler=_SAW_TOOTH,
        # Every 40 steps four bad batches in a row: as often as the scale can make up for.
        overflow=tuple(range(first, first + 4) for first in range(60, 320, 40)),
    ),
    Act(name="collapsed_and_left", steps=360, overflow=(BURST,)),
    # Nine minutes after the last skip, when the scale has doubled often, and has far to go.
    Act(name="recovering", steps=370, scaler={"growth_interval": 15}, overflow=(range(60, 90),)),
    Act(name="all_flushed", weights_of_loss={100: 1e-14}),
    Act(name="never_learnt", scaler={"init_scale": 2.0**-26}),
    Act(name="never_applied", steps=200, overflow=(range(200),)),
    Act(
        name="diverged_and_finished",
        dtype="bfloat16",
        scaler=None,
        steps=200,
        diverges=100,
        look="ended",
        later=60.0,
    ),
    Act(
        name="diverged_and_killed",
        dtype="bfloat16",
        scaler=None,
        steps=220,
        diverges=100,
        killed=(0, 200),
        look="ended",
        later=60.0,
    ),
    Act(
        name="one_rank_dead",
        steps=40,
        world_size=4,
        killed=(2, 30),
        look="ended",
        later=60.0,
    ),
    Act(
        name="one_rank_raised_of_eight",
        steps=40,
        world_size=8,
        raises=(3, 30),
        look="ended",
        later=60.0,
    ),
    # The rank that is killed is on the machine that nobody looks at.
    Act(
        name="two_nodes",
        steps=40,
        world_size=4,
        nodes=2,
        killed=(3, 30),
        look="ended",
        later=60.0,
    ),
    Act(name="stale", steps=150, look="silent", later=1000.0),
    Act(
        name="two_runs_of_one_name",
        run="twins",
        beside=Act(
            name="second_twin", run="twins", starts=6.0, steps=297, overflow=(range(240, 300),)
        ),
    ),
    Act(
        name="restarted",
        steps=150,
        starts=300.0,
        beside=Act(name="first_restarted", run="restarted", steps=120, killed=(0, 100)),
    ),
    # From the checkpoint of step 90, as the program counts.
    Act(
        name="resumed",
        dtype="bfloat16",
        scaler=None,
        starts=300.0,
        first=90,
        steps=340,
        breaks=190,
        beside=Act(
            name="first_resumed",
            run="resumed",
            dtype="bfloat16",
            scaler=None,
            steps=120,
            killed=(0, 100),
        ),
    ),
    Act(name="broken_weight", dtype="bfloat16", scaler=None, breaks=100),
    Act(
        name="ended_unseen",
        dtype="bfloat16",
        scaler=None,
        steps=150,
        diverges=100,
        look="ended",
        later=60.0,
        daemon_restarts=280.0,
    ),
    Act(name="bf16", steps=200, dtype="bfloat16", scaler=None),
    # Steps in which something is measured are not judged by their time: nothing is, here.
    Act(name="waiting_for_data", scaler=_SAW_TOOTH, level="light", waits=1.25),
    Act(name="daemon_restarted", scaler=_SAW_TOOTH, daemon_restarts=290.0),
)

ACTS = {act.name: act for act in _ALL}
