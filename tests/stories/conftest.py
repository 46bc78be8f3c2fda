"""Fixtures of all stories."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from ampwatch.training import session
from ampwatch.training.iteration import governor
from ampwatch.training.iteration.ledger import Clock
from tests.diagnosis.words import ReadDiagnosis
from tests.stories.stage import TIME


@pytest.fixture(autouse=True)
def _every_word_is_read(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What any story says, at each of its steps, has to hold: see ``tests.diagnosis.words``."""
    monkeypatch.setattr(session, "Diagnosis", ReadDiagnosis)
    ReadDiagnosis.readers.clear()
    yield
    complaints = [c for reader in ReadDiagnosis.readers for c in reader.complaints]
    ReadDiagnosis.readers.clear()
    assert complaints == []


@pytest.fixture(autouse=True)
def _a_busy_machine_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "Clock", lambda: Clock(monotonic_ns=TIME, unix_ns=TIME))


@pytest.fixture
def samples_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many pieces a sample is split into depends on how busy this machine is."""
    monkeypatch.setattr(governor, "WORST_SHARE", math.inf)
