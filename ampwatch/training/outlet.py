"""The way out of the training half, for records and findings: ring, log, the user's callbacks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ampwatch.errors import RingError
from ampwatch.guard import Guard, Log
from ampwatch.report.one_line import address, printable
from ampwatch.runtime import ring_directories
from ampwatch.state import Recorder
from ampwatch.state.facts import flat
from ampwatch.state.writer import BoxWriter
from ampwatch.training.announcement import announce
from ampwatch.training.daemon_link import DaemonLink
from ampwatch.training.finding_log import FindingLog
from ampwatch.training.launcher import daemon_is_running, ensure_daemon, token_for
from ampwatch.training.memory import HeldBytes
from ampwatch.training.model.facts import is_first
from ampwatch.training.other_ranks import OtherRanks
from ampwatch.wire.records import EndRecord, FindingRecord
from ampwatch.wire.ring import RingWriter
from ampwatch.wire.ring.layout import RecordKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from ampwatch.diagnosis.news import News
    from ampwatch.settings import Settings
    from ampwatch.state.facts import Fact
    from ampwatch.training.actions.base import Action, Subscription
    from ampwatch.wire.blackbox import Box
    from ampwatch.wire.records import Finding, RangeRecord, Record, RunIdentity, RunState

logger = Log()

MAX_SLOTS_IN_STEP = 2048
"""Slots of another rank's ring that are read in one go within a step: checks of weights are some hundred apart."""

_warned: set[str] = set()
"""Sentences that this process need not say again."""


class Outlet:
    """The way out of one monitor.

    Of several ranks with a ring one writes in the log what all of them have found.

    Attributes:
        identity: Who is watched: the run, the rank, the process and its host.
        others: The other ranks of this machine; without a ring nothing is known of them.
        holders: What holds memory of host, by part.
        marks: Called with each finding before anybody else gets it; may add to it.
    """

    def __init__(self, settings: Settings, identity: RunIdentity) -> None:
        self._settings = settings
        self.identity = identity
        self._ring: RingWriter | None = None
        self._had_daemon = False
        self.others = OtherRanks(
            identity, RecordKind.CHECKSUM, RecordKind.CULPRIT, most=MAX_SLOTS_IN_STEP
        )
        # What all ranks of a machine come to, such as trouble with the daemon, the first one reports.
        self._is_first = is_first(identity.rank, identity.world_size)
        self._log = FindingLog(identity)
        self._acting = Guard("actions")
        self._subscriptions: list[Subscription] = []
        self.marks: list[Callable[[Finding], None]] = []
        self._linking = Guard("daemon link")
        self._link: DaemonLink | None = None
        self._remembering = Guard("black box")
        self._recorder: Recorder | None = None
        self._remember: Callable[..., None] | None = None
        self._box: BoxWriter | None = None
        self.holders = (("ring", self._ring_bytes), ("report", self._report_bytes))

    def _ring_bytes(self) -> HeldBytes:
        return HeldBytes(0 if self._ring is None else self._ring.nbytes)

    def _report_bytes(self) -> HeldBytes:
        return HeldBytes(0 if self._recorder is None else self._recorder.nbytes)

    def warn_once(self, sentences: Iterable[str]) -> None:
        """Warn of what every process of a run comes to: the first rank of this machine does, once."""
        for sentence in sentences:
            # A process that is forked has been warned as well.
            if self._is_first and sentence not in _warned:
                logger.warning("%s", sentence)
            _warned.add(sentence)

    def serve(self) -> None:
        """Make the ring and see that a daemon reads it; trouble is a warning, not an error.

        Cost: a few ms; half a second where the daemon has to be started.
        """
        settings, identity = self._settings, self.identity
        directories = ring_directories(settings.ring_dir, settings.runtime_dir)
        try:
            self._ring = RingWriter.create(directories, identity, slots=settings.ring_slots)
        except RingError as error:
            logger.warning("no ring: findings only, no page and no metrics: %s", error)
            return
        status = ensure_daemon(settings)
        self._had_daemon = status.state != "unavailable" and daemon_is_running(settings)
        self._link = DaemonLink(settings, status, self._moved)
        others = None
        if identity.world_size > 1:
            self.others.directories = directories
            # One of its own, which is read on the thread of the log.
            others = OtherRanks(identity, RecordKind.FINDING, directories=directories)
        self._log = FindingLog(identity, status.url, others)
        for trouble in (self._ring.fell_back, status.message):
            if trouble and self._is_first:
                logger.warning("%s", trouble)
        run = address(status.url, identity.run)
        if run and self._is_first:
            self._announce(run, token_for(settings, status))

    def _announce(self, run: str, token: str) -> None:
        """Say where the page of the run is, with the token only where nobody else reads it."""
        url, name, started_ns = self.url, self.identity.run, self.identity.started_ns
        words = f"watching run {printable(name)}: "
        page = address(url, name, started_ns=started_ns)
        if not token:
            announce(words + page, run)
            return
        hint = " (in a new browser: `ampwatch url`)"
        personal = address(url, name, started_ns=started_ns, token=token)
        announce(words + page + hint, run, on_terminal=words + personal)

    @property
    def url(self) -> str:
        """Where the page and ``/metrics`` are now; empty without a daemon."""
        if self._link is None:
            return ""
        self._linking.run(self._link.check)
        return self._link.url

    def _moved(self, url: str, sentence: str) -> None:
        """Take note of where the daemon is from now on; the first rank reports it."""
        self._log.point_to(url)
        if self._is_first:
            logger.warning("%s", sentence)

    def remember(self, *, is_durable: bool, describe: Callable[[Box], None]) -> None:
        """Keep the newest evidence, for reports; on disk as well when something goes wrong.

        Args:
            is_durable: Write a report into ``report_dir`` when a finding is made, and at the
                end of a run that has findings or has failed.
            describe: Adds to a report what is not in the records.
        """
        self._recorder = Recorder(self.identity)
        self._remember = self._recorder.apply
        if is_durable:
            self._box = BoxWriter(self._recorder, self._settings, describe)
            self._remember = self._box.put

    def forget(self) -> None:
        """Remember nothing and write no report: there was no training."""
        self._recorder = None
        self._remember = None
        self._box = None

    def evidence(self) -> Box | None:
        """Return what is remembered now; ``None`` if that failed, or nothing is."""
        if self._recorder is None:
            return None
        return self._remembering.run(self._recorder.box, "training", time.time_ns())

    def numbers(self, rows: Iterable[Fact]) -> dict[str, float]:
        """Return the numbers of ``rows`` that are known, by key; none if nothing is remembered."""
        if self._recorder is None:
            return {}
        return self._remembering.run(flat, self._recorder, rows) or {}

    @property
    def gradients(self) -> list[RangeRecord]:
        """The newest measurement of gradients: of all together, first, and of each module; empty before it."""
        recorder = self._recorder
        if recorder is None:
            return []
        return self._remembering.run(lambda: recorder.gradients) or []

    def not_kept(self) -> list[str]:
        """Return, in sentences, what could not be remembered or written to disk."""
        sentences = []
        sentences += [
            f"sensor {guard.name} failed and was switched off"
            for guard in (self._remembering, self._linking)
            if guard.off
        ]
        if self._box is not None and self._box.failures:
            sentences.append(f"{self._box.failures} reports could not be written to disk")
        return sentences

    @property
    def ring_path(self) -> Path | None:
        """The ring file, ``None`` without one."""
        return None if self._ring is None else self._ring.path

    def put(self, *records: Record) -> None:
        """Write records to the ring, if there is one, and remember them. Never raises."""
        if self._ring is not None:
            self._ring.put(*records)
        # A clock read, as this may come several times in a step; what nobody writes nobody has to
        # read.
        if self._link is not None and time.monotonic() >= self._link.due_s:
            self._linking.run(self._link.check)
        if self._remember is not None:
            self._remembering.run(self._remember, *records)

    def notify(self, news: News) -> None:
        """Pass on news of a finding, also to the log and to the callbacks that want it."""
        for mark in self.marks:
            mark(news.finding)
        self.put(FindingRecord(news.finding))
        self._log.notify(news)
        for subscription in self._subscriptions:
            subscription.notify(news)

    def subscribe(self, subscription: Subscription) -> None:
        """Notify ``subscription`` of the findings it wants, until it raises.

        Raises:
            StateError: If its action is another open monitor's.
        """
        if subscription.action is not None:
            subscription.action.take(self.identity)
        self._subscriptions.append(subscription)

    def settle(self, step: int) -> None:
        """Let the actions do what waited for the end of iteration ``step``.

        Raises:
            StopTraining: If the user has asked for it, after all other actions were asked.
        """
        # A list: every action is asked before one of them ends the training.
        stops = [self._acting.run(action.settle, step) for action in self._actions()]
        if stop := next(filter(None, stops), None):
            raise stop

    def _actions(self) -> list[Action]:
        # One that was handed in twice, with two filters, is one.
        return list(dict.fromkeys(s.action for s in self._subscriptions if s.action is not None))

    def close(self, state: RunState, reason: str) -> None:
        """Write the last record and the last report, let go of the ring, have the actions finish."""
        end = EndRecord(state, reason, time.time_ns())
        if self._remember is not None:
            self._remembering.run(self._remember, end)
        if self._box is not None:
            self._remembering.run(self._box.close)
        try:
            self._close_ring(end)
        finally:
            self.others.close()
            self._log.close()
            for action in self._actions():
                self._acting.run(action.close)
                action.let_go()
            self._subscriptions.clear()

    def _close_ring(self, end: EndRecord) -> None:
        if self._ring is not None:
            if self._link is not None:
                self._linking.run(self._link.close)
            # A daemon takes the rest and removes the file: if this one is gone, the next one does. Where
            # there never was one nobody would.
            keep = self._had_daemon or daemon_is_running(self._settings)
            self._ring.close(end, keep=keep)
