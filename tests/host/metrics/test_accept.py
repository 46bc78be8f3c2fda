"""Tests of who gets protobuf: those who prefer it, and nobody else."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.exposition import choose_encoder

from ampwatch.host.fleet import Fleet
from ampwatch.host.metrics.accept import PROTOBUF, protobuf_type
from ampwatch.host.metrics.prometheus import PrometheusExporter
from ampwatch.settings import Settings
from tests.workshop.clocks import Clock

ASKED = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"

PROMETHEUS_2_42 = f"{ASKED},application/openmetrics-text;version=1.0.0;q=0.8,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
PROMETHEUS_2_49 = f"{ASKED};q=0.5,application/openmetrics-text;version=1.0.0;q=0.4,application/openmetrics-text;version=0.0.1;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
PROMETHEUS_3 = f"{ASKED};escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"

PREFERRED = [
    ASKED,
    ASKED.upper().replace("IO.PROMETHEUS.CLIENT.METRICFAMILY", "io.prometheus.client.MetricFamily"),
    ASKED.replace(";", " ; "),
    ASKED.replace("delimited", '"delimited"'),
    f"{ASKED};q=0.001",
    f"{ASKED};q=1.000, text/plain",
    f"text/plain;q=0.3, {ASKED};q=0.7",
    PROMETHEUS_2_42,
    PROMETHEUS_2_49,
]

NOT_PREFERRED = [
    "",
    "*/*",
    "application/*",
    "application/vnd.google.protobuf",
    "application/vnd.google.protobuf;encoding=delimited",
    ASKED.replace("MetricFamily", "Metric"),
    ASKED.replace("delimited", "text"),
    f"{ASKED};escaping=dots",
    f"{ASKED};q=0",
    f"{ASKED};q=-1",
    f"{ASKED};q=nan",
    f"{ASKED};q=0.1234",
    f"{ASKED};q=\u0661",
    f"{ASKED};q=",
    f"{ASKED};q",
    f"x{ASKED}",
    f"{ASKED};q=0.5, text/plain",
    f"{ASKED};q=0.5, application/openmetrics-text;version=1.0.0;q=0.6",
    f"{ASKED};q=0.2, */*;q=0.3",
    f"{ASKED};q=0.2, text/*;q=0.3",
    f"text/plain, {ASKED}",
]


@pytest.mark.parametrize("accept", PREFERRED)
def test_who_prefers_protobuf_gets_it(accept: str) -> None:
    """As the versions of Prometheus write it, and in other ways that mean the same."""
    assert protobuf_type(accept) == PROTOBUF


@pytest.mark.parametrize("escaping", ["allow-utf-8", "underscores"])
def test_a_way_of_escaping_that_leaves_names_alone_is_confirmed(escaping: str) -> None:
    """A Prometheus 3 says how names are to be escaped; ours need not be."""
    accept = PROMETHEUS_3.replace("allow-utf-8", escaping)

    assert protobuf_type(accept) == f"{PROTOBUF}; escaping={escaping}"


@pytest.mark.parametrize("accept", NOT_PREFERRED)
def test_everybody_else_gets_what_the_library_chooses(accept: str) -> None:
    """Content type and, up to the last byte, the body."""
    exporter = PrometheusExporter(Fleet(Settings(), Clock()), {})
    without = "".join(accept.split(ASKED))

    body, content_type = exporter.render(accept)

    assert protobuf_type(accept) is None
    assert content_type == choose_encoder(accept)[1]
    assert body.startswith(b"# HELP ampwatch_")
    assert (body, content_type) == exporter.render(without)


@settings(max_examples=30)
@given(
    st.lists(
        st.sampled_from([ASKED, *ASKED.split(";"), ",", ";", "=", "q", '"', "\x00", "\u0130", "9"])
        | st.text(max_size=5)
    )
)
def test_no_header_is_an_error(parts: list[str]) -> None:
    """Whoever sends what is answered by something."""
    exporter = PrometheusExporter(Fleet(Settings(), Clock()), {}, catalog=())

    _, content_type = exporter.render("".join(parts))

    assert content_type.isprintable()
