"""The protocol by which a loss scaler that is not torch's is watched."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.diagnosis.evidence.iteration import ScalerSettings
from ampwatch.errors import AttachError
from ampwatch.guard import Log, Suppress, is_of_a_signal
from ampwatch.training.devices import HOST, is_readable
from ampwatch.training.transfer.readback import host_scalar, is_plain_scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

logger = Log()

GROWTH_FACTOR = 2.0
"""Factor of a growth where nothing else is given: that of every published scaler."""

BACKOFF_FACTOR = 0.5
"""Factor of a backoff where nothing else is given."""

NOT_KNOWN = math.nan
"""Stands for an outcome that cannot be read: that a step was taken is not claimed then."""

_ON_DEVICE = (torch.float32, torch.int32)
"""Dtypes that the readback takes from a device without a kernel of its own."""

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

    docs/using.md has an example. Nothing is stored on the objects that it names.

    Attributes:
        get_scale: Returns the current loss scale, a number or a tensor with one element, read without a
            sync; or ``None`` where no loss is scaled.
        ends: The call that ends an iteration, as ``(object, "method")``, or a list of them. With ``(object,
            "method", ExceptionType)`` that exception says that the step is skipped. Of nested calls the
            outermost counts.
        skipped: Called with what that call has returned: ``True`` if the step was skipped, ``False`` if it
            was taken (the default), ``None`` if the iteration goes on (accumulation).
        growth_interval: Unskipped steps before the scale grows; ``None`` if unknown, without the findings
            that need it.
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
        if interval is not None and not _is_between(0.0, interval, math.inf):
            msg = f"`growth_interval`: expected a finite number above 0 or None, got {interval!r}"
            raise AttachError(msg)
        if not (
            _is_between(1.0, self.growth_factor, math.inf)
            and _is_between(0.0, self.backoff_factor, 1.0)
        ):
            msg = (
                "expected growth_factor > 1 and 0 < backoff_factor < 1, got"
                f" {self.growth_factor!r} and {self.backoff_factor!r}"
            )
            raise AttachError(msg)

    @property
    def calls(self) -> tuple[End, ...]:
        """The calls that may end an iteration."""
        given: Any = self.ends
        ends: tuple[End, ...] = ()
        with contextlib.suppress(TypeError, KeyError, IndexError):
            each = (given,) if len(given) in (2, 3) and isinstance(given[1], str) else given
            ends = tuple(End(*one) for one in each)
        if not ends:
            msg = (
                f"`ends`: expected (object, 'method') or a list of them, got {given!r}; {_EXAMPLE}"
            )
            raise AttachError(msg)
        return ends

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


def _check_function(what: str, function: Any) -> None:
    if function is not None and not callable(function):
        msg = f"`{what}`: expected a function or None, got {function!r}; {_EXAMPLE}"
        raise AttachError(msg)


def _is_between(low: float, value: Any, high: float) -> bool:
    try:
        return bool(low < value < high)
    except (TypeError, ValueError, RuntimeError):
        return False  # no number: a string, several


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
    """Asks a LossScaler, and never raises: what cannot be read is reported once, and is unknown then.

    Args:
        of: The scaler.
    """

    def __init__(self, of: LossScaler) -> None:
        self._of = of
        self._is_readable = of.get_scale is not None
        self._answers = of.skipped is not None
        self._is_reported = False

    def scale(self) -> object:
        """Return the scale as ``put_in`` takes it; ``None`` if there is none, or it is not known."""
        if not self._is_readable or self._of.get_scale is None:
            return None
        try:
            return as_scale(self._of.get_scale())
        except Exception as error:  # a function of the user's, or of a framework's
            if is_of_a_signal(error):
                raise
            self._is_readable = False
            self._say("get_scale()", error, "the loss scale is not known from here on")
            return None

    def outcome(self, returned: object) -> object:
        """Return whether the step was skipped, or ``NOT_KNOWN``; ``None`` if the iteration goes on."""
        if self._of.skipped is None:
            return False
        if not self._answers:
            return NOT_KNOWN
        try:
            return as_outcome(self._of.skipped(returned))
        except AnswerError as error:
            if not self._is_reported:
                self._is_reported = True
                self._say("skipped()", error, "whether such a step was taken is not known")
            return NOT_KNOWN
        except Exception as error:  # likewise
            if is_of_a_signal(error):
                raise
            self._answers = False
            self._say(
                "skipped()",
                error,
                "each ending call ends an iteration from here on, and whether its step was taken is"
                " not known",
            )
            return NOT_KNOWN

    def _say(self, what: str, error: Exception, then: str) -> None:
        is_answer = isinstance(error, AnswerError)
        why = "" if is_answer else f"it raised {type(error).__name__}: "
        why += str(error)[:200]
        logger.warning("scaler %s: %s: %s; %s, training goes on", self._of.name, what, why, then)


class AnswerError(ValueError):
    """What was given for a scale or an outcome is none."""

    def __init__(self, expected: str, given: object) -> None:
        got = type(given).__qualname__
        if isinstance(given, torch.Tensor):
            got += f" of {given.dtype} and shape {list(given.shape)} on {given.device}"
        elif isinstance(given, (bool, int, float, str)):
            got = repr(given)[:40]
        super().__init__(
            f"expected {expected} or a tensor with one element that can be read without waiting,"
            f" got {got}"
        )


def as_scale(scale: Any) -> object:
    """Return a scale as a float, or as a tensor that is read later; ``None`` as it is.

    Raises:
        AnswerError: If it is something else.
    """
    if scale is None:
        return None
    value = _as_value(scale) if isinstance(scale, torch.Tensor) else None
    if (
        value is None
        and hasattr(type(scale), "__float__")
        and not isinstance(scale, (bool, torch.Tensor))
    ):
        with Suppress(Exception):
            value = float(scale)  # an array of several has the method, and raises
    # NaN may be what a scaler has come to.
    if value is None or (isinstance(value, float) and value < 0.0):
        expected = "a number, 0 or above,"
        raise AnswerError(expected, scale)
    return value


def as_outcome(skipped: object) -> object:
    """Return an outcome as a bool, a tensor that is read later, or ``None``.

    Raises:
        AnswerError: If it is something else. A string or a list has a truth value, but means none.
    """
    if skipped is None or isinstance(skipped, bool):
        return skipped
    value = None
    if isinstance(skipped, torch.Tensor):
        value = _as_value(skipped)
    elif hasattr(type(skipped), "__bool__"):
        with Suppress(Exception):
            value = bool(skipped)
    if value is None:
        expected = "True, False"
        raise AnswerError(expected, skipped)
    return value if isinstance(value, torch.Tensor) else bool(value)


def _as_value(tensor: torch.Tensor) -> float | torch.Tensor | None:
    """Return a tensor's value, or a tensor that is read later; ``None`` if it cannot be read."""
    if not is_plain_scalar(tensor):
        return None
    if tensor.device.type == HOST:
        try:
            return float(host_scalar(tensor))
        except TypeError:
            return None
    if not is_readable(tensor.device.type) or tensor.dtype.is_complex:
        return None
    if tensor.dtype in _ON_DEVICE:
        return tensor
    with torch.no_grad():
        return tensor.detach().to(torch.float32)
