"""Tests of variables and intervals, against what Grafana sends to Prometheus."""

import pytest

from tools.preview.intervals import TimeSpan, interval, seconds
from tools.preview.variables import Choices, Variable

pytestmark = pytest.mark.nightly

RUN = Variable("run", "query", multi=True, all_value=".+")
MODULE = Variable("module", "query", multi=True)


def asked(expression: str, *of: Variable, **chosen: list[str]) -> str:
    choices = Choices({v.name: v for v in of or (RUN,)}, chosen=chosen)
    choices.values["module"] = ["head", "blocks.0"]
    return choices.in_query(expression, {"__rate_interval": "60s"})


def test_all_is_what_the_variable_says_it_is() -> None:
    """By its own value, not escaped; else every value there is."""
    assert asked('a{run=~"$run"}') == 'a{run=~".+"}'
    assert asked('a{m=~"$module"}', MODULE) == r'a{m=~"(head|blocks\\.0)"}'


@pytest.mark.parametrize(
    ("chosen", "pattern"),
    [
        (["gpt"], "gpt"),
        (["gpt", "bert"], "(gpt|bert)"),
        (["a.b"], r"a\\.b"),
        (["x(y)", "z$"], r"(x\\(y\\)|z\\$)"),
    ],
)
def test_values_are_escaped_for_a_regular_expression_in_a_string(
    chosen: list[str], pattern: str
) -> None:
    """Twice, as PromQL takes one of the backslashes for itself."""
    assert asked('a{run=~"$run"}', run=chosen) == f'a{{run=~"{pattern}"}}'


def test_every_way_to_write_a_variable_is_known_and_others_stay() -> None:
    """Plain, braced, with a format, and the built-in ones; a name that nobody has is left alone."""
    text = "$run ${run} [[run]] ${run:csv} ${run:pipe} ${run:raw} $other [$__rate_interval]"

    assert asked(text, run=["a", "b"]) == "(a|b) (a|b) (a|b) a,b a|b a,b $other [60s]"


@pytest.mark.parametrize(
    ("hours", "points", "step", "rate"),
    [
        (1, 1600, 15, 60),  # 2.25 s are asked for, and the scrape interval is 15 s
        (6, 800, 30, 60),
        (24, 800, 120, 135),
        (168, 1000, 600, 615),
    ],
)
def test_a_rate_interval_has_four_scrapes_at_least(
    hours: int, points: int, step: float, rate: float
) -> None:
    """The interval has one scrape more than the step, as Grafana documents it."""
    found = interval(TimeSpan(0.0, 3600.0 * hours, 15.0), points)

    assert (found.step, found.rate) == (step, rate)
    assert found.values()["__rate_interval"] == f"{rate}s"
    assert found.values()["__range_s"] == f"{3600 * hours}"


def test_a_duration_that_is_none_is_refused_in_words() -> None:
    """Not taken for zero."""
    with pytest.raises(ValueError, match="expected a duration such as 15s or 1m, got 'soon'"):
        seconds("soon")
