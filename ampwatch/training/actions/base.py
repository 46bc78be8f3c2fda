"""The contract of an action, and the subscription that notifies it of findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ampwatch.diagnosis.kinds.registry import KINDS
from ampwatch.diagnosis.news import SEVERITIES, News, Reason
from ampwatch.errors import SettingsError, StateError, did_you_mean
from ampwatch.guard import Guard
from ampwatch.training.arguments import check_callable
from ampwatch.wire.records import Finding, Severity

if TYPE_CHECKING:
    from ampwatch.errors import StopTraining
    from ampwatch.wire.records import RunIdentity

Callback = Callable[[Finding], None]

_Factory = TypeVar("_Factory", bound=Callable[..., Any])

_factories: list[Callable[..., Any]] = []


def makes_callback(factory: _Factory) -> _Factory:
    """Mark a function that makes a callback, and is none itself."""
    _factories.append(factory)
    return factory


class Action:
    """An answer to findings, at its own pace.

    A plain function is enough for ``on_finding``; an action also knows the run, and may wait for
    the safe point: right after an iteration has closed, when model, optimizer and scaler agree.

    Attributes:
        min_severity: The least severity it is notified of, where ``on_finding`` does not say.
        wants_safe_point: Whether ``settle`` has anything to do.
    """

    min_severity: ClassVar[Severity] = Severity.INFO
    wants_safe_point: ClassVar[bool] = False

    _taken_by: RunIdentity | None = None

    def take(self, identity: RunIdentity) -> None:
        """Open it for a run, unless it is open for that run already.

        Raises:
            StateError: If it is open for another run: its notes are about one run.
        """
        if self._taken_by is identity:
            return
        if self._taken_by is not None:
            msg = f"expected an action that no other open monitor has, got {self!r} of run {self._taken_by.run!r}; make one for each monitor"
            raise StateError(msg)
        self._taken_by = identity
        self.open(identity)

    def let_go(self) -> None:
        """Release it at the end of a run, so that another run may take it."""
        self._taken_by = None

    def open(self, identity: RunIdentity) -> None:
        """Begin with a run, to whose ``on_finding`` it was handed. Raises nothing."""

    def __call__(self, finding: Finding) -> None:
        """Take a finding that is new."""
        self.notify(News(finding, Reason.MADE, finding.severity, finding))

    def notify(self, news: News) -> None:
        """Take note of news of a finding, perhaps in the middle of a step, and return at once."""
        raise NotImplementedError

    def settle(self, step: int) -> StopTraining | None:  # noqa: ARG002 - for those that override it
        """Do what has to be done on the training thread; iteration ``step`` has closed.

        Returns:
            An exception to be raised out of the user's call, where the action is for that.
        """
        return None

    def close(self) -> None:
        """Finish within a bound and leave nothing behind, when the monitor is closed."""


class Subscription:
    """One callback and the findings that it wants.

    Args:
        callback: A function or an action.
        min_severity: The least severity it is notified of; its own choice if ``None``.
        kinds: The kinds it is notified of; all if ``None``.

    Raises:
        SettingsError: If the callback cannot be called, or a severity or a kind does not exist.
    """

    def __init__(
        self,
        callback: Callback,
        min_severity: Severity | str | None = None,
        kinds: Iterable[str] | None = None,
    ) -> None:
        _check_callback(callback)
        self.action = callback if isinstance(callback, Action) else None
        default = Action if self.action is None else type(self.action)
        self._take = _taker(callback) if self.action is None else self.action.notify
        self._guard = Guard(f"on_finding {callback!r}")
        self._least = SEVERITIES.index(
            _severity(default.min_severity if min_severity is None else min_severity)
        )
        self._kinds = None if kinds is None else _checked_kinds(kinds)
        self._notified: dict[str, int] = {}

    def notify(self, news: News) -> None:
        """Pass on a finding that is wanted: when it is made, is bad enough, or has become worse.

        As bad as its incident: who wants critical findings wants what explains one.

        Cost: three look-ups, and the callback's own. Thread: that of the finding.
        """
        finding, severity = news.finding, SEVERITIES.index(news.severity)
        known = self._notified.get(finding.key)
        if known is not None and (severity <= known or news.reason is not Reason.WORSE):
            # What is over may begin anew, and is worse then than it was.
            self._notified[finding.key] = min(known, severity)
            return
        if severity < self._least or (self._kinds is not None and finding.kind not in self._kinds):
            return
        self._notified[finding.key] = severity
        self._guard.run(self._take, news)


def _taker(callback: Callback) -> Callable[[News], None]:
    """Return a function that hands over the finding alone."""
    return lambda news: callback(news.finding)


def _check_callback(given: Any) -> None:
    name = getattr(given, "__name__", "")
    if any(given is factory for factory in _factories):
        msg = f"`callback`: expected a function that takes a finding, got actions.{name}, which makes one; write actions.{name}(...)"
        raise SettingsError(msg)
    if isinstance(given, type) and issubclass(given, Action):
        msg = f"`callback`: expected an action, got its class {name}; call it first"
        raise SettingsError(msg)
    check_callable("callback", given, "ampwatch.actions has ready ones")


def _severity(given: Severity | str) -> Severity:
    try:
        return Severity(given)
    except ValueError:
        those = ", ".join(severity.value for severity in SEVERITIES)
        msg = f"`min_severity`: expected one of {those}, got {given!r}"
        raise SettingsError(msg) from None


def _checked_kinds(given: Iterable[str]) -> frozenset[str]:
    if isinstance(given, str):
        msg = f"`kinds`: expected several kinds of findings, got {given!r}; write kinds=[{given!r}]"
        raise SettingsError(msg)
    listed = list(given) if isinstance(given, Iterable) else []
    if not listed or not all(isinstance(kind, str) for kind in listed):
        msg = f"`kinds`: expected several kinds of findings, got {given!r}; write kinds=['scale_collapse'], or leave it out for all"
        raise SettingsError(msg)
    kinds = frozenset(listed)
    for kind in sorted(kinds - set(KINDS)):
        hint = did_you_mean(kind, KINDS, "`ampwatch explain` lists them")
        msg = f"`kinds`: expected kinds of findings, got {kind!r}{hint}"
        raise SettingsError(msg)
    return kinds
