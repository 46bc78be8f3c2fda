"""Actions on findings, in real trainings and against a real HTTP server."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import torch

import ampwatch
from ampwatch import actions
from ampwatch.diagnosis.news import News, Reason
from ampwatch.training.actions.base import Subscription
from ampwatch.wire.records import Finding, Measure, Severity, Tried
from tests.trainings import Net, Run, adamw, scaler
from tests.workshop.records import identity
from tests.workshop.servers import Quiet, answering

COLLAPSING = tuple(range(8, 20))
"""Iterations in which the loss is infinite: after five of them the scale is collapsing."""


@pytest.fixture(autouse=True)
def comparable(one_thread: None) -> None:
    """Runs are compared bit for bit."""


def collapsing(**options: Any) -> Run:
    torch.manual_seed(0)
    model = Net()
    made = scaler(init_scale=1024.0, growth_interval=1000)
    return Run([model], [adamw(model, **options)], made, steps=20, poison=COLLAPSING)


def made(
    severity: Severity = Severity.CRITICAL, kind: str = "scale_collapse", **changes: Any
) -> Finding:
    return Finding(
        kind, severity, "optimizer:0", summary="It broke", kind_advice="Mend it", **changes
    )


TEAMS = tuple(f"attachments.0.content.body.{row}.inlines.0.text" for row in range(2))
"""Where a card of Teams has its title and its first paragraph."""


class Server:
    """Answers as told, and keeps what it was sent."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.asked = threading.Semaphore(0)
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.url = ""

    @contextmanager
    def running(self) -> Iterator[Server]:
        here = self

        class Handler(Quiet, BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                here.headers.append(dict(self.headers))
                here.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                status = here.statuses.pop(0) if here.statuses else 204
                here.asked.release()
                here.may_answer.wait(60)
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", here.url + "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        with answering(server) as address:
            self.url = f"{address}/services/SECRET?token=SECRET"
            try:
                yield self
            finally:
                self.may_answer.set()


def patient(url: str, **given: Any) -> Any:
    """A webhook that waits for its endpoint as long as that takes on a busy machine."""
    return actions.webhook(url, close_seconds=60, timeout_seconds=60, **given)


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("ampwatch")]


def test_a_callback_is_told_only_of_what_it_asked_for() -> None:
    """By severity and by kind; another callback of the same run gets everything."""
    run, everything, severe, others = collapsing(), list[str](), list[Finding](), list[Finding]()
    with ampwatch.monitor(run.models, run.scaler, serve=False) as watch:
        watch.on_finding(lambda f: everything.append(f"{f.kind} {f.severity.value}"))
        watch.on_finding(severe.append, min_severity="critical")
        watch.on_finding(others.append, kinds=["update_rounding"])
        run.loop()

    assert [f.kind for f in severe] == ["scale_collapse"]
    assert others == []
    assert {"scale_collapse warning", "scale_collapse critical"} <= set(everything)
    assert len(everything) == len(set(everything))


def test_a_finding_that_gets_worse_is_told_when_it_is_bad_enough() -> None:
    """A filter does not lose a finding that was harmless when it was made."""
    told: list[Severity] = []
    subscription = Subscription(lambda f: told.append(f.severity), Severity.WARNING)
    finding = made(Severity.INFO)
    for reason, severity in (
        (Reason.MADE, Severity.INFO),
        (Reason.WORSE, Severity.CRITICAL),
        (Reason.CHANGED, Severity.CRITICAL),
        (Reason.WORSE, Severity.CRITICAL),  # itself, in a story that was so already
        (Reason.CHANGED, Severity.INFO),  # it is over
        (Reason.WORSE, Severity.WARNING),  # and comes back
        (Reason.EXPLAINED, Severity.WARNING),
    ):
        finding.severity = severity
        subscription.notify(News(finding, reason, severity, finding))

    assert told == [Severity.CRITICAL, Severity.WARNING]


def test_a_root_is_told_of_when_what_it_explains_is_bad_enough() -> None:
    """Whoever wants critical findings gets the reason of one, which is a warning by itself."""
    told: list[str] = []
    subscription = Subscription(lambda f: told.append(f.kind), Severity.CRITICAL)
    root = made(Severity.WARNING, "range_too_wide")
    subscription.notify(News(root, Reason.MADE, Severity.WARNING, root))
    subscription.notify(News(root, Reason.WORSE, Severity.CRITICAL, root, Severity.WARNING))

    assert told == ["range_too_wide"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"min_severity": "fatal"}, "expected one of info, warning, critical, got 'fatal'"),
        ({"kinds": ["scale_colapse"]}, "did you mean 'scale_collapse'"),
        ({"kinds": "scale_collapse"}, r"write kinds=\['scale_collapse'\]"),
        ({"kinds": []}, "expected several kinds of findings, got"),
        ({"kinds": 3}, "expected several kinds of findings, got 3"),
    ],
)
def test_a_filter_that_can_never_match_is_refused(options: dict[str, Any], words: str) -> None:
    """At once, with what was meant."""
    run = collapsing()
    with (
        ampwatch.monitor(run.models, run.scaler, serve=False) as watch,
        pytest.raises(ampwatch.SettingsError, match=words),
    ):
        watch.on_finding(print, **options)


def test_the_log_action_writes_the_finding_with_its_level(caplog: pytest.LogCaptureFixture) -> None:
    """The record carries the finding itself."""
    with caplog.at_level(logging.INFO, logger="mine"):
        action = actions.log("mine")
        action.open(identity(run="gpt", rank=3, world_size=8))
        for severity in Severity:
            action(made(severity))

    assert [r.levelno for r in caplog.records] == [logging.INFO, logging.WARNING, logging.ERROR]
    assert caplog.records[0].finding.kind == "scale_collapse"  # type: ignore[attr-defined]
    assert caplog.messages[2] == (
        "ampwatch CRITICAL run gpt rank 3 step 0: scale_collapse in optimizer 0: It broke."
        " More: ampwatch explain scale_collapse"
    )


def test_stop_ends_the_run_at_the_end_of_the_iteration_that_shows_the_finding() -> None:
    """With the finding; model, optimizer and scaler are those of a run that ended there by itself."""
    run = collapsing()
    watch = ampwatch.monitor(run.models, run.scaler, serve=False)
    watch.on_finding(actions.stop())
    with pytest.raises(ampwatch.StopTraining, match="scale_collapse: The loss scale") as caught:
        run.loop()
    watch.close()
    stopped_after = len(run.losses)
    alone = collapsing()
    alone.steps = stopped_after
    alone.loop()

    assert caught.value.finding is not None
    assert caught.value.step == stopped_after - 1
    assert len(COLLAPSING) > stopped_after - COLLAPSING[0] >= 5
    assert run.scaler.state_dict() == alone.scaler.state_dict()
    for ours, theirs in zip(run.models[0].parameters(), alone.models[0].parameters(), strict=True):
        assert torch.equal(ours, theirs)
    # The scaler is ready for the next iteration: nothing is half done.
    run.poison = ()
    run.losses.clear()
    run.loop()
    assert all(map(math.isfinite, run.losses))


def test_a_checkpoint_is_asked_for_between_two_iterations() -> None:
    """``save`` runs once, after ``update``: the scaler can be saved then, and the iteration is over."""
    run, saved = collapsing(), []
    with ampwatch.monitor(run.models, run.scaler, serve=False) as watch:

        def save(finding: Finding) -> None:
            state = {"model": run.models[0].state_dict(), "scaler": run.scaler.state_dict()}
            saved.append((finding.kind, watch.last_step.step, len(run.losses), state["scaler"]))

        watch.on_finding(actions.checkpoint(save), min_severity="critical")
        run.loop()

    ((kind, step, losses, state),) = saved
    assert kind == "scale_collapse"
    assert step == losses - 1
    assert state["_growth_tracker"] == 0


def test_checkpoints_keep_their_distance_and_the_worst_finding_wins() -> None:
    """One call at a safe point, the next one no earlier than asked for."""
    saved: list[str] = []
    action = actions.checkpoint(lambda f: saved.append(f.kind), min_steps=10)
    action.open(identity())
    action(made(Severity.WARNING, "update_rounding"))
    action(made(Severity.CRITICAL, "scale_collapse"))
    for step in range(3, 20):
        action.settle(step)
        if step == 5:
            action(made(Severity.WARNING, "headroom_low"))
        if step == 12:
            assert saved == ["scale_collapse"]
    action(made(Severity.WARNING, "grad_underflow"))
    action.close()

    assert saved == ["scale_collapse", "headroom_low", "grad_underflow"]


def test_an_exception_of_the_checkpoint_is_logged_and_training_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A disk that is full ends no training."""
    alone = collapsing()
    alone.loop()
    run = collapsing()

    def save(_: Finding) -> None:
        raise OSError(28, "No space left on device")

    with ampwatch.monitor(run.models, run.scaler, serve=False) as watch:
        watch.on_finding(actions.checkpoint(save))
        run.loop()

    assert "No space left on device" in caplog.text
    assert run.digest() == alone.digest()


def test_a_webhook_gets_the_finding_as_json() -> None:
    """With run and rank; numbers that JSON has not are strings; nothing is left after close."""
    run = collapsing()
    with Server().running() as server:
        hook = patient(server.url, headers={"Authorization": "Bearer SECRET"})
        with ampwatch.monitor(run.models, run.scaler, serve=False, run="gpt") as watch:
            watch.on_finding(hook, min_severity="critical")
            assert threads() == []
            run.loop()

    (body,) = server.bodies
    assert (body["version"], body["run"], body["rank"]) == (1, "gpt", 0)
    assert body["finding"]["kind"] == "scale_collapse"
    assert body["finding"]["severity"] == "critical"
    assert body["finding"]["first_step"] == watch.findings[-1].first_step
    assert server.headers[0]["Authorization"] == "Bearer SECRET"
    assert server.headers[0]["Content-Type"] == "application/json"
    assert (hook.sent, hook.failed, hook.dropped) == (1, 0, 0)
    assert threads() == []


def test_a_root_is_posted_as_bad_as_its_story_and_a_symptom_with_its_root() -> None:
    """In words, as a person is to read them."""
    root = made(Severity.WARNING, "range_too_wide", op="exp")
    root.where = "param:fc.weight"
    symptom = made(root=False, caused_by=root.key)
    with Server().running() as server:
        hook = patient(server.url)
        hook.notify(News(symptom, Reason.MADE, Severity.CRITICAL, root))
        hook.notify(News(root, Reason.WORSE, Severity.CRITICAL, root, Severity.WARNING))
        hook.close()

    first, second = server.bodies
    assert first["explained_by"] == "range_too_wide in parameter fc.weight (op exp)"
    assert (second["place"], second["explained_by"]) == ("parameter fc.weight", "")
    assert (second["severity"], second["escalated_from"]) == ("critical", "warning")
    assert second["finding"]["severity"] == "warning"


@pytest.mark.parametrize(
    ("url", "title", "text"),
    [
        ("https://hooks.slack.com/services/T/B/SECRET", "blocks.0.text.text", "blocks.1.text.text"),
        ("https://discord.com/api/webhooks/1/SECRET", "embeds.0.title", "embeds.0.description"),
        (
            "https://discord.com/api/webhooks/1/SECRET/slack",
            "blocks.0.text.text",
            "blocks.1.text.text",
        ),
        ("https://x.webhook.office.com/webhookb2/SECRET", *TEAMS),
        ("https://prod-1.westeurope.logic.azure.com:443/workflows/SECRET", *TEAMS),
        ("https://a.b.environment.api.powerplatform.com/workflows/SECRET", *TEAMS),
    ],
)
def test_a_chat_gets_a_message_that_it_shows(url: str, title: str, text: str) -> None:
    """Within the limits that Slack and Discord publish; and nothing in a name calls or formats."""
    with Server().running() as server:
        hook = patient(url)
        hook._url = server.url
        hook.open(identity(run=99 * "g_", rank=3, world_size=8, host="<!channel>"))
        finding = made(evidence={"a": math.nan}, op="mul", source="train.py:9")
        finding.where, finding.summary = "param:a_b*.weight", "@everyone **It** broke" + 3000 * " _"
        hook(finding)
        hook.close()

    (body,) = server.bodies
    said = [body, body]
    for at, path in enumerate((title, text)):
        for key in path.split("."):
            said[at] = said[at][int(key) if isinstance(said[at], list) else key]
    is_discord, is_slack = "embeds" in body, "blocks" in body
    assert said[0].replace("\\", "").startswith("CRITICAL: scale_collapse in parameter a_b*.weight")
    assert "Step 0, first seen at step 0, op mul, at train.py:9, rank 3 of 8, on" in said[1]
    assert len(said[0]) <= (256 if is_discord else 150)
    assert len(said[1]) <= (4096 if is_discord else 3000)
    if is_discord:
        assert body["allowed_mentions"] == {"parse": []}
        assert re.search(r"(?<!\\)[*_<]", said[0] + said[1]) is None
    if is_slack:
        assert {block["text"]["type"] for block in body["blocks"]} == {"plain_text"}
        assert "<" not in body["text"]


def test_numbers_that_are_not_finite_are_words_in_the_body() -> None:
    """Strict JSON, for parsers in other languages; and what was tried by name, and in the advice."""
    tried = (Tried(Measure.BFLOAT16, "", 7, cures=True),)
    with Server().running() as server:
        hook = patient(server.url)
        hook(made(evidence={"a": math.nan, "b": math.inf, "c": -math.inf, "d": 0.5}, tried=tried))
        hook.close()

    posted = server.bodies[0]["finding"]
    assert posted["evidence"] == {"a": "NaN", "b": "Infinity", "c": "-Infinity", "d": 0.5}
    assert posted["tried"][0]["cures"] is True
    assert posted["advice"] == (
        "Use bfloat16 instead of float16 (tried on the batch of step 7: its forward pass is then finite; gradients may not be). Also possible: Mend it"
    )


def test_a_webhook_tries_again_and_counts(caplog: pytest.LogCaptureFixture) -> None:
    """After 503 and 429, but not after 403; secrets of the address are in no log."""
    with Server(503, 429, 204, 403).running() as server:
        hook = patient(server.url, backoff_seconds=0.001)
        hook(made())
        for _ in range(3):
            assert server.asked.acquire(timeout=60)
        hook(made())
        assert server.asked.acquire(timeout=60)
        hook.close()

    assert (hook.sent, hook.retried, hook.failed) == (1, 2, 1)
    assert "status 403" in caplog.text
    assert "SECRET" not in caplog.text + repr(hook)


def test_a_webhook_follows_no_redirect() -> None:
    """Headers may hold a secret that is meant for one host."""
    with Server(302).running() as server:
        hook = patient(server.url)
        hook(made())
        hook.close()

    assert (len(server.bodies), hook.failed) == (1, 1)


def test_a_webhook_never_blocks_training_and_its_queue_is_bounded() -> None:
    """While the endpoint hangs findings are dropped and counted; close waits as long as it may."""
    server = Server()
    server.may_answer.clear()
    with server.running():
        hook = actions.webhook(server.url, queue_size=2, close_seconds=0.05, timeout_seconds=60)
        hook(made())
        assert server.asked.acquire(timeout=60)
        for _ in range(5):
            hook(made())
        assert hook.dropped == 3
        hook.close()
        assert hook.failed == 2
        server.may_answer.set()
        for thread in threading.enumerate():
            if thread.name.startswith("ampwatch"):
                thread.join(60)

    assert hook.sent == 1
    assert threads() == []


def test_nobody_at_the_address_is_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """And a run that is not affected."""
    with Server().running() as server:
        url = server.url
    hook = patient(url, retries=1, backoff_seconds=0.0)
    hook(made())
    hook.close()

    assert hook.failed == 1
    assert "Connection refused" in caplog.text
    assert "SECRET" not in caplog.text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"url": "file:///etc/passwd"}, "begins with http:// or https://"),
        ({"url": "https://user:SECRET@example.com/"}, "without a password"),
        ({"url": "http://example.com:port/SECRET"}, "cannot be read"),
        ({"url": "http://example.com", "timeout_seconds": 0}, "> 0"),
        ({"url": "http://example.com", "queue_size": 0}, ">= 1"),
        ({"url": "http://example.com", "retries": -1}, ">= 0"),
        ({"url": "http://example.com", "retries": "3"}, "`retries`: expected a whole number"),
        ({"url": "http://example.com", "timeout_seconds": None}, "`timeout_seconds`: expected a"),
        ({"url": "http://example.com", "headers": ["SECRET"]}, "expected a mapping"),
        (
            {"url": "http://example.com", "headers": {"Authorization": None}},
            "'Authorization', got a NoneType; if it comes from an environment variable",
        ),
        ({"url": "http://example.com", "headers": {"X": "b\nSECRET"}}, "one line"),
        ({"url": "http://example.com", "headers": {"X": "\u2026SECRET"}}, "Latin-1"),
    ],
)
def test_what_cannot_work_is_refused_at_once(arguments: dict[str, Any], words: str) -> None:
    """Without quoting what may be a secret."""
    with pytest.raises(ampwatch.SettingsError, match=words) as caught:
        actions.webhook(**arguments)

    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("level", "callback", "words"),
    [
        ("light", actions.stop, r"got actions\.stop, which makes one; write actions\.stop\("),
        ("off", actions.webhook, r"write actions\.webhook\("),
        ("light", type(actions.stop()), "call it first"),
        ("light", 3, "expected a function that takes a finding, got 3"),
    ],
)
def test_a_callback_that_could_never_be_called_is_refused(
    level: str, callback: Any, words: str
) -> None:
    """Parentheses that were forgotten would be noticed when the training was not stopped."""
    run = collapsing()
    with (
        ampwatch.monitor(run.models, run.scaler, serve=False, level=level) as watch,
        pytest.raises(ampwatch.SettingsError, match=words),
    ):
        watch.on_finding(callback)


@pytest.mark.parametrize("make", [actions.stop, lambda: actions.checkpoint(print)])
def test_an_action_belongs_to_one_open_monitor(make: Any) -> None:
    """An action has notes about one run; after that run another may have it."""
    first, second, action = collapsing(), collapsing(), make()
    with (
        ampwatch.monitor(first.models, first.scaler, serve=False, run="one") as one,
        ampwatch.monitor(second.models, second.scaler, serve=False, run="two") as two,
    ):
        one.on_finding(action, min_severity="critical")
        one.on_finding(action, kinds=["scheduler_ahead"])
        with pytest.raises(ampwatch.StateError, match="of run 'one'; make one for each monitor"):
            two.on_finding(action)
        one.close()
        two.on_finding(action)


def test_a_webhook_of_a_second_run_tells_of_that_one_alone() -> None:
    """Under its own name, from the first finding to the last."""
    names = ["one", "two"]
    with Server().running() as server:
        hook = patient(server.url)
        for name in names:
            hook.open(identity(run=name))
            hook(made())
            hook.close()

    assert [body["run"] for body in server.bodies] == names
    assert (hook.sent, hook.failed, hook.dropped) == (2, 0, 0)


def test_an_error_that_nobody_thought_of_ends_no_thread(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The finding is given up and counted, and the next one is sent."""
    with Server().running() as server:
        hook = patient(server.url)
        with monkeypatch.context() as patched:
            patched.setattr(hook, "_headers", {"X": None})
            hook(made())
            hook.close()
        hook(made())
        hook.close()

    assert (hook.sent, hook.failed) == (1, 1)
    assert "did not take a finding: TypeError" in caplog.text


def test_a_thread_that_has_died_is_replaced() -> None:
    """Findings that the thread would have sent are not left in the queue."""
    with Server().running() as server:
        hook = patient(server.url)
        dead = threading.Thread(target=lambda: None)
        dead.start()
        dead.join()
        hook._courier._thread, hook._courier._pid = dead, os.getpid()
        hook(made())
        hook.close()

    assert hook.sent == 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: actions.checkpoint(print, min_steps="1"), "`min_steps`: expected a whole number"),  # type: ignore[arg-type]
        (lambda: actions.checkpoint("model.pt"), "expected a function"),  # type: ignore[arg-type] # a likely slip
        (lambda: actions.log(3), "`target`: expected a logger or its name, got 3"),  # type: ignore[arg-type]
    ],
)
def test_an_action_that_cannot_work_is_not_made(make: Any, words: str) -> None:
    """The message has what was expected and what was given."""
    with pytest.raises(ampwatch.SettingsError, match=words):
        make()
