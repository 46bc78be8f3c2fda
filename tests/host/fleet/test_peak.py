"""Tests of the hold that lets a scrape see what happened before it."""

from hypothesis import given
from hypothesis import strategies as st

from ampwatch.host.fleet.histogram import HOLD_SECONDS, Peak

SECOND = 1_000_000_000


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(-9, 9)), min_size=1), st.integers(0, 200)
)
def test_a_peak_holds_all_of_the_last_window_and_nothing_older_than_two(
    puts: list[tuple[int, int]], wait: int
) -> None:
    """Whatever was put in is seen for a window, and forgotten after two."""
    puts = sorted(puts, key=lambda put: put[0])
    peak = Peak(max)
    for seconds, value in puts:
        peak.put(value, seconds * SECOND)
    newest_time, newest = puts[-1]
    now = newest_time + wait

    held = peak.read(newest, now * SECOND)

    at_least = [v for t, v in puts if now - t < HOLD_SECONDS]
    at_most = [v for t, v in puts if now - t < 2 * HOLD_SECONDS]
    assert max([newest, *at_least]) <= held <= max([newest, *at_most])


def test_a_value_from_before_the_window_counts_as_the_newest() -> None:
    """A clock that was set back loses nothing."""
    peak = Peak(max)
    peak.put(1, 500 * SECOND)
    peak.put(7, 10 * SECOND)

    assert peak.read(1, 500 * SECOND) == 7
