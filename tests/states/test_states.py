"""In each scripted state every way out says the same, and what it says is so."""

from __future__ import annotations

import pytest

from tests.states.checks import WAYS, truth_of
from tests.states.score import Everything
from tests.states.table import AT_EACH_COMMIT, IN_TURN, TABLE

pytestmark = pytest.mark.services

ASKED_OF_SERVERS = ("alerts", "alert texts", "dashboards")
"""Ways out that a real Alertmanager or a real Prometheus shows."""

# All that is said of a state, or nothing: to play it is what takes long.
WHEN = {AT_EACH_COMMIT: [], **{state: [pytest.mark.rotating(by=state)] for state in IN_TURN}}
STATES = [pytest.param(state, marks=WHEN.get(state, [pytest.mark.nightly])) for state in TABLE]
WAYS_OUT = [
    pytest.param(way, marks=pytest.mark.nightly) if way in ASKED_OF_SERVERS else way for way in WAYS
]


@pytest.mark.parametrize("way", WAYS_OUT)
@pytest.mark.parametrize("state", STATES)
def test_what_is_said_is_so(everything: Everything, state: str, way: str) -> None:
    """State, root, place, shares, scale and severities, and no sentence that the numbers refute."""
    seen = everything.seen[state]

    wrong = [f"{row.run}: {each}" for row in TABLE[state] for each in WAYS[way](seen, row)]

    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("state", STATES)
def test_the_table(everything: Everything, state: str) -> None:
    """The loss scale and the share that is lost are what the training itself has counted."""
    seen = everything.seen[state]

    for row in TABLE[state]:
        last = truth_of(seen, row)[-1]
        assert last["scale"] == row.scale
        if row.lost is not None and last["finite_gradients"]:
            assert last["zeros"] / last["elements"] == row.lost
