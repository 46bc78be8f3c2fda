"""The protocol by which a loss scaler that is not torch's is watched."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.diagnosis.evidence.iteration import ScalerSettings
from ampwatch.errors import AttachError
from ampwatch.training.devices import HOST, is_readable
from ampwatch.training.transfer.readback import host_scalar, is_plain_scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

logger = logging.getLogger("ampwatch")

GROWTH_FACTOR = 2.0
"""Factor of a growth where nothing else is said: that of every published scaler."""

BACKOFF_FACTOR = 0.5
"""Factor of a backoff where nothing else is said."""

NOT_KNOWN = math.nan
"""Stands for an outcome that cannot be read: that a step was taken is not claimed then."""

_ON_DEVICE = (torch.float32, torch.int32)
"""Dtypes that the readback takes from a device without a kernel of its own."""

READABLE = "a tensor with one element that can be read without waiting"
"""What a value has to be that is no plain number, in words."""

_EXAMPLE = (
    "for example ampwatch.LossScaler(lambda: engine.cur_scale, ends=(engine, 'step'),"
    " skipped=lambda returned: engine.overflow)"
)

_Given = tuple[Any, str] | tuple[Any, str, type[BaseException]]


class End(NamedTuple):
    """A call that may end an iteration.

    Attributes:
        owner: The object whose method it is.
        method: Name of the method.
        raises: The exception by which the call says that the step is skipped; ``None`` where what it
            returns ends the iteration.
    """

    owner: Any
    method: str
    raises: type[BaseException] | None = None


@dataclass(frozen=True, eq=False)
class LossScaler:
    """A loss scaler that is not torch's: how to get its scale, and when an iteration has ended.

    ``ampwatch.monitor(model, ampwatch.LossScaler(lambda: opt.cur_scale, ends=(engine, "step"),
    skipped=lambda returned: opt.overflow))`` is all. Nothing is stored on the objects that it names.

    Attributes:
        get_scale: Returns the loss scale as it is now, a number or a tensor with one element, which is
            read without waiting for its device; or ``None`` where no loss is scaled.
        ends: The call that ends an iteration, as ``(object, "method")``, or a list of them. Where a
            call says by an exception that the step is skipped, and nothing by returning, it is
            ``(object, "method", ExceptionType)``. Of calls within one another the outermost counts.
        skipped: Called with what the ending call has returned: ``True`` if the step was skipped,
            ``False`` if it was taken, ``None`` if the iteration goes on (accumulation). Without it
            each call ends an iteration, and its step was taken.
        growth_interval: Unskipped steps before the scale grows; ``None`` if it is not known. Kinds of
            findings that need it are silent then.
        growth_factor: Factor of a growth.
        backoff_factor: Factor of a backoff.
        name: What it is called in facts and logs.

    Raises:
        AttachError: If one of them cannot be used.
    """

    get_scale: Callable[[], Any] | None
    ends: _Given | Sequence[_Given]
    skipped: Callable[[Any], Any] | None = None
    growth_interval: int | None = None
    growth_factor: float = GROWTH_FACTOR
    backoff_factor: float = BACKOFF_FACTOR
    name: str = "LossScaler"

    def __post_init__(self) -> None:
        for what, function in (("get_scale", self.get_scale), ("skipped", self.skipped)):
            _check_function(what, function)
        for end in self.calls:
            _check_end(end)
        interval = self.growth_interval
        if interval is not None and not 0.0 < _number(interval) < math.inf:
            msg = f"`growth_interval`: expected a number above 0 or None, got {interval!r}"
            raise AttachError(msg)
        growth, backoff = _number(self.growth_factor), _number(self.backoff_factor)
        if not (1.0 < growth < math.inf and 0.0 < backoff < 1.0):
            msg = (
                "expected growth_factor > 1 and 0 < backoff_factor < 1, got"
                f" {self.growth_factor!r} and {self.backoff_factor!r}"
            )
            raise AttachError(msg)

    @property
    def calls(self) -> tuple[End, ...]:
        """The calls that may end an iteration."""
        given: Any = self.ends
        try:
            each = (given,) if len(given) in (2, 3) and isinstance(given[1], str) else given
            return tuple(End(*one) for one in each)
        except (TypeError, KeyError, IndexError):
            msg = (
                f"`ends`: expected (object, 'method') or a list of them, got {given!r}; {_EXAMPLE}"
            )
            raise AttachError(msg) from None

    @property
    def settings(self) -> ScalerSettings:
        """The settings, as far as they are known."""
        interval = math.inf if self.growth_interval is None else self.growth_interval
        return ScalerSettings(self.growth_factor, self.backoff_factor, interval)

    @property
    def facts(self) -> dict[str, str]:
        """What is recorded of it once."""
        facts = {"scaler": self.name}
        if self.get_scale is not None:
            facts["growth_factor"] = repr(float(self.growth_factor))
            facts["backoff_factor"] = repr(float(self.backoff_factor))
            if self.growth_interval is not None:
                facts["growth_interval"] = str(int(self.growth_interval))
        return facts


def _number(given: object) -> float:
    """Return a number as a float; NaN, which is within no bounds, of what is none."""
    try:
        return float(given) if hasattr(given, "__float__") else math.nan
    except (
        TypeError,
        ValueError,
        OverflowError,
        RuntimeError,
    ):  # an array, or a tensor, of several
        return math.nan


def _check_function(what: str, function: Any) -> None:
    if function is not None and not callable(function):
        msg = f"`{what}`: expected a function or None, got {function!r}; {_EXAMPLE}"
        raise AttachError(msg)


def _check_end(end: Any) -> None:
    owner, method, raises = end
    is_method = isinstance(method, str) and callable(getattr(type(owner), method, None))
    if isinstance(owner, type) or not is_method:
        msg = (
            f"`ends`: expected an object and the name of a method of its class, got"
            f" {type(owner).__qualname__} and {method!r}; {_EXAMPLE}"
        )
        raise AttachError(msg)
    is_type = isinstance(raises, type) and issubclass(raises, BaseException)
    if raises is not None and not is_type:
        msg = f"`ends`: expected a type of exception at the third place, got {raises!r}"
        raise AttachError(msg)


class Reader:
    """Asks a LossScaler, and never raises: what cannot be read is said once, and is unknown then.

    Args:
        of: The scaler.
    """

    def __init__(self, of: LossScaler) -> None:
        self._of = of
        self._is_readable = of.get_scale is not None
        self._answers = True
        self._is_said = False

    def scale(self) -> object:
        """Return the scale as ``put_in`` takes it; ``None`` if there is none, or it is not known."""
        if not self._is_readable or self._of.get_scale is None:
            return None
        try:
            given = self._of.get_scale()
        except Exception as error:  # noqa: BLE001 - a function of the user's, or of a framework's
            self._is_readable = False
            self._say("get_scale() raised", error, "the loss scale is not known from here on")
            return None
        if given is None:
            return None
        scale = as_value(given)
        if scale is None:
            self._is_readable = False
            self._say(
                f"get_scale() returned neither a number nor {READABLE}",
                None,
                "the loss scale is not known from here on",
            )
        return scale

    def outcome(self, returned: object) -> object:
        """Return whether the step was skipped, or ``NOT_KNOWN``; ``None`` if the iteration goes on."""
        if self._of.skipped is None:
            return False
        if not self._answers:
            return NOT_KNOWN
        try:
            given = self._of.skipped(returned)
        except Exception as error:  # noqa: BLE001 - likewise
            self._answers = False
            self._say(
                "skipped() raised",
                error,
                "each ending call ends an iteration from here on, and whether its step was taken is"
                " not known",
            )
            return NOT_KNOWN
        outcome = as_outcome(given)
        if outcome is NOT_KNOWN and not self._is_said:
            self._is_said = True
            self._say(
                f"skipped() returned neither a bool nor {READABLE}",
                None,
                "whether such a step was taken is not known",
            )
        return outcome

    def _say(self, what: str, error: Exception | None, then: str) -> None:
        why = "" if error is None else f" {type(error).__name__}: {str(error)[:200]}"
        logger.warning("scaler %s: %s%s; %s, training goes on", self._of.name, what, why, then)


def as_value(scale: object) -> object:
    """Return a scale as a float, or as a tensor that is read later; ``None`` if it is neither.

    Never raises, whatever it is given: it is called within a step.

    Cost: of a tensor on a device that is neither float32 nor int32 one small kernel. No host sync.
    """
    try:
        return _value(scale)
    except Exception:  # noqa: BLE001 - an object of the user's converts itself
        return None


def _value(scale: object) -> object:
    if isinstance(scale, torch.Tensor):
        return _value_of_tensor(scale) if is_plain_scalar(scale) else None
    if isinstance(scale, bool) or not hasattr(scale, "__float__"):
        return None
    return float(scale)


def _value_of_tensor(scale: torch.Tensor) -> object:
    if scale.device.type == HOST:
        return host_scalar(scale)
    if not is_readable(scale.device.type) or scale.dtype.is_complex:
        return None
    if scale.dtype in _ON_DEVICE:
        return scale
    with torch.no_grad():
        return scale.detach().to(torch.float32)


def as_outcome(skipped: object) -> object:
    """Return an outcome as a bool, a tensor that is read later, ``NOT_KNOWN``, or ``None``.

    Never raises, whatever it is given.
    """
    if isinstance(skipped, torch.Tensor):
        value = as_value(skipped)
        if value is None:
            return NOT_KNOWN
        return value if isinstance(value, torch.Tensor) else bool(value)
    try:
        return None if skipped is None else bool(skipped)
    except Exception:  # noqa: BLE001 - likewise
        return NOT_KNOWN
