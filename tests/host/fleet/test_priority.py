"""Work on many ranks lets scrapes go first, and is not stopped by them."""

from __future__ import annotations

import threading

import pytest

from ampwatch.host.fleet import fleet as module
from ampwatch.host.fleet.fleet import Priority


def test_work_steps_aside_for_what_goes_first_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its patience is that of all pieces together."""
    priority = Priority()
    priority.step_aside()  # nothing is urgent

    entered, go_on, done = threading.Event(), threading.Event(), list[str]()

    def urgent() -> None:
        with priority.first():
            entered.set()
            go_on.wait(60)
            done.append("urgent")

    thread = threading.Thread(target=urgent)
    thread.start()
    entered.wait(60)
    monkeypatch.setattr(module, "MAX_ASIDE_SECONDS", 0.01)
    priority.step_aside()
    assert done == []

    monkeypatch.setattr(module, "MAX_ASIDE_SECONDS", 60.0)
    priority._patience = 60.0
    threading.Timer(0.01, go_on.set).start()
    priority.step_aside()
    assert done == ["urgent"]
    thread.join()
