"""What an Alertmanager with the shipped configuration tells whom, computed instead of waited for.

Routes, groups, waits, inhibition and deduplication as Alertmanager 0.25 does them (``dispatch``, ``inhibit``,
``notify.DedupStage``), written from their documentation and source.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CONFIG = Path(__file__).parents[1] / "deploy" / "alertmanager" / "alertmanager.yml"

Labels = frozenset[tuple[str, str]]

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"(.*)"')


@dataclass(frozen=True)
class Told:
    """A message.

    Attributes:
        at: Second in which it was sent.
        receiver: Who got it.
        group: Labels that its alerts have in common by ``group_by``.
        firing: Alerts that go on.
        resolved: Alerts that are over.
        new: Whether its group had nothing that went on when it was last told of: somebody is woken anew.
        news: Whether an alert goes on that the last message did not have.
    """

    at: float
    receiver: str
    group: Labels
    firing: frozenset[Labels]
    resolved: frozenset[Labels]
    new: bool
    news: bool


@dataclass
class _Route:
    receiver: str
    group_by: tuple[str, ...]
    waits: dict[str, float]
    matchers: list[tuple[str, str, str]]
    routes: list[_Route]

    def of(self, labels: Mapping[str, str]) -> _Route:
        for route in self.routes:
            if _match(route.matchers, labels):
                return route.of(labels)
        return self


@dataclass
class _Group:
    route: _Route
    next_flush: float
    alerts: dict[Labels, bool] = field(default_factory=dict)
    told: Told | None = None


def messages(
    firing: Sequence[tuple[float, frozenset[Labels]]], config: Path = CONFIG
) -> list[Told]:
    """Return what is told of alerts that fire.

    Args:
        firing: Moments of evaluation in seconds, oldest first, and the alerts that fire then.
        config: Configuration of Alertmanager.
    """
    document = yaml.safe_load(config.read_text(encoding="utf-8"))
    pager = _Pager(document)
    for (now, alerts), (after, _) in zip(firing, [*firing[1:], (float("inf"), ())], strict=True):
        pager.take(now, alerts)
        pager.flush(now, min(after, now + 600))
    return pager.sent


class _Pager:
    def __init__(self, document: dict[str, Any]) -> None:
        defaults = {"group_wait": 30.0, "group_interval": 300.0, "repeat_interval": 14400.0}
        self._root = _route(document["route"], "", (), defaults)
        self._inhibit = document["inhibit_rules"]
        self._resolved = {
            receiver["name"]: any(h.get("send_resolved", True) for h in receiver["webhook_configs"])
            for receiver in document["receivers"]
        }
        self._groups: dict[tuple[int, Labels], _Group] = {}
        self._firing: frozenset[Labels] = frozenset()
        self.sent: list[Told] = []

    def take(self, now: float, alerts: frozenset[Labels]) -> None:
        """Take the alerts of an evaluation."""
        self._firing = alerts
        for alert in alerts:
            labels = dict(alert)
            route = self._root.of(labels)
            key = frozenset((name, labels.get(name, "")) for name in route.group_by)
            group = self._groups.get((id(route), key))
            if group is None:
                group = _Group(route, now + route.waits["group_wait"])
                self._groups[id(route), key] = group
            group.alerts[alert] = True
        for group in self._groups.values():
            for alert in group.alerts:
                group.alerts[alert] = alert in alerts

    def flush(self, now: float, until: float) -> None:
        """Send what is due from now on until another moment."""
        for (route, key), group in list(self._groups.items()):
            while group.next_flush < until:
                at = max(group.next_flush, now)
                self._notify(at, key, group)
                group.next_flush = at + group.route.waits["group_interval"]
                group.alerts = {alert: True for alert, fires in group.alerts.items() if fires}
                if not group.alerts:
                    if group.told is None or not group.told.firing:
                        del self._groups[route, key]
                    break

    def _notify(self, at: float, key: Labels, group: _Group) -> None:
        shown = {alert: fires for alert, fires in group.alerts.items() if not self._mutes(alert)}
        firing = frozenset(alert for alert, fires in shown.items() if fires)
        resolved = frozenset(alert for alert, fires in shown.items() if not fires)
        last = group.told
        if not shown or not self._due(at, group, firing, resolved):
            return
        new = bool(firing) and (last is None or not last.firing)
        news = bool(firing - (last.firing if last else frozenset()))
        receiver = group.route.receiver
        if not firing and not self._resolved[receiver]:
            group.told = None
            return
        group.told = Told(at, receiver, key, firing, resolved, new, news)
        self.sent.append(group.told)

    def _due(
        self, at: float, group: _Group, firing: frozenset[Labels], over: frozenset[Labels]
    ) -> bool:
        last = group.told
        if last is None:
            return bool(firing)
        if not firing <= last.firing:
            return True
        if not firing:
            return bool(last.firing)
        if self._resolved[group.route.receiver] and not over <= last.resolved:
            return True
        return at - last.at >= group.route.waits["repeat_interval"]

    def _mutes(self, alert: Labels) -> bool:
        labels = dict(alert)
        for rule in self._inhibit:
            targets = list(map(_matcher, rule["target_matchers"]))
            if not _match(targets, labels):
                continue
            sources = list(map(_matcher, rule["source_matchers"]))
            # What matches both sides is not inhibited by what does, too.
            both = _match(sources, labels)
            for other in map(dict, self._firing):
                if (
                    _match(sources, other)
                    and all(other.get(name, "") == labels.get(name, "") for name in rule["equal"])
                    and not (both and _match(targets, other))
                ):
                    return True
        return False


def _route(
    part: dict[str, Any], receiver: str, group_by: tuple[str, ...], waits: dict[str, float]
) -> _Route:
    own = {name: _seconds(part[name]) if name in part else value for name, value in waits.items()}
    receiver = part.get("receiver", receiver)
    group_by = tuple(part.get("group_by", group_by))
    routes = [_route(child, receiver, group_by, own) for child in part.get("routes", ())]
    return _Route(receiver, group_by, own, list(map(_matcher, part.get("matchers", ()))), routes)


def _seconds(text: str) -> float:
    return float(text[:-1]) * _SECONDS[text[-1]]


def _matcher(text: str) -> tuple[str, str, str]:
    found = _MATCHER.fullmatch(text)
    assert found is not None, text
    return found[1], found[2], found[3]


def _match(matchers: list[tuple[str, str, str]], labels: Mapping[str, str]) -> bool:
    for name, operator, value in matchers:
        own = labels.get(name, "")
        same = bool(re.fullmatch(value, own)) if "~" in operator else own == value
        if same is operator.startswith("!"):
            return False
    return True
