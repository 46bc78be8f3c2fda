"""Links of a run lead to where its operator said, and there is none without an address."""

from __future__ import annotations

from urllib.parse import parse_qs, unquote, urlsplit

from ampwatch.report.links import Links
from ampwatch.settings import Settings

RUN = 'gpt "a"/b&c~2'


def test_each_link_has_the_address_that_was_given_and_the_run_and_without_one_is_not_there() -> (
    None
):
    """Read as Grafana, Alertmanager and the page read theirs."""
    given = {
        "external_url": "https://train.example.com/node-a",
        "grafana_url": "https://example.com/grafana/",
        "alertmanager_url": "http://alerts:9093",
    }
    made = Links.of(Settings.resolve(given, {})).of_run(RUN)
    page, dashboard, silence = (urlsplit(url) for url in made.values())

    assert (page.scheme, page.netloc, page.path) == ("https", "train.example.com", "/node-a/")
    assert parse_qs(page.fragment) == {"run": [RUN]}
    assert (dashboard.netloc, dashboard.path) == ("example.com", "/grafana/d/ampwatch-run")
    assert parse_qs(dashboard.query) == {"var-run": [RUN]}
    assert (silence.netloc, silence.path) == ("alerts:9093", "/")
    assert unquote(silence.fragment) == r'/silences/new?filter={run="gpt \"a\"/b&c~2"}'
    assert Links.of(Settings()).of_run(RUN) == {}
