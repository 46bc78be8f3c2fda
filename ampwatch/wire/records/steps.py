"""Records of every iteration: what happened to the scale, and to each optimizer."""

from __future__ import annotations

from msgspec import Struct

from ampwatch.numerics.written import Labelled
from ampwatch.wire.records.fields import Count, CountOrUnknown, OptimizerIndex


class SkipClass(Labelled):
    """Reason why a scaled optimizer step was skipped; ``NONE`` for a step that was not.

    ``CALIBRATING``: before the first unskipped run of steps, the search for a
    fitting scale. ``PROBE``: just after a growth of the scale; one in
    ``growth_interval + 1`` steps is healthy. ``UNPROVOKED``: neither of the
    two. ``STORM``: one of several consecutive skips that nothing explains.
    """

    NONE = 0
    CALIBRATING = 1
    PROBE = 2
    UNPROVOKED = 3
    STORM = 4


SKIP_CLASSES = tuple(c for c in SkipClass if c is not SkipClass.NONE)
"""The classes of skipped steps, in the order in which totals per class are stored."""


class StepPhase(Labelled):
    """Part of an iteration that its time goes to, by its place in ``StepRecord.phases``.

    ``DATA``: the program waits for the next batch of a DataLoader. ``FORWARD``: from the call of
    the model to backward, the loss included. ``BACKWARD``: backward, where nothing is summed over
    ranks in it. ``BACKWARD_WITH_REDUCTION``: backward in which gradients are summed over ranks
    meanwhile (DDP, FSDP): how much of it is a wait for others is not known from one rank alone.
    ``REDUCTION``: waits for collectives outside of forward and backward. ``UNSCALE_AND_CLIP``:
    ``scaler.unscale_``, the check for non-finite gradients, clipping. ``OPTIMIZER``: the steps of
    optimizers. ``EVALUATION``: calls of the model in evaluation mode without gradients, and what is
    done between them. ``REST``: everything else, as logging, checkpoints, ``zero_grad``. ``STEP``:
    an iteration of which neither forward nor backward was seen, as where all of it is compiled.
    """

    DATA = 0
    FORWARD = 1
    BACKWARD = 2
    BACKWARD_WITH_REDUCTION = 3
    REDUCTION = 4
    UNSCALE_AND_CLIP = 5
    OPTIMIZER = 6
    EVALUATION = 7
    REST = 8
    STEP = 9

    @property
    def words(self) -> str:
        """The phase as users read it."""
        return PHASE_WORDS[self]


PHASE_WORDS = {
    StepPhase.DATA: "waiting for data",
    StepPhase.FORWARD: "forward",
    StepPhase.BACKWARD: "backward",
    StepPhase.BACKWARD_WITH_REDUCTION: "backward with reduction",
    StepPhase.REDUCTION: "reduction",
    StepPhase.UNSCALE_AND_CLIP: "unscale and clip",
    StepPhase.OPTIMIZER: "optimizer",
    StepPhase.EVALUATION: "evaluation",
    StepPhase.REST: "the rest",
    StepPhase.STEP: "the whole step",
}
"""Each phase as users read it."""

Phases = tuple[float, float, float, float, float, float, float, float, float, float]
"""Time of each ``StepPhase`` in an iteration; 0 for one that was not seen in it. Unit: s."""

NO_PHASES: Phases = (0.0,) * 10
"""Those of an iteration of which nothing is known."""


# The two records of every step are not frozen: a frozen dataclass takes four times as
# long to make, on the training thread.


class StepRecord(Struct):
    """Record of an iteration: everything between two updates of the scaler.

    Without an enabled scaler an iteration ends with the step of the first
    optimizer that was seen.

    Attributes:
        step: Index of the iteration since ``monitor()``, from its ``step`` on.
        time_ns: Unix time at the end of the iteration. Unit: ns.
        duration_s: Wall time since the end of the iteration before. Unit: s.
            NaN for the first one.
        loss: Mean of the losses handed to ``scaler.scale()`` in this iteration,
            unscaled. Only meaningful if ``num_losses`` is positive.
        num_losses: How many losses were handed over in this iteration.
        loss_scale: The scale after the update; NaN without an enabled scaler.
        growth_tracker: Consecutive unskipped steps the scaler has counted after
            the update; -1 without an enabled scaler.
        skip_class: Why the iteration was skipped, if any of its optimizers was.
        consecutive_skips: Length of the run of skipped iterations that ends here.
        total_growths: Growths so far.
        total_backoffs: Backoffs so far.
        total_set_by_hand: Changes by hand so far.
        total_nonfinite_losses: Iterations so far in which a loss was NaN or infinite.
        total_observations_dropped: Iterations so far whose values were not read,
            because the device was too far behind.
        total_sensor_errors: Exceptions so far that the guard kept from training.
        overhead_ns: Host time so far that ampwatch spent on the training thread. Unit: ns.
        phases: Where ``duration_s`` went, by the clock of the host; on a device the host is ahead,
            and ``DevicePhasesRecord`` has what it does.
        total_samples: Samples so far that the program has reported it trained on; -1 without a word.
        total_tokens: Tokens so far, likewise.
        cpu_ns: CPU time of the training thread so far, as of its newest reading, which is a few
            iterations old at most; -1 where the system does not tell. Unit: ns.
        run_delay_ns: Time so far in which that thread could run and no core was free, likewise.
            Unit: ns.
    """

    step: Count
    time_ns: Count
    duration_s: float
    loss: float
    num_losses: Count
    loss_scale: float
    growth_tracker: CountOrUnknown
    skip_class: SkipClass
    consecutive_skips: Count
    total_growths: Count
    total_backoffs: Count
    total_set_by_hand: Count
    total_nonfinite_losses: Count
    total_observations_dropped: Count
    total_sensor_errors: Count
    overhead_ns: Count
    phases: Phases = NO_PHASES
    total_samples: CountOrUnknown = -1
    total_tokens: CountOrUnknown = -1
    cpu_ns: CountOrUnknown = -1
    run_delay_ns: CountOrUnknown = -1


class DevicePhasesRecord(Struct, frozen=True):
    """Record of where the time of one iteration went on its device.

    Attributes:
        step: Index of the iteration.
        time_ns: Unix time at which it was read. Unit: ns.
        phases: Time between the marks on the stream of the training, by phase; in ``DATA`` the
            device has nothing to do. Unit: s.
    """

    step: Count
    time_ns: Count
    phases: Phases


class OptimizerRecord(Struct):
    """Totals of one optimizer so far; written after iterations that used it, of several alike after the last.

    Attributes:
        step: Index of the iteration.
        index: Which optimizer: ``optimizer:<index>`` in findings. ``OTHER_OPTIMIZERS``
            stands for all those beyond the limit of tracked optimizers.
        skipped: Its step of this iteration was skipped.
        total_steps: Steps attempted so far, applied and skipped.
        total_skipped: Steps skipped so far, per class in the order of ``SKIP_CLASSES``.
    """

    step: Count
    index: OptimizerIndex
    skipped: bool
    total_steps: Count
    total_skipped: tuple[Count, Count, Count, Count]


OTHER_OPTIMIZERS = 255
"""Index of the record that stands for every optimizer beyond ``MAX_OPTIMIZERS``."""

MAX_OPTIMIZERS = 8
"""Optimizers tracked one by one. Fused-backward recipes make one per parameter;
series per optimizer must stay bounded."""
