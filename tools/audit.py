"""Known vulnerabilities of what CI installs: ``make audit``, with pip-audit.

A package that the service of vulnerabilities could not be asked about is an error of its own: an answer that did not
come is no answer that nothing is known.

Usage: ``python tools/audit.py constraints.txt constraints-dev.txt ...``. Ends with 0 if nothing is known, 1 if something
is, 2 if not everything could be asked.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS = 600
MAX_SHOWN = 3

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)


def main(paths: list[str]) -> int:
    """Audit the pins of files; return the exit status."""
    asked = pinned(Path(path).read_text(encoding="utf-8") for path in paths)
    print(f"==> Asking about {len(asked)} versions, of {', '.join(paths)}")
    answers: list[Any] = []
    problems: list[str] = []
    for each in apart(asked):
        found, problem = ask(each)
        answers += found
        problems += [problem] if problem else []
    status, text = verdict(asked, answers, problems)
    print(text)
    return status


def pinned(texts: Any) -> set[tuple[str, str]]:
    """Return the names and versions that texts pin, whatever Python each line is for."""
    return {(re.sub(r"[-_.]+", "-", n).lower(), v) for text in texts for n, v in _PIN.findall(text)}


def apart(asked: set[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """Return lists in which each name has one version, as pip-audit wants it."""
    lists: list[dict[str, str]] = []
    for name, version in sorted(asked):
        place = next((each for each in lists if name not in each), None)
        if place is None:
            lists.append(place := {})
        place[name] = version
    return [list(each.items()) for each in lists]


def ask(pins: list[tuple[str, str]]) -> tuple[list[Any], str]:
    """Return pip-audit's answers, and what went wrong, empty if nothing did."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write("".join(f"{name}=={version}\n" for name, version in pins))
        file.flush()
        command = [
            sys.executable,
            "-m",
            "pip_audit",
            "--disable-pip",
            "--no-deps",
            "--progress-spinner=off",
            "-f",
            "json",
            "-r",
            file.name,
        ]
        try:
            done = subprocess.run(  # noqa: S603 - of this file
                command, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS
            )
        except subprocess.TimeoutExpired:
            return [], f"no answer within {TIMEOUT_SECONDS} s"
    try:
        return json.loads(done.stdout)["dependencies"], ""
    except (ValueError, KeyError, TypeError):
        said = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        return [], said[-1][:300]


def verdict(
    asked: set[tuple[str, str]], answers: list[Any], problems: list[str]
) -> tuple[int, str]:
    """Return the exit status, and what to say.

    Args:
        asked: Names and versions.
        answers: What pip-audit answered, an object for each package.
        problems: What went wrong with asking.
    """
    answered = {(a["name"], a["version"]) for a in answers if "skip_reason" not in a}
    lines = [
        f"{a['name']} {a['version']}: {v['id']} {' '.join(v.get('aliases', []))}, fixed in {', '.join(v['fix_versions']) or 'no release yet'}"
        for a in answers
        for v in a.get("vulns", ())
    ]
    silent = sorted(asked - answered)
    if silent:
        reasons = problems + [str(a["skip_reason"]) for a in answers if "skip_reason" in a]
        lines.append(
            f"make audit: expected an answer about each of {len(asked)} versions, {len(silent)} could not be asked about: "
            f"{', '.join(map('=='.join, silent[:MAX_SHOWN]))}{' and more' if len(silent) > MAX_SHOWN else ''}"
            f" ({'; '.join(reasons[:1])}). This does not say that they are safe; run it where pypi.org answers"
        )
        return 2, "\n".join(lines)
    if lines:
        return 1, "\n".join([*lines, f"make audit: {len(lines)} known vulnerabilities"])
    return 0, f"No vulnerability is known of these {len(asked)} versions"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
