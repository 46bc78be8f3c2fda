"""A night, from records in rings to messages, by the deployed files, real daemons, a real Prometheus and Alertmanager.

Ranks on three hosts are played (``played_rank``). All durations of the night are a quarter of what they are, in a copy of
the deployed rules, routes and scrapes, and in the daemon's settings; nothing else of the files is changed. Not
shortened are two minutes for which a finding is current, the minute for which the daemon holds peaks, four for which it
holds checksums, and the minute by which clocks may differ. There are twelve faults, a lost host, three restarts, two
resumes, and a daemon that is killed and started again. Each fault and the lost host is one message, and nothing else is.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from tests.alerts.promtool import promtool
from tests.alerts.test_texts import VERBS
from tests.alerts.texts import rendered
from tests.host.daemon.parts import ROOT, Daemon, Place, eventually
from tests.host.gpu.standin import directory_of_library, write
from tests.integration.alertmanager import Messages, alertmanager, webhook
from tests.integration.prometheus import Prometheus, free_port, prometheus
from tests.services import require

pytestmark = [pytest.mark.nightly, pytest.mark.services]

FACTOR = 4
PATIENCE = 600.0
"""The longest that anything is waited for: that a run waits for data is told after a quarter of an hour. Unit: s."""

SCRAPER = "deploy/prometheus/prometheus.yml"
PAGER = "deploy/alertmanager/alertmanager.yml"
TEMPLATE = "deploy/alertmanager/ampwatch.tmpl"
RULES = "dashboards/alerts/ampwatch.rules.yml"
GRAFANA = "https://grafana.example.com/"

RUNS = {
    "collapse": ("a0 a1 b2 b3", "float16"),
    "nan-weights": ("a0 a1", "float16"),
    "nan-gradients": ("b0 b1", "bfloat16"),
    "storm": ("a0", "float16"),
    "left-low": ("b0", "float16"),
    "hang": ("a0 a1", "bfloat16"),
    "raise": ("b0 b1", "float16"),
    "end-broken": ("a0", "bfloat16"),
    "apart": ("a0 b1", "float16"),
    "starve": ("b0", "bfloat16"),
    "creep": ("a0", "bfloat16"),
    "pair": ("b0 c1", "float16"),
    "preempted": ("a0 b1", "float16"),
    "well": ("a0 b1", "float16"),
}
"""Where the ranks of each run are, and its dtype."""

FIRST_STEPS = {"apart": 940}
"""A checksum is exported until the next one, at step 1024: four minutes, which are not shortened either."""

TOLD = {
    "collapse": ("critical", "AmpwatchLossScaleCollapsed"),
    "nan-weights": ("critical", "AmpwatchParametersNotFinite"),
    "nan-gradients": ("critical", "AmpwatchRunBroken"),
    "storm": ("warning", "AmpwatchLossScaleUnhealthy"),
    "left-low": ("critical", "AmpwatchLossScaleLeftLow"),
    "hang": ("warning", "AmpwatchTrainingStalled"),
    "raise": ("warning", "AmpwatchRunFailed"),
    "end-broken": ("critical", "AmpwatchRunEndedBroken"),
    "apart": ("critical", "AmpwatchRanksApart"),
    "starve": ("warning", "AmpwatchInputBound"),
    "creep": ("warning", "AmpwatchMemoryCreep"),
    "gpu": ("critical", "AmpwatchGpuFault"),
    "host": ("warning", "AmpwatchTargetDown"),
}
"""The message of each fault: its severity, and the alert."""


EXPECTED = [
    (f"ampwatch-{severity}", alert, fault if fault in RUNS else None)
    for fault, (severity, alert) in TOLD.items()
]
"""All that somebody is told in the night: who, by which alert, of which run."""


class Ranks:
    """The ranks of all runs, each a process."""

    def __init__(self, hosts: dict[str, Path]) -> None:
        self._hosts = hosts
        self._processes: dict[tuple[str, str], subprocess.Popen[str]] = {}

    def start(self, run: str, step: int = 0, where: str = "") -> None:
        places, dtype = RUNS[run]
        names = (where or places).split()
        for name in names:
            arguments = [run, name[1:], str(len(names)), str(step), dtype]
            command = [sys.executable, "-m", "tests.integration.played_rank"]
            self._processes[run, name] = subprocess.Popen(
                [*command, str(self._hosts[name[0]]), *arguments],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                text=True,
            )

    def play(self, run: str, how: str, where: str = "") -> None:
        """Have the ranks of a run, or one of them, go on in another way."""
        for (of, name), process in self._processes.items():
            if of == run and where in ("", name) and process.poll() is None:
                process.stdin.write(f"{how}\n")
                process.stdin.flush()

    def end(self, run: str, how: str = "finish", where: str = "") -> None:
        """Have ranks end in a way, or killed."""
        if how != "kill":
            self.play(run, how, where)
        for (of, name), process in self._processes.items():
            if of == run and where in ("", name):
                if how == "kill":
                    process.kill()
                process.communicate(timeout=30)

    def end_all(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.communicate()


def shortened(text: str) -> str:
    """Return a text of the deployed files with durations that are a quarter."""

    def part(found: re.Match[str]) -> str:
        number, unit = found[2], found[3] or "s"
        milliseconds = int(number) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit] * 1000 // FACTOR
        return found[1] + (f"{milliseconds}ms" if found[3] else f"{milliseconds / 1000}")

    # Values of keys, and ranges.
    keys = "for|keep_firing_for|interval|scrape_interval|scrape_timeout|evaluation_interval"
    keys += "|refresh_interval|group_wait|group_interval|repeat_interval|resolve_timeout"
    text = re.sub(rf"(?m)^(\s*(?:- )?(?:{keys}): )(\d+)([smhd])$", part, text)
    text = re.sub(r"(\[)(\d+)([smhd])(?=\])", part, text)
    # Ages in expressions: since a start, an error, a finding.
    return re.sub(r"(time\(\) - (?:[^<>\n]*[<>] )?)(\d{3,4})()(?=\D)", part, text)


@contextmanager
def night(directory: Path) -> Iterator[tuple[Night, Prometheus]]:
    """Deploy, and start everything."""
    with ExitStack() as stack:
        ports = {host: free_port() for host in "abc"}
        places = {host: Place(directory / host) for host in "abc"}
        for place in places.values():
            place.rings.mkdir(parents=True, mode=0o700)
        messages = stack.enter_context(webhook())
        tree, manager_port = directory / "tree", free_port()
        page = f"http://127.0.0.1:{ports['a']}/"
        options = ["--webhook", messages.address, "--runbooks", f"{page}runbooks/", "--no-token"]
        options += ["--grafana-url", GRAFANA, "--port", str(ports["a"])]
        options += ["--alertmanager", f"http://127.0.0.1:{manager_port}/"]
        for host in "bc":
            options += ["--target", f"127.0.0.1:{ports[host]}"]
        command = places["a"].command("deploy", str(tree), *options)
        _, said = command.communicate(timeout=60)
        assert command.returncode == 0, said
        for file in (PAGER, SCRAPER, RULES):
            text = shortened((tree / file).read_text(encoding="utf-8"))
            (tree / file).write_text(
                text.replace("localhost:9093", f"127.0.0.1:{manager_port}"), encoding="utf-8"
            )
        for checked in (("check", "config", tree / SCRAPER), ("check", "rules", tree / RULES)):
            done = promtool(*checked)
            assert done.returncode == 0, done.stderr
        stack.enter_context(alertmanager(tree / PAGER, directory / "alertmanager", manager_port))
        ranks = Ranks({host: place.rings for host, place in places.items()})
        stack.callback(ranks.end_all)
        made = Night(directory, places, ports, messages, ranks, stack)
        write(directory / "driver", {"gpus": 2})
        for host in "abc":
            made.start_daemon(host)
        config = tree / SCRAPER
        flags = (f"--query.lookback-delta={300 // FACTOR}s",)
        server = prometheus(config.parent, config.read_text(encoding="utf-8"), flags=flags)
        yield made, stack.enter_context(server)


@dataclass
class Night:
    """What runs, and what is seen of it."""

    directory: Path
    places: dict[str, Place]
    ports: dict[str, int]
    messages: Messages
    ranks: Ranks
    stack: ExitStack
    daemons: dict[str, Daemon] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    begun: float = field(default_factory=time.monotonic)

    def start_daemon(self, host: str) -> None:
        port = str(self.ports[host])
        environment = {
            "AMPWATCH_PORT": port,
            "AMPWATCH_EXTERNAL_URL": f"http://127.0.0.1:{port}/",
            "AMPWATCH_READERS": "all",
            "AMPWATCH_STALE_SECONDS": str(120 // FACTOR),
            "AMPWATCH_GRACE_SECONDS": str(600 // FACTOR),
            "XDG_STATE_HOME": str(self.directory / f"state-{host}"),
        }
        if host == "a":
            environment["NVML_STANDIN"] = str(self.directory / "driver")
            environment["LD_LIBRARY_PATH"] = str(directory_of_library())
        else:
            environment["AMPWATCH_GPU"] = "off"
        self.daemons[host] = self.stack.enter_context(self.places[host].daemon(**environment))

    def kill_daemon(self, host: str) -> None:
        self.daemons[host].process.kill()
        self.daemons[host].process.wait(30)

    def break_gpu(self) -> None:
        write(self.directory / "driver", {"gpus": 2, "xids": "1:79"})

    def note(self, what: str) -> None:
        print(f"{time.monotonic() - self.begun:6.1f} s: {what}", flush=True)  # noqa: T201 - a night is long

    def about(self, fault: str, status: str = "firing") -> list[dict[str, Any]]:
        """Return the messages that a fault goes on, or that it is over."""
        severity, alert = TOLD[fault]
        return [
            body
            for body in self.messages.bodies
            if body["status"] == status
            and body["receiver"] == f"ampwatch-{severity}"
            and body["groupLabels"].get("run", fault) == fault
            and alert in {one["labels"]["alertname"] for one in body["alerts"]}
        ]

    def told(self, fault: str) -> None:
        """Wait for the message about a fault, and follow its links while it goes on."""
        eventually(lambda: self.about(fault), f"a message about {fault}", PATIENCE)
        body = self.about(fault)[0]
        self.texts[fault] = rendered(body["alerts"], template=self.directory / "tree" / TEMPLATE)
        self.note(f"told of {fault}")
        follow(self.texts[fault], TOLD[fault][1])

    def over(self, fault: str) -> None:
        """Wait for the message that a fault is over."""
        eventually(lambda: self.about(fault, "resolved"), f"the end of {fault}", PATIENCE)
        self.note(f"{fault} is over")


def follow(text: str, alert: str) -> None:
    """Open every link of a message; Grafana is not there, so of a dashboard its file and its variables are asked for."""
    links = dict(
        re.findall(r"^(Page|Runbook|On your Grafana|Silence it): (\S+)$", text, re.MULTILINE)
    )
    # The daemon of a host that is lost has no page.
    page = set() if alert == "AmpwatchTargetDown" else {"Page"}
    assert links.keys() == {"Runbook", "On your Grafana", "Silence it"} | page, text
    assert alert in opened(links["Runbook"])
    if "Page" in links:
        address = urlsplit(links["Page"])
        state = json.loads(opened(address._replace(path="/state.json", fragment="").geturl()))
        assert set(parse_qs(address.fragment).get("run", [])) <= state["runs"].keys(), text
    dashboard = urlsplit(links["On your Grafana"].removeprefix(GRAFANA))
    file = ROOT / "dashboards" / f"{dashboard.path.removeprefix('d/')}.json"
    variables = {one["name"] for one in json.loads(file.read_text())["templating"]["list"]}
    assert {name.removeprefix("var-") for name in parse_qs(dashboard.query)} <= variables
    silence = links["Silence it"]
    base, _, asked = silence.partition("#/silences/new?filter=")
    assert re.fullmatch(r'\{\w+="[^"]+"\}', unquote(asked)), silence
    matching = opened(f"{base}api/v2/alerts?filter={asked[3:-3]}")
    names = {one["labels"]["alertname"] for one in json.loads(matching)}
    assert alert in names, opened(f"{base}api/v2/alerts")


def told_anew(bodies: list[dict[str, Any]]) -> list[tuple[str, str, str | None]]:
    """Return of each message with an alert that was not told, or was over, its receiver, the alert and the run."""
    told: set[str] = set()
    found = []
    for body in bodies:
        firing = {
            json.dumps(one["labels"]): one["labels"]["alertname"]
            for one in body["alerts"]
            if one["status"] == "firing"
        }
        if news := {name for labels, name in firing.items() if labels not in told}:
            found.append((body["receiver"], "+".join(sorted(news)), body["groupLabels"].get("run")))
        told -= {json.dumps(one["labels"]) for one in body["alerts"]} - firing.keys()
        told |= firing.keys()
    return found


def opened(link: str) -> str:
    with urllib.request.urlopen(link, timeout=60) as answer:
        assert answer.status == 200
        return str(answer.read().decode())


def lived(night: Night, prometheus: Prometheus) -> None:  # noqa: PLR0915 - a night is long
    """Play the night."""
    ranks, told, over = night.ranks, night.told, night.over
    for run in RUNS:
        ranks.start(run, step=FIRST_STEPS.get(run, 0))
    scraped = "count(ampwatch_steps_total > 30)"
    places = sum(len(where.split()) for where, _ in RUNS.values())
    eventually(lambda: prometheus.value(scraped) == places, "all ranks, scraped", 120)
    night.note("all train")

    # What takes long begins first.
    ranks.play("starve", "starves")
    ranks.play("apart", "drifts", "b1")
    ranks.play("storm", "storms")
    ranks.play("left-low", "lies_low")
    ranks.play("hang", "hangs", "a1")
    ranks.play("creep", "creeps")
    told("creep")
    ranks.play("creep", "healthy")

    ranks.play("hang", "hangs")
    ranks.play("collapse", "collapses")
    told("collapse")
    ranks.end("collapse", "kill")
    ranks.start("collapse", step=20)  # the first restart

    ranks.play("nan-weights", "has_nan_weights")
    told("nan-weights")
    ranks.end("nan-weights", "kill")

    ranks.play("nan-gradients", "has_nan_gradients")
    told("nan-gradients")
    ranks.end("nan-gradients")

    ranks.end("raise", "fail", "b1")
    ranks.end("raise", "kill", "b0")
    told("raise")
    ranks.start("raise", step=30)  # the second restart

    ranks.end("end-broken", "dies_broken")
    told("end-broken")

    ranks.end("preempted")
    ranks.start("preempted", step=40)  # the first resume

    told("left-low")
    ranks.play("left-low", "is_set_right")
    told("hang")
    ranks.play("hang", "healthy")
    told("storm")
    ranks.play("storm", "healthy")

    night.break_gpu()
    told("gpu")

    night.kill_daemon("b")
    night.start_daemon("b")
    night.note("the daemon of b is back")

    night.kill_daemon("c")
    ranks.end("pair", "kill", "c1")
    ranks.play("pair", "hangs", "b0")
    told("host")
    ranks.end("pair", "kill", "b0")
    ranks.start("pair", step=90, where="a0 b1")  # the second resume, on what is left

    told("apart")
    ranks.end("apart", "kill")
    ranks.start("apart", step=50)  # the third restart
    told("starve")
    ranks.play("starve", "healthy")

    for fault in TOLD.keys() - {"host"}:
        over(fault)


@pytest.mark.timeout(1800)
def test_each_fault_of_a_night_is_one_message_and_nothing_else_is(tmp_path: Path) -> None:
    for program in ("prometheus", "prometheus-alertmanager", "promtool", "amtool"):
        require(program)
    with night(tmp_path) as (played, server):
        try:
            lived(played, server)
        finally:
            seen = {"messages": played.messages.bodies, "texts": played.texts}
            (tmp_path / "seen.json").write_text(json.dumps(seen, indent=1), encoding="utf-8")
    for fault, text in played.texts.items():
        assert re.search(rf"^What to do first: ({VERBS})\b", text, re.MULTILINE), text
        assert "<no value>" not in text, fault
    assert sorted(map(str, told_anew(played.messages.bodies))) == sorted(map(str, EXPECTED))
