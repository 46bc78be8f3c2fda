"""What the callbacks of all frameworks share: whose monitor it is, and how it ends."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import ampwatch
from ampwatch import Finding
from ampwatch.errors import SettingsError
from ampwatch.integrations import attached as shared
from ampwatch.training.monitor import monitor_of
from tests.workshop.alone import python

WORDS = "callback of a test"


class Callback(shared.Callback):
    _module = WORDS


@pytest.fixture
def model() -> nn.Module:
    return nn.Linear(4, 1)


@pytest.fixture
def attached() -> Iterator[Callback]:
    made = Callback(level="light", serve=False)
    yield made
    made._detach()


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if WORDS in r.getMessage()]


def test_a_slip_in_a_setting_is_refused_where_it_is_written() -> None:
    """Not in the middle of the framework, where it could only be logged."""
    with pytest.raises(SettingsError, match="did you mean 'run'"):
        Callback(runs="deep", serve=False)


def test_a_training_is_watched_from_begin_to_end(attached: Callback, model: nn.Module) -> None:
    """Another one has a monitor of its own."""
    attached._attach(model, None, 0)
    first = attached.watch
    assert first is not None
    assert monitor_of(model) is first

    attached._detach()
    assert first.closed
    assert (attached._metrics(), attached._open) == ({}, None)

    attached._attach(model, None, 0)
    assert attached.watch is not first


def test_a_training_that_was_given_up_ends_when_the_next_begins(
    attached: Callback, model: nn.Module, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a batch that did not fit: it is no second callback, and no word is lost on it."""
    attached._attach(model, None, 0)
    first = attached.watch
    attached._attach(model, None, 0)

    assert first is not None
    assert first.closed
    assert attached._open
    assert not said(caplog)


def test_a_second_callback_does_nothing_and_says_so(
    attached: Callback, model: nn.Module, caplog: pytest.LogCaptureFixture
) -> None:
    """What the first one watches stays watched by it."""
    attached._attach(model, None, 0)
    second = Callback(serve=False)
    second._attach(model, None, 0)
    second._detach(RuntimeError("planted"))

    assert second.watch is None
    assert attached._open
    assert len(said(caplog)) == 1


def test_a_monitor_of_the_user_is_used_and_left_open(
    attached: Callback, model: nn.Module, caplog: pytest.LogCaptureFixture
) -> None:
    """Its numbers are logged; how it ends is not for the callback to say."""
    scaler = torch.amp.GradScaler("cpu")
    with ampwatch.monitor(None, scaler, serve=False, level="light") as watch:
        attached._attach(model, scaler, 0)
        assert attached.watch is watch
        attached._detach()
        assert not watch.closed
    assert len(said(caplog)) == 1


def test_what_cannot_be_watched_is_one_sentence(
    attached: Callback, caplog: pytest.LogCaptureFixture
) -> None:
    """Also at the second training: nothing is raised, and nothing is said twice."""
    for _ in range(2):
        attached._attach("a model", None, 0)
    assert not attached._open
    (sentence,) = said(caplog)
    assert "training goes on" in sentence
    assert "expected a torch.nn.Module" in sentence


def test_what_a_training_raises_is_how_its_monitor_ends(
    attached: Callback, model: nn.Module
) -> None:
    """The exception is in the report, with the frames it came from."""
    attached._attach(model, None, 0)
    try:
        int("planted")
    except ValueError as error:
        attached._detach(error)

    assert attached.watch is not None
    assert "ValueError: invalid literal" in attached.watch.box().traceback


def test_stop_is_the_way_of_the_framework_where_it_has_one(
    model: nn.Module,
) -> None:
    """Other answers are handed over as they are, before a training or in it."""
    stopped: list[Finding] = []
    heard: list[Finding] = []
    attached = Callback(level="deep", serve=False)
    attached._stops = stopped.append
    attached.on_finding(ampwatch.actions.stop(), min_severity="critical")
    attached._attach(model, None, 0)
    attached.on_finding(heard.append)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert attached.watch is not None
    for step in range(12):
        optimizer.zero_grad()
        model(torch.randn(2, 4)).sum().backward()
        if step >= 4 and model.weight.grad is not None:
            model.weight.grad.fill_(float("nan"))
        optimizer.step()
    attached._detach()

    kinds = {finding.kind for finding in attached.watch.findings if finding.severity == "critical"}
    assert "param_nonfinite" in kinds
    assert {finding.kind for finding in stopped} == kinds
    assert kinds <= {finding.kind for finding in heard}


def test_a_copy_is_not_watched(attached: Callback, model: nn.Module) -> None:
    """Frameworks copy callbacks, and send them to other processes."""
    attached._attach(model, None, 0)
    other = copy.deepcopy(attached)

    assert (other.watch, other._open) == (None, None)
    assert attached._open


def test_no_framework_is_imported_before_it_is_used() -> None:
    """In a process of its own: in this one others may have imported them."""
    program = (
        "import sys, ampwatch; ampwatch.integrations; print(sorted(set(sys.modules) &"
        " {'accelerate', 'lightning', 'pytorch_lightning', 'torch', 'transformers'}))"
    )
    assert python("-c", program).stdout.strip() == "[]"


def test_a_name_that_is_no_framework_is_an_error_that_lists_them() -> None:
    """As for the package itself."""
    with pytest.raises(AttributeError, match="accelerate, lightning, transformers"):
        _ = ampwatch.integrations.keras


def test_a_log_that_raises_does_not_reach_the_training(
    attached: Callback, caplog: pytest.LogCaptureFixture
) -> None:
    """A handler is code of the user."""

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError(record.msg)

    broken = Broken()
    logging.getLogger("ampwatch").addHandler(broken)
    try:
        attached._say("something")
    finally:
        logging.getLogger("ampwatch").removeHandler(broken)
