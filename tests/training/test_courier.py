"""The thread that hands things over: nobody waits for one that does not begin."""

from __future__ import annotations

import threading
from _thread import start_new_thread

import pytest

from ampwatch.training import courier
from ampwatch.training.courier import Courier


def test_a_thread_that_has_no_memory_to_begin_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It dies before it says that it runs. What is put is counted, and the end does not wait either."""
    got: list[int] = []
    told: list[object] = []
    done = threading.Event()
    sender = Courier("unborn", got.append, 8)

    def put_and_close() -> None:
        told.extend([sender.put(1), sender.put(2), sender.dropped, sender.close(60.0)])
        done.set()

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "_bootstrap", lambda _: None)
        patched.setattr(courier, "PATIENCE_S", 0.01, raising=False)
        start_new_thread(put_and_close, ())
        assert done.wait(20)
    assert told == [False, False, 2, None]

    sender.open()
    assert sender.put(3)
    assert sender.close(60.0) is None
    assert got == [3]
