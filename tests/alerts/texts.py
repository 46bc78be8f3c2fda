"""Texts of alerts as a person gets them: written by the rules, and put into a message by Alertmanager's template.

``python -m tests.alerts.texts`` writes what promtool's tests expect (``exp_annotations`` of
``dashboards/alerts/*.test.yml``) and the messages (``tests/golden/alerts``) again.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.alerts.promtool import promtool
from tests.alerts.rules import ROOT, TESTS, load
from tests.services import require

GOLDEN = ROOT / "tests" / "golden" / "alerts"
TEMPLATE = ROOT / "deploy" / "alertmanager" / "ampwatch.tmpl"

FIRED = "2026-11-21T03:12:00Z"
"""Moment at which every alert of a message has begun to fire."""

_CASE = re.compile(
    r"(?:^    name: (?P<name>.*),\n)?^    alertname: (?P<alert>\w+), time: (?P<time>\w+), *\n"
    r"(?P<said>(?:^ {8,}.*\n)+)",
    re.MULTILINE,
)
_PAIR = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*")')
_PART = re.compile(r"(\d+)(ms|[smhd])")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_WIDTH = 100

Key = tuple[str, str, float, tuple[tuple[str, str], ...]]
"""Name of a test, alert, moment, labels."""


def messages() -> dict[str, str]:
    """Return every message that a test of the rules expects, as the shipped template words it, by file name."""
    found: dict[str, str] = {}
    for file in TESTS:
        for test in load(file)["tests"]:
            for case in test.get("alert_rule_test", ()):
                for group in _groups(case):
                    name, text = _name(case, group[0]["labels"]), rendered(group)
                    if found.get(name, text) != text:
                        name = name.replace(".txt", f".{case['eval_time']}.txt")
                    found[name] = text
    return found


def rendered(
    alerts: list[dict[str, Any]],
    status: str = "firing",
    template: Path = TEMPLATE,
    names: tuple[str, ...] = ("title", "text"),
) -> str:
    """Return title and text of a group of alerts, as Alertmanager's shipped template writes them.

    Args:
        alerts: Labels and annotations of each; ``startsAt`` and the like, where they matter.
        status: Of the group.
        template: The template, as it is shipped or as it was deployed.
        names: What of it.
    """
    begun = {"status": status, "startsAt": FIRED, "endsAt": "2026-11-21T04:00:00Z"}
    data = {
        "receiver": "ampwatch",
        "status": status,
        "alerts": [begun | alert for alert in alerts],
        "groupLabels": _common([alert["labels"] for alert in alerts]),
        "commonLabels": _common([alert["labels"] for alert in alerts]),
        "commonAnnotations": _common([alert["annotations"] for alert in alerts]),
        "externalURL": "http://localhost",
    }
    text = "\n\n".join(f'{{{{ template "ampwatch.{name}" . }}}}' for name in names)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".json") as file:
        json.dump(data, file)
        file.flush()
        command = [require("amtool"), "template", "render", f"--template.data={file.name}"]
        command += [f"--template.glob={template}", f"--template.text={text}"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip() + "\n"


def _groups(case: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """Yield the alerts of a case that come in one message: those of one run, or of one host."""
    together: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for expected in case.get("exp_alerts", ()):
        labels = {"alertname": case["alertname"], **expected["exp_labels"]}
        key = (labels.get("run", ""), "" if "run" in labels else labels.get("instance", ""))
        alert = {"labels": labels, "annotations": expected.get("exp_annotations", {})}
        together.setdefault(key, []).append(alert)
    yield from together.values()


def _name(case: dict[str, Any], labels: dict[str, str]) -> str:
    """Return a file name: the alert, and the run, whose name says in which state it is."""
    state = labels.get("run") or labels.get("collector") or ""
    return f"{case['alertname']}{'.' if state else ''}{state}.txt"


def _common(maps: list[dict[str, str]]) -> dict[str, str]:
    return {k: v for k, v in maps[0].items() if all(other.get(k) == v for other in maps)}


def _rewrite(file: Path) -> None:
    """Put the texts that the rules give into the tests of a file."""
    said = promtool("test", "rules", file)
    got = dict(_got(said.stdout + said.stderr))
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    for begin, indent, key in sorted(_expected(text), reverse=True):
        if key in got:
            end = begin
            while end < len(lines) and lines[end].startswith(" " * indent):
                end += 1
            lines[begin:end] = _block(got[key], indent)
    file.write_text("".join(lines), encoding="utf-8")


def _got(said: str) -> Iterator[tuple[Key, dict[str, str]]]:
    """Yield what promtool says that it got, where that is not what a test expects."""
    for case in _CASE.finditer(said):
        after = case["said"][case["said"].index("got:") :]
        rows = re.findall(r"Labels:\{(.*)\}\n\s*Annotations:\{(.*)\}", after)
        for labels, said_of_it in rows:
            named = {k: json.loads(v) for k, v in _PAIR.findall(labels)}
            texts = {k: json.loads(v) for k, v in _PAIR.findall(said_of_it)}
            yield _key(case["name"] or "", case["alert"], case["time"], named), texts


def _expected(text: str) -> Iterator[tuple[int, int, Key]]:
    """Yield the first line of each text of a file, how far it is indented, and whose text it is."""
    document = yaml.compose(text, Loader=yaml.SafeLoader)
    values = yaml.safe_load(text)
    assert document is not None
    for node, test in zip(_at(document, "tests").value, values["tests"], strict=True):
        if not test.get("alert_rule_test"):
            continue
        cases = _at(node, "alert_rule_test").value
        for case_node, case in zip(cases, test["alert_rule_test"], strict=True):
            if not case.get("exp_alerts"):
                continue
            alerts = _at(case_node, "exp_alerts").value
            for alert_node, alert in zip(alerts, case["exp_alerts"], strict=True):
                texts = _at(alert_node, "exp_annotations")
                labels = {"alertname": case["alertname"], **alert["exp_labels"]}
                key = _key(test.get("name", ""), case["alertname"], case["eval_time"], labels)
                yield texts.start_mark.line, texts.start_mark.column, key


def _at(node: yaml.Node, key: str) -> Any:
    return next(value for name, value in node.value if name.value == key)


def _key(name: str, alert: str, time: str, labels: dict[str, str]) -> Key:
    seconds = sum(int(n) * _SECONDS[unit] for n, unit in _PART.findall(str(time)))
    return name, alert, seconds, tuple(sorted(labels.items()))


def _block(texts: dict[str, str], indent: int) -> list[str]:
    """Return annotations as YAML, long ones folded."""
    lines = []
    order = ("summary", "description", "finding", "action", "page", "runbook_url", "dashboard")
    for key in order:
        if key not in texts:
            continue
        lines.append(" " * indent + f"{key}: >-\n")
        folded = textwrap.wrap(
            texts[key], _WIDTH - indent - 2, break_long_words=False, break_on_hyphens=False
        )
        lines += [" " * (indent + 2) + line + "\n" for line in folded]
    return lines


def main() -> None:
    """Write everything that is generated again."""
    for file in TESTS:
        _rewrite(file)
    for old in GOLDEN.glob("*.txt"):
        old.unlink()
    GOLDEN.mkdir(exist_ok=True)
    for name, text in messages().items():
        (GOLDEN / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
