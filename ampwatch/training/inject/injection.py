"""``ampwatch.inject``: plant a fault, to see that finding, alert and page answer to it."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from ampwatch.errors import SettingsError, StateError, did_you_mean
from ampwatch.guard import Guard, Log
from ampwatch.training.arguments import check_count, check_number
from ampwatch.training.inject.faults import ActivationFault, Fault, GradientFault, StallFault
from ampwatch.training.model.names import MODULE, Names
from ampwatch.training.monitor import Monitor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from typing_extensions import Self

    from ampwatch.training.session import Session
    from ampwatch.wire.records import Finding

logger = Log()

GRADIENT = {"inf_grad": math.inf, "nan_grad": math.nan}
ACTIVATION = {"inf_activation": math.inf, "nan_activation": math.nan}
KINDS = (*GRADIENT, *ACTIVATION, "collapsed_scale", "stalled_step")

COLLAPSE_STEPS = 12
"""Halvings that nobody takes for calibration or a growth probe: a factor of 4096."""

STALL_SECONDS = 5.0

AFTERMATH_STEPS = 20
"""Iterations after a fault in which a new finding may still come from it."""

SHOWN_NAMES = 5
"""Names that a message shows where none is like the one that was given."""

EVIDENCE = "injected"
"""Name of the evidence, with the value 1, of a finding that may come from a planted fault."""


def inject(
    watch: Monitor,
    kind: str,
    *,
    parameter: str | None = None,
    module: str | None = None,
    step: int | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Injection:
    """Plant a fault in a watched training, so that you can see what it sets off.

    It breaks the training for as long as it lasts: it costs skipped steps with a GradScaler, and the
    weights without one. Findings that may come from it say so, in their summary and by ``injected`` in
    their evidence.

    Args:
        watch: The monitor, open.
        kind: ``inf_grad`` or ``nan_grad`` (of ``parameter``), ``inf_activation`` or ``nan_activation`` (of
            ``module``), ``collapsed_scale`` or ``stalled_step``; see docs/callbacks.md.
        parameter: Qualified name, with wrappers (``DDP``, ``torch.compile``) or without; with several
            models it begins with the index of its model.
        module: Qualified name, likewise.
        step: The iteration, counted as in ``watch.last_step``; the open one if ``None``.
        steps: How many iterations; 1 if ``None``, and ``COLLAPSE_STEPS`` for ``collapsed_scale``.
        seconds: The wait of ``stalled_step``; 5 if ``None``. Unit: s.
        sleep: Function that waits.

    Returns:
        The handle: ``remove()``, or the end of a ``with`` block, takes the fault off early.

    Raises:
        SettingsError: If an argument is wrong, missing or too many; before the first iteration only. In a
            running training it is logged, and nothing is planted.
        StateError: If the monitor is not open.

    Cost:
        About 1 us a module call (activations) or 0.3 us a call of the scaler while it is in place.
    """
    session = _open_session(watch)
    try:
        injection = _planned(
            watch,
            kind,
            {"parameter": parameter, "module": module},
            step=step,
            steps=steps,
            seconds=seconds,
            sleep=sleep,
        )
    except SettingsError as error:
        if session.is_at_start:
            raise
        logger.error("no fault is planted: %s", error)  # noqa: TRY400 - a slip of the caller's
        return Injection(session, None, str(kind), range(0))
    session.add(injection)
    watch._outlet.marks.append(injection.mark)  # noqa: SLF001 - one room with two doors
    return injection


def _planned(
    watch: Monitor,
    kind: str,
    given: dict[str, str | None],
    *,
    step: int | None,
    steps: int | None,
    seconds: float | None,
    sleep: Callable[[float], None],
) -> Injection:
    session = watch._session  # noqa: SLF001 - one room with two doors
    guard = Guard(f"inject {kind}")
    if steps is None:
        steps = COLLAPSE_STEPS if kind == "collapsed_scale" else 1
    check_count("steps", steps, least=1)
    first = session.step if step is None else step
    check_count("step", first, least=0)
    _check_names(kind, given)
    fault: Fault
    if kind == "stalled_step":
        wait = STALL_SECONDS if seconds is None else seconds
        check_number("seconds", wait, least=0)
        fault = _stall(watch, wait, sleep)
        place = f" of {wait:g} s"
    elif seconds is not None:
        msg = f"`seconds`: expected none for {kind!r}, got {seconds!r}; it is how long 'stalled_step' waits"
        raise SettingsError(msg)
    else:
        name = given["parameter"] or given["module"] or ""
        fault, place = _fault(watch, kind, name, guard)
    if first < session.step:
        msg = f"`step`: expected {session.step} or later, which is the open iteration, got {step!r}"
        raise SettingsError(msg)
    return Injection(session, fault, f"{kind}{place}", range(first, first + steps))


class Injection:
    """A fault that was planted, or waits for its iteration. Made by ``ampwatch.inject``.

    Attributes:
        what: Its kind and place.
        planted: In how many iterations it was planted so far.
    """

    name = "injection"

    def __init__(self, session: Session, fault: Fault | None, what: str, iterations: range) -> None:
        self.what = what
        self.planted = 0
        self._session = session
        self._fault = fault
        self._iterations = iterations
        self._first = -1
        self._last = -1
        self._is_over = fault is None  # it could not be planted

    @property
    def active(self) -> bool:
        """Whether it is still in place."""
        return not self._is_over

    def install(self) -> None:
        """Place it."""
        # The fault comes off at a boundary: its own hooks are not running there, and PyTorch walks
        # over some hooks in place.
        self._session.bus.call_at_boundary(self._closed)
        if self._fault is not None:
            self._fault.install(self._due)

    def remove(self) -> None:
        """Take it off. Idempotent."""
        if self._is_over or self._fault is None:
            return
        # First: the session calls this again when it ends, and so does the user's `with`.
        self._is_over = True
        self._session.bus.forget_at_boundary(self._closed)
        self._fault.remove()
        if self.planted:
            times = f"{self.planted} iteration{'s' if self.planted > 1 else ''}"
            logger.warning("the fault %s was planted in %s and is removed now", self.what, times)

    def mark(self, finding: Finding) -> None:
        """Mark a finding that may come from this fault, in its summary and its evidence."""
        if self.planted and self._first <= finding.first_step <= self._last + AFTERMATH_STEPS:
            # Each time anew: the diagnosis may have written summary and evidence again meanwhile.
            words = f" (ampwatch.inject had planted a fault: {self.what})"
            if words not in finding.summary:
                finding.summary += words
            finding.evidence[EVIDENCE] = 1.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.remove()

    def __repr__(self) -> str:
        state = "over" if self._is_over else "active" if self.planted else "waiting"
        return f"<ampwatch.Injection {self.what}, {state}>"

    def _due(self) -> bool:
        step = self._session.step
        if self._is_over or step not in self._iterations:
            return False
        # Each node of a parameter asks, but an iteration counts once.
        if step != self._last:
            self.planted += 1
            self._last = step
            if self._first < 0:
                self._first = step
                logger.warning("ampwatch.inject has planted a fault: %s", self.what)
        return True

    def _closed(self, step: int) -> None:
        if step >= self._iterations[-1]:
            self.remove()


def _open_session(watch: Any) -> Session:
    if not isinstance(watch, Monitor):
        msg = f"`watch`: expected what ampwatch.monitor() has returned, got {watch!r}"
        raise SettingsError(msg)
    if watch.closed:
        msg = f"expected an open monitor, got {watch!r}; inject between monitor() and close(), at a level other than off"
        raise StateError(msg)
    return watch._session  # noqa: SLF001 - as above


def _check_names(kind: str, given: dict[str, str | None]) -> None:
    if kind not in KINDS:
        msg = f"`kind`: expected one of {', '.join(KINDS)}, got {kind!r}{did_you_mean(kind, KINDS)}"
        raise SettingsError(msg)
    needed = "parameter" if kind in GRADIENT else "module" if kind in ACTIVATION else ""
    for name, value in given.items():
        if (value is not None) != (name == needed):
            wanted = f"the name of a {name}" if name == needed else "none"
            msg = f"`{name}`: expected {wanted} for {kind!r}, got {value!r}"
            raise SettingsError(msg)


def _fault(watch: Monitor, kind: str, name: str, guard: Guard) -> tuple[Fault, str]:
    """Return the fault and where it is, in words."""
    names = Names(watch.models)
    if kind in ACTIVATION:
        module = _named(names, names.modules(), name, "module")
        return ActivationFault(module, ACTIVATION[kind], guard), f" of {name or 'the model'}"
    if kind in GRADIENT:
        parameter = _named(names, names.parameters(), name, "parameter")
        if not parameter.requires_grad:
            msg = f"`parameter`: expected one that gets a gradient, got {name!r}, whose requires_grad is False"
            raise SettingsError(msg)
        return GradientFault([parameter], GRADIENT[kind], guard), f" in {name}"
    scaler = watch._scaler  # noqa: SLF001
    trained = [p for _, p in names.parameters() if p.requires_grad]
    if scaler is None or not scaler.is_enabled() or not trained:
        msg = f"`kind`: expected a monitor of a model and an enabled GradScaler for {kind!r}, got {watch!r}, which lacks one"
        raise SettingsError(msg)
    return GradientFault(trained, math.inf, guard), ""


def _stall(watch: Monitor, seconds: float, sleep: Callable[[float], None]) -> StallFault:
    session = watch._session  # noqa: SLF001 - as above
    return StallFault(watch._scaler, seconds, sleep, lambda: session.step)  # noqa: SLF001


def _named(names: Names, pairs: Iterable[tuple[str, Any]], name: str, what: str) -> Any:
    there = dict(pairs)
    bare = names.canonical(name)
    # Whoever watches the model within a wrapper may still take names from the wrapper.
    for each in (name, bare, bare.removeprefix(f"{MODULE}.")):
        if each in there:
            return there[each]
    some = ", ".join(repr(each) for each in list(there)[:SHOWN_NAMES])
    more = f" and {len(there) - SHOWN_NAMES} more" if len(there) > SHOWN_NAMES else ""
    hint = did_you_mean(name, there, f"there are {some}{more}: model.named_{what}s()")
    msg = f"`{what}`: expected the name of a {what} of the watched models, got {name!r}{hint}"
    raise SettingsError(msg)
